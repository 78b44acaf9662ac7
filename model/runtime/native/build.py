"""Builds the library of native operators, and says whether it can run here.

    python -m model.runtime.native.build

Installing the package does the same, and `make` whenever a source has changed. Without the library, or on another CPU,
the stock operators run.

The sources beside this file need a C++17 compiler and nothing else. Kernels are compiled for AVX-512 with VNNI and the
entry for any x86-64, so that the library can be loaded anywhere and says itself whether this CPU can run it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from model.errors import ProviderError

SOURCES = Path(__file__).resolve().parent
LIBRARY = SOURCES / "operators.so"
"""Where the library stands once it is built; not under version control."""

NO_CPU = "this CPU lacks AVX-512 with VNNI, which they need"
"""What `obstacle` says where the library is there in vain."""

ENTRY = "library.cpp"
"""The one source that must run on every CPU."""

# No contraction: whether a product and a sum are rounded once or twice is said in the source, not chosen.
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
_KERNELS = (*(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")), "-mfma")
_TILES = ("-mamx-tile", "-mamx-int8")
"""Compilers of before 2021 do not know them; without them there are no products on tiles."""


def build(destination: Path = LIBRARY) -> Path:
    """Compile the operators into the file `destination` and return it; one that is made from these sources stays.

    Raises `ProviderError` when there is no C++ compiler or it does not accept the sources.
    """
    if destination.is_file() and digest().encode() in destination.read_bytes():
        return destination
    compiler = _compiler()
    destination.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=destination.parent, prefix=".build-") as folder,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        kernels = (*_KERNELS, *(_TILES if _accepts(compiler, _TILES) else ()))

        def compiled(source: Path) -> str:
            made = str(Path(folder) / f"{source.stem}.o")
            flags = (f'-DDRAGOMAN_SOURCES="{digest()}"',) if source.name == ENTRY else kernels
            _run(compiler, *_FLAGS, *flags, "-c", str(source), "-o", made)
            return made

        objects = list(pool.map(compiled, sorted(SOURCES.glob("*.cpp"))))
        made = Path(folder) / destination.name
        _run(compiler, "-shared", "-o", str(made), *objects)
        made.replace(destination)  # a process that has the old library open keeps it
    return destination


def obstacle(path: Path = LIBRARY) -> str | None:
    """Why the library at `path` cannot run here, as the end of a sentence; None if it can."""
    if not path.is_file():
        return "their library was not built (CONTRIBUTING.md says how it is)"
    try:
        opened = ctypes.CDLL(str(path))
        opened.dragoman_sources.restype = ctypes.c_char_p
        sources, supported = opened.dragoman_sources().decode(), opened.dragoman_supported()
    except (OSError, AttributeError) as error:
        return f"their library cannot be loaded ({error})"
    if sources != digest():
        return "their library was built from other sources than those beside it (install the package again)"
    return None if supported else NO_CPU


def digest() -> str:
    """SHA-256 over names and contents of all sources and how they are compiled, in hexadecimal."""
    hashed = hashlib.sha256(" ".join((*_FLAGS, *_KERNELS, *_TILES)).encode())
    for path in _source_files():
        hashed.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return hashed.hexdigest()


def _source_files() -> Iterator[Path]:
    """What the library is made from; this file too, for it holds the flags."""
    return (path for path in sorted(SOURCES.iterdir()) if path.suffix in {".h", ".cpp"} or path.name == "build.py")


def _compiler() -> str:
    names = [name for name in (os.environ.get("CXX"), "g++", "clang++") if name]
    for name in names:
        if found := shutil.which(name):
            return found
    raise ProviderError(
        f"a C++ compiler is needed to build the native operators, but none of {', '.join(names)} is there. "
        "Install one or name it in CXX; without the library the stock operators are used."
    )


def _accepts(compiler: str, flags: tuple[str, ...]) -> bool:
    command = (compiler, *flags, "-fsyntax-only", "-x", "c++", os.devnull)
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProviderError(f"the native operators must compile, but {command[0]} says: {done.stderr.strip()}")


def main() -> int:
    """Build the library and say where it is, or why there is none; returns the exit status."""
    try:
        sys.stdout.write(f"native operators: {build()}\n")
    except (ProviderError, OSError) as error:
        sys.stderr.write(f"native operators: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

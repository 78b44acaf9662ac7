"""What is installed is what stands in the tree: no file lost, none added."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.runtime.native.build import NO_CPU, obstacle

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("model", "service", "training")
LIBRARY = "model/runtime/native/operators.so"
compiler = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="there is no C++ compiler")


def build(tree: Path, folder: Path, **environment: str) -> tuple[Path, str]:
    """The wheel of `tree`, made in `folder`, and what was said about it."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    kept = {name: value for name, value in os.environ.items() if name != "CXX"}
    done = subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True, env={**kept, **environment})
    (path,) = folder.glob("*.whl")
    return path, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(build(ROOT, tmp_path_factory.mktemp("wheel"))[0]) as archive:
        yield archive


def listed(*paths: str) -> set[str]:
    """Files of the tree that are under version control or could be."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths]
    named = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return {name for name in named if name and (ROOT / name).is_file()}


def test_the_wheel_holds_the_three_packages_and_at_most_the_library_of_operators_besides(
    wheel: zipfile.ZipFile,
) -> None:
    in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert in_wheel - {LIBRARY} == listed(*PACKAGES)


@compiler
def test_a_wheel_with_the_library_is_one_for_this_platform_and_any_python(wheel: zipfile.ZipFile) -> None:
    assert wheel.read(LIBRARY) == (ROOT / LIBRARY).read_bytes()
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert Path(str(wheel.filename)).name.endswith(f"-py3-none-{machine}.whl")
    (about,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/WHEEL"))
    assert "Root-Is-Purelib: false" in about
    assert obstacle(ROOT / LIBRARY) in (None, NO_CPU)


def test_without_a_compiler_the_wheel_is_one_for_all_and_says_what_it_lacks(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in listed("pyproject.toml", "hatch_build.py", "README.md", *PACKAGES):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    path, said = build(tree, tmp_path / "wheel", PATH=str(tmp_path))
    assert path.name.endswith("-py3-none-any.whl")
    assert "native operators are left out, and the stock ones will run: a C++ compiler is needed" in said
    with zipfile.ZipFile(path) as archive:
        assert LIBRARY not in archive.namelist()


@pytest.mark.parametrize("name", ["en-de", "de-en"])
def test_a_bundled_model_has_at_most_30_megabytes(name: str) -> None:
    files = [path for path in (ROOT / "service" / "bundled" / name).rglob("*") if path.is_file()]
    assert 2e6 < sum(path.stat().st_size for path in files) <= 30e6


@pytest.mark.parametrize("name", ["en-de", "de-en"])
def test_the_wheel_holds_the_bundled_models_byte_for_byte(wheel: zipfile.ZipFile, name: str) -> None:
    bundle = ROOT / "service" / "bundled" / name
    assert (bundle / "manifest.json").is_file()
    for path in filter(Path.is_file, bundle.rglob("*")):
        assert wheel.read(path.relative_to(ROOT).as_posix()) == path.read_bytes()


def test_the_wheel_brings_both_commands_and_asks_for_no_torch(wheel: zipfile.ZipFile) -> None:
    info = {Path(name).name: wheel.read(name).decode() for name in wheel.namelist() if ".dist-info/" in name}
    scripts = configparser.ConfigParser()
    scripts.read_string(info["entry_points.txt"])
    assert dict(scripts["console_scripts"]) == {"dragoman": "service.cli:main", "dragoman-train": "training.cli:main"}
    unconditional = [
        line for line in info["METADATA"].splitlines() if line.startswith("Requires-Dist") and ";" not in line
    ]
    assert unconditional
    assert not any("torch" in line or "onnxruntime" in line for line in unconditional)

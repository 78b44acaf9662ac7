"""Makes small Debian packages, so that tests need neither a mirror nor a network."""

import subprocess
from collections.abc import Mapping
from pathlib import Path


def make_package(cache: Path, name: str, files: Mapping[str, bytes], version: str = "1.0-1") -> Path:
    """Put a package with `files` (path within it → content) into the folder `cache`."""
    root = cache.parent / "roots" / name
    control = root / "DEBIAN/control"
    control.parent.mkdir(parents=True)
    control.write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Test <test@example.org>\n"
        "Description: test\n"
    )
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    cache.mkdir(parents=True, exist_ok=True)
    archive = cache / f"{name}_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, archive], check=True, capture_output=True)
    return archive

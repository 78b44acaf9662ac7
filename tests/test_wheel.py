"""What is installed is what stands in the tree: no file lost, none added."""

from __future__ import annotations

import configparser
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("model", "service", "training")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_the_three_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PACKAGES]
    named = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    in_tree = {name for name in named if name and (ROOT / name).is_file()}
    in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert in_wheel == in_tree


def test_the_wheel_holds_the_bundled_model_byte_for_byte(wheel: zipfile.ZipFile) -> None:
    bundle = ROOT / "service" / "bundled" / "en-de"
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

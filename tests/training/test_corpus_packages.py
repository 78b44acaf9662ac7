"""Packages are fetched once, unpacked in part, and every failure says what to do."""

import os
import shutil
from pathlib import Path

import pytest

from tests.training.packages_for_tests import make_package
from training.corpus.errors import CorpusError
from training.corpus.packages import PackageStore, Selection

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg-deb, which Debian brings")

MO = "usr/share/locale/de/LC_MESSAGES/toy.mo"
CATALOGUES = Selection("catalogues", lambda path: path.endswith(".mo"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def toy(cache: Path, copyright_file: str = "License: GPL-3+\n text\nLicense: Expat\n") -> None:
    make_package(
        cache,
        "toy",
        {MO: b"content", "usr/bin/toy": b"no text", "usr/share/doc/toy/copyright": copyright_file.encode()},
        version="1.0-1",
    )


def command(folder: Path, name: str, script: str) -> None:
    """Put an executable called `name` into `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_package_in_the_cache_is_unpacked_without_downloading(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(cache)
    command(cache.parent / "bin", "apt-get", "exit 1")
    monkeypatch.setenv("PATH", f"{cache.parent / 'bin'}{os.pathsep}{os.environ['PATH']}")
    package = PackageStore(cache).fetch("toy", CATALOGUES)
    assert (package.name, package.version) == ("toy", "1.0-1")
    assert (package.folder / MO).read_bytes() == b"content"
    assert not (package.folder / "usr/bin").exists()


def test_missing_packages_are_downloaded_together_and_what_cannot_be_had_is_named_by_fetch(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(cache)
    calls = cache.parent / "calls"
    script = (
        f'shift 2; echo "$@" >> {calls}; for name; do [ "$name" = lost ] && exit 100; touch "${{name}}_1_all.deb"; done'
    )
    command(cache.parent / "bin", "apt-get", script)
    monkeypatch.setenv("PATH", f"{cache.parent / 'bin'}{os.pathsep}{os.environ['PATH']}")
    store = PackageStore(cache)
    store.prefetch(["one", "toy", "two", "one"])
    assert calls.read_text() == "one two\n"
    assert {path.name for path in cache.glob("*.deb")} >= {"one_1_all.deb", "two_1_all.deb"}
    store.prefetch(["lost", "Not A Name"])
    with pytest.raises(CorpusError, match="package lost could not be downloaded"):
        store.fetch("lost", CATALOGUES)


def test_two_selections_of_one_package_do_not_meet(cache: Path) -> None:
    toy(cache)
    store = PackageStore(cache)
    assert not (store.fetch("toy", Selection("nothing", lambda _: False)).folder / MO).exists()
    assert (store.fetch("toy", CATALOGUES).folder / MO).exists()


def test_what_is_unpacked_is_not_unpacked_again(cache: Path) -> None:
    toy(cache)
    store = PackageStore(cache)
    (store.fetch("toy", CATALOGUES).folder / MO).write_bytes(b"touched")
    assert (store.fetch("toy", CATALOGUES).folder / MO).read_bytes() == b"touched"


def test_an_interrupted_unpacking_starts_over(cache: Path) -> None:
    toy(cache)
    leftover = cache / "files/catalogues/toy_1.0-1_all.partial/junk"
    leftover.mkdir(parents=True)
    package = PackageStore(cache).fetch("toy", CATALOGUES)
    assert (package.folder / MO).exists()
    assert not list(cache.rglob("junk"))


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("License: GPL-3+\n text\nLicense: Expat\nLicense: GPL-3+\n", "Expat, GPL-3+"),
        ("On Debian systems see `/usr/share/common-licenses/GPL-2'.\n", "GPL-2"),
        ("Do as you like.\n", "see the copyright file of Debian package toy"),
    ],
)
def test_the_licence_is_read_from_the_package(cache: Path, text: str, licence: str) -> None:
    toy(cache, text)
    assert PackageStore(cache).fetch("toy", CATALOGUES).licence() == licence


def test_a_package_is_downloaded_into_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy(cache.parent / "mirror")
    command(cache.parent / "bin", "apt-get", f'cp {cache.parent / "mirror"}/"$3"_*.deb .')
    monkeypatch.setenv("PATH", f"{cache.parent / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert (PackageStore(cache).fetch("toy", CATALOGUES).folder / MO).exists()
    assert [path.name for path in cache.glob("*.deb")] == ["toy_1.0-1_all.deb"]


def test_a_failed_download_says_why_and_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(cache.parent / "bin", "apt-get", "echo 'E: Unable to locate package toy' >&2; exit 100")
    monkeypatch.setenv("PATH", f"{cache.parent / 'bin'}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(CorpusError, match=r"Unable to locate package toy Run apt-get update"):
        PackageStore(cache).fetch("toy", CATALOGUES)


def test_without_apt_get_the_error_says_where_to_put_the_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache.parent))
    with pytest.raises(CorpusError, match=r"apt-get, which is not here; put its \.deb file into"):
        PackageStore(cache).fetch("toy", CATALOGUES)


@pytest.mark.parametrize("name", ["../toy", "toy; rm", "-o", "Toy", "t"])
def test_what_is_no_package_name_never_reaches_a_command(cache: Path, name: str) -> None:
    with pytest.raises(CorpusError, match="must be a Debian package name"):
        PackageStore(cache).fetch(name, CATALOGUES)


def test_a_damaged_package_is_named(cache: Path) -> None:
    toy(cache)
    archive = cache / "toy_1.0-1_all.deb"
    archive.write_bytes(archive.read_bytes()[:300])
    with pytest.raises(CorpusError, match=r"toy_1\.0-1_all\.deb must be a Debian package"):
        PackageStore(cache).fetch("toy", CATALOGUES)
    assert not (cache / "files/catalogues/toy_1.0-1_all").exists()

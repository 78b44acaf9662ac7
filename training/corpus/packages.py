"""Debian packages as data: fetched once, unpacked without being installed."""

from __future__ import annotations

import glob
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from training.corpus.errors import CorpusError

_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_AT_ONCE = 64
"""Packages for one call of apt-get, which reads all its lists anew each time."""


@dataclass(frozen=True)
class Selection:
    """Which files of a package are unpacked."""

    name: str
    """Names the place in the cache; another selection of the same package lies elsewhere."""
    wants: Callable[[str], bool]
    """Decides by the path within the package, such as `usr/share/locale/de/LC_MESSAGES/x.mo`."""


@dataclass(frozen=True)
class Package:
    """The wanted files of one package, on disk under `folder`."""

    name: str
    version: str
    folder: Path

    def licence(self) -> str:
        """The licences its copyright file names, or where to read them."""
        path = self.folder / "usr/share/doc" / self.name / "copyright"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        named = {match.strip() for match in re.findall(r"^License:[ \t]*(\S[^\n]*)$", text, re.MULTILINE)}
        if named:
            return ", ".join(sorted(named, key=str.lower))
        pointed = set(re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9])", text))
        return ", ".join(sorted(pointed)) or f"see the copyright file of Debian package {self.name}"


class PackageStore:
    """A folder that keeps downloaded packages and their unpacked files, so that a rebuild downloads nothing."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def fetch(self, name: str, selection: Selection) -> Package:
        """Package `name` with the selected files and its copyright file.

        Raises `CorpusError` when it can be neither found in the cache nor downloaded.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        archive = self._find(name) or self._download(name)
        version = archive.stem.split("_")[1].replace("%3a", ":")
        return Package(name, version, self._unpack(archive, name, selection))

    def prefetch(self, names: Iterable[str]) -> None:
        """Download the packages `names` that the cache lacks, many at once, which is several times faster.

        What cannot be had is left for `fetch` to complain of.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        missing = [name for name in dict.fromkeys(names) if _NAME.fullmatch(name) and self._find(name) is None]
        for start in range(0, len(missing), _AT_ONCE) if shutil.which("apt-get") else ():
            self._apt_get(missing[start : start + _AT_ONCE])

    def _find(self, name: str) -> Path | None:
        """The newest file of package `name` in the cache."""
        found = self._cache.glob(f"{glob.escape(name)}_*.deb")
        return max(found, key=lambda path: (path.stat().st_mtime, path.name), default=None)

    def _download(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise CorpusError(f"{name!r} must be a Debian package name: lower-case letters, digits, plus, dot, minus.")
        if not shutil.which("apt-get"):
            raise CorpusError(
                f"package {name} is downloaded with apt-get, which is not here; put its .deb file into {self._cache}."
            )
        complaint = self._apt_get([name])
        if (found := self._find(name)) is None:
            reason = " ".join(line for line in complaint.splitlines() if line.startswith("E:")) or complaint.strip()
            raise CorpusError(
                f"package {name} could not be downloaded: {reason} Run apt-get update, correct the name, or put its "
                f".deb file into {self._cache}."
            )
        return found

    def _apt_get(self, names: Sequence[str]) -> str:
        """Download packages into the cache: all, or none where one cannot be had; what was said about it."""
        # Beside the cache first: an interrupted download must not look like a package.
        with TemporaryDirectory(dir=self._cache) as folder:
            command = ["apt-get", "-q", "download", *names]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            for archive in Path(folder).glob("*.deb") if done.returncode == 0 else ():
                archive.replace(self._cache / archive.name)
        return done.stderr

    def _unpack(self, archive: Path, name: str, selection: Selection) -> Path:
        """Extract into the cache, under a name that appears only when all of it is there."""
        folder = self._cache / "files" / selection.name / archive.stem
        if folder.is_dir():
            return folder
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        copyright_file = f"usr/share/doc/{name}/copyright"
        try:
            for tar, member in _members(archive):
                path = member.name.removeprefix("./")
                if member.isfile() and (path == copyright_file or selection.wants(path)):
                    tar.extract(member, partial, filter="data")
        except (OSError, tarfile.TarError) as error:
            raise CorpusError(
                f"{archive} must be a Debian package, but cannot be unpacked ({error}); delete it to fetch it again."
            ) from error
        partial.rename(folder)
        return folder


def _members(archive: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """The files in a package, as dpkg-deb streams them; nothing of the package is run or installed."""
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
        tarfile.open(fileobj=process.stdout, mode="r|") as tar,
    ):
        for member in tar:
            yield tar, member
    if process.returncode:
        raise tarfile.TarError(f"dpkg-deb ended with status {process.returncode}")

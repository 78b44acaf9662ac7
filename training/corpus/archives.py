"""Tar archives as data: the few members that are wanted, unpacked once."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from training.corpus.errors import CorpusError

_DAMAGE = (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError)
_SHOWN = 12
"""Names of an archive that an error lists."""


def is_member(name: str) -> bool:
    """Whether `name` can be a file of an archive, and lies in the folder that it is unpacked into."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and path.as_posix() == name


def unpack(archive: Path, members: Sequence[str], folder: Path) -> list[Path]:
    """The files called `members` of a tar archive, compressed or not, under `folder`; unpacked if not there yet.

    The archive is read once and no further than its last wanted member; of links and devices nothing is made. Raises
    `CorpusError` for an archive that is damaged or holds no such files.
    """
    places = {member: folder / member for member in members}
    missing = {member for member, place in places.items() if not place.is_file()}
    seen: list[str] = []
    try:
        with tarfile.open(archive, mode="r|*") as tar:
            for entry in tar if missing else ():
                name = entry.name.removeprefix("./")
                seen.append(name)
                if name in missing and entry.isfile():
                    _write(tar, entry, places[name])
                    missing.remove(name)
                if not missing:
                    break
    except _DAMAGE as error:
        raise CorpusError(
            f"{archive} must be a tar archive, but cannot be read: {error}; delete it to fetch it again."
        ) from error
    if missing:
        raise CorpusError(
            f"{archive} must hold {', '.join(sorted(missing))}, but holds {', '.join(seen[:_SHOWN]) or 'nothing'}"
            f"{' …' if len(seen) > _SHOWN else ''}; correct the members in the recipe."
        )
    return list(places.values())


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, place: Path) -> None:
    """Unpack one file, under a name that appears only when all of it is there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(place.name + ".partial")
    source = tar.extractfile(entry)
    assert source is not None, "a regular file has bytes"
    with source, part.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    part.replace(place)

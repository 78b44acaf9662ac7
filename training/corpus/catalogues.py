"""Catalogues of programs: gettext's, compiled (.mo) or not (.po), and Qt's (.qm), with text and translation."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import polib

from training.corpus.files import COMPRESSED, inner_suffix, open_binary, reading
from training.corpus.pair import Pair
from training.corpus.qt import read_qm

_SUFFIXES = (".mo", ".po", ".qm")


def is_catalogue(path: str, language: str) -> bool:
    """Whether `path` is a catalogue that translates into `language`: `…/de/LC_MESSAGES/x.mo`, `de.po`, `cups_de.po`."""
    where = _uncompressed(path)
    if where.suffix == ".mo" and where.parent.name == "LC_MESSAGES":
        return where.parent.parent.name == language
    if where.suffix in _SUFFIXES:
        region = f"{language}_{language.upper()}"
        named = where.stem in (language, region) or where.stem.endswith(
            tuple(f"{mark}{name}" for mark in "_-" for name in (language, region))
        )
        return named or (where.suffix != ".mo" and language in where.parent.parts)
    return False


def find_catalogues(folder: Path, language: str) -> list[Path]:
    """All catalogues of `language` below `folder`, sorted; `folder` itself if it is a single catalogue."""
    if folder.is_file():
        return [folder]
    files = (path for path in folder.rglob("*") if inner_suffix(path.name) in _SUFFIXES and path.is_file())
    return sorted(path for path in files if is_catalogue(path.relative_to(folder).as_posix(), language))


def domain(path: Path, language: str) -> str:
    """The text domain a catalogue belongs to: `okular` for `okular.mo`; for `de.po` the name of its folder."""
    name = _uncompressed(path.name).stem
    return path.parent.name if name == language else name


def _uncompressed(path: str) -> PurePosixPath:
    where = PurePosixPath(path)
    return where.with_suffix("") if where.suffix in COMPRESSED else where


def read_catalogue(path: Path, origin: str, part: str) -> Iterator[Pair]:
    """The pairs of one catalogue, as they stand: one a message, two a message with a plural.

    The header and obsolete messages are no pairs; one without a translation has an empty target. Contexts (`msgctxt`)
    are left out. A plural pairs the singular with the first form and the plural with the last. Raises `CorpusError`
    for a damaged file.
    """
    suffix = inner_suffix(path.name)
    if suffix == ".qm":
        yield from (Pair(source, target, origin, part) for source, target in read_qm(path))
        return
    read = polib.mofile if suffix == ".mo" else polib.pofile
    with reading(path, "a gettext catalogue", ValueError, LookupError, struct.error), _unpacked(path) as plain:
        entries = read(str(plain))
    for entry in entries:
        if entry.obsolete:
            continue
        # Compiled catalogues hold no guesses: msgfmt leaves them out.
        fuzzy = isinstance(entry, polib.POEntry) and entry.fuzzy
        for source, target in _texts(entry):
            yield Pair(source, target, origin, part, fuzzy)


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """`path` itself, or a copy without its compression for as long as it is needed: polib reads files only."""
    if path.suffix not in COMPRESSED:
        yield path
        return
    with TemporaryDirectory() as folder, open_binary(path) as packed:
        plain = Path(folder) / path.stem
        with plain.open("wb") as file:
            shutil.copyfileobj(packed, file)
        yield plain


def _texts(entry: polib.POEntry | polib.MOEntry) -> Iterator[tuple[str, str]]:
    if not entry.msgid_plural:
        yield entry.msgid, entry.msgstr
        return
    forms = [entry.msgstr_plural[key] for key in sorted(entry.msgstr_plural, key=int)]
    if len(forms) > 1:
        yield entry.msgid, forms[0]
    if forms:
        yield entry.msgid_plural, forms[-1]

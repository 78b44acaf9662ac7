"""Text files as lines, whatever their compression; tab-separated and paired parallel text, and the .sgm of WMT."""

from __future__ import annotations

import bz2
import gzip
import html
import io
import lzma
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import IO

import zstandard

from training.corpus.errors import CorpusError
from training.corpus.pair import Pair

COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
"""Endings of files that are unpacked on the way."""
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
_DAMAGE = (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError, UnicodeError)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of `path` without their line ends; `.gz`, `.xz`, `.bz2` and `.zst` are unpacked on the way.

    Only LF, CR LF and the end of the file end a line: a NUL or a Unicode separator inside one does not, so the two
    sides of a corpus never get out of step. Raises `CorpusError` for a file that is missing, damaged or not UTF-8.
    """
    with reading(path, "text in UTF-8"), ExitStack() as stack:
        raw = stack.enter_context(open_binary(path))
        for line in stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8-sig", newline="\n")):
            yield line.removesuffix("\n").removesuffix("\r")


def read_texts(path: Path) -> Iterator[str]:
    """One side of paired text: the segments of a `.sgm` file, packed or not, or else the lines of `path`."""
    return read_segments(path) if inner_suffix(path.name) in (".sgm", ".sgml") else read_lines(path)


def read_segments(path: Path) -> Iterator[str]:
    """The texts between `<seg …>` and `</seg>` in their order, in which WMT publishes its test sets.

    Only entities are read: the files are no XML, for a bare & or < stands in some of their texts. White space is one
    space, so that every text is a line. Raises `CorpusError` for a file without any.
    """
    found = _SEGMENT.findall("\n".join(read_lines(path)))
    if not found:
        raise CorpusError(f"{path} must hold text between <seg> and </seg>, but there is none; is it another format?")
    yield from (" ".join(html.unescape(text).split()) for text in found)


@contextmanager
def reading(path: Path, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn what can go wrong while reading `path` (and `errors`) into a `CorpusError` that says it must be `what`."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorpusError(f"a file must be at {path}, but there is none.") from error
    except (*_DAMAGE, *errors) as error:
        raise CorpusError(f"{path} must be {what}, but cannot be read: {error}.") from error


def open_binary(path: Path) -> IO[bytes]:
    """The bytes of `path`, unpacked."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".bz2":
        return bz2.open(path, "rb")
    if path.suffix == ".zst":
        return zstandard.open(path, "rb")
    return path.open("rb")


def inner_suffix(name: str) -> str:
    """The ending that tells the format: `.po` for `de.po` and for `de.po.xz`."""
    path = PurePath(name)
    return path.with_suffix("").suffix if path.suffix in COMPRESSED else path.suffix


def read_tsv(path: Path, origin: str) -> Iterator[Pair]:
    """Pairs from the first two tab-separated columns. A line with fewer columns is a `CorpusError`."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        columns = line.split("\t")
        if len(columns) < 2:
            raise CorpusError(f"line {number} of {path} must be source, tab, target, but has no tab: {line[:60]!r}.")
        yield Pair(columns[0], columns[1], origin, path.name)


def read_paired(source: Path, target: Path, origin: str) -> Iterator[Pair]:
    """Pairs from two files, line for line (of `.sgm` files segment for segment).

    Files of different length are a `CorpusError`.
    """
    for number, (left, right) in enumerate(zip_longest(read_texts(source), read_texts(target)), start=1):
        if left is None or right is None:
            short = source if left is None else target
            raise CorpusError(f"{source} and {target} must have equally many lines, but {short} ends before {number}.")
        yield Pair(left, right, origin, source.name)

"""Text files as lines, whatever their compression; tab-separated and paired parallel text."""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import IO

import zstandard

from training.corpus.errors import CorpusError
from training.corpus.pair import Pair


def read_lines(path: Path) -> Iterator[str]:
    """The lines of `path` without their line ends; `.gz`, `.xz` and `.zst` are unpacked on the way.

    Only LF, CR LF and the end of the file end a line: a NUL or a Unicode separator inside one does not, so the two
    sides of a corpus never get out of step. Raises `CorpusError` for a file that is missing, damaged or not UTF-8.
    """
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(_open(path))
            for line in stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8-sig", newline="\n")):
                yield line.removesuffix("\n").removesuffix("\r")
    except FileNotFoundError as error:
        raise CorpusError(f"a text file must be at {path}, but there is none.") from error
    except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} must be text in UTF-8, but cannot be read: {error}.") from error


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    if path.suffix == ".zst":
        return zstandard.open(path, "rb")
    return path.open("rb")


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
    """Pairs from two files, line for line. Files of different length are a `CorpusError`."""
    for number, (left, right) in enumerate(zip_longest(read_lines(source), read_lines(target)), start=1):
        if left is None or right is None:
            short = source if left is None else target
            raise CorpusError(f"{source} and {target} must have equally many lines, but {short} ends before {number}.")
        yield Pair(left, right, origin, source.name)

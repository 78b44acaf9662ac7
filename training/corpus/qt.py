"""Compiled Qt catalogues (.qm): messages, with the source text where the program's authors left it in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from training.corpus.files import open_binary, reading

_MAGIC = bytes.fromhex("3cb86418caef9c95cd211cbf60a1bddd")
_MESSAGES = 0x69
_END, _TRANSLATION, _SOURCE = 1, 3, 6
_BARE = {_END: 0, 5: 4, 9: 1}
"""Tags that carry a fixed number of bytes; all others say how many follow."""


def read_qm(path: Path) -> Iterator[tuple[str, str]]:
    """Source and translation of every message of the catalogue at `path`; of a plural the last form.

    Messages that keep no source text are left out. Raises `CorpusError` for a damaged file.
    """
    with reading(path, "a compiled Qt catalogue", ValueError), open_binary(path) as file:
        data = file.read()
        if not data.startswith(_MAGIC):
            raise ValueError("it does not begin as one")
        yield from _messages(_section(data, _MESSAGES))


def _section(data: bytes, wanted: int) -> bytes:
    """The part of the file that is tagged `wanted`: byte tag, 32-bit length, content."""
    at = len(_MAGIC)
    while at < len(data):
        tag, size = data[at], int.from_bytes(data[at + 1 : at + 5], "big")
        if at + 5 + size > len(data):
            raise ValueError("it ends too early")
        if tag == wanted:
            return data[at + 5 : at + 5 + size]
        at += 5 + size
    return b""


def _messages(data: bytes) -> Iterator[tuple[str, str]]:
    source, forms, at = "", list[str](), 0
    while at < len(data):
        tag = data[at]
        at += 1
        if tag in _BARE:
            size = _BARE[tag]
        else:
            size = int.from_bytes(data[at : at + 4], "big")
            size, at = (0 if size == 0xFFFFFFFF else size), at + 4
        if at + size > len(data):
            raise ValueError("a message ends too early")
        content = data[at : at + size]
        at += size
        if tag == _TRANSLATION:
            forms.append(content.decode("utf-16-be"))
        elif tag == _SOURCE:
            source = content.decode("utf-8").rstrip("\0")
        elif tag == _END:
            if source and forms:
                yield from _paired(source, forms)
            source, forms = "", []


def _paired(source: str, forms: list[str]) -> Iterator[tuple[str, str]]:
    # Qt's source of a plural is written for many, "%n file(s)" or "%n files"; English forms lie in a catalogue apart.
    yield source, forms[-1]

"""Which characters of a text a token stands for, and which characters of a text a rewritten one is made of."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

Span = tuple[int, int]
"""The first character, and the one behind the last."""

SPACE = "\u2581"
"""What a vocabulary writes for a space."""

WINDOW = 8
"""So many characters may be passed over to find a piece again, where a vocabulary has spelt some of them otherwise."""


def spans(text: str, pieces: Sequence[str | bytes]) -> list[Span]:
    """The characters of `text` that each of its `pieces` stands for; a piece of bytes is one byte of a character.

    White space belongs to no piece, and each byte of a character has the whole character. A piece that is not found has
    no characters.
    """
    found: list[Span] = []
    position = 0
    for place, piece in enumerate(pieces):
        if isinstance(piece, str):
            found.append(_letters(text, position, piece))
        elif len(found) == place:  # else the bytes before it have filled it in
            character = (min(position, len(text)), min(position + 1, len(text)))
            found += [character] * _bytes(text, position, pieces[place:])
        position = found[-1][1]
    return found


def _letters(text: str, position: int, piece: str) -> Span:
    letters = piece.lstrip(SPACE)
    while letters != piece and position < len(text) and (text[position].isspace() or text[position] == SPACE):
        position += 1
    wanted = letters.replace(SPACE, " ")
    start = text.find(wanted, position, position + len(wanted) + WINDOW)
    return (start, start + len(wanted)) if start >= 0 else (position, position)


def _bytes(text: str, position: int, pieces: Sequence[str | bytes]) -> int:
    """How many of the bytes that `pieces` begin with make up the character at `position`; at least 1."""
    whole = text[position : position + 1].encode("utf-8", "replace")
    begun = b"".join(piece for piece in pieces[: len(whole)] if isinstance(piece, bytes))
    # A byte that belongs to no character is a sign of damage of its own.
    return len(whole) if begun == whole and whole else 1


def origins(text: str, rewrite: Callable[[str], str]) -> list[Span]:
    """For each character of `rewrite(text)`, the characters of `text` that it is made of.

    `rewrite` must be local: what it makes of a text is what it makes of the parts between which nothing combines, such
    as an accent with its letter or a space with the next one. If it is not, all ranges are empty.
    """
    whole = rewrite(text)
    if whole == text:
        return [(i, i + 1) for i in range(len(text))]
    found: list[Span] = []
    made: list[str] = []
    for start, behind in _clusters(text, rewrite):
        cluster = rewrite(text[start:behind])
        end = _trimmed(text, start, behind, rewrite)
        same = cluster == text[start:end]
        found += [(start + i, start + i + 1) if same else (start, end) for i in range(len(cluster))]
        made.append(cluster)
    return found if "".join(made) == whole else [(0, 0)] * len(whole)


def _clusters(text: str, rewrite: Callable[[str], str]) -> list[Span]:
    """Parts of `text` that `rewrite` treats apart, in their order."""
    found: list[Span] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or _comes_apart(text, start, end, rewrite):
            found.append((start, end))
            start = end
    return found


def _comes_apart(text: str, start: int, end: int, rewrite: Callable[[str], str]) -> bool:
    """Whether the character at `end` has nothing to do with those from `start` on."""
    character = text[end]
    made = rewrite(character)
    if not made or (unicodedata.combining(character) and rewrite(text[end - 1])):
        return False  # an accent may belong to something further left, and what vanishes may let one reach there
    return rewrite(text[start : end + 1]) == rewrite(text[start:end]) + made


def _trimmed(text: str, start: int, end: int, rewrite: Callable[[str], str]) -> int:
    """The end of text[start:end] without what vanishes there: that has no part in what is made.

    Halved and not counted down: someone may send thousands of invisible characters.
    """
    least = end
    while least - start > 1 and not rewrite(text[least - 1]):
        least -= 1
    cluster = rewrite(text[start:end])
    while least < end:
        middle = (least + end) // 2
        if rewrite(text[start:middle]) == cluster:
            end = middle
        else:
            least = middle + 1
    return end

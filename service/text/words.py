"""Where the words of a text are: what an alignment aligns."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from model.spans import Span

_JOINERS = "'’\u2010\u2011-"
"""Between two letters they make one word of two: don't, Wi-Fi."""
_POINTS = ".,:"
"""Between two digits: 1,000.5, 10:30."""
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"


def words(text: str, spaced: bool = True, carried: Sequence[Span] = ()) -> list[Span]:
    """The words of `text` in their order; signs that stand for themselves, such as a full stop, are words too.

    Where words are not `spaced` apart, each character with its marks is one. What is `carried` is one, whatever it is.
    """
    found: list[Span] = []
    position = 0
    for start, end in (*carried, (len(text), len(text))):
        found += [(position + a, position + b) for a, b in _words(text[position:start], spaced)]
        found += [(start, end)] if start < end else []
        position = end
    return found


def _words(text: str, spaced: bool) -> list[Span]:
    found: list[Span] = []
    for position, character in enumerate(text):
        if character.isspace():
            continue
        if found and found[-1][1] == position and _carries_on(text, position, spaced):
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found


def _carries_on(text: str, position: int, spaced: bool) -> bool:
    """Whether the character at `position` belongs to the word of the one before it."""
    before, character, after = text[position - 1], text[position], text[position + 1 : position + 2]
    if _clings(character):
        return True
    while _clings(before) and position > 1:
        position -= 1
        before = text[position - 1]
    if not spaced:
        return False
    if _is_letter(character):
        return _is_letter(before) or _joins(text[position - 2 : position - 1], before, character)
    return _joins(before, character, after)


def _joins(left: str, sign: str, right: str) -> bool:
    if sign in _POINTS:
        return left.isdigit() and right.isdigit()
    return sign in _JOINERS and _is_letter(left) and _is_letter(right)


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"


def _clings(character: str) -> bool:
    return character in _INVISIBLE or unicodedata.category(character).startswith("M")

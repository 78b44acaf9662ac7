"""From what tokens attend to, to which words of a text became which words of its translation.

Each token of a translation is linked with the source token that it attends to most, and so its word with the word of
that one. A token that attends most to the end of the source is linked with nothing: it stands for no word of it.

A text reaches the network in parts, with other white space and in another normal form. What stays the same is its
*key*: the normalised text without white space. The keys of all parts, one behind the other, are the key of the text,
and that is how a token finds the characters that a caller knows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from model.protection import Protector
from model.spans import Span, origins
from model.tokenizer import SENTINELS, normalize
from service.text.words import words

_start, _end = itemgetter(0), itemgetter(1)


class Link(NamedTuple):
    """A word of the source and a word of the target, as ranges of code points."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """How a sentence was translated."""

    source: Sequence[Span]
    """For each source token but EOS, the characters of the sentence's key that it stands for."""
    target: Sequence[Span]
    """For each target token, the characters of the translation that it stands for."""
    attention: Sequence[Sequence[float]]
    """For each target token, the share of each source token, EOS included."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a text, and what stands in the place of it in the translation."""

    source: str
    made: str
    tokens: Tokens | None = None
    """None: it was kept."""


def key(text: str) -> str:
    """What white space and normal forms do not change."""
    return "".join(map(normalize, text.split()))


def align(text: str, parts: Sequence[Part], protector: Protector, spaced: tuple[bool, bool]) -> list[Link]:
    """The links between the words of `text` and those of what its `parts` became, in the order of the latter.

    `spaced` says of both languages whether they put spaces between words. What is carried is one word.
    """
    target = "".join(part.made for part in parts)
    source_words = words(text, spaced[0], [(span.start, span.end) for span in protector.spans(text)])
    target_words = words(target, spaced[1], [(span.start, span.end) for span in protector.spans(target)])
    here = [_touched(source_words, *span) for span in origins(text, key)]
    found: set[tuple[int, int]] = set()
    offset = place = 0
    for part in parts:
        size, length = len(key(part.source)), len(part.made)
        pairs = _kept(part) if part.tokens is None else _linked(part.tokens)
        for (start, end), (begin, until) in pairs:
            sources = set().union(*here[offset + start : offset + min(end, size)])
            targets = _touched(target_words, place + begin, place + min(until, length))
            found |= {(t, s) for t in targets for s in sources}
        offset, place = offset + size, place + length
    return [Link(*source_words[s], *target_words[t]) for t, s in sorted(found)]


def source_tokens(read: str, tokens: Sequence[Span], carried: Sequence[str]) -> list[Span]:
    """Where tokens stand in the key of a sentence, given where they stand in what the network `read`, normalised.

    `carried` are the spans that it read sentinels for.
    """
    places = [0]
    for character in read:
        spelt = _carried(character, carried)
        places.append(places[-1] + len(key(character if spelt is None else spelt)))
    return [(places[start], places[end]) for start, end in tokens]


def target_tokens(
    raw: str, mend: Callable[[str], str], written: str, tokens: Sequence[Span], carried: Sequence[str]
) -> list[Span]:
    """Where tokens stand in a translation, given where they stand in the network's `raw` text.

    `written` is `mend(raw)` without the white space around it, and perhaps with its end cut off; the translation has
    `carried` spans in the place of sentinels.
    """
    mended = mend(raw)
    offset = len(mended) - len(mended.lstrip())
    places: list[Span | None] = [None] * len(raw)
    position = 0
    for character, (start, end) in zip(written, origins(raw, mend)[offset:], strict=False):
        spelt = _carried(character, carried)
        after = position + (1 if spelt is None else len(spelt))
        for index in range(start, end):
            places[index] = ((places[index] or (position, after))[0], after)
        position = after
    touched = ([place for place in places[start:end] if place] for start, end in tokens)
    return [(found[0][0], found[-1][1]) if found else (0, 0) for found in touched]


def _carried(character: str, carried: Sequence[str]) -> str | None:
    """What a sentinel stands for; None for any other character, or where nothing is carried by sentinels."""
    number = ord(character) - ord(SENTINELS[0])
    if not carried or not 0 <= number < len(SENTINELS):
        return None
    return carried[number] if number < len(carried) else ""


def _kept(part: Part) -> Iterator[tuple[Span, Span]]:
    """Each character of a key with its own place in what was kept."""
    for index, place in enumerate(origins(part.made, key)):
        yield (index, index + 1), place


def _linked(tokens: Tokens) -> Iterator[tuple[Span, Span]]:
    """The characters of each target token with those of the source token that it attends to most."""
    for place, shares in zip(tokens.target, tokens.attention, strict=True):
        best = max(range(len(shares)), key=shares.__getitem__)
        if best < len(tokens.source):  # else the end of the source
            yield tokens.source[best], place


def _touched(spans: Sequence[Span], start: int, end: int) -> range:
    """Which of `spans`, in their order and apart, have characters from `start` to `end`."""
    first = bisect_right(spans, start, key=_end)
    return range(first, max(first, bisect_left(spans, end, key=_start)))

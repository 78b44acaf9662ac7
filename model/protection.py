"""What is no language and comes through translation as it is: found in a text, set aside, put back.

    restore(*protect(text)) == text        for every text

A *span* is a stretch of text that must come back character for character: markup tags, entities, URLs, e-mail
addresses, paths, placeholders, code in backticks, mentions, words with digits, numbers, emoji, and words with
characters that the vocabulary lacks. Spans that touch are one. Each is replaced by a *sentinel*, a private-use
character with an id of its own in the vocabulary; the network learns to carry sentinels, whatever they stand for.
Training and serving find spans by this file alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model.protection_patterns import HINT, SPAN, WORD
from model.tokenizer import SENTINELS, normalize

_SENTINEL = re.compile(f"[{SENTINELS[0]}-{SENTINELS[-1]}]")
_SPACES = frozenset(filter(str.isspace, map(chr, range(0x3001))))
_NEVER_KNOWN = frozenset("\u2581")
"""What a vocabulary has, but means something else by: SentencePiece writes a space so."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of a text, from `start` up to `end`."""

    start: int
    end: int
    number: bool
    """Nothing but a number: digits with what stands between them."""


class Protected(NamedTuple):
    """A text whose i-th span is the i-th sentinel, and the spans."""

    text: str
    spans: tuple[str, ...]


class Protector:
    """Finds the spans of texts, for one vocabulary. Safe to share between threads."""

    def __init__(self, known: Collection[str] | None = None) -> None:
        """`known`: the characters that the vocabulary has pieces for; None takes every character for known."""
        self._known = None if known is None else (frozenset(known) | _SPACES) - _NEVER_KNOWN

    def spans(self, text: str) -> list[Span]:
        """The spans of `text`, in order; no two of them touch."""
        joined: list[Span] = []
        for part in self._parts(text):
            touches = bool(joined) and joined[-1].end == part.start
            joined.append(Span(joined.pop().start, part.end, number=False) if touches else part)
        return joined

    def protect(self, text: str) -> Protected:
        """`text` with sentinels in the place of its spans, numbered from the first.

        There are as many sentinels as `SENTINELS`. If there are more spans, the last sentinel stands for all that is
        left from there on to the last span; whoever wants that translated cuts the text with `chunks` before.
        """
        spans = self.spans(text)
        most = len(SENTINELS)
        if len(spans) > most:
            spans = [*spans[: most - 1], Span(spans[most - 1].start, spans[-1].end, number=False)]
        return Protected(replace_spans(text, spans, SENTINELS), tuple(text[s.start : s.end] for s in spans))

    def chunks(self, text: str, most: int = len(SENTINELS)) -> list[Protected]:
        """`text` cut before spans, so that no part has more than `most` of them, and each part protected."""
        spans = self.spans(text)
        starts = [span.start for span in spans[most::most]]
        bounds = zip([0, *starts], [*starts, len(text)], strict=True)
        groups = [spans[i : i + most] for i in range(0, len(spans), most)] or [[]]
        return [
            Protected(replace_spans(text[:end], group, SENTINELS, start), tuple(text[s.start : s.end] for s in group))
            for (start, end), group in zip(bounds, groups, strict=True)
        ]

    def outside(self, text: str, change: Callable[[str], str]) -> str:
        """`text` with `change` made to what stands between its spans."""
        parts: list[str] = []
        position = 0
        for span in self.spans(text):
            parts += (change(text[position : span.start]), text[span.start : span.end])
            position = span.end
        return "".join([*parts, change(text[position:])])

    def _parts(self, text: str) -> Iterator[Span]:
        """Spans that may touch."""
        position = 0
        for match in SPAN.finditer(text) if HINT.search(text) else ():
            yield from self._unknown(text, position, match.start())
            yield Span(match.start(), match.end(), number=match.lastgroup == "number")
            position = match.end()
        yield from self._unknown(text, position, len(text))

    def _unknown(self, text: str, start: int, end: int) -> Iterator[Span]:
        """Words with letters that the vocabulary lacks, and signs that it lacks."""
        if start == end or self._known is None or self._knows(text[start:end]):
            return
        for match in WORD.finditer(text, start, end):
            if not self._knows(match.group()):
                yield Span(match.start(), match.end(), number=False)

    def _knows(self, text: str) -> bool:
        return self._known is None or self._known.issuperset(normalize(text))


def replace_spans(text: str, spans: Sequence[Span], by: Sequence[str], position: int = 0) -> str:
    """`text` from `position` on with `by` in the places of `spans`."""
    parts: list[str] = []
    for span, instead in zip(spans, by, strict=False):
        parts += (text[position : span.start], instead)
        position = span.end
    return "".join([*parts, text[position:]])


def restore(text: str, spans: Sequence[str]) -> str:
    """`text` with its spans again, wherever their sentinels stand now. A sentinel that stands for nothing goes."""

    def span_of(match: re.Match[str]) -> str:
        number = ord(match.group()) - ord(SENTINELS[0])
        return spans[number] if number < len(spans) else ""

    return _SENTINEL.sub(span_of, text)


def renumbered(text: str, spans: Sequence[str]) -> Protected:
    """A part of a protected text by itself: its sentinels counted from the first again, and their spans alone."""
    found = _SENTINEL.findall(text)
    mine = tuple(spans[ord(sentinel) - ord(SENTINELS[0])] for sentinel in found)
    numbers = iter(SENTINELS)
    return Protected(_SENTINEL.sub(lambda _: next(numbers), text), mine)


def carried(text: str, spans: int) -> bool:
    """Whether a translation holds each of the first `spans` sentinels once, and no other."""
    return sorted(_SENTINEL.findall(text)) == list(SENTINELS[:spans])

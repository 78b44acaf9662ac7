"""From what tokens attend to, to which words of a text became which words of its translation.

Each token of a translation is linked with the source token that it attends to most, and so its word with the word of
that one. A token that attends most to the end of the source is linked with nothing: it stands for no word of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model.spans import Span, origins
from service.text.words import words


class Link(NamedTuple):
    """A word of the source and a word of the target, as ranges of code points."""

    source_start: int
    source_end: int
    target_start: int
    target_end: int

    def moved(self, source: int, target: int) -> Link:
        """The same link where both sides stand further behind."""
        return Link(self[0] + source, self[1] + source, self[2] + target, self[3] + target)


@dataclass(frozen=True, slots=True)
class Side:
    """The words of one side of a sentence."""

    words: Sequence[Span]
    of_tokens: Sequence[set[int]]
    """For each token, the indices of the words that it is part of; white space is part of none."""


def source_side(text: str, rewrite: Callable[[str], str], tokens: Sequence[Span], spaced: bool) -> Side:
    """The words of `text`, whose tokens stand in `rewrite(text)`."""
    found = words(text, spaced)
    at = _words_at(found, len(text))
    touched = [set().union(*at[start:end]) for start, end in origins(text, rewrite)]
    return Side(found, [set().union(*touched[start:end]) for start, end in tokens])


def target_side(raw: str, rewrite: Callable[[str], str], tokens: Sequence[Span], spaced: bool) -> Side:
    """The words of `rewrite(raw)`, with no white space around it, whose tokens stand in `raw`."""
    whole = rewrite(raw)
    text, offset = whole.strip(), len(whole) - len(whole.lstrip())
    found = words(text, spaced)
    at = _words_at(found, len(text))
    touched: list[set[int]] = [set() for _ in raw]
    for (start, end), made in zip(origins(raw, rewrite)[offset:], at, strict=False):
        for character in range(start, end):
            touched[character] |= made
    return Side(found, [set().union(*touched[start:end]) for start, end in tokens])


def links(source: Side, target: Side, attention: Sequence[Sequence[float]]) -> list[Link]:
    """The links of a sentence by the attention of each target token, in the order of the target's words."""
    found: set[tuple[int, int]] = set()
    for tokens, shares in zip(target.of_tokens, attention, strict=True):
        best = max(range(len(shares)), key=shares.__getitem__)
        if best < len(source.of_tokens):  # else the end of the source
            found |= {(there, here) for there in tokens for here in source.of_tokens[best]}
    return [Link(*source.words[here], *target.words[there]) for there, here in sorted(found)]


def same(text: str, spaced: bool) -> list[Link]:
    """The links of a text that was kept as it is."""
    return [Link(start, end, start, end) for start, end in words(text, spaced)]


def _words_at(spans: Sequence[Span], size: int) -> list[set[int]]:
    """For each of `size` characters, the word that it is part of, if there is one."""
    found: list[set[int]] = [set() for _ in range(size)]
    for index, (start, end) in enumerate(spans):
        for character in range(start, end):
            found[character].add(index)
    return found

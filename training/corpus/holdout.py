"""Test and development sets, and the watch that nothing like them stays in training."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil

from training.corpus.duplicates import lottery
from training.corpus.pair import Pair
from training.corpus.recipe import HoldoutRecipe
from training.corpus.words import words

_GRAM = 4
"""Containment is looked up by runs of so many words; shorter texts are contained in too much to say anything."""
_COVER = 0.5
"""A training text inside a held-out one is a copy if it makes up this share of its words."""
_ROUNDING = 1e-9
"""0.7 · 10 must not count as more than 7."""


class NearDuplicates:
    """Finds texts that are near-identical to one of a fixed set of held-out pairs, on either side.

    Texts are compared as `words` sees them. `find` names the first of these that holds, each for the source and then
    for the target: `same-…` equal words in order; `similar-…` word sets with Jaccard similarity |A ∩ B| / |A ∪ B| of
    at least `threshold`; `contained-…` one is a run of at least four words within the other (a training text within a
    held-out one must make up half of it).
    """

    def __init__(self, held_out: Iterable[Pair], threshold: float) -> None:
        held = list(held_out)
        self._sources = _Texts({words(pair.source) for pair in held}, threshold)
        self._targets = _Texts({words(pair.target) for pair in held}, threshold)

    def find(self, pair: Pair) -> str | None:
        """Why `pair` is too close to a held-out one, or None."""
        source, target = words(pair.source), words(pair.target)
        for way in _WAYS:
            if way(self._sources, source):
                return f"{way.__name__}-source"
            if way(self._targets, target):
                return f"{way.__name__}-target"
        return None


class _Texts:
    """One side of the held-out pairs, indexed so that few of them must be looked at for any text."""

    def __init__(self, texts: set[tuple[str, ...]], threshold: float) -> None:
        self._threshold = threshold
        self._known = texts - {()}
        self._texts = sorted(self._known)
        self._sets = [frozenset(text) for text in self._texts]
        self._frequency = Counter(word for text in self._sets for word in text)
        self._by_word: dict[str, list[int]] = defaultdict(list)
        self._by_gram: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        self._by_start: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index, text in enumerate(self._texts):
            for word in self._prefix(self._sets[index]):
                self._by_word[word].append(index)
            if len(text) >= _GRAM:
                self._by_start[text[:_GRAM]].append(index)
            for at in range(len(text) - _GRAM + 1):
                self._by_gram[text[at : at + _GRAM]].append((index, at))

    def same(self, text: tuple[str, ...]) -> bool:
        """Whether a held-out text has the words of `text` in this order. A text without words is like no other."""
        return text in self._known

    def similar(self, text: tuple[str, ...]) -> bool:
        """Whether a held-out text has nearly the same set of words."""
        found = frozenset(text)
        candidates = {index for word in self._prefix(found) for index in self._by_word.get(word, ())}
        return any(
            len(found & held) >= self._threshold * len(found | held) - _ROUNDING
            for held in (self._sets[index] for index in candidates)
        )

    def contained(self, text: tuple[str, ...]) -> bool:
        """Whether a held-out text is a run within `text`, or `text` one within it and a large part of it."""
        return self._contains(text) or self._within(text)

    def _prefix(self, text: frozenset[str]) -> list[str]:
        """The rarest words of `text`, so many that a set with the wanted Jaccard similarity must share one of them."""
        rarest = sorted(text, key=lambda word: (self._frequency[word], word))
        return rarest[: len(text) - ceil(self._threshold * len(text) - _ROUNDING) + 1]

    def _contains(self, text: tuple[str, ...]) -> bool:
        for start in range(len(text) - _GRAM + 1):
            for index in self._by_start.get(text[start : start + _GRAM], ()):
                held = self._texts[index]
                if text[start : start + len(held)] == held:
                    return True
        return False

    def _within(self, text: tuple[str, ...]) -> bool:
        for index, at in self._by_gram.get(text[:_GRAM], ()) if len(text) >= _GRAM else ():
            held = self._texts[index]
            if held[at : at + len(text)] == text and len(text) >= _COVER * len(held):
                return True
        return False


_WAYS = (_Texts.same, _Texts.similar, _Texts.contained)


@dataclass(frozen=True)
class HeldOut:
    """The evaluation sets of one group."""

    test: tuple[Pair, ...]
    dev: tuple[Pair, ...]


def draw(pairs: Sequence[Pair], sizes: HoldoutRecipe, seed: str, threshold: float) -> HeldOut:
    """Test and dev pairs from `pairs`, by lottery over source strings.

    No source string is held out twice, and no dev pair is a near duplicate of a test pair. There may be fewer than
    asked for.
    """
    tickets: dict[str, Pair] = {}
    for pair in pairs:
        text = words(pair.source)
        if len(text) >= sizes.min_words:
            tickets.setdefault(" ".join(text), pair)
    order = iter(sorted(tickets, key=lambda text: lottery(seed, text)))
    test = tuple(tickets[text] for text in islice(order, sizes.test))
    watch = NearDuplicates(test, threshold)
    dev: list[Pair] = []
    for text in order:
        if len(dev) == sizes.dev:
            break
        if watch.find(tickets[text]) is None:
            dev.append(tickets[text])
    return HeldOut(test, tuple(dev))

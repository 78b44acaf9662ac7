"""Subword regularisation: every epoch cuts words anew (Kudo 2018, https://arxiv.org/abs/1804.10959).

A word's cut is drawn with probability ∝ P(cut)^α from the most likely ones under the unigram model. Pieces never cross
a space, so the words of a text are cut independently. All of it is a function of the seed, the epoch and the text.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.tokenizer import EOS_ID, SENTINELS, Tokenizer, normalize
from training.recipe import RecipeError

Ids = NDArray[np.int32]
Cuts = Callable[[str], list[tuple[list[int], float]]]
"""A word → its cuts in ids, each with its log-probability; the first is the one the tokenizer uses."""

_SALT = 0x63757473
"""Keeps the draw of cuts apart from that of the order."""
_SENTINELS = frozenset(SENTINELS)
_CHECKED = 1000
"""Pairs of which it is checked that words are cut independently."""


@dataclass(frozen=True)
class _Side:
    """The texts of one side as numbers of words, EOS as the last word of each."""

    words: NDArray[np.int32]
    """(W) numbers of words, one text after the other."""
    ends: NDArray[np.int64]
    """(N) where each text ends in `words`."""


@dataclass(frozen=True)
class _Table:
    """All cuts of all words, one after the other."""

    first: NDArray[np.int64]
    """(V) the first cut of every word, the tokenizer's own."""
    upto: NDArray[np.float64]
    """(C) of each cut: number of its word + probability of it and the cuts before it. Ascending."""
    ids: Ids
    starts: NDArray[np.int64]
    """(C) where the ids of each cut begin."""
    lengths: NDArray[np.int64]
    """(C) how many they are."""


class SubwordSampler:
    """Cuts the pairs of a corpus anew for every epoch."""

    def __init__(self, cuts: Cuts, alpha: float, max_length: int) -> None:
        """`alpha`: the exponent α. A text that a draw would cut into more than `max_length` ids keeps its usual cut."""
        self._cuts, self._alpha, self._max_length = cuts, alpha, max_length
        self._numbers: dict[str, int] = {"": 0}  # no word is empty: the place of EOS
        self._texts: tuple[array[int], array[int]] = (array("i"), array("i"))
        self._ends: tuple[array[int], array[int]] = (array("q"), array("q"))
        self._made: tuple[_Table, list[_Side]] | None = None

    def add(self, texts: tuple[str, str], ids: tuple[list[int], list[int]]) -> None:
        """One more pair, after those before, and the ids that the tokenizer gives it.

        Raises `RecipeError` if these are not the ids of its words, one after the other; only early pairs are checked.
        """
        for text, usual, words, ends in zip(texts, ids, self._texts, self._ends, strict=True):
            parts = [word for word in normalize(text).split(" ") if word]
            if len(ends) < _CHECKED and [i for word in parts for i in self._cuts(word)[0][0]] != usual[:-1]:
                raise RecipeError(
                    f"[fit] subword_sampling must have a vocabulary whose pieces end with the word, but {text!r:.80} "
                    "is cut across its spaces; leave it 0."
                )
            words.extend(self._numbers.setdefault(word, len(self._numbers)) for word in parts)
            words.append(0)
            ends.append(len(words))

    def sample(self, seed: int, epoch: int) -> list[list[Ids]]:
        """Sources and targets in ids, EOS last, as epoch `epoch` cuts them."""
        if self._made is None:
            self._made = (
                self._table(),
                [
                    _Side(np.array(words, dtype=np.int32), np.array(ends, dtype=np.int64))
                    for words, ends in zip(self._texts, self._ends, strict=True)
                ],
            )
        table, sides = self._made
        return [
            self._cut(table, side, np.random.default_rng([seed, epoch, _SALT, number]))
            for number, side in enumerate(sides)
        ]

    def _table(self) -> _Table:
        first, upto, lengths, ids = array("q"), array("d"), array("q"), array("i")
        for number, word in enumerate(self._numbers):
            cuts = self._cuts(word) if word else [([EOS_ID], 0.0)]
            chances = np.exp(self._alpha * (np.array([score for _, score in cuts]) - cuts[0][1]))
            first.append(len(upto))
            total = np.cumsum(chances) / chances.sum()
            total[-1] = 1.0  # the sum of the rest may miss it by a rounding
            upto.extend((number + total).tolist())
            for cut, _ in cuts:
                lengths.append(len(cut))
                ids.extend(cut)
        sizes = np.array(lengths, dtype=np.int64)
        return _Table(
            first=np.array(first, dtype=np.int64),
            upto=np.array(upto, dtype=np.float64),
            ids=np.array(ids, dtype=np.int32),
            starts=np.cumsum(sizes) - sizes,
            lengths=sizes,
        )

    def _cut(self, table: _Table, side: _Side, random: np.random.Generator) -> list[Ids]:
        drawn = np.searchsorted(table.upto, side.words + random.random(len(side.words)), side="right")  # (W)
        begins = np.concatenate([[0], side.ends[:-1]])  # (N)
        long = np.add.reduceat(table.lengths[drawn], begins) > self._max_length  # (W) -> (N)
        usual = np.repeat(long, np.diff(side.ends, prepend=0))  # (N) -> (W)
        drawn = np.where(usual, table.first[side.words], drawn)
        lengths = table.lengths[drawn]
        offsets = np.cumsum(lengths)  # (W): where the ids of each word end
        inside = np.arange(offsets[-1]) - np.repeat(offsets - lengths, lengths)  # (W) -> (T)
        ids = table.ids[np.repeat(table.starts[drawn], lengths) + inside]  # (T)
        return np.split(ids, offsets[side.ends[:-1] - 1])


def unigram_cuts(tokenizer: Tokenizer, size: int = 16) -> Cuts:
    """The `size` most likely cuts of a word. Raises `RecipeError` for a vocabulary that has no such probabilities."""
    if not tokenizer.cuts("of", 1):
        raise RecipeError(
            "[fit] subword_sampling must have a unigram vocabulary, but this one has no cuts to draw from."
        )

    def cuts(word: str) -> list[tuple[list[int], float]]:
        usual = tokenizer.encode(word)[:-1]
        found = {tuple(ids): score for ids, score in tokenizer.cuts(word, size)}
        best = found.pop(tuple(usual), None)
        # Sentinels stand for themselves, and bytes have no probabilities.
        if best is None or not tokenizer.characters.issuperset(word) or not _SENTINELS.isdisjoint(word):
            return [(usual, 0.0)]
        others = sorted(found.items(), key=lambda other: (-other[1], other[0]))
        return [(usual, best), *((list(ids), score) for ids, score in others)]

    return cuts

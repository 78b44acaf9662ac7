"""Which tokens a sentence may not take next, and which it may take at a price.

Both are known from the history alone, before the network has spoken. That is what keeps the search exact although only
the k best candidates of a lane leave the graph: if a sentence touches t tokens, the best n it may take are among the
best n + t of the network, for whatever else lies below them was there before and has only risen to their places.

What a sentence must carry is bought more cheaply, for it touches every sentinel there is, and those that its source
lacks are hardly ever likely: of the best n + `SPARE` that the rest has left, those that may not come are taken out, and
the search gets the best n of what remains. If nothing remains, they stay. That is a rule of the sentence alone, too;
only a network that wants more than `SPARE` wrong tokens at once has fewer continuations by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.decode.options import DecodeOptions, SpecialIds
from model.decode.stepper import LogProbs, Tokens

SPARE = 7
"""Candidates more that a sentence with something to carry asks for: EOS, and six sentinels out of place. With 1 or 8
that the search wants it makes 8 or 15, which are rounded up to 8 and 16 in any case."""


class Touched(NamedTuple):
    """The tokens whose log-probability a history changes."""

    banned: Set[int]
    lowered: Set[int]
    barred: Set[int] = frozenset()
    """Banned as well, as far as `SPARE` candidates go."""

    @property
    def reach(self) -> int:
        """How many candidates more they cost."""
        return len(self.banned | self.lowered) + (SPARE if self.barred else 0)


class Constraints:
    """Those of one sentence: min_length, no_repeat_ngram, suppress, repetition_penalty, carry."""

    def __init__(self, options: DecodeOptions, limit: int, special: SpecialIds, source: Sequence[int] = ()) -> None:
        """`limit` is the most target tokens; a min_length beyond it is lowered to it. `source` has what is carried."""
        self._options = options
        self._carried = options.carried(source)
        self._shortest = min(options.min_length, limit)
        self._eos_id = special.eos_id

    def touched(self, history: Sequence[int]) -> Touched:
        """What may not, or only at a price, follow `history` (target ids so far, without BOS)."""
        banned = _ends_of_repeats(history, self._options.no_repeat_ngram)
        banned.update(_ends_of_suppressed(history, self._options.suppress))
        if len(history) + 1 < self._shortest:
            banned.add(self._eos_id)
        lowered = set(history) if self._options.repetition_penalty > 1.0 else set()
        return Touched(banned, lowered, self._barred(history))

    def _barred(self, history: Sequence[int]) -> set[int]:
        """What may not follow lest something be carried too often, or not at all."""
        if not self._carried:
            return set()
        held = Counter(history)
        barred = {token for token in self._options.carry if held[token] >= self._carried[token]}
        missing = any(held[token] < count for token, count in self._carried.items())
        return barred | {self._eos_id} if missing else barred

    def apply(self, touched: Touched, log_probs: LogProbs, ids: Tokens, count: int) -> tuple[LogProbs, Tokens]:
        """The `count` best of the candidates (k,) of one lane, best first, ties to the lower id.

        Where every token is banned, EOS is not: a hypothesis that may not go on may end.
        """
        if touched.banned or touched.lowered:
            log_probs, ids = self._weighed(touched, log_probs, ids)
        if touched.barred:
            log_probs, ids = log_probs[: count + SPARE], ids[: count + SPARE]
            free = ~_members(ids, touched.barred)
            if not np.isneginf(log_probs[free]).all():
                log_probs, ids = log_probs[free], ids[free]
        return log_probs[:count], ids[:count]

    def _weighed(self, touched: Touched, log_probs: LogProbs, ids: Tokens) -> tuple[LogProbs, Tokens]:
        """The candidates with what is banned and lowered, best first again."""
        banned, lowered = _members(ids, touched.banned), _members(ids, touched.lowered)
        penalised = (log_probs * np.float64(self._options.repetition_penalty)).astype(np.float32)
        changed = np.where(lowered, penalised, log_probs)
        if np.isneginf(changed[~banned]).all():
            banned &= ids != self._eos_id
        changed[banned] = -np.inf
        order = np.lexsort((ids, -changed))
        return changed[order], ids[order]


def _members(ids: Tokens, tokens: Set[int]) -> NDArray[np.bool_]:
    return np.array([token in tokens for token in ids.tolist()], dtype=np.bool_)


def _ends_of_repeats(history: Sequence[int], n: int) -> set[int]:
    """Tokens that would end a sequence of n tokens which the history holds already."""
    if not 0 < n <= len(history):
        return set()
    begun = history[len(history) - n + 1 :]
    return {history[i + n - 1] for i in range(len(history) - n + 1) if history[i : i + n - 1] == begun}


def _ends_of_suppressed(history: Sequence[int], sequences: Sequence[Sequence[int]]) -> set[int]:
    """Tokens that would end one of `sequences`."""
    held = tuple(history)
    return {
        sequence[-1]
        for sequence in sequences
        if len(sequence) <= len(held) + 1 and held[len(held) - len(sequence) + 1 :] == tuple(sequence[:-1])
    }

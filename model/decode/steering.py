"""What stands between the candidates of the network and the search, for one sentence with options of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from model.decode.constraints import Constraints, Touched
from model.decode.options import DecodeOptions, SpecialIds
from model.decode.sampling import draw, stream_of, uniform
from model.decode.stepper import ROUNDING, LogProbs, Tokens

WHOLE_VOCABULARY = 2**31 - 1


class Steering:
    """Forces the prefix, applies the constraints, draws the samples of one sentence.

    Before each step `reach` says how many candidates of each lane it must see; with them `steer` gives the search as
    many as it always gets. Both depend on the sentence alone.
    """

    def __init__(
        self, options: DecodeOptions, limit: int, special: SpecialIds, source: Sequence[int], candidates: int
    ) -> None:
        """`candidates` is how many of each lane the search wants; `source` is what is translated."""
        self._options = options
        self._constraints = Constraints(options, limit, special, source)
        self._stream = stream_of(source)
        self._candidates = candidates
        self._touched: list[Touched] = []
        self._reach = 0
        self._step = -1

    def reach(self, histories: Sequence[Sequence[int]]) -> int:
        """How many candidates of each lane the coming step must bring; `histories` are the lanes' target ids."""
        self._step = len(histories[0])
        self._touched, self._reach = [], self._candidates
        if self._step < len(self._options.prefix):
            return self._reach
        self._touched = [self._constraints.touched(history) for history in histories]
        wanted = self._wanted()
        self._reach = min(WHOLE_VOCABULARY, wanted + max(touched.reach for touched in self._touched))
        return self._reach

    def steer(self, log_probs: LogProbs, ids: Tokens) -> tuple[LogProbs, Tokens]:
        """What the search gets (W, n), from what the network offers (W, k) with k ≥ reach or the whole vocabulary."""
        shape = (len(ids), self._candidates)
        # More candidates than it asked for are a neighbour's.
        log_probs, ids = log_probs[:, : self._reach], ids[:, : self._reach]  # (W, k) -> (W, r)
        chosen, tokens = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64)
        if not (log_probs <= ROUNDING).all():  # NaN too: the search knows what to do about it
            return np.full(shape, np.nan, np.float32), tokens
        if self._step < len(self._options.prefix):
            chosen[:, 0], tokens[:, 0] = 0.0, self._options.prefix[self._step]
            return chosen, tokens
        for lane, touched in enumerate(self._touched):
            best, names = self._constraints.apply(touched, log_probs[lane], ids[lane], self._wanted())
            if self._options.sampling is not None:
                place = draw(best, self._options.sampling, self._chance())
                best, names = best[place : place + 1], names[place : place + 1]
            chosen[lane, : len(best)], tokens[lane, : len(best)] = best[: shape[1]], names[: shape[1]]
        return chosen, tokens

    def _wanted(self) -> int:
        """How many allowed candidates are needed."""
        sampling = self._options.sampling
        return self._candidates if sampling is None else sampling.top_k or WHOLE_VOCABULARY

    def _chance(self) -> float:
        assert self._options.sampling is not None
        return uniform(self._options.sampling.seed, self._stream, self._step)

"""The few verbs through which a search drives a network, whatever runs it.

A *slot* holds one sentence: its encoded source and its cache. A *lane* is one of the W hypotheses of a slot
(W = 1 for greedy search). Slots of any age may sit in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
LogProbs = NDArray[np.float32]
Attention = NDArray[np.float32]
"""Shares of a target token's cross-attention that the source tokens have, the mean over the heads of one layer."""

ROUNDING = 1e-3
"""A log-probability may be above 0 by this much and still be called rounding."""


class Stepper(Protocol):
    """A network seen by the search. Not thread-safe: one thread drives it."""

    @property
    def max_positions(self) -> int:
        """Longest source and longest target in tokens, BOS and EOS included."""
        ...

    @property
    def vocab_size(self) -> int:
        """Ids are in [0, vocab_size)."""
        ...

    @property
    def attends(self) -> bool:
        """True if it can tell what its lanes attend to; slots may be `attending` only then."""
        ...

    def start(
        self, sources: Sequence[Sequence[int]], width: int, apart: bool = False, attending: bool = False
    ) -> list[int]:
        """Encode `sources` together and give each a slot of `width` lanes; the slot ids, in order.

        Slots that are `apart` never share a step with the others: for those that take a large k, which would be
        computed for all. Nor do those that are `attending`, of which `attention` can be asked.
        A source holds its EOS. Raises `DecodeError` for an empty or too long source, or ids out of range; whatever it
        raises, no slot is taken.
        """
        ...

    def step(self, slots: Sequence[int], tokens: Tokens, k: int) -> tuple[LogProbs, Tokens]:
        """Feed `tokens` (R, W), one for each lane of each slot, at the slot's next position.

        All slots have the same width W, all or none are apart, and all or none are attending. Returns the k best
        continuations of each lane, best first: log-probabilities (R, W, k) and ids (R, W, k). PAD and BOS are never
        among the finite ones. Ties go to the lower id. Where there are fewer than k continuations the rest are -inf,
        with any id. The arrays are the caller's until the next call of any verb but `attention`. If it raises, the
        slots are good for nothing but `finish`.
        """
        ...

    def attention(self, slots: Sequence[int]) -> Attention:
        """What each lane attended to in the step just taken, (R, W, S): the call that follows a `step` of these slots.

        A row sums to 1 over its own source tokens, EOS included; S may be larger, and what is beyond is 0. The array is
        the caller's, and leaves those of the step alone.
        """
        ...

    def reorder(self, slots: Sequence[int], parents: Tokens) -> None:
        """Let lane j of slot r carry on the history of lane `parents[r, j]` (R, W); no cache is copied."""
        ...

    def finish(self, slots: Sequence[int]) -> None:
        """Give the slots back. Their ids may be used again."""
        ...

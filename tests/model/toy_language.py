"""A pseudo-random language: the next token depends on the source and the whole history, so no mix-up stays hidden."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PAD, BOS, EOS = 0, 1, 2
FIRST = 3
"""The lowest id of a word."""


class ToyLanguage:
    """Callable as `model.decode.reference.Language`."""

    def __init__(
        self,
        vocab_size: int = 12,
        seed: int = 0,
        end: float = 0.5,
        rounding: int | None = None,
        never_ends: bool = False,
    ) -> None:
        """`end` is how much each token raises the logit of EOS; `rounding` decimals of a logit make ties."""
        self.vocab_size = vocab_size
        self._never_ends = never_ends
        self._seed, self._end, self._rounding = seed, end, rounding
        self._cached = lru_cache(maxsize=None)(self._log_probs)

    def __call__(self, source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        return self._cached(source, history)

    def gaze(self, source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        """Callable as `model.decode.reference.Gaze`."""
        random = np.random.default_rng([self._seed, 1, len(source), *source, 10_000, *history])
        return random.dirichlet(np.full(len(source), 0.3)).astype(np.float32)

    def _log_probs(self, source: tuple[int, ...], history: tuple[int, ...]) -> NDArray[np.float32]:
        random = np.random.default_rng([self._seed, len(source), *source, 10_000, *history])
        logits = 2.0 * random.standard_normal(self.vocab_size)
        if self._rounding is not None:
            logits = np.round(logits, self._rounding)
        logits[EOS] += self._end * (len(history) - len(source))
        logits[[PAD, BOS, EOS] if self._never_ends else [PAD, BOS]] = -np.inf
        logits -= logits.max()
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)

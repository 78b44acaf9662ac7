"""Drawing a token, in a way that the same sentence draws the same in any batch."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from model.decode.options import Sampling
from model.decode.stepper import LogProbs


def stream_of(source: Sequence[int]) -> int:
    """A number for a source, so that different sentences of one seed draw independently."""
    return zlib.crc32(np.asarray(source, np.int64).tobytes())


def uniform(seed: int, stream: int, step: int) -> float:
    """A number in [0, 1) that depends on these three alone: Philox is counter-based (Salmon et al., 2011)."""
    generator = np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, step]))
    return float(generator.random())


def draw(log_probs: LogProbs, sampling: Sampling, chance: float) -> int:
    """The index that `chance` in [0, 1) falls on, among candidates (k,) that stand best first.

    The probabilities lie side by side in [0, 1), the likeliest first. Their sums are taken one by one in double
    precision, so they do not depend on anything but the candidates themselves.
    """
    kept = log_probs[np.isfinite(log_probs)].astype(np.float64)  # (k,) -> (n,)
    if not len(kept):
        return 0
    sums = np.cumsum(np.exp((kept - kept[0]) / sampling.temperature))
    # The first candidate whose sum reaches top_p is the last that is kept.
    last = int(np.searchsorted(sums, sampling.top_p * sums[-1]))
    sums = sums[: min(last, len(sums) - 1) + 1]
    return min(int(np.searchsorted(sums, chance * sums[-1], side="right")), len(sums) - 1)

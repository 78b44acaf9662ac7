"""How much of its source a hypothesis has attended to, and what it costs to have left some of it out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.decode.stepper import Attention

LEAST = 1e-9
"""A source token counts as attended to by at least so much: the logarithm of nothing has no end."""


def coverage_penalty(coverage: Attention, beta: float) -> float:
    """β Σ_i log(min(c_i, 1)) ≤ 0 for c (S), the attention that each source token got (Wu et al., 2016, equation 14)."""
    bounded: NDArray[np.float64] = np.clip(coverage.astype(np.float64), LEAST, 1.0)  # (S) -> (S)
    return beta * float(np.log(bounded).sum())

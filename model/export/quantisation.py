"""int8: what a linear map computes, and with which numbers.

Its input becomes unsigned bytes with one *static*, calibrated scale (a dynamic one would make a sentence's result
depend on its neighbours in the batch); its weight becomes signed bytes with a scale for each output channel; products
are summed in int32, exactly, and scaled back to float32.

    x ≈ s_x (q_x - z_x),  W[:, n] ≈ s_n q_W[:, n],  y[n] = s_x s_n Σ_k (q_x[k] - z_x) q_W[k, n] + b[n]
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.export.weights import Array


@dataclass(frozen=True, slots=True)
class Range:
    """What the input of a linear map was seen to hold on real text."""

    low: float
    high: float

    def scale_and_zero(self) -> tuple[float, int]:
        """Step and zero point of unsigned bytes: 255 steps from `low` to `high`, 0.0 being one of the values exactly.

        What ReLU left is never negative and so has zero point 0.
        """
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        scale = max(high - low, 1e-6) / 255.0
        return scale, round(-low / scale)


def quantise_weight(weight: Array) -> tuple[NDArray[np.int8], Array]:
    """Signed bytes (N, K) and a scale for each output channel (N): W[n] ≈ scale[n] · bytes[n], symmetric about 0."""
    scales = (np.abs(weight).max(axis=1) / 127.0).astype(np.float32)  # (N, K) -> (N)
    scales[scales == 0.0] = 1.0
    quantised = np.rint(weight / scales[:, None]).clip(-127, 127).astype(np.int8)
    return quantised, scales

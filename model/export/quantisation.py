"""How a linear map is written in each precision.

f32: `Gemm`. int8: the input becomes unsigned bytes with one *static*, calibrated scale (a dynamic one would make a
sentence's result depend on its neighbours in the batch); the weight becomes signed bytes with a scale for each output
channel; products are summed in int32, exactly, and scaled back to float32.

    x ≈ s_x (q_x - z_x),  W[:, n] ≈ s_n q_W[:, n],  y[n] = s_x s_n Σ_k (q_x[k] - z_x) q_W[k, n] + b[n]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model.errors import ExportError
from model.export.graph import MICROSOFT, GraphWriter
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


class LinearWriter(Protocol):
    """Writes y = x Wᵀ + b for x (R, K), W (N, K)."""

    negatives_vanish: bool
    """True if `prepare` maps negative inputs of a non-negative range to 0, so that ReLU before it is already done."""

    keeps_axes: bool
    """True if x may have more axes than two; y then has as many."""

    def look_up(self, name: str, rows: Array, ids: str, scale: float) -> str:
        """`scale` times the rows (V, D) of the table called `name` that `ids` (B, T) pick: float32 (B, T, D)."""
        ...

    def prepare(self, x: str, site: str) -> str:
        """`x` made ready for any number of `apply`; `site` names the input for the calibration record."""
        ...

    def apply(self, prepared: str, site: str, name: str, weight: Array, bias: Array) -> str:
        """The linear map called `name` on the prepared input of `site`."""
        ...


class FloatLinear:
    """float32, exact."""

    negatives_vanish = False
    keeps_axes = False

    def __init__(self, graph: GraphWriter) -> None:
        self._graph = graph

    def look_up(self, name: str, rows: Array, ids: str, scale: float) -> str:
        """The table stays as it is, so that a tied projection can share it."""
        picked = self._graph.node("Gather", self._graph.constant(name, rows), ids)  # (B, T) -> (B, T, D)
        return self._graph.node("Mul", picked, self._graph.scalar(scale))

    def prepare(self, x: str, site: str) -> str:
        """Nothing to do."""
        return x

    def apply(self, prepared: str, site: str, name: str, weight: Array, bias: Array) -> str:
        """One `Gemm`; W stays (N, K), so that a tied embedding is stored once."""
        w = self._graph.constant(f"{name}.weight", weight)
        b = self._graph.constant(f"{name}.bias", bias)
        return self._graph.node("Gemm", prepared, w, b, transB=1)


class Int8Linear:
    """Unsigned bytes times signed bytes, the only form for which the CPU has a fast path at every batch size."""

    negatives_vanish = True
    keeps_axes = True

    def __init__(self, graph: GraphWriter, ranges: Mapping[str, Range]) -> None:
        """`ranges` holds one entry for each site."""
        self._graph = graph
        self._ranges = ranges

    def look_up(self, name: str, rows: Array, ids: str, scale: float) -> str:
        """The table is scaled already, in float16: half the bytes, and its rounding is far below that of int8."""
        table = self._graph.constant(name, (scale * rows).astype(np.float16))
        return self._graph.node("Cast", self._graph.node("Gather", table, ids), to=1)  # (B, T) -> (B, T, D)

    def prepare(self, x: str, site: str) -> str:
        """Quantise once, for all maps that read `site`."""
        return self._graph.node("QuantizeLinear", x, *self._scale_and_zero(site))

    def apply(self, prepared: str, site: str, name: str, weight: Array, bias: Array) -> str:
        """Integer product, scaled back and with the bias added in one node."""
        quantised, scales = quantise_weight(weight)
        scale, zero = self._scale_and_zero(site)
        graph = self._graph
        inputs = (
            prepared,
            graph.constant(f"{name}.weight_int8", quantised.T),  # (N, K) -> (K, N)
            scale,
            graph.constant(f"{name}.weight_scale", scales),
            zero,
            # An explicit zero point of 0 takes a faster path than none.
            graph.constant("weight_zero", np.array(0, dtype=np.int8)),
            graph.constant(f"{name}.bias", bias),
        )
        return graph.node(f"{MICROSOFT}:MatMulIntegerToFloat", *inputs)

    def _scale_and_zero(self, site: str) -> tuple[str, str]:
        if site not in self._ranges:
            raise ExportError(f"every quantised input must be calibrated, but {site} is not; calibrate on real text.")
        scale, zero = self._ranges[site].scale_and_zero()
        return (
            self._graph.constant(f"{site}.scale", np.array(scale, dtype=np.float32)),
            self._graph.constant(f"{site}.zero", np.array(zero, dtype=np.uint8)),
        )


def quantise_weight(weight: Array) -> tuple[NDArray[np.int8], Array]:
    """Signed bytes (N, K) and a scale for each output channel (N): W[n] ≈ scale[n] · bytes[n], symmetric about 0."""
    scales = (np.abs(weight).max(axis=1) / 127.0).astype(np.float32)  # (N, K) -> (N)
    scales[scales == 0.0] = 1.0
    quantised = np.rint(weight / scales[:, None]).clip(-127, 127).astype(np.int8)
    return quantised, scales

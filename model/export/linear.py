"""How a linear map is written in each precision with stock operators; `native` has that of our own.

f32: `Gemm`. int8: `QuantizeLinear` turns the input into unsigned bytes, `MatMulIntegerToFloat` multiplies, sums exactly
in int32, scales back and adds the bias; see `quantisation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from model.errors import ExportError
from model.export.graph import MICROSOFT, GraphWriter
from model.export.quantisation import Range, quantise_weight
from model.export.weights import Array


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What is done to x Wᵀ + b before it is handed on: residual + ReLU(x Wᵀ + b), either of them or both left out."""

    relu: bool = False
    """Only before a map whose input's range was seen after the ReLU."""
    residual: str = ""
    heads: int = 0
    """If not 0, the result is (B, H, T, K); only for our own operators."""


PLAIN = Epilogue()


class LinearWriter(Protocol):
    """Writes y = x Wᵀ + b for x (R, K), W (N, K)."""

    keeps_axes: bool
    """True if x may have more axes than two; y then has as many."""
    dtype: DTypeLike
    """The type of x and y, and of every constant beside them."""

    def look_up(self, name: str, rows: Array, ids: str, scale: float) -> str:
        """`scale` times the rows (V, D) of the table called `name` that `ids` (B, T) pick: (B, T, D)."""
        ...

    def prepare(self, x: str, site: str) -> str:
        """`x` made ready for any number of `apply`; `site` names the input for the calibration record."""
        ...

    def apply(self, prepared: str, site: str, name: str, weights: tuple[Array, Array], then: Epilogue) -> str:
        """The map called `name`, W and b, on the prepared input of `site`, with its epilogue."""
        ...


class FloatLinear:
    """float32, exact."""

    keeps_axes = False
    dtype: DTypeLike = np.float32

    def __init__(self, graph: GraphWriter) -> None:
        self._graph = graph

    def look_up(self, name: str, rows: Array, ids: str, scale: float) -> str:
        """The table stays as it is, so that a tied projection can share it."""
        picked = self._graph.node("Gather", self._graph.constant(name, rows), ids)  # (B, T) -> (B, T, D)
        return self._graph.node("Mul", picked, self._graph.scalar(scale))

    def prepare(self, x: str, site: str) -> str:
        """Nothing to do."""
        return x

    def apply(self, prepared: str, site: str, name: str, weights: tuple[Array, Array], then: Epilogue) -> str:
        """One `Gemm`; W stays (N, K), so that a tied embedding is stored once."""
        graph, (weight, bias) = self._graph, weights
        w, b = graph.constant(f"{name}.weight", weight), graph.constant(f"{name}.bias", bias)
        y = graph.node("Gemm", prepared, w, b, transB=1)
        if then.relu:
            y = graph.node("Relu", y)
        return graph.node("Add", then.residual, y) if then.residual else y


class QuantisedSites:
    """What every int8 map needs: the scale and zero point of its input, its bytes, and tables in half precision."""

    def __init__(self, graph: GraphWriter, ranges: Mapping[str, Range]) -> None:
        """`ranges` holds one entry for each site."""
        self._graph = graph
        self._ranges = ranges

    def look_up(self, name: str, rows: Array, ids: str, scale: float) -> str:
        """The table is scaled already, in float16: half the bytes, and its rounding is far below that of int8."""
        table = self._graph.constant(name, (scale * rows).astype(np.float16))
        return self._graph.node("Cast", self._graph.node("Gather", table, ids), to=1)  # (B, T) -> (B, T, D)

    def scale_and_zero(self, site: str) -> tuple[float, int]:
        """Raises `ExportError` for an input that was not calibrated."""
        if site not in self._ranges:
            raise ExportError(f"every quantised input must be calibrated, but {site} is not; calibrate on real text.")
        return self._ranges[site].scale_and_zero()

    def constants(self, name: str, weights: tuple[Array, Array]) -> tuple[str, str, str]:
        """Weight bytes (K, N), their scales (N) and the bias (N)."""
        graph, (weight, bias) = self._graph, weights
        quantised, scales = quantise_weight(weight)
        return (
            graph.constant(f"{name}.weight_int8", quantised.T),  # (N, K) -> (K, N)
            graph.constant(f"{name}.weight_scale", scales),
            graph.constant(f"{name}.bias", bias),
        )


class Int8Linear:
    """Unsigned bytes times signed bytes, the only form for which the CPU has a fast path at every batch size."""

    keeps_axes = True
    dtype: DTypeLike = np.float32

    def __init__(self, graph: GraphWriter, ranges: Mapping[str, Range]) -> None:
        """`ranges` holds one entry for each site."""
        self._graph = graph
        self._sites = QuantisedSites(graph, ranges)
        self.look_up = self._sites.look_up

    def prepare(self, x: str, site: str) -> str:
        """Quantise once, for all maps that read `site`."""
        return self._graph.node("QuantizeLinear", x, *self._scale_and_zero(site))

    def apply(self, prepared: str, site: str, name: str, weights: tuple[Array, Array], then: Epilogue) -> str:
        """Integer product, scaled back and with the bias added in one node.

        ReLU needs none: the next map's input has the zero point 0, so that its bytes begin at 0.
        """
        weight, weight_scale, bias = self._sites.constants(name, weights)
        scale, zero = self._scale_and_zero(site)
        # An explicit zero point of 0 takes a faster path than none.
        weight_zero = self._graph.constant("weight_zero", np.array(0, dtype=np.int8))
        inputs = (prepared, weight, scale, weight_scale, zero, weight_zero, bias)
        y = self._graph.node(f"{MICROSOFT}:MatMulIntegerToFloat", *inputs)
        return self._graph.node("Add", then.residual, y) if then.residual else y

    def _scale_and_zero(self, site: str) -> tuple[str, str]:
        scale, zero = self._sites.scale_and_zero(site)
        return (
            self._graph.constant(f"{site}.scale", np.array(scale, dtype=np.float32)),
            self._graph.constant(f"{site}.zero", np.array(zero, dtype=np.uint8)),
        )

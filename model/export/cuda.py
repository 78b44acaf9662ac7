"""Linear maps, norm, cache and top-k with the operators that ONNX Runtime has good CUDA kernels for; letters as in
`blocks`.

In f16 weights and activations are float16. Sums stay float32 where it matters: cuBLAS accumulates products so, the
kernels of norm and softmax too (the fused norm since 1.31), and log-softmax and all after it are written in float32. In
f32 the same nodes run on the CPU as well, where they are proved.

Every node has a kernel in the CUDA provider of onnxruntime-gpu 1.31.1, and none makes ONNX Runtime copy between device
and host, which would forbid CUDA graphs. `GroupQueryAttention` would read a row no further than its length, but takes
neither float32 nor a mask, so the tree of a beam cannot have it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from model.errors import ExportError
from model.export.blocks import BlockWriter
from model.export.graph import MICROSOFT, GraphWriter
from model.export.linear import Epilogue
from model.export.stock import StockParts
from model.export.weights import Array

SORTED_AT_ONCE = 256
"""The TopK kernel sorts so many elements in one block of threads, with ties to the lower index. For more it has another
way, in which a tie may go to any."""

EXACT_K = 8
"""Ties go to the lower id for a k up to this, which a beam of 4 asks for."""


class DeviceLinear:
    """`FusedMatMul` over three axes. A sum with the residual is left to the norm that follows it, and its bias too."""

    keeps_axes = True

    def __init__(self, graph: GraphWriter, dtype: DTypeLike) -> None:
        self.dtype: DTypeLike = np.dtype(dtype)
        self._graph = graph
        self._sums: dict[str, tuple[str, str, str]] = {}
        self._written: dict[str, str] = {}

    def look_up(self, name: str, rows: Array, ids: str, scale: float) -> str:
        """The table stays as it is, so that a tied projection can share it."""
        picked = self._graph.node("Gather", self._constant(name, rows), ids)  # (B, T) -> (B, T, D)
        return self._graph.node("Mul", picked, self._graph.scalar(scale, self.dtype))

    def prepare(self, x: str, site: str) -> str:
        """Nothing to do."""
        return x

    def apply(self, prepared: str, site: str, name: str, weights: tuple[Array, Array], then: Epilogue) -> str:
        """W stays (N, K), so that a tied embedding is stored once. What is added to a residual is no value yet."""
        graph, (weight, bias) = self._graph, weights
        w, b = self._constant(f"{name}.weight", weight), self._constant(f"{name}.bias", bias)
        y = graph.node(f"{MICROSOFT}:FusedMatMul", prepared, w, transB=1)  # (B, T, K), (N, K) -> (B, T, N)
        if then.residual:
            self._sums[y] = (self._written.get(then.residual, then.residual), b, y)
            return y
        y = graph.node("Add", y, b)
        return graph.node("Relu", y) if then.relu else y

    def norm_of_sum(self, x: str, weights: tuple[str, str], epsilon: float) -> str | None:
        """LayerNorm of a sum that waits to be written, in one node that gives the sum as well; None for a value."""
        if x not in self._sums:
            return None
        residual, bias, product = self._sums.pop(x)
        normed, _, _, total = self._graph.nodes(
            f"{MICROSOFT}:SkipLayerNormalization",
            (product, residual, *weights, bias),
            4,
            epsilon=epsilon,
            unwanted={1, 2},
        )
        self._written[x] = total
        return normed

    def _constant(self, name: str, value: Array) -> str:
        """`value` in our type. Raises `ExportError` if a finite number has no place in it."""
        with np.errstate(over="ignore"):
            cast = value.astype(self.dtype)
        if not np.array_equal(np.isinf(cast), np.isinf(value)):
            most = np.abs(value).max(where=np.isfinite(value), initial=0.0)
            raise ExportError(
                f"the weights must fit into {self.dtype}, but {name} holds {most:g}; publish without f16."
            )
        return self._graph.constant(name, cast)


class CudaParts(StockParts):
    """Implements `blocks.PartsWriter`. Attention is that of the stock graphs, with a mask of our type."""

    def __init__(self, blocks: BlockWriter, linear: DeviceLinear) -> None:
        """`linear` is the one of `blocks`."""
        super().__init__(blocks)
        self._linear = linear

    def norm(self, x: str, prefix: str) -> str:
        """One node, together with the sum before it if there is one; see `PartsWriter`."""
        weights, epsilon = self._blocks.norm_weights(prefix), self._blocks.config.norm_epsilon
        fused = self._linear.norm_of_sum(x, weights, epsilon)
        if fused is not None:
            return fused
        return self._graph.node("LayerNormalization", x, *weights, axis=-1, epsilon=epsilon)

    def best(self, x: str, k: str) -> tuple[str, str]:
        """Log-softmax in float32, then `top_k_of_blocks`."""
        logits = self._blocks.logits(x)
        if self._linear.dtype != np.float32:
            logits = self._graph.node("Cast", logits, to=1)
        log_probs = self._graph.node("LogSoftmax", logits, axis=-1)
        return top_k_of_blocks(self._graph, log_probs, self._blocks.padded_vocabulary, k)


def top_k_of_blocks(graph: GraphWriter, scores: str, vocabulary: int, k: str) -> tuple[str, str]:
    """The k best of `scores` (B, W, V'), best first: values (B, W, k) and ids (B, W, k).

    The k best of each block, then the k best of those of some blocks, and so on: exact, and few enough elements at a
    time for the kernel that gives ties to the lower index. Candidates that are equal always lie in the order of their
    ids, so a tie between blocks goes to the lower id as well. Above `EXACT_K` ties may go to any id on CUDA.
    """
    size, *merges = levels(vocabulary)
    groups = vocabulary // size
    kept = _smaller(graph, k, graph.integers(size), vocabulary)
    blocks = graph.node("Reshape", scores, graph.integers(0, 0, groups, size))  # (B, W, V') -> (B, W, N, V' / N)
    values, places = graph.nodes("TopK", (blocks, kept), 2)  # (B, W, N, V' / N) -> two of (B, W, N, n)
    starts = graph.constant("block_starts", np.arange(0, vocabulary, size, dtype=np.int64)[:, None])  # (N, 1)
    ids = graph.node("Add", places, starts)
    for merged in merges:
        groups //= merged
        most = graph.node("Mul", kept, graph.integers(merged))
        kept = _smaller(graph, k, most, vocabulary)
        values, ids = _best_of(graph, (values, ids), graph.integers(0, 0, groups, -1), kept)
    return _best_of(graph, (values, ids), graph.integers(0, 0, -1), k)


def levels(vocabulary: int) -> list[int]:
    """How many tokens are a block, then how many blocks are merged into one, level by level.

    After the last level what is left of them is merged into one.
    """
    found = [_divisor(vocabulary, SORTED_AT_ONCE)]
    groups = vocabulary // found[0]
    while groups * EXACT_K > SORTED_AT_ONCE and (merged := _divisor(groups, SORTED_AT_ONCE // EXACT_K)) > 1:
        found.append(merged)
        groups //= merged
    return found


def _best_of(graph: GraphWriter, candidates: tuple[str, str], shape: str, k: str) -> tuple[str, str]:
    """Values and ids, reshaped: the k best along the last axis."""
    values, ids = (graph.node("Reshape", x, shape) for x in candidates)  # (B, W, N, n) -> (B, W, M, N / M · n), or …
    best, at = graph.nodes("TopK", (values, k), 2)
    return best, graph.node("GatherElements", ids, at, axis=-1)  # -> (B, W, M, k), or (B, W, k)


def _smaller(graph: GraphWriter, k: str, most: str, vocabulary: int) -> str:
    """The smaller of k and `most`, (1).

    TopK wants it on the host. A node runs there if all it reads is there and not all of it is constant, for which the
    number of rows stands: without it ONNX Runtime computes the minimum on the device and copies it back.
    """
    rows = graph.node("Shape", "tokens", start=0, end=1)
    never = graph.node("Add", rows, graph.integers(vocabulary))  # k is at most V'
    return graph.node("Min", k, most, never)


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is not above `most`."""
    return max(n for n in range(1, most + 1) if number % n == 0)

"""Linear maps, norm, attention, cache and top-k with our own operators; letters as in `blocks`.

The operators are described in `model/runtime/native`. Each does what several stock nodes do: a decoder layer is ten
nodes here and thirty there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from model.config import ModelConfig
from model.export.blocks import PROJECTION_SITE, BlockWriter
from model.export.graph import NATIVE, GraphWriter
from model.export.linear import Epilogue, QuantisedSites
from model.export.quantisation import Range
from model.export.weights import Array

Maps = tuple[Array, Array]
"""Weight (N, K) and bias (N) of a linear map."""

HEAD_SIZES = range(16, 129, 16)
"""Sizes of a head that attention is made for: whole registers of sixteen numbers."""


def native_fits(config: ModelConfig) -> bool:
    """Whether our operators can run a network of this configuration."""
    return config.head_size in HEAD_SIZES


class NativeInt8Linear:
    """`QuantizedLinear`: quantises its input, multiplies, scales back, adds the bias, and does the epilogue too."""

    keeps_axes = True
    dtype: DTypeLike = np.float32

    def __init__(self, graph: GraphWriter, ranges: Mapping[str, Range]) -> None:
        """`ranges` holds one entry for each site."""
        self._graph = graph
        self._sites = QuantisedSites(graph, ranges)
        self.look_up = self._sites.look_up

    def prepare(self, x: str, site: str) -> str:
        """Nothing to do: the operator quantises."""
        return x

    def apply(self, prepared: str, site: str, name: str, weights: tuple[Array, Array], then: Epilogue) -> str:
        """One node."""
        scale, zero = self._sites.scale_and_zero(site)
        inputs = [prepared, *self._sites.constants(name, weights), *([then.residual] if then.residual else [])]
        heads = {"heads": then.heads} if then.heads else {}
        return self._graph.node(
            f"{NATIVE}:QuantizedLinear", *inputs, scale=scale, zero=zero, relu=int(then.relu), **heads
        )

    def feed_forward(
        self, x: str, sites: tuple[str, str], names: tuple[str, str], weights: tuple[Maps, Maps], residual: str
    ) -> str:
        """residual + ReLU(x W_1 + b_1) W_2 + b_2 in one node, whose inner numbers never become floats in memory."""
        (scale, zero), (hidden_scale, _) = map(self._sites.scale_and_zero, sites)
        constants = [*self._sites.constants(names[0], weights[0]), *self._sites.constants(names[1], weights[1])]
        attributes = {"scale": scale, "zero": zero, "hidden_scale": hidden_scale}
        return self._graph.node(f"{NATIVE}:FeedForward", x, *constants, residual, **attributes)

    def best(self, x: str, site: str, name: str, weights: Maps, k: str) -> tuple[str, str]:
        """The k best of log-softmax(x W + b), never all in memory at once: (B, W, D) -> two of (B, W, k)."""
        scale, zero = self._sites.scale_and_zero(site)
        inputs = (x, *self._sites.constants(name, weights), k)
        values, ids = self._graph.nodes(f"{NATIVE}:LinearTopLogProbs", inputs, 2, scale=scale, zero=zero)
        return values, ids


class NativeParts:
    """Implements `blocks.PartsWriter`."""

    def __init__(self, blocks: BlockWriter) -> None:
        """Where activations are flat, the shapes that the operators want come from that of `tokens` (B, T)."""
        graph, config = blocks.graph, blocks.config
        self._blocks, self._graph = blocks, graph
        self._split = graph.integers(0, 0, -1, config.head_size)  # 0: as it is
        self._joined = self._packed = self._scored = ""
        if not blocks.linear.keeps_axes:
            outer = graph.node("Shape", "tokens")
            self._joined, self._packed, self._scored = (
                graph.node("Concat", outer, graph.integers(size), axis=0)
                for size in (config.d_model, 3 * config.d_model, blocks.padded_vocabulary)
            )

    def norm(self, x: str, prefix: str) -> str:
        """One node; see `PartsWriter`."""
        epsilon = self._blocks.config.norm_epsilon
        return self._native("AddNorm", x, "", *self._blocks.norm_weights(prefix), epsilon=epsilon)

    def self_attention(self, packed: str) -> str:
        """One node; see `PartsWriter`."""
        return self._attend("SelfAttention", self._blocks.rows(packed, self._packed), "lengths")  # (B, S, 3 D)

    def tree_attention(self, packed: str, layer: int) -> str:
        """One node writes the cache and reads what is visible of it."""
        packed = self._blocks.rows(packed, self._packed)  # (…, 3 D) -> (B, W, 3 D)
        caches = (f"past_key_{layer}", f"past_value_{layer}")
        inputs = (packed, *caches, "write_index", "visible")
        heads = self._blocks.config.heads
        attended, *present = self._graph.nodes(f"{NATIVE}:TreeAttention", inputs, 3, heads=heads)
        for cache, value in zip(caches, present, strict=True):
            self._graph.output(value, cache.replace("past", "present"))
        return self._blocks.flat(attended)  # (B, W, D) -> (…, D)

    def cross_attention(self, query: str, layer: int) -> str:
        """One node; see `PartsWriter`."""
        query = self._blocks.rows(query, self._joined)  # (…, D) -> (B, W, D)
        return self._attend("CrossAttention", query, f"cross_key_{layer}", f"cross_value_{layer}", "source_lengths")

    def cross_heads(self, prepared: str, site: str, prefix: str) -> str:
        """No node of its own in int8, for there the map writes heads."""
        blocks = self._blocks
        if blocks.linear.keeps_axes:
            return blocks.linear_map(prepared, site, prefix, then=Epilogue(heads=blocks.config.heads))
        return blocks.split_heads(blocks.rows(blocks.linear_map(prepared, site, prefix), self._joined), self._split)

    def feed_forward(self, x: str, prefix: str, residual: str) -> str:
        """One node in int8 for the paper's, without a gate and with ReLU; else as with stock operators."""
        blocks, linear, config = self._blocks, self._blocks.linear, self._blocks.config
        if not isinstance(linear, NativeInt8Linear) or config.gated or config.activation != "relu":
            return blocks.feed_forward(x, prefix, residual)
        names = (f"{prefix}.w_1", f"{prefix}.w_2")
        weights = (blocks.weights.linear(names[0]), blocks.weights.linear(names[1]))
        return linear.feed_forward(x, (f"{prefix}.input", f"{prefix}.hidden"), names, weights, residual)

    def best(self, x: str, k: str) -> tuple[str, str]:
        """One node in int8, projection and all; else the one after the projection. See `PartsWriter`."""
        blocks = self._blocks
        if isinstance(blocks.linear, NativeInt8Linear):
            return blocks.linear.best(x, PROJECTION_SITE, *blocks.projection(), k)
        logits = blocks.rows(blocks.logits(x), self._scored)  # (…, V') -> (B, W, V')
        values, ids = self._graph.nodes(f"{NATIVE}:TopLogProbs", (logits, k), 2)
        return values, ids

    def _attend(self, operator: str, *inputs: str) -> str:
        return self._blocks.flat(self._native(operator, *inputs, heads=self._blocks.config.heads))  # -> (…, D)

    def _native(self, operator: str, *inputs: str, **attributes: float) -> str:
        return self._graph.node(f"{NATIVE}:{operator}", *inputs, **attributes)

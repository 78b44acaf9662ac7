"""The parts of a Transformer as graph nodes, as far as they are the same in every precision and set of operators.

What differs stands behind two protocols: `LinearWriter` writes linear maps, a kind for each precision, and
`PartsWriter` norm, attention and the choice of the best, a kind for each set of operators.

In int8 activations keep their axes (B, T, D) from end to end: a step is a hundred small nodes, and a reshape costs as
much time as most of them. In f32 `Gemm` wants two axes, so there they are flat between attentions. "(…, D)" is either
of the two: (B, T, D), or (R, D) with R = rows · positions or rows · lanes.
Letters: B rows, T positions or lanes, S source positions, D = d_model, H heads, K = D / H, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from model.config import ModelConfig
from model.export.graph import MICROSOFT, GraphWriter
from model.export.linear import PLAIN, Epilogue, LinearWriter
from model.export.weights import Array, Weights
from model.nn.positions import rotary_angles, sinusoids
from model.ports import TOP_K_BLOCK as BLOCK

QUERY_KEY_VALUE = ("w_q", "w_k", "w_v")
GATED = ("w_1", "w_g")
PROJECTION_SITE = "decoder.output"
SHARED_TABLE = "target_embedding.weight"
"""One constant for the target embedding and a tied float32 projection."""

SubLayer = Callable[[str, str], str]
"""(input, residual) -> residual + SubLayer(input)."""


class PartsWriter(Protocol):
    """Writes those parts of a layer for which the sets of operators have different nodes."""

    def norm(self, x: str, prefix: str) -> str:
        """LayerNorm over D: (…, D) -> (…, D)."""
        ...

    def self_attention(self, packed: str) -> str:
        """The encoder's, before W^O: query, key and value (…, 3 D) -> (…, D); a row sees its first `lengths` positions.

        In all three attentions the query holds 1/√K already.
        """
        ...

    def tree_attention(self, packed: str, layer: int) -> str:
        """The decoder's, before W^O: query, key and value (…, 3 D) -> (…, D).

        Writes the cache of `layer` and sees what is `visible` of it.
        """
        ...

    def cross_attention(self, query: str, layer: int) -> str:
        """A query (…, D) over the encoder's keys and values of `layer` -> (…, D)."""
        ...

    def cross_heads(self, prepared: str, site: str, prefix: str) -> str:
        """The map called `prefix` of the prepared memory, as keys or values the decoder reads: -> (B, H, S, K)."""
        ...

    def feed_forward(self, x: str, prefix: str, residual: str) -> str:
        """residual + activation(x W_1 + b_1) W_2 + b_2: (…, D) -> (…, D)."""
        ...

    def best(self, x: str, k: str) -> tuple[str, str]:
        """The `k` (1) largest of the log-softmax of what `x` (…, D) predicts, best first, ties to the lower id.

        Values and ids, (B, W, k) each.
        """
        ...


@dataclass(frozen=True)
class BlockWriter:
    """The graph, how it writes linear maps, and the weights: what every part needs."""

    graph: GraphWriter
    linear: LinearWriter
    weights: Weights

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return self.weights.config

    @property
    def padded_vocabulary(self) -> int:
        """V', a multiple of `BLOCK`."""
        return self.config.vocab_size + -self.config.vocab_size % BLOCK

    def reshape(self, x: str, shape: str) -> str:
        """`x` in the shape that the value `shape` holds."""
        return self.graph.node("Reshape", x, shape)

    def flat(self, x: str) -> str:
        """(B, T, D) -> (…, D)."""
        return x if self.linear.keeps_axes else self.reshape(x, self.graph.integers(-1, self.config.d_model))

    def rows(self, x: str, shape: str) -> str:
        """(…, N) -> (B, T, N), of the shape given."""
        return x if self.linear.keeps_axes else self.reshape(x, shape)

    def linear_map(self, prepared: str, site: str, *prefixes: str, then: Epilogue = PLAIN) -> str:
        """(…, K) -> (…, N) by the weight and bias called `prefixes`; several are stacked and N is their sum."""
        weights, biases = zip(*map(self.weights.linear, prefixes), strict=True)
        name = "_".join((prefixes[0], *(prefix.rpartition(".")[2] for prefix in prefixes[1:])))
        return self.linear.apply(prepared, site, name, (np.concatenate(weights), np.concatenate(biases)), then)

    def query_key_value(self, x: str, name: str) -> str:
        """One map for all three of an attention: (…, D) -> (…, 3 D)."""
        site = f"{name}.input"
        return self.linear_map(self.linear.prepare(x, site), site, *(f"{name}.{matrix}" for matrix in QUERY_KEY_VALUE))

    def embed(self, tokens: str, table: str, rows: Array) -> str:
        """√D · embedding: tokens (B, T) -> (B, T, D)."""
        scale = float(np.float32(np.sqrt(self.config.d_model)))
        return self.linear.look_up(table, pad_rows(rows), tokens, scale)  # (B, T) -> (B, T, D)

    def position_table(self) -> str:
        """The encoding of every position, (max_positions, 1, D)."""
        config = self.config
        learned = config.positions == "learned"
        table = (
            self.weights["positions"]
            if learned
            else sinusoids(config.max_positions, config.d_model, config.positions).numpy()
        )
        return self.graph.constant("positions_table", table[:, None].astype(self.linear.dtype))  # (P, D) -> (P, 1, D)

    def placed(self, embedded: str, select: Callable[[str], str]) -> str:
        """Embedded tokens (B, T, D) with what `select` picks of the position table: (B, T, D).

        As they are where attention turns queries and keys instead.
        """
        if self.config.positions == "rotary":
            return embedded
        return self.graph.node("Add", embedded, select(self.position_table()))

    def turned(self, packed: str, positions: str) -> str:
        """Query, key and value (…, 3 D), the first two turned if `positions` are rotary: (…, 3 D).

        `positions` is (1), that of the first column of rows that count on from it, or (B, T). A turn is linear, so
        the query may hold 1/√K already. Native graphs too do this with a stock operator, in front of their attention.
        """
        config, graph, dtype = self.config, self.graph, self.linear.dtype
        if config.positions != "rotary":
            return packed
        cosines, sines = (
            graph.constant(f"rotary_{name}", table.numpy().astype(dtype))
            for name, table in zip(
                ("cosines", "sines"), rotary_angles(config.max_positions, config.head_size), strict=True
            )
        )
        widths = graph.integers(2 * config.d_model, config.d_model)
        both, value = graph.nodes("Split", (packed, widths), 2, axis=-1)  # (…, 3 D) -> (…, 2 D), (…, D)
        if not self.linear.keeps_axes:
            outer = graph.node("Concat", graph.node("Shape", "tokens"), graph.integers(2 * config.d_model), axis=0)
            both = self.reshape(both, outer)  # (R, 2 D) -> (B, T, 2 D)
        turned = graph.node(f"{MICROSOFT}:RotaryEmbedding", both, positions, cosines, sines)  # (B, T, 2 D), 2 H heads
        if not self.linear.keeps_axes:
            turned = self.reshape(turned, graph.integers(-1, 2 * config.d_model))  # (B, T, 2 D) -> (R, 2 D)
        return graph.node("Concat", turned, value, axis=-1)  # (…, 2 D), (…, D) -> (…, 3 D)

    def norm_weights(self, prefix: str) -> tuple[str, str]:
        """Weight and bias of a norm, (D) each."""
        weight, bias = (
            self.graph.constant(f"{prefix}.{part}", self.weights[f"{prefix}.{part}"].astype(self.linear.dtype))
            for part in ("weight", "bias")
        )
        return weight, bias

    def split_heads(self, x: str, shape: str) -> str:
        """(…, D) -> (B, H, T, K) by way of the `shape` (B, T, H, K)."""
        return self.graph.node("Transpose", self.reshape(x, shape), perm=[0, 2, 1, 3])  # (B, T, H, K) -> (B, H, T, K)

    def join(self, x: str, prefix: str, residual: str) -> str:
        """The map W^O after the heads, added to the residual: (…, D) -> (…, D)."""
        site = f"{prefix}.joined"
        return self.linear_map(self.linear.prepare(x, site), site, f"{prefix}.w_o", then=Epilogue(residual=residual))

    def projection(self) -> tuple[str, tuple[Array, Array]]:
        """The map to logits: its name, and weight (V', D) and bias (V'), which is -inf where no token may be predicted.

        A tied one takes the name of the embedding, so that one constant serves both.
        """
        name = SHARED_TABLE.removesuffix(".weight") if self.config.tie_embeddings else "projection"
        return name, (pad_rows(self.weights.projection), forbidden(self.config))

    def logits(self, x: str) -> str:
        """(…, D) -> (…, V')."""
        prepared = self.linear.prepare(x, PROJECTION_SITE)
        return self.linear.apply(prepared, PROJECTION_SITE, *self.projection(), PLAIN)

    def feed_forward(self, x: str, prefix: str, residual: str) -> str:
        """residual + activation(x W_1 + b_1) W_2 + b_2: (…, D) -> (…, D)."""
        inner = f"{prefix}.hidden"
        prepared = self.linear.prepare(self._hidden(x, prefix), inner)
        return self.linear_map(prepared, inner, f"{prefix}.w_2", then=Epilogue(residual=residual))  # (…, F) -> (…, D)

    def _hidden(self, x: str, prefix: str) -> str:
        """activation(x W_1 + b_1), or that times x W_g + b_g: (…, D) -> (…, F)."""
        site, config = f"{prefix}.input", self.config
        prepared = self.linear.prepare(x, site)
        if not config.gated and config.activation == "relu":
            return self.linear_map(prepared, site, f"{prefix}.w_1", then=Epilogue(relu=True))
        activation = config.activation.capitalize()
        if not config.gated:
            return self.graph.node(activation, self.linear_map(prepared, site, f"{prefix}.w_1"))
        both = self.linear_map(prepared, site, *(f"{prefix}.{matrix}" for matrix in GATED))  # (…, D) -> (…, 2 F)
        hidden, gate = self.graph.nodes("Split", (both,), 2, axis=-1, num_outputs=2)  # (…, 2 F) -> two of (…, F)
        return self.graph.node("Mul", self.graph.node(activation, hidden), gate)


@dataclass(frozen=True)
class LayerWriter:
    """Whole sub-layers: blocks and parts put together in the order of the norms."""

    blocks: BlockWriter
    parts: PartsWriter

    def residual(self, x: str, norm: str, sublayer: SubLayer) -> str:
        """LayerNorm(x + SubLayer(x)), or x + SubLayer(LayerNorm(x)) for pre-norm; (…, D) -> (…, D)."""
        if self.blocks.config.norm_order == "pre":
            return sublayer(self.parts.norm(x, norm), x)
        return self.parts.norm(sublayer(x, x), norm)

    def final_norm(self, x: str, prefix: str) -> str:
        """Pre-norm ends a stack with a norm; post-norm has it already."""
        return self.parts.norm(x, prefix) if self.blocks.config.norm_order == "pre" else x

    def feed_forward(self, x: str, prefix: str) -> str:
        """The position-wise sub-layer of a layer: (…, D) -> (…, D)."""
        name = f"{prefix}.feed_forward"
        return self.residual(x, f"{prefix}.norm_feed_forward", lambda y, z: self.parts.feed_forward(y, name, z))


def pad_rows(rows: Array) -> Array:
    """Zero rows up to a multiple of `BLOCK`: (V, D) -> (V', D)."""
    return np.pad(rows, ((0, -len(rows) % BLOCK), (0, 0)))


def forbidden(config: ModelConfig) -> Array:
    """-inf where no token may ever be predicted (PAD, BOS, padding of the vocabulary), else 0: (V')."""
    mask = np.full(config.vocab_size + -config.vocab_size % BLOCK, -np.inf, dtype=np.float32)
    mask[: config.vocab_size] = 0.0
    mask[[config.pad_id, config.bos_id]] = -np.inf
    return mask

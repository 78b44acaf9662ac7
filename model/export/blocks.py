"""The parts of a Transformer as graph nodes: embedding, attention, feed-forward, residual and norm, top-k.

Activations are kept flat, (R, D) with R = rows · positions or rows · lanes, and take more axes only for attention.
Letters: B rows, T positions or lanes, S source positions, D = d_model, H heads, K = D / H, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from model.config import ModelConfig
from model.export.graph import MICROSOFT, GraphWriter
from model.export.quantisation import LinearWriter
from model.export.weights import Array, Weights
from model.nn.positions import sinusoids
from model.ports import TOP_K_BLOCK as BLOCK


@dataclass(frozen=True)
class BlockWriter:
    """What every block needs: the graph, the precision, the weights, and the shapes of attention as graph values."""

    graph: GraphWriter
    linear: LinearWriter
    weights: Weights

    def shapes(self, tokens: str) -> AttentionShapes:
        """The two shapes between which activations move, from the shape of `tokens` (B, T)."""
        graph, config = self.graph, self.config
        outer = graph.node("Shape", tokens)
        flat = graph.node("Concat", outer, graph.integers(config.d_model), axis=0)
        split = graph.node("Concat", outer, graph.integers(config.heads, config.head_size), axis=0)
        return AttentionShapes(flat, split)

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return self.weights.config

    def reshape(self, x: str, shape: str) -> str:
        """`x` in the shape that the value `shape` holds."""
        return self.graph.node("Reshape", x, shape)

    def flat(self, x: str) -> str:
        """(…, D) -> (R, D)."""
        return self.reshape(x, self.graph.integers(-1, self.config.d_model))

    def linear_map(self, prepared: str, site: str, prefix: str) -> str:
        """(R, K) -> (R, N) by the weight and bias called `prefix`."""
        return self.linear.apply(prepared, site, prefix, *self.weights.linear(prefix))

    def embed(self, tokens: str, table: str, rows: Array) -> str:
        """√D · embedding: tokens (B, T) -> (B, T, D)."""
        padded = pad_rows(rows)
        picked = self.graph.node("Gather", self.linear.table(table, padded), tokens)  # (B, T) -> (B, T, D)
        scale = self.graph.scalar(float(np.float32(np.sqrt(self.config.d_model))))
        return self.graph.node("Mul", self.linear.looked_up(picked), scale)

    def position_table(self) -> str:
        """Sinusoids of every position, (max_positions, D)."""
        config = self.config
        table = sinusoids(config.max_positions, config.d_model, config.positions).numpy()
        return self.linear.table("positions_table", table)

    def norm(self, x: str, prefix: str) -> str:
        """LayerNorm over D."""
        weights = (
            self.graph.constant(f"{prefix}.{part}", self.weights[f"{prefix}.{part}"]) for part in ("weight", "bias")
        )
        return self.graph.node("LayerNormalization", x, *weights, axis=-1, epsilon=self.config.norm_epsilon)

    def residual(self, x: str, norm: str, sublayer: Callable[[str], str]) -> str:
        """LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)) for pre-norm; (R, D) -> (R, D)."""
        if self.config.norm_order == "pre":
            return self.graph.node("Add", x, sublayer(self.norm(x, norm)))
        return self.norm(self.graph.node("Add", x, sublayer(x)), norm)

    def final_norm(self, x: str, prefix: str) -> str:
        """Pre-norm ends a stack with a norm; post-norm has it already."""
        return self.norm(x, prefix) if self.config.norm_order == "pre" else x

    def attend(self, query: str, key: str, value: str, shapes: AttentionShapes, mask: AttentionMask) -> str:
        """softmax(Q Kᵀ + mask) V for a query (R, D) that already holds 1/√K; returns (R, D).

        Key and value are (R, D) beside such a query, or ready heads (B, H, S, K).
        """
        query = self.reshape(query, shapes.flat)  # (R, D) -> (B, T, D)
        if not mask.heads_ready:
            key, value = self.reshape(key, shapes.flat), self.reshape(value, shapes.flat)  # (R, D) -> (B, S, D)
        attended = self.graph.node(
            f"{MICROSOFT}:MultiHeadAttention",
            query,
            key,
            value,
            "",
            mask.lengths,
            mask.added,
            num_heads=self.config.heads,
            scale=1.0,  # anything else would leave the fast path for single queries
        )
        return self.flat(attended)  # (B, T, D) -> (R, D)

    def heads(self, x: str, shapes: AttentionShapes) -> str:
        """Keys or values as a cache keeps them: (R, D) -> (B, H, T, K)."""
        split = self.reshape(x, shapes.split)  # (R, D) -> (B, T, H, K)
        return self.graph.node("Transpose", split, perm=[0, 2, 1, 3])  # (B, T, H, K) -> (B, H, T, K)

    def join(self, x: str, prefix: str) -> str:
        """The map W^O after the heads: (R, D) -> (R, D)."""
        site = f"{prefix}.joined"
        return self.linear_map(self.linear.prepare(x, site), site, f"{prefix}.w_o")

    def feed_forward(self, x: str, prefix: str) -> str:
        """activation(x W_1 + b_1) W_2 + b_2: (R, D) -> (R, D)."""
        site, inner = f"{prefix}.input", f"{prefix}.hidden"
        hidden = self.linear_map(self.linear.prepare(x, site), site, f"{prefix}.w_1")  # (R, D) -> (R, F)
        if self.config.activation == "gelu":
            hidden = self.graph.node("Gelu", hidden)
        elif not self.linear.negatives_vanish:
            hidden = self.graph.node("Relu", hidden)
        return self.linear_map(self.linear.prepare(hidden, inner), inner, f"{prefix}.w_2")  # (R, F) -> (R, D)


@dataclass(frozen=True, slots=True)
class AttentionShapes:
    """Graph values that hold the shapes (B, T, D) and (B, T, H, K)."""

    flat: str
    split: str


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """What an attention may see: the first `lengths` (B) keys, or a mask `added` to the scores (B, 1, T, S)."""

    lengths: str = ""
    added: str = ""
    heads_ready: bool = False
    """True if keys and values come as heads (B, H, S, K)."""


def pad_rows(rows: Array) -> Array:
    """Zero rows up to a multiple of `BLOCK`: (V, D) -> (V', D)."""
    return np.pad(rows, ((0, -len(rows) % BLOCK), (0, 0)))


def forbidden(config: ModelConfig) -> Array:
    """-inf where no token may ever be predicted (PAD, BOS, padding of the vocabulary), else 0: (V')."""
    mask = np.full(config.vocab_size + -config.vocab_size % BLOCK, -np.inf, dtype=np.float32)
    mask[: config.vocab_size] = 0.0
    mask[[config.pad_id, config.bos_id]] = -np.inf
    return mask


def top_k(graph: GraphWriter, scores: str, vocabulary: int, k: str) -> tuple[str, str]:
    """The k best of `scores` (R, V'), best first, ties to the lower id: values (R, k) and ids (R, k).

    Two levels, exact: the k blocks with the best maxima hold the k best elements, for each such block brings one that
    is at least as good as anything in the others. The chosen blocks are put back in their order before the second
    search, or a tie between two blocks would go to the one with the better maximum.
    """
    count = vocabulary // BLOCK
    blocks = graph.node("Reshape", scores, graph.integers(-1, count, BLOCK))  # (R, V') -> (R, N, 128)
    best = graph.node("ReduceMax", blocks, graph.integers(2), keepdims=0)  # (R, N, 128) -> (R, N)
    kept = graph.node("Min", k, graph.integers(count))
    _, unordered = graph.nodes("TopK", (best, kept), 2)  # (R, N) -> (R, n)
    chosen, _ = graph.nodes("TopK", (unordered, kept), 2, largest=0)
    index = graph.node("Unsqueeze", chosen, graph.integers(2))  # (R, n) -> (R, n, 1)
    gathered = graph.node("GatherND", blocks, index, batch_dims=1)  # (R, N, 128) -> (R, n, 128)
    flat = graph.node("Flatten", gathered)  # (R, n, 128) -> (R, n · 128)
    values, places = graph.nodes("TopK", (flat, k), 2)  # (R, n · 128) -> (R, k)
    width = graph.integers(BLOCK)
    block = graph.node("GatherElements", chosen, graph.node("Div", places, width), axis=1)
    ids = graph.node("Add", graph.node("Mul", block, width), graph.node("Mod", places, width))
    return values, ids

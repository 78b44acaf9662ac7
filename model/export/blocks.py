"""The parts of a Transformer as graph nodes: embedding, attention, feed-forward, residual and norm, top-k.

In int8 activations keep their axes (B, T, D) from end to end: a step is a hundred small nodes, and a reshape costs as
much time as most of them. In f32 `Gemm` wants two axes, so there they are flat between attentions. "(…, D)" is either
of the two: (B, T, D), or (R, D) with R = rows · positions or rows · lanes.
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
        """The shapes between which activations move; from that of `tokens` (B, T) where they are flat in between."""
        graph, config = self.graph, self.config
        if self.linear.keeps_axes:  # a size of 0 says: as it is
            return AttentionShapes(split=graph.integers(0, 0, -1, config.head_size))
        outer = graph.node("Shape", tokens)

        def shape(*ends: int) -> str:
            return graph.node("Concat", outer, graph.integers(*ends), axis=0)

        return AttentionShapes(
            split=shape(-1, config.head_size), joined=shape(config.d_model), scored=shape(self.padded_vocabulary)
        )

    @property
    def padded_vocabulary(self) -> int:
        """V', a multiple of `BLOCK`."""
        return self.config.vocab_size + -self.config.vocab_size % BLOCK

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return self.weights.config

    def reshape(self, x: str, shape: str) -> str:
        """`x` in the shape that the value `shape` holds."""
        return self.graph.node("Reshape", x, shape)

    def flat(self, x: str) -> str:
        """(B, T, D) -> (…, D)."""
        return x if self.linear.keeps_axes else self.reshape(x, self.graph.integers(-1, self.config.d_model))

    def rows(self, x: str, shape: str) -> str:
        """(…, N) -> (B, T, N), of the shape given."""
        return x if self.linear.keeps_axes else self.reshape(x, shape)

    def linear_map(self, prepared: str, site: str, *prefixes: str) -> str:
        """(…, K) -> (…, N) by the weight and bias called `prefixes`; several are stacked and N is their sum."""
        weights, biases = zip(*map(self.weights.linear, prefixes), strict=True)
        name = "_".join((prefixes[0], *(prefix.rpartition(".")[2] for prefix in prefixes[1:])))
        return self.linear.apply(prepared, site, name, np.concatenate(weights), np.concatenate(biases))

    def embed(self, tokens: str, table: str, rows: Array) -> str:
        """√D · embedding: tokens (B, T) -> (B, T, D)."""
        scale = float(np.float32(np.sqrt(self.config.d_model)))
        return self.linear.look_up(table, pad_rows(rows), tokens, scale)  # (B, T) -> (B, T, D)

    def position_table(self) -> str:
        """Sinusoids of every position, (max_positions, 1, D)."""
        config = self.config
        table = sinusoids(config.max_positions, config.d_model, config.positions).numpy()
        return self.graph.constant("positions_table", table[:, None])  # (P, D) -> (P, 1, D)

    def norm(self, x: str, prefix: str) -> str:
        """LayerNorm over D."""
        weights = (
            self.graph.constant(f"{prefix}.{part}", self.weights[f"{prefix}.{part}"]) for part in ("weight", "bias")
        )
        return self.graph.node("LayerNormalization", x, *weights, axis=-1, epsilon=self.config.norm_epsilon)

    def residual(self, x: str, norm: str, sublayer: Callable[[str], str]) -> str:
        """LayerNorm(x + Sublayer(x)), or x + Sublayer(LayerNorm(x)) for pre-norm; (…, D) -> (…, D)."""
        if self.config.norm_order == "pre":
            return self.graph.node("Add", x, sublayer(self.norm(x, norm)))
        return self.norm(self.graph.node("Add", x, sublayer(x)), norm)

    def final_norm(self, x: str, prefix: str) -> str:
        """Pre-norm ends a stack with a norm; post-norm has it already."""
        return self.norm(x, prefix) if self.config.norm_order == "pre" else x

    def attend(self, query: str, key: str, value: str, shapes: AttentionShapes, mask: AttentionMask) -> str:
        """softmax(Q Kᵀ + mask) V for a query (…, D) that already holds 1/√K; returns (…, D).

        Key and value are (…, D) beside such a query, or ready heads (B, H, S, K).
        """
        query = self.rows(query, shapes.joined)  # (…, D) -> (B, T, D)
        if not mask.heads_ready:
            key, value = self.rows(key, shapes.joined), self.rows(value, shapes.joined)  # (…, D) -> (B, S, D)
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
        return self.flat(attended)  # (B, T, D) -> (…, D)

    def heads(self, x: str, shapes: AttentionShapes) -> str:
        """Keys or values as a cache keeps them: (…, D) -> (B, H, T, K); several side by side have more heads."""
        split = self.reshape(x, shapes.split)  # (…, D) -> (B, T, H, K)
        return self.graph.node("Transpose", split, perm=[0, 2, 1, 3])  # (B, T, H, K) -> (B, H, T, K)

    def join(self, x: str, prefix: str) -> str:
        """The map W^O after the heads: (…, D) -> (…, D)."""
        site = f"{prefix}.joined"
        return self.linear_map(self.linear.prepare(x, site), site, f"{prefix}.w_o")

    def feed_forward(self, x: str, prefix: str) -> str:
        """activation(x W_1 + b_1) W_2 + b_2: (…, D) -> (…, D)."""
        site, inner = f"{prefix}.input", f"{prefix}.hidden"
        hidden = self.linear_map(self.linear.prepare(x, site), site, f"{prefix}.w_1")  # (…, D) -> (…, F)
        if self.config.activation == "gelu":
            hidden = self.graph.node("Gelu", hidden)
        elif not self.linear.negatives_vanish:
            hidden = self.graph.node("Relu", hidden)
        return self.linear_map(self.linear.prepare(hidden, inner), inner, f"{prefix}.w_2")  # (…, F) -> (…, D)


@dataclass(frozen=True, slots=True)
class AttentionShapes:
    """Graph values that hold shapes; the last two are needed only where activations are flat."""

    split: str
    """(B, T, H, K), H as large as it must be."""
    joined: str = ""
    """(B, T, D)."""
    scored: str = ""
    """(B, T, V')."""


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
    """The k best of `scores` (B, W, V'), best first, ties to the lower id: values (B, W, k) and ids (B, W, k).

    Two levels, exact: the k blocks with the best maxima hold the k best elements, for each such block brings one that
    is at least as good as anything in the others. The chosen blocks are put back in their order before the second
    search, or a tie between two blocks would go to the one with the better maximum.
    """
    count = vocabulary // BLOCK
    blocks = graph.node("Reshape", scores, graph.integers(0, 0, count, BLOCK))  # (B, W, V') -> (B, W, N, 128)
    best = graph.node("ReduceMax", blocks, graph.integers(3), keepdims=0)  # (B, W, N, 128) -> (B, W, N)
    kept = graph.node("Min", k, graph.integers(count))
    _, unordered = graph.nodes("TopK", (best, kept), 2)  # (B, W, N) -> (B, W, n)
    chosen, _ = graph.nodes("TopK", (unordered, kept), 2, largest=0)
    index = graph.node("Unsqueeze", chosen, graph.integers(3))  # (B, W, n) -> (B, W, n, 1)
    gathered = graph.node("GatherND", blocks, index, batch_dims=2)  # (B, W, N, 128) -> (B, W, n, 128)
    flat = graph.node("Reshape", gathered, graph.integers(0, 0, -1))  # (B, W, n, 128) -> (B, W, n · 128)
    values, places = graph.nodes("TopK", (flat, k), 2)  # (B, W, n · 128) -> (B, W, k)
    width = graph.integers(BLOCK)
    block = graph.node("GatherElements", chosen, graph.node("Div", places, width), axis=2)
    ids = graph.node("Add", graph.node("Mul", block, width), graph.node("Mod", places, width))
    return values, ids

"""Norm, attention, cache and top-k with the operators that ONNX Runtime brings along; letters as in `blocks`."""

from __future__ import annotations

from collections.abc import Iterable

from model.export.blocks import BlockWriter
from model.export.graph import MICROSOFT, GraphWriter
from model.ports import TOP_K_BLOCK as BLOCK


class StockParts:
    """Implements `blocks.PartsWriter`."""

    def __init__(self, blocks: BlockWriter) -> None:
        """Write the shapes that activations move between: where they are flat, from that of `tokens` (B, T)."""
        graph, config = blocks.graph, blocks.config
        self._blocks, self._graph = blocks, graph
        self._split = graph.integers(0, 0, -1, config.head_size)  # 0: as it is
        self._joined = self._scored = ""
        if not blocks.linear.keeps_axes:
            outer = graph.node("Shape", "tokens")

            def shape(*ends: int) -> str:
                return graph.node("Concat", outer, graph.integers(*ends), axis=0)

            self._split = shape(-1, config.head_size)
            self._joined, self._scored = shape(config.d_model), shape(blocks.padded_vocabulary)

    def norm(self, x: str, prefix: str) -> str:
        """One node; see `PartsWriter`."""
        weights = self._blocks.norm_weights(prefix)
        epsilon = self._blocks.config.norm_epsilon
        return self._graph.node("LayerNormalization", x, *weights, axis=-1, epsilon=epsilon)

    def self_attention(self, packed: str) -> str:
        """The three parts are copied out of their joint map; it shares its weights with the native graph."""
        parts = self._graph.nodes("Split", (packed,), 3, axis=-1, num_outputs=3)  # (…, 3 D) -> three of (…, D)
        query, key, value = (self._blocks.rows(part, self._joined) for part in parts)  # (…, D) -> (B, S, D)
        return self._attend(query, key, value, "lengths", "")

    def tree_attention(self, packed: str, layer: int) -> str:
        """Keys and values go through the cache, which has them as heads."""
        blocks, graph, d_model = self._blocks, self._graph, self._blocks.config.d_model
        widths = graph.integers(d_model, 2 * d_model)
        query, both = graph.nodes("Split", (packed, widths), 2, axis=-1)  # (…, 3 D) -> (…, D), (…, 2 D)
        heads = blocks.split_heads(both, self._split)  # (…, 2 D) -> (B, 2 H, W, K)
        new = graph.nodes("Split", (heads,), 2, axis=1, num_outputs=2)  # (B, 2 H, W, K) -> two of (B, H, W, K)
        keys, values = self._append(zip(new, (f"key_{layer}", f"value_{layer}"), strict=True))
        query = blocks.rows(query, self._joined)  # (…, D) -> (B, W, D)
        return self._attend(query, keys, values, "", "visible")

    def cross_attention(self, query: str, layer: int) -> str:
        """The encoder has laid keys and values out as heads already."""
        query = self._blocks.rows(query, self._joined)  # (…, D) -> (B, W, D)
        return self._attend(query, f"cross_key_{layer}", f"cross_value_{layer}", "source_lengths", "")

    def cross_heads(self, prepared: str, site: str, prefix: str) -> str:
        """A map and a transposition."""
        return self._blocks.split_heads(self._blocks.linear_map(prepared, site, prefix), self._split)

    def feed_forward(self, x: str, prefix: str, residual: str) -> str:
        """See `BlockWriter.feed_forward`."""
        return self._blocks.feed_forward(x, prefix, residual)

    def best(self, x: str, k: str) -> tuple[str, str]:
        """Log-softmax over all, then `top_k`."""
        log_probs = self._graph.node("LogSoftmax", self._blocks.logits(x), axis=-1)
        log_probs = self._blocks.rows(log_probs, self._scored)  # (…, V') -> (B, W, V')
        return top_k(self._graph, log_probs, self._blocks.padded_vocabulary, k)

    def _append(self, new: Iterable[tuple[str, str]]) -> list[str]:
        """Write each new (B, H, W, K) into its cache (B, H, C, K) at each row's `write_index`; in place if bound so."""
        present = []
        for values, kind in new:
            written = self._graph.node("TensorScatter", f"past_{kind}", values, "write_index", axis=-2)
            self._graph.output(written, f"present_{kind}")
            present.append(f"present_{kind}")
        return present

    def _attend(self, query: str, key: str, value: str, lengths: str, added: str) -> str:
        """softmax(Q Kᵀ + mask) V for a query (B, T, D) that already holds 1/√K; returns (…, D).

        Key and value are (B, S, D) or heads (B, H, S, K). The mask is the first `lengths` (B) keys, or `added` to the
        scores, (B, 1, T, S).
        """
        attended = self._graph.node(
            f"{MICROSOFT}:MultiHeadAttention",
            query,
            key,
            value,
            "",
            lengths,
            added,
            num_heads=self._blocks.config.heads,
            scale=1.0,  # anything else would leave the fast path for single queries
        )
        return self._blocks.flat(attended)  # (B, T, D) -> (…, D)


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

"""Builds the graphs of the port sheet by hand from a state dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from model.config import ModelConfig
from model.export.attending import attend_openly
from model.export.blocks import AttentionMask, AttentionShapes, BlockWriter, forbidden, pad_rows, top_k
from model.export.graph import GraphWriter
from model.export.quantisation import FloatLinear, Int8Linear, Range
from model.export.weights import Weights
from model.ports import Precision, attending_ports, cross_names, decoder_ports, encoder_ports

QUERY_KEY_VALUE = ("w_q", "w_k", "w_v")

SHARED_TABLE = "target_embedding.weight"
"""One constant for the target embedding and a tied float32 projection."""


@dataclass(frozen=True)
class Blueprint:
    """Everything a graph is built from. `ranges` is needed for int8 only."""

    weights: Weights
    precision: Precision
    ranges: Mapping[str, Range]

    def writer(self, name: str) -> BlockWriter:
        """A fresh graph in this precision."""
        graph = GraphWriter(name)
        linear = FloatLinear(graph) if self.precision == "f32" else Int8Linear(graph, self.ranges)
        return BlockWriter(graph, linear, self.weights)

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return self.weights.config


def build_encoder(blueprint: Blueprint, path: Path) -> list[Path]:
    """The encoder stack and every decoder layer's cross-attention keys and values; returns the files written."""
    write, config = blueprint.writer("encoder"), blueprint.config
    graph = write.graph
    shapes = write.shapes("tokens")
    embedded = write.embed("tokens", "source_embedding.weight", blueprint.weights.source_embedding)
    end = graph.node("Shape", "tokens", start=1, end=2)
    rows = graph.node("Slice", write.position_table(), graph.integers(0), end, graph.integers(0))  # -> (S, 1, D)
    position = graph.node("Squeeze", rows, graph.integers(1))  # (S, 1, D) -> (S, D)
    x = write.flat(graph.node("Add", embedded, position))  # (B, S, D) -> (…, D)
    for i in range(config.encoder_layers):
        x = _encoder_layer(write, x, f"encoder.layers.{i}", shapes)
    memory = write.final_norm(x, "encoder.norm")
    prepared = write.linear.prepare(memory, "encoder.memory")
    names = iter(cross_names(config))
    for i in range(config.decoder_layers):
        for matrix in ("w_k", "w_v"):
            mapped = write.linear_map(prepared, "encoder.memory", f"decoder.layers.{i}.cross_attention.{matrix}")
            graph.output(write.heads(mapped, shapes), next(names))  # (…, D) -> (B, H, S, K)
    return graph.save(path, encoder_ports(config))


def _encoder_layer(write: BlockWriter, x: str, prefix: str, shapes: AttentionShapes) -> str:
    def attention(y: str) -> str:
        name = f"{prefix}.self_attention"
        prepared, site = write.linear.prepare(y, f"{name}.input"), f"{name}.input"
        query, key, value = (write.linear_map(prepared, site, f"{name}.{matrix}") for matrix in QUERY_KEY_VALUE)
        attended = write.attend(query, key, value, shapes, AttentionMask(lengths="lengths"))
        return write.join(attended, name)

    x = write.residual(x, f"{prefix}.norm_self", attention)
    feed_forward = f"{prefix}.feed_forward"
    return write.residual(x, f"{prefix}.norm_feed_forward", lambda y: write.feed_forward(y, feed_forward))


def build_decoder(blueprint: Blueprint, path: Path, attending: int | None = None) -> list[Path]:
    """One decoder step, from token ids to the k best continuations; returns the files written.

    `attending` is the layer whose cross-attention is to be an output; None: of none, it is the plain decoder.
    """
    write, config = blueprint.writer("decoder"), blueprint.config
    graph = write.graph
    shapes = write.shapes("tokens")
    embedded = write.embed("tokens", SHARED_TABLE, blueprint.weights.target_embedding)
    position = graph.node("Gather", write.position_table(), "positions")  # (B) -> (B, 1, D)
    x = write.flat(graph.node("Add", embedded, position))  # (B, W, D) -> (…, D)
    for i in range(config.decoder_layers):
        x = _decoder_layer(write, x, i, shapes, i == attending)
    _head(write, write.final_norm(x, "decoder.norm"), shapes)
    return graph.save(path, decoder_ports(config) if attending is None else attending_ports(config))


def _decoder_layer(write: BlockWriter, x: str, i: int, shapes: AttentionShapes, attending: bool) -> str:
    prefix = f"decoder.layers.{i}"

    def self_attention(y: str) -> str:
        name = f"{prefix}.self_attention"
        query, key, value = _query_key_value(write, y, name, shapes)
        keys, values = _append(write, key, f"key_{i}"), _append(write, value, f"value_{i}")
        attended = write.attend(query, keys, values, shapes, AttentionMask(added="visible", heads_ready=True))
        return write.join(attended, name)

    def cross_attention(y: str) -> str:
        name = f"{prefix}.cross_attention"
        site = f"{name}.input"
        query = write.linear_map(write.linear.prepare(y, site), site, f"{name}.w_q")
        if attending:
            query = write.rows(query, shapes.joined)  # (…, D) -> (B, W, D)
            return write.join(write.flat(attend_openly(write.graph, write.config, query, i)), name)
        mask = AttentionMask(lengths="source_lengths", heads_ready=True)
        attended = write.attend(query, f"cross_key_{i}", f"cross_value_{i}", shapes, mask)
        return write.join(attended, name)

    x = write.residual(x, f"{prefix}.norm_self", self_attention)
    x = write.residual(x, f"{prefix}.norm_cross", cross_attention)
    feed_forward = f"{prefix}.feed_forward"
    return write.residual(x, f"{prefix}.norm_feed_forward", lambda y: write.feed_forward(y, feed_forward))


def _query_key_value(write: BlockWriter, x: str, name: str, shapes: AttentionShapes) -> tuple[str, str, str]:
    """A step's query (…, D) and its key and value (B, H, W, K): (…, D) -> one map, for few rows cost little each."""
    graph, config, site = write.graph, write.config, f"{name}.input"
    prefixes = (f"{name}.{matrix}" for matrix in QUERY_KEY_VALUE)
    mapped = write.linear_map(write.linear.prepare(x, site), site, *prefixes)  # (…, D) -> (…, 3 D)
    widths = graph.integers(config.d_model, 2 * config.d_model)
    query, both = graph.nodes("Split", (mapped, widths), 2, axis=-1)  # (…, 3 D) -> (…, D), (…, 2 D)
    key, value = graph.nodes("Split", (write.heads(both, shapes),), 2, axis=1, num_outputs=2)  # (B, 2 H, W, K)
    return query, key, value


def _append(write: BlockWriter, new: str, kind: str) -> str:
    """Write `new` (B, H, W, K) into the cache (B, H, C, K) at each row's `write_index`; in place if it is bound so."""
    written = write.graph.node("TensorScatter", f"past_{kind}", new, "write_index", axis=-2)
    write.graph.output(written, f"present_{kind}")
    return f"present_{kind}"


def _head(write: BlockWriter, x: str, shapes: AttentionShapes) -> None:
    """Projection, log-softmax over what may be predicted, and the k best: (…, D) -> two of (B, W, k)."""
    graph, weights, config = write.graph, write.weights, write.config
    site = "decoder.output"
    rows, mask = pad_rows(weights.projection), forbidden(config)
    # A tied projection takes the name of the embedding, so that one constant serves both.
    name = SHARED_TABLE.removesuffix(".weight") if config.tie_embeddings else "projection"
    logits = write.linear.apply(write.linear.prepare(x, site), site, name, rows, mask)  # (…, D) -> (…, V')
    log_probs = write.rows(graph.node("LogSoftmax", logits, axis=-1), shapes.scored)  # (…, V') -> (B, W, V')
    values, ids = top_k(graph, log_probs, len(rows), "k")  # (B, W, V') -> (B, W, k)
    graph.output(values, "log_probs")
    graph.output(ids, "ids")

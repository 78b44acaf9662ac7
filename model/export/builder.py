"""Builds the two graphs of the port sheet by hand from a state dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from model.config import ModelConfig
from model.export.blocks import AttentionMask, AttentionShapes, Scribe, forbidden, pad_rows, top_k
from model.export.graph import GraphWriter
from model.export.quantisation import FloatLinear, Int8Linear, Range
from model.export.weights import Weights
from model.ports import Precision, cross_names, decoder_ports, encoder_ports

SHARED_TABLE = "target_embedding.weight"
"""One constant for the target embedding and a tied float32 projection."""


@dataclass(frozen=True)
class Blueprint:
    """Everything a graph is built from. `ranges` is needed for int8 only."""

    weights: Weights
    precision: Precision
    ranges: Mapping[str, Range]

    def scribe(self, name: str) -> Scribe:
        """A fresh graph in this precision."""
        graph = GraphWriter(name)
        linear = FloatLinear(graph) if self.precision == "f32" else Int8Linear(graph, self.ranges)
        return Scribe(graph, linear, self.weights)

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return self.weights.config


def build_encoder(blueprint: Blueprint, path: Path) -> list[Path]:
    """The encoder stack and every decoder layer's cross-attention keys and values; returns the files written."""
    scribe, config = blueprint.scribe("encoder"), blueprint.config
    graph = scribe.graph
    shapes = scribe.shapes("tokens")
    embedded = scribe.embed("tokens", "source_embedding.weight", blueprint.weights.source_embedding)
    end = graph.node("Shape", "tokens", start=1, end=2)
    rows = graph.node("Slice", scribe.position_table(), graph.integers(0), end, graph.integers(0))  # -> (S, D)
    x = scribe.flat(graph.node("Add", embedded, scribe.linear.looked_up(rows)))  # (B, S, D) -> (R, D)
    for i in range(config.encoder_layers):
        x = _encoder_layer(scribe, x, f"encoder.layers.{i}", shapes)
    memory = scribe.final_norm(x, "encoder.norm")
    prepared = scribe.linear.prepare(memory, "encoder.memory")
    names = iter(cross_names(config))
    for i in range(config.decoder_layers):
        for matrix in ("w_k", "w_v"):
            mapped = scribe.linear_map(prepared, "encoder.memory", f"decoder.layers.{i}.cross_attention.{matrix}")
            graph.output(scribe.heads(mapped, shapes), next(names))  # (R, D) -> (B, H, S, K)
    return graph.save(path, encoder_ports(config))


def _encoder_layer(scribe: Scribe, x: str, prefix: str, shapes: AttentionShapes) -> str:
    def attention(y: str) -> str:
        name = f"{prefix}.self_attention"
        query, key, value = _query_key_value(scribe, y, name)
        attended = scribe.attend(query, key, value, shapes, AttentionMask(lengths="lengths"))
        return scribe.join(attended, name)

    x = scribe.residual(x, f"{prefix}.norm_self", attention)
    feed_forward = f"{prefix}.feed_forward"
    return scribe.residual(x, f"{prefix}.norm_feed_forward", lambda y: scribe.feed_forward(y, feed_forward))


def _query_key_value(scribe: Scribe, x: str, name: str) -> tuple[str, str, str]:
    site = f"{name}.input"
    prepared = scribe.linear.prepare(x, site)
    query, key, value = (scribe.linear_map(prepared, site, f"{name}.{matrix}") for matrix in ("w_q", "w_k", "w_v"))
    return query, key, value


def build_decoder(blueprint: Blueprint, path: Path) -> list[Path]:
    """One decoder step, from token ids to the k best continuations; returns the files written."""
    scribe, config = blueprint.scribe("decoder"), blueprint.config
    graph = scribe.graph
    shapes = scribe.shapes("tokens")
    embedded = scribe.embed("tokens", SHARED_TABLE, blueprint.weights.target_embedding)
    rows = graph.node("Gather", scribe.position_table(), "positions")  # (B) -> (B, D)
    position = graph.node("Unsqueeze", scribe.linear.looked_up(rows), graph.integers(1))  # (B, D) -> (B, 1, D)
    x = scribe.flat(graph.node("Add", embedded, position))  # (B, W, D) -> (R, D)
    for i in range(config.decoder_layers):
        x = _decoder_layer(scribe, x, i, shapes)
    _head(scribe, scribe.final_norm(x, "decoder.norm"))
    return graph.save(path, decoder_ports(config))


def _decoder_layer(scribe: Scribe, x: str, i: int, shapes: AttentionShapes) -> str:
    prefix = f"decoder.layers.{i}"

    def self_attention(y: str) -> str:
        name = f"{prefix}.self_attention"
        query, key, value = _query_key_value(scribe, y, name)
        keys = _append(scribe, scribe.heads(key, shapes), f"key_{i}")
        values = _append(scribe, scribe.heads(value, shapes), f"value_{i}")
        attended = scribe.attend(query, keys, values, shapes, AttentionMask(added="visible", heads_ready=True))
        return scribe.join(attended, name)

    def cross_attention(y: str) -> str:
        name = f"{prefix}.cross_attention"
        site = f"{name}.input"
        query = scribe.linear_map(scribe.linear.prepare(y, site), site, f"{name}.w_q")
        mask = AttentionMask(lengths="source_lengths", heads_ready=True)
        attended = scribe.attend(query, f"cross_key_{i}", f"cross_value_{i}", shapes, mask)
        return scribe.join(attended, name)

    x = scribe.residual(x, f"{prefix}.norm_self", self_attention)
    x = scribe.residual(x, f"{prefix}.norm_cross", cross_attention)
    feed_forward = f"{prefix}.feed_forward"
    return scribe.residual(x, f"{prefix}.norm_feed_forward", lambda y: scribe.feed_forward(y, feed_forward))


def _append(scribe: Scribe, new: str, kind: str) -> str:
    """Write `new` (B, H, W, K) into the cache (B, H, C, K) at each row's `write_index`; in place if it is bound so."""
    written = scribe.graph.node("TensorScatter", f"past_{kind}", new, "write_index", axis=-2)
    scribe.graph.output(written, f"present_{kind}")
    return f"present_{kind}"


def _head(scribe: Scribe, x: str) -> None:
    """Projection, log-softmax over what may be predicted, and the k best: (R, D) -> two of (B, W, k)."""
    graph, weights, config = scribe.graph, scribe.weights, scribe.config
    site = "decoder.output"
    rows, mask = pad_rows(weights.projection), forbidden(config)
    # A tied projection takes the name of the embedding, so that one constant serves both.
    name = SHARED_TABLE.removesuffix(".weight") if config.tie_embeddings else "projection"
    logits = scribe.linear.apply(scribe.linear.prepare(x, site), site, name, rows, mask)  # (R, D) -> (R, V')
    log_probs = graph.node("LogSoftmax", logits, axis=-1)
    values, ids = top_k(graph, log_probs, len(rows), "k")  # (R, V') -> (R, k)
    lanes = graph.node("Concat", graph.node("Shape", "tokens"), "k", axis=0)
    graph.output(scribe.reshape(values, lanes), "log_probs")  # (R, k) -> (B, W, k)
    graph.output(scribe.reshape(ids, lanes), "ids")  # (R, k) -> (B, W, k)

"""Builds the graphs of the port sheet by hand from a state dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from model.config import ModelConfig
from model.export.attending import attend_openly
from model.export.blocks import SHARED_TABLE, BlockWriter, LayerWriter, PartsWriter
from model.export.cuda import CudaParts, DeviceLinear
from model.export.graph import GraphWriter
from model.export.linear import FloatLinear, Int8Linear, LinearWriter
from model.export.native import NativeInt8Linear, NativeParts
from model.export.quantisation import Range
from model.export.stock import StockParts
from model.export.weightfile import WeightFile
from model.export.weights import Weights
from model.ports import Operators, PortSheet, Precision, Role, cross_names, inner_type, port_sheet


@dataclass(frozen=True)
class Blueprint:
    """Everything a graph is built from. `ranges` is needed for int8 only."""

    weights: Weights
    precision: Precision
    operators: Operators
    ranges: Mapping[str, Range]

    def writer(self, name: str) -> LayerWriter:
        """A fresh graph in this precision, with these operators."""
        graph = GraphWriter(name)
        if self.operators == "cuda":
            device = DeviceLinear(graph, inner_type(self.precision))
            blocks = BlockWriter(graph, device, self.weights)
            return LayerWriter(blocks, CudaParts(blocks, device))
        blocks = BlockWriter(graph, self._linear(graph), self.weights)
        parts: PartsWriter = StockParts(blocks) if self.operators == "stock" else NativeParts(blocks)
        return LayerWriter(blocks, parts)

    def _linear(self, graph: GraphWriter) -> LinearWriter:
        if self.precision == "f32":
            return FloatLinear(graph)
        return Int8Linear(graph, self.ranges) if self.operators == "stock" else NativeInt8Linear(graph, self.ranges)

    @property
    def config(self) -> ModelConfig:
        """The network's configuration."""
        return self.weights.config

    def sheet(self, role: Role) -> PortSheet:
        """The ports that the graph called `role` must have."""
        return port_sheet(role, self.config, self.precision)


def build_encoder(blueprint: Blueprint, path: Path, constants: WeightFile) -> None:
    """Write the encoder stack and every decoder layer's cross-attention keys and values."""
    write, config = blueprint.writer("encoder"), blueprint.config
    blocks, graph = write.blocks, write.blocks.graph
    embedded = blocks.embed("tokens", "source_embedding.weight", blueprint.weights.source_embedding)

    def first(table: str) -> str:
        end = graph.node("Shape", "tokens", start=1, end=2)
        rows = graph.node("Slice", table, graph.integers(0), end, graph.integers(0))  # (P, 1, D) -> (S, 1, D)
        return graph.node("Squeeze", rows, graph.integers(1))  # (S, 1, D) -> (S, D)

    x = blocks.flat(blocks.placed(embedded, first))  # (B, S, D) -> (…, D)
    for i in range(config.encoder_layers):
        x = _encoder_layer(write, x, f"encoder.layers.{i}")
    memory = write.final_norm(x, "encoder.norm")
    prepared = blocks.linear.prepare(memory, "encoder.memory")
    names = iter(cross_names(config))
    for i in range(config.decoder_layers):
        for matrix in ("w_k", "w_v"):
            prefix = f"decoder.layers.{i}.cross_attention.{matrix}"
            graph.output(write.parts.cross_heads(prepared, "encoder.memory", prefix), next(names))  # -> (B, H, S, K)
    graph.save(path, blueprint.sheet("encoder"), constants)


def _encoder_layer(write: LayerWriter, x: str, prefix: str) -> str:
    def attention(y: str, residual: str) -> str:
        name = f"{prefix}.self_attention"
        packed = write.blocks.query_key_value(y, name)
        packed = write.blocks.turned(packed, write.blocks.graph.integers(0))
        return write.blocks.join(write.parts.self_attention(packed), name, residual)

    x = write.residual(x, f"{prefix}.norm_self", attention)
    return write.feed_forward(x, prefix)


def build_decoder(blueprint: Blueprint, path: Path, constants: WeightFile, attending: int | None = None) -> None:
    """Write one decoder step, from token ids to the k best continuations.

    `attending` is the layer whose cross-attention is to be an output; None for the plain decoder.
    """
    write, config = blueprint.writer("decoder"), blueprint.config
    blocks, graph = write.blocks, write.blocks.graph
    embedded = blocks.embed("tokens", SHARED_TABLE, blueprint.weights.target_embedding)
    x = blocks.flat(blocks.placed(embedded, lambda table: graph.node("Gather", table, "positions")))  # -> (…, D)
    where = _lane_positions(graph) if config.positions == "rotary" else ""
    for i in range(config.decoder_layers):
        x = _decoder_layer(write, x, (i, where), attending == i)
    log_probs, ids = write.parts.best(write.final_norm(x, "decoder.norm"), "k")  # (…, D) -> two of (B, W, k)
    graph.output(log_probs, "log_probs")
    graph.output(ids, "ids")
    graph.save(path, blueprint.sheet("decoder" if attending is None else "attending"), constants)


def _lane_positions(graph: GraphWriter) -> str:
    """The position of every lane: all lanes of a row have that of their row, (B) -> (B, W)."""
    column = graph.node("Unsqueeze", "positions", graph.integers(1))  # (B) -> (B, 1)
    return graph.node("Expand", column, graph.node("Shape", "tokens"))  # (B, 1) -> (B, W)


def _decoder_layer(write: LayerWriter, x: str, place: tuple[int, str], attending: bool) -> str:
    """Layer and lane positions (rotary only) are the `place`: (…, D) -> (…, D)."""
    (i, where), blocks = place, write.blocks
    prefix = f"decoder.layers.{i}"

    def self_attention(y: str, residual: str) -> str:
        name = f"{prefix}.self_attention"
        packed = blocks.turned(blocks.query_key_value(y, name), where)
        return blocks.join(write.parts.tree_attention(packed, i), name, residual)

    def cross_attention(y: str, residual: str) -> str:
        name = f"{prefix}.cross_attention"
        site = f"{name}.input"
        query = blocks.linear_map(blocks.linear.prepare(y, site), site, f"{name}.w_q")
        attended = attend_openly(blocks, query, i) if attending else write.parts.cross_attention(query, i)
        return blocks.join(attended, name, residual)

    x = write.residual(x, f"{prefix}.norm_self", self_attention)
    x = write.residual(x, f"{prefix}.norm_cross", cross_attention)
    return write.feed_forward(x, prefix)

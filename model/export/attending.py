"""What makes a decoder an attending one: the cross-attention of one layer in the open, and which layer that is.

A network is trained to translate, not to align. Some layer's attention points at the source word that is being
translated more often than the others' does, and which one that is differs from network to network, so it is measured:
with tokens that stand once in a source and once in its translation, such as names and numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.export.blocks import BlockWriter
from model.export.calibration import Pair
from model.export.graph import GraphWriter
from model.nn.attention import MultiHeadAttention
from model.nn.transformer import Transformer
from model.ports import ATTENTION, masked

COMMON = 0.05
"""A token that stands in more than this share of the sources is no name: full stops say little about words."""


def attend_openly(blocks: BlockWriter, query: str, layer: int) -> str:
    """softmax(Q Kᵀ) V over the source for a query (…, D) that already holds 1/√K; returns (…, D).

    Written out, since the operators that do it in one node keep the softmax to themselves; here it becomes an output.
    """
    graph, config, dtype = blocks.graph, blocks.config, np.dtype(blocks.linear.dtype).name
    split = (config.heads, config.head_size)
    if blocks.linear.keeps_axes:
        heads = blocks.split_heads(query, graph.integers(0, 0, *split))  # (B, W, D) -> (B, H, W, K)
    else:
        shape = graph.node("Concat", graph.node("Shape", "tokens"), graph.integers(*split), axis=0)
        heads = blocks.split_heads(query, shape)  # (B · W, D) -> (B, H, W, K)
    keys = graph.node("Transpose", f"cross_key_{layer}", perm=[0, 1, 3, 2])  # (B, H, S, K) -> (B, H, K, S)
    scores = graph.node("MatMul", heads, keys)  # (B, H, W, K), (B, H, K, S) -> (B, H, W, S)
    hidden = graph.node("Where", _beyond(graph, f"cross_key_{layer}"), graph.scalar(masked(dtype), dtype), scores)
    shares = graph.node("Softmax", hidden, axis=-1)
    mean = graph.node("ReduceMean", shares, graph.integers(1), keepdims=0)  # (B, H, W, S) -> (B, W, S)
    graph.output(mean if dtype == "float32" else graph.node("Cast", mean, to=1), ATTENTION)
    attended = graph.node("MatMul", shares, f"cross_value_{layer}")  # (B, H, W, S), (B, H, S, K) -> (B, H, W, K)
    joined = graph.node("Transpose", attended, perm=[0, 2, 1, 3])  # (B, H, W, K) -> (B, W, H, K)
    return blocks.flat(graph.node("Reshape", joined, graph.integers(0, 0, config.d_model)))  # (B, W, H, K) -> (…, D)


def _beyond(graph: GraphWriter, keys: str) -> str:
    """True where a position lies beyond its row's source: keys (B, H, S, K) -> (B, 1, 1, S)."""
    zero, one = (graph.constant(f"integer_{n}", np.array(n, dtype=np.int64)) for n in (0, 1))
    size = graph.node("Squeeze", graph.node("Shape", keys, start=2, end=3), graph.integers(0))
    positions = graph.node("Range", zero, size, one)  # (S)
    lengths = graph.node("Cast", graph.node("Unsqueeze", "source_lengths", graph.integers(1, 2, 3)), to=7)
    return graph.node("GreaterOrEqual", positions, lengths)  # (S), (B, 1, 1, 1) -> (B, 1, 1, S)


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """The decoder layer whose attention aligns best."""

    layer: int
    agreement: tuple[float, ...]
    """For each layer, the share of looked-at tokens that attend to themselves most; empty if there were none."""
    tokens: int
    """So many were looked at."""


def choose_layer(network: Transformer, pairs: Sequence[Pair]) -> LayerChoice:
    """The layer in which the most tokens that stand on both sides of `pairs` attend to themselves; else the last."""
    layers = network.config.decoder_layers
    counts = Counter(token for source, _ in pairs for token in set(source))
    names = {token for token, count in counts.items() if count <= max(1.0, COMMON * len(pairs))}
    hits, tokens = np.zeros(layers, np.int64), 0
    for source, target in pairs:
        found = _on_both_sides(source, target, names)
        if not found or max(len(source), len(target)) > network.config.max_positions:
            continue
        tokens += len(found)
        for layer, shares in enumerate(cross_attention(network, source, target)):
            best = shares.argmax(dim=-1).tolist()  # (T, S) -> (T)
            hits[layer] += sum(best[there] == here for here, there in found)
    if not tokens:
        return LayerChoice(layers - 1, (), 0)
    return LayerChoice(int(hits.argmax()), tuple((hits / tokens).round(4).tolist()), tokens)


def _on_both_sides(source: Sequence[int], target: Sequence[int], names: set[int]) -> list[tuple[int, int]]:
    """The positions in source and target of each of `names` that stands once in both; not of EOS."""
    once = (token for token in set(source[:-1]) & set(target[:-1]) & names if source.count(token) == 1)
    return [(source.index(token), target.index(token)) for token in once if target.count(token) == 1]


@torch.no_grad()
def cross_attention(network: Transformer, source: Sequence[int], target: Sequence[int]) -> list[Tensor]:
    """For each decoder layer, what the prediction of each token of `target` attends to, the mean over heads: (T, S)."""
    found: list[Tensor] = []

    def look(attention: MultiHeadAttention, inputs: tuple[Any, ...]) -> None:
        query, keys = attention.split_heads(attention.w_q(inputs[0])), attention.keys_values(inputs[1])[0]
        scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])  # -> (1, H, T, S)
        found.append(scores.softmax(dim=-1).mean(dim=1)[0])  # (1, H, T, S) -> (T, S)

    with ExitStack() as hooks:
        for attention in _cross_attentions(network):
            hooks.enter_context(attention.register_forward_pre_hook(look))
        target_in = torch.tensor([[network.config.bos_id, *target[:-1]]])
        network(torch.tensor([source]), torch.tensor([len(source)]), target_in)
    return found


def _cross_attentions(network: Transformer) -> Iterator[MultiHeadAttention]:
    for name, module in network.decoder.named_modules():
        if name.endswith("cross_attention") and isinstance(module, MultiHeadAttention):
            yield module

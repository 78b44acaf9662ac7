"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017): Figure 1 in torch.

`encode`, `decode` and `step` share their layers: the source, the whole target, one position with caches.
Sources end with EOS; decoder inputs start with BOS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.nn.attention import causal_mask, padding_mask
from model.nn.layers import DecoderLayer, EncoderLayer, LayerCache
from model.nn.positions import learned_positions, sinusoids


class Encoder(nn.Module):
    """N encoder layers; pre-norm adds a final norm, post-norm must not."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.norm = _final_norm(config)

    def forward(self, x: Tensor, source_mask: Tensor) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        for layer in self.layers:
            x = layer(x, source_mask)
        normed: Tensor = self.norm(x)
        return normed


class Decoder(nn.Module):
    """N decoder layers; pre-norm adds a final norm, post-norm must not."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = _final_norm(config)

    def forward(self, x: Tensor, memory: Tensor, target_mask: Tensor, source_mask: Tensor) -> Tensor:
        """x (B, T, D), memory (B, S, D) -> (B, T, D)."""
        for layer in self.layers:
            x = layer(x, memory, target_mask, source_mask)
        normed: Tensor = self.norm(x)
        return normed

    def _layers(self) -> Iterator[DecoderLayer]:
        return (layer for layer in self.layers if isinstance(layer, DecoderLayer))

    def start(self, memory: Tensor) -> list[LayerCache]:
        """A fresh cache for every layer."""
        return [layer.start(memory) for layer in self._layers()]

    def step(self, x: Tensor, caches: list[LayerCache], source_mask: Tensor) -> Tensor:
        """(B, 1, D) -> (B, 1, D)."""
        for layer, cache in zip(self._layers(), caches, strict=True):
            x = layer.step(x, cache, source_mask)
        normed: Tensor = self.norm(x)
        return normed


@dataclass
class DecoderState:
    """Where a decoding stands: the caches, the source mask (B, 1, 1, S), and the next position."""

    caches: list[LayerCache]
    source_mask: Tensor
    position: int = 0


class Transformer(nn.Module):
    """Encoder, decoder, and one matrix for both embeddings and the output projection (section 3.4)."""

    positions: Tensor | None
    """What is added to embeddings, (P, D); nothing where attention turns by positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = _embedding(config)
        self.target_embedding = None if config.tie_embeddings else _embedding(config)
        self.projection = None if config.tie_embeddings else _projection(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.dropout = nn.Dropout(config.dropout)
        if config.positions == "learned":
            self.positions = learned_positions(config)
        elif config.positions == "rotary":
            self.positions = None
        else:
            table = sinusoids(config.max_positions, config.d_model, config.positions)
            self.register_buffer("positions", table, persistent=False)

    @property
    def output_weight(self) -> Tensor:
        """The projection to the vocabulary, (V, D)."""
        return self.embedding.weight if self.projection is None else self.projection.weight

    def embed(self, ids: Tensor, start: int = 0, *, target: bool = False) -> Tensor:
        """√D · embedding + position (unless rotary), then dropout: ids (B, T) at positions start.. -> (B, T, D)."""
        table = self.target_embedding if target and self.target_embedding is not None else self.embedding
        x = table(ids) * math.sqrt(self.config.d_model)  # (B, T) -> (B, T, D)
        if self.positions is not None:
            x = x + self.positions[start : start + ids.shape[1]].to(x.dtype)
        dropped: Tensor = self.dropout(x)
        return dropped

    def source_mask(self, lengths: Tensor, size: int) -> Tensor:
        """(B) -> (B, 1, 1, S) in the dtype of the weights."""
        return padding_mask(lengths, size, self.embedding.weight.dtype)

    def encode(self, source: Tensor, lengths: Tensor) -> Tensor:
        """source (B, S) padded, lengths (B) -> memory (B, S, D)."""
        memory: Tensor = self.encoder(self.embed(source), self.source_mask(lengths, source.shape[1]))
        return memory

    def hidden(self, target_in: Tensor, memory: Tensor, source_lengths: Tensor) -> Tensor:
        """The decoder's output before the projection: target_in (B, T), memory (B, S, D) -> (B, T, D)."""
        x = self.embed(target_in, target=True)
        future = causal_mask(target_in.shape[1], x.dtype, x.device)
        output: Tensor = self.decoder(x, memory, future, self.source_mask(source_lengths, memory.shape[1]))
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, V)."""
        return nn.functional.linear(hidden, self.output_weight)

    def decode(self, target_in: Tensor, memory: Tensor, source_lengths: Tensor) -> Tensor:
        """The whole target at once: target_in (B, T) starting with BOS -> logits (B, T, V)."""
        return self.logits(self.hidden(target_in, memory, source_lengths))

    def start(self, memory: Tensor, source_lengths: Tensor) -> DecoderState:
        """The state before the first step: memory (B, S, D), source_lengths (B)."""
        return DecoderState(self.decoder.start(memory), self.source_mask(source_lengths, memory.shape[1]))

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """One position: tokens (B, 1), BOS first; moves `state` on; returns logits (B, V)."""
        x = self.embed(tokens, state.position, target=True)
        hidden = self.decoder.step(x, state.caches, state.source_mask)
        state.position += 1
        return self.logits(hidden)[:, 0]  # (B, 1, V) -> (B, V)

    def forward(self, source: Tensor, source_lengths: Tensor, target_in: Tensor) -> Tensor:
        """source (B, S), source_lengths (B), target_in (B, T) -> logits (B, T, V)."""
        return self.decode(target_in, self.encode(source, source_lengths), source_lengths)


def parameter_count(network: nn.Module) -> int:
    """Number of trained values; a tied matrix counts once."""
    return sum(parameter.numel() for parameter in network.parameters())


@torch.no_grad()
def greedy(network: Transformer, source: Tensor, source_lengths: Tensor, max_length: int) -> list[list[int]]:
    """The obvious decoder: always the likeliest allowed token, until EOS or `max_length` tokens.

    source (B, S) padded, source_lengths (B). Returns target ids without BOS and EOS. For validation and as a reference
    for the engine, not for serving.
    """
    config = network.config
    state = network.start(network.encode(source, source_lengths), source_lengths)
    tokens = torch.full((source.shape[0], 1), config.bos_id, device=source.device)
    done = torch.zeros(source.shape[0], dtype=torch.bool, device=source.device)
    outputs: list[Tensor] = []
    while len(outputs) < min(max_length, config.max_positions) and not done.all():
        logits = network.step(tokens, state).float()
        logits[:, [config.pad_id, config.bos_id]] = -math.inf
        tokens = logits.argmax(dim=-1, keepdim=True)  # (B, V) -> (B, 1)
        tokens = tokens.masked_fill(done[:, None], config.eos_id)
        outputs.append(tokens)
        done |= tokens[:, 0] == config.eos_id
    rows = torch.cat(outputs, dim=1).tolist()  # T x (B, 1) -> (B, T)
    return [row[: row.index(config.eos_id)] if config.eos_id in row else row for row in rows]


def _embedding(config: ModelConfig) -> nn.Embedding:
    """N(0, d^-½), so that after the scaling by √d every component has unit variance; PAD is zero at first.

    Nothing attends to PAD; tied to the projection it moves, and that is never chosen.
    """
    table = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
    nn.init.normal_(table.weight, std=config.d_model**-0.5)
    with torch.no_grad():
        table.weight[config.pad_id].zero_()
    return table


def _projection(config: ModelConfig) -> nn.Linear:
    """Starts where a tied matrix would."""
    linear = nn.Linear(config.d_model, config.vocab_size, bias=False)
    nn.init.normal_(linear.weight, std=config.d_model**-0.5)
    return linear


def _final_norm(config: ModelConfig) -> nn.Module:
    if config.norm_order == "post":
        return nn.Identity()
    return nn.LayerNorm(config.d_model, eps=config.norm_epsilon)

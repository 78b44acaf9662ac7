"""One encoder layer and one decoder layer (section 3.1), with either order of residual and norm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.nn.attention import MultiHeadAttention
from model.nn.positions import Rotary

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "gelu": nn.functional.gelu}


class FeedForward(nn.Module):
    """FFN(x) = activation(x W_1 + b_1) W_2 + b_2, section 3.3, its inner layer gated by x W_g + b_g if asked for.

    No dropout inside: the paper has none there.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w_1 = nn.Linear(config.d_model, config.d_ff)
        self.w_2 = nn.Linear(config.d_ff, config.d_model)
        self.w_g = nn.Linear(config.d_model, config.d_ff) if config.gated else None
        self.activation = _ACTIVATIONS[config.activation]
        for linear in filter(None, (self.w_1, self.w_g, self.w_2)):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        hidden: Tensor = self.activation(self.w_1(x))  # (B, T, D) -> (B, T, F)
        if self.w_g is not None:
            hidden = hidden * self.w_g(x)
        output: Tensor = self.w_2(hidden)  # (B, T, F) -> (B, T, D)
        return output


class Layer(nn.Module):
    """What both kinds of layer share: where the norm and the dropout sit round a sub-layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm_order == "pre"
        self.dropout = nn.Dropout(config.dropout)

    def residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))), or x + Dropout(Sublayer(LayerNorm(x))) for pre-norm."""
        if self.pre_norm:
            summed: Tensor = x + self.dropout(sublayer(norm(x)))
            return summed
        normed: Tensor = norm(x + self.dropout(sublayer(x)))
        return normed


class EncoderLayer(Layer):
    """Self-attention, then feed-forward (Figure 1, left)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        rotary = Rotary(config) if config.positions == "rotary" else None
        self.self_attention = MultiHeadAttention(config.d_model, config.heads, rotary)
        self.feed_forward = FeedForward(config)
        self.norm_self = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        self.norm_feed_forward = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)

    def forward(self, x: Tensor, source_mask: Tensor) -> Tensor:
        """x (B, S, D), source_mask (B, 1, 1, S); returns (B, S, D)."""
        x = self.residual(x, self.norm_self, lambda y: self.self_attention(y, y, source_mask))
        return self.residual(x, self.norm_feed_forward, self.feed_forward)


@dataclass
class LayerCache:
    """What one decoder layer keeps between steps. Cross keys and values never change; the others grow by a position."""

    cross_keys: Tensor
    """(B, H, S, K)"""
    cross_values: Tensor
    """(B, H, S, K)"""
    self_keys: Tensor
    """(B, H, t, K)"""
    self_values: Tensor
    """(B, H, t, K)"""

    def append(self, key: Tensor, value: Tensor) -> None:
        """Take one more position: (B, H, t, K) + (B, H, 1, K) -> (B, H, t + 1, K)."""
        self.self_keys = torch.cat([self.self_keys, key], dim=2)
        self.self_values = torch.cat([self.self_values, value], dim=2)


class DecoderLayer(Layer):
    """Masked self-attention, attention over the encoder's output, feed-forward (Figure 1, right)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        rotary = Rotary(config) if config.positions == "rotary" else None
        self.self_attention = MultiHeadAttention(config.d_model, config.heads, rotary)
        self.cross_attention = MultiHeadAttention(config.d_model, config.heads)
        self.feed_forward = FeedForward(config)
        self.norm_self = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        self.norm_cross = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)
        self.norm_feed_forward = nn.LayerNorm(config.d_model, eps=config.norm_epsilon)

    def forward(self, x: Tensor, memory: Tensor, target_mask: Tensor, source_mask: Tensor) -> Tensor:
        """x (B, T, D), memory (B, S, D), target_mask (1, 1, T, T), source_mask (B, 1, 1, S); returns (B, T, D)."""
        x = self.residual(x, self.norm_self, lambda y: self.self_attention(y, y, target_mask))
        x = self.residual(x, self.norm_cross, lambda y: self.cross_attention(y, memory, source_mask))
        return self.residual(x, self.norm_feed_forward, self.feed_forward)

    def start(self, memory: Tensor) -> LayerCache:
        """The cache before the first step, cross keys and values computed once from memory (B, S, D)."""
        cross_keys, cross_values = self.cross_attention.keys_values(memory)
        nothing = cross_keys[:, :, :0]  # (B, H, S, K) -> (B, H, 0, K)
        return LayerCache(cross_keys, cross_values, nothing, nothing)

    def step(self, x: Tensor, cache: LayerCache, source_mask: Tensor) -> Tensor:
        """One position: x (B, 1, D), source_mask (B, 1, 1, S); the cache grows by one; returns (B, 1, D)."""

        def attend_to_past(y: Tensor) -> Tensor:
            position = cache.self_keys.shape[2]
            cache.append(*self.self_attention.keys_values(y, position))
            return self.self_attention.attend(y, cache.self_keys, cache.self_values, None, position)

        def attend_to_source(y: Tensor) -> Tensor:
            return self.cross_attention.attend(y, cache.cross_keys, cache.cross_values, source_mask)

        x = self.residual(x, self.norm_self, attend_to_past)
        x = self.residual(x, self.norm_cross, attend_to_source)
        return self.residual(x, self.norm_feed_forward, self.feed_forward)

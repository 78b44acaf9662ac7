"""Position encodings: sinusoids (section 3.5), learned (Table 3, row E), or rotary (Su et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import ModelConfig, Positions


def sinusoids(count: int, d_model: int, layout: Positions) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)) for pos in 0..count-1.

    `interleaved` is the formula's order; `halves` puts all sines before all cosines. Returns (T, D), float32.
    """
    positions = torch.arange(count, dtype=torch.float64)
    frequencies = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angles = positions[:, None] * frequencies[None, :]  # (T), (D/2) -> (T, D/2)
    sines, cosines = angles.sin(), angles.cos()
    if layout == "interleaved":
        table = torch.stack([sines, cosines], dim=-1).flatten(1)  # (T, D/2) x 2 -> (T, D/2, 2) -> (T, D)
    else:
        table = torch.cat([sines, cosines], dim=-1)  # (T, D/2) x 2 -> (T, D)
    return table.float()


def learned_positions(config: ModelConfig) -> nn.Parameter:
    """A trained encoding of every position, (P, D); begins as N(0, d^-½), as an embedding before its scaling does."""
    return nn.Parameter(torch.randn(config.max_positions, config.d_model) * config.d_model**-0.5)


def rotary_angles(count: int, head_size: int) -> tuple[Tensor, Tensor]:
    """cos and sin of pos · 10000^(-2i/K), for pos in 0..count-1 and i in 0..K/2-1: two of (T, K/2), float32."""
    positions = torch.arange(count, dtype=torch.float64)
    frequencies = 10000.0 ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angles = positions[:, None] * frequencies[None, :]  # (T), (K/2) -> (T, K/2)
    return angles.cos().float(), angles.sin().float()


class Rotary(nn.Module):
    """Turns each pair of numbers of a query or key by an angle that grows with its position (Su et al., 2021, 3.2).

    (a, b) becomes (a cos − b sin, b cos + a sin), so that a product of query and key depends on their distance alone. A
    pair is number i of the first and number i of the second half of a head; the article pairs neighbours, which is the
    same up to the order of W^Q's and W^K's outputs.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        cosines, sines = rotary_angles(config.max_positions, config.head_size)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def forward(self, heads: Tensor, start: int) -> Tensor:
        """Heads (B, H, T, K) at the positions start .. start + T - 1; returns (B, H, T, K)."""
        end = start + heads.shape[2]
        cosines, sines = self.cosines[start:end], self.sines[start:end]  # (P, K/2) -> (T, K/2)
        a, b = heads.chunk(2, dim=-1)  # (B, H, T, K) -> two of (B, H, T, K/2)
        return torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1)  # -> (B, H, T, K)

"""Position encodings: sinusoids (section 3.5), or learned (Table 3, row E)."""

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

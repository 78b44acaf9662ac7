"""Scaled dot-product attention and its multi-head form (section 3.2).

Letters: B batch, T queries, S keys, D = d_model, H heads, K = D / H.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from model.nn.positions import Rotary

MASKED = -1e9
"""Added to a score that must not be seen. Finite, so that a row with nothing to see gives no NaN."""


def padding_mask(lengths: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """0 on real keys, `MASKED` on padding: (B) -> (B, 1, 1, S)."""
    hidden = torch.arange(size, device=lengths.device)[None, :] >= lengths[:, None]  # (B) -> (B, S)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill_(hidden, MASKED)
    return mask[:, None, None, :]  # (B, S) -> (B, 1, 1, S)


def causal_mask(size: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor:
    """0 on the past and present, `MASKED` on the future: (1, 1, T, T)."""
    full = torch.full((size, size), MASKED, dtype=dtype, device=device)
    return full.triu(diagonal=1)[None, None]  # (T, T) -> (1, 1, T, T)


def scaled_dot_product(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ / √d_k + mask) V, formula (1).

    Query (B, H, T, K), key and value (B, H, S, K), mask broadcast to (B, H, T, S); returns (B, H, T, K).
    Written out on the CPU, where it beats the fused kernel, whose masked path falls back to something slower.
    """
    return (fused if query.is_cuda else written_out)(query, key, value, mask)


def written_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Formula (1) in its own steps; see `scaled_dot_product`."""
    scores = torch.matmul(query * (1.0 / math.sqrt(query.shape[-1])), key.transpose(-1, -2))  # -> (B, H, T, S)
    if mask is not None:
        scores = scores + mask
    return torch.matmul(scores.softmax(dim=-1), value)  # (B, H, T, S), (B, H, S, K) -> (B, H, T, K)


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Formula (1) in one kernel, without (B, H, T, S) in memory; see `scaled_dot_product`."""
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class MultiHeadAttention(nn.Module):
    """Concat(head_1 … head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), section 3.2.2.

    With `rotary` queries and keys are turned by their positions first.
    """

    def __init__(self, d_model: int, heads: int, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.rotary = rotary
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier; for Q, K and V with the gain 1/√2 that the one stacked (3D, D) matrix would get."""
        for linear in (self.w_q, self.w_k, self.w_v):
            nn.init.xavier_uniform_(linear.weight, gain=1.0 / math.sqrt(2.0))
        nn.init.xavier_uniform_(self.w_o.weight)
        for linear in (self.w_q, self.w_k, self.w_v, self.w_o):
            nn.init.zeros_(linear.bias)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, K)."""
        batch, length, d_model = x.shape
        heads = x.view(batch, length, self.heads, d_model // self.heads)  # (B, T, D) -> (B, T, H, K)
        return heads.transpose(1, 2)  # (B, T, H, K) -> (B, H, T, K)

    def turned(self, heads: Tensor, start: int) -> Tensor:
        """Heads (B, H, T, K) at the positions start.., turned if positions are rotary."""
        if self.rotary is None:
            return heads
        turned: Tensor = self.rotary(heads, start)
        return turned

    def keys_values(self, x: Tensor, start: int = 0) -> tuple[Tensor, Tensor]:
        """What later queries attend to: (B, S, D) at the positions start.. -> two of (B, H, S, K)."""
        return self.turned(self.split_heads(self.w_k(x)), start), self.split_heads(self.w_v(x))

    def attend(self, x: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, start: int = 0) -> Tensor:
        """Queries from `x` (B, T, D), at the positions start.., over ready keys and values (B, H, S, K): (B, T, D)."""
        query = self.turned(self.split_heads(self.w_q(x)), start)
        heads = scaled_dot_product(query, key, value, mask)
        joined: Tensor = self.w_o(heads.transpose(1, 2).flatten(2))  # (B, H, T, K) -> (B, T, H, K) -> (B, T, D)
        return joined

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Queries from `x` (B, T, D), keys and values from `memory` (B, S, D); returns (B, T, D)."""
        key, value = self.keys_values(memory)
        return self.attend(x, key, value, mask)

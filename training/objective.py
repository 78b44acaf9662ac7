"""Label-smoothed cross-entropy over real target tokens, in chunks so that (N, V) logits never exist at once.

With ε of smoothing, the target distribution puts 1 - ε on the true id and ε / (V - 2) on every other id but PAD
(section 5.4 of "Attention Is All You Need"; section 7 of Szegedy et al., 2015). Padding positions take no part: not in
the sum, not in the count.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 512
"""Rows of logits at a time: small enough to stay in cache, large enough for the matrix product to run at full rate."""


class LossSums(NamedTuple):
    """Sums over the real target tokens of a batch; divide by `tokens` of the *whole* update, never of a micro-batch."""

    smoothed: Tensor
    """Scalar with gradient: Σ -Σ_v q(v) log p(v)."""
    nll: Tensor
    """Scalar without gradient: Σ -log p(true), what perplexity is made of."""
    tokens: int
    """How many tokens were summed."""


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Projection and loss in one, gradients computed on the way forward, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, pad_id: int) -> Any:  # type: ignore[override]
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        smoothed, nll = torch.zeros(2, dtype=torch.float32, device=hidden.device).unbind()
        for start in range(0, hidden.shape[0], CHUNK):
            rows = slice(start, start + CHUNK)
            log_p = (hidden[rows] @ weight.T).float().log_softmax(dim=-1)  # (C, D), (V, D) -> (C, V)
            loss, true_nll, grad_logits = _smoothed(log_p, targets[rows], smoothing, pad_id)
            smoothed += loss
            nll += true_nll
            grad_logits = grad_logits.to(hidden.dtype)
            grad_hidden[rows] = grad_logits @ weight  # (C, V), (V, D) -> (C, D)
            grad_weight += grad_logits.T @ hidden[rows]  # (V, C), (C, D) -> (V, D)
        ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: Any, grad_smoothed: Tensor, _grad_nll: Tensor) -> Any:  # type: ignore[override]
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad_smoothed, grad_weight * grad_smoothed, None, None, None


def _smoothed(log_p: Tensor, targets: Tensor, smoothing: float, pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Loss sum, true negative log-likelihood sum, and ∂loss/∂logits = p - q, of log_p (C, V) and targets (C)."""
    share = smoothing / (log_p.shape[1] - 2)
    true = targets[:, None]  # (C) -> (C, 1)
    true_log_p = log_p.gather(1, true)  # (C, V) -> (C, 1)
    nll = -true_log_p.sum()
    smoothed = (1.0 - smoothing) * nll
    if smoothing:
        smoothed = smoothed - share * (log_p.sum() - log_p[:, pad_id].sum() - true_log_p.sum())
    gradient = log_p.exp_()
    if smoothing:
        pad_p = gradient[:, pad_id].clone()
        gradient -= share
        gradient[:, pad_id] = pad_p
    gradient.scatter_add_(1, true, torch.full_like(true_log_p, share - (1.0 - smoothing)))
    return smoothed, nll, gradient


def projected_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, pad_id: int) -> LossSums:
    """Loss of `hidden` (B, T, D) projected by `weight` (V, D) against `targets` (B, T); PAD targets are left out."""
    real = targets.reshape(-1) != pad_id  # (B, T) -> (B·T)
    rows = hidden.reshape(-1, hidden.shape[-1])[real]  # (B, T, D) -> (N, D)
    smoothed, nll = _ProjectedCrossEntropy.apply(rows, weight, targets.reshape(-1)[real], smoothing, pad_id)
    return LossSums(smoothed, nll, rows.shape[0])

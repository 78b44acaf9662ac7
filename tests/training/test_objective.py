"""The loss against its formula, and what must not change it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from training.objective import CHUNK, projected_cross_entropy

PAD = 0


def by_the_formula(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[float, float]:
    """Σ -Σ_v q(v) log p(v) and Σ -log p(true), one row at a time."""
    smoothed = nll = 0.0
    for row, true in zip(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1).tolist(), strict=True):
        if true == PAD:
            continue
        q = torch.full_like(row, smoothing / (len(row) - 2))
        q[PAD] = 0.0
        q[true] = 1.0 - smoothing
        log_p = row - row.logsumexp(0)
        smoothed -= float((q * log_p).sum())
        nll -= float(log_p[true])
    return smoothed, nll


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(4, 30), st.sampled_from([0.0, 0.1, 0.4]), st.integers(0, 99))
def test_loss_and_gradients_are_the_formula(b: int, t: int, v: int, smoothing: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(b, t, 8, generator=random, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(v, 8, generator=random, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, v, (b, t), generator=random)
    targets[0, 0] = 2
    sums = projected_cross_entropy(hidden, weight, targets, smoothing, PAD)
    smoothed, nll = by_the_formula((hidden @ weight.T).detach(), targets, smoothing)
    assert float(sums.smoothed.detach()) == pytest.approx(smoothed, rel=1e-5)
    assert float(sums.nll) == pytest.approx(nll, rel=1e-5)
    assert sums.tokens == int((targets != PAD).sum())

    found = torch.autograd.grad(sums.smoothed, [hidden, weight])
    q = torch.full((b, t, v), smoothing / (v - 2), dtype=torch.float64)
    q[..., PAD] = 0.0
    q.scatter_(-1, targets[..., None], 1.0 - smoothing)
    rows = -(q * (hidden @ weight.T).log_softmax(-1)).sum(-1)
    expected = torch.autograd.grad(rows[targets != PAD].sum(), [hidden, weight])
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-4)


def test_chunks_add_up() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 2 * CHUNK + 7, 4), torch.randn(11, 4)
    targets = torch.randint(1, 11, (1, 2 * CHUNK + 7))
    whole = projected_cross_entropy(hidden, weight, targets, 0.1, PAD)
    smoothed, _ = by_the_formula(hidden @ weight.T, targets, 0.1)
    assert float(whole.smoothed) == pytest.approx(smoothed, rel=1e-5)


@pytest.mark.parametrize("width", [3, 12])
def test_padding_changes_neither_loss_nor_count(width: int) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(2, 12, 4), torch.randn(9, 4)
    targets = torch.zeros(2, 12, dtype=torch.long)
    targets[0, :3], targets[1, :1] = torch.tensor([4, 5, 2]), 2
    sums = projected_cross_entropy(hidden[:, :width], weight, targets[:, :width], 0.1, PAD)
    alone = [
        projected_cross_entropy(hidden[i : i + 1, :n], weight, targets[i : i + 1, :n], 0.1, PAD)
        for i, n in [(0, 3), (1, 1)]
    ]
    assert sums.tokens == 4
    assert float(sums.smoothed) == pytest.approx(sum(float(s.smoothed) for s in alone), abs=1e-5)


def test_without_smoothing_it_is_cross_entropy() -> None:
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(2, 5, 4), torch.randn(9, 4), torch.randint(1, 9, (2, 5))
    sums = projected_cross_entropy(hidden, weight, targets, 0.0, PAD)
    expected = torch.nn.functional.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten(), reduction="sum")
    assert float(sums.smoothed) == pytest.approx(float(expected), rel=1e-5)
    assert float(sums.nll) == pytest.approx(float(expected), rel=1e-5)


def test_a_uniform_network_has_the_entropy_of_the_vocabulary() -> None:
    sums = projected_cross_entropy(torch.zeros(1, 3, 4), torch.randn(50, 4), torch.tensor([[5, 6, 2]]), 0.1, PAD)
    assert float(sums.nll) / 3 == pytest.approx(math.log(50), rel=1e-5)
    assert float(sums.smoothed) / 3 == pytest.approx(math.log(50), rel=1e-5)

"""Muon (Jordan et al., 2024) for many small matrices: torch's update, orthogonalised in a chosen precision.

torch.optim.Muon works in bfloat16, one matrix after the other. A processor without products in bfloat16 spends almost
half of a small network's update there. Several processes each orthogonalise a share of the matrices.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from training.processes import Processes

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic that pushes singular values towards 1; they end between about 0.7 and 1.2."""
_ITERATIONS = 5
_EPSILON = 1e-7


class Muon(torch.optim.Muon):
    """`torch.optim.Muon` without weight decay, with Nesterov's momentum and updates of Adam's size (RMS 0.2)."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        dtype: torch.dtype,
        processes: Processes | None = None,
        momentum: float = 0.95,
    ) -> None:
        """Orthogonalise in `dtype`, a share in each of `processes`. The learning rate is the groups', 0 at first."""
        super().__init__(
            parameters,
            lr=0.0,
            weight_decay=0.0,
            momentum=momentum,
            adjust_lr_fn="match_rms_adamw",
            ns_steps=_ITERATIONS,
        )
        self._dtype = dtype
        self._processes = processes or Processes()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update of every matrix that has a gradient."""
        if closure is not None:
            raise ValueError("Muon must be stepped without a closure, but was given one.")
        for group in self.param_groups:
            matrices = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not matrices:
                continue
            directions = [self._direction(matrix, group["momentum"]) for matrix in matrices]
            updates = self._orthogonal(directions)
            sizes = [0.2 * math.sqrt(max(matrix.shape)) * group["lr"] for matrix in matrices]
            torch._foreach_mul_(updates, sizes)
            torch._foreach_sub_(matrices, updates)

    def _orthogonal(self, directions: list[Tensor]) -> list[Tensor]:
        """Every direction orthogonalised: those of one shape at once, and in each process only its share of them."""
        updates = [torch.zeros_like(direction) for direction in directions]
        alike: dict[torch.Size, list[int]] = defaultdict(list)
        for i, direction in enumerate(directions):
            alike[direction.shape].append(i)
        for numbers in alike.values():
            ours = [numbers[i] for i in self._processes.share(len(numbers))]
            if ours:
                found = orthogonalise(torch.stack([directions[i] for i in ours]), self._dtype)  # -> (N, R, C)
                for i, update in zip(ours, found, strict=True):
                    updates[i].copy_(update)
        self._processes.add(updates)  # what others did is zero here
        return updates

    def _direction(self, matrix: Tensor, momentum: float) -> Tensor:
        """The gradient with Nesterov's momentum."""
        assert matrix.grad is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix.grad)
        buffer: Tensor = state["momentum_buffer"].lerp_(matrix.grad, 1 - momentum)
        return matrix.grad.lerp(buffer, momentum)


def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Matrices with the same singular vectors and singular values of about 1: (N, R, C) -> (N, R, C), in `dtype`.

    Newton–Schulz: X ← aX + (bA + cA²)X with A = XXᵀ, begun at X / ‖X‖.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.transpose(1, 2) if tall else matrices).to(dtype)  # the short side first: A is small
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_EPSILON)
    for _ in range(_ITERATIONS):
        gram = x @ x.transpose(1, 2)  # (N, R, C) -> (N, R, R)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x

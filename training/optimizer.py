"""Updates of float32 master weights from gradients of any precision.

Adam with β 0.9 / 0.98 and ε 1e-9 (section 5.3), or Muon (Jordan et al., 2024) for the matrices of the layers with
Adam for the rest. bf16 has 8 bits of mantissa: a small update would vanish in it, so updates and moments live in
float32, and the network gets a rounded copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from training.moving import MovingAverage
from training.muon import Muon
from training.processes import Processes
from training.recipe import FitRecipe

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
"""Each precision of a recipe, as torch calls it."""


class MasterOptimizer:
    """float32 masters of a network's parameters, and the optimisers that move them."""

    def __init__(self, network: nn.Module, recipe: FitRecipe, processes: Processes | None = None) -> None:
        self.parameters = dict(network.named_parameters())
        self.masters = {
            name: parameter.detach().clone().float().requires_grad_() for name, parameter in self.parameters.items()
        }
        self.clip_norm = recipe.clip_norm
        self.moving = MovingAverage(recipe.ema, self.masters) if recipe.ema else None
        matrices = [name for name in self.masters if recipe.optimizer == "muon" and _is_layer_matrix(name)]
        rest = [self.masters[name] for name in self.masters if name not in set(matrices)]
        self.scales = [1.0]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(rest, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
        ]
        if matrices:
            self.scales.append(recipe.muon_scale)
            self.optimizers.append(Muon([self.masters[name] for name in matrices], DTYPES[recipe.precision], processes))

    def accumulate(self) -> None:
        """Add the network's gradients to the masters' and clear them."""
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            master = self.masters[name]
            gradient = parameter.grad.float()
            master.grad = gradient.clone() if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def gradients(self) -> list[Tensor]:
        """The masters' gradients, in one order for all processes; zeros where there is none yet."""
        for master in self.masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        return [master.grad for master in self.masters.values() if master.grad is not None]

    def update(self, learning_rate: float) -> float:
        """One update; returns the gradient's norm before clipping. A non-finite gradient changes nothing."""
        gradients = [master.grad for master in self.masters.values() if master.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if math.isfinite(norm):
            if self.clip_norm and norm > self.clip_norm:
                torch._foreach_mul_(gradients, self.clip_norm / norm)
            for optimizer, scale in zip(self.optimizers, self.scales, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate * scale
                optimizer.step()
            self.publish()
            if self.moving:
                self.moving.follow(self.masters)
        for master in self.masters.values():
            master.grad = None
        return norm

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the network."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.masters[name])

    @property
    def results(self) -> dict[str, Tensor]:
        """What the run has to show: the moving average of the masters if there is one, else the masters."""
        return self.moving.weights if self.moving and self.moving.updates else self.masters

    @contextmanager
    def showing_results(self) -> Iterator[None]:
        """The network has the weights of `results` inside, and the masters' before and after."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.results[name])
        try:
            yield
        finally:
            self.publish()

    @torch.no_grad()
    def begin_with(self, weights: dict[str, Tensor]) -> None:
        """Let the masters be `weights`, which must have their names and shapes; the moments stay at zero."""
        for name, master in self.masters.items():
            master.copy_(weights[name])
        self.publish()

    def state_dict(self) -> dict[str, Any]:
        """Masters and moments, to be saved."""
        return {
            "masters": {name: master.detach() for name, master in self.masters.items()},
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            **({"moving": self.moving.state_dict()} if self.moving else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`, bit for bit, of the same optimisers and averages."""
        if self.moving:
            self.moving.load_state_dict(state["moving"])
        self.begin_with(state["masters"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def _is_layer_matrix(name: str) -> bool:
    return ".layers." in name and name.endswith("weight") and ".norm_" not in name

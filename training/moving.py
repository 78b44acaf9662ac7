"""An exponential moving average of weights, which follows a run instead of averaging its last checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class MovingAverage:
    """After n updates Σ dⁿ⁻ᵏ θ_k / Σ dⁿ⁻ᵏ over k = 1 … n, in float32.

    The shares sum to 1 from the first update on, so that the random weights which a run begins with have no part in it
    (the bias correction of Adam, Kingma & Ba 2015, section 3).
    """

    def __init__(self, decay: float, weights: Mapping[str, Tensor]) -> None:
        self.decay = decay
        self.weights = {name: torch.zeros_like(value, requires_grad=False) for name, value in weights.items()}
        self.updates = 0

    @torch.no_grad()
    def follow(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights after one more update."""
        self.updates += 1
        share = (1.0 - self.decay) / (1.0 - self.decay**self.updates)
        torch._foreach_lerp_(list(self.weights.values()), [weights[name] for name in self.weights], share)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped."""
        return {"weights": self.weights, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`, bit for bit."""
        self.updates = state["updates"]
        for name, value in self.weights.items():
            value.copy_(state["weights"][name])

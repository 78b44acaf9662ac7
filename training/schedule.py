"""The learning rate of the paper, and a cool-down for runs whose end is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """lr(n) = scale · d_model^-½ · min(n^-½, n · warmup^-1.5) for update n = 1, 2, … (formula 3, section 5.3).

    With `cooldown` > 0 the last `cooldown` of `updates` updates are also multiplied by a line that falls to zero; the
    paper has none (`cooldown = 0`).
    """

    d_model: int
    warmup: int = 4000
    scale: float = 1.0
    updates: int = 0
    cooldown: int = 0

    def __call__(self, update: int) -> float:
        """The learning rate of `update`, counted from 1. Warm-up 0 starts at the decaying branch."""
        if update < 1:
            raise ValueError(f"updates count from 1, but update is {update}.")
        rising = update * self.warmup**-1.5 if self.warmup else float("inf")
        rate = self.scale * self.d_model**-0.5 * min(update**-0.5, rising)
        if self.cooldown:
            rate *= min(1.0, max(0.0, (self.updates - update + 1) / self.cooldown))
        return rate

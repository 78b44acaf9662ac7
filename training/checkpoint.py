"""Checkpoints: written whole or not at all, and refused when they belong to another run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class CheckpointError(Exception):
    """A checkpoint is missing, damaged, holds non-finite weights, or belongs to another run."""


def save_atomically(value: Any, path: Path) -> None:
    """`torch.save` to a neighbour, flushed to disk, then renamed: a reader sees the old file or the new one."""
    part = path.with_suffix(path.suffix + ".part")
    with part.open("wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(path: Path) -> Any:
    """The inverse of `save_atomically`; runs no code from the file."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"a checkpoint must be at {path}, but there is no file.") from error
    except Exception as error:
        raise CheckpointError(f"{path} must be a checkpoint, but cannot be read: {error}.") from error


def average(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights, in float32 (section 6.1)."""
    if not states:
        raise ValueError("at least one checkpoint must be given to average, but there is none.")
    return {name: torch.stack([state[name].float() for state in states]).mean(dim=0) for name in states[0]}


@dataclass(frozen=True)
class Result:
    """What a run has to show."""

    weights: dict[str, Tensor]
    averaged: int
    """Of how many checkpoints they are the mean."""
    best_update: int | None = None
    """The update with the least loss of the dev sets, if the run was to stop there (`patience`)."""


class Checkpoints:
    """The checkpoint folder of one run: `last.pt` to resume from, the newest weights to average, the best ones."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    @property
    def last(self) -> Path:
        """The full state of the newest checkpoint."""
        return self.folder / "last.pt"

    def weights(self) -> list[Path]:
        """Weights by age, oldest first."""
        return sorted(self.folder.glob("weights-*.pt"))

    def newest(self) -> Result:
        """The average of the newest checkpoints, or the newest moving average. Raises `CheckpointError` without one."""
        paths = self.weights()[-self.keep :]
        if not paths:
            raise CheckpointError(f"{self.folder} must hold at least one checkpoint, but has none; train longer.")
        return Result(average([load(path) for path in paths]), len(paths))

    def best(self) -> Result:
        """What was `newest` at the checkpoint that was saved last as the best one; `newest` itself if none was."""
        return Result(**load(self._best)) if self._best.is_file() else self.newest()

    @property
    def _best(self) -> Path:
        return self.folder / "best.pt"

    def save(self, update: int, state: dict[str, Any], weights: dict[str, Tensor], *, best: bool = False) -> None:
        """Write both, oldest weights beyond `keep` deleted. Refuses weights that are not finite."""
        broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
        if broken:
            raise CheckpointError(f"weights must be finite to be saved, but {', '.join(broken[:3])} are not.")
        self.folder.mkdir(parents=True, exist_ok=True)
        save_atomically(weights, self.folder / f"weights-{update:08d}.pt")
        if best:  # before the state that knows of it: what is resumed finds it, or finds it again
            found = self.newest()
            save_atomically({"weights": found.weights, "averaged": found.averaged, "best_update": update}, self._best)
        save_atomically(state, self.last)
        for old in self.weights()[: -self.keep]:
            old.unlink()

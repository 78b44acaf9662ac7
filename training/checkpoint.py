"""Checkpoints: written whole or not at all, and refused when they belong to another run."""

from __future__ import annotations

import os
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


class Checkpoints:
    """The checkpoint folder of one run: `last.pt` to resume from, and the newest weights to average."""

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

    def save(self, update: int, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Write both, oldest weights beyond `keep` deleted. Refuses weights that are not finite."""
        broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
        if broken:
            raise CheckpointError(f"weights must be finite to be saved, but {', '.join(broken[:3])} are not.")
        self.folder.mkdir(parents=True, exist_ok=True)
        save_atomically(weights, self.folder / f"weights-{update:08d}.pt")
        save_atomically(state, self.last)
        for old in self.weights()[: -self.keep]:
            old.unlink()

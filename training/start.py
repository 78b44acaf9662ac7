"""Weights to begin with: those of a bundle or of another run, in place of random ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from model.bundle import MANIFEST, Bundle
from model.config import ModelConfig
from model.export.recover import recover_state_dict
from model.tokenizer import Tokenizer
from training.checkpoint import CheckpointError
from training.publish import Run


def starting_weights(folder: Path, config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The weights that `folder` (a bundle, or a run: its averaged checkpoints) holds, for a network of `config`.

    The vocabulary may have grown at its end since: a new id begins as the mean of all others, so that it is neither
    likely nor unlikely. Raises `CheckpointError` when the shape of the network or the vocabulary is another one.
    """
    weights, found, before = _read(folder)
    if replace(found, vocab_size=config.vocab_size, dropout=config.dropout) != config:
        raise CheckpointError(
            f"the network must have the shape of {folder} to go on from it, but is {config.to_dict()} and there "
            f"{found.to_dict()}; give [model] the same values."
        )
    old, new = (kind.pieces(range(kind.vocab_size)) for kind in (before, tokenizer))
    if new[: len(old)] != old:
        raise CheckpointError(
            f"the tokenizer must be that of {folder}, or the same with more pieces at its end; copy it from there."
        )
    return {name: _grown(value, len(new)) if _is_table(name) else value for name, value in weights.items()}


def name_of(folder: Path) -> str:
    """What a card calls what a run began with: name and version of a bundle, or the name of a run's folder."""
    if (folder / MANIFEST).is_file():
        manifest = Bundle.open(folder, verify=False).manifest
        return f"{manifest.name} {manifest.version}"
    return f"the run {folder.name}"


def _read(folder: Path) -> tuple[dict[str, Tensor], ModelConfig, Tokenizer]:
    if (folder / MANIFEST).is_file():
        bundle = Bundle.open(folder)
        arrays = recover_state_dict(bundle)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, bundle.config, bundle.tokenizer()
    run = Run.open(folder)
    return run.result().weights, run.config, Tokenizer(run.tokenizer)


def _is_table(name: str) -> bool:
    return name in ("embedding.weight", "target_embedding.weight", "projection.weight")


def _grown(table: Tensor, size: int) -> Tensor:
    """(V, D) -> (size, D)."""
    return torch.cat([table, table.mean(dim=0).expand(size - len(table), -1)])

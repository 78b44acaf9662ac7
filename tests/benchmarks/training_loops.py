"""The loops that `bench_training` compares: ours as `dragoman-train fit` runs it, and a plain one of the same network.

The plain loop is what one writes first: float32 weights, autocast where asked for, all logits at once, torch's own
cross-entropy and Adam, and the batches of ours in the same order, so that only the loop differs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from model.nn.transformer import Transformer
from tests.benchmarks.training_text import Task, of_precision
from training.batches import Pairs, collate, plan_epoch
from training.checkpoint import Checkpoints
from training.processes import Processes
from training.schedule import Schedule
from training.trainer import Trainer
from training.validate import validate


@dataclass(frozen=True)
class Counted:
    """Target tokens of one update."""

    real: int
    """EOS counted, padding not."""
    padded: int


class Loop(Protocol):
    """One side of the comparison."""

    def update(self) -> Counted:
        """Forward, backward and optimiser for one batch."""
        ...


def padded_targets(pairs: Pairs, numbers: NDArray[np.int64]) -> int:
    """Target tokens of a batch with its padding: (B, T) -> B · T."""
    return len(numbers) * int(pairs.target_lengths[numbers].max())


class Ours:
    """The `Trainer` itself."""

    def __init__(self, task: Task, precision: str, processes: Processes | None = None) -> None:
        self.task = task
        self.trainer = Trainer(task.config, of_precision(task, precision), task.pairs, processes)
        self._next, self._numbers = self.trainer.next_batch, np.empty(0, dtype=np.int64)
        self.trainer.next_batch = self._noting  # type: ignore[method-assign]

    def _noting(self) -> NDArray[np.int64]:
        self._numbers = self._next()
        return self._numbers

    def update(self) -> Counted:
        """One update of the trainer."""
        return Counted(self.trainer.update().tokens, padded_targets(self.trainer.pairs, self._numbers))

    def overhead(self) -> float:
        """Seconds that validation and checkpoints add to an update when they come as often as the recipe says."""
        recipe, task = self.trainer.recipe, self.task
        started = time.perf_counter()
        validate(self.trainer.network, task.tokenizer, task.dev_sets, recipe.validate_sentences)
        validating = time.perf_counter() - started
        with TemporaryDirectory() as folder:
            started = time.perf_counter()
            state = {"trainer": self.trainer.state_dict()}
            Checkpoints(Path(folder), 1).save(1, state, self.trainer.optimizer.state_dict()["masters"])
            saving = time.perf_counter() - started
        return validating / recipe.validate_every + saving / recipe.checkpoint_every


class Plain:
    """The loop that one writes first."""

    def __init__(self, task: Task, precision: str) -> None:
        recipe = task.recipe
        torch.manual_seed(recipe.seed)
        self.task, self.autocast = task, precision == "bf16"
        self.pairs = task.pairs.of_epoch(recipe.seed, 0)
        self.plan = plan_epoch(self.pairs, recipe.batch_tokens, recipe.seed, 0)
        self.network = Transformer(task.config).train()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9)
        self.schedule = Schedule(task.config.d_model, recipe.warmup, recipe.learning_rate_scale)
        self.done = 0

    def update(self) -> Counted:
        """One batch of the plan, which begins again at its end."""
        numbers = self.plan[self.done % len(self.plan)]
        self.done += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(self.done)
        batch = collate(self.pairs, numbers, self.task.config)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            logits = self.network(batch.source, batch.source_lengths, batch.target_in)  # -> (B, T, V)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(),  # (B, T, V) -> (B·T, V)
                batch.target_out.flatten(),  # (B, T) -> (B·T)
                ignore_index=self.task.config.pad_id,
                label_smoothing=self.task.recipe.label_smoothing,
            )
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Counted(int(self.pairs.target_lengths[numbers].sum()), padded_targets(self.pairs, numbers))


def loops(task: Task) -> dict[str, Loop]:
    """Every loop that runs in this process, by the name in the table."""
    return {
        "ours, f32": Ours(task, "f32"),
        "plain, f32": Plain(task, "f32"),
        "ours, bf16": Ours(task, "bf16"),
        "plain, autocast bf16": Plain(task, "bf16"),
    }


def smaller(task: Task, batch_tokens: int) -> Task:
    """The same with smaller batches."""
    return replace(task, recipe=replace(task.recipe, batch_tokens=batch_tokens))

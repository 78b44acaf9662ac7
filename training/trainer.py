"""One optimiser update after the other (section 5): deterministic, exact over micro-batches and processes.

The gradient of an update is Σ loss / Σ real target tokens over all its micro-batches, whichever process computes them.
The dropout of a micro-batch depends on the seed, the update and its number alone, so a run is the same whatever the
number of processes, up to the order of additions; and resuming it needs no state of a random generator. There are no
data workers: every process plans all batches itself. A run that is resumed with as many processes as before goes on
bit for bit, in the middle of an epoch too; with another number it has the same batches, and losses to 1e-5.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model.config import ModelConfig
from model.nn.transformer import Transformer
from training.batches import Batch, Pairs, collate, micro_batches, plan_epoch
from training.checkpoint import CheckpointError
from training.device import compiles, training_device
from training.flops import training_flops
from training.objective import projected_cross_entropy
from training.optimizer import DTYPES, MasterOptimizer
from training.processes import Processes
from training.recipe import FitRecipe, RecipeError
from training.schedule import Schedule


class DivergenceError(Exception):
    """Loss or gradient was not finite for too many updates in a row."""


@dataclass
class Position:
    """Where a run stands. With the seed it names the next batch."""

    update: int = 0
    """Updates done."""
    epoch: int = 0
    batch: int = 0
    """Batches of the epoch already used."""
    target_tokens: int = 0
    """Real target tokens seen."""
    bad_updates: int = 0
    """Updates in a row that were skipped."""
    skipped: int = 0
    """Updates skipped in all."""
    best_nll: float = math.inf
    """Least mean loss of the dev sets at any validation."""
    stale: int = 0
    """Validations since then."""


@dataclass(frozen=True)
class UpdateReport:
    """What one update saw."""

    nll: float
    """Per target token, without smoothing."""
    smoothed: float
    gradient_norm: float
    learning_rate: float
    tokens: int
    flops: float
    """Operations that its real tokens need."""


class Trainer:
    """A network, its optimiser and its place in the data; everything a checkpoint holds."""

    def __init__(
        self, config: ModelConfig, recipe: FitRecipe, pairs: Pairs, processes: Processes | None = None
    ) -> None:
        _check_length(config, recipe)
        torch.manual_seed(recipe.seed)
        self.config, self.recipe, self.pairs = config, recipe, pairs
        self.processes = processes or Processes()
        _check_share(recipe, self.processes.count)
        self.device = training_device(recipe.device)
        network = Transformer(config).to(self.device)
        self.optimizer = MasterOptimizer(network, recipe, self.processes)
        self.network = network.to(DTYPES[recipe.precision]).train()
        # Lengths differ from batch to batch: one compiled graph for all of them.
        compiled = compiles(recipe, self.device)
        self._forward: Any = torch.compile(self._through, dynamic=True) if compiled else self._through
        self.schedule = Schedule(
            config.d_model, recipe.warmup, recipe.learning_rate_scale, recipe.updates, recipe.cooldown
        )
        self.at = Position()
        self._plan: tuple[int, list[NDArray[np.int64]]] | None = None

    def next_batch(self) -> NDArray[np.int64]:
        """The pair numbers of the next update, and one step on."""
        if self._plan is None or self._plan[0] != self.at.epoch:
            recipe = self.recipe
            self.pairs = self.pairs.of_epoch(recipe.seed, self.at.epoch)
            self._plan = (self.at.epoch, plan_epoch(self.pairs, recipe.batch_tokens, recipe.seed, self.at.epoch))
        batches = self._plan[1]
        numbers = batches[self.at.batch]
        self.at.batch += 1
        if self.at.batch == len(batches):
            self.at.epoch, self.at.batch = self.at.epoch + 1, 0
        return numbers

    @property
    def epoch_share(self) -> float:
        """How much of the running epoch is done, 0 to 1."""
        return self.at.batch / len(self._plan[1]) if self._plan and self.at.batch else 0.0

    @property
    def done(self) -> bool:
        """Whether all updates are done, or the dev sets have not become better for `patience` validations."""
        return self.at.update >= self.recipe.updates or 0 < self.recipe.patience <= self.at.stale

    def judge(self, nll: float) -> bool:
        """Note a validation: the mean loss of the dev sets. Only that of the first process counts, for all of them.

        Returns whether it is the best so far.
        """
        found = torch.tensor([nll if self.processes.first else 0.0], dtype=torch.float64, device=self.device)
        self.processes.add([found])
        better = float(found) < self.at.best_nll
        self.at.best_nll, self.at.stale = (float(found), 0) if better else (self.at.best_nll, self.at.stale + 1)
        return better

    def update(self) -> UpdateReport:
        """One optimiser update. Its micro-batches are dealt out to the processes, and every one gets the whole sum."""
        numbers = self.next_batch()
        parts = micro_batches(numbers, self.pairs, self.recipe.micro_batch_tokens)
        tokens = sum(int(self.pairs.target_lengths[part].sum()) for part in parts)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        for number in self.processes.share(len(parts)):
            sums += self._backward(parts[number], number, tokens)
        self.processes.add([sums, *self.optimizer.gradients()])
        smoothed, nll = sums.tolist()
        rate = self.schedule(self.at.update + 1)
        norm = self.optimizer.update(rate)
        self._count(tokens, finite=math.isfinite(smoothed) and math.isfinite(norm))
        flops = training_flops(self.config, self.pairs.source_lengths[numbers], self.pairs.target_lengths[numbers])
        return UpdateReport(nll / tokens, smoothed / tokens, norm, rate, tokens, flops)

    def _backward(self, part: NDArray[np.int64], number: int, tokens: int) -> torch.Tensor:
        """Add the gradient of one micro-batch; its loss sums with and without smoothing (2)."""
        torch.manual_seed(int(np.random.default_rng([self.recipe.seed, self.at.update, number]).integers(1 << 62)))
        sums = self.loss(collate(self.pairs, part, self.config).to(self.device))
        (sums.smoothed / tokens).backward()  # type: ignore[no-untyped-call]
        self.optimizer.accumulate()
        return torch.stack([sums.smoothed.detach(), sums.nll.detach()]).double()

    def loss(self, batch: Batch) -> Any:
        """Loss sums of one batch, through the network as it is (dropout on while training)."""
        hidden = self._forward(batch.source, batch.source_lengths, batch.target_in)
        smoothing, pad_id = self.recipe.label_smoothing, self.config.pad_id
        return projected_cross_entropy(hidden, self.network.output_weight, batch.target_out, smoothing, pad_id)

    def _through(self, source: torch.Tensor, source_lengths: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Encoder and decoder: source (B, S), source_lengths (B), target_in (B, T) -> (B, T, D)."""
        return self.network.hidden(target_in, self.network.encode(source, source_lengths), source_lengths)

    def _count(self, tokens: int, *, finite: bool) -> None:
        self.at.update += 1
        self.at.target_tokens += tokens
        self.at.bad_updates = 0 if finite else self.at.bad_updates + 1
        self.at.skipped += not finite
        if self.at.bad_updates >= self.recipe.max_bad_updates:
            raise DivergenceError(
                f"loss and gradient must be finite, but were not for {self.at.bad_updates} updates in a row, the last "
                f"one {self.at.update}; lower [fit] learning_rate_scale or raise warmup. The last checkpoint is good."
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if never stopped."""
        return {
            "at": asdict(self.at),
            "config": self.config.to_dict(),
            "recipe": asdict(self.recipe),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state["config"] != self.config.to_dict():
            raise CheckpointError(
                f"a run must be resumed with its own model, but it is {state['config']} and the recipe says "
                f"{self.config.to_dict()}; use another run folder."
            )
        for name in ("optimizer", "ema"):
            had, asked = state["recipe"][name], getattr(self.recipe, name)
            if had != asked:
                raise CheckpointError(
                    f"a run must keep its [fit] {name} from the first update on, but it is {had} and the recipe says "
                    f"{asked}; give it that value, or use another run folder."
                )
        self.optimizer.load_state_dict(state["optimizer"])
        self.at = Position(**state["at"])


def _check_length(config: ModelConfig, recipe: FitRecipe) -> None:
    """Refuse pairs for whose tokens the network has no positions."""
    if recipe.max_length > config.max_positions:
        raise RecipeError(
            f"[fit] max_length must be at most [model] max_positions ({config.max_positions}), but is "
            f"{recipe.max_length}."
        )


def _check_share(recipe: FitRecipe, count: int) -> None:
    """Refuse micro-batches so large that a process would often have nothing to do."""
    largest = min(recipe.micro_batch_tokens or recipe.batch_tokens, recipe.batch_tokens)
    if largest * count > recipe.batch_tokens:
        raise RecipeError(
            f"[fit] micro_batch_tokens must be at most batch_tokens / {count} for {count} processes "
            f"({recipe.batch_tokens // count}), but is {recipe.micro_batch_tokens or 'the whole batch'}."
        )

"""The training loop (section 5): deterministic, resumable bit for bit, and never saving a broken model."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from model.bundle import sha256
from model.config import ModelConfig
from model.nn.transformer import Transformer
from model.tokenizer import Tokenizer
from training.batches import Batch, Pairs, collate, encode_pairs, micro_batches, plan_epoch, read_pairs
from training.checkpoint import CheckpointError, Checkpoints, load
from training.corpus.errors import CorpusError
from training.journal import Journal
from training.objective import projected_cross_entropy
from training.optimizer import MasterOptimizer
from training.protect import preparation
from training.recipe import FitRecipe, NoiseRecipe, ProtectRecipe, RecipeError, model_config
from training.schedule import Schedule
from training.start import starting_weights
from training.validate import DevSet, read_dev_sets, validate

_DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


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


@dataclass(frozen=True)
class UpdateReport:
    """What one update saw."""

    nll: float
    """Per target token, without smoothing."""
    smoothed: float
    gradient_norm: float
    learning_rate: float
    tokens: int


class Trainer:
    """A network, its optimiser and its place in the data; everything a checkpoint holds."""

    def __init__(self, config: ModelConfig, recipe: FitRecipe, pairs: Pairs) -> None:
        torch.manual_seed(recipe.seed)
        self.config, self.recipe, self.pairs = config, recipe, pairs
        self.device = _device(recipe.device)
        network = Transformer(config).to(self.device)
        self.optimizer = MasterOptimizer(network, recipe)
        self.network = network.to(_DTYPES[recipe.precision]).train()
        self.schedule = Schedule(
            config.d_model, recipe.warmup, recipe.learning_rate_scale, recipe.updates, recipe.cooldown
        )
        self.at = Position()
        self._plan: tuple[int, list[NDArray[np.int64]]] | None = None

    def next_batch(self) -> NDArray[np.int64]:
        """The pair numbers of the next update, and one step on."""
        if self._plan is None or self._plan[0] != self.at.epoch:
            recipe = self.recipe
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

    def update(self) -> UpdateReport:
        """One optimiser update. Its gradient is Σ loss / Σ real target tokens over *all* its micro-batches."""
        numbers = self.next_batch()
        batches = [
            collate(self.pairs, part, self.config).to(self.device)
            for part in micro_batches(numbers, self.pairs, self.recipe.micro_batch_tokens)
        ]
        tokens = sum(batch.target_tokens for batch in batches)
        smoothed = nll = 0.0
        for batch in batches:
            sums = self.loss(batch)
            (sums.smoothed / tokens).backward()  # type: ignore[no-untyped-call]
            self.optimizer.accumulate()
            smoothed += float(sums.smoothed.detach())
            nll += float(sums.nll)
        rate = self.schedule(self.at.update + 1)
        norm = self.optimizer.update(rate)
        self._count(tokens, finite=math.isfinite(smoothed) and math.isfinite(norm))
        return UpdateReport(nll / tokens, smoothed / tokens, norm, rate, tokens)

    def loss(self, batch: Batch) -> Any:
        """Loss sums of one batch, through the network as it is (dropout on while training)."""
        memory = self.network.encode(batch.source, batch.source_lengths)
        hidden = self.network.hidden(batch.target_in, memory, batch.source_lengths)
        smoothing, pad_id = self.recipe.label_smoothing, self.config.pad_id
        return projected_cross_entropy(hidden, self.network.output_weight, batch.target_out, smoothing, pad_id)

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
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state() if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        if state["config"] != self.config.to_dict():
            raise CheckpointError(
                f"a run must be resumed with its own model, but it is {state['config']} and the recipe says "
                f"{self.config.to_dict()}; use another run folder."
            )
        self.optimizer.load_state_dict(state["optimizer"])
        self.at = Position(**state["at"])
        torch.set_rng_state(state["random"])
        if self.device.type == "cuda" and state["random_cuda"] is not None:
            torch.cuda.set_rng_state(state["random_cuda"])


def _device(asked: str) -> torch.device:
    """Where to train. Raises `RecipeError` when CUDA is asked for and not there: a silent CPU run would take weeks."""
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise RecipeError("[fit] device is cuda, but torch finds none; install a CUDA build or say cpu or auto.")
    return torch.device("cuda" if asked != "cpu" and there else "cpu")


@dataclass(frozen=True)
class RunFolder:
    """What a run reads and where it writes."""

    corpus: Path
    tokenizer: Path
    out: Path
    languages: tuple[str, str]
    start: Path | None = None
    """A bundle or a run whose weights are begun with; random ones if not given."""


@dataclass(frozen=True)
class TextRecipe:
    """What is done to the text of pairs before they are ids."""

    protect: ProtectRecipe = field(default_factory=ProtectRecipe)
    noise: NoiseRecipe = field(default_factory=NoiseRecipe)

    def identity(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """What of it shows in the ids that `tokenizer` makes; nothing where nothing is done."""
        protect = {"protect": asdict(self.protect)} if tokenizer.sentinel_ids and self.protect.enabled else {}
        return {**protect, **({"noise": asdict(self.noise)} if self.noise else {})}


def fit(
    config_values: dict[str, Any], recipe: FitRecipe, folder: RunFolder, text_recipe: TextRecipe | None = None
) -> Position:
    """Train until `recipe.updates`, going on from the last checkpoint in `folder.out` if there is one."""
    text_recipe = text_recipe or TextRecipe()
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    tokenizer = Tokenizer(folder.tokenizer)
    config = model_config(config_values, tokenizer.vocab_size)
    source, target = folder.languages
    text = read_pairs(folder.corpus / f"train.{source}", folder.corpus / f"train.{target}")
    prepare = preparation(tokenizer, text_recipe.protect, text_recipe.noise, recipe.seed)
    pairs = encode_pairs(text, tokenizer, recipe.max_length, prepare)
    if not pairs:
        raise CorpusError(
            f"{folder.corpus} must hold at least one pair of at most {recipe.max_length} tokens a side, but holds none."
        )
    dev_sets = read_dev_sets(folder.corpus, tokenizer, folder.languages, recipe.max_length)
    trainer = Trainer(config, recipe, pairs)
    if folder.start:
        trainer.optimizer.begin_with(starting_weights(folder.start, config, tokenizer))
    checkpoints = Checkpoints(folder.out / "checkpoints", recipe.average)
    identity = {**_identity(folder, recipe, pairs), **text_recipe.identity(tokenizer)}
    seconds = _resume(trainer, checkpoints, identity)
    folder.out.mkdir(parents=True, exist_ok=True)
    _describe(folder, config, recipe, identity)
    journal = Journal(folder.out, recipe.updates, trainer.at.update)
    try:
        _run(trainer, Surroundings(tokenizer, dev_sets, checkpoints, journal, identity, seconds))
    finally:
        journal.close()
    return trainer.at


def _identity(folder: RunFolder, recipe: FitRecipe, pairs: Pairs) -> dict[str, Any]:
    """What a place in the data depends on: the text, its ids, and all that orders the batches."""
    return {
        "tokenizer": sha256(folder.tokenizer),
        "text": [sha256(folder.corpus / f"train.{language}") for language in folder.languages],
        "pairs": len(pairs),
        "order": [recipe.seed, recipe.batch_tokens, recipe.max_length],
    }


def _resume(trainer: Trainer, checkpoints: Checkpoints, identity: dict[str, Any]) -> float:
    """Go on from the last checkpoint, if there is one; the seconds trained before."""
    if not checkpoints.last.is_file():
        return 0.0
    state = load(checkpoints.last)
    if state["identity"] != identity:
        raise CheckpointError(
            f"a run must be resumed with its own tokenizer and corpus, [protect] and [noise], seed, batch_tokens and "
            f"max_length ({state['identity']}), but found {identity}; use another run folder."
        )
    trainer.load_state_dict(state["trainer"])
    seconds: float = state["seconds"]
    return seconds


def _describe(folder: RunFolder, config: ModelConfig, recipe: FitRecipe, identity: dict[str, Any]) -> None:
    """`run.json`: what `publish` needs to know, and what a reader wants to."""
    description = {
        "model": config.to_dict(),
        "fit": asdict(recipe),
        "languages": folder.languages,
        "corpus": str(folder.corpus.resolve()),
        "tokenizer_path": str(folder.tokenizer.resolve()),
        "start": str(folder.start.resolve()) if folder.start else None,
        **identity,
    }
    (folder.out / "run.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Surroundings:
    """What a run reports to and is measured with."""

    tokenizer: Tokenizer
    dev_sets: list[DevSet]
    checkpoints: Checkpoints
    journal: Journal
    identity: dict[str, Any]
    seconds: float
    """Trained before this start."""


def _run(trainer: Trainer, around: Surroundings) -> None:
    recipe, at = trainer.recipe, trainer.at
    speed, started = _Speed(), time.monotonic()
    while at.update < recipe.updates:
        report = trainer.update()
        around.journal.advance(report.nll, speed(report.tokens))
        last = at.update == recipe.updates
        if at.update % 20 == 0 or last:
            values = {**asdict(report), "target_tokens": at.target_tokens, "tokens_per_second": round(speed.value)}
            around.journal.note(at.update, "train", {**values, "epoch": at.epoch, "skipped": at.skipped})
        if at.update % recipe.checkpoint_every == 0 or last:
            _save(trainer, around, time.monotonic() - started)
        if at.update % recipe.validate_every == 0 or last:
            _validate(trainer, around)
            speed.restart()


def _save(trainer: Trainer, around: Surroundings, seconds: float) -> None:
    state = {
        "trainer": trainer.state_dict(),
        "identity": around.identity,
        "seconds": around.seconds + seconds,
        "epoch_share": trainer.epoch_share,
    }
    around.checkpoints.save(trainer.at.update, state, trainer.optimizer.state_dict()["masters"])


def _validate(trainer: Trainer, around: Surroundings) -> None:
    found = validate(trainer.network, around.tokenizer, around.dev_sets, trainer.recipe.validate_sentences)
    for name, measured in found.items():
        scores = measured.scores.to_dict() if measured.scores else {}
        around.journal.note(trainer.at.update, f"dev.{name}", {"nll": round(measured.nll, 4), **scores})


class _Speed:
    """Target tokens a second over the last updates."""

    def __init__(self) -> None:
        self.value = 0.0
        self.restart()

    def restart(self) -> None:
        """Forget what went before, such as a validation."""
        self._marks: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=50)

    def __call__(self, tokens: int) -> float:
        self._marks.append((time.monotonic(), tokens))
        seconds = self._marks[-1][0] - self._marks[0][0]
        if seconds > 0:
            self.value = sum(count for _, count in list(self._marks)[1:]) / seconds
        return self.value

"""`fit`: from a corpus and a recipe to checkpoints; resumable bit for bit, and never saving a broken model."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.bundle import sha256
from model.config import ModelConfig
from model.tokenizer import Tokenizer
from training.batches import Pairs, encode_pairs, read_pairs
from training.checkpoint import CheckpointError, Checkpoints, load
from training.corpus.errors import CorpusError
from training.curves import draw_curves
from training.flops import peak_flops
from training.journal import Journal
from training.kept_arrays import KeptArrays
from training.processes import Processes, joined
from training.protect import preparation
from training.recipe import FitRecipe, NoiseRecipe, ProtectRecipe, RecipeError, model_config
from training.sampling import SubwordSampler, unigram_cuts
from training.speed import Speed
from training.start import name_of, starting_weights
from training.trainer import Position, Trainer, UpdateReport
from training.validate import DevSet, read_dev_sets, validate
from training.weights import line_weights

NOTE_EVERY = 20
"""Updates between two lines of the log about training itself."""


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
    """What is done to the text of pairs before they are ids, and how often they are shown."""

    protect: ProtectRecipe = field(default_factory=ProtectRecipe)
    noise: NoiseRecipe = field(default_factory=NoiseRecipe)
    weights: Mapping[str, float] = field(default_factory=dict)
    """Source → how often an epoch shows its pairs; 1 for sources that are not named."""

    def identity(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """What of it shows in the ids that `tokenizer` makes, or in their order; nothing where nothing is done."""
        protect = {"protect": asdict(self.protect)} if tokenizer.sentinel_ids and self.protect.enabled else {}
        weights = {"weights": dict(self.weights)} if self.weights else {}
        return {**protect, **({"noise": asdict(self.noise)} if self.noise else {}), **weights}


def fit(
    config_values: dict[str, Any], recipe: FitRecipe, folder: RunFolder, text_recipe: TextRecipe | None = None
) -> Position:
    """Train until `recipe.updates`, going on from the last checkpoint in `folder.out` if there is one."""
    with joined(recipe.device) as processes:
        return _fit(config_values, recipe, folder, text_recipe or TextRecipe(), processes)


def _fit(
    config_values: dict[str, Any],
    recipe: FitRecipe,
    folder: RunFolder,
    text_recipe: TextRecipe,
    processes: Processes,
) -> Position:
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    tokenizer = Tokenizer(folder.tokenizer)
    config = model_config(config_values, tokenizer.vocab_size)
    checkpoints = Checkpoints(folder.out / "checkpoints", recipe.average)
    identity = _identity(folder, recipe, text_recipe, tokenizer)
    begun = _begun(checkpoints, identity)
    start = _start(folder, begun)
    dev_sets = _dev_sets(folder, recipe, tokenizer)
    kept = None if recipe.subword_sampling else KeptArrays(folder.out / "pairs", identity)  # sampled ids are never old
    pairs = _pairs(kept, partial(_encoded, folder, recipe, text_recipe, tokenizer), processes)
    pairs = _weighted(pairs, folder, text_recipe)
    identity["pairs"] = len(pairs)
    trainer = Trainer(config, recipe, pairs, processes)
    if begun:
        trainer.load_state_dict(begun["trainer"])
    elif folder.start:
        trainer.optimizer.begin_with(starting_weights(folder.start, config, tokenizer))
    seconds = begun["seconds"] if begun else 0.0
    processes.wait()  # all have read before the first one writes
    if not processes.first:
        _run(trainer, None)
        return trainer.at
    folder.out.mkdir(parents=True, exist_ok=True)
    left_out = pairs.lines - len(pairs)
    _describe(folder, config, recipe, {"start": start, "left_out": left_out, **identity})
    journal = Journal(folder.out, recipe.updates, trainer.at.update)
    if left_out:
        journal.say(f"{left_out:,} of {pairs.lines:,} pairs are left out, over {recipe.max_length} tokens a side.")
    try:
        _run(trainer, Surroundings(tokenizer, dev_sets, checkpoints, journal, identity, seconds, start))
    finally:
        journal.close()
    return trainer.at


def _pairs(kept: KeptArrays | None, encode: Callable[[], Pairs], processes: Processes) -> Pairs:
    """What `encode` makes: by the first process alone, and once for a run, where it can be kept."""
    if kept is None:
        return encode()
    if processes.first and not kept.there:
        kept.write(encode().arrays())
    processes.wait()
    # Another machine may not see the run folder of the first process.
    return Pairs.of_arrays(kept.read()) if kept.there else encode()


def _weighted(pairs: Pairs, folder: RunFolder, text_recipe: TextRecipe) -> Pairs:
    weights = line_weights(folder.corpus / "train.origin", text_recipe.weights, pairs.lines)
    return pairs if weights is None else replace(pairs, weights=np.array(weights)[pairs.numbers])


def _encoded(folder: RunFolder, recipe: FitRecipe, text_recipe: TextRecipe, tokenizer: Tokenizer) -> Pairs:
    source, target = folder.languages
    text = read_pairs(folder.corpus / f"train.{source}", folder.corpus / f"train.{target}")
    prepare = preparation(tokenizer, text_recipe.protect, text_recipe.noise, recipe.seed)
    sampler = None
    if recipe.subword_sampling:
        sampler = SubwordSampler(unigram_cuts(tokenizer), recipe.subword_sampling, recipe.max_length)
    pairs = encode_pairs(text, tokenizer, recipe.max_length, prepare, sampler)
    if not pairs:
        raise CorpusError(
            f"{folder.corpus} must hold at least one pair of at most {recipe.max_length} tokens a side, but holds none."
        )
    return pairs


def _dev_sets(folder: RunFolder, recipe: FitRecipe, tokenizer: Tokenizer) -> list[DevSet]:
    """The dev sets of the corpus. Raises `RecipeError` where there is none to judge by, and `patience` wants one."""
    found = read_dev_sets(folder.corpus, tokenizer, folder.languages, recipe.max_length)
    if recipe.patience and not any(dev.pairs for dev in found):
        raise RecipeError(
            f"[fit] patience needs a dev set to judge by, but {folder.corpus} has no dev pair of at most "
            f"{recipe.max_length} tokens; hold some out ([holdout.NAME] dev = 100), or leave patience at 0."
        )
    return found


def _identity(folder: RunFolder, recipe: FitRecipe, text_recipe: TextRecipe, tokenizer: Tokenizer) -> dict[str, Any]:
    """What a place in the data depends on: the text, its ids, and all that orders the batches."""
    return {
        "tokenizer": sha256(folder.tokenizer),
        "text": [_digest(folder.corpus / f"train.{language}") for language in folder.languages],
        "order": [recipe.seed, recipe.batch_tokens, recipe.max_length],
        **({"subword_sampling": recipe.subword_sampling} if recipe.subword_sampling else {}),
        **text_recipe.identity(tokenizer),
        **({"origins": _digest(folder.corpus / "train.origin")} if text_recipe.weights else {}),
    }


def _digest(path: Path) -> str:
    """SHA-256 of a file of the corpus. Raises `CorpusError` if it is not there."""
    try:
        return sha256(path)
    except FileNotFoundError as error:
        raise CorpusError(f"a file must be at {path}, but there is none.") from error


def _begun(checkpoints: Checkpoints, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The last checkpoint, if there is one; refused before anything is encoded anew if it belongs to other pairs."""
    if not checkpoints.last.is_file():
        return None
    state: dict[str, Any] = load(checkpoints.last)
    found = {name: value for name, value in state["identity"].items() if name != "pairs"}
    if found != identity:
        raise CheckpointError(
            f"a run must be resumed with its own tokenizer and corpus, [protect], [noise] and weights, seed, "
            f"batch_tokens, max_length and subword_sampling ({found}), but found {identity}; use another run folder."
        )
    return state


def _start(folder: RunFolder, begun: dict[str, Any] | None) -> str | None:
    """What the run began with, as a card calls it; None: random weights. It stays so, whatever goes on with the run."""
    asked = name_of(folder.start) if folder.start else None
    had: str | None = begun.get("start", asked) if begun else asked  # an older checkpoint does not say
    if asked not in (None, had):
        raise CheckpointError(
            f"a run must go on with its own weights, which began with {had or 'random ones'}, but --from names "
            f"{asked}; leave it out, or use another run folder."
        )
    return had


def _describe(folder: RunFolder, config: ModelConfig, recipe: FitRecipe, more: dict[str, Any]) -> None:
    """`run.json`: what `publish` needs to know, and what a reader wants to."""
    description = {
        "model": config.to_dict(),
        "fit": asdict(recipe),
        "languages": folder.languages,
        "corpus": str(folder.corpus.resolve()),
        "tokenizer_path": str(folder.tokenizer.resolve()),
        **more,
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
    start: str | None
    """What the run began with."""


def _run(trainer: Trainer, around: Surroundings | None) -> None:
    """Train to the end; only the first process has surroundings to report to."""
    recipe, at = trainer.recipe, trainer.at
    speed, started = Speed(), time.monotonic()
    peak = peak_flops(trainer.device, recipe.precision, recipe.peak_flops) * trainer.processes.count
    while not trainer.done:
        report = trainer.update()
        speed.count(report)
        if around:
            _note(trainer, around, report, speed.values(peak))
        best = False
        if at.update % recipe.validate_every == 0 or at.update == recipe.updates:
            best = trainer.judge(_validate(trainer, around) if around else 0.0) and recipe.patience > 0
            speed.restart()
        if around and (best or at.update % recipe.checkpoint_every == 0 or trainer.done):
            _save(trainer, around, time.monotonic() - started, best=best)


def _note(trainer: Trainer, around: Surroundings, report: UpdateReport, speed: dict[str, float]) -> None:
    at = trainer.at
    around.journal.advance(report.nll, speed)
    if at.update % NOTE_EVERY == 0 or at.update == trainer.recipe.updates:
        values = {**asdict(report), "target_tokens": at.target_tokens, **speed}
        around.journal.note(at.update, "train", {**values, "epoch": at.epoch, "skipped": at.skipped})


def _save(trainer: Trainer, around: Surroundings, seconds: float, *, best: bool) -> None:
    state = {
        "trainer": trainer.state_dict(),
        "identity": around.identity,
        "seconds": around.seconds + seconds,
        "epoch_share": trainer.epoch_share,
        "start": around.start,
    }
    weights = {name: value.detach() for name, value in trainer.optimizer.results.items()}
    around.checkpoints.save(trainer.at.update, state, weights, best=best)


def _validate(trainer: Trainer, around: Surroundings) -> float:
    """Measure the dev sets with the weights as they are, or their moving average, note it and draw it.

    Returns the mean of their losses, infinite if there is none.
    """
    with trainer.optimizer.showing_results():
        found = validate(trainer.network, around.tokenizer, around.dev_sets, trainer.recipe.validate_sentences)
    for name, measured in found.items():
        scores = measured.scores.to_dict() if measured.scores else {}
        loss = {} if measured.nll is None else {"nll": round(measured.nll, 4)}
        around.journal.note(trainer.at.update, f"dev.{name}", {**loss, **scores})
    draw_curves(around.journal.folder)
    losses = [measured.nll for measured in found.values() if measured.nll is not None]
    return sum(losses) / len(losses) if losses else math.inf

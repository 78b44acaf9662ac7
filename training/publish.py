"""From checkpoints to a bundle: averaged, exported, proved equal, scored, described; nothing if a proof fails."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.bundle import Bundle, BundleContents, DecodingDefaults, sha256, write_bundle
from model.config import ModelConfig
from model.decode.options import DecodeOptions
from model.export.exporter import ExportRecord, export_graphs
from model.export.parity import ParityReport, prove_parity
from model.nn.transformer import Transformer, parameter_count
from model.ports import CPU_OPERATORS, Operators, Precision
from model.runtime.native.build import obstacle
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import open_graphs
from model.tokenizer import Tokenizer
from training.batches import encode_pairs, read_pairs
from training.card import CardFacts, machine, model_card
from training.checkpoint import CheckpointError, Checkpoints, Result, load
from training.curves import PICTURE
from training.evaluate import Evaluation, TestSet, Translator, evaluate
from training.protect import preparation
from training.recipe import NoiseRecipe, ProtectRecipe, PublishRecipe

Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Run:
    """A finished (or interrupted) training run."""

    folder: Path
    description: Mapping[str, Any]
    """`run.json`."""
    config: ModelConfig
    tokenizer: Path
    corpus: Path

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Read `run.json`. Raises `CheckpointError` when there is none or its tokenizer has changed."""
        path = folder / "run.json"
        if not path.is_file():
            raise CheckpointError(f"a run must be described in {path}, but there is no file; is this a run folder?")
        description = json.loads(path.read_text(encoding="utf-8"))
        tokenizer = Path(description["tokenizer_path"])
        if not tokenizer.is_file() or sha256(tokenizer) != description["tokenizer"]:
            raise CheckpointError(f"the tokenizer of the run must be at {tokenizer}, but it is missing or another one.")
        config = ModelConfig.from_dict(description["model"])
        return cls(folder, description, config, tokenizer, Path(description["corpus"]))

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target."""
        source, target = self.description["languages"]
        return source, target

    @property
    def pictures(self) -> tuple[Path, ...]:
        """Its curves, if they were drawn."""
        picture = self.folder / PICTURE
        return (picture,) if picture.is_file() else ()

    def result(self) -> Result:
        """The average of the newest checkpoints, or with `patience` of those where the dev sets were best."""
        fit = self.description["fit"]
        checkpoints = Checkpoints(self.folder / "checkpoints", fit["average"])
        return checkpoints.best() if fit["patience"] else checkpoints.newest()


@dataclass(frozen=True)
class Published:
    """A bundle, and what was measured before it was written."""

    bundle: Bundle
    parity: str
    """How far the graphs are from the network, a line for each pair of them."""
    evaluations: list[Evaluation]


def publish(run: Run, recipe: PublishRecipe, out: Path, test_sets: Sequence[TestSet]) -> Published:
    """Write the bundle of `run` to `out`.

    Raises `ParityError` when the graphs do not compute what the network computes; then nothing is written. Native
    graphs are left out where they cannot run, for then they cannot be proved.
    """
    result = run.result()
    weights = result.weights
    tokenizer = Tokenizer(run.tokenizer)
    pairs = _dev_pairs(run, tokenizer)
    with tempfile.TemporaryDirectory() as workshop:
        precisions: tuple[Precision, ...] = tuple(dict.fromkeys(("f32", *recipe.precisions)))  # type: ignore[arg-type]
        calibration = pairs[: recipe.calibration_sentences]
        reason = obstacle()
        operators: tuple[Operators, ...] = CPU_OPERATORS if reason is None else ("stock",)
        record = export_graphs(run.config, weights, Path(workshop), precisions, calibration, operators)
        parity = prove_parity(run.config, weights, record, pairs[-recipe.parity_sentences :])
        summary = parity.summary() + (f"\nno native graphs: {reason}" if reason else "")
        shown = next((name for name in recipe.precisions if name != "f16"), "f32")  # f16 is made for CUDA
        stepper = open_graphs(run.config, record.graph_paths(shown), RuntimeOptions())
        defaults = DecodeOptions(beam_size=recipe.beam_size, length_penalty=recipe.length_penalty)
        translator = Translator(stepper, tokenizer, defaults)
        evaluations = [evaluate(translator, test_set) for test_set in test_sets]
        translations = translator.translate(recipe.samples).texts
        facts = CardFacts(
            recipe=recipe,
            run={**run.description, "end": _end(run, result)},
            sources=_sources(run.corpus),
            precision=shown,
            operators=stepper.operators,
            evaluations=evaluations,
            samples=list(zip(recipe.samples, translations, strict=True)),
            parity=summary,
            picture=PICTURE if run.pictures else "",
        )
        bundle = write_bundle(out, _contents(run, recipe, record, parity, model_card(facts)))
    return Published(bundle, summary, evaluations)


def _contents(run: Run, recipe: PublishRecipe, record: ExportRecord, parity: ParityReport, card: str) -> BundleContents:
    chosen = record.only(recipe.precisions)
    return BundleContents(
        name=recipe.name,
        version=recipe.version,
        source_languages=(run.languages[0],),
        target_languages=(run.languages[1],),
        config=run.config,
        precisions=chosen.precisions,
        weights=chosen.weights,
        graph_files=chosen.files,
        tokenizer=run.tokenizer,
        model_card=card,
        pictures=run.pictures,
        decoding=DecodingDefaults(beam_size=recipe.beam_size, length_penalty=recipe.length_penalty),
        calibration=record.calibration if "int8" in chosen.precisions else {},
        alignment=asdict(record.alignment),
        parity=parity.to_dict(),
    )


def _dev_pairs(run: Run, tokenizer: Tokenizer) -> list[Pair]:
    """Dev pairs of all sets in turn, so that the first few hundred are a mix; without dev sets, training pairs."""
    source, target = run.languages
    sets = [
        read_pairs(path, path.with_suffix(f".{target}")) for path in sorted(run.corpus.glob(f"dev.*.{source}"))
    ] or [read_pairs(run.corpus / f"train.{source}", run.corpus / f"train.{target}")[:500]]
    longest = max(map(len, sets))
    mixed = [pairs[i] for i in range(longest) for pairs in sets if i < len(pairs)]
    prepare = preparation(tokenizer, ProtectRecipe(plain_numbers=0.0), NoiseRecipe(), seed=0)
    encoded = encode_pairs(mixed, tokenizer, run.config.max_positions, prepare)
    return [(x.tolist(), y.tolist()) for x, y in zip(encoded.sources, encoded.targets, strict=True)]


def _end(run: Run, result: Result) -> dict[str, Any]:
    state = load(run.folder / "checkpoints" / "last.pt")
    at = state["trainer"]["at"]
    return {
        "update": at["update"],
        "target_tokens": at["target_tokens"],
        "epochs": at["epoch"] + state["epoch_share"],
        "seconds": state["seconds"],
        "machine": machine(),
        "averaged": result.averaged,
        "best_update": result.best_update,
        "parameters": parameter_count(Transformer(run.config)),
    }


def _sources(corpus: Path) -> list[dict[str, Any]]:
    path = corpus / "sources.json"
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return found

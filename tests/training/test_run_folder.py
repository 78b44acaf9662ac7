"""What a run keeps and says: where it began, where it was best, what it left out; and what it refuses to go on with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.model.networks import train_tokenizer
from training.checkpoint import CheckpointError, Checkpoints, load
from training.cli import main
from training.fit import RunFolder, fit
from training.journal import LOG, last_speed, read_events
from training.publish import Run, publish
from training.recipe import FitRecipe, PublishRecipe, RecipeError
from training.validate import Validation

SHAPE = {"preset": "small", "d_model": 16, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1}
RECIPE = FitRecipe(
    updates=4,
    batch_tokens=200,
    warmup=4,
    precision="f32",
    max_length=64,
    threads=1,
    average=1,
    validate_every=2,
    validate_sentences=0,
    checkpoint_every=2,
)

LONG = "1 2 3 4 5 6 7 8 9 " * 20 + "\n"
"""A line of more than 64 tokens."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = [" ".join(str(i * k % 97) for k in range(1, 4 + i % 5)) for i in range(1, 60)]
    for name, rows in (("train", lines), ("dev.numbers", lines[:5])):
        for language in ("en", "de"):
            (corpus / f"{name}.{language}").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return RunFolder(corpus, train_tokenizer(corpus), tmp_path / "run", ("en", "de"))


def without_dev(folder: RunFolder) -> RunFolder:
    for path in folder.corpus.glob("dev.*"):
        path.unlink()
    return folder


def with_losses(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    """Let the dev set have these losses, one validation after the other."""
    coming = iter(losses)
    monkeypatch.setattr("training.fit.validate", lambda *_: {"numbers": Validation(next(coming), None)})


def test_what_is_published_of_a_run_that_ended_early_is_its_best(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = replace(RECIPE, updates=100, patience=2, average=2, checkpoint_every=3)
    with_losses(monkeypatch, 3.0, 2.0, 2.5, 2.6)
    assert fit(SHAPE, patient, folder).update == 8
    # Until then a run without patience does the same, and ends with the checkpoints of its updates 3 and 4.
    shorter = replace(patient, updates=4, patience=0, checkpoint_every=1)
    with_losses(monkeypatch, 3.0, 2.0)
    fit(SHAPE, shorter, replace(folder, out=tmp_path / "shorter"))
    found, wanted = Run.open(folder.out).result(), Run.open(tmp_path / "shorter").result()
    assert (found.best_update, found.averaged, wanted.best_update) == (4, 2, None)
    assert all(torch.equal(found.weights[name], value) for name, value in wanted.weights.items())
    recipe = PublishRecipe(name="x", precisions=("f32",), parity_sentences=2)
    card = (publish(Run.open(folder.out), recipe, tmp_path / "x", []).bundle.path / "MODEL_CARD.md").read_text()
    assert "last 2 checkpoints up to update 4, where the loss of the dev sets was least" in card


def test_the_best_weights_of_a_run_survive_an_interruption(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = replace(RECIPE, patience=9)
    with_losses(monkeypatch, 3.0, 2.0)
    fit(SHAPE, patient, folder)
    with_losses(monkeypatch, 2.1, 2.2)
    fit(SHAPE, replace(patient, updates=8), folder)
    assert Run.open(folder.out).result().best_update == 4
    with_losses(monkeypatch, 1.9)
    fit(SHAPE, replace(patient, updates=10), folder)
    assert Run.open(folder.out).result().best_update == 10


def test_patience_needs_a_dev_set_that_can_be_measured(folder: RunFolder) -> None:
    for language in ("en", "de"):
        (folder.corpus / f"dev.numbers.{language}").write_text(LONG, encoding="utf-8")
    with pytest.raises(RecipeError, match="no dev pair of at most 64 tokens"):
        fit(SHAPE, replace(RECIPE, patience=1), folder)
    with pytest.raises(RecipeError, match="patience needs a dev set"):
        fit(SHAPE, replace(RECIPE, patience=1), without_dev(folder))
    assert fit(SHAPE, RECIPE, folder).update == 4


def test_a_dev_set_of_long_pairs_alone_counts_for_nothing(folder: RunFolder) -> None:
    for language in ("en", "de"):
        (folder.corpus / f"dev.long.{language}").write_text(LONG, encoding="utf-8")
    fit(SHAPE, RECIPE, folder)
    noted = [event for event in read_events(folder.out / LOG) if event["kind"].startswith("dev.")]
    assert {event["kind"] for event in noted if "nll" in event} == {"dev.numbers"}
    best = load(Checkpoints(folder.out / "checkpoints", 1).last)["trainer"]["at"]["best_nll"]
    assert best == pytest.approx(min(event["nll"] for event in noted if "nll" in event), abs=1e-4)


def test_a_run_began_where_it_began_whatever_goes_on_with_it(folder: RunFolder, tmp_path: Path) -> None:
    fit(SHAPE, RECIPE, folder)
    second = replace(folder, out=tmp_path / "second", start=folder.out)
    fit(SHAPE, RECIPE, second)
    fit(SHAPE, replace(RECIPE, updates=6), replace(second, start=None))
    assert Run.open(second.out).description["start"] == "the run run"
    fit(SHAPE, replace(RECIPE, updates=8), second)
    assert Run.open(second.out).description["start"] == "the run run"
    with pytest.raises(CheckpointError, match="began with random ones, but --from names the run second"):
        fit(SHAPE, replace(RECIPE, updates=6), replace(folder, start=second.out))
    card = (publish(Run.open(second.out), PublishRecipe(name="x", precisions=("f32",)), tmp_path / "x", [])).bundle.path
    assert "began with the weights of the run run, which have learnt" in (card / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize("changed", [{"optimizer": "muon"}, {"ema": 0.9}])
def test_a_run_keeps_its_optimiser_and_its_moving_average(folder: RunFolder, changed: dict[str, object]) -> None:
    fit(SHAPE, RECIPE, folder)
    (name,) = changed
    with pytest.raises(CheckpointError, match=rf"keep its \[fit\] {name} from the first update on"):
        fit(SHAPE, replace(RECIPE, updates=6, **changed), folder)  # type: ignore[arg-type]


def test_a_run_goes_on_after_its_log_was_torn(folder: RunFolder) -> None:
    fit(SHAPE, RECIPE, folder)
    log = folder.out / LOG
    whole = log.read_text(encoding="utf-8")
    log.write_text(whole + '{"update": 4, "kind": "tra', encoding="utf-8")
    assert fit(SHAPE, replace(RECIPE, updates=6), folder).update == 6
    assert [event["update"] for event in read_events(log) if event["kind"] == "train"] == [4, 6]
    assert last_speed(folder.out)
    assert (folder.out / "curves.png").is_file()


def test_pairs_that_are_too_long_are_counted_where_one_sees_it(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for language in ("en", "de"):
        with (folder.corpus / f"train.{language}").open("a", encoding="utf-8") as file:
            file.write(LONG)
    fit(SHAPE, RECIPE, folder)
    assert "1 of 60 pairs are left out, over 64 tokens a side." in capsys.readouterr().err
    assert json.loads((folder.out / "run.json").read_text())["left_out"] == 1
    card = (publish(Run.open(folder.out), PublishRecipe(name="x", precisions=("f32",)), tmp_path / "x", [])).bundle.path
    assert "59 pairs (1 left out, over 64 tokens)" in (card / "MODEL_CARD.md").read_text()


def test_the_last_line_of_fit_says_that_it_ended_early(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**vars(RECIPE), "updates": 100, "patience": 1}
    shape = "".join(f"{name} = {json.dumps(value)}\n" for name, value in SHAPE.items())
    recipe = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())
    path = tmp_path / "recipe.toml"
    path.write_text(f'[languages]\nsource = "en"\ntarget = "de"\n[model]\n{shape}[fit]\n{recipe}', encoding="utf-8")
    with_losses(monkeypatch, 3.0, 3.1)
    arguments = ["fit", "--recipe", str(path), "--corpus", str(folder.corpus), "--run", str(folder.out)]
    assert main(arguments) == 0
    assert "4 updates" in (said := capsys.readouterr().out)
    assert "ended early, for 1 validations were no better" in said

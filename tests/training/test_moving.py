"""The moving average of the weights: its law, its way through checkpoints, and that it is what comes of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from model.config import preset
from tests.model.networks import train_tokenizer
from training.batches import Pairs
from training.checkpoint import CheckpointError, Checkpoints, load
from training.fit import RunFolder, fit
from training.publish import Run, publish
from training.recipe import FitRecipe, PublishRecipe, RecipeError
from training.trainer import Trainer
from training.validate import mean_nll

CONFIG = preset("small", 40, d_model=16, heads=2, d_ff=32, encoder_layers=1, decoder_layers=1)
RECIPE = FitRecipe(updates=12, batch_tokens=120, warmup=4, max_length=24, precision="f32", average=1, ema=0.9)


def pairs() -> Pairs:
    random = np.random.default_rng(0)
    sources = [np.append(random.integers(4, 40, n), 2).astype(np.int32) for n in random.integers(1, 12, 60)]
    return Pairs(sources, [np.append(source[-2::-1], 2).astype(np.int32) for source in sources])


def copies(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: master.detach().clone() for name, master in trainer.optimizer.masters.items()}


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_it_is_the_weighted_mean_of_the_weights_after_every_update(decay: float) -> None:
    trainer = Trainer(CONFIG, replace(RECIPE, ema=decay), pairs())
    history = []
    for n in range(1, 9):
        trainer.update()
        history.append(copies(trainer))
        shares = [decay ** (n - k) for k in range(1, n + 1)]
        for name, found in trainer.optimizer.results.items():
            wanted = sum(share * past[name].double() for share, past in zip(shares, history, strict=True)) / sum(shares)
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6, msg=name)


def test_the_weights_that_a_run_begins_with_have_no_part_in_it() -> None:
    trainer = Trainer(CONFIG, replace(RECIPE, ema=0.9999), pairs())
    trainer.update()
    for name, master in trainer.optimizer.masters.items():
        assert torch.equal(trainer.optimizer.results[name], master), name


def test_it_changes_nothing_in_what_is_trained() -> None:
    plain, followed = (Trainer(CONFIG, replace(RECIPE, ema=decay), pairs()) for decay in (0.0, 0.9))
    assert [plain.update() for _ in range(4)] == [followed.update() for _ in range(4)]


def test_an_update_that_is_skipped_does_not_count() -> None:
    trainer = Trainer(CONFIG, RECIPE, pairs())
    trainer.update()
    before = {name: value.clone() for name, value in trainer.optimizer.results.items()}
    with torch.no_grad():
        trainer.network.decoder.norm.weight.fill_(float("inf"))
    trainer.update()
    assert trainer.at.skipped == 1
    assert all(torch.equal(before[name], value) for name, value in trainer.optimizer.results.items())


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_resumed_run_has_the_moving_average_of_the_uninterrupted_run_bit_for_bit(
    tmp_path: Path, precision: str
) -> None:
    asked = replace(RECIPE, precision=precision)
    straight, first = (Trainer(CONFIG, asked, pairs()) for _ in range(2))
    for _ in range(9):
        straight.update()
    for _ in range(4):
        first.update()
    Checkpoints(tmp_path, keep=1).save(4, first.state_dict(), dict(first.optimizer.results))
    second = Trainer(CONFIG, asked, pairs())
    second.load_state_dict(load(tmp_path / "last.pt"))
    for _ in range(5):
        second.update()
    for name, wanted in straight.optimizer.results.items():
        assert torch.equal(wanted, second.optimizer.results[name]), name
        assert torch.equal(straight.optimizer.masters[name], second.optimizer.masters[name]), name


def test_validation_sees_the_moving_average_and_training_goes_on_with_the_weights() -> None:
    trainer = Trainer(CONFIG, replace(RECIPE, precision="bf16"), pairs())
    for _ in range(6):
        trainer.update()
    before = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    with trainer.optimizer.showing_results():
        measured = mean_nll(trainer.network, pairs())
        for name, parameter in trainer.network.named_parameters():
            assert torch.equal(parameter, trainer.optimizer.results[name].bfloat16()), name
    assert all(torch.equal(before[name], value) for name, value in trainer.network.state_dict().items())
    assert measured != mean_nll(trainer.network, pairs())


def test_a_run_neither_gains_nor_loses_nor_changes_its_moving_average_on_the_way() -> None:
    decays = (0.9, 0.99, 0.0)
    for before in decays:
        state = Trainer(CONFIG, replace(RECIPE, ema=before), pairs()).state_dict()
        for after in decays:
            trainer = Trainer(CONFIG, replace(RECIPE, ema=after), pairs())
            if before == after:
                trainer.load_state_dict(state)
            else:
                with pytest.raises(CheckpointError, match=rf"\[fit\] ema .* but it is {before} .* says {after}"):
                    trainer.load_state_dict(state)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ema": 0.999}, r"with ema 0.999 average must be 1, but is 5; drop one"),
        ({"ema": 1.0, "average": 1}, r"ema must be in \[0, 1\), but is 1.0"),
        ({"ema": -0.1, "average": 1}, r"ema must be in \[0, 1\)"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(values: dict[str, float], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        FitRecipe(**values)  # type: ignore[arg-type]


def test_what_is_published_is_the_moving_average_and_the_card_says_so(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = [" ".join(str(i * k % 97) for k in range(1, 4 + i % 5)) for i in range(1, 60)]
    for language in ("en", "de"):
        (corpus / f"train.{language}").write_text("\n".join(lines) + "\n")
    folder = RunFolder(corpus, train_tokenizer(corpus), tmp_path / "run", ("en", "de"))
    shape = {"preset": "small", "d_model": 32, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1}
    fit(shape, replace(RECIPE, updates=5, max_length=64, checkpoint_every=2, validate_every=5), folder)
    run = Run.open(tmp_path / "run")
    moving = load(tmp_path / "run/checkpoints/last.pt")["trainer"]["optimizer"]["moving"]
    result = run.result()
    weights = result.weights
    assert (result.averaged, moving["updates"]) == (1, 5)
    assert all(torch.equal(weights[name], value) for name, value in moving["weights"].items())
    recipe = PublishRecipe(name="x", precisions=("f32",), parity_sentences=2)
    bundle = publish(run, recipe, tmp_path / "bundle", []).bundle
    assert "moving average, decay 0.9" in (bundle.path / "MODEL_CARD.md").read_text(encoding="utf-8")

from pathlib import Path
from typing import Any

import pytest

from training.corpus.recipe import load_recipe
from training.recipe import (
    FitRecipe,
    NoiseRecipe,
    ProtectRecipe,
    PublishRecipe,
    RecipeError,
    languages,
    model_config,
    read_recipe,
    section,
)
from training.schedule import Schedule
from training.subwords import SubwordOptions

FROM_ZERO = (
    "warmup",
    "learning_rate_scale",
    "muon_scale",
    "cooldown",
    "clip_norm",
    "seed",
    "threads",
    "patience",
    "validate_sentences",
    "micro_batch_tokens",
)
RECIPES = sorted((Path(__file__).resolve().parents[2] / "training" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_house_is_understood_by_every_step(path: Path) -> None:
    values, corpus = read_recipe(path), load_recipe(path)
    assert languages(values) == (corpus.source, corpus.target)
    vocabulary = section(SubwordOptions, "tokenizer", values.get("tokenizer", {})).vocab_size
    assert model_config(values["model"], vocabulary).vocab_size == vocabulary
    assert section(FitRecipe, "fit", values["fit"]).updates > 0
    assert section(PublishRecipe, "publish", values["publish"]).name
    assert section(ProtectRecipe, "protect", values.get("protect", {})).enabled
    assert 0 <= section(NoiseRecipe, "noise", values.get("noise", {})).carried < 1


def test_a_recipe_says_only_what_is_different_from_its_base(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text('[fit]\nupdates = 5\nwarmup = 2\n[publish]\nname = "first"\nsamples = ["a"]\n')
    (tmp_path / "second.toml").write_text(
        'base = "first.toml"\n[fit]\nwarmup = 3\n[publish]\nsamples = []\n[model]\nheads = 2\n'
    )
    (tmp_path / "third.toml").write_text('base = "second.toml"\n[fit]\nseed = 4\n')
    assert read_recipe(tmp_path / "third.toml", ["fit.warmup=9"]) == {
        "fit": {"updates": 5, "warmup": 9, "seed": 4},
        "publish": {"name": "first", "samples": []},
        "model": {"heads": 2},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "elsewhere/one.toml"', "must name a recipe of the same folder"),
        ("base = 3", "must name a recipe of the same folder"),
        ('base = "lost.toml"', "there is no file"),
        ('base = "here.toml"', "must not be its own base"),
    ],
)
def test_a_base_that_cannot_be_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text(text)
    with pytest.raises(RecipeError, match=message):
        read_recipe(tmp_path / "here.toml")


def test_both_directions_of_a_pair_have_one_corpus() -> None:
    one, other = (load_recipe(RECIPES[0].with_name(f"{name}.toml")) for name in ("en-de", "de-en"))
    assert (other.source, other.target) == (one.target, one.source)
    assert other.as_read() == one.as_read() == one


def test_fine_tuning_never_heats_a_network_to_where_it_began() -> None:
    values = read_recipe(RECIPES[0].with_name("fine-tune.toml"))
    recipe = section(FitRecipe, "fit", values["fit"])
    width = model_config(values["model"], 8096).d_model
    schedule = Schedule(width, recipe.warmup, recipe.learning_rate_scale, recipe.updates, recipe.cooldown)
    rates = [schedule(update) for update in range(1, recipe.updates + 1)]
    assert 3e-4 < max(rates) <= 5e-4
    assert rates[-1] < 0.02 * max(rates)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"update": 5}, r"\[fit\] has no update; it has updates"),
        ({"updates": "many"}, r"\[fit\] updates must be int, but is 'many'"),
        ({"updates": True}, "must be int"),
        ({"updates": 0}, "at least 1"),
        ({"label_smoothing": 1.0}, r"\[0, 1\)"),
        ({"optimizer": "sgd"}, "one of adam, muon"),
        ({"updates": 10, "cooldown": 11}, "cooldown"),
        ({"batch_tokens": 100, "max_length": 128}, "hold one pair"),
        *(({name: -1}, rf"\[fit\] {name} must be at least 0, but is -1") for name in FROM_ZERO),
        ({"max_bad_updates": 0}, "max_bad_updates must be at least 1"),
        ({"clip_norm": float("nan")}, "clip_norm must be at least 0, but is nan"),
        ({"learning_rate_scale": float("inf")}, "learning_rate_scale must be at least 0, but is inf"),
        (3, r"\[fit\] must be a section of values, but is 3"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        section(FitRecipe, "fit", values)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"lower": 1.5}, r"\[noise\] lower must be in \[0, 1\]"), ({"lower": 0.6, "upper": 0.6}, r"lower \+ upper must")],
)
def test_shares_of_noise_are_shares(values: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        section(NoiseRecipe, "noise", values)
    assert not NoiseRecipe()


def test_a_missing_value_is_named() -> None:
    with pytest.raises(RecipeError, match=r"\[publish\] must say name"):
        section(PublishRecipe, "publish", {})


def test_lists_of_strings_and_whole_numbers_as_floats_are_taken() -> None:
    found = section(PublishRecipe, "publish", {"name": "x", "precisions": ["f32"], "length_penalty": 1})
    assert found.precisions == ("f32",)
    assert found.length_penalty == 1.0
    with pytest.raises(RecipeError, match="list of strings"):
        section(PublishRecipe, "publish", {"name": "x", "precisions": [1]})


def test_overrides_change_single_values(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text("[fit]\nupdates = 5\n")
    found = read_recipe(path, ["fit.updates=7", "fit.optimizer=muon", "model.tie_embeddings=false"])
    assert found == {"fit": {"updates": 7, "optimizer": "muon"}, "model": {"tie_embeddings": False}}
    with pytest.raises(RecipeError, match=r"fit\.updates=500"):
        read_recipe(path, ["updates=7"])


def test_a_missing_recipe_and_one_that_is_not_toml_say_so(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no file"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[fit\n")
    with pytest.raises(RecipeError, match="must be TOML"):
        read_recipe(tmp_path / "bad.toml")


def test_the_fit_defaults_are_the_papers() -> None:
    paper = FitRecipe()
    assert (paper.updates, paper.batch_tokens, paper.warmup, paper.label_smoothing) == (100_000, 25_000, 4000, 0.1)
    assert (paper.optimizer, paper.cooldown, paper.learning_rate_scale, paper.average) == ("adam", 0, 1.0, 5)

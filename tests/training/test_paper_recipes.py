"""The recipes of "Attention Is All You Need" say what the paper says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from model.config import ModelConfig
from model.decode.options import DecodeOptions
from model.nn.transformer import Transformer, parameter_count
from training.corpus.recipe import load_recipe
from training.corpus.rules import choose_rules
from training.recipe import FitRecipe, PublishRecipe, model_config, read_recipe, section
from training.schedule import Schedule
from training.subwords import SubwordOptions

RECIPES = Path(__file__).resolve().parents[2] / "training" / "recipes"
PAPER = {
    # updates, averaged, dropout, d_model, d_ff, heads, vocabulary, seconds an update
    "wmt14-en-de-base": (100_000, 5, 0.1, 512, 2048, 8, 37_000, 0.4),
    "wmt14-en-de-big": (300_000, 20, 0.3, 1024, 4096, 16, 37_000, 1.0),
    "wmt14-en-fr-base": (100_000, 5, 0.1, 512, 2048, 8, 32_000, 0.4),
    "wmt14-en-fr-big": (300_000, 20, 0.1, 1024, 4096, 16, 32_000, 1.0),
}
EACH = pytest.mark.parametrize("name", PAPER)


@EACH
def test_the_network_and_its_training_are_those_of_the_paper(name: str) -> None:
    updates, averaged, dropout, d_model, d_ff, heads, vocabulary, seconds = PAPER[name]
    values = read_recipe(RECIPES / f"{name}.toml")
    fit = section(FitRecipe, "fit", values["fit"])
    config = model_config(values["model"], section(SubwordOptions, "tokenizer", values["tokenizer"]).vocab_size)
    assert config == ModelConfig(
        vocab_size=vocabulary,
        d_model=d_model,
        heads=heads,
        d_ff=d_ff,
        dropout=dropout,
        encoder_layers=6,
        decoder_layers=6,
    )
    assert (config.norm_order, config.positions, config.activation, config.gated) == (
        "post",
        "interleaved",
        "relu",
        False,
    )
    assert (fit.updates, fit.average, fit.optimizer, fit.label_smoothing) == (updates, averaged, "adam", 0.1)
    assert (fit.batch_tokens, 8 * fit.micro_batch_tokens) == (25_000, 25_000)
    assert fit.checkpoint_every * seconds == 600, "checkpoints are ten minutes apart (section 6.1)"
    assert (fit.clip_norm, fit.subword_sampling, fit.patience, fit.precision) == (0.0, 0.0, 0, "f32")


@EACH
def test_the_learning_rate_is_formula_3(name: str) -> None:
    values = read_recipe(RECIPES / f"{name}.toml")
    fit, d_model = section(FitRecipe, "fit", values["fit"]), PAPER[name][3]
    rate = Schedule(d_model, fit.warmup, fit.learning_rate_scale, fit.updates, fit.cooldown)
    for update in (1, 500, 4000, 4001, fit.updates):
        assert rate(update) == pytest.approx(d_model**-0.5 * min(update**-0.5, update * 4000**-1.5))


@EACH
def test_translations_are_searched_for_as_in_the_paper(name: str) -> None:
    publish = section(PublishRecipe, "publish", read_recipe(RECIPES / f"{name}.toml")["publish"])
    options = DecodeOptions(beam_size=publish.beam_size, length_penalty=publish.length_penalty)
    assert (options.beam_size, options.length_penalty) == (4, 0.6)
    assert [options.limit(length, 1024) for length in (1, 30, 200)] == [51, 80, 250]


@EACH
def test_the_text_is_all_of_wmt_2014_and_nothing_is_cleaned_away(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.toml")
    train = {source.name for source in recipe.sources if source.role == "train"}
    assert train == {"europarl", "commoncrawl", "news-commentary"} | ({"un", "giga-fren"} if "fr" in name else set())
    assert {s.name: s.role for s in recipe.sources if s.role != "train"} == {
        "newstest2013": "dev",
        "newstest2014": "test",
    }
    for source in recipe.sources:
        assert urlsplit(source.url)[:2] == ("https", "www.statmt.org")
        ours, theirs = (member.removesuffix(".gz").removesuffix(".sgm") for member in source.members)
        assert (ours[-3:], theirs[-3:]) == (".en", f".{recipe.target}")
        assert ours[:-6] == theirs[:-6]
        assert source.licence
        assert not source.split_sentences or source.role != "train"
    assert {rule.name for rule in choose_rules(recipe.cleaning.drop)} == {"fuzzy", "empty", "too-long"}


def test_dropout_stands_where_the_paper_puts_it() -> None:
    """On the sum of embedding and position and on each sub-layer's output (section 5.4): 1 + 2 for each encoder layer
    + 3 for each decoder layer, + 1 as source and target are embedded apart."""
    config = ModelConfig(vocab_size=40, d_model=8, heads=2, d_ff=16, encoder_layers=2, decoder_layers=3, dropout=0.5)
    network = Transformer(config).train()
    shapes: list[tuple[int, ...]] = []
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape)))
    network(torch.full((1, 5), 7), torch.tensor([5]), torch.full((1, 4), 7))
    assert sorted(shapes) == sorted([(1, 5, 8)] * (1 + 2 * 2) + [(1, 4, 8)] * (1 + 3 * 3))


TABLE_3 = {
    "A h=1": ({"heads": 1}, {}),
    "A h=4": ({"heads": 4}, {}),
    "A h=16": ({"heads": 16}, {}),
    "A h=32": ({"heads": 32}, {}),
    "C N=2": ({"encoder_layers": 2, "decoder_layers": 2}, {}),
    "C N=8": ({"encoder_layers": 8, "decoder_layers": 8}, {}),
    "C d=256": ({"d_model": 256}, {}),
    "C d=1024": ({"d_model": 1024}, {}),
    "C ff=1024": ({"d_ff": 1024}, {}),
    "C ff=4096": ({"d_ff": 4096}, {}),
    "D drop=0": ({"dropout": 0.0}, {}),
    "D drop=0.2": ({"dropout": 0.2}, {}),
    "D ls=0": ({}, {"label_smoothing": 0.0}),
    "D ls=0.2": ({}, {"label_smoothing": 0.2}),
    "E": ({"positions": "learned"}, {}),
}


@pytest.mark.parametrize("row", TABLE_3)
def test_a_row_of_table_3_is_one_override_for_each_number_away(row: str) -> None:
    model, fit = TABLE_3[row]
    overrides = [
        *(f"model.{key}={value}" for key, value in model.items()),
        *(f"fit.{key}={value}" for key, value in fit.items()),
    ]
    values = read_recipe(RECIPES / "wmt14-en-de-base.toml", overrides)
    config = model_config(values["model"], 37_000)
    assert config.to_dict() == {**ModelConfig(vocab_size=37_000).to_dict(), **model}
    found = asdict(section(FitRecipe, "fit", values["fit"]))
    usual = asdict(section(FitRecipe, "fit", read_recipe(RECIPES / "wmt14-en-de-base.toml")["fit"]))
    assert found == {**usual, **fit}


def weights(config: ModelConfig) -> int:
    """Counted by hand: biases everywhere, one matrix for three tables, and no final norm."""
    d, f = config.d_model, config.d_ff
    attention, feed, norm = 4 * (d * d + d), 2 * d * f + d + f, 2 * d
    encoder, decoder = attention + feed + 2 * norm, 2 * attention + feed + 3 * norm
    return config.vocab_size * d + config.encoder_layers * encoder + config.decoder_layers * decoder


@pytest.mark.parametrize(("size", "millions"), [("base", 63.08), ("big", 214.25)])
def test_the_networks_are_as_large_as_the_paper_makes_them(size: str, millions: float) -> None:
    """Table 3 says 65 and 213 million; of the base model no vocabulary of 37,000 gives that."""
    config = model_config(read_recipe(RECIPES / f"wmt14-en-de-{size}.toml")["model"], 37_000)
    assert weights(config) / 1e6 == pytest.approx(millions, abs=0.01)
    small = ModelConfig.from_dict({**config.to_dict(), "vocab_size": 40, "d_model": 16, "d_ff": 24, "heads": 2})
    assert parameter_count(Transformer(small)) == weights(small)

"""Every option that trains also exports and decodes, or is refused by name."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

from model.config import ModelConfig
from model.decode.batcher import decode_all
from model.decode.options import DecodeOptions, Hypothesis, SpecialIds
from model.decode.reference import ReferenceStepper
from model.decode.stepper import Stepper
from model.errors import ConfigError
from model.export.compare import full_pass_language, padded
from model.export.exporter import export_graphs
from model.export.native import native_fits
from model.nn.transformer import Transformer, greedy
from model.ports import CPU_OPERATORS, Operators
from model.runtime.native.build import obstacle
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import open_graphs
from tests.model.networks import lively_network, random_sources
from training.recipe import FitRecipe, RecipeError, model_config
from training.trainer import Trainer

SMALL = {"preset": "paper-base", "d_model": 32, "heads": 2, "d_ff": 48, "encoder_layers": 1, "decoder_layers": 1}
SMALL |= {"max_positions": 64}
CHOICES = {
    name: get_args(hint) or (False, True)
    for name, hint in get_type_hints(ModelConfig).items()
    if get_args(hint) or hint is bool
}
"""Field → what it may be, of every field that is a choice: a new one is tried without a word here."""
COMBINATIONS = [dict(zip(CHOICES, values, strict=True)) for values in product(*CHOICES.values())]
SIZES: dict[str, dict[str, object]] = {
    "A: one head": {"heads": 1},
    "A: heads of 8, which native operators cannot run": {"heads": 4},
    "A: heads of 1": {"heads": 32},
    "heads of 12": {"d_model": 36, "heads": 3},
    "heads of 80, and one that 64 does not divide": {"d_model": 80, "heads": 1},
    "C: more layers": {"encoder_layers": 3, "decoder_layers": 3},
    "C: wider": {"d_model": 64, "heads": 2},
    "C: wider within": {"d_ff": 96},
    "D: without dropout": {"dropout": 0.0},
    "E: learned positions": {"positions": "learned"},
    "deep encoder, shallow decoder": {"encoder_layers": 4, "decoder_layers": 1},
    "rotary, gated, pre-norm, deep and shallow": {
        **{"positions": "rotary", "gated": True, "norm_order": "pre", "activation": "gelu"},
        **{"encoder_layers": 4, "decoder_layers": 1, "heads": 1},
    },
    "another epsilon": {"norm_epsilon": 1e-5},
    "other special ids": {"pad_id": 3, "bos_id": 2, "eos_id": 1, "unk_id": 0},
}
VOCABULARY = 150


def _name(values: dict[str, object]) -> str:
    return "-".join(name if value is True else str(value) for name, value in values.items() if value is not False)


def _assert_trains(config: ModelConfig) -> None:
    """Forward and backward: the loss is finite, and a gradient reaches every parameter."""
    torch.manual_seed(0)
    network = Transformer(config).train()
    source, lengths = padded(random_sources(config, (7, 4)), config.pad_id)
    logits = network(source, lengths, source)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def _texts(stepper: Stepper, sources: list[list[int]], options: DecodeOptions, config: ModelConfig) -> list[Hypothesis]:
    special = SpecialIds(bos_id=config.bos_id, eos_id=config.eos_id)
    return [found.hypotheses[0] for found in decode_all(stepper, sources, options, special=special)]


def _sets(config: ModelConfig) -> tuple[Operators, ...]:
    return CPU_OPERATORS if native_fits(config) and obstacle() is None else ("stock",)


def _assert_decodes(config: ModelConfig, folder: Path) -> None:
    """Greedy and beam search over the graphs find what the network finds, in a batch of several lengths."""
    network = lively_network(config)
    sources = random_sources(config, (9, 3, 6))
    source, lengths = padded(sources, config.pad_id)
    wanted = greedy(network, source, lengths, max_length=8)
    special = SpecialIds(bos_id=config.bos_id, eos_id=config.eos_id)
    twin = ReferenceStepper(full_pass_language(network), config.vocab_size, config.max_positions, special)
    beam = DecodeOptions(beam_size=3, max_length=4)
    searched = _texts(twin, sources[1:2], beam, config)
    record = export_graphs(config, network.state_dict(), folder, ["f32"])
    assert set(record.precisions["f32"]) == ({"stock", "native"} if native_fits(config) else {"stock"})
    for operators in _sets(config):
        stepper = open_graphs(config, record.graph_paths("f32"), RuntimeOptions(operators=operators))
        found = _texts(stepper, sources, DecodeOptions(beam_size=1, max_length=8), config)
        assert [list(text.ids) for text in found] == wanted, operators
        (best,) = _texts(stepper, sources[1:2], beam, config)
        assert best.ids == searched[0].ids, operators
        assert best.score == pytest.approx(searched[0].score, abs=1e-3)


@pytest.mark.parametrize("choices", COMBINATIONS, ids=_name)
def test_every_combination_of_choices_trains_exports_and_decodes(choices: dict[str, object], tmp_path: Path) -> None:
    config = model_config({**SMALL, **choices}, VOCABULARY)
    _assert_trains(config)
    _assert_decodes(config, tmp_path)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_every_size_trains_exports_and_decodes(sizes: dict[str, object], tmp_path: Path) -> None:
    config = model_config({**SMALL, **sizes}, VOCABULARY)
    _assert_trains(config)
    _assert_decodes(config, tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heads": 3}, "d_model must be a multiple of heads"),
        ({"heads": 32, "positions": "rotary"}, "rotary positions turn pairs .* must be even, but is 1"),
        ({"d_k": 16}, "unknown model fields: d_k"),
        ({"positions": "relative"}, "positions must be one of interleaved, halves, learned, rotary"),
        ({"activation": "swish"}, "activation must be one of relu, gelu"),
        ({"norm_order": "sandwich"}, "norm_order must be one of post, pre"),
    ],
)
def test_what_cannot_be_exported_cannot_be_trained(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_config({**SMALL, **values}, VOCABULARY)


def test_pairs_longer_than_the_positions_of_the_network_are_refused_before_training() -> None:
    config = model_config(SMALL, VOCABULARY)
    with pytest.raises(
        RecipeError, match=r"\[fit\] max_length must be at most \[model\] max_positions \(64\), but is 65"
    ):
        Trainer(config, FitRecipe(max_length=65, device="cpu"), pairs=None)  # type: ignore[arg-type]

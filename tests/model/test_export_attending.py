"""The attending decoder: the same step as the decoder, and what it attends to is what the network attends to."""

from __future__ import annotations

import numpy as np
import pytest

from model.export.attending import choose_layer
from model.export.builder import Blueprint, build_decoder
from model.export.compare import compare_attention
from model.export.weightfile import WeightFile
from model.export.weights import Weights
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import open_graphs
from tests.model.networks import VARIANTS, exported, exported_copying, random_sources

pytestmark = pytest.mark.usefixtures("each_set_of_operators")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_attention_is_the_networks(variant):
    made = exported(variant)
    found = compare_attention(made.network, made.stepper(), made.pairs, made.record.alignment.layer)
    assert found.difference < 1e-5
    assert found.top1 == 1.0


@pytest.mark.parametrize("layer", [0, 1])
def test_any_layer_can_be_shown(tmp_path, layer):
    made = exported("tied")
    blueprint = Blueprint(Weights(made.config, made.network.state_dict()), "f32", "stock", {})
    with WeightFile(tmp_path / "weights.bin") as constants:
        build_decoder(blueprint, tmp_path / "attending.onnx", constants, layer)
    graphs = {"stock": {**made.record.graph_paths("f32")["stock"], "attending": tmp_path / "attending.onnx"}}
    stepper = open_graphs(made.config, graphs, RuntimeOptions(operators="stock"))
    assert compare_attention(made.network, stepper, made.pairs, layer).difference < 1e-5
    assert compare_attention(made.network, stepper, made.pairs, 1 - layer).difference > 1e-3


@pytest.mark.parametrize("precision", ["f32", "int8"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_attending_step_predicts_what_a_plain_step_predicts(variant, precision):
    made = exported(variant)
    stepper = made.stepper(precision)
    sources = [source for source, _ in made.pairs]
    plain, attending = stepper.start(sources, 2), stepper.start(sources, 2, attending=True)
    for token in (made.config.bos_id, 9, 17):
        tokens = np.full((len(sources), 2), token)
        one, ids = stepper.step(plain, tokens, 5)
        two, same = stepper.step(attending, tokens, 5)
        # Rounding of one attention may carry an activation over an edge of int8.
        np.testing.assert_allclose(one, two, atol=1e-4 if precision == "f32" else 0.2)
        if precision == "f32":
            np.testing.assert_array_equal(ids, same)


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_a_row_of_attention_sums_to_one_over_its_source_and_is_nothing_beyond(precision):
    made = exported("tied")
    stepper = made.stepper(precision)
    sources = random_sources(made.config, (1, 30, 7, 16))
    slots = stepper.start(sources, 3, attending=True)
    stepper.step(slots, np.full((4, 3), made.config.bos_id), 1)
    attention = stepper.attention(slots)
    assert (attention >= 0).all()
    for row, source in zip(attention, sources, strict=True):
        np.testing.assert_allclose(row.sum(axis=-1), 1.0, atol=1e-6)
        assert (row[:, len(source) :] == 0.0).all()


def test_the_layer_is_the_one_in_which_names_attend_to_themselves():
    made = exported_copying()
    choice = choose_layer(made.network, [(source, source) for source, _ in made.pairs])
    assert (choice.layer, choice.agreement[1]) == (1, 1.0)
    assert choice.agreement[0] < 0.5


def test_without_tokens_on_both_sides_the_last_layer_is_shown():
    made = exported("tied")
    choice = choose_layer(made.network, [([5, 6, 2], [7, 8, 2])])
    assert (choice.layer, choice.agreement, choice.tokens) == (1, (), 0)


def test_what_stands_in_most_sources_is_no_name():
    made = exported("tied")
    pairs = [([9, 20 + i, 2], [9, 20 + i, 2]) for i in range(30)]
    assert choose_layer(made.network, pairs).tokens == 30


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_the_third_graph_costs_a_few_kilobytes(precision):
    made = exported("tied")
    for operators in made.record.graph_paths(precision).values():
        assert operators["attending"].stat().st_size < operators["decoder"].stat().st_size + 4_000
    weights = made.record.folder / made.record.weights[precision]
    assert weights.stat().st_size > 4 * operators["attending"].stat().st_size

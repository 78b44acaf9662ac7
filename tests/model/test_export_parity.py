"""The proof of parity passes for what was built, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from model.decode.options import Hypothesis
from model.errors import ExportError, ParityError
from model.export.compare import compare_texts
from model.export.parity import ParityLimits, prove_parity
from model.runtime.native.build import obstacle
from tests.model.networks import exported, lively_network

LIMITS = ParityLimits(int8_top1=0.5, int8_similarity=0.3)
"""A random network wavers between tokens where a trained one is sure."""


NATIVE = obstacle() is None


@pytest.fixture(scope="module")
def made():
    """With native graphs only where they can run, as `publish` has it."""
    made = exported("odd")
    return made if NATIVE else replace(made, record=made.record.with_operators(["stock"]))


@pytest.fixture(scope="module")
def report(made):
    return prove_parity(made.config, made.network.state_dict(), made.record, made.pairs, LIMITS)


def test_float_gives_the_same_values_and_the_same_texts(report, made):
    for name in ("f32", *(["f32 native"] if NATIVE else [])):
        f32 = report.graphs[name]
        assert f32.values.log_prob < 1e-4
        assert f32.texts.texts == len(made.pairs) + LIMITS.beam_texts
        assert f32.texts.equal == f32.texts.texts


@pytest.mark.skipif(not NATIVE, reason=str(obstacle()))
def test_native_graphs_are_proved_too(report):
    assert list(report.graphs) == ["f32", "f32 native", "int8", "int8 native"]
    assert abs(report.graphs["int8"].values.top1 - report.graphs["int8 native"].values.top1) < 0.1


def test_int8_is_reported_beside_it(report):
    int8 = report.graphs["int8"]
    assert 0.0 < int8.values.log_prob < 3.0
    assert int8.values.top1 >= 0.5


def test_the_report_says_the_largest_difference(report):
    f32 = report.graphs["f32"]
    assert f"{f32.values.log_prob:.2e}" in report.summary()
    assert report.to_dict()["f32"]["values"]["log_prob"] == f32.values.log_prob


def test_graphs_of_another_network_are_not_published(made):
    other = lively_network(made.config, seed=1)
    with pytest.raises(ParityError, match="nothing may be published"):
        prove_parity(made.config, other.state_dict(), made.record, made.pairs, LIMITS)


def test_one_changed_weight_in_the_last_layer_is_found(made, tmp_path):
    record = replace(made.record.only(["f32"]), folder=tmp_path)
    for name in (name for roles in record.precisions["f32"].values() for name in roles.values()):
        onnx.save_model(onnx.load(made.record.folder / name), tmp_path / name)
    path = record.graph_paths("f32")["stock"]["decoder"]
    model = onnx.load(path)
    (tensor,) = [t for t in model.graph.initializer if t.name == "decoder.layers.0.feed_forward.w_2.bias"]
    bias = numpy_helper.to_array(tensor).copy()
    bias[3] += 0.05
    tensor.CopyFrom(numpy_helper.from_array(bias, tensor.name))
    onnx.save_model(model, path)
    with pytest.raises(ParityError, match="f32: the difference of log-probabilities"):
        prove_parity(made.config, made.network.state_dict(), record, made.pairs, LIMITS)


@pytest.mark.parametrize(
    ("limits", "says"),
    [({"int8_top1": 1.01}, "int8: the top-1"), ({"int8_similarity": 1.01}, "int8: the similarity")],
)
def test_int8_that_strays_too_far_is_not_published(made, limits, says):
    strict = replace(LIMITS, greedy_texts=2, beam_texts=1, **limits)
    with pytest.raises(ParityError, match=says):
        prove_parity(made.config, made.network.state_dict(), made.record, made.pairs[:2], strict)


def test_a_proof_without_samples_is_none(made):
    with pytest.raises(ExportError, match="got none"):
        prove_parity(made.config, made.network.state_dict(), made.record, [])


def test_texts_that_only_echo_their_source_are_counted():
    sources = [(5, 6, 7, 2), (8, 9, 2)]
    wanted = [Hypothesis((50, 60), -1.0, -1.0, False), Hypothesis((80, 90), -1.0, -1.0, False)]
    found = [Hypothesis((5, 6, 7), -3.0, -3.0, False), Hypothesis((80, 90), -1.0, -1.0, False)]
    differences = compare_texts(sources, wanted, found)
    assert (differences.echoes, differences.network_echoes) == (0.5, 0.0)
    assert (differences.texts, differences.equal) == (2, 1)
    assert differences.similarity == np.mean([0.0, 1.0])
    assert differences.score == 2.0

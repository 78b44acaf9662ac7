"""Graphs for CUDA, here on the CPU: in float32 they are the network, in float16 they are near it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import ExportError, ParityError
from model.export.compare import compare_attention, compare_values
from model.export.cuda import EXACT_K, SORTED_AT_ONCE, levels, top_k_of_blocks
from model.export.exporter import export_graphs
from model.export.graph import GraphWriter
from model.export.parity import ParityLimits, prove_parity
from model.export.weightfile import WeightFile
from model.ports import MASKED_HALF, Port, PortSheet
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from tests.model.networks import VARIANTS, Exported, exported

LIMITS = ParityLimits(
    int8_top1=0.5, int8_similarity=0.3, f16_top1=0.9, f16_similarity=0.6, greedy_texts=4, beam_texts=2
)
"""A random network wavers between tokens where a trained one is sure."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cuda")


@pytest.fixture(scope="module")
def for_cuda(folder):
    """Variant -> the network, with its f32 and f16 graphs."""

    @cache
    def export(variant: str) -> Exported:
        made = exported(variant)
        state = made.network.state_dict()
        record = export_graphs(made.config, state, folder / variant, ["f32", "f16"], made.pairs, ["stock"])
        return replace(made, record=record)

    return export


def open_for_cuda(made: Exported, precision: str) -> OnnxStepper:
    return open_graphs(made.config, made.record.graph_paths(precision), RuntimeOptions(operators="cuda"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_f32_every_value_is_the_networks(for_cuda, variant):
    made = for_cuda(variant)
    stepper = open_for_cuda(made, "f32")
    assert stepper.operators == "cuda"
    found = compare_values(made.network, stepper, made.pairs)
    assert max(found.cross, found.log_prob) < 1e-4
    assert found.top1 == 1.0
    assert compare_attention(made.network, stepper, made.pairs, made.record.alignment.layer).difference < 1e-4


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_f16_rounding_is_all_that_differs(for_cuda, variant):
    """The CPU computes each node in float32 and rounds what passes between them, about as CUDA's kernels do."""
    made = for_cuda(variant)
    stepper = open_for_cuda(made, "f16")
    found = compare_values(made.network, stepper, made.pairs)
    assert 1e-4 < found.log_prob < 0.15
    assert found.cross < 0.15
    assert found.top1 > 0.9
    assert compare_attention(made.network, stepper, made.pairs, made.record.alignment.layer).difference < 0.05


def test_both_are_proved_before_they_are_published(for_cuda):
    made = for_cuda("odd")
    report = prove_parity(made.config, made.network.state_dict(), made.record, made.pairs[:4], LIMITS)
    assert list(report.graphs) == ["f32", "f32 cuda", "f16 cuda"]
    assert report.graphs["f32 cuda"].texts.equal == report.graphs["f32 cuda"].texts.texts


def test_f16_that_strays_too_far_is_not_published(for_cuda):
    made = for_cuda("odd")
    strict = replace(LIMITS, f16_top1=1.01)
    with pytest.raises(ParityError, match="f16 cuda: the top-1"):
        prove_parity(made.config, made.network.state_dict(), made.record.only(["f16"]), made.pairs[:2], strict)


def test_f16_has_graphs_for_cuda_alone_and_half_the_bytes(for_cuda):
    record = for_cuda("tied").record
    assert list(record.precisions["f16"]) == ["cuda"]
    assert list(record.precisions["f32"]) == ["stock", "cuda"]
    sizes = {name: (record.folder / record.weights[name]).stat().st_size for name in ("f32", "f16")}
    assert sizes["f16"] < 0.55 * sizes["f32"]


def test_graphs_for_cuda_share_their_weights_with_the_stock_ones(for_cuda, tmp_path):
    """But for the padding of small constants nothing is stored twice."""
    made = for_cuda("tied")
    alone = export_graphs(made.config, made.network.state_dict(), tmp_path, ["f32"], (), ["stock"])
    sizes = [(record.folder / record.weights["f32"]).stat().st_size for record in (alone, made.record)]
    assert sizes[1] < 1.02 * sizes[0]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_each_residual_sum_is_one_node_with_its_bias_and_its_norm(for_cuda, variant, precision):
    made = for_cuda(variant)
    paths = made.record.graph_paths(precision)["cuda"]
    sums = {"encoder": 2 * made.config.encoder_layers, "decoder": 3 * made.config.decoder_layers}
    for role, count in sums.items():
        nodes = [node.op_type for node in onnx.load(paths[role], load_external_data=False).graph.node]
        assert nodes.count("SkipLayerNormalization") == count
        # A pre-norm stack begins with a norm of its own.
        assert nodes.count("LayerNormalization") == (made.config.norm_order == "pre")


def test_weights_that_do_not_fit_into_f16_are_refused(tmp_path):
    made = exported("odd")
    state = {name: value.clone() for name, value in made.network.state_dict().items()}
    next(value for name, value in state.items() if name.endswith("w_1.weight"))[0, 0] = 1e5
    with pytest.raises(ExportError, match=r"must fit into float16.*w_1\.weight holds 100000; publish without f16"):
        export_graphs(made.config, state, tmp_path, ["f16"])


def test_a_masked_score_is_a_number_of_f16_and_weighs_nothing():
    score = np.float16(MASKED_HALF) + np.float16(-3e4)
    assert np.isfinite(score)
    assert np.exp(np.float32(MASKED_HALF) + np.float32(3e4 - 200)) == 0.0


# --- top-k -----------------------------------------------------------------------------------------------------------


@cache
def top_k_session(vocabulary: int) -> ort.InferenceSession:
    sheet = PortSheet(
        inputs=(
            Port("scores", "float32", ("rows", "lanes", vocabulary)),
            Port("k", "int64", (1,)),
            Port("tokens", "int64", ("rows", "lanes")),
        ),
        outputs=(Port("values", "float32", ("rows", "lanes", "k")), Port("ids", "int64", ("rows", "lanes", "k"))),
    )
    graph = GraphWriter("top_k")
    values, ids = top_k_of_blocks(graph, "scores", vocabulary, "k")
    graph.output(values, "values")
    graph.output(ids, "ids")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "top_k.onnx"
        with WeightFile(path.with_suffix(".bin")) as weights:
            graph.save(path, sheet, weights)
        return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocabulary=st.sampled_from([384, 8064, 8576, 32000]),
    k=st.integers(1, 64) | st.just(384),
    levels=st.sampled_from([1, 2, 10, 10**6]),
)
def test_the_k_best_of_blocks_are_a_stable_sort(seed, vocabulary, k, levels):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (2, 1, vocabulary)).astype(np.float32)
    scores[..., rng.integers(0, vocabulary, vocabulary // 2)] = -np.inf
    feeds = {"scores": scores, "k": np.array([k]), "tokens": np.zeros((2, 1), np.int64)}
    values, ids = top_k_session(vocabulary).run(None, feeds)
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(ids, order)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, order, axis=-1))


@pytest.mark.parametrize("vocabulary", [384, 8064, 8576, 32000, 32768, 65536])
def test_no_level_sorts_more_than_the_kernel_that_keeps_ties_in_order_can(vocabulary):
    size, *merged = levels(vocabulary)
    left = vocabulary // size // math.prod(merged)
    assert vocabulary == size * math.prod(merged) * left
    assert max(size, *(EXACT_K * count for count in (*merged, left))) <= SORTED_AT_ONCE

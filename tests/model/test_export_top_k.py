"""The two-level top-k is exact, ties included."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.export.blocks import forbidden, pad_rows
from model.export.graph import GraphWriter
from model.export.stock import top_k
from model.export.weightfile import WeightFile
from model.ports import Port, PortSheet
from tests.model.networks import tiny_config

VOCABULARY = 6 * 128
SHEET = PortSheet(
    inputs=(Port("scores", "float32", ("rows", "lanes", VOCABULARY)), Port("k", "int64", (1,))),
    outputs=(Port("values", "float32", ("rows", "lanes", "k")), Port("ids", "int64", ("rows", "lanes", "k"))),
)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    graph = GraphWriter("top_k")
    values, ids = top_k(graph, "scores", VOCABULARY, "k")
    graph.output(values, "values")
    graph.output(ids, "ids")
    path = tmp_path_factory.mktemp("top_k") / "top_k.onnx"
    with WeightFile(path.with_suffix(".bin")) as weights:
        graph.save(path, SHEET, weights)
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 5),
    k=st.integers(1, 128) | st.sampled_from([200, 512, VOCABULARY - 1, VOCABULARY]),
    levels=st.sampled_from([1, 2, 3, 10, 10**6]),
    blocked=st.booleans(),
)
def test_it_is_a_stable_sort(session, seed, rows, k, levels, blocked):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (rows, VOCABULARY)).astype(np.float32)
    if blocked:
        scores[:, rng.integers(0, VOCABULARY, 700)] = -np.inf
    values, ids = session.run(None, {"scores": scores.reshape(rows, 1, -1), "k": np.array([k])})
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # the lower id first among equals
    np.testing.assert_array_equal(ids[:, 0], expected)
    np.testing.assert_array_equal(values[:, 0], np.take_along_axis(scores, expected, axis=1))


def test_a_tie_between_blocks_goes_to_the_lower_id_even_if_its_block_has_the_lower_maximum(session):
    scores = np.zeros((1, 1, VOCABULARY), np.float32)
    scores[0, 0, [10, 700]] = 3.0  # equal, in blocks 0 and 5
    scores[0, 0, 701] = 5.0  # block 5 has the better maximum
    _, ids = session.run(None, {"scores": scores, "k": np.array([3])})
    assert ids.tolist() == [[[701, 10, 700]]]


def test_pad_bos_and_the_padding_of_the_vocabulary_can_never_be_predicted():
    config = tiny_config(vocab_size=300)
    mask = forbidden(config)
    assert mask.shape == (384,)
    assert np.flatnonzero(np.isneginf(mask)).tolist() == [0, 1, *range(300, 384)]
    assert (mask[np.isfinite(mask)] == 0.0).all()
    assert pad_rows(np.ones((300, 4), np.float32)).shape == (384, 4)

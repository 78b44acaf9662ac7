"""The native search for the best tokens, the native norm, and how the library of operators is built and found."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import ProviderError
from model.runtime.native import build
from tests.model.native_library import native, operators, session

EXACT = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def top():
    node = native("TopLogProbs", ["logits", "k"], ["log_probs", "ids"])
    return session([node], {"logits": "f", "k": "l"}, {"log_probs": "f", "ids": "l"}, {})


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 4),
    lanes=st.integers(1, 4),
    size=st.integers(1, 700) | st.just(4096),
    share=st.floats(0, 1),
    levels=st.sampled_from([1, 2, 3, 10, 10**6]),
    forbidden=st.booleans(),
)
def test_the_best_log_probabilities_are_a_stable_sort_of_log_softmax(
    top, *, seed, rows, lanes, size, share, levels, forbidden
):
    rng = np.random.default_rng(seed)
    logits = (rng.integers(0, levels, (rows, lanes, size)) / levels * 30).astype(np.float32)
    if forbidden:
        logits[..., rng.integers(0, size, size // 2)] = -np.inf
    k = 1 + round(share * (size - 1))
    log_probs, ids = top.run(None, {"logits": logits, "k": np.array([k])})
    expected = np.argsort(-logits, axis=-1, kind="stable")[..., :k]  # the lower id first among equals
    np.testing.assert_array_equal(ids, expected)
    most = logits.max(axis=-1, keepdims=True).astype(np.float64)
    normaliser = most + np.log(np.exp(logits - most).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(log_probs, np.take_along_axis(logits - normaliser, ids, axis=-1), rtol=1e-6, atol=4e-6)


def test_the_best_of_a_row_have_the_same_bits_in_any_company_and_for_any_k(top):
    logits = np.random.default_rng(13).normal(size=(6, 2, 1000)).astype(np.float32) * 5
    log_probs, ids = top.run(None, {"logits": logits, "k": np.array([1000])})
    for b in range(6):
        for k in (1, 2, 7, 8, 9, 100):
            alone, chosen = top.run(None, {"logits": logits[b : b + 1, 1:], "k": np.array([k])})
            np.testing.assert_array_equal(alone[0, 0], log_probs[b, 1, :k])
            np.testing.assert_array_equal(chosen[0, 0], ids[b, 1, :k])


def test_more_than_the_vocabulary_or_less_than_one_is_refused(top):
    for k in (0, 6):
        with pytest.raises(Exception, match="TopLogProbs: k must be from 1 to the size of the vocabulary"):
            top.run(None, {"logits": np.zeros((1, 1, 5), np.float32), "k": np.array([k])})


def test_logits_that_are_no_numbers_are_survived(top):
    logits = np.zeros((2, 1, 300), np.float32)
    logits[0] = np.nan
    log_probs, ids = top.run(None, {"logits": logits, "k": np.array([3])})
    assert np.isnan(log_probs[0]).all()
    assert ids[1, 0].tolist() == [0, 1, 2]


@EXACT
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    size=st.integers(1, 300) | st.just(512),
    residual=st.booleans(),
    with_sum=st.booleans(),
)
def test_add_norm_is_layer_normalisation_of_the_sum(seed, rows, size, residual, with_sum):
    rng = np.random.default_rng(seed)
    constants = {name: rng.normal(size=size).astype(np.float32) for name in ("weight", "bias")}
    names = ["x", "residual" if residual else "", "weight", "bias"]
    outputs = ["normed", "sum"] if with_sum else ["normed"]
    node = native("AddNorm", names, outputs, epsilon=1e-5)
    feeds = {"x": rng.normal(size=(2, rows, size)).astype(np.float32) * 3 + 1}
    if residual:
        feeds["residual"] = rng.normal(size=(2, rows, size)).astype(np.float32)
    ours = session([node], dict.fromkeys(feeds, "f"), dict.fromkeys(outputs, "f"), constants)
    normed, *added = ours.run(None, feeds)
    total = sum(feeds.values()).astype(np.float64)
    centred = total - total.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(normed, expected * constants["weight"] + constants["bias"], rtol=1e-4, atol=2e-5)
    for found in added:
        np.testing.assert_array_equal(found, sum(feeds.values()))
    row = {name: value[1:, -1:] for name, value in feeds.items()}
    np.testing.assert_array_equal(ours.run(None, row)[0][0, 0], normed[1, -1])


def test_without_a_compiler_the_operators_are_not_built_and_the_error_says_so(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProviderError, match=r"a C\+\+ compiler is needed .* none of g\+\+, clang\+\+ is there"):
        build.build(tmp_path / "operators.so")


def test_a_compiler_that_fails_leaves_no_library(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ProviderError, match="the native operators must compile"):
        build.build(tmp_path / "operators.so")
    assert not list(tmp_path.iterdir())


def test_only_a_library_that_is_there_whole_and_of_these_sources_is_found(monkeypatch, tmp_path):
    path = tmp_path / "operators.so"
    assert "was not built" in str(build.obstacle(path))
    path.write_bytes(b"\x7fELF and no more")
    assert "cannot be loaded" in str(build.obstacle(path))
    path = shutil.copy(operators(), tmp_path / "fresh.so")
    assert build.obstacle(path) is None
    monkeypatch.setattr(build, "digest", lambda: "of other sources")
    assert "other sources" in str(build.obstacle(path))

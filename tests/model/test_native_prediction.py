"""The native operator that projects and chooses the best tokens at once, against the two that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.native_library import native, session, tiles
from tests.model.test_native_linear import linear_parts

INPUTS, OUTPUTS = {"x": "f", "k": "l"}, {"log_probs": "f", "ids": "l"}


def predictor(parts, scale=0.05, zero=128):
    node = native("LinearTopLogProbs", ["x", *parts, "k"], list(OUTPUTS), scale=scale, zero=zero)
    return session([node], INPUTS, OUTPUTS, parts)


def in_two_steps(parts, scale=0.05, zero=128):
    linear = native("QuantizedLinear", ["x", *parts], ["y"], scale=scale, zero=zero, relu=0)
    return session([linear, native("TopLogProbs", ["y", "k"], list(OUTPUTS))], INPUTS, OUTPUTS, parts)


def feeds(x, k):
    return {"x": x.astype(np.float32), "k": np.array([k])}


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 9) | st.just(40),
    lanes=st.integers(1, 4),
    size=st.integers(1, 300) | st.sampled_from([64, 128, 2000]),
    share=st.floats(0, 1),
    ties=st.booleans(),
    forbidden=st.booleans(),
    on_tiles=st.booleans(),
)
def test_the_best_are_those_of_the_linear_map_and_the_choice_after_it(
    *, seed, rows, lanes, size, share, ties, forbidden, on_tiles
):
    rng = np.random.default_rng(seed)
    parts = linear_parts(rng, 70, size)
    parts["weight_scale"] *= 0.05  # logits of some ten, as real ones are
    if ties:  # columns that are the same give logits that are the same
        for part in parts.values():
            part[...] = part[..., rng.integers(0, max(1, size // 8), size)]
    if forbidden:
        parts["bias"][rng.integers(0, size, size // 2)] = -np.inf
    found = feeds(rng.normal(size=(rows, lanes, 70)), 1 + round(share * (size - 1)))
    with tiles(on_tiles):
        log_probs, ids = predictor(parts).run(None, found)
    expected, expected_ids = in_two_steps(parts).run(None, found)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(log_probs, expected, rtol=1e-6, atol=4e-6)


def test_the_best_of_a_row_have_the_same_bits_in_any_company_and_for_any_k():
    rng = np.random.default_rng(13)
    predict = predictor(linear_parts(rng, 64, 1000))
    x = rng.normal(size=(60, 2, 64))
    log_probs, ids = predict.run(None, feeds(x, 1000))
    for b in (0, 7, 31, 59):
        for k in (1, 2, 8, 9, 100):
            alone, chosen = predict.run(None, feeds(x[b : b + 1, 1:], k))
            np.testing.assert_array_equal(alone[0, 0], log_probs[b, 1, :k])
            np.testing.assert_array_equal(chosen[0, 0], ids[b, 1, :k])


def test_a_row_for_which_all_is_forbidden_is_no_number():
    parts = linear_parts(np.random.default_rng(0), 16, 70)
    parts["bias"][:] = -np.inf
    log_probs, ids = predictor(parts).run(None, feeds(np.zeros((1, 1, 16)), 3))
    assert np.isnan(log_probs).all()
    assert ids.tolist() == [[[0, 1, 2]]]


def test_logits_that_are_no_numbers_spoil_only_their_own_row():
    parts = linear_parts(np.random.default_rng(0), 16, 70)
    parts["bias"][:] = np.nan
    log_probs, ids = predictor(parts).run(None, feeds(np.zeros((2, 1, 16)), 3))
    assert np.isnan(log_probs).all()
    assert (ids == 0).all()


def test_no_rows_give_no_predictions():
    predict = predictor(linear_parts(np.random.default_rng(0), 16, 70))
    assert [found.shape for found in predict.run(None, feeds(np.zeros((0, 1, 16)), 3))] == [(0, 1, 3)] * 2


@pytest.mark.parametrize(
    ("width", "k", "message"),
    [
        (16, 0, "k must be from 1 to the size of the vocabulary"),
        (16, 71, "k must be from 1 to the size of the vocabulary"),
        (17, 1, r"x must be \(B, W, K\) and k \(1\)"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_words(width, k, message):
    predict = predictor(linear_parts(np.random.default_rng(0), 16, 70))
    with pytest.raises(Exception, match=f"LinearTopLogProbs: {message}"):
        predict.run(None, feeds(np.zeros((1, 1, width)), k))

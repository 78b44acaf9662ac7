"""The native operators compute what the stock ones compute, and a row's bits depend on nothing but the row."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from model.export.graph import MICROSOFT
from tests.model.native_library import NATIVE, operators, session

pytestmark = pytest.mark.usefixtures("library")
EXACT = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def library():
    return operators()


def native(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, domain=NATIVE, **attributes)


# QuantizedLinear


def linear_parts(rng, inputs, outputs):
    return {
        "weight": rng.integers(-127, 128, (inputs, outputs)).astype(np.int8),
        "weight_scale": rng.uniform(1e-3, 1e-1, outputs).astype(np.float32),
        "bias": rng.normal(size=outputs).astype(np.float32),
    }


def native_linear(parts, scale, zero, relu=0, residual=False):
    names = ["x", *parts, *(["residual"] if residual else [])]
    node = native("QuantizedLinear", names, ["y"], scale=scale, zero=zero, relu=relu)
    inputs = {name: "f" for name in names if name not in parts}
    return session([node], inputs, {"y": "f"}, parts)


def stock_linear(parts, scale, zero, relu=0, residual=False):
    product = ["q", "weight", "scale", "weight_scale", "zero", "weight_zero", "bias"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("MatMulIntegerToFloat", product, ["product"], domain=MICROSOFT),
        helper.make_node("Relu" if relu else "Identity", ["product"], ["positive"]),
        helper.make_node("Add", ["positive", "residual"], ["y"])
        if residual
        else helper.make_node("Identity", ["positive"], ["y"]),
    ]
    constants = {
        **parts,
        "scale": np.float32(scale),
        "zero": np.uint8(zero),
        "weight_zero": np.int8(0),
    }
    return session(nodes, {"x": "f", **({"residual": "f"} if residual else {})}, {"y": "f"}, constants, native=False)


@EXACT
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 70) | st.sampled_from([96, 97, 200]),
    inputs=st.integers(1, 300) | st.sampled_from([256, 512]),
    outputs=st.integers(1, 300) | st.sampled_from([64, 256]),
    zero=st.integers(0, 255),
    relu=st.sampled_from([0, 1]),
    residual=st.booleans(),
)
def test_a_quantised_linear_map_has_the_bits_of_the_stock_operators(
    *, seed, rows, inputs, outputs, zero, relu, residual
):
    rng = np.random.default_rng(seed)
    parts, scale = linear_parts(rng, inputs, outputs), float(rng.uniform(1e-3, 1e-1))
    steps = rng.integers(-400, 400, (rows, inputs)) * 0.5  # half of them ties between two bytes, some out of range
    feeds = {"x": np.where(rng.random((rows, inputs)) < 0.5, steps * scale, rng.normal(size=(rows, inputs)))}
    if residual:
        feeds["residual"] = rng.normal(size=(rows, outputs))
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    options = (parts, scale, zero, relu, residual)
    (ours,), (stock,) = native_linear(*options).run(None, feeds), stock_linear(*options).run(None, feeds)
    np.testing.assert_array_equal(ours, stock)


def test_a_quantised_linear_map_keeps_all_axes_but_the_last(library):
    parts = linear_parts(np.random.default_rng(0), 20, 30)
    linear = native_linear(parts, 0.05, 128)
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 20)).astype(np.float32)
    (y,) = linear.run(None, {"x": x})
    assert y.shape == (2, 3, 5, 30)
    np.testing.assert_array_equal(y.reshape(30, 30), linear.run(None, {"x": x.reshape(30, 20)})[0])
    assert linear.run(None, {"x": np.zeros((0, 20), np.float32)})[0].shape == (0, 30)


def test_a_row_of_a_linear_map_has_the_same_bits_alone_and_anywhere_in_any_batch():
    rng = np.random.default_rng(3)
    linear = native_linear(linear_parts(rng, 130, 100), 0.02, 100)
    x = rng.normal(size=(210, 130)).astype(np.float32)
    alone = np.concatenate([linear.run(None, {"x": row[None]})[0] for row in x])
    for count in (1, 2, 5, 6, 7, 12, 13, 32, 64, 96, 97, 210):
        for begin in (0, 210 - count):
            chosen = slice(begin, begin + count)
            np.testing.assert_array_equal(linear.run(None, {"x": x[chosen]})[0], alone[chosen])


def test_a_linear_map_survives_what_is_no_number():
    rng = np.random.default_rng(4)
    linear = native_linear(linear_parts(rng, 40, 70), 0.02, 100)
    x = rng.normal(size=(3, 40)).astype(np.float32)
    (clean,) = linear.run(None, {"x": x})
    x[1, ::3], x[1, 1::3], x[1, 2::3] = np.nan, np.inf, -np.inf
    (y,) = linear.run(None, {"x": x})
    np.testing.assert_array_equal(y[[0, 2]], clean[[0, 2]])
    assert np.isfinite(y).all()


def test_a_weight_that_is_computed_is_refused_by_its_name():
    parts = linear_parts(np.random.default_rng(0), 8, 8)
    node = native("QuantizedLinear", ["x", *parts], ["y"], scale=1.0, zero=0, relu=0)
    del parts["weight"]
    with pytest.raises(Exception, match="QuantizedLinear: weight must be a constant initializer"):
        session([node], {"x": "f", "weight": "b"}, {"y": "f"}, parts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero": 256}, "zero must be from 0 to 255"),
        ({"scale": 0.0}, "scale must be above 0"),
        ({"bias": np.zeros(7, np.float32)}, r"bias must be \(N\)"),
        ({"weight_scale": np.zeros(9, np.float32)}, r"weight_scale must be \(N\)"),
    ],
)
def test_a_linear_map_that_contradicts_itself_is_refused_when_it_is_made(change, message):
    parts = linear_parts(np.random.default_rng(0), 8, 8)
    attributes = {"scale": 1.0, "zero": 0, "relu": 0} | {k: v for k, v in change.items() if k in ("scale", "zero")}
    parts |= {name: value for name, value in change.items() if name in parts}
    with pytest.raises(Exception, match=message):
        session([native("QuantizedLinear", ["x", *parts], ["y"], **attributes)], {"x": "f"}, {"y": "f"}, parts)


def test_inputs_of_the_wrong_width_are_refused_in_words():
    linear = native_linear(linear_parts(np.random.default_rng(0), 8, 8), 1.0, 0)
    with pytest.raises(Exception, match="QuantizedLinear: the last axis of x must be K"):
        linear.run(None, {"x": np.zeros((2, 9), np.float32)})


# Attention


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attend(query, key, value, seen):
    """A float64 twin for one head: query (W, K), key and value (S, K), seen (W, S) -> (W, K)."""
    scores = np.where(seen, query.astype(np.float64) @ key.astype(np.float64).T, -np.inf)
    return softmax(scores) @ value.astype(np.float64)


HEAD_SIZES = [16, 32, 48, 64, 80, 96, 112, 128]


def cross_attention(heads):
    node = native("CrossAttention", ["query", "key", "value", "lengths"], ["y"], heads=heads)
    return session([node], {"query": "f", "key": "f", "value": "f", "lengths": "i"}, {"y": "f"}, {})


def cross_feeds(rng, rows, lanes, heads, source, size):
    return {
        "query": rng.normal(size=(rows, lanes, heads * size)).astype(np.float32) / np.float32(np.sqrt(size)),
        "key": rng.normal(size=(rows, heads, source, size)).astype(np.float32),
        "value": rng.normal(size=(rows, heads, source, size)).astype(np.float32),
        "lengths": rng.integers(1, source + 1, rows).astype(np.int32),
    }


@EXACT
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 4),
    lanes=st.integers(1, 8),
    heads=st.integers(1, 4),
    source=st.integers(1, 70),
    size=st.sampled_from(HEAD_SIZES),
)
def test_cross_attention_is_attention_to_the_real_source(seed, rows, lanes, heads, source, size):
    feeds = cross_feeds(np.random.default_rng(seed), rows, lanes, heads, source, size)
    (y,) = cross_attention(heads).run(None, feeds)
    for b in range(rows):
        seen = np.broadcast_to(np.arange(source) < feeds["lengths"][b], (lanes, source))
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            expected = attend(feeds["query"][b, :, part], feeds["key"][b, h], feeds["value"][b, h], seen)
            np.testing.assert_allclose(y[b, :, part], expected, rtol=2e-5, atol=2e-6)


def test_cross_attention_gives_the_same_bits_alone_in_any_company_and_with_more_padding():
    rng = np.random.default_rng(5)
    feeds = cross_feeds(rng, 5, 4, 2, 37, 32)
    attention = cross_attention(2)
    (together,) = attention.run(None, feeds)
    for b in range(5):
        for w in range(4):
            alone = {name: value[b : b + 1] for name, value in feeds.items()}
            length = int(alone["lengths"][0])
            alone["query"] = alone["query"][:, w : w + 1]
            alone["key"], alone["value"] = alone["key"][:, :, :length], alone["value"][:, :, :length]
            np.testing.assert_array_equal(attention.run(None, alone)[0][0, 0], together[b, w])


def tree_attention(heads):
    names = ["qkv", "past_key", "past_value", "write_index", "visible"]
    node = native("TreeAttention", names, ["y", "present_key", "present_value"], heads=heads)
    inputs = {name: "l" if name == "write_index" else "f" for name in names}
    return session([node], inputs, {"y": "f", "present_key": "f", "present_value": "f"}, {})


def tree_feeds(rng, rows, lanes, heads, capacity, size):
    written = rng.integers(0, capacity - lanes + 1, rows)
    visible = np.where(rng.random((rows, 1, lanes, capacity)) < 0.4, 0.0, -1e9).astype(np.float32)
    for b in range(rows):
        for w in range(lanes):
            visible[b, 0, w, written[b] + w] = 0.0
    return {
        "qkv": rng.normal(size=(rows, lanes, 3 * heads * size)).astype(np.float32) / np.float32(np.sqrt(size)),
        "past_key": rng.normal(size=(rows, heads, capacity, size)).astype(np.float32),
        "past_value": rng.normal(size=(rows, heads, capacity, size)).astype(np.float32),
        "write_index": written,
        "visible": visible,
    }


def expected_tree(feeds, heads, size):
    qkv, written = feeds["qkv"], feeds["write_index"]
    rows, lanes, _ = qkv.shape
    query, key, value = (part.reshape(rows, lanes, heads, size) for part in np.split(qkv, 3, axis=2))
    keys, values = feeds["past_key"].copy(), feeds["past_value"].copy()
    y = np.zeros((rows, lanes, heads, size))
    for b in range(rows):
        end = written[b] + lanes
        keys[b, :, written[b] : end], values[b, :, written[b] : end] = key[b].swapaxes(0, 1), value[b].swapaxes(0, 1)
        seen = feeds["visible"][b, 0, :, :end] == 0.0
        for h in range(heads):
            y[b, :, h] = attend(query[b, :, h], keys[b, h, :end], values[b, h, :end], seen)
    return y.reshape(rows, lanes, -1), keys, values


@EXACT
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 4),
    lanes=st.integers(1, 8),
    heads=st.integers(1, 4),
    room=st.integers(0, 70),
    size=st.sampled_from(HEAD_SIZES),
)
def test_a_tree_step_writes_its_entries_and_attends_to_what_each_lane_sees(seed, rows, lanes, heads, room, size):
    feeds = tree_feeds(np.random.default_rng(seed), rows, lanes, heads, lanes + room, size)
    before = feeds["past_key"].copy()
    y, keys, values = tree_attention(heads).run(None, feeds)
    expected, expected_keys, expected_values = expected_tree(feeds, heads, size)
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(keys, expected_keys)
    np.testing.assert_array_equal(values, expected_values)
    np.testing.assert_array_equal(feeds["past_key"], before)


def test_a_tree_step_bound_in_place_gives_the_same_bits_and_writes_only_its_entries():
    feeds = tree_feeds(np.random.default_rng(7), 3, 4, 2, 29, 64)
    attention = tree_attention(2)
    y, keys, values = attention.run(None, feeds)
    caches = {name: ort.OrtValue.ortvalue_from_numpy(feeds[f"past_{name}"]) for name in ("key", "value")}
    binding = attention.io_binding()
    for name in ("qkv", "write_index", "visible"):
        binding.bind_cpu_input(name, feeds[name])
    for name, cache in caches.items():
        binding.bind_ortvalue_input(f"past_{name}", cache)
        binding.bind_ortvalue_output(f"present_{name}", cache)
    binding.bind_output("y")
    attention.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[-1].numpy(), y)
    np.testing.assert_array_equal(caches["key"].numpy(), keys)
    np.testing.assert_array_equal(caches["value"].numpy(), values)


def test_a_tree_step_gives_the_same_bits_alone_in_any_company_and_at_any_capacity():
    rng = np.random.default_rng(8)
    feeds = tree_feeds(rng, 5, 3, 2, 61, 32)
    attention = tree_attention(2)
    (together, *_) = attention.run(None, feeds)
    for b in range(5):
        alone = {name: value[b : b + 1] for name, value in feeds.items()}
        end = int(alone["write_index"][0]) + 3
        for room in (0, 1, 16, 100):
            grown = {name: np.full((1, 2, end + room, 32), np.nan, np.float32) for name in ("past_key", "past_value")}
            for name, cache in grown.items():
                cache[:, :, :end] = alone[name][:, :, :end]
            visible = np.zeros((1, 1, 3, end + room), np.float32)  # what lies past the step must not be looked at
            visible[..., :end] = alone["visible"][..., :end]
            (y, *_) = attention.run(None, alone | grown | {"visible": visible})
            np.testing.assert_array_equal(y[0], together[b])


def test_a_lane_gives_the_same_bits_wherever_its_ancestors_lie_in_the_tree():
    rng = np.random.default_rng(9)
    feeds = tree_feeds(rng, 1, 1, 2, 24, 64)
    feeds["write_index"][:] = 23
    feeds["visible"][:] = 0.0
    (straight, *_) = tree_attention(2).run(None, feeds)
    places = np.sort(rng.choice(92, 23, replace=False))
    spread = {name: np.full((1, 2, 96, 64), np.nan, np.float32) for name in ("past_key", "past_value")}
    for name, cache in spread.items():
        cache[:, :, places] = feeds[name][:, :, :23]
    visible = np.full((1, 1, 1, 96), -1e9, np.float32)
    visible[..., places] = visible[..., 92] = 0.0
    (y, *_) = tree_attention(2).run(None, feeds | spread | {"visible": visible, "write_index": np.array([92])})
    np.testing.assert_array_equal(y, straight)


def test_a_lane_that_sees_nothing_gives_zeros():
    feeds = tree_feeds(np.random.default_rng(10), 2, 2, 1, 20, 16)
    feeds["visible"][1, 0, 1] = -1e9
    (y, *_) = tree_attention(1).run(None, feeds)
    assert not y[1, 1].any()
    assert y[0].any()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("index", [-1, 19])
def test_a_tree_step_refuses_to_write_outside_the_cache(index):
    feeds = tree_feeds(np.random.default_rng(11), 2, 2, 1, 20, 16)
    feeds["write_index"][1] = index
    with pytest.raises(
        Exception, match="TreeAttention: write_index and the lanes after it must lie within the capacity"
    ):
        tree_attention(1).run(None, feeds)


def self_attention(heads):
    node = native("SelfAttention", ["qkv", "lengths"], ["y"], heads=heads)
    return session([node], {"qkv": "f", "lengths": "i"}, {"y": "f"}, {})


@EXACT
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 4),
    heads=st.integers(1, 4),
    source=st.integers(1, 90),
    size=st.sampled_from(HEAD_SIZES),
)
def test_self_attention_is_attention_to_the_real_positions_and_zero_elsewhere(seed, rows, heads, source, size):
    rng = np.random.default_rng(seed)
    qkv = rng.normal(size=(rows, source, 3 * heads * size)).astype(np.float32) / np.float32(size**0.25)
    lengths = rng.integers(1, source + 1, rows).astype(np.int32)
    (y,) = self_attention(heads).run(None, {"qkv": qkv, "lengths": lengths})
    query, key, value = (part.reshape(rows, source, heads, size) for part in np.split(qkv, 3, axis=2))
    for b, length in enumerate(lengths):
        seen = np.broadcast_to(np.arange(source) < length, (source, source))
        assert not y[b, length:].any()
        for h in range(heads):
            expected = attend(query[b, :, h], key[b, :, h], value[b, :, h], seen)[:length]
            np.testing.assert_allclose(y[b, :length, h * size : (h + 1) * size], expected, rtol=3e-5, atol=3e-6)


def test_self_attention_gives_the_same_bits_alone_and_with_more_padding():
    rng = np.random.default_rng(12)
    qkv = rng.normal(size=(4, 70, 3 * 64)).astype(np.float32)
    lengths = np.array([1, 16, 33, 70], np.int32)
    attention = self_attention(2)
    (together,) = attention.run(None, {"qkv": qkv, "lengths": lengths})
    for b, length in enumerate(lengths):
        (alone,) = attention.run(None, {"qkv": qkv[b : b + 1, :length], "lengths": lengths[b : b + 1]})
        np.testing.assert_array_equal(alone[0], together[b, :length])


@pytest.mark.parametrize("size", [8, 24, 144])
def test_a_head_of_a_size_without_a_kernel_is_refused(size):
    with pytest.raises(Exception, match="the size of a head must be a multiple of 16 from 16 to 128"):
        cross_attention(2).run(None, cross_feeds(np.random.default_rng(0), 1, 1, 2, 3, size))


# TopLogProbs


@pytest.fixture(scope="module")
def top(library):
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


# AddNorm


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

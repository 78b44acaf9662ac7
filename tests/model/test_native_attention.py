"""The native attentions are attention, and a lane's bits depend only on what the lane sees."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.native_library import native, session

EXACT = settings(max_examples=40, deadline=None)


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


def test_threads_that_share_a_session_do_not_disturb_each_other():
    rng = np.random.default_rng(14)
    attention = tree_attention(2)
    several = [tree_feeds(rng, rows, 2, 2, 20 + 30 * rows, 64) for rows in (1, 2, 3, 4)]
    alone = [attention.run(None, feeds)[0] for feeds in several]
    with ThreadPoolExecutor(len(several)) as pool:
        for _ in range(20):
            together = pool.map(lambda feeds: attention.run(None, feeds)[0], several)
            for found, expected in zip(together, alone, strict=True):
                np.testing.assert_array_equal(found, expected)


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

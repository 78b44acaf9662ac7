"""The native int8 linear map has the bits of the stock operators, and each row the bits that it has alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from model.export.graph import MICROSOFT
from tests.model.native_library import native, session

EXACT = settings(max_examples=40, deadline=None)


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


def test_a_quantised_linear_map_keeps_all_axes_but_the_last():
    parts = linear_parts(np.random.default_rng(0), 20, 30)
    linear = native_linear(parts, 0.05, 128)
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 20)).astype(np.float32)
    (y,) = linear.run(None, {"x": x})
    assert y.shape == (2, 3, 5, 30)
    np.testing.assert_array_equal(y.reshape(30, 30), linear.run(None, {"x": x.reshape(30, 20)})[0])
    assert linear.run(None, {"x": np.zeros((0, 20), np.float32)})[0].shape == (0, 30)


@EXACT
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 4),
    source=st.integers(1, 60),
    heads=st.integers(1, 9),
    size=st.sampled_from([16, 32, 48, 64]),
)
def test_a_linear_map_that_gives_heads_is_the_plain_one_turned(*, seed, rows, source, heads, size):
    rng = np.random.default_rng(seed)
    parts = linear_parts(rng, 24, heads * size)
    x = rng.normal(size=(rows, source, 24)).astype(np.float32)
    (plain,) = native_linear(parts, 0.05, 128).run(None, {"x": x})
    node = native("QuantizedLinear", ["x", *parts], ["y"], scale=0.05, zero=128, relu=0, heads=heads)
    (y,) = session([node], {"x": "f"}, {"y": "f"}, parts).run(None, {"x": x})
    turned = plain.reshape(rows, source, heads, size).transpose(0, 2, 1, 3)  # (B, S, D) -> (B, H, S, K)
    np.testing.assert_array_equal(y, turned)


@EXACT
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 30) | st.sampled_from([97, 200]),
    inputs=st.integers(1, 100),
    hidden=st.integers(1, 200),
    zero=st.integers(0, 255),
    residual=st.booleans(),
)
def test_a_feed_forward_is_two_linear_maps_with_a_relu_between_bit_for_bit(
    *, seed, rows, inputs, hidden, zero, residual
):
    rng = np.random.default_rng(seed)
    inner, outer = linear_parts(rng, inputs, hidden), linear_parts(rng, hidden, inputs)
    feeds = {"x": rng.normal(size=(rows, inputs)).astype(np.float32)}
    (middle,) = native_linear(inner, 0.03, zero, relu=1).run(None, feeds)
    scale = float(max(middle.max(), 1e-3) / 300)  # some hidden numbers are out of range
    rest = {"residual": rng.normal(size=(rows, inputs)).astype(np.float32)} if residual else {}
    (expected,) = native_linear(outer, scale, 0, residual=residual).run(None, {"x": middle} | rest)
    parts = {f"inner_{name}": value for name, value in inner.items()} | outer
    node = native("FeedForward", ["x", *parts, *rest], ["y"], scale=0.03, zero=zero, hidden_scale=scale)
    (y,) = session([node], dict.fromkeys(feeds | rest, "f"), {"y": "f"}, parts).run(None, feeds | rest)
    np.testing.assert_array_equal(y, expected)


def test_a_row_of_a_linear_map_has_the_same_bits_alone_and_anywhere_in_any_batch():
    rng = np.random.default_rng(3)
    linear = native_linear(linear_parts(rng, 130, 100), 0.02, 100)
    x = rng.normal(size=(210, 130)).astype(np.float32)
    alone = np.concatenate([linear.run(None, {"x": row[None]})[0] for row in x])
    for count in (1, 2, 5, 6, 7, 12, 13, 32, 64, 96, 97, 210):
        for begin in (0, 210 - count):
            chosen = slice(begin, begin + count)
            np.testing.assert_array_equal(linear.run(None, {"x": x[chosen]})[0], alone[chosen])


def test_threads_that_share_a_linear_map_do_not_disturb_each_other():
    rng = np.random.default_rng(15)
    linear = native_linear(linear_parts(rng, 256, 128), 0.02, 100)
    several = [rng.normal(size=(rows, 256)).astype(np.float32) for rows in (1, 7, 50, 200)]
    alone = [linear.run(None, {"x": x})[0] for x in several]
    with ThreadPoolExecutor(len(several)) as pool:
        for _ in range(20):
            together = pool.map(lambda x: linear.run(None, {"x": x})[0], several)
            for found, expected in zip(together, alone, strict=True):
                np.testing.assert_array_equal(found, expected)


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
        ({"heads": 3}, "the outputs must be shared out to heads of a multiple of 16"),
        ({"bias": np.zeros(7, np.float32)}, r"bias must be \(N\)"),
        ({"weight_scale": np.zeros(9, np.float32)}, r"weight_scale must be \(N\)"),
    ],
)
def test_a_linear_map_that_contradicts_itself_is_refused_when_it_is_made(change, message):
    parts = linear_parts(np.random.default_rng(0), 8, 8)
    attributes = {"scale": 1.0, "zero": 0, "relu": 0}
    for name, value in change.items():
        (parts if name in parts else attributes)[name] = value
    with pytest.raises(Exception, match=message):
        session([native("QuantizedLinear", ["x", *parts], ["y"], **attributes)], {"x": "f"}, {"y": "f"}, parts)


def test_inputs_of_the_wrong_width_are_refused_in_words():
    linear = native_linear(linear_parts(np.random.default_rng(0), 8, 8), 1.0, 0)
    with pytest.raises(Exception, match="QuantizedLinear: the last axis of x must be K"):
        linear.run(None, {"x": np.zeros((2, 9), np.float32)})

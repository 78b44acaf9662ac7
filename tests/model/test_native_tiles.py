"""Products on matrix tiles have the bits of those on vectors. Skipped where the CPU has no tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.native_library import native, session, tiles
from tests.model.test_native_linear import linear_parts, native_linear

EXACT = settings(max_examples=60, deadline=None)


@pytest.fixture(autouse=True)
def there():
    with tiles(True) as found:
        if not found:
            pytest.skip("needs a CPU with matrix tiles")


def on_both(run):
    with tiles(False):
        vectors = run()
    with tiles(True):
        return vectors, run()


@EXACT
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 100) | st.sampled_from([112, 192, 193]),
    inputs=st.integers(1, 300) | st.sampled_from([512, 2048]),
    outputs=st.integers(1, 300) | st.just(1000),
    zero=st.integers(0, 255),
    residual=st.booleans(),
)
def test_a_linear_map_on_tiles_has_the_bits_of_one_on_vectors(*, seed, rows, inputs, outputs, zero, residual):
    rng = np.random.default_rng(seed)
    linear = native_linear(linear_parts(rng, inputs, outputs), 0.02, zero, residual=residual)
    feeds = {"x": rng.normal(size=(rows, inputs)).astype(np.float32)}
    if residual:
        feeds["residual"] = rng.normal(size=(rows, outputs)).astype(np.float32)
    vectors, found = on_both(lambda: linear.run(None, feeds)[0])
    np.testing.assert_array_equal(found, vectors)


@EXACT
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 100), inputs=st.integers(1, 100), hidden=st.integers(1, 300))
def test_a_feed_forward_on_tiles_has_the_bits_of_one_on_vectors(*, seed, rows, inputs, hidden):
    rng = np.random.default_rng(seed)
    inner, outer = linear_parts(rng, inputs, hidden), linear_parts(rng, hidden, inputs)
    parts = {f"inner_{name}": value for name, value in inner.items()} | outer
    node = native("FeedForward", ["x", *parts], ["y"], scale=0.03, zero=120, hidden_scale=0.05)
    forward = session([node], {"x": "f"}, {"y": "f"}, parts)
    x = rng.normal(size=(rows, inputs)).astype(np.float32)
    vectors, found = on_both(lambda: forward.run(None, {"x": x})[0])
    np.testing.assert_array_equal(found, vectors)


def test_sums_as_large_as_they_can_be_are_exact_on_tiles():
    parts = linear_parts(np.random.default_rng(0), 65536, 64)
    parts["weight"][:] = 127
    linear = native_linear(parts, 1.0, 0)
    vectors, found = on_both(lambda: linear.run(None, {"x": np.full((33, 65536), 255, np.float32)})[0])
    np.testing.assert_array_equal(found, vectors)
    expected = 65536 * 255 * 127 * parts["weight_scale"].astype(np.float64) + parts["bias"]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)

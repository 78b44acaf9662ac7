"""Operators share large work out to the threads of the session, and each number is still computed as by one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.model.native_library import native, session

Arrays = dict[str, np.ndarray]

TYPES = {"float32": "f", "int32": "i", "int64": "l"}


@dataclass(frozen=True)
class Case:
    """One operator with so much to do that it is shared out."""

    kind: str
    feeds: Arrays
    outputs: tuple[str, ...] = ("y:f",)
    constants: Arrays = field(default_factory=dict)
    attributes: dict[str, float] = field(default_factory=dict)

    def run(self, threads: int, times: int = 1) -> list[list[np.ndarray]]:
        outputs = dict(output.split(":") for output in self.outputs)
        node = native(self.kind, [*self.feeds, *self.constants], list(outputs), **self.attributes)
        inputs = {name: TYPES[value.dtype.name] for name, value in self.feeds.items()}
        opened = session([node], inputs, outputs, self.constants, threads=threads)
        return [opened.run(None, self.feeds) for _ in range(times)]


def weights(rng: np.random.Generator, number: str, inputs: int, outputs: int) -> Arrays:
    return {
        f"weight{number}": rng.integers(-127, 128, (inputs, outputs)).astype(np.int8),
        f"scale{number}": rng.uniform(0.001, 0.01, outputs).astype(np.float32),
        f"bias{number}": rng.normal(size=outputs).astype(np.float32),
    }


def cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    rows, lanes, heads, size, length = 9, 4, 8, 64, 150
    width, capacity = heads * size, 160 * lanes
    lengths = rng.integers(1, length + 1, rows).astype(np.int32)
    visible = np.where(rng.random((rows, 1, lanes, capacity)) < 0.3, 0.0, -1e9).astype(np.float32)
    memory = {"key": normal(rows, heads, length, size), "value": normal(rows, heads, length, size), "lengths": lengths}
    caches = {f"past_{kind}": normal(rows, heads, capacity, size) for kind in ("key", "value")}
    written = {"write_index": rng.integers(400, 600, rows), "visible": visible}
    return {
        "linear": Case(
            "QuantizedLinear",
            {"x": normal(130, 512)},
            constants=weights(rng, "", 512, 1000),
            attributes={"scale": 0.03, "zero": 120, "relu": 0},
        ),
        "feed-forward": Case(
            "FeedForward",
            {"x": normal(130, 256)},
            constants=weights(rng, "_1", 256, 1024) | weights(rng, "_2", 1024, 256),
            attributes={"scale": 0.03, "zero": 120, "hidden_scale": 0.05},
        ),
        "tree": Case(
            "TreeAttention",
            {"qkv": normal(rows, lanes, 3 * width), **caches, **written},
            ("y:f", "present_key:f", "present_value:f"),
            attributes={"heads": heads},
        ),
        "cross": Case("CrossAttention", {"query": normal(rows, lanes, width), **memory}, attributes={"heads": heads}),
        "self": Case(
            "SelfAttention", {"qkv": normal(rows, length, 3 * width), "lengths": lengths}, attributes={"heads": heads}
        ),
        "best": Case(
            "TopLogProbs", {"logits": normal(rows, lanes, 9000), "k": np.array([40])}, ("log_probs:f", "ids:l")
        ),
        "predicted": Case(
            "LinearTopLogProbs",
            {"x": normal(rows, lanes, 512)},
            ("log_probs:f", "ids:l"),
            constants=weights(rng, "", 512, 9000) | {"k": np.array([40])},
            attributes={"scale": 0.03, "zero": 120},
        ),
    }


@pytest.mark.parametrize("name", ["linear", "feed-forward", "tree", "cross", "self", "best", "predicted"])
def test_several_threads_give_the_bits_of_one(name):
    case = cases()[name]
    (expected,) = case.run(threads=1)
    for found in case.run(threads=4, times=20):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)

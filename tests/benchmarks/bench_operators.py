"""What each native operator costs beside the stock ones that it replaces: a table in microseconds.

    python -m tests.benchmarks.bench_operators --only linear

One thread. "near": the same node again and again, so that all it reads is in a cache. "far": many nodes of one shape
with weights or caches of their own, 40 MB at least, as in a decoder step. Processor time that a tenth of all runs stay
below, since others share the caches. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnxruntime as ort
from onnx import NodeProto, helper

from model.export.graph import MICROSOFT, GraphWriter
from model.export.stock import top_k
from tests.model.native_library import NATIVE, session

FAR = 40e6
"""Bytes that all nodes of a far graph read together."""


@dataclass
class Graph:
    """Nodes over shared inputs; `outputs` are bound to one buffer for each shape."""

    nodes: list[NodeProto] = field(default_factory=list)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: object) -> None:
        self.nodes.append(helper.make_node(kind, inputs, outputs, domain=domain, **attributes))

    def microseconds(self, count: int, seconds: float) -> float:
        """Processor time of one of `count` equal parts of the graph."""
        kinds = {np.dtype(np.float32): "f", np.dtype(np.int32): "i", np.dtype(np.int64): "l"}
        inputs, outputs = (
            {name: kinds[value.dtype] for name, value in ports.items()} for ports in (self.inputs, self.outputs)
        )
        graph = session(self.nodes, inputs, outputs, self.constants)
        binding = graph.io_binding()
        for name, value in self.inputs.items():
            binding.bind_cpu_input(name, value)
        for name, value in self.outputs.items():
            pointer = value.ctypes.data
            binding.bind_output(name, "cpu", 0, value.dtype.type, value.shape, pointer)
        return 1e6 * _time(graph, binding, seconds) / count


def _time(graph: ort.InferenceSession, binding: ort.IOBinding, seconds: float) -> float:
    taken: list[float] = []
    for _ in range(3):
        graph.run_with_iobinding(binding)
    begun = time.process_time()
    while time.process_time() - begun < seconds or len(taken) < 5:
        before = time.process_time()
        graph.run_with_iobinding(binding)
        taken.append(time.process_time() - before)
    return float(np.quantile(taken, 0.1))


def copies(bytes_each: int, far: bool) -> int:
    return max(1, round(FAR / bytes_each)) if far else 1


def linear(native: bool, far: bool, rows: int, inputs: int, outputs: int) -> tuple[Graph, int]:
    rng, graph, count = np.random.default_rng(0), Graph(), copies(inputs * outputs, far)
    graph.inputs["x"] = rng.normal(size=(rows, 1, inputs)).astype(np.float32)
    shared = np.empty((rows, 1, outputs), np.float32)
    graph.constants = {"scale": np.float32(0.03), "zero": np.uint8(128), "weight_zero": np.int8(0)}
    graph.constants |= {"bias": np.zeros(outputs, np.float32), "weight_scale": np.full(outputs, 1e-3, np.float32)}
    for i in range(count):
        graph.constants[f"w{i}"] = rng.integers(-127, 128, (inputs, outputs)).astype(np.int8)
        graph.outputs[f"y{i}"] = shared
        if native:
            names = ["x", f"w{i}", "weight_scale", "bias"]
            graph.add("QuantizedLinear", names, [f"y{i}"], NATIVE, scale=0.03, zero=128, relu=0)
        else:
            graph.constants[f"scale{i}"], names = np.float32(0.03), [f"q{i}", f"w{i}", f"scale{i}"]
            graph.add("QuantizeLinear", ["x", f"scale{i}", "zero"], [f"q{i}"])
            names += ["weight_scale", "zero", "weight_zero", "bias"]
            graph.add("MatMulIntegerToFloat", names, [f"y{i}"], MICROSOFT)
    return graph, count


def forward(native: bool, far: bool, rows: int, width: int) -> tuple[Graph, int]:
    rng, graph, hidden = np.random.default_rng(0), Graph(), 4 * width
    count = copies(2 * width * hidden, far)
    graph.inputs["x"] = rng.normal(size=(rows, 1, width)).astype(np.float32)
    shared = np.empty((rows, 1, width), np.float32)
    graph.constants = {"zero": np.uint8(128), "no_zero": np.uint8(0), "weight_zero": np.int8(0)}
    for name, outputs in (("inner", hidden), ("outer", width)):
        graph.constants |= {f"{name}_bias": np.zeros(outputs, np.float32)}
        graph.constants |= {f"{name}_scale": np.full(outputs, 1e-3, np.float32)}
    for i in range(count):
        graph.constants[f"u{i}"] = rng.integers(-127, 128, (width, hidden)).astype(np.int8)
        graph.constants[f"w{i}"] = rng.integers(-127, 128, (hidden, width)).astype(np.int8)
        graph.outputs[f"y{i}"] = shared
        if native:
            names = ["x", f"u{i}", "inner_scale", "inner_bias", f"w{i}", "outer_scale", "outer_bias"]
            graph.add("FeedForward", names, [f"y{i}"], NATIVE, scale=0.03, zero=128, hidden_scale=0.02)
        else:
            graph.constants |= {f"s{i}": np.float32(0.03), f"t{i}": np.float32(0.02)}
            graph.add("QuantizeLinear", ["x", f"s{i}", "zero"], [f"q{i}"])
            names = [f"q{i}", f"u{i}", f"s{i}", "inner_scale", "zero", "weight_zero", "inner_bias"]
            graph.add("MatMulIntegerToFloat", names, [f"h{i}"], MICROSOFT)
            graph.add("QuantizeLinear", [f"h{i}", f"t{i}", "no_zero"], [f"r{i}"])
            names = [f"r{i}", f"w{i}", f"t{i}", "outer_scale", "no_zero", "weight_zero", "outer_bias"]
            graph.add("MatMulIntegerToFloat", names, [f"y{i}"], MICROSOFT)
    return graph, count


@dataclass(frozen=True)
class Heads:
    rows: int
    lanes: int
    count: int
    size: int
    source: int

    @property
    def width(self) -> int:
        return self.count * self.size


def cross(native: bool, far: bool, shape: Heads) -> tuple[Graph, int]:
    rng, graph = np.random.default_rng(0), Graph()
    cache = (shape.rows, shape.count, shape.source, shape.size)
    count = copies(8 * int(np.prod(cache)), far)
    graph.inputs["query"] = rng.normal(size=(shape.rows, shape.lanes, shape.width)).astype(np.float32) / 8
    graph.inputs["lengths"] = np.full(shape.rows, shape.source, np.int32)
    shared = np.empty_like(graph.inputs["query"])
    for i in range(count):
        graph.outputs[f"y{i}"] = shared
        for kind in ("key", "value"):
            graph.inputs[f"{kind}{i}"] = rng.normal(size=cache).astype(np.float32)
        if native:
            names = ["query", f"key{i}", f"value{i}", "lengths"]
            graph.add("CrossAttention", names, [f"y{i}"], NATIVE, heads=shape.count)
        else:
            names = ["query", f"key{i}", f"value{i}", "", "lengths"]
            graph.add("MultiHeadAttention", names, [f"y{i}"], MICROSOFT, num_heads=shape.count, scale=1.0)
    return graph, count


def tree(native: bool, far: bool, shape: Heads) -> tuple[Graph, int]:
    rng, graph = np.random.default_rng(0), Graph()
    cache = (shape.rows, shape.count, (shape.source + 8) * shape.lanes, shape.size)
    count = copies(8 * int(np.prod(cache)), far)
    graph.inputs["qkv"] = rng.normal(size=(shape.rows, shape.lanes, 3 * shape.width)).astype(np.float32) / 8
    graph.inputs["write_index"] = np.full(shape.rows, (shape.source - 1) * shape.lanes, np.int64)
    visible = np.full((shape.rows, 1, shape.lanes, cache[2]), -1e9, np.float32)
    for w in range(shape.lanes):  # the worst case: hypotheses that share nothing
        visible[:, :, w, w : shape.source * shape.lanes : shape.lanes] = 0.0
    graph.inputs["visible"] = visible
    shared = np.empty((shape.rows, shape.lanes, shape.width), np.float32)
    graph.constants = {"split": np.array([0, 0, -1, shape.size]), "parts": np.array([shape.width] * 3)}
    for i in range(count):
        graph.outputs[f"y{i}"] = shared
        for kind in ("key", "value"):
            held = rng.normal(size=cache).astype(np.float32)
            graph.inputs[f"past_{kind}{i}"] = graph.outputs[f"present_{kind}{i}"] = held
        past, present = ([f"{when}_{kind}{i}" for kind in ("key", "value")] for when in ("past", "present"))
        if native:
            names = ["qkv", *past, "write_index", "visible"]
            graph.add("TreeAttention", names, [f"y{i}", *present], NATIVE, heads=shape.count)
        else:
            graph.add("Split", ["qkv", "parts"], [f"q{i}", f"k{i}", f"v{i}"], axis=2)
            for part, old, new in zip("kv", past, present, strict=True):
                graph.add("Reshape", [f"{part}{i}", "split"], [f"{part}s{i}"])
                graph.add("Transpose", [f"{part}s{i}"], [f"{part}h{i}"], perm=[0, 2, 1, 3])
                graph.add("TensorScatter", [old, f"{part}h{i}", "write_index"], [new], axis=2)
            names = [f"q{i}", *present, "", "", "visible"]
            graph.add("MultiHeadAttention", names, [f"y{i}"], MICROSOFT, num_heads=shape.count, scale=1.0)
    return graph, count


def encoder(native: bool, far: bool, shape: Heads) -> tuple[Graph, int]:
    rng, graph = np.random.default_rng(0), Graph()
    qkv = rng.normal(size=(shape.rows, shape.source, 3 * shape.width)).astype(np.float32) / 8
    graph.inputs["lengths"] = np.full(shape.rows, shape.source, np.int32)
    graph.outputs["y"] = np.empty((shape.rows, shape.source, shape.width), np.float32)
    if native:
        graph.inputs["qkv"] = qkv
        graph.add("SelfAttention", ["qkv", "lengths"], ["y"], NATIVE, heads=shape.count)
    else:  # the stock graph has three maps, and so no packed form
        parts = zip(("query", "key", "value"), np.split(qkv, 3, axis=2), strict=True)
        graph.inputs |= {name: np.ascontiguousarray(part) for name, part in parts}
        names = ["query", "key", "value", "", "lengths"]
        graph.add("MultiHeadAttention", names, ["y"], MICROSOFT, num_heads=shape.count, scale=1.0)
    return graph, 1


def best(native: bool, far: bool, rows: int, vocabulary: int, k: int) -> tuple[Graph, int]:
    rng, graph = np.random.default_rng(0), Graph()
    graph.inputs["logits"] = rng.normal(size=(rows, 1, vocabulary)).astype(np.float32) * 4
    graph.inputs["k"] = np.array([k])
    graph.outputs = {"values": np.empty((rows, 1, k), np.float32), "ids": np.empty((rows, 1, k), np.int64)}
    if native:
        graph.add("TopLogProbs", ["logits", "k"], ["values", "ids"], NATIVE)
    else:
        writer = GraphWriter("top")
        values, ids = top_k(writer, writer.node("LogSoftmax", "logits", axis=-1), vocabulary, "k")
        writer.output(values, "values")
        writer.output(ids, "ids")
        graph.nodes = writer._nodes
        graph.constants = dict(writer._constants)
    return graph, 1


def predict(native: bool, far: bool, rows: int, inputs: int, vocabulary: int, k: int) -> tuple[Graph, int]:
    graph, count = linear(native, False, rows, inputs, vocabulary)
    chosen, _ = best(native, False, rows, vocabulary, k)
    if native:
        (map_,) = graph.nodes
        graph.nodes = []
        graph.add("LinearTopLogProbs", [*map_.input, "k"], ["values", "ids"], NATIVE, scale=0.03, zero=128)
    else:
        for node in chosen.nodes:
            node.input[:] = ["y0" if name == "logits" else name for name in node.input]
        graph.nodes += chosen.nodes
        graph.constants |= chosen.constants
    graph.inputs["k"], graph.outputs = chosen.inputs["k"], chosen.outputs
    return graph, count


def norm(native: bool, far: bool, rows: int, width: int) -> tuple[Graph, int]:
    rng, graph = np.random.default_rng(0), Graph()
    for name in ("x", "residual"):
        graph.inputs[name] = rng.normal(size=(rows, width)).astype(np.float32)
    graph.constants = {"weight": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}
    graph.outputs["y"] = np.empty((rows, width), np.float32)
    if native:
        graph.add("AddNorm", ["x", "residual", "weight", "bias"], ["y"], NATIVE, epsilon=1e-5)
    else:
        graph.add("Add", ["x", "residual"], ["sum"])
        graph.add("LayerNormalization", ["sum", "weight", "bias"], ["y"], axis=-1, epsilon=1e-5)
    return graph, 1


CASES: dict[str, list[tuple[str, Callable[..., tuple[Graph, int]], bool, tuple[object, ...]]]] = {
    "linear": [
        (f"{rows} x {inputs} x {outputs}", linear, far, (rows, inputs, outputs))
        for inputs, outputs in (
            (512, 512),
            (512, 1536),
            (512, 2048),
            (2048, 512),
            (512, 32000),
            (256, 256),
            (256, 8064),
        )
        for rows in (1, 4, 8, 32, 128, 800)
        for far in (False, True)
        if rows < 128 or (outputs < 8000 and not far)
    ],
    "forward": [
        (f"{rows} x {width} x {4 * width}", forward, rows < 100, (rows, width))
        for width in (512, 256)
        for rows in (1, 8, 32, 128, 800)
    ],
    "cross": [
        (f"{b} x {w} lanes, {h} x {k}, S = 25", cross, True, (Heads(b, w, h, k, 25),))
        for h, k in ((8, 64), (8, 32))
        for b, w in ((1, 1), (8, 1), (32, 1), (1, 4), (8, 4), (32, 4))
    ],
    "tree": [
        (f"{b} x {w} lanes, {h} x {k}, step 13", tree, True, (Heads(b, w, h, k, 13),))
        for h, k in ((8, 64), (8, 32))
        for b, w in ((1, 1), (8, 1), (32, 1), (1, 4), (8, 4), (32, 4))
    ],
    "encoder": [
        (f"{b} x {s}, {h} x {k}", encoder, False, (Heads(b, 1, h, k, s),))
        for h, k in ((8, 64), (8, 32))
        for b, s in ((1, 25), (32, 25), (8, 100))
    ],
    "best": [
        (f"{rows} x {vocabulary}, k = {k}", best, False, (rows, vocabulary, k))
        for vocabulary in (8064, 32000)
        for rows, k in ((1, 1), (32, 1), (128, 8))
    ],
    "predict": [
        (f"{rows} x {inputs} x {vocabulary}, k = {k}", predict, False, (rows, inputs, vocabulary, k))
        for inputs, vocabulary in ((256, 8064), (512, 32000))
        for rows, k in ((1, 1), (32, 1), (128, 8))
    ],
    "norm": [(f"{rows} x {d}", norm, False, (rows, d)) for d in (256, 512) for rows in (1, 32, 800)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--match", default="", help="only shapes that hold this text")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each measurement")
    options = parser.parse_args()
    print("| operator | shape | | stock µs | native µs | stock ÷ native |\n|---|---|---|--:|--:|--:|")
    for name in [options.only] if options.only else CASES:
        for label, make, far, shape in CASES[name]:
            if options.match in label:
                stock, native = (
                    graph.microseconds(count, options.seconds)
                    for graph, count in (make(native, far, *shape) for native in (False, True))
                )
                where = "far" if far else "near"
                print(f"| {name} | {label} | {where} | {stock:.1f} | {native:.1f} | {stock / native:.2f} |", flush=True)


if __name__ == "__main__":
    main()

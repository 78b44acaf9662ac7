"""A pencil for ONNX graphs: names nodes and initializers, stores equal constants once, saves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import DTypeLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from model.export.weightfile import LEAST_BYTES, WeightFile
from model.ports import Port, PortSheet

OPSET = 24
"""TensorScatter, the in-place cache write, is standard from this opset on."""
IR_VERSION = 11
MICROSOFT = "com.microsoft"
NATIVE = "dragoman"
"""The domain of our own operators."""

_DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}


class GraphWriter:
    """Collects nodes and constants of one graph. Every method that adds a node returns its output's name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, NDArray[Any]] = {}
        self._count = 0

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """An initializer called `name`. Asked for again, it must be the same array and is stored once."""
        if name not in self._constants:
            self._constants[name] = np.ascontiguousarray(value)
        return name

    def integers(self, *values: int) -> str:
        """A one-dimensional int64 constant."""
        return self.constant("integers_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def scalar(self, value: float, dtype: DTypeLike = np.float32) -> str:
        """A constant without axes."""
        return self.constant(f"scalar_{value!r}", np.array(value, dtype=dtype))

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.nodes(kind, inputs, 1, **attributes)[0]

    def nodes(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """A node with several outputs. `kind` may carry a domain: `com.microsoft:MultiHeadAttention`.

        An output that nobody wants is left out with `unwanted`, the set of their indices.
        """
        unwanted = attributes.pop("unwanted", ())
        domain, _, operator = kind.rpartition(":")
        self._count += 1
        label = f"{operator}_{self._count}"
        names = [label] if outputs == 1 else [f"{label}_{i}" for i in range(outputs)]
        names = ["" if i in unwanted else name for i, name in enumerate(names)]
        self._nodes.append(helper.make_node(operator, list(inputs), names, name=label, domain=domain, **attributes))
        return names

    def output(self, value: str, port: str) -> None:
        """Let the graph output called `port` be `value`: the value is renamed, since a copy would cost its size."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == value:
                        names[i] = port

    def save(self, path: Path, sheet: PortSheet, weights: WeightFile) -> None:
        """Write the graph with the ports of `sheet`, its large constants into `weights` beside it, and check it."""
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [_value_info(port) for port in sheet.inputs],
            [_value_info(port) for port in sheet.outputs],
            initializer=[
                weights.tensor(name, value) if value.nbytes >= LEAST_BYTES else numpy_helper.from_array(value, name)
                for name, value in self._constants.items()
            ],
        )
        # Only what is used: a reader may refuse a domain that it does not know.
        domains = sorted({node.domain for node in self._nodes} - {""})
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="dragoman")
        path.write_bytes(model.SerializeToString(deterministic=True))
        onnx.checker.check_model(str(path))


def _value_info(port: Port) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(port.name, _DTYPES[port.dtype], list(port.axes))

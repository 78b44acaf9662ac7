"""The library of native operators for tests, and tiny graphs around single operators."""

from __future__ import annotations

import ctypes
import functools
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from model.export.graph import IR_VERSION, MICROSOFT, NATIVE, OPSET
from model.runtime.native.build import LIBRARY, build, obstacle

_TYPES = {"b": TensorProto.INT8, "f": TensorProto.FLOAT, "i": TensorProto.INT32, "l": TensorProto.INT64}


@functools.cache
def operators() -> Path:
    """The library beside its sources if it is fresh, else built once; skips what this machine cannot run."""
    if obstacle() is None:
        return LIBRARY
    if not any(map(shutil.which, ("g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    folder = Path(tempfile.mkdtemp(prefix="native-operators-"))
    found = build(folder / "operators.so")
    if reason := obstacle(found):
        pytest.skip(reason)
    return found


@contextmanager
def tiles(allowed: bool) -> Iterator[bool]:
    """Products on matrix tiles are allowed or forbidden meanwhile; gives whether they are there."""
    allow = ctypes.CDLL(str(operators())).dragoman_tiles
    try:
        yield bool(allow(int(allowed)))
    finally:
        allow(1)


def native(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> onnx.NodeProto:
    """A node of one of our operators."""
    return helper.make_node(kind, list(inputs), list(outputs), domain=NATIVE, **attributes)


def session(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    constants: Mapping[str, np.ndarray],
    native: bool = True,
    threads: int = 1,
) -> ort.InferenceSession:
    """A session; inputs and outputs have the types b(yte), f(loat), i(nt32) or l(ong), and any shape."""

    def ports(named: Mapping[str, str]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, _TYPES[kind], None) for name, kind in named.items()]

    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "one", ports(inputs), ports(outputs), held)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1), helper.make_opsetid(NATIVE, 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if native:
        options.register_custom_ops_library(str(operators()))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

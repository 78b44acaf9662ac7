"""The weights of a bundle as a state dict again: the inverse of the builder, so that a bundle can be trained further.

float32 comes back as it was, int8 to the rounding of its bytes: W[n] = scale[n] · bytes[n] (`quantise_weight`). The
embedding is read from the table in float16, which is the finer of the two copies that int8 holds of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from model.bundle import Bundle
from model.config import ModelConfig
from model.errors import ExportError
from model.export.blocks import GATED, QUERY_KEY_VALUE, SHARED_TABLE
from model.export.weights import Array, expected_shapes, folded

Constants = Mapping[str, NDArray[Any]]


def recover_state_dict(bundle: Bundle) -> dict[str, Array]:
    """Name and float32 value of every trained tensor, from float32 graphs if there are some, else from int8.

    Raises `ExportError` for graphs of another layout than this version's builder writes.
    """
    precision = "f32" if "f32" in bundle.manifest.precisions else "int8"
    constants: dict[str, NDArray[Any]] = {}
    for path in bundle.graph_paths(precision)["stock"].values():
        graph = onnx.load_model(path).graph
        constants |= {constant.name: numpy_helper.to_array(constant) for constant in graph.initializer}
    return {
        name: _tensor(bundle.config, constants, name, shape) for name, shape in expected_shapes(bundle.config).items()
    }


def _tensor(config: ModelConfig, constants: Constants, name: str, shape: tuple[int, ...]) -> Array:
    prefix, _, part = name.rpartition(".")
    if name == "positions":
        table = constants.get("positions_table")
        value = table if table is None else table[:, 0]  # (P, 1, D) -> (P, D)
    elif "embedding" in prefix:
        value = _table(config, constants, prefix)
    elif ".norm" in prefix:
        value = constants.get(name)
    else:
        value = _linear(config, constants, prefix, part)
    if value is None:
        raise ExportError(f"graphs to train further must hold {name}, but do not; publish the bundle again.")
    found = np.array(value[: shape[0]], dtype=np.float32, order="C")
    if found.shape != shape:
        raise ExportError(f"{name} must have shape {shape} by the manifest, but the graphs hold {found.shape}.")
    return found


def _table(config: ModelConfig, constants: Constants, prefix: str) -> NDArray[Any] | None:
    """The embedding called `prefix`, (V', D); int8 graphs hold it multiplied by √D already."""
    table = constants.get("source_embedding.weight" if prefix == "embedding" else SHARED_TABLE)
    if table is None or table.dtype == np.float32:
        return table
    scaled: NDArray[Any] = table.astype(np.float32) / np.float32(np.sqrt(config.d_model))
    return scaled


def _linear(config: ModelConfig, constants: Constants, prefix: str, part: str) -> NDArray[Any] | None:
    """Weight (N, K) or bias (N) of the map called `prefix`, from its own constants or those of several in one map."""
    value = _stored(constants, prefix, part)
    parent, _, matrix = prefix.rpartition(".")
    for together in (QUERY_KEY_VALUE, GATED):
        joined = _stored(constants, f"{parent}.{'_'.join(together)}", part)
        if value is None and joined is not None and matrix in together:
            value = np.split(joined, len(together))[together.index(matrix)]
    return value if value is None else value / folded(config, prefix)


def _stored(constants: Constants, prefix: str, part: str) -> NDArray[Any] | None:
    if f"{prefix}.{part}" in constants:
        return constants[f"{prefix}.{part}"]
    quantised, scales = constants.get(f"{prefix}.weight_int8"), constants.get(f"{prefix}.weight_scale")
    if part != "weight" or quantised is None or scales is None:
        return None
    value: NDArray[Any] = quantised.T.astype(np.float32) * scales[:, None]  # (K, N) -> (N, K)
    return value

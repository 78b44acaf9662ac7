"""The weights of the bundled network, as real numbers: what its int8 graphs multiply with, scaled back.

The bundle ships int8 alone. Its signed bytes times their scales are a float32 network of their own, as good a trained
one as any, that is as far from the first as rounding is; whoever compares engines gives both of them this one.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from model.bundle import Bundle
from model.config import ModelConfig
from model.export.weights import expected_shapes
from service.settings import BUNDLED

Array = NDArray[np.float32]
JOINED = ("w_q", "w_k", "w_v")
"""One map in a decoder step, three in the state dict."""


@cache
def bundle() -> Bundle:
    return Bundle.open(BUNDLED / "en-de")


@cache
def bundled_weights() -> tuple[ModelConfig, dict[str, Array]]:
    """Configuration and state dict of the network that ships."""
    config = bundle().config
    assert config.tie_embeddings, "the projection is read as the embedding"
    arrays = {**_initializers("encoder"), **_initializers("decoder")}
    for i in range(config.decoder_layers):
        _part(arrays, f"decoder.layers.{i}.self_attention", config.d_model)
    arrays["embedding.weight"] = _weight(arrays, "target_embedding")
    state = {name: _tensor(arrays, name) for name in expected_shapes(config)}
    for name, array in state.items():
        if ".w_q." in name:
            # 1/√d_k is inside the graph's, and not in a state dict.
            state[name] = array * np.float32(config.head_size**0.5)
    return config, state


def _initializers(role: str) -> dict[str, NDArray]:
    graph = onnx.load(bundle().graph_path(role, "int8")).graph
    return {one.name: numpy_helper.to_array(one) for one in graph.initializer}


def _weight(arrays: dict[str, NDArray], prefix: str) -> Array:
    scaled = arrays[f"{prefix}.weight_int8"].astype(np.float32) * arrays[f"{prefix}.weight_scale"]
    return np.ascontiguousarray(scaled.T)  # (K, N) -> (N, K)


def _tensor(arrays: dict[str, NDArray], name: str) -> Array:
    prefix, _, kind = name.rpartition(".")
    return _weight(arrays, prefix) if kind == "weight" and f"{prefix}.weight_int8" in arrays else arrays[name]


def _part(arrays: dict[str, NDArray], attention: str, size: int) -> None:
    """Take the map of query, key and value of a decoder step apart: outputs (3 D) -> three times (D)."""
    joined = f"{attention}.{'_'.join(JOINED)}"
    for i, matrix in enumerate(JOINED):
        part = slice(i * size, (i + 1) * size)
        for kind in ("weight_int8", "weight_scale", "bias"):
            arrays[f"{attention}.{matrix}.{kind}"] = arrays[f"{joined}.{kind}"][..., part]

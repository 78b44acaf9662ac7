"""A state dict seen by the builder: checked against the configuration, float32, in the layout the graphs want."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.config import ModelConfig
from model.errors import ExportError

Array = NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every trained tensor of `config`; linear weights are (out, in)."""
    d_model, vocabulary = config.d_model, config.vocab_size
    shapes: Shapes = {"embedding.weight": (vocabulary, d_model)}
    if not config.tie_embeddings:
        shapes |= {"target_embedding.weight": (vocabulary, d_model), "projection.weight": (vocabulary, d_model)}
    for i in range(config.encoder_layers):
        shapes |= _layer(config, f"encoder.layers.{i}", ("self",))
    for i in range(config.decoder_layers):
        shapes |= _layer(config, f"decoder.layers.{i}", ("self", "cross"))
    if config.positions == "learned":
        shapes["positions"] = (config.max_positions, d_model)
    if config.norm_order == "pre":
        shapes |= _norm(config, "encoder.norm") | _norm(config, "decoder.norm")
    return shapes


def _layer(config: ModelConfig, prefix: str, attentions: tuple[str, ...]) -> Shapes:
    d_model, d_ff = config.d_model, config.d_ff
    shapes = _norm(config, f"{prefix}.norm_feed_forward")
    for kind in attentions:
        shapes |= _norm(config, f"{prefix}.norm_{kind}")
        for matrix in ("w_q", "w_k", "w_v", "w_o"):
            shapes |= _linear(f"{prefix}.{kind}_attention.{matrix}", d_model, d_model)
    for matrix in ("w_1", "w_g") if config.gated else ("w_1",):
        shapes |= _linear(f"{prefix}.feed_forward.{matrix}", d_ff, d_model)
    shapes |= _linear(f"{prefix}.feed_forward.w_2", d_model, d_ff)
    return shapes


def _linear(prefix: str, outputs: int, inputs: int) -> Shapes:
    return {f"{prefix}.weight": (outputs, inputs), f"{prefix}.bias": (outputs,)}


def _norm(config: ModelConfig, prefix: str) -> Shapes:
    return {f"{prefix}.weight": (config.d_model,), f"{prefix}.bias": (config.d_model,)}


def folded(config: ModelConfig, prefix: str) -> np.float32:
    """What the graphs multiply the linear map called `prefix` with: 1/√d_k of formula (1) for every W^Q, else 1."""
    return np.float32(1.0 / math.sqrt(config.head_size) if prefix.endswith(".w_q") else 1.0)


class Weights:
    """The tensors of one network as float32 numpy arrays.

    Raises `ExportError` when a tensor is missing, unknown, of another shape, or not finite.
    """

    def __init__(self, config: ModelConfig, state_dict: Mapping[str, Any]) -> None:
        shapes = expected_shapes(config)
        if missing := sorted(set(shapes) - set(state_dict)):
            raise ExportError(f"the state dict must hold every tensor of its configuration, but lacks {missing[:5]}.")
        if unknown := sorted(set(state_dict) - set(shapes)):
            raise ExportError(f"the state dict must hold nothing else than the network, but has {unknown[:5]}.")
        self.config = config
        self._arrays: dict[str, Array] = {}
        for name, shape in shapes.items():
            array = _to_numpy(state_dict[name])
            if array.shape != shape:
                raise ExportError(f"{name} must have shape {shape} by its configuration, but has {array.shape}.")
            if not np.isfinite(array).all():
                raise ExportError(f"{name} must be finite, but holds NaN or infinity; take an earlier checkpoint.")
            self._arrays[name] = array

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def linear(self, prefix: str) -> tuple[Array, Array]:
        """Weight (out, in) and bias (out) of one linear map. 1/√d_k of formula (1) is already inside every W^Q."""
        scale = folded(self.config, prefix)
        return self[f"{prefix}.weight"] * scale, self[f"{prefix}.bias"] * scale

    @property
    def source_embedding(self) -> Array:
        """(V, D)."""
        return self["embedding.weight"]

    @property
    def target_embedding(self) -> Array:
        """(V, D)."""
        return self["embedding.weight" if self.config.tie_embeddings else "target_embedding.weight"]

    @property
    def projection(self) -> Array:
        """The output projection, (V, D)."""
        return self["embedding.weight" if self.config.tie_embeddings else "projection.weight"]


def _to_numpy(tensor: Any) -> Array:
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().cpu().numpy()
    return np.ascontiguousarray(tensor, dtype=np.float32)

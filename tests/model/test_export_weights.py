"""A state dict must be exactly the network that its configuration describes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from model.errors import ExportError
from model.export.weights import Weights, expected_shapes
from tests.model.networks import VARIANTS, lively_network, tiny_config


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_expected_tensors_are_those_of_the_network(variant):
    config = tiny_config(**VARIANTS[variant])
    found = {name: tuple(tensor.shape) for name, tensor in lively_network(config).state_dict().items()}
    assert expected_shapes(config) == found


def _state() -> dict[str, torch.Tensor]:
    return dict(lively_network(tiny_config()).state_dict())


def test_a_missing_tensor_is_named():
    state = _state()
    del state["decoder.layers.1.cross_attention.w_k.bias"]
    with pytest.raises(ExportError, match=r"lacks.*decoder\.layers\.1\.cross_attention\.w_k\.bias"):
        Weights(tiny_config(), state)


def test_an_output_bias_is_not_dropped_in_silence():
    with pytest.raises(ExportError, match=r"nothing else.*projection\.bias"):
        Weights(tiny_config(), {**_state(), "projection.bias": torch.zeros(384)})


def test_an_embedding_with_other_rows_is_refused_with_both_shapes():
    state = _state()
    state["embedding.weight"] = torch.zeros(386, 48)
    with pytest.raises(ExportError, match=r"\(384, 48\).*\(386, 48\)"):
        Weights(tiny_config(), state)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_tensor_that_is_not_finite_is_refused(value):
    state = _state()
    state["encoder.norm.bias"] = torch.full((48,), value)
    with pytest.raises(ExportError, match=r"encoder\.norm\.bias must be finite"):
        Weights(tiny_config(), state)


def test_half_precision_weights_are_widened():
    halves = {name: tensor.bfloat16() for name, tensor in _state().items()}
    weights = Weights(tiny_config(), halves)
    assert weights["embedding.weight"].dtype == np.float32
    np.testing.assert_array_equal(weights["embedding.weight"], halves["embedding.weight"].float().numpy())


def test_the_scale_of_attention_is_inside_the_query_map_and_nowhere_else():
    state = _state()
    weights = Weights(tiny_config(), state)
    prefix = "decoder.layers.0.self_attention"
    for matrix, factor in (("w_q", 1 / math.sqrt(16)), ("w_k", 1.0), ("w_v", 1.0), ("w_o", 1.0)):
        weight, bias = weights.linear(f"{prefix}.{matrix}")
        np.testing.assert_allclose(weight, state[f"{prefix}.{matrix}.weight"].numpy() * factor, rtol=1e-6)
        np.testing.assert_allclose(bias, state[f"{prefix}.{matrix}.bias"].numpy() * factor, rtol=1e-6)

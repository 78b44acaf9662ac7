"""int8: what its rounding can cost, and that it was seen on real text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.errors import ExportError
from model.export.calibration import calibrate
from model.export.exporter import export_graphs
from model.export.quantisation import Range, quantise_weight
from tests.model.networks import VARIANTS, exported, lively_network, random_sources, tiny_config


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 20), columns=st.integers(1, 40))
def test_a_weight_is_off_by_at_most_half_a_step_of_its_own_channel(seed, rows, columns):
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-4, 4, (rows, 1))).astype(np.float32)
    quantised, scales = quantise_weight(weight)
    assert quantised.dtype == np.int8
    assert (np.abs(weight - quantised * scales[:, None]) <= 0.5001 * scales[:, None]).all()


def test_a_channel_of_zeros_stays_zero():
    quantised, scales = quantise_weight(np.zeros((2, 3), np.float32))
    assert not quantised.any()
    assert np.isfinite(scales).all()


@settings(max_examples=50, deadline=None)
@given(low=st.floats(-100, 0), high=st.floats(0, 100))
def test_a_range_holds_zero_exactly_and_both_of_its_ends(low, high):
    scale, zero = Range(low, high).scale_and_zero()
    assert 0 <= zero <= 255
    assert (0 - zero) * scale <= low + scale
    assert (255 - zero) * scale >= high - scale


def test_what_relu_left_uses_all_steps_above_zero():
    assert Range(0.0, 2.55).scale_and_zero() == (pytest.approx(0.01), 0)
    assert Range(0.5, 2.55).scale_and_zero() == (pytest.approx(0.01), 0)


def test_an_input_that_was_always_zero_has_a_step_above_zero():
    assert Range(0.0, 0.0).scale_and_zero()[0] > 0.0


def test_every_quantised_input_is_seen():
    made = exported("tied")
    config, ranges = made.config, made.record.calibration["ranges"]
    assert len(ranges) == 4 * config.encoder_layers + 6 * config.decoder_layers + 2
    assert ranges["decoder.layers.0.feed_forward.hidden"]["low"] == 0.0
    assert all(seen["low"] < seen["high"] for seen in ranges.values())


def test_more_text_can_only_widen_a_range():
    config = tiny_config()
    network = lively_network(config)
    pairs = [(source, source) for source in random_sources(config, (5, 9, 3, 12))]
    some, all_ = calibrate(network, pairs[:2]), calibrate(network, pairs)
    assert all(all_[site].low <= some[site].low and all_[site].high >= some[site].high for site in some)


def test_calibration_leaves_the_network_as_it_was():
    config = tiny_config()
    network = lively_network(config).train()
    calibrate(network, [(source, source) for source in random_sources(config, (5,))])
    assert network.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


def test_int8_without_text_is_refused(tmp_path):
    config = tiny_config()
    with pytest.raises(ExportError, match="got none"):
        export_graphs(config, lively_network(config).state_dict(), tmp_path, ["int8"])
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_precision_is_refused(tmp_path):
    config = tiny_config()
    with pytest.raises(ExportError, match="f8"):
        export_graphs(config, lively_network(config).state_dict(), tmp_path, ["f8"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_int8_stays_near_float(variant):
    made = exported(variant)
    _, exact = made.stepper("f32").encode([source for source, _ in made.pairs])
    _, coarse = made.stepper("int8").encode([source for source, _ in made.pairs])
    for wanted, found in zip(exact, coarse, strict=True):
        error = np.sqrt(np.mean((wanted - found) ** 2) / np.mean(wanted**2))
        assert error < 0.1


def test_the_weights_of_a_network_in_half_precision_are_exported_too(tmp_path):
    config = tiny_config(encoder_layers=1, decoder_layers=1)
    state = {name: tensor.to(torch.bfloat16) for name, tensor in lively_network(config).state_dict().items()}
    record = export_graphs(config, state, tmp_path, ["f32"])
    assert {path.name for path in record.files} == {path.name for path in tmp_path.iterdir()}
    assert record.weights == {"f32": "weights.f32.bin"}
    assert record.calibration == {}

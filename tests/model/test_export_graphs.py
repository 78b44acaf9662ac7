"""The graphs against the network: step = step = full pass, for every choice of a configuration and any shape."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
import torch

from model.errors import BundleError
from model.export import graph
from model.export.compare import allowed_log_probs, compare_values, padded
from model.export.exporter import export_graphs
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from tests.model.networks import VARIANTS, Exported, exported, lively_network, random_sources, tiny_config


def full_log_probs(stepper: OnnxStepper, slots: list[int], tokens: np.ndarray) -> np.ndarray:
    """(R, W, V), in the order of ids."""
    log_probs, ids = stepper.step(slots, tokens, stepper.vocab_size)
    ordered = np.empty_like(log_probs)
    np.put_along_axis(ordered, ids, log_probs, axis=-1)
    return ordered


def assert_near(found: np.ndarray, wanted: np.ndarray) -> None:
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    np.testing.assert_allclose(found[finite], wanted[finite], atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_step_is_the_networks_step_is_its_full_pass(variant):
    made = exported(variant)
    network, config = made.network, made.config
    sources = [source for source, _ in made.pairs]
    source, lengths = padded(sources, config.pad_id)
    memory = network.encode(source, lengths)
    state = network.start(memory, lengths)
    history = torch.full((len(sources), 1), config.bos_id)
    stepper = made.stepper()
    slots = stepper.start(sources, 1)
    for _ in range(20):  # past 0, 1, many; over the first growth of the cache
        found = full_log_probs(stepper, slots, history[:, -1:].numpy())[:, 0]
        step = allowed_log_probs(config, network.step(history[:, -1:], state))
        full = allowed_log_probs(config, network.decode(history, memory, lengths)[:, -1])
        assert_near(found, step)
        assert_near(found, full)
        assert found.argmax(-1).tolist() == full.argmax(-1).tolist()
        history = torch.cat([history, torch.from_numpy(full.argmax(-1))[:, None]], dim=1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_agree_over_whole_targets(variant):
    made = exported(variant)
    found = compare_values(made.network, made.stepper(), made.pairs)
    assert found.positions == sum(len(target) for _, target in made.pairs)
    assert found.cross < 1e-4
    assert found.log_prob < 1e-4
    assert found.top1 == 1.0


@torch.no_grad()
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (5, 64), (3, 200), (1, 224)])
def test_no_shape_is_baked_in(rows, length):
    made = exported("tied")
    sources = random_sources(made.config, (length,) * rows, seed=length)
    pairs = [(source, source[: 3 + row]) for row, source in enumerate(sources)]
    found = compare_values(made.network, made.stepper(), pairs)
    assert max(found.cross, found.log_prob) < 1e-4


@pytest.mark.parametrize("precision", ["f32", "int8"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_pad_and_bos_are_never_among_the_finite_ones(variant, precision):
    made = exported(variant)
    stepper = made.stepper(precision)
    slots = stepper.start([source for source, _ in made.pairs], 2)
    found = full_log_probs(stepper, slots, np.full((len(slots), 2), made.config.bos_id))
    assert np.isneginf(found[..., [made.config.pad_id, made.config.bos_id]]).all()
    finite = np.delete(found, [made.config.pad_id, made.config.bos_id], axis=-1)
    assert np.isfinite(finite).all()
    np.testing.assert_allclose(np.exp(finite).sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_what_stands_under_the_padding_of_a_source_changes_nothing(precision):
    """The encoder hides it from itself, and the decoder gets no say over it: its cross mask ends at the length."""
    made = exported("odd")
    stepper = made.stepper(precision)
    short, long = random_sources(made.config, (4, 30))
    alone = stepper.start([short], 1)
    beside = stepper.start([long, short], 1)[1:]
    for token in (made.config.bos_id, 9, 17):
        a = full_log_probs(stepper, alone, np.array([[token]]))
        b = full_log_probs(stepper, beside, np.array([[token]]))
        np.testing.assert_array_equal(a, b)


def test_a_graph_holds_each_weight_once():
    """A tied float decoder has one matrix for its embedding and its projection."""
    path = exported("tied").record.graph_path("decoder", "f32")
    shapes = [tuple(tensor.dims) for tensor in onnx.load(path).graph.initializer]
    assert shapes.count((384, 32)) == 1


def test_a_graph_says_nothing_of_the_place_where_it_was_made():
    for path in exported("tied").record.files:
        assert str(path.parent).encode() not in path.read_bytes()


def _exported_big(folder, monkeypatch) -> Exported:
    monkeypatch.setattr(graph, "EXTERNAL_DATA_BYTES", 10_000)
    config = tiny_config()
    network = lively_network(config)
    return Exported(config, network, [], export_graphs(config, network.state_dict(), folder, ["f32"]))


def test_a_large_graph_keeps_its_weights_in_a_side_file_that_moves_with_it(tmp_path, monkeypatch):
    made = _exported_big(tmp_path / "first", monkeypatch)
    names = sorted(path.name for path in made.record.files)
    assert names == [
        "attending.f32.onnx",
        "attending.f32.weights",
        "decoder.f32.onnx",
        "decoder.f32.weights",
        "encoder.f32.onnx",
        "encoder.f32.weights",
    ]
    assert made.record.graph_path("decoder", "f32").stat().st_size < 40_000
    moved = shutil.copytree(tmp_path / "first", tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    stepper = open_graphs(made.config, moved / "encoder.f32.onnx", moved / "decoder.f32.onnx", RuntimeOptions())
    sources = random_sources(made.config, (5, 3))
    found = compare_values(made.network, stepper, [(source, source) for source in sources])
    assert max(found.cross, found.log_prob) < 1e-4


def test_a_large_graph_exported_again_is_not_appended_to_itself(tmp_path, monkeypatch):
    sizes = []
    for _ in range(2):
        made = _exported_big(tmp_path, monkeypatch)
        sizes.append([path.stat().st_size for path in made.record.files])
    assert sizes[0] == sizes[1]


def test_a_large_graph_without_its_side_file_is_refused(tmp_path, monkeypatch):
    made = _exported_big(tmp_path, monkeypatch)
    (tmp_path / "decoder.f32.weights").unlink()
    with pytest.raises(BundleError, match=r"decoder\.f32\.onnx must be a graph that ONNX Runtime can load"):
        made.stepper()

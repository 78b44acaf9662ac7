"""The graphs against the network: step = step = full pass, for every choice of a configuration and any shape."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from model.errors import BundleError
from model.export.compare import allowed_log_probs, compare_values, padded
from model.export.exporter import export_graphs
from model.runtime.stepper import OnnxStepper
from tests.model.networks import VARIANTS, exported, random_sources

pytestmark = pytest.mark.usefixtures("each_set_of_operators")


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


def _places(path: Path) -> dict[str, tuple[int, int]]:
    """Initializer -> offset and length in the file of the large ones."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    found = {tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in tensors}
    return {name: (int(entry["offset"]), int(entry["length"])) for name, entry in found.items() if entry}


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_all_graphs_of_a_precision_keep_each_large_constant_once_in_one_file(precision):
    record = exported("tied").record
    graphs = [_places(path) for roles in record.graph_paths(precision).values() for path in roles.values()]
    assert len(graphs) >= 2
    spans = sorted({place for places in graphs for place in places.values()})
    weights = (record.folder / record.weights[precision]).read_bytes()
    assert all(offset % 64 == 0 for offset, _ in spans)
    assert all(end <= begin for (start, size), (begin, _) in pairwise(spans) for end in [start + size])
    contents = [weights[offset : offset + length] for offset, length in spans]
    assert len(set(contents)) == len(contents)
    assert sum(map(len, contents)) + 64 * len(spans) > len(weights)


def test_a_tied_embedding_is_stored_once():
    """The table of both embeddings and, in f32, of the projection is one and the same."""
    record = exported("tied").record
    encoder, decoder = (_places(record.graph_paths("f32")["stock"][role]) for role in ("encoder", "decoder"))
    assert encoder["source_embedding.weight"] == decoder["target_embedding.weight"]
    assert [length for _, length in decoder.values()].count(384 * 48 * 4) == 1


def test_a_second_export_gives_the_same_bytes(tmp_path):
    made = exported("tied")
    record = export_graphs(made.config, made.network.state_dict(), tmp_path, ["f32", "int8"], made.pairs)
    assert record.precisions == made.record.precisions
    for first, second in zip(made.record.files, record.files, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_a_graph_says_nothing_of_the_place_where_it_was_made():
    for path in exported("tied").record.files:
        assert str(path.parent).encode() not in path.read_bytes()


@pytest.fixture
def moved(tmp_path):
    """The graphs in another folder than the one they were written to."""
    made = exported("odd")
    folder = shutil.copytree(made.record.folder, tmp_path / "elsewhere")
    return replace(made, record=replace(made.record, folder=folder))


def test_graphs_move_with_their_weights(moved):
    found = compare_values(moved.network, moved.stepper(), moved.pairs)
    assert max(found.cross, found.log_prob) < 1e-4


def test_graphs_load_in_a_plain_session_of_onnxruntime(moved):
    for precision in ("f32", "int8"):
        for path in moved.record.graph_paths(precision)["stock"].values():
            assert path.stat().st_size < 60_000
            ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_graphs_without_their_weights_are_refused(moved):
    (moved.record.folder / "weights.f32.bin").unlink()
    with pytest.raises(BundleError, match=r"encoder\.f32(\.native)?\.onnx must be a graph that ONNX Runtime can load"):
        moved.stepper()

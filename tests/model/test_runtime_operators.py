"""Which operators run, and that the native ones compute what the stock ones compute."""

from __future__ import annotations

import logging
import shutil

import numpy as np
import onnx
import pytest

from model.errors import ProviderError
from model.export.exporter import export_graphs
from model.ports import GraphPaths
from model.runtime import operators
from model.runtime.native import build as native
from model.runtime.operators import choose_operators
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from tests.model.networks import VARIANTS, Exported, exported, lively_network, random_sources, tiny_config

needs_native = pytest.mark.skipif(native.obstacle() is not None, reason=str(native.obstacle()))


@pytest.fixture
def graphs() -> GraphPaths:
    return exported("odd").record.graph_paths("int8")


# --- which run -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obstacle", "wanted", "runs"),
    [(None, "auto", "native"), (None, "native", "native"), (None, "stock", "stock"), ("why", "auto", "stock")],
)
def test_native_ones_run_where_they_can_unless_stock_ones_are_asked_for(monkeypatch, graphs, obstacle, wanted, runs):
    monkeypatch.setattr(operators, "obstacle", lambda: obstacle)
    assert choose_operators(graphs, RuntimeOptions(operators=wanted)) == runs


def test_one_line_says_why_native_ones_do_not_run(monkeypatch, graphs, caplog):
    monkeypatch.setattr(operators, "obstacle", lambda: "this CPU is too old")
    with caplog.at_level(logging.INFO, logger=operators.__name__):
        choose_operators(graphs, RuntimeOptions())
    assert caplog.messages == ["native operators do not run, the stock ones do: this CPU is too old"]


@pytest.mark.parametrize(
    ("options", "held", "says"),
    [
        ({}, ("stock", "native"), "this CPU is too old"),
        ({}, ("stock",), "no graphs for them"),
        ({"provider": "cuda"}, ("stock", "native"), "made for the CPU"),
    ],
)
def test_native_ones_that_cannot_run_are_refused_with_the_reason(monkeypatch, graphs, options, held, says):
    monkeypatch.setattr(operators, "obstacle", lambda: "this CPU is too old")
    runtime = RuntimeOptions(operators="native", **options)
    with pytest.raises(ProviderError, match=rf"native operators were asked for, but .*{says}.*ask for `auto`"):
        choose_operators({name: graphs[name] for name in held}, runtime)


def test_unknown_operators_are_refused(graphs):
    with pytest.raises(ProviderError, match="auto, native, stock, cuda, but is 'fast'"):
        choose_operators(graphs, RuntimeOptions(operators="fast"))


def test_a_library_that_is_not_there_is_no_library(tmp_path):
    assert "not built" in native.obstacle(tmp_path / "operators.so")


def test_a_file_that_is_no_library_is_none(tmp_path):
    path = tmp_path / "operators.so"
    path.write_bytes(b"no library")
    assert "cannot be loaded" in native.obstacle(path)


@needs_native
def test_a_library_of_other_sources_is_not_run(monkeypatch):
    monkeypatch.setattr(native, "digest", lambda: "0" * 64)
    assert "other sources" in native.obstacle()


@needs_native
def test_a_library_of_these_sources_is_not_built_again(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))  # no compiler
    monkeypatch.delenv("CXX", raising=False)
    path = shutil.copy(native.LIBRARY, tmp_path)
    assert native.build(tmp_path / "operators.so") == tmp_path / path
    with pytest.raises(ProviderError, match="a C\\+\\+ compiler is needed"):
        native.build(tmp_path / "fresh.so")


def test_heads_that_the_native_ones_are_not_made_for_have_stock_graphs_alone(tmp_path):
    config = tiny_config(d_model=24, encoder_layers=1, decoder_layers=1)
    record = export_graphs(config, lively_network(config).state_dict(), tmp_path, ["f32"])
    assert list(record.graph_paths("f32")) == ["stock"]


# --- what they compute -----------------------------------------------------------------------------------------------


def both(made: Exported, precision: str) -> tuple[OnnxStepper, OnnxStepper]:
    graphs = made.record.graph_paths(precision)
    stock, ours = (open_graphs(made.config, graphs, RuntimeOptions(operators=name)) for name in ("stock", "native"))
    return stock, ours


@needs_native
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_float_both_sets_agree_to_rounding(variant):
    made = exported(variant)
    stock, ours = both(made, "f32")
    for wanted, found in zip(*(values_of(made, stepper) for stepper in (stock, ours)), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


@needs_native
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_int8_both_sets_agree_to_the_rounding_of_single_bytes(variant):
    """A sum in another order can be off by one unit in its last place, and now and then that turns a byte."""
    made = exported(variant)
    stock, ours = both(made, "int8")
    exact = both(made, "f32")[0]
    wanted, found, truth = (values_of(made, stepper) for stepper in (stock, ours, exact))
    between = np.mean([np.abs(a - b).mean() for a, b in zip(wanted, found, strict=True)])
    quantisation = np.mean([np.abs(a - b).mean() for a, b in zip(wanted, truth, strict=True)])
    assert between < 0.2 * quantisation


def values_of(made: Exported, stepper: OnnxStepper) -> list[np.ndarray]:
    """Cross keys and values, as far as there is text, and the distributions of some forced steps, in order of ids."""
    sources = random_sources(made.config, (4, 1, 19))
    lengths, cross = stepper.encode(sources)
    values = [part[row, :, :length] for part in cross for row, length in enumerate(lengths)]
    slots = stepper.start(sources, 2)
    for token in (made.config.bos_id, 7, 8, 9):
        log_probs, ids = stepper.step(slots, np.array([[token, token + 20]] * 3), made.config.vocab_size - 2)
        values.append(np.take_along_axis(log_probs, np.argsort(ids, axis=-1), axis=-1))
        stepper.reorder(slots, np.array([[1, 0]] * 3))
    return values


def test_both_sets_read_the_same_bytes_of_the_file_of_weights():
    graphs = exported("tied").record.graph_paths("int8")
    for role in ("encoder", "decoder"):
        places = [
            {
                tensor.name: [entry.value for entry in tensor.external_data]
                for tensor in onnx.load(graphs[name][role], load_external_data=False).graph.initializer
                if tensor.name.endswith(("weight_int8", "embedding.weight"))
            }
            for name in ("stock", "native")
        ]
        assert places[0]
        assert places[0] == places[1]

"""Sessions: the provider that was asked for or none, and no graph that does not fit."""

from __future__ import annotations

import logging
import shutil

import onnxruntime as ort
import pytest

from model.errors import BundleError, ProviderError
from model.ports import decoder_ports, encoder_ports
from model.runtime import sessions
from model.runtime.sessions import RuntimeOptions, open_session, provider_of
from tests.model.networks import exported

MADE = "odd"


@pytest.fixture
def decoder():
    return exported(MADE).record.graph_paths("f32")["stock"]["decoder"]


@pytest.fixture
def sheet():
    return decoder_ports(exported(MADE).config)


def test_a_session_says_which_provider_runs(decoder, sheet, caplog):
    with caplog.at_level(logging.INFO, logger=sessions.__name__):
        session = open_session(decoder, sheet, RuntimeOptions())
    assert provider_of(session) == "cpu"
    assert "decoder.f32.onnx runs on CPUExecutionProvider with 1 threads" in caplog.text


def test_asking_for_cuda_where_there_is_none_is_an_error_and_no_fallback(decoder, sheet, monkeypatch):
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(ProviderError, match=r"CUDAExecutionProvider was asked for.*only CPUExecutionProvider"):
        open_session(decoder, sheet, RuntimeOptions(provider="cuda"))


def test_a_provider_that_is_there_but_does_not_take_the_graph_is_an_error(decoder, sheet, monkeypatch):
    """A broken driver: the library lists the provider, the session silently runs elsewhere."""
    monkeypatch.setitem(sessions._PROVIDERS, "cuda", "AzureExecutionProvider")
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["AzureExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda _self: ["CPUExecutionProvider"])
    with pytest.raises(ProviderError, match="runs on CPUExecutionProvider"):
        open_session(decoder, sheet, RuntimeOptions(provider="cuda"))


def test_an_unknown_provider_is_refused(decoder, sheet):
    with pytest.raises(ProviderError, match="cpu, cuda, but is 'tpu'"):
        open_session(decoder, sheet, RuntimeOptions(provider="tpu"))


def test_no_threads_are_refused(decoder, sheet):
    with pytest.raises(ProviderError, match="at least 1"):
        open_session(decoder, sheet, RuntimeOptions(threads=0))


def test_a_missing_graph_is_refused(tmp_path, sheet):
    with pytest.raises(BundleError, match="there is no file"):
        open_session(tmp_path / "decoder.onnx", sheet, RuntimeOptions())


def test_a_damaged_graph_is_refused(tmp_path, decoder, sheet):
    path = tmp_path / "decoder.onnx"
    path.write_bytes(decoder.read_bytes()[:-500])
    with pytest.raises(BundleError, match="can load"):
        open_session(path, sheet, RuntimeOptions())


def test_a_graph_in_the_place_of_another_is_refused(tmp_path, decoder):
    path = shutil.copyfile(decoder, tmp_path / "encoder.onnx")
    shutil.copy(decoder.with_name("weights.f32.bin"), tmp_path)
    with pytest.raises(BundleError, match=r"input lengths: int32\[rows\] is missing"):
        open_session(path, encoder_ports(exported(MADE).config), RuntimeOptions())

"""The CUDA provider and memory of a device: what is missing is named, and what is there is used rightly."""

from __future__ import annotations

import gc

import numpy as np
import onnxruntime as ort
import pytest

from model.errors import ProviderError
from model.runtime import cuda, device_memory
from model.runtime.device_memory import CudaMemory, HostMemory, Plane, padded
from model.runtime.operators import choose_operators
from model.runtime.sessions import RuntimeOptions, open_session


def test_two_wheels_of_one_module_are_refused_by_name(monkeypatch, tmp_path):
    (tmp_path / "decoder.onnx").touch()
    versions = {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}
    monkeypatch.setattr(cuda, "version", versions.__getitem__)
    with pytest.raises(ProviderError, match=r"onnxruntime 1\.32\.0 and onnxruntime-gpu 1\.31\.1.*Uninstall both"):
        open_session(tmp_path / "decoder.onnx", None, RuntimeOptions(provider="cuda"))


def test_one_wheel_is_none_too_many():
    cuda.check_wheels()


def test_a_library_that_is_missing_is_named(monkeypatch, tmp_path):
    capi = tmp_path / "capi"
    capi.mkdir()
    (capi / "libonnxruntime_providers_cuda.so").write_bytes(b"no library")
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "__init__.py"))
    assert "libonnxruntime_providers_cuda.so" in cuda.missing()


def test_nothing_is_missing_where_there_is_no_cuda_provider(monkeypatch, tmp_path):
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "__init__.py"))
    assert cuda.missing() == ""


def test_without_a_cuda_runtime_there_is_no_memory(monkeypatch):
    monkeypatch.setattr(device_memory, "_LIBRARIES", ("libnowhere.so.13",))
    with pytest.raises(ProviderError, match=r"libnowhere\.so\.13 must be there.*extra `gpu`"):
        CudaMemory()


@pytest.mark.parametrize(
    ("graphs", "wanted", "says"),
    [
        (("cuda",), {"provider": "cpu"}, "f16 is made for CUDA"),
        (("cuda",), {"provider": "cuda", "operators": "stock"}, "stock operators must be there"),
        (("stock",), {"operators": "cuda"}, "cuda operators must be there"),
    ],
)
def test_graphs_that_are_not_there_are_refused(graphs, wanted, says):
    with pytest.raises(ProviderError, match=says):
        choose_operators({name: {} for name in graphs}, RuntimeOptions(**wanted))


@pytest.mark.parametrize(("graphs", "taken"), [(("stock", "native", "cuda"), "cuda"), (("stock", "native"), "stock")])
def test_cuda_takes_its_own_graphs_where_there_are_some(graphs, taken):
    assert choose_operators({name: {} for name in graphs}, RuntimeOptions(provider="cuda")) == taken


def memories() -> list:
    there = "CUDAExecutionProvider" in ort.get_available_providers()
    reason = "needs CUDA"
    return [HostMemory, pytest.param(CudaMemory, marks=pytest.mark.skipif(not there, reason=reason))]


@pytest.mark.parametrize("kind", memories())
def test_what_goes_in_comes_out_and_strips_land_where_they_should(kind):
    memory = kind()
    a, b = memory.reserve(1000), memory.reserve(2000)
    staged = memory.staging(1000)
    assert not staged.any()
    staged[:] = np.arange(1000) % 251
    memory.upload(a.address, staged)
    memory.copy(Plane(b.address + 10, 200), Plane(a.address + 5, 100), 50, 8)
    memory.settle()
    found = np.empty(2000, np.uint8)
    memory.download(found, b.address)
    wanted = np.zeros(2000, np.uint8)
    for i in range(8):
        wanted[10 + 200 * i :][:50] = staged[5 + 100 * i :][:50]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", memories())
def test_a_view_of_staged_bytes_keeps_them(kind):
    view = kind().staging(4096)[256:512].view(np.float32)
    view[:] = 3.0
    gc.collect()
    assert (view == 3.0).all()


@pytest.mark.parametrize(("nbytes", "room"), [(0, 0), (1, 256), (256, 256), (257, 512)])
def test_parts_of_a_block_are_aligned(nbytes, room):
    assert padded(nbytes) == room

"""Memory for caches: dense, zeroed, and given back."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import numpy as np
import pytest

from model.runtime.memory import LARGE_BYTES, bind_input, bind_output, zeros


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("rows", [0, 1, LARGE_BYTES // 40 + 1])
def test_arrays_of_any_size_are_zeroed_dense_and_writable(rows):
    array = zeros((rows, 10), np.float32)
    assert array.shape == (rows, 10)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    assert not array.any()
    array[...] = 1.0
    assert array.all()


def test_two_large_arrays_share_nothing():
    a, b = (zeros((LARGE_BYTES,), np.uint8) for _ in range(2))
    a[...] = 7
    assert not b.any()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_large_array_goes_back_to_the_system_at_once():
    before = resident_bytes()
    arrays = [zeros((8 << 20,), np.uint8) for _ in range(8)]
    for array in arrays:
        array[...] = 1
    assert resident_bytes() - before > 60 << 20
    del arrays, array
    assert resident_bytes() - before < 8 << 20


def test_a_system_without_private_mappings_gives_ordinary_arrays(monkeypatch):
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    assert not zeros((LARGE_BYTES,), np.uint8).any()


def test_a_kernel_that_refuses_the_advice_gives_the_array_all_the_same(monkeypatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1, raising=False)
    assert zeros((LARGE_BYTES,), np.uint8).size == LARGE_BYTES


@pytest.mark.parametrize("bind", [bind_input, bind_output])
def test_a_strided_array_is_never_bound(bind):
    with pytest.raises(ValueError, match=r"past_key_0 has strides \(8,\)"):
        bind(None, "past_key_0", np.zeros(8, np.float32)[::2])

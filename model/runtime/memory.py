"""Arrays for caches: large ones come straight from the operating system and go straight back, and are bound by address.

The allocator of the C library keeps what was freed, so that one long request would hold its memory for ever.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]
Rows = NDArray[np.int64] | slice
"""Rows of a pool in any order; a slice of the first ones in theirs takes fewer copies."""

LARGE_BYTES = 1 << 20
"""From this size on an array has pages of its own."""


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """A zeroed, contiguous array. A large one asks for huge pages, which attention over a cache likes."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < LARGE_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(shape, kind)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them; it was only advice
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, kind).reshape(shape)


def outside(ids: Array, size: int) -> bool:
    """True if one of the ids is not in [0, size); for the few of a step lists are faster than arrays."""
    values: list[int] = ids.ravel().tolist()
    return min(values) < 0 or max(values) >= size


def bind_input(binding: ort.IOBinding, name: str, array: Array) -> None:
    """Let an input of a run be the memory of `array` itself, which the binding keeps alive."""
    _check_dense(name, array)
    binding.bind_cpu_input(name, array)


def bind_output(binding: ort.IOBinding, name: str, array: Array) -> None:
    """Let an output of a run be the memory of `array` itself, which the binding keeps alive."""
    _check_dense(name, array)
    binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))


def _check_dense(name: str, array: Array) -> None:
    """A strided view would be read as if it were dense, and is a `ValueError`."""
    if not array.flags.c_contiguous:
        raise ValueError(f"a bound array must be contiguous, but {name} has strides {array.strides}.")

"""Memory where the graphs run, by address: a block of it, what goes in and out, and copies inside it.

`DevicePool` knows nothing else of a device. On CUDA the blocks are the device's and the calls go to the CUDA runtime
that ONNX Runtime has loaded; on the CPU the same interface stands on numpy, so that the pool is tested without a GPU.

Whoever copies must call `settle` before the next run of a graph: that has a stream of its own, which waits for nothing.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from model.errors import ProviderError
from model.runtime.memory import Array, zeros

ALIGNMENT = 256
"""Every part of a block begins at a multiple of this, as what `cudaMalloc` gives does."""


class Plane(NamedTuple):
    """Equal strips of bytes: where the first one begins, and how far apart they are."""

    address: int
    pitch: int


@dataclass(frozen=True, eq=False)
class Block:
    """Zeroed memory; it goes back when nobody holds the block any more."""

    address: int
    nbytes: int
    keeper: Any = None


class Memory(Protocol):
    """Memory of one device."""

    kind: Literal["cpu", "cuda"]
    """What ONNX Runtime calls the device."""

    def reserve(self, nbytes: int) -> Block:
        """A zeroed block. Raises `ProviderError` where there is no room."""
        ...

    def staging(self, nbytes: int) -> Array:
        """Zeroed bytes of the host, of a kind that goes to the device fastest: (nbytes)."""
        ...

    def upload(self, target: int, source: Array) -> None:
        """Bytes of `staging` to the device; they are there when this returns."""
        ...

    def download(self, target: Array, source: int) -> None:
        """Bytes of the device to the host; they are there when this returns."""
        ...

    def copy(self, target: Plane, source: Plane, width: int, height: int) -> None:
        """So many strips of `width` bytes each from one place of the device to another; they must not overlap."""
        ...

    def settle(self) -> None:
        """Return when all copies are done."""
        ...


def padded(nbytes: int) -> int:
    """`nbytes`, rounded up to where the next part of a block may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class HostMemory:
    """The CPU as a device."""

    kind: Literal["cpu", "cuda"] = "cpu"

    def reserve(self, nbytes: int) -> Block:
        """See `Memory`."""
        array = zeros((nbytes,), np.uint8)
        return Block(array.ctypes.data, nbytes, array)

    def staging(self, nbytes: int) -> Array:
        """See `Memory`."""
        return zeros((nbytes,), np.uint8)

    def upload(self, target: int, source: Array) -> None:
        """See `Memory`."""
        ctypes.memmove(target, source.ctypes.data, source.nbytes)

    def download(self, target: Array, source: int) -> None:
        """See `Memory`."""
        ctypes.memmove(target.ctypes.data, source, target.nbytes)

    def copy(self, target: Plane, source: Plane, width: int, height: int) -> None:
        """See `Memory`."""
        if width and height:
            _strips(target, width, height)[...] = _strips(source, width, height)

    def settle(self) -> None:
        """Copies are done when they return."""


def _strips(plane: Plane, width: int, height: int) -> Array:
    """The bytes of a plane as an array, (height, width)."""
    size = plane.pitch * (height - 1) + width
    return np.lib.stride_tricks.as_strided(_window(plane.address, size), (height, width), (plane.pitch, 1))


def _window(address: int, nbytes: int) -> Array:
    """Memory of somebody else as an array of bytes."""
    window: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(window, np.uint8)


_LIBRARIES = ("libcudart.so.13", "libcudart.so.12", "cudart64_13.dll", "cudart64_12.dll")
_TO_DEVICE, _TO_HOST, _INSIDE = 1, 2, 3


class CudaMemory:
    """Memory of the CUDA device that is the current one, which is ONNX Runtime's `device_id` 0."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(self) -> None:
        """Raises `ProviderError` where there is no CUDA runtime."""
        self._library = _cuda_runtime()

    def reserve(self, nbytes: int) -> Block:
        """See `Memory`."""
        address = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        block = Block(address.value or 0, nbytes)
        weakref.finalize(block, self._library.cudaFree, address)
        self._call("cudaMemset", address, 0, ctypes.c_size_t(max(nbytes, 1)))
        self.settle()
        return block

    def staging(self, nbytes: int) -> Array:
        """Page-locked: the device fetches it without a copy in between."""
        address = ctypes.c_void_p()
        self._call("cudaMallocHost", ctypes.byref(address), ctypes.c_size_t(max(nbytes, 1)))
        array = _window(address.value or 0, nbytes)
        weakref.finalize(array.base, self._library.cudaFreeHost, address)
        array[:] = 0
        return array

    def upload(self, target: int, source: Array) -> None:
        """See `Memory`."""
        self._transfer(target, source.ctypes.data, source.nbytes, _TO_DEVICE)

    def download(self, target: Array, source: int) -> None:
        """See `Memory`."""
        self._transfer(target.ctypes.data, source, target.nbytes, _TO_HOST)

    def copy(self, target: Plane, source: Plane, width: int, height: int) -> None:
        """See `Memory`."""
        to, of = _pitched(target), _pitched(source)
        self._call("cudaMemcpy2D", *to, *of, ctypes.c_size_t(width), ctypes.c_size_t(height), _INSIDE)

    def settle(self) -> None:
        """Copies inside the device return before they are done."""
        self._call("cudaDeviceSynchronize")

    def _transfer(self, target: int, source: int, nbytes: int, direction: int) -> None:
        to, of = ctypes.c_void_p(target), ctypes.c_void_p(source)
        self._call("cudaMemcpy", to, of, ctypes.c_size_t(nbytes), direction)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            self._library.cudaGetErrorString.restype = ctypes.c_char_p
            says = self._library.cudaGetErrorString(status).decode()
            raise ProviderError(
                f"{name} must succeed, but CUDA says: {says} ({status}). Give the engine more of the GPU, or lower "
                "max_slots."
            )


def _pitched(plane: Plane) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(plane.address), ctypes.c_size_t(plane.pitch)


def _cuda_runtime() -> ctypes.CDLL:
    """The library that ONNX Runtime has loaded, if it has: asked for by its name, the same one comes back."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ProviderError(
        f"one of {', '.join(_LIBRARIES)} must be there, but none is; install the extra `gpu`, which brings it."
    )

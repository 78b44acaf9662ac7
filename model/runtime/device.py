"""What a stepper needs of a device that keeps caches in its own memory: the encoder's run, and pools."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.config import ModelConfig
from model.ports import cross_names
from model.runtime.device_memory import CudaMemory, HostMemory, Memory, padded
from model.runtime.device_pool import DevicePool, DevicePoolOptions, Encoded, Layout, Size
from model.runtime.memory import Array, bind_input
from model.runtime.sessions import RuntimeOptions

SOURCE_MULTIPLE = 8
"""Sources are padded to a multiple of this, as the matrix units of a GPU like it."""

HOST_OPTIONS = DevicePoolOptions(least=Size(1, 16, 16), kept_bytes=64 << 20)
"""For the CPU, where each row costs what it costs."""


class Device:
    """Sessions of one model share it. Not thread-safe."""

    def __init__(self, config: ModelConfig, memory: Memory, options: DevicePoolOptions) -> None:
        self.options = options
        self._config = config
        self._memory = memory
        self._scratch = memory.reserve(0)

    def encode(self, session: ort.InferenceSession, tokens: NDArray[np.int64], lengths: NDArray[np.int32]) -> Encoded:
        """Cross-attention keys and values of all decoder layers for padded sources (B, S), left on the device.

        They are good until the next call: all encodings share one piece of memory.
        """
        binding, names = session.io_binding(), cross_names(self._config)
        extra = -tokens.shape[1] % SOURCE_MULTIPLE
        tokens = np.pad(tokens, ((0, 0), (0, extra)), constant_values=self._config.pad_id)  # (B, S) -> (B, S')
        shape = (len(tokens), self._config.heads, tokens.shape[1], self._config.head_size)
        dtype = np.dtype(np.float16 if session.get_outputs()[0].type == "tensor(float16)" else np.float32)
        stride = padded(int(np.prod(shape)) * dtype.itemsize)
        if self._scratch.nbytes < stride * len(names):
            self._scratch = self._memory.reserve(stride * len(names))
        block = self._scratch
        bind_input(binding, "tokens", np.ascontiguousarray(tokens))
        bind_input(binding, "lengths", lengths)
        for i, name in enumerate(names):
            binding.bind_output(name, self._memory.kind, 0, dtype.type, shape, block.address + i * stride)
        session.run_with_iobinding(binding)
        return Encoded(block, shape, dtype.name, stride)

    def fetch(self, encoded: Encoded, source: int) -> list[NDArray[np.float32]]:
        """What was encoded, on the host and in float32, as far as `source` positions: (B, H, S, K) each."""
        host: Array = np.empty(encoded.block.nbytes, np.uint8)
        self._memory.download(host, encoded.block.address)
        layout = Layout(dict.fromkeys(cross_names(self._config), (encoded.shape, encoded.dtype)))
        return [values[:, :, :source].astype(np.float32) for values in layout.views(host).values()]

    def pool(self, session: ort.InferenceSession, width: int, attending: bool) -> DevicePool:
        """An empty pool over the decoder, or the attending one, whose steps are too rare to be recorded."""
        options = replace(self.options, next_graph=None) if attending else self.options
        return DevicePool(self._config, session, width, self._memory, options)


def open_device(config: ModelConfig, runtime: RuntimeOptions, recordable: bool) -> Device:
    """The device of `runtime`. `recordable` says that the graphs hold nothing that forbids CUDA graphs."""
    if runtime.provider == "cpu":
        return Device(config, HostMemory(), HOST_OPTIONS)
    next_graph: Callable[[], int] | None = itertools.count(1).__next__ if recordable and runtime.device_graphs else None
    return Device(config, CudaMemory(), DevicePoolOptions(next_graph=next_graph))

"""Running the encoder: checks what it is given, and keeps what it writes to, for the next sources.

A short sentence is encoded in less than a millisecond. Fresh memory and a fresh binding would cost it a tenth of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.config import ModelConfig
from model.decode.stepper import Tokens
from model.errors import DecodeError
from model.ports import cross_names
from model.runtime.memory import Array, bind_input, bind_output, outside, zeros
from model.runtime.sessions import provider_of

KEPT_BYTES = 32 << 20
"""Outputs up to this size are kept."""

KEPT_SHAPES = 64
"""Bindings that are kept, one for each shape of tokens."""

LARGE_ENCODING = 4096
"""Padded source tokens from which on a run gives its scratch memory back at once."""

Cross = list[NDArray[np.float32]]


def lengths_of(config: ModelConfig, sources: Sequence[Sequence[int]]) -> list[int]:
    """Raises `DecodeError` for a source that is empty or too long."""
    lengths, most = [len(source) for source in sources], config.max_positions
    if min(lengths) < 1 or max(lengths) > most:
        found = min(lengths) if min(lengths) < 1 else max(lengths)
        raise DecodeError(f"a source must have 1..{most} tokens, but one has {found}; split it first.")
    return lengths


def padded(config: ModelConfig, sources: Sequence[Sequence[int]]) -> tuple[Tokens, list[int]]:
    """Tokens (B, S), with PAD up to the longest source, and lengths. Raises `DecodeError` for what is no source."""
    lengths = lengths_of(config, sources)
    tokens = np.full((len(sources), max(lengths)), config.pad_id, np.int64)
    for row, source in enumerate(sources):
        tokens[row, : len(source)] = source
    if outside(tokens, config.vocab_size):
        raise DecodeError(f"source ids must be in [0, {config.vocab_size}), but one of them is not.")
    return tokens, lengths


@dataclass(frozen=True, slots=True)
class _Run:
    """What a run of one shape reads and writes, by address."""

    binding: ort.IOBinding
    tokens: Tokens
    lengths: NDArray[np.int32]
    cross: Cross


class Encoder:
    """The encoder's session with its memory. Not thread-safe, but the session may be shared."""

    def __init__(self, config: ModelConfig, session: ort.InferenceSession) -> None:
        self._config = config
        self._session = session
        self._names = cross_names(config)
        self._memory: Array = np.empty(0, np.float32)
        self._runs: dict[tuple[int, int], _Run] = {}
        self._large = ort.RunOptions()
        if provider_of(session) == "cpu":
            self._large.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def encode(self, tokens: Tokens, lengths: Sequence[int]) -> Cross:
        """The cross-attention key and value (B, H, S, K) of every decoder layer, for what `padded` returned.

        The arrays are the caller's until the next call.
        """
        run = self._run(*tokens.shape)
        run.tokens[:], run.lengths[:] = tokens, lengths
        self._session.run_with_iobinding(run.binding, self._large if tokens.size >= LARGE_ENCODING else None)
        return run.cross

    def _run(self, rows: int, source: int) -> _Run:
        """The memory and the binding for tokens of shape (rows, source)."""
        if (rows, source) in self._runs:
            return self._runs[rows, source]
        config = self._config
        shape = (len(self._names), rows, config.heads, source, config.head_size)
        memory = self._room(int(np.prod(shape)))
        run = self._bind((rows, source), memory.reshape(shape))
        if memory.nbytes <= KEPT_BYTES:
            if len(self._runs) >= KEPT_SHAPES:
                self._runs.clear()
            self._runs[rows, source] = run
        return run

    def _room(self, count: int) -> Array:
        """Memory of `count` numbers, of which every run of the encoder makes use."""
        if count > self._memory.size:
            memory = zeros((count,), np.float32)
            if memory.nbytes > KEPT_BYTES:
                return memory
            self._memory = memory
            self._runs.clear()
        return self._memory[:count]

    def _bind(self, shape: tuple[int, int], memory: Array) -> _Run:
        tokens, lengths = np.empty(shape, np.int64), np.empty(shape[0], np.int32)
        run = _Run(self._session.io_binding(), tokens, lengths, list(memory))
        bind_input(run.binding, "tokens", tokens)
        bind_input(run.binding, "lengths", lengths)
        for name, array in zip(self._names, run.cross, strict=True):
            bind_output(run.binding, name, array)
        return run

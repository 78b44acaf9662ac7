"""The Stepper that runs the graphs: slots are rows of pools, one pool for each width and kind of slot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.bundle import Bundle
from model.config import ModelConfig
from model.decode.stepper import Attention, LogProbs, Tokens
from model.errors import DecodeError
from model.ports import ROLES, TOP_K_BLOCK, GraphPaths, Operators, port_sheet, precision_of
from model.runtime.device import Device, open_device
from model.runtime.device_pool import DevicePool
from model.runtime.encoder import Encoder, lengths_of, padded
from model.runtime.memory import Rows, outside
from model.runtime.native.build import LIBRARY
from model.runtime.operators import choose_operators
from model.runtime.pool import Pool
from model.runtime.sessions import Provider, RuntimeOptions, Sessions, open_session, provider_of

RUN_TOKENS = 12
"""A run of the encoder costs this many tokens' time beyond that of its tokens, about."""

KEPT_BYTES = 128 << 20
"""What pools may keep when they fall empty, for the next sentences: fresh memory costs more than a decoder step."""


def open_stepper(bundle: Bundle, precision: str, runtime: RuntimeOptions | None = None) -> OnnxStepper:
    """The stepper of a bundle in one of its precisions.

    Raises `BundleError` for a precision the bundle has not or a graph that does not fit, `ProviderError` for a provider
    or operators that are not there.
    """
    return open_graphs(bundle.config, bundle.graph_paths(precision), runtime or RuntimeOptions())


def open_graphs(config: ModelConfig, graphs: GraphPaths, runtime: RuntimeOptions) -> OnnxStepper:
    """The stepper of the graphs of one precision, with the operators that `runtime` asks for."""
    operators = choose_operators(graphs, runtime)
    library = LIBRARY if operators == "native" else None
    precision, plain = precision_of(graphs), replace(runtime, device_graphs=False)
    recordable = runtime.device_graphs and operators == "cuda"
    encoder, decoder = (
        open_session(graphs[operators][role], port_sheet(role, config, precision), options, library)
        for role, options in zip(ROLES, (plain, replace(runtime, device_graphs=recordable)), strict=True)
    )
    attending = None
    if path := graphs[operators].get("attending"):
        attending = partial(open_session, path, port_sheet("attending", config, precision), plain, library)
        # Tried now, so that it cannot fail later, and closed again: it has a copy of the weights, which those who never
        # ask for an alignment need not pay for.
        attending()
    device = None
    if operators == "cuda" or runtime.provider == "cuda":
        device = open_device(config, runtime, recordable)
    return OnnxStepper(config, Sessions(encoder, decoder, operators, attending), device)


def by_length(lengths: Sequence[int]) -> list[list[int]]:
    """The indices of sources that are encoded together: cut by length wherever that saves `RUN_TOKENS` of padding.

    A source's keys and values do not depend on its neighbours, so this changes nothing but the time.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    # To cut after the i shortest saves each of these the difference between the longest of them and the longest of all.
    saved = [i * (lengths[order[-1]] - lengths[order[i - 1]]) for i in range(1, len(order))]
    if max(saved, default=0) < RUN_TOKENS:
        return [sorted(order)]
    cut = 1 + saved.index(max(saved))
    return [
        [part[i] for i in group]
        for part in (order[:cut], order[cut:])
        for group in by_length([lengths[i] for i in part])
    ]


AnyPool = Pool | DevicePool


class PoolName(NamedTuple):
    """What slots of one pool have in common."""

    width: int
    apart: bool
    attending: bool


class OnnxStepper:
    """Implements `model.decode.stepper.Stepper`. Not thread-safe: one thread drives it."""

    def __init__(self, config: ModelConfig, sessions: Sessions, device: Device | None = None) -> None:
        """With a `device` all caches live there, else in ordinary memory."""
        self.sessions = sessions
        self._config = config
        self._device = device
        self._encoder = Encoder(config, sessions.encoder)
        self._pools: dict[PoolName, AnyPool] = {}
        self._places: dict[int, tuple[AnyPool, int]] = {}
        self._slots: dict[tuple[AnyPool, int], int] = {}
        self._next_slot = itertools.count()
        self._found: dict[tuple[int, ...], tuple[AnyPool, Rows]] = {}

    @property
    def max_positions(self) -> int:
        """Longest source and longest target in tokens, BOS and EOS included."""
        return self._config.max_positions

    @property
    def vocab_size(self) -> int:
        """Ids are in [0, vocab_size)."""
        return self._config.vocab_size

    @property
    def provider(self) -> Provider:
        """What runs the decoder, read back from its session."""
        return provider_of(self.sessions.decoder)

    @property
    def operators(self) -> Operators:
        """What the graphs that run are written with."""
        return self.sessions.operators

    @property
    def attends(self) -> bool:
        """True if there is an attending decoder; see `Stepper.attends`."""
        return self.sessions.open_attending is not None

    @property
    def cache_bytes(self) -> int:
        """Memory of all caches, in bytes."""
        return sum(pool.nbytes for pool in self._pools.values())

    def start(
        self, sources: Sequence[Sequence[int]], width: int, apart: bool = False, attending: bool = False
    ) -> list[int]:
        """Encode `sources`, like lengths together, and give each a slot of `width` lanes; see `Stepper.start`."""
        if width < 1:
            raise DecodeError(f"a slot must have at least one lane, but {width} were asked for.")
        if not sources:
            return []
        name = PoolName(width, apart, attending)
        rows = self._encode_into(name, sources) if self._device is None else self._encode_on(name, sources)
        pool = self._pools[name]
        slots = []
        for row in rows:
            slot = next(self._next_slot)
            self._place(slot, pool, row)
            slots.append(slot)
        return slots

    def _encode_into(self, name: PoolName, sources: Sequence[Sequence[int]]) -> range:
        lengths = lengths_of(self._config, sources)
        groups = [(group, padded(self._config, [sources[i] for i in group])) for group in by_length(lengths)]
        pool = self._pool(name)
        assert isinstance(pool, Pool)
        rows = pool.add(lengths)
        try:
            for group, (tokens, its_lengths) in groups:
                pool.fill([rows[i] for i in group], self._encoder.encode(tokens, its_lengths))
        except Exception:
            pool.take_back(rows)
            raise
        return rows

    def _encode_on(self, name: PoolName, sources: Sequence[Sequence[int]]) -> range:
        """On a device padding is cheap and a run is not: all sources are encoded together."""
        assert self._device is not None
        tokens, lengths = self._padded(sources)
        encoded = self._device.encode(self.sessions.encoder, tokens, lengths)
        pool = self._pool(name)
        assert isinstance(pool, DevicePool)
        rows = pool.add(lengths)
        pool.fill(list(rows), encoded)
        return rows

    def encode(self, sources: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], list[NDArray[np.float32]]]:
        """Lengths (B), and the cross-attention key and value (B, H, S, K) of every decoder layer; S is the longest."""
        tokens, lengths = self._padded(sources)
        if self._device is None:
            return lengths, [values.copy() for values in self._encoder.encode(tokens, lengths.tolist())]
        encoded = self._device.encode(self.sessions.encoder, tokens, lengths)
        return lengths, self._device.fetch(encoded, tokens.shape[1])

    def step(self, slots: Sequence[int], tokens: Tokens, k: int) -> tuple[LogProbs, Tokens]:
        """Feed one token to each lane; the k best continuations (R, W, k) of each; see `Stepper.step`."""
        pool, rows = self._rows(slots)
        tokens = np.asarray(tokens, dtype=np.int64)
        if tokens.shape != (len(slots), pool.width):
            raise DecodeError(
                f"tokens must have shape {(len(slots), pool.width)}, one a lane, but have {tokens.shape}."
            )
        if not 1 <= k <= max(self.vocab_size, TOP_K_BLOCK):
            raise DecodeError(f"k must be in 1..{max(self.vocab_size, TOP_K_BLOCK)}, but is {k}.")
        if outside(tokens, self.vocab_size):
            raise DecodeError(f"tokens must be in [0, {self.vocab_size}), but one of them is not.")
        if pool.reach >= self.max_positions and pool.positions[rows].max() >= self.max_positions:
            raise DecodeError(f"a target must end within {self.max_positions} positions, but one is already there.")
        return pool.step(rows, tokens, k)

    def attention(self, slots: Sequence[int]) -> Attention:
        """What each lane attended to in the step just taken, (R, W, S); see `Stepper.attention`."""
        pool, rows = self._rows(slots)
        if not pool.attending:
            raise DecodeError("only slots that were started as attending ones can be asked what they attended to.")
        return pool.attention(rows)

    def reorder(self, slots: Sequence[int], parents: Tokens) -> None:
        """Let lane j of slot r carry on the history of lane `parents[r, j]`; see `Stepper.reorder`."""
        pool, rows = self._rows(slots)
        parents = np.asarray(parents, dtype=np.int64)
        if parents.shape != (len(slots), pool.width) or outside(parents, pool.width):
            raise DecodeError(f"parents must be lanes of shape {(len(slots), pool.width)}, but are {parents.tolist()}.")
        pool.reorder(rows, parents)

    def finish(self, slots: Sequence[int]) -> None:
        """Give the slots back; see `Stepper.finish`."""
        pools: set[AnyPool] = set()
        self._found.clear()  # rows will move
        for slot in slots:
            pool, row = self._place_of(slot)
            moved = pool.remove(row)
            del self._places[slot]
            last = self._slots.pop((pool, moved))
            if last != slot:
                self._place(last, pool, row)
            pools.add(pool)
        for pool in pools:
            if pool.count:
                pool.trim()
        # Of the empty ones, those that served just now come last.
        for pool in sorted(self._pools.values(), key=pools.__contains__):
            if not pool.count and self.cache_bytes > KEPT_BYTES:
                pool.trim()

    @cached_property
    def _attending(self) -> ort.InferenceSession:
        """The session of the attending decoder, opened when a sentence first needs it."""
        if self.sessions.open_attending is None:
            raise DecodeError(
                "slots may be attending only where there is an attending decoder; publish the model anew."
            )
        return self.sessions.open_attending()

    def _pool(self, name: PoolName) -> AnyPool:
        if name not in self._pools:
            session = self._attending if name.attending else self.sessions.decoder
            self._pools[name] = (
                Pool(self._config, session, name.width, name.attending)
                if self._device is None
                else self._device.pool(session, name.width, name.attending)
            )
        return self._pools[name]

    def _padded(self, sources: Sequence[Sequence[int]]) -> tuple[Tokens, NDArray[np.int32]]:
        tokens, lengths = padded(self._config, sources)
        return tokens, np.array(lengths, np.int32)

    def _rows(self, slots: Sequence[int]) -> tuple[AnyPool, Rows]:
        """The pool of these slots and their rows in it; remembered, for most steps have the slots of the last one."""
        named = tuple(slots)
        if named not in self._found:
            self._found = {named: self._find(named)}
        return self._found[named]

    def _find(self, slots: tuple[int, ...]) -> tuple[AnyPool, Rows]:
        if not slots:
            raise DecodeError("a step needs at least one slot, but got none.")
        places = [self._place_of(slot) for slot in slots]
        pool = places[0][0]
        if any(other is not pool for other, _ in places):
            raise DecodeError(
                "the slots of one step must all have the same number of lanes, and all or none be apart, or attending."
            )
        if len(set(slots)) != len(slots):
            raise DecodeError("a step must name a slot once, but one is named twice.")
        rows = [row for _, row in places]
        if rows == list(range(len(rows))):
            return pool, slice(len(rows))
        return pool, np.array(rows, dtype=np.int64)

    def _place(self, slot: int, pool: AnyPool, row: int) -> None:
        self._places[slot] = (pool, row)
        self._slots[pool, row] = slot

    def _place_of(self, slot: int) -> tuple[AnyPool, int]:
        try:
            return self._places[slot]
        except KeyError:
            raise DecodeError(f"slot {slot} is not in use; it was finished or never started.") from None

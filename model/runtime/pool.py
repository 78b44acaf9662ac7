"""The caches of all sentences of one width, and the decoder step over them.

A pool keeps its sentences in rows 0 … n - 1, without holes: the last row moves into the place of one that leaves. Its
arrays are as large as its sentences need: each of the three free axes (rows, positions, source) grows when it is too
short and shrinks when it is more than twice too long, so that one long request does not hold memory for ever.

Letters: N rows, W lanes, H heads, C = positions · W cache entries, S source positions, K head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.config import ModelConfig
from model.ports import ATTENTION, MASKED, cache_names, cross_names
from model.runtime.memory import Array, Rows, bind_input, bind_output, zeros

POSITION_CHUNK = 16
"""Positions by which a cache grows: longer means fewer copies, but more empty entries to look at in each step."""
SOURCE_CHUNK = 16
ROW_CHUNK = 4
KEPT_CANDIDATES = 1 << 20
"""Candidates in the output buffers that are kept for the next step of the same shape, 12 bytes each."""


@dataclass(frozen=True, slots=True)
class Size:
    """Room of a pool along its three free axes."""

    rows: int = 0
    positions: int = 0
    source: int = 0

    def fit(self, need: Size) -> Size:
        """The room for `need`: this one where it is large enough and at most twice too large."""
        return Size(
            _fit(self.rows, need.rows, ROW_CHUNK),
            _fit(self.positions, need.positions, POSITION_CHUNK),
            _fit(self.source, need.source, SOURCE_CHUNK),
        )


def _fit(room: int, need: int, chunk: int) -> int:
    wanted = -(-need // chunk) * chunk
    return room if need <= room <= max(2 * wanted, chunk) else wanted


class Pool:
    """Rows of `width` lanes. Callers name rows by their present index; `remove` says which row moved."""

    def __init__(self, config: ModelConfig, session: ort.InferenceSession, width: int, attending: bool = False) -> None:
        """`session` runs the decoder, or the attending decoder if the pool is `attending`."""
        self.width = width
        self.attending = attending
        self._last: Binding | None = None
        self.count = 0
        """n, rows in use."""
        self.reach = 0
        """No row's next position is larger: known without looking at each of them."""
        self._lanes: Array = np.empty((0, width), np.int64)
        """(N, W): each lane's number."""
        self._config = config
        self._session = session
        self._cross = cross_names(config)
        self._caches = cache_names(config)
        self._size = Size()
        self._arrays: dict[str, Array] = {}
        self._bindings: dict[tuple[int, int], Binding] = {}
        self._resize(self._size)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def positions(self) -> NDArray[np.int64]:
        """The next position of each row in use, (n)."""
        return self._arrays["next"][: self.count]

    def add(self, lengths: Sequence[int]) -> range:
        """Rows for new sentences of these source lengths (B), in this order; `fill` must follow for each of them."""
        need = self._need()
        rows = range(self.count, self.count + len(lengths))
        self._make_room(Size(rows.stop, max(need.positions, 1), max(need.source, *lengths)))
        self.count = rows.stop
        where = slice(rows.start, rows.stop)
        self._arrays["next"][where] = 0
        self._arrays["source_lengths"][where] = lengths
        self._arrays["visible"][where] = MASKED
        return rows

    def take_back(self, rows: range) -> None:
        """Undo the last `add`."""
        self.count = rows.start

    def fill(self, rows: list[int], cross: list[Array]) -> None:
        """The cross-attention keys and values (R, H, S, K) of new rows."""
        where = slice(rows[0], rows[-1] + 1) if rows == list(range(rows[0], rows[-1] + 1)) else rows
        for name, values in zip(self._cross, cross, strict=True):
            self._arrays[name][where, :, : values.shape[2]] = values

    def step(self, rows: Rows, tokens: Array, k: int) -> tuple[Array, Array]:
        """One decoder step for `rows` (R) with `tokens` (R, W); returns log-probabilities and ids (R, W, k).

        Rows that are not named are computed too, since the arrays have no holes, but do not move on: what they write
        lies at their own next position and is overwritten by their own next step.
        """
        if self.reach >= self._size.positions:
            self._make_room(self._need())
        bound = self._last = self._binding(k)
        # A row that is full cannot be named any more; what it writes must only stay inside the array.
        np.minimum(bound.next, self._config.max_positions - 1, out=bound.positions)
        np.multiply(bound.positions, self.width, out=bound.write_index)
        bound.visible[bound.own[rows] + bound.write_index[rows, None]] = 0.0  # (R, W) entries
        bound.tokens[rows] = tokens
        self._session.run_with_iobinding(bound.binding)
        bound.next[rows] += 1
        self.reach += 1
        return bound.log_probs[rows], bound.ids[rows]

    def attention(self, rows: Rows) -> Array:
        """What the lanes of `rows` attended to in the last step, (R, W, S)."""
        assert self._last is not None
        return np.array(self._last.attention[rows])  # a slice would be a window on what the next step writes

    def reorder(self, rows: Rows, parents: Array) -> None:
        """Lane j of row r sees henceforth what lane parents[r, j] saw: a permutation inside `visible`."""
        visible = self._arrays["visible"]
        lanes = visible.reshape(-1, visible.shape[-1])  # (N, 1, W, C) -> (N · W, C)
        first = self._lanes[:, :1]  # (N, W) -> (N, 1)
        visible[rows, 0] = lanes.take(first[rows] + parents, axis=0)  # (R, W) -> (R, W, C)

    def remove(self, row: int) -> int:
        """Free `row`. Returns the row that moved into its place: the last one (which may be `row` itself)."""
        last = self.count - 1
        if row != last:
            entries = int(self.positions[last]) * self.width
            source = int(self._arrays["source_lengths"][last])
            for past, _ in self._caches:
                self._arrays[past][row, :, :entries] = self._arrays[past][last, :, :entries]
            for name in self._cross:
                self._arrays[name][row, :, :source] = self._arrays[name][last, :, :source]
            for name in ("next", "source_lengths", "visible"):
                self._arrays[name][row] = self._arrays[name][last]
        self.count = last
        return last

    def trim(self) -> None:
        """Give back room that is more than twice too large."""
        self._make_room(self._need())

    def _need(self) -> Size:
        if not self.count:
            self.reach = 0
            return Size()
        self.reach = int(self.positions.max())
        most = min(self.reach + 1, self._config.max_positions)
        return Size(self.count, most, int(self._arrays["source_lengths"][: self.count].max()))

    def _make_room(self, need: Size) -> None:
        size = self._size.fit(need)
        if size != self._size:
            self._resize(size)

    def _resize(self, size: Size) -> None:
        """Arrays of `size` with the contents of the present ones as far as both reach. Entries beyond are finite.

        An array whose shape does not change stays: only the caches grow as a sentence does.
        """
        arrays = self._arrays
        for name, (shape, dtype) in self._forms(size).items():
            before = arrays.get(name)
            if before is not None and before.shape == shape:
                continue
            array = np.full(shape, MASKED, dtype) if name == "visible" else zeros(shape, dtype)
            if before is not None:
                both = tuple(slice(min(a, b)) for a, b in zip(shape, before.shape, strict=True))
                array[both] = before[both]
            arrays[name] = array
        self._lanes = np.arange(size.rows * self.width).reshape(size.rows, self.width)  # (N · W) -> (N, W)
        self._size = size
        self._bindings.clear()

    def _forms(self, size: Size) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
        """Shape and type of every array of a pool of `size`."""
        config, width, rows = self._config, self.width, size.rows
        entries = size.positions * width
        cache = (rows, config.heads, entries, config.head_size)
        cross = (rows, config.heads, size.source, config.head_size)
        return {
            "next": ((rows,), np.int64),
            "tokens": ((rows, width), np.int64),
            "positions": ((rows,), np.int64),
            "source_lengths": ((rows,), np.int32),
            "write_index": ((rows,), np.int64),
            "visible": ((rows, 1, width, entries), np.float32),
            **{past: (cache, np.float32) for past, _ in self._caches},
            **dict.fromkeys(self._cross, (cross, np.float32)),
        }

    def _binding(self, k: int) -> Binding:
        """Inputs and outputs for the rows in use; kept until an array moves or there are too many."""
        key = (self.count, k)
        if key not in self._bindings:
            if sum(bound.ids.size for bound in self._bindings.values()) > KEPT_CANDIDATES:
                self._bindings.clear()
            self._bindings[key] = self._bind(k)
        return self._bindings[key]

    def _bind(self, k: int) -> Binding:
        used = {name: array[: self.count] for name, array in self._arrays.items()}
        lanes, entries = self._lanes[: self.count], used["visible"].shape[-1]
        bound = Binding(
            binding=self._session.io_binding(),
            k=np.array([k], np.int64),
            log_probs=np.empty((*lanes.shape, k), np.float32),
            ids=np.empty((*lanes.shape, k), np.int64),
            attention=np.empty((*lanes.shape, self._size.source if self.attending else 0), np.float32),
            visible=used["visible"].reshape(-1),  # (n, 1, W, C) -> (n · W · C)
            own=lanes * entries + np.arange(self.width),
            **{name: used[name] for name in ("next", "tokens", "positions", "write_index")},
        )
        for name, array in (*used.items(), ("k", bound.k)):
            if name != "next":
                bind_input(bound.binding, name, array)
        # The same memory as the input: the step writes its keys and values in place.
        outputs = {present: used[past] for past, present in self._caches}
        for name, array in (("log_probs", bound.log_probs), ("ids", bound.ids), *outputs.items()):
            bind_output(bound.binding, name, array)
        if self.attending:
            bind_output(bound.binding, ATTENTION, bound.attention)
        return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What a run of n rows reads and writes, by address; views of the pool's arrays, and arrays of its own."""

    binding: ort.IOBinding
    k: Array
    log_probs: Array
    ids: Array
    attention: Array
    """(N, W, S); S is 0 in a pool that is not attending."""
    next: Array
    tokens: Array
    positions: Array
    write_index: Array
    visible: Array
    """Without axes."""
    own: Array
    """(n, W): where in `visible` a lane's own entry would be at position 0."""

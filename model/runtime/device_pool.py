"""The caches of all sentences of one width in the memory of a device, and the decoder step over them.

It does what `Pool` does, where copies are dear and shapes must repeat:

- Rows keep their place. One that leaves is a hole until the next sentence comes; nothing moves but the list that says
  which row is where. Holes are computed, see nothing and disturb nobody.
- Room comes in a few sizes (`Size.step_up`), each with memory of its own that is kept for the next time. So addresses
  depend on the shape alone, a binding is made once for each, and a CUDA graph can be recorded over it.
- What a step needs from the host (tokens, positions, lengths, masks) lies in one piece of memory and goes over in one
  copy; only the k best of each lane come back.

A step may be run several times for the same inputs, as the recording of a CUDA graph does: it writes the same entries.
Letters as in `pool`; N counts the holes too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.config import ModelConfig
from model.ports import ATTENTION, cache_names, cross_names, masked
from model.runtime.device_memory import Block, Memory, Plane, padded
from model.runtime.memory import Array, Rows

Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Name -> shape and type."""


@dataclass(frozen=True, slots=True)
class Size:
    """Room of a pool along its three free axes."""

    rows: int = 0
    positions: int = 0
    source: int = 0

    def fit(self, need: Size, least: Size) -> Size:
        """The room for `need`, at least `least`: this one where it is large enough and at most twice too large."""
        pairs = (
            (self.rows, need.rows, least.rows),
            (self.positions, need.positions, least.positions),
            (self.source, need.source, least.source),
        )
        return Size(*(_fit(*pair) for pair in pairs))


def _fit(room: int, need: int, least: int) -> int:
    wanted = step_up(need, least)
    return room if need <= room <= 2 * wanted else wanted


def step_up(need: int, least: int) -> int:
    """The smallest of least · 1, 1.5, 2, 3, 4, 6, … that is not below `need`."""
    room = least
    while room < need:
        room = room * 3 // 2 if room & (room - 1) == 0 and room > 1 else 1 << room.bit_length()
    return room


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePoolOptions:
    """How a pool uses its device."""

    least: Size = Size(32, 16, 16)
    """Powers of two. A step of 1 row and one of 32 take the same time on a GPU, and the same kernels if both are
    computed as 32."""
    kept_bytes: int = 2 << 30
    """Memory of shapes that are not in use is given up beyond this."""
    next_graph: Callable[[], int] | None = None
    """Gives each shape a number of its own under which its CUDA graph is recorded; None: none is."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Cross-attention keys and values of some sentences on the device: (B, H, S, K) each, one after the other."""

    block: Block
    shape: tuple[int, int, int, int]
    dtype: str
    stride: int
    """Bytes from one tensor to the next."""


class Layout:
    """Arrays of given shapes, one after the other in one piece of memory."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.offsets: dict[str, int] = {}
        self.nbytes = 0
        for name, (shape, dtype) in shapes.items():
            self.offsets[name] = self.nbytes
            self.nbytes += padded(math.prod(shape) * np.dtype(dtype).itemsize)

    def views(self, memory: Array) -> dict[str, Array]:
        """The arrays in `memory` of the host."""
        found = {}
        for name, (shape, dtype) in self.shapes.items():
            begin, size = self.offsets[name], math.prod(shape) * np.dtype(dtype).itemsize
            found[name] = memory[begin : begin + size].view(dtype).reshape(shape)
        return found


@dataclass(frozen=True, slots=True)
class Mirror:
    """Arrays that the host and the device both have."""

    layout: Layout
    block: Block
    host: Array
    views: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Bound:
    """A step for one shape and one k."""

    binding: ort.IOBinding
    options: ort.RunOptions
    results: Mirror


class DevicePool:
    """Rows of `width` lanes. Callers name rows by their present index; `remove` says which row moved."""

    def __init__(
        self, config: ModelConfig, session: ort.InferenceSession, width: int, memory: Memory, options: DevicePoolOptions
    ) -> None:
        """`session` runs the decoder, or the attending decoder; its ports say which type the caches have."""
        types = {port.name: port.type for port in (*session.get_inputs(), *session.get_outputs())}
        self.width = width
        self.attending = ATTENTION in types
        self.count = 0
        """Rows in use."""
        self.reach = 0
        """No row's next position is larger."""
        self._config, self._session, self._memory, self._options = config, session, memory, options
        self._dtype = "float16" if types["visible"] == "tensor(float16)" else "float32"
        self._lanes = np.arange(width)
        self._where = np.zeros(0, np.int64)
        self._next = np.zeros(0, np.int64)
        self._size = Size()
        self._blocks: dict[tuple[object, ...], Block] = {}
        self._mirrors: dict[tuple[object, ...], Mirror] = {}
        self._bounds: dict[tuple[Size, int], Bound] = {}
        self._last: Bound | None = None

    @property
    def nbytes(self) -> int:
        """Bytes on the device, kept ones too."""
        mirrors = (mirror.block for mirror in (*self._mirrors.values(), *(b.results for b in self._bounds.values())))
        return sum(block.nbytes for block in (*self._blocks.values(), *mirrors))

    @property
    def positions(self) -> NDArray[np.int64]:
        """The next position of each row in use, (n)."""
        return self._next[self._where]

    def add(self, lengths: NDArray[np.int32]) -> range:
        """Rows for new sentences of these source lengths (B), in this order; `fill` must follow for each of them."""
        need, rows = self._need(), range(self.count, self.count + len(lengths))
        self._make_room(Size(rows.stop, max(need.positions, 1), max(need.source, int(lengths.max()))))
        free = np.setdiff1d(np.arange(self._size.rows), self._where)[: len(lengths)]
        self._where = np.concatenate([self._where, free])
        self.count = rows.stop
        self._inputs["source_lengths"][free] = lengths
        return rows

    def fill(self, rows: list[int], cross: Encoded) -> None:
        """The cross-attention keys and values of new rows."""
        _, heads, source, size = cross.shape
        item = np.dtype(self._dtype).itemsize * size
        for i, name in enumerate(cross_names(self._config)):
            block = self._block(name, self._size)
            for first, place, length in _runs(self._where[rows]):
                target = Plane(block.address + place * heads * self._size.source * item, self._size.source * item)
                begin = cross.block.address + i * cross.stride + first * heads * source * item
                width = min(source, self._size.source) * item
                self._memory.copy(target, Plane(begin, source * item), width, length * heads)
        self._memory.settle()

    def step(self, rows: Rows, tokens: Array, k: int) -> tuple[Array, Array]:
        """One decoder step for `rows` (R) with `tokens` (R, W); returns log-probabilities and ids (R, W, k).

        Rows that are not named are computed too, but do not move on; see `Pool.step`.
        """
        if self.reach >= self._size.positions:
            self._make_room(self._need())
        inputs, places = self._inputs, self._where[rows]
        np.minimum(self._next, self._config.max_positions - 1, out=inputs["positions"])
        np.multiply(inputs["positions"], self.width, out=inputs["write_index"])
        entries = inputs["write_index"][places, None] + self._lanes  # (R) -> (R, W)
        inputs["visible"][places[:, None], 0, self._lanes, entries] = 0.0
        inputs["tokens"][places] = tokens
        bound = self._last = self._bound(k)
        mirror = self._mirror(self._size)
        self._memory.upload(mirror.block.address, mirror.host)
        self._session.run_with_iobinding(bound.binding, bound.options)
        results = bound.results
        self._memory.download(results.host, results.block.address)
        self._next[places] += 1
        self.reach += 1
        return results.views["log_probs"][places], results.views["ids"][places]

    def attention(self, rows: Rows) -> Array:
        """What the lanes of `rows` attended to in the last step, (R, W, S)."""
        assert self._last is not None
        found: Array = self._last.results.views[ATTENTION][self._where[rows]]
        return found

    def reorder(self, rows: Rows, parents: Array) -> None:
        """Lane j of row r sees henceforth what lane parents[r, j] saw: a permutation inside `visible`."""
        places, visible = self._where[rows], self._inputs["visible"]
        visible[places, 0] = visible[places[:, None], 0, parents]  # (R, W, C) -> (R, W, C)

    def remove(self, row: int) -> int:
        """Free `row`. Returns the row that moved into its place: the last one (which may be `row` itself)."""
        last = self.count - 1
        self._empty(self._where[row])
        self._where[row] = self._where[last]
        self._where = self._where[:last]
        self.count = last
        return last

    def trim(self) -> None:
        """Use less room if there is more than twice too much. An empty pool gives up its memory if that is large."""
        if self.count:
            self._make_room(self._need())
        elif self.nbytes > self._options.kept_bytes:
            self._blocks.clear()
            self._mirrors.clear()
            self._bounds.clear()
            self._size, self._last = Size(), None
            self._next = np.zeros(0, np.int64)

    @property
    def _inputs(self) -> dict[str, Array]:
        return self._mirror(self._size).views

    def _need(self) -> Size:
        if not self.count:
            self.reach = 0
            return Size()
        self.reach = int(self.positions.max())
        most = min(self.reach + 1, self._config.max_positions)
        return Size(self.count, most, int(self._inputs["source_lengths"][self._where].max()))

    def _empty(self, places: Array) -> None:
        """Let these places hold nothing: a source of one token, a target of none, and no look at anything."""
        inputs = self._inputs
        inputs["source_lengths"][places] = 1
        inputs["tokens"][places] = self._config.pad_id
        inputs["visible"][places] = masked(self._dtype)
        self._next[places] = 0

    def _make_room(self, need: Size) -> None:
        size = self._size.fit(need, self._options.least)
        if size != self._size:
            self._resize(size)

    def _resize(self, size: Size) -> None:
        """The contents in memory of the new `size`; rows close up if N changes, and else keep their place."""
        before, old_where, old_next = self._size, self._where, self._next
        old_inputs = self._inputs if self.count else {}
        where = np.arange(self.count) if size.rows != before.rows else old_where
        for name, axis in self._cached():
            if self.count and (size.rows, getattr(size, axis)) != (before.rows, getattr(before, axis)):
                self._move(name, axis, (before, old_where), (size, where))
        self._memory.settle()
        self._size, self._where, self._next = size, where, np.zeros(size.rows, np.int64)
        kept = {name: array[old_where] for name, array in old_inputs.items()}
        self._empty(np.arange(size.rows))
        if self.count:
            self._next[where] = old_next[old_where]
            self._inputs["source_lengths"][where] = kept["source_lengths"]
            reach = min(kept["visible"].shape[-1], self._inputs["visible"].shape[-1])
            self._inputs["visible"][where, ..., :reach] = kept["visible"][..., :reach]
        if self.nbytes > self._options.kept_bytes:
            self._forget_others()

    def _move(self, name: str, axis: str, old: tuple[Size, Array], new: tuple[Size, Array]) -> None:
        """Copy a cache to its memory of another size, one copy for each run of rows that stay side by side."""
        (before, places), (size, targets) = old, new
        strips = self._config.heads
        item = np.dtype(self._dtype).itemsize * self._config.head_size
        item *= self.width if axis == "positions" else 1
        pitch, target_pitch = getattr(before, axis) * item, getattr(size, axis) * item
        source, target = self._block(name, before).address, self._block(name, size).address
        order = np.argsort(places)
        pairs = np.stack([places[order], targets[order]])
        breaks = np.flatnonzero((np.diff(pairs) != 1).any(axis=0)) + 1
        for run in np.split(pairs, breaks, axis=1):
            from_, to = int(run[0, 0]) * strips, int(run[1, 0]) * strips
            self._memory.copy(
                Plane(target + to * target_pitch, target_pitch),
                Plane(source + from_ * pitch, pitch),
                min(pitch, target_pitch),
                run.shape[1] * strips,
            )

    def _forget_others(self) -> None:
        """Keep the memory of the present size alone."""
        names = self._cached()
        present = {self._key(name, axis, self._size) for name, axis in names}
        self._blocks = {key: block for key, block in self._blocks.items() if key in present}
        self._mirrors = {key: value for key, value in self._mirrors.items() if key == self._mirror_key(self._size)}
        self._bounds = {key: bound for key, bound in self._bounds.items() if key[0] == self._size}

    def _cached(self) -> list[tuple[str, str]]:
        """Every array that stays on the device, and the axis of `Size` that it grows along."""
        past = [(name, "positions") for name, _ in cache_names(self._config)]
        return [*past, *((name, "source") for name in cross_names(self._config))]

    @staticmethod
    def _key(name: str, axis: str, size: Size) -> tuple[object, ...]:
        return name, size.rows, getattr(size, axis)

    def _shape(self, name: str, size: Size) -> tuple[int, int, int, int]:
        room = size.source if name.startswith("cross") else size.positions * self.width
        return size.rows, self._config.heads, room, self._config.head_size

    def _block(self, name: str, size: Size) -> Block:
        key = self._key(name, "source" if name.startswith("cross") else "positions", size)
        if key not in self._blocks:
            nbytes = math.prod(self._shape(name, size)) * np.dtype(self._dtype).itemsize
            self._blocks[key] = self._memory.reserve(nbytes)
        return self._blocks[key]

    @staticmethod
    def _mirror_key(size: Size) -> tuple[object, ...]:
        return size.rows, size.positions

    def _mirror(self, size: Size) -> Mirror:
        key = self._mirror_key(size)
        if key not in self._mirrors:
            rows, width = size.rows, self.width
            self._mirrors[key] = self._new_mirror(
                {
                    "tokens": ((rows, width), "int64"),
                    "positions": ((rows,), "int64"),
                    "write_index": ((rows,), "int64"),
                    "source_lengths": ((rows,), "int32"),
                    "visible": ((rows, 1, width, size.positions * width), self._dtype),
                }
            )
        return self._mirrors[key]

    def _new_mirror(self, shapes: Shapes) -> Mirror:
        layout = Layout(shapes)
        host = self._memory.staging(layout.nbytes)
        return Mirror(layout, self._memory.reserve(layout.nbytes), host, layout.views(host))

    def _bound(self, k: int) -> Bound:
        key = (self._size, k)
        if key not in self._bounds:
            self._bounds[key] = self._bind(k)
        return self._bounds[key]

    def _bind(self, k: int) -> Bound:
        size, binding = self._size, self._session.io_binding()
        candidates = (size.rows, self.width, k)
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "log_probs": (candidates, "float32"),
            "ids": (candidates, "int64"),
        }
        if self.attending:
            shapes[ATTENTION] = ((size.rows, self.width, size.source), "float32")
        inputs, results = self._mirror(size), self._new_mirror(shapes)
        for mirror, bind in ((inputs, binding.bind_input), (results, binding.bind_output)):
            for name, (shape, dtype) in mirror.layout.shapes.items():
                address = mirror.block.address + mirror.layout.offsets[name]
                bind(name, self._memory.kind, 0, np.dtype(dtype).type, shape, address)
        outputs = dict(cache_names(self._config))
        for name, _ in self._cached():
            described = (self._memory.kind, 0, np.dtype(self._dtype).type, self._shape(name, size))
            address = self._block(name, size).address
            binding.bind_input(name, *described, address)
            if name in outputs:  # the same memory as the input: the step writes its keys and values in place
                binding.bind_output(outputs[name], *described, address)
        binding.bind_cpu_input("k", np.array([k], np.int64))
        options = ort.RunOptions()
        if self._options.next_graph is not None:
            options.add_run_config_entry("gpu_graph_id", str(self._options.next_graph()))
        return Bound(binding, options, results)


def _runs(places: Array) -> Iterator[tuple[int, int, int]]:
    """(index, place, length) of every run of places that follow each other."""
    begin = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i] != places[i - 1] + 1:
            yield begin, int(places[begin]), i - begin
            begin = i

"""The port sheet: every input and output of the graphs, its dtype and its named axes.

The exporter writes graphs to this sheet and the runtime checks each loaded graph against it, so a graph of another
layout stops at start-up and not in the middle of a sentence.

Two graphs make a model:

    encoder   tokens, lengths            -> cross_key_l, cross_value_l      once a sentence
    decoder   one step, caches in place  -> log_probs, ids, present_key_l, present_value_l

for every decoder layer l. A third, the *attending* decoder, is the decoder with one output more: what each lane attends
to. The encoder computes the cross-attention keys and values of all decoder layers; the decoder
only reads them, and all lanes of a row share them.

The self-attention cache is a tree that only grows. At position p the W lanes of a row write their keys to the entries
p·W … p·W + W - 1 (`write_index` = p·W), whatever hypothesis a lane holds. `visible` says which entries are ancestors
of which lane: 0 for an ancestor and for the lane's own entry, `MASKED` for all else. A beam's reordering is thus a
permutation of the rows of `visible`, and no key moves. A cache input `past_*` and its output `present_*` are meant to
be the same buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from model.config import ModelConfig
from model.errors import BundleError

Role = Literal["encoder", "decoder", "attending"]
Precision = Literal["f32", "int8", "f16"]
Operators = Literal["stock", "native", "cuda"]
DType = Literal["float32", "float16", "int32", "int64"]

ROLES: tuple[Role, ...] = ("encoder", "decoder")
OPTIONAL_ROLES: tuple[Role, ...] = ("attending",)
"""Graphs that a bundle may do without."""
PRECISIONS: tuple[Precision, ...] = ("f32", "int8", "f16")
OPERATORS: tuple[Operators, ...] = ("stock", "native", "cuda")
"""What a graph is written with: the operators that ONNX Runtime brings along, which run everywhere, or our own library
of them, which is faster where it runs, or those that ONNX Runtime has good kernels for on CUDA. The ports are the same
but for the type of what stays on the device; see `inner_type`."""
CPU_OPERATORS: tuple[Operators, ...] = ("stock", "native")

GraphPaths = Mapping[Operators, Mapping[Role, Path]]
"""Where the graphs of one precision are; an optional role need not be there. f16 has `cuda` alone, others `stock`."""

MASKED = -1e9
"""Added to the score of a cache entry that a lane must not see. Finite: a lane that sees nothing gives no NaN."""

MASKED_HALF = -3e4
"""The same in float16, whose least number is -65504: a score may be added to it and still be one."""

ATTENTION = "attention"
"""The output that only the attending decoder has."""

TOP_K_BLOCK = 128
"""The graphs pad the vocabulary to a multiple of this, so that a k up to it is always possible."""


@dataclass(frozen=True, slots=True)
class Port:
    """One graph input or output. An axis is a fixed size or the name of a free one; equal names have equal sizes."""

    name: str
    dtype: DType
    axes: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.axes))}]"


@dataclass(frozen=True, slots=True)
class PortSheet:
    """All ports of one graph, in its order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def cross_names(config: ModelConfig) -> list[str]:
    """Cross-attention keys and values of every decoder layer: outputs of the encoder, inputs of the decoder."""
    return [name for i in range(config.decoder_layers) for name in (f"cross_key_{i}", f"cross_value_{i}")]


def cache_names(config: ModelConfig) -> list[tuple[str, str]]:
    """(input, output) of every self-attention cache tensor; both are bound to one buffer."""
    kinds = [(i, kind) for i in range(config.decoder_layers) for kind in ("key", "value")]
    return [(f"past_{kind}_{i}", f"present_{kind}_{i}") for i, kind in kinds]


def precision_of(graphs: GraphPaths) -> str:
    """f16 or f32, whichever has the ports of these graphs: those of int8 are float32 as well."""
    return "f32" if "stock" in graphs else "f16"


def inner_type(precision: str) -> Literal["float32", "float16"]:
    """The type of caches, of cross keys and values and of `visible`: what one graph gives and another one takes."""
    return "float16" if precision == "f16" else "float32"


def masked(dtype: str) -> float:
    """What `visible` holds, in this type, where a lane must not look."""
    return MASKED_HALF if dtype == "float16" else MASKED


def encoder_ports(config: ModelConfig, precision: str = "f32") -> PortSheet:
    """The encoder: `tokens` padded on the right, `lengths` real tokens of each row (at least 1)."""
    cross = ("rows", config.heads, "source", config.head_size)
    return PortSheet(
        inputs=(Port("tokens", "int64", ("rows", "source")), Port("lengths", "int32", ("rows",))),
        outputs=tuple(Port(name, inner_type(precision), cross) for name in cross_names(config)),
    )


def decoder_ports(config: ModelConfig, precision: str = "f32") -> PortSheet:
    """One decoder step. Each row has its own `positions`, `source_lengths` and `write_index`, so rows of any age mix.

    `k` asks for the k best continuations of each lane; `capacity` counts cache entries (positions · lanes).
    """
    cross = ("rows", config.heads, "source", config.head_size)
    cache = ("rows", config.heads, "capacity", config.head_size)
    inner = inner_type(precision)
    return PortSheet(
        inputs=(
            Port("tokens", "int64", ("rows", "lanes")),
            Port("positions", "int64", ("rows",)),
            Port("source_lengths", "int32", ("rows",)),
            Port("write_index", "int64", ("rows",)),
            Port("visible", inner, ("rows", 1, "lanes", "capacity")),
            Port("k", "int64", (1,)),
            *(Port(past, inner, cache) for past, _ in cache_names(config)),
            *(Port(name, inner, cross) for name in cross_names(config)),
        ),
        outputs=(
            Port("log_probs", "float32", ("rows", "lanes", "k")),
            Port("ids", "int64", ("rows", "lanes", "k")),
            *(Port(present, inner, cache) for _, present in cache_names(config)),
        ),
    )


def attending_ports(config: ModelConfig, precision: str = "f32") -> PortSheet:
    """The decoder that also tells `attention`: the cross-attention of one layer, the mean over its heads.

    What a lane attends to sums to 1 over its row's source tokens, and is 0 beyond them.
    """
    sheet = decoder_ports(config, precision)
    return PortSheet(sheet.inputs, (*sheet.outputs, Port(ATTENTION, "float32", ("rows", "lanes", "source"))))


def paths_of(folder: Path, graphs: Mapping[str, Mapping[str, str]]) -> GraphPaths:
    """Where the graphs are that a manifest names, operators -> role -> file name; only those that there are."""
    roles = (*ROLES, *OPTIONAL_ROLES)
    return {
        operators: {role: folder / graphs[operators][role] for role in roles if role in graphs[operators]}
        for operators in OPERATORS
        if operators in graphs
    }


def port_sheet(role: Role, config: ModelConfig, precision: str = "f32") -> PortSheet:
    """The sheet of the graph called `role` in this precision."""
    sheets = {"encoder": encoder_ports, "decoder": decoder_ports, "attending": attending_ports}
    return sheets[role](config, precision)


def check_ports(sheet: PortSheet, found: PortSheet, where: str) -> None:
    """Raise `BundleError` unless `found`, read from the graph at `where`, is `sheet`, port for port and in order."""
    faults = [*_faults("input", sheet.inputs, found.inputs), *_faults("output", sheet.outputs, found.outputs)]
    if faults:
        raise BundleError(
            f"the ports of {where} must be those of the port sheet, but {'; '.join(faults)}. "
            "The graph belongs to another model or another version: publish the bundle again."
        )


def _faults(kind: str, wanted: Iterable[Port], found: Iterable[Port]) -> list[str]:
    wanted, found = tuple(wanted), tuple(found)
    by_name = {port.name: port for port in found}
    faults = [f"{kind} {port} is missing" for port in wanted if port.name not in by_name]
    known = {port.name for port in wanted}
    faults += [f"{kind} {port} is unknown" for port in found if port.name not in known]
    faults += [
        f"{kind} {by_name[port.name]} should be {port}" for port in wanted if by_name.get(port.name, port) != port
    ]
    if not faults and wanted != found:
        faults.append(f"{kind}s come in the order {', '.join(port.name for port in found)}")
    return faults

"""From a state dict to a folder of graphs: three for each precision and set of operators, and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from model.config import ModelConfig
from model.errors import ExportError
from model.export.attending import LayerChoice, choose_layer
from model.export.builder import Blueprint, build_decoder, build_encoder
from model.export.calibration import Pair, calibrate
from model.export.native import native_fits
from model.export.quantisation import Range
from model.export.weightfile import WeightFile
from model.export.weights import Weights
from model.nn.transformer import Transformer
from model.ports import CPU_OPERATORS, OPTIONAL_ROLES, PRECISIONS, ROLES, GraphPaths, Operators, Precision, paths_of


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What an export wrote."""

    folder: Path
    precisions: dict[str, dict[str, dict[str, str]]]
    """precision -> operators -> role -> file name."""
    weights: dict[str, str]
    """precision -> name of the file with the large constants of its graphs."""
    calibration: dict[str, Any]
    """{"pairs": …, "ranges": {input: {"low": …, "high": …}}}; empty without int8."""
    alignment: LayerChoice
    """Which decoder layer the attending graphs show, and why."""

    def graph_paths(self, precision: str) -> GraphPaths:
        """Where the graphs of a precision are."""
        return paths_of(self.folder, self.precisions[precision])

    @property
    def files(self) -> tuple[Path, ...]:
        """All graphs and their weights."""
        graphs = [graphs for precision in self.precisions for graphs in self.graph_paths(precision).values()]
        weights = (self.folder / name for name in self.weights.values())
        return (*(path for roles in graphs for path in roles.values()), *weights)

    def only(self, precisions: Sequence[str]) -> ExportRecord:
        """The same of these precisions alone."""
        return replace(
            self,
            precisions={name: self.precisions[name] for name in precisions},
            weights={name: self.weights[name] for name in precisions},
        )

    def with_operators(self, operators: Sequence[Operators]) -> ExportRecord:
        """The same with graphs for these operators alone."""
        return replace(
            self,
            precisions={
                precision: {name: graphs[name] for name in operators if name in graphs}
                for precision, graphs in self.precisions.items()
            },
        )


def load_network(config: ModelConfig, state_dict: Mapping[str, Any]) -> Transformer:
    """The torch network that the graphs must equal, ready for inference."""
    network = Transformer(config)
    network.load_state_dict(dict(state_dict))
    return network.float().eval()


def export_graphs(
    config: ModelConfig,
    state_dict: Mapping[str, Any],
    out_dir: Path,
    precisions: Sequence[Precision],
    calibration: Sequence[Pair] = (),
    operators: Sequence[Operators] = CPU_OPERATORS,
) -> ExportRecord:
    """Write encoder, decoder and attending decoder of `precisions` into `out_dir`, three for each set of `operators`.

    Native ones are left out for heads of a size that they are not made for. f16 is written for CUDA alone; f32 gets
    graphs of the same nodes beside its others then, which can be proved where there is no CUDA.

    `calibration` holds pairs of source and target ids with EOS last; int8 needs them, and without any the attending
    decoder shows its last layer. Raises `ExportError` for a state
    dict that does not fit `config`, or for int8 without calibration.
    """
    if unknown := sorted(set(precisions) - set(PRECISIONS)):
        raise ExportError(f"precisions must be among {', '.join(PRECISIONS)}, but hold {', '.join(unknown)}.")
    if not native_fits(config):
        operators = [name for name in operators if name != "native"]
    weights = Weights(config, state_dict)
    ranges: dict[str, Range] = {}
    choice = LayerChoice(config.decoder_layers - 1, (), 0)
    if calibration or "int8" in precisions:
        network = load_network(config, state_dict)
        ranges = calibrate(network, calibration) if "int8" in precisions else {}
        choice = choose_layer(network, calibration)
    out_dir.mkdir(parents=True, exist_ok=True)
    seen = {"pairs": len(calibration), "ranges": {site: asdict(range_) for site, range_ in sorted(ranges.items())}}
    record = ExportRecord(
        folder=out_dir,
        precisions={
            precision: {name: _file_names(precision, name) for name in _sets(precision, operators, precisions)}
            for precision in precisions
        },
        weights={precision: f"weights.{precision}.bin" for precision in precisions},
        calibration=seen if ranges else {},
        alignment=choice,
    )
    for precision in precisions:
        with WeightFile(out_dir / record.weights[precision]) as constants:
            for name, paths in record.graph_paths(precision).items():
                blueprint = Blueprint(weights, precision, name, ranges)
                build_encoder(blueprint, paths["encoder"], constants)
                build_decoder(blueprint, paths["decoder"], constants)
                build_decoder(blueprint, paths["attending"], constants, record.alignment.layer)
    return record


def _sets(precision: str, operators: Sequence[Operators], precisions: Sequence[str]) -> tuple[Operators, ...]:
    """The sets of operators that a precision is written with."""
    if precision == "f16":
        return ("cuda",)
    return (*operators, "cuda") if precision == "f32" and "f16" in precisions else tuple(operators)


def _file_names(precision: Precision, operators: Operators) -> dict[str, str]:
    middle = precision if operators == "stock" else f"{precision}.{operators}"
    return {role: f"{role}.{middle}.onnx" for role in (*ROLES, *OPTIONAL_ROLES)}

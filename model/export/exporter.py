"""From a state dict to a folder of graphs, three for each precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.config import ModelConfig
from model.errors import ExportError
from model.export.attending import LayerChoice, choose_layer
from model.export.builder import Blueprint, build_decoder, build_encoder
from model.export.calibration import Pair, calibrate
from model.export.quantisation import Range
from model.export.weights import Weights
from model.nn.transformer import Transformer
from model.ports import OPTIONAL_ROLES, PRECISIONS, ROLES, Precision


@dataclass(frozen=True, kw_only=True)
class ExportRecord:
    """What an export wrote."""

    folder: Path
    precisions: dict[str, dict[str, str]]
    """precision -> role -> file name."""
    files: tuple[Path, ...]
    """All graphs and side files."""
    calibration: dict[str, Any]
    """{"pairs": …, "ranges": {input: {"low": …, "high": …}}}; empty without int8."""
    alignment: LayerChoice
    """Which decoder layer the attending graphs show, and why."""

    def graph_path(self, role: str, precision: str) -> Path:
        """Where the graph of a role is."""
        return self.folder / self.precisions[precision][role]


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
) -> ExportRecord:
    """Write encoder, decoder and attending decoder graphs of `precisions` into `out_dir`.

    `calibration` holds pairs of source and target ids with EOS last; int8 needs them, and without any the attending
    decoder shows its last layer. Raises `ExportError` for a state
    dict that does not fit `config`, or for int8 without calibration.
    """
    if unknown := sorted(set(precisions) - set(PRECISIONS)):
        raise ExportError(f"precisions must be among {', '.join(PRECISIONS)}, but hold {', '.join(unknown)}.")
    weights, network = Weights(config, state_dict), load_network(config, state_dict)
    ranges: dict[str, Range] = {}
    if "int8" in precisions:
        ranges = calibrate(network, calibration)
    choice = choose_layer(network, calibration)
    out_dir.mkdir(parents=True, exist_ok=True)
    names: dict[str, dict[str, str]] = {}
    files: list[Path] = []
    for precision in precisions:
        blueprint = Blueprint(weights, precision, ranges)
        names[precision] = {role: f"{role}.{precision}.onnx" for role in (*ROLES, *OPTIONAL_ROLES)}
        files += build_encoder(blueprint, out_dir / names[precision]["encoder"])
        files += build_decoder(blueprint, out_dir / names[precision]["decoder"])
        files += build_decoder(blueprint, out_dir / names[precision]["attending"], choice.layer)
    seen = {"pairs": len(calibration), "ranges": {site: asdict(range_) for site, range_ in sorted(ranges.items())}}
    return ExportRecord(
        folder=out_dir,
        precisions=names,
        files=tuple(files),
        calibration=seen if ranges else {},
        alignment=choice,
    )

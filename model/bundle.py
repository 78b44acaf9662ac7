"""The artifact folder in which a trained model travels. The only reader and writer of it.

    manifest.json       what is inside: names, configuration, graphs, defaults, proof, hash and size of every file
    tokenizer.model     SentencePiece
    encoder.<precision>.onnx, decoder.<precision>.onnx                  the graphs, for every ONNX Runtime
    attending.<precision>.onnx                                          the decoder that tells what it attends to
    encoder.<precision>.native.onnx, decoder.<precision>.native.onnx    the same for our own operators
    weights.<precision>.bin                                             the large constants of all graphs of a precision
    MODEL_CARD.md       data, training, quality, licence, for a person
    curves.png          pictures that the card shows; there may be none

Graphs that attend, and graphs for our own operators, may be missing.

A bundle is written whole or not at all, and is read only if every file is the one that was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from model.config import ModelConfig
from model.errors import BundleError, ConfigError, TokenizerError
from model.ports import OPERATORS, OPTIONAL_ROLES, ROLES, GraphPaths, paths_of
from model.tokenizer import Tokenizer

FORMAT_VERSION = 2
"""Raised when an older reader could not read the folder rightly. 1 had one pair of graphs for each precision, with
their constants inside; it is still read."""

MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.model"
MODEL_CARD = "MODEL_CARD.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingDefaults:
    """What a request gets that does not ask for anything."""

    beam_size: int = 4
    length_penalty: float = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of manifest.json."""

    format_version: int = FORMAT_VERSION
    name: str
    """What clients call the model, for example `en-de`."""
    version: str
    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    model: dict[str, Any]
    """`ModelConfig` as a dictionary."""
    precisions: dict[str, dict[str, dict[str, str]]]
    """precision -> operators -> role -> file name."""
    weights: dict[str, str] = field(default_factory=dict)
    """precision -> name of the file with its large constants; a precision that is missing has them in its graphs."""
    decoding: DecodingDefaults = field(default_factory=DecodingDefaults)
    calibration: dict[str, Any] = field(default_factory=dict)
    """Range of every quantised input, and on how much text it was seen; empty without int8."""
    alignment: dict[str, Any] = field(default_factory=dict)
    """Which decoder layer's attention the attending graphs show, and how well each layer's was seen to align."""
    parity: dict[str, Any] = field(default_factory=dict)
    """How far the graphs are from the network, by precision."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """file name -> {"sha256": …, "bytes": …}, for every file but the manifest."""

    def to_json(self) -> str:
        """Readable, and the same text for the same contents."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """The inverse of `to_json`; a manifest of format 1 is read as one of today.

        Raises `BundleError` for anything else.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise BundleError(f"{where} must be JSON, but is not: {error}.") from error
        if not isinstance(values, dict) or "format_version" not in values:
            raise BundleError(f"{where} must be a manifest with a format_version, but has none.")
        if values["format_version"] not in range(1, FORMAT_VERSION + 1):
            raise BundleError(
                f"{where} must have a format_version up to {FORMAT_VERSION}, but has {values['format_version']!r}; "
                "use the release that wrote it, or publish the model again with this one."
            )
        if unknown := sorted(set(values) - {entry.name for entry in fields(cls)}):
            raise BundleError(f"{where} must hold only known fields, but has {', '.join(unknown)}.")
        _check_types(values, where)
        if values["format_version"] == 1:
            values = _from_format_1(values)
            _check_types(values, where)
        try:
            return cls(
                **{
                    **values,
                    "source_languages": tuple(values["source_languages"]),
                    "target_languages": tuple(values["target_languages"]),
                    "decoding": DecodingDefaults(**values["decoding"]),
                }
            )
        except (KeyError, TypeError) as error:
            raise BundleError(f"{where} must hold every field of a manifest, but: {error}.") from error


def _from_format_1(values: dict[str, Any]) -> dict[str, Any]:
    """Format 1 named no operators, for there were only the stock ones."""
    graphs = {precision: {"stock": roles} for precision, roles in values.get("precisions", {}).items()}
    return {**values, "format_version": FORMAT_VERSION, "precisions": graphs}


_DEPTHS = {
    **dict.fromkeys(("model", "weights", "decoding", "calibration", "alignment", "parity"), 1),
    "files": 2,
    "precisions": 3,
}
"""How many objects stand inside each other in the parts that are read by key."""


def _check_types(values: dict[str, Any], where: str) -> None:
    """Raise `BundleError` unless the parts that are read by key are mappings."""
    for name, depth in _DEPTHS.items():
        part = values.get(name, {})
        # In format 1 there is one level less.
        levels = depth - 1 if name == "precisions" and values["format_version"] == 1 else depth
        if not _nested(part, levels):
            raise BundleError(f"{name} in {where} must be an object of the manifest's form, but is {part!r:.80}.")


def _nested(part: Any, depth: int) -> bool:
    return depth == 0 or (isinstance(part, dict) and all(_nested(value, depth - 1) for value in part.values()))


@dataclass(frozen=True, kw_only=True)
class BundleContents:
    """Everything that `write_bundle` puts into a folder."""

    name: str
    version: str
    source_languages: tuple[str, ...]
    target_languages: tuple[str, ...]
    config: ModelConfig
    precisions: Mapping[str, Mapping[str, Mapping[str, str]]]
    """precision -> operators -> role -> file name, as `ExportRecord.precisions` has it."""
    weights: Mapping[str, str]
    """precision -> name of the file with its large constants."""
    graph_files: tuple[Path, ...]
    """Where the graphs and their weights are now; their names stay."""
    tokenizer: Path
    model_card: str
    pictures: tuple[Path, ...] = ()
    """Where the pictures that the card shows are now; their names stay."""
    decoding: DecodingDefaults = field(default_factory=DecodingDefaults)
    calibration: Mapping[str, Any] = field(default_factory=dict)
    alignment: Mapping[str, Any] = field(default_factory=dict)
    parity: Mapping[str, Any] = field(default_factory=dict)


class Bundle:
    """A bundle on disk, opened and checked. Make one with `Bundle.open`."""

    def __init__(self, path: Path, manifest: Manifest, config: ModelConfig) -> None:
        self.path = path
        self.manifest = manifest
        self.config = config

    @classmethod
    def open(cls, path: Path, verify: bool = True) -> Bundle:
        """Read the bundle at `path`; `verify` also hashes every file.

        Raises `BundleError` when something is missing, damaged, renamed, or of another format version.
        """
        manifest_path = path / MANIFEST
        if not manifest_path.is_file():
            raise BundleError(f"a bundle must hold {MANIFEST}, but there is none in {path}; is this the right folder?")
        try:
            text = manifest_path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BundleError(f"{manifest_path} must be readable text, but: {error}.") from error
        manifest = Manifest.from_json(text, str(manifest_path))
        try:
            config = ModelConfig.from_dict(manifest.model)
        except (ConfigError, TypeError) as error:
            raise BundleError(f"{manifest_path} must describe a model, but: {error}") from error
        bundle = cls(path, manifest, config)
        bundle._check_listing()
        for name in manifest.files:
            bundle._check_file(name, verify)
        return bundle

    def graph_paths(self, precision: str) -> GraphPaths:
        """The graphs of a precision. Raises `BundleError` for a precision that is not inside."""
        if precision not in self.manifest.precisions:
            there = ", ".join(self.manifest.precisions)
            raise BundleError(f"precision must be one of those in {self.path} ({there}), but is {precision!r}.")
        return paths_of(self.path, self.manifest.precisions[precision])

    def attends(self, precision: str) -> bool:
        """True if there is an attending decoder of this precision, which alignment and coverage need."""
        return "attending" in self.manifest.precisions.get(precision, {}).get("stock", {})

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer. Raises `BundleError` when it and the embedding disagree on the number of ids."""
        return _fitting_tokenizer(self.path / TOKENIZER, self.config)

    def _check_listing(self) -> None:
        manifest = self.manifest
        if not manifest.precisions:
            raise BundleError(f"the manifest of {self.path} must name at least one precision, but names none.")
        wanted = {TOKENIZER, *manifest.weights.values()}
        for precision, graphs in manifest.precisions.items():
            _check_graphs(precision, graphs)
            wanted |= {name for roles in graphs.values() for name in roles.values()}
        if strangers := sorted(set(manifest.weights) - set(manifest.precisions)):
            raise BundleError(f"weights of {self.path} must belong to one of its precisions, but not {strangers} do.")
        if unlisted := sorted(wanted - set(manifest.files)):
            raise BundleError(f"the manifest of {self.path} must list every file it uses, but lacks {unlisted}.")
        for name in manifest.files:
            if Path(name).name != name:
                raise BundleError(f"files of {self.path} must lie in it directly, but one is called {name!r}.")

    def _check_file(self, name: str, verify: bool) -> None:
        path, listed = self.path / name, self.manifest.files[name]
        if not path.is_file():
            raise BundleError(
                f"{self.path} must hold {name}, but it is missing. A bundle moves as a whole folder: fetch it again."
            )
        size = path.stat().st_size
        if size != listed.get("bytes"):
            raise BundleError(f"{path} must have {listed.get('bytes')} bytes, but has {size}; fetch the bundle again.")
        if verify and (found := sha256(path)) != listed.get("sha256"):
            raise BundleError(
                f"{path} must have the SHA-256 {listed.get('sha256')}, but has {found}; fetch the bundle again."
            )


def _check_graphs(precision: str, graphs: Mapping[str, Mapping[str, str]]) -> None:
    """Raise `BundleError` unless these are the graphs, with stock operators and perhaps with our own too."""
    needed = "cuda" if precision == "f16" else "stock"
    if needed not in graphs or not set(graphs) <= set(OPERATORS):
        raise BundleError(
            f"precision {precision} must have graphs with the operators {needed}, and may have some with others of "
            f"{', '.join(OPERATORS)}, but has {', '.join(graphs) or 'none'}."
        )
    for operators, roles in graphs.items():
        if not set(ROLES) <= set(roles) <= {*ROLES, *OPTIONAL_ROLES}:
            raise BundleError(
                f"precision {precision} must have the graphs {', '.join(ROLES)} with {operators} operators, "
                f"but has {dict(roles)}."
            )


def write_bundle(destination: Path, contents: BundleContents) -> Bundle:
    """Write the folder `destination` and read it back, verified.

    It is built beside its place and then renamed, so that no reader ever sees half of it; a bundle that is already
    there is replaced. Raises `BundleError`, and leaves what was there, when the contents do not fit together.
    """
    _fitting_tokenizer(contents.tokenizer, contents.config)
    destination.parent.mkdir(parents=True, exist_ok=True)
    workshop = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        fresh, old = workshop / "new", workshop / "old"
        fresh.mkdir()
        _fill(fresh, contents)
        Bundle.open(fresh)
        _replace(destination, fresh, old)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return Bundle.open(destination)


def _replace(destination: Path, fresh: Path, old: Path) -> None:
    """Put `fresh` in the place of `destination`, whose former contents go to `old` and come back if that fails."""
    if not destination.exists():
        fresh.rename(destination)
        return
    destination.rename(old)
    try:
        fresh.rename(destination)
    except OSError:
        old.rename(destination)
        raise


def _fill(folder: Path, contents: BundleContents) -> None:
    for path in contents.graph_files:
        if not path.is_file():
            raise BundleError(f"a graph must be at {path}, but there is no file; export it first.")
        shutil.copyfile(path, folder / path.name)
    shutil.copyfile(contents.tokenizer, folder / TOKENIZER)
    (folder / MODEL_CARD).write_text(contents.model_card, encoding="utf-8")
    for picture in contents.pictures:
        if not picture.is_file() or (folder / picture.name).exists():
            raise BundleError(f"a picture must be a file with a name of its own in the bundle, but {picture} is none.")
        shutil.copyfile(picture, folder / picture.name)
    manifest = Manifest(
        name=contents.name,
        version=contents.version,
        source_languages=contents.source_languages,
        target_languages=contents.target_languages,
        model=contents.config.to_dict(),
        precisions={
            precision: {operators: dict(roles) for operators, roles in graphs.items()}
            for precision, graphs in contents.precisions.items()
        },
        weights=dict(contents.weights),
        decoding=contents.decoding,
        calibration=dict(contents.calibration),
        alignment=dict(contents.alignment),
        parity=dict(contents.parity),
        files={path.name: {"sha256": sha256(path), "bytes": path.stat().st_size} for path in sorted(folder.iterdir())},
    )
    path = folder / MANIFEST
    path.write_text(manifest.to_json(), encoding="utf-8")
    for written in folder.iterdir():
        with written.open("rb") as file:
            os.fsync(file.fileno())


def _fitting_tokenizer(path: Path, config: ModelConfig) -> Tokenizer:
    try:
        tokenizer = Tokenizer(path)
    except TokenizerError as error:
        raise BundleError(f"a bundle needs its tokenizer: {error}") from error
    if tokenizer.vocab_size != config.vocab_size:
        raise BundleError(
            f"tokenizer and embedding must have as many ids as each other, but {path} has {tokenizer.vocab_size} and "
            f"the model {config.vocab_size}; no row is added or dropped to make them fit. Use the tokenizer it was "
            "trained with."
        )
    return tokenizer


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()

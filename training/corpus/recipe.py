"""Recipes: the TOML file that says what a corpus is made of."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from training.corpus.errors import CorpusError

KINDS = ("gettext", "libreoffice-help", "tsv", "paired")
_SECTIONS = ("source", "holdout", "cleaning", "languages", "tokenizer", "model", "fit", "publish")
"""Tables that are read apart from the rest; the last four belong to the steps after this one."""
_PACKAGE_KINDS = ("gettext", "libreoffice-help")


@dataclass(frozen=True, kw_only=True)
class SourceRecipe:
    """One `[source.NAME]` table: where pairs come from and how many of them to keep."""

    name: str
    kind: str
    """`gettext` and `libreoffice-help` read Debian packages (or a folder); `tsv` one file, `paired` two."""
    group: str = ""
    """Held-out sets are made a group; sources that resemble each other share one. Default: the source's name."""
    packages: tuple[str, ...] = ()
    path: str = ""
    """A file or folder, relative to the recipe. For `paired` the source side."""
    target_path: str = ""
    """`paired` only: the target side, line for line."""
    licence: str = ""
    """Terms of the whole source. Packages carry their own, which are read from them."""
    attribution: str = ""
    optional: bool = False
    """Leave the source out, and say so, when its path is not there."""
    cap: int = 0
    """Keep at most this many pairs, chosen by hash; 0 keeps all."""
    targets_per_source: int = 1
    """How many different translations of one source text to keep, the most frequent first."""
    split_sentences: bool = True
    """Cut texts of several sentences into pairs of one, where both sides have equally many."""


@dataclass(frozen=True, kw_only=True)
class HoldoutRecipe:
    """One `[holdout.GROUP]` table: the sizes of a group's test and development sets."""

    test: int = 0
    dev: int = 0
    min_words: int = 4
    """Shorter source texts are never held out: too many others look like them."""


@dataclass(frozen=True, kw_only=True)
class CleaningRecipe:
    """The `[cleaning]` table: limits of the rules in `training.corpus.rules`."""

    max_chars: int = 400
    """Longest side, in characters. About 110 subwords of English or German."""
    max_ratio: float = 2.5
    """Longest side over shortest side, in characters, once `ratio_slack` is added to both."""
    ratio_slack: int = 12
    """Characters added to both sides before the ratio, so that short texts may differ freely."""
    max_copy_words: int = 2
    """A target that equals its source is kept up to this many words: names are their own translation."""
    min_letters: int = 2
    """Fewest letters on each side."""
    min_letter_share: float = 0.45
    """Smallest share of letters and spaces on each side."""
    drop: tuple[str, ...] = ()
    """Names of rules to leave out."""


@dataclass(frozen=True, kw_only=True)
class CorpusRecipe:
    """A whole recipe, checked. `load_recipe` makes one from a file."""

    source: str
    target: str
    """Language codes, such as `en` and `de`."""
    sources: tuple[SourceRecipe, ...]
    holdouts: Mapping[str, HoldoutRecipe] = field(default_factory=dict)
    reserved: tuple[str, ...] = ()
    """Packages for evaluation only. Naming one as a source is an error; their own strings become a test set."""
    cleaning: CleaningRecipe = field(default_factory=CleaningRecipe)
    near_duplicate: float = 0.7
    """Jaccard similarity of word sets from which a training row counts as a copy of a held-out one."""
    seed: str = "dragoman"
    """Salt of the hash that picks held-out rows and capped ones."""
    folder: Path = Path()
    """Relative paths start here: the folder of the recipe file."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise CorpusError("a recipe must have at least one [source.NAME] table, but there is none.")
        for source in self.sources:
            _check_source(source)
            if taken := sorted(set(source.packages) & set(self.reserved)):
                raise CorpusError(
                    f"source {source.name!r} lists {', '.join(taken)}, which the recipe reserves for evaluation; "
                    "remove it from one of the two lists."
                )
        groups = {source.group for source in self.sources} | {"reserved"}
        if unknown := sorted(set(self.holdouts) - groups):
            raise CorpusError(
                f"[holdout] must name groups of sources ({', '.join(sorted(groups))}), but names {', '.join(unknown)}."
            )
        if not 0.0 < self.near_duplicate <= 1.0:
            raise CorpusError(f"near_duplicate must be in (0, 1], but is {self.near_duplicate}.")

    def resolve(self, path: str) -> Path:
        """`path` of a source as the file system knows it."""
        return self.folder / Path(path).expanduser()


def _check_source(source: SourceRecipe) -> None:
    where = f"source {source.name!r}"
    if source.kind not in KINDS:
        raise CorpusError(f"kind of {where} must be one of {', '.join(KINDS)}, but is {source.kind!r}.")
    if source.kind in _PACKAGE_KINDS and bool(source.packages) == bool(source.path):
        raise CorpusError(f"{where} must have either packages or a path to a folder.")
    if source.kind not in _PACKAGE_KINDS and (source.packages or not source.path):
        raise CorpusError(f"{where} must have a path, and no packages.")
    if (source.kind == "paired") != bool(source.target_path):
        raise CorpusError(f"target_path belongs to kind 'paired', and must be there; {where} is {source.kind!r}.")
    if source.cap < 0 or source.targets_per_source < 1:
        raise CorpusError(f"{where} must have cap >= 0 and targets_per_source >= 1.")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> CorpusRecipe:
    """Read and check the recipe at `path`.

    `overrides` are `NAME.KEY=VALUE` for a field of source NAME, such as `tatoeba.path=/data/tatoeba.tsv`; a path
    given so is relative to the working directory. Raises `CorpusError` for whatever does not fit.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CorpusError(f"a recipe must be at {path}, but it cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} must be TOML in UTF-8: {error}.") from error
    sources = {name: _read_source(name, values) for name, values in _table(table, "source").items()}
    for override in overrides:
        name, changed = _override(override, sources)
        sources[name] = changed
    holdouts = {n: _build(HoldoutRecipe, v, f"[holdout.{n}]") for n, v in _table(table, "holdout").items()}
    cleaning = _build(CleaningRecipe, _table(table, "cleaning"), "[cleaning]")
    rest = {key: value for key, value in table.items() if key not in _SECTIONS}
    languages = _table(table, "languages")
    if sorted(languages) != ["source", "target"]:
        raise CorpusError(f"{path} must have a [languages] table with source and target, and nothing else.")
    parts = {"sources": tuple(sources.values()), "holdouts": holdouts, "cleaning": cleaning, "folder": path.parent}
    return _build(CorpusRecipe, {**rest, **languages, **parts}, str(path))


def _table(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise CorpusError(f"{key} must be a table, but is {value!r}.")
    return value


def _read_source(name: str, values: Any) -> SourceRecipe:
    where = f"[source.{name}]"
    if not isinstance(values, dict) or "kind" not in values:
        raise CorpusError(f"{where} must be a table with a kind: one of {', '.join(KINDS)}.")
    return _build(SourceRecipe, {"group": name, **values, "name": name}, where)


def _build(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """An instance of the dataclass `cls`; field names and plain types are checked against it."""
    known = {f.name: f for f in fields(cls)}
    if unknown := sorted(set(values) - set(known)):
        raise CorpusError(f"{where} has unknown keys: {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
    frozen = {key: _plain(known[key].type, value, f"{key} in {where}") for key, value in values.items()}
    return cls(**frozen)


def _plain(declared: Any, value: Any, where: str) -> Any:
    """`value` if it fits the annotation `declared`; lists become tuples, whole numbers pass as floats."""
    if declared == "tuple[str, ...]":
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise CorpusError(f"{where} must be a list of strings, but is {value!r}.")
        return tuple(value)
    expected = {"str": str, "int": int, "bool": bool, "float": (int, float)}.get(declared)
    misfit = expected is not None and not isinstance(value, expected)
    # To Python, True is a number; in a recipe it is a mistake.
    misfit = misfit or (isinstance(value, bool) and declared != "bool")
    if misfit:
        raise CorpusError(f"{where} must be of type {declared}, but is {value!r}.")
    return value


def _override(override: str, sources: Mapping[str, SourceRecipe]) -> tuple[str, SourceRecipe]:
    target, equals, value = override.partition("=")
    name, dot, key = target.partition(".")
    if not (equals and dot):
        raise CorpusError(f"an override must look like NAME.KEY=VALUE, but is {override!r}.")
    if name not in sources:
        raise CorpusError(f"override {override!r} must name a source: one of {', '.join(sources)}.")
    known = {f.name: f.type for f in fields(SourceRecipe)}
    kinds = {"str": str, "int": int, "bool": lambda text: {"true": True, "false": False}[text]}
    if known.get(key) not in kinds:
        settable = sorted(k for k, kind in known.items() if kind in kinds)
        raise CorpusError(f"override {override!r} must set one of {', '.join(settable)}.")
    try:
        parsed = kinds[known[key]](value)
    except (ValueError, KeyError) as error:
        raise CorpusError(f"override {override!r} must give a value of type {known[key]}.") from error
    if key in ("path", "target_path"):
        parsed = str(Path(value).expanduser().absolute())
    return name, replace(sources[name], **{key: parsed})

"""The corpus part of a recipe: sources, cleaning, and what is held out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from training.corpus.archives import is_member
from training.corpus.ding import Select
from training.corpus.errors import CorpusError
from training.recipe import languages, read_recipe, section

Kind = Literal["gettext", "libreoffice-help", "pages", "ding", "tsv", "paired", "archive", "tmx", "jsonl"]
Role = Literal["train", "dev", "test"]
_OF_PACKAGES = ("gettext", "libreoffice-help", "pages", "ding")
_OF_MESSAGES = ("gettext",)

_SECTIONS = {"languages", "corpus", "source", "cleaning", "holdout"}
_OTHER_SECTIONS = {"tokenizer", "model", "fit", "protect", "noise", "publish", "distil"}


@dataclass(frozen=True, kw_only=True)
class SourceRecipe:
    """One `[source.NAME]` table: where pairs come from and how many of them to keep."""

    name: str
    kind: Kind
    """`gettext`, `libreoffice-help`, `pages`, `ding` read packages or a folder; `paired` two files, `archive` two
    members of a tar archive, the others one file."""
    role: Role = "train"
    """`dev` or `test`: the source is a held-out set as it stands, `dev.NAME` or `test.NAME`, every pair in its order
    and none of them cleaned away; what is near to them is in no training set."""
    group: str = ""
    """Held-out sets are made a group; sources that resemble each other share one. Default: the source's name."""
    packages: tuple[str, ...] = ()
    path: str = ""
    """A file or folder, relative to the recipe. For `paired` the source side."""
    target_path: str = ""
    """`paired` only: the target side, line for line."""
    url: str = ""
    """`archive` only: where the archive is downloaded from, once; `path` names one that is here already."""
    sha256: str = ""
    """`archive` only: what its bytes must be. Without it the first download is noted, and a later one must equal it."""
    members: tuple[str, ...] = ()
    """`archive` only: the names of the source's and the target's file within the archive; `.gz` and `.sgm` do too."""
    licence: str = ""
    """Terms of the whole source. Packages carry their own, which are read from them."""
    attribution: str = ""
    optional: bool = False
    """Leave the source out, and say so, when its path is not there."""
    late: bool = False
    """Join once the held-out sets of the other sources are drawn, so that these stay what they are."""
    weight: float = 1.0
    """How often `fit` shows its pairs in an epoch: 2 twice, 0.5 in every other epoch, 0 never. The corpus holds all."""
    cap: int = 0
    """Keep at most this many pairs, chosen by hash; 0 keeps all."""
    targets_per_source: int = 1
    """How many different translations of one source text to keep, the most frequent first."""
    select: Select = "all"
    """`ding` only: which entries to take."""
    keys: tuple[str, ...] = ()
    """`jsonl` only: the keys of the source and the target, such as `translation.en`. Default: the language codes."""
    split_sentences: bool = True
    """Cut texts of several sentences into pairs of one, where both sides have equally many."""
    messages: bool = False
    """The texts are messages of programs: marks of menu letters and contexts are taken out (`_File` becomes `File`),
    and `$1` is a placeholder; elsewhere `~5` is "about five" and `$1` is money. Default: true for kind gettext."""

    def __post_init__(self) -> None:
        self._check_place()
        if self.cap < 0 or self.targets_per_source < 1 or not 0 <= self.weight < math.inf:
            raise CorpusError(f"[source.{self.name}] must have cap >= 0, targets_per_source >= 1 and weight >= 0.")
        if self.keys and (self.kind != "jsonl" or len(self.keys) != 2):
            raise CorpusError(f"[source.{self.name}] keys must be two, source and target, and for kind jsonl only.")
        if self.select != "all" and self.kind != "ding":
            raise CorpusError(f"select must be given for kind ding only; [source.{self.name}] is {self.kind}.")
        if self.role != "train" and (self.cap or self.late or self.weight != 1):
            raise CorpusError(
                f"[source.{self.name}] is a {self.role} set as it stands: it must have no cap and no weight, and is "
                f"never late."
            )

    def _check_place(self) -> None:
        of_packages, is_archive = self.kind in _OF_PACKAGES, self.kind == "archive"
        if of_packages and bool(self.packages) == bool(self.path):
            raise CorpusError(f"[source.{self.name}] must have either packages or the path of a folder.")
        if not of_packages and (self.packages or not (self.path or is_archive)):
            raise CorpusError(f"[source.{self.name}] is of kind {self.kind}: it must have a path, and no packages.")
        if (self.kind == "paired") != bool(self.target_path):
            raise CorpusError(
                f"target_path must be given for kind paired, and for no other; [source.{self.name}] is {self.kind}."
            )
        if not is_archive and (self.url or self.sha256 or self.members):
            raise CorpusError(
                f"url, sha256 and members are for kind archive only; [source.{self.name}] is {self.kind}."
            )
        if is_archive and not (self.url or self.path):
            raise CorpusError(f"[source.{self.name}] must have the url of an archive, or the path of one.")
        if is_archive and (len(self.members) != 2 or not all(map(is_member, self.members))):
            raise CorpusError(
                f"[source.{self.name}] members must be two relative paths in the archive, source and target, but are "
                f"{list(self.members)}."
            )


@dataclass(frozen=True, kw_only=True)
class HoldoutRecipe:
    """One `[holdout.GROUP]` table: the sizes of a group's test and development sets."""

    test: int = 0
    dev: int = 0
    min_words: int = 4
    """Shorter source texts are never held out: too many others look like them."""

    def __post_init__(self) -> None:
        if min(self.test, self.dev) < 0 or self.min_words < 1:
            raise CorpusError(f"a holdout must have test >= 0, dev >= 0 and min_words >= 1, but is {self}.")


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
    software_marks: bool = True
    """Take out what the messages of programs carry beside their text: marks of menu letters, contexts. Only where a
    source has `messages`."""


@dataclass(frozen=True, kw_only=True)
class CorpusSection:
    """The `[corpus]` table: what holds for all sources."""

    reserved: tuple[str, ...] = ()
    """Packages for evaluation only: naming one as a source is an error. With a `[holdout.reserved]`, what they say and
    nobody else does becomes that test set, and their text domains are barred from every other package too."""
    near_duplicate: float = 0.7
    """Jaccard similarity of word sets from which a training row counts as a copy of a held-out one."""
    reversed: bool = False
    """The corpus is read the other way round, from the target's language to the source's, which gives the same files:
    for a pair whose texts are easier to describe in the other direction."""
    seed: str = "dragoman"
    """Salt of the hash that picks held-out and capped rows."""

    def __post_init__(self) -> None:
        if not 0.0 < self.near_duplicate <= 1.0:
            raise CorpusError(f"near_duplicate must be in (0, 1], but is {self.near_duplicate}.")
        if not 1 <= len(self.seed.encode()) <= 64:
            raise CorpusError(f"seed must be 1 to 64 bytes of text, but is {self.seed!r}.")


@dataclass(frozen=True, kw_only=True)
class CorpusRecipe:
    """All that the corpus step needs to know. `load_recipe` reads one from a file."""

    source: str
    target: str
    """Language codes, such as `en` and `de`."""
    sources: tuple[SourceRecipe, ...]
    corpus: CorpusSection = field(default_factory=CorpusSection)
    cleaning: CleaningRecipe = field(default_factory=CleaningRecipe)
    holdouts: Mapping[str, HoldoutRecipe] = field(default_factory=dict)
    """Group → sizes."""
    folder: Path = Path()
    """Relative paths start here: the folder of the recipe file."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise CorpusError("a recipe must have at least one [source.NAME], but has none.")
        for source in self.sources:
            if taken := sorted(set(source.packages) & set(self.corpus.reserved)):
                raise CorpusError(
                    f"[source.{source.name}] lists {', '.join(taken)}, which the recipe reserves for evaluation; take "
                    "them out of one of the two lists."
                )
        if not any(source.role == "train" for source in self.sources):
            raise CorpusError("some [source.NAME] must have the role train, but all are dev or test sets.")
        standing = {source.name for source in self.sources if source.role != "train"}
        if twice := sorted(standing & set(self.holdouts)):
            raise CorpusError(
                f"a held-out set must have one origin, but {', '.join(twice)} is a dev or test set and a "
                f"[holdout.GROUP]."
            )
        groups = {source.group for source in self.sources if source.role == "train"} | {"reserved"}
        if unknown := sorted(set(self.holdouts) - groups):
            raise CorpusError(
                f"[holdout.GROUP] must name groups of sources to train on ({', '.join(sorted(groups))}), but also "
                f"names {', '.join(unknown)}."
            )

    @property
    def messages(self) -> frozenset[str]:
        """Origins whose texts are messages of programs; what is reserved are catalogues."""
        named = {source.name for source in self.sources if source.messages}
        return frozenset(named | {"reserved"} if self.corpus.reserved else named)

    def as_read(self) -> CorpusRecipe:
        """The recipe in the direction in which its corpus is read."""
        if not self.corpus.reversed:
            return self
        return replace(self, source=self.target, target=self.source, corpus=replace(self.corpus, reversed=False))

    def resolve(self, path: str) -> Path:
        """`path` of a source as the file system knows it."""
        return self.folder / Path(path).expanduser()


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> CorpusRecipe:
    """Read and check the corpus part of the recipe at `path`.

    `overrides` are `SECTION.KEY=VALUE`, such as `source.tatoeba.path=/data/tatoeba.tsv`; a path given so is relative
    to the working directory, one in the file to the file's folder. Raises `RecipeError` for a wrong form, `CorpusError`
    for parts that contradict each other.
    """
    sections = read_recipe(path, [_from_here(override) for override in overrides])
    if unknown := sorted(set(sections) - _SECTIONS - _OTHER_SECTIONS):
        known = ", ".join(sorted(_SECTIONS | _OTHER_SECTIONS))
        raise CorpusError(f"{path} must hold the sections of a recipe ({known}), but also has {', '.join(unknown)}.")
    corpus = section(CorpusSection, "corpus", sections.get("corpus", {}))
    source, target = languages(sections)
    sources = _tables(sections, "source")
    return CorpusRecipe(
        source=source,
        target=target,
        sources=tuple(
            section(SourceRecipe, f"source.{name}", {**_defaults(name, values), **values, "name": name})
            for name, values in sources.items()
        ),
        corpus=corpus,
        cleaning=section(CleaningRecipe, "cleaning", sections.get("cleaning", {})),
        holdouts={
            name: section(HoldoutRecipe, f"holdout.{name}", values)
            for name, values in _tables(sections, "holdout").items()
        },
        folder=path.parent,
    )


def _defaults(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What `[source.NAME]` says where it says nothing, as far as that depends on the rest of it."""
    return {"group": name, "messages": values.get("kind") in _OF_MESSAGES}


def _from_here(override: str) -> str:
    name, equals, value = override.partition("=")
    if equals and name.startswith("source.") and name.endswith(("path", "target_path")):
        return f"{name}={Path(value).expanduser().absolute()}"
    return override


def _tables(sections: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The tables `[name.…]` of a recipe."""
    tables = sections.get(name, {})
    if not isinstance(tables, dict) or not all(isinstance(values, dict) for values in tables.values()):
        raise CorpusError(f"{name} must be a table of tables, such as [{name}.catalogues], but is {tables!r}.")
    return tables

"""From a recipe's sources to raw pairs, with the licence of every part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from model.bundle import sha256
from training.corpus.archives import unpack
from training.corpus.catalogues import domain, find_catalogues, is_catalogue, read_catalogue
from training.corpus.ding import is_dictionary, read_ding
from training.corpus.downloads import DownloadStore
from training.corpus.errors import CorpusError
from training.corpus.files import read_paired, read_tsv
from training.corpus.jsonlines import read_jsonl
from training.corpus.libreoffice import find_help, is_help_page, paired_pages, read_page
from training.corpus.packages import Package, PackageStore, Selection
from training.corpus.pages import is_entities, is_page, pair_pages, read_entities, read_pages
from training.corpus.pair import Pair
from training.corpus.recipe import CorpusRecipe, SourceRecipe
from training.corpus.tmx import read_tmx

T = TypeVar("T")


@dataclass
class Reader:
    """Reads the sources of one recipe. `parts` and `notes` fill while it reads."""

    recipe: CorpusRecipe
    store: PackageStore
    downloads: DownloadStore
    progress: bool = False
    parts: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """(origin, part) → name, version, licence and attribution."""
    notes: list[str] = field(default_factory=list)
    _reserved_domains: set[str] = field(default_factory=set)

    def reserved(self) -> list[Pair]:
        """The pairs of the reserved packages. Their text domains are barred from every other source afterwards."""
        pairs: list[Pair] = []
        for name in self._bar(self.recipe.corpus.reserved, "reserved packages"):
            package = self.store.fetch(name, self._catalogues())
            self._note_package("reserved", package, "")
            for path in find_catalogues(package.folder, self.recipe.target):
                self._reserved_domains.add(domain(path, self.recipe.target))
                pairs.extend(read_catalogue(path, "reserved", name))
        return pairs

    def read(self, source: SourceRecipe) -> Iterator[Pair]:
        """All raw pairs of `source`. Raises `CorpusError` when it is not there and not optional."""
        readers: dict[str, Callable[[SourceRecipe], Iterator[Pair]]] = {
            "gettext": self._read_gettext,
            "libreoffice-help": self._read_help,
            "pages": self._read_pages,
            "ding": self._read_ding,
            "tsv": self._read_files,
            "paired": self._read_files,
            "archive": self._read_archive,
            "tmx": self._read_files,
            "jsonl": self._read_files,
        }
        missing = [p for p in (source.path, source.target_path) if p and not self.recipe.resolve(p).exists()]
        if missing and source.optional:
            self.notes.append(f"source {source.name!r} was left out: there is no {', '.join(missing)}.")
            return iter(())
        if missing:
            raise CorpusError(
                f"source {source.name!r} must be at {self.recipe.resolve(missing[0])}, but nothing is there; give "
                f"its place with --set source.{source.name}.path=FILE, or mark it optional."
            )
        return readers[source.kind](source)

    def _read_gettext(self, source: SourceRecipe) -> Iterator[Pair]:
        if source.path:
            self._note_files(source, source.name)
            yield from self._read_catalogues(self.recipe.resolve(source.path), source, source.name)
        for name in self._bar(source.packages, source.name):
            package = self.store.fetch(name, self._catalogues())
            self._note_package(source.name, package, source.attribution)
            yield from self._read_catalogues(package.folder, source, name)

    def _read_catalogues(self, folder: Path, source: SourceRecipe, part: str) -> Iterator[Pair]:
        found = find_catalogues(folder, self.recipe.target)
        if not found:
            self.notes.append(f"{part} has no catalogue for {self.recipe.target}.")
        for path in found:
            name = domain(path, self.recipe.target)
            if name in self._reserved_domains:
                self.notes.append(f"{path.name} of {part} was left out: its domain {name} is reserved.")
            else:
                yield from read_catalogue(path, source.name, part)

    def _read_help(self, source: SourceRecipe) -> Iterator[Pair]:
        folders = [self.recipe.resolve(source.path)] if source.path else []
        for name in self._bar(source.packages, source.name):
            package = self.store.fetch(name, Selection("help", is_help_page))
            self._note_package(source.name, package, source.attribution)
            folders.append(package.folder)
        if source.path:
            self._note_files(source, source.name)
        sides = []
        for language in (self.recipe.source, self.recipe.target):
            found = [pages for folder in folders if (pages := find_help(folder, language))]
            if not found:
                raise CorpusError(f"source {source.name!r} must hold help pages in {language!r}, but there are none.")
            sides.append(found[0])
        part = source.packages[-1] if source.packages else source.name
        for ours, theirs in self._bar(paired_pages(sides[0], sides[1]), f"{source.name} pages", "page"):
            yield from read_page(ours, theirs, source.name, part)

    def _read_pages(self, source: SourceRecipe) -> Iterator[Pair]:
        languages = (self.recipe.source, self.recipe.target)
        selection = Selection(
            f"pages.{'-'.join(languages)}", lambda path: is_page(path, languages) or is_entities(path)
        )
        parts = self._folders(source, selection)
        entities = [read_entities(parts.values(), language) for language in languages]
        names = {folder: part for part, folder in parts.items()}
        pages = pair_pages(list(parts.values()), languages)
        for ours, theirs in self._bar(pages, f"{source.name} pages", "page"):
            part = next(name for folder, name in names.items() if theirs.is_relative_to(folder))
            yield from read_pages(ours, theirs, (source.name, part), entities)

    def _read_ding(self, source: SourceRecipe) -> Iterator[Pair]:
        languages = (self.recipe.source, self.recipe.target)
        for part, folder in self._folders(source, Selection("ding", is_dictionary)).items():
            files = (
                [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if is_dictionary(p.as_posix()))
            )
            for file in files:
                yield from self._bar(read_ding(file, (source.name, part), languages, source.select), part, "pair")

    def _folders(self, source: SourceRecipe, selection: Selection) -> dict[str, Path]:
        """Part → the place of its files: every package of `source`, or its path."""
        if source.path:
            self._note_files(source, source.name)
            return {source.name: self.recipe.resolve(source.path)}
        folders = {}
        for name in self._bar(source.packages, source.name):
            package = self.store.fetch(name, selection)
            self._note_package(source.name, package, source.attribution)
            folders[name] = package.folder
        return folders

    def _read_files(self, source: SourceRecipe) -> Iterator[Pair]:
        path = self.recipe.resolve(source.path)
        self._note_files(source, path.name)
        languages = (self.recipe.source, self.recipe.target)
        if source.kind == "tsv":
            pairs = read_tsv(path, source.name)
        elif source.kind == "tmx":
            pairs = read_tmx(path, source.name, languages)
        elif source.kind == "jsonl":
            source_key, target_key = source.keys or languages
            pairs = read_jsonl(path, source.name, (source_key, target_key))
        else:
            pairs = read_paired(path, self.recipe.resolve(source.target_path), source.name)
        yield from self._bar(pairs, source.name, "pair")

    def _read_archive(self, source: SourceRecipe) -> Iterator[Pair]:
        if source.path:
            archive = self.recipe.resolve(source.path)
            found = sha256(archive)
            if source.sha256 not in ("", found):
                raise CorpusError(
                    f"{archive} must have the SHA-256 {source.sha256}, but has {found}; is it another file?"
                )
        else:
            archive = self.downloads.fetch(source.url, source.sha256)
            found = sha256(archive)
        self._note_files(source, archive.name)
        # By content: an archive that has changed is unpacked anew.
        ours, theirs = unpack(archive, source.members, self.downloads.cache / "unpacked" / found[:16])
        pairs = (replace(pair, part=archive.name) for pair in read_paired(ours, theirs, source.name))
        yield from self._bar(pairs, source.name, "pair")

    def _catalogues(self) -> Selection:
        return Selection(f"messages.{self.recipe.target}", lambda path: is_catalogue(path, self.recipe.target))

    def _bar(self, items: Iterable[T], what: str, unit: str = "package") -> Iterator[T]:
        return iter(tqdm(items, desc=what, unit=unit, disable=None if self.progress else True))

    def _note_package(self, origin: str, package: Package, attribution: str) -> None:
        self.parts[origin, package.name] = {
            "source": origin,
            "part": package.name,
            "version": package.version,
            "licence": package.licence(),
            "attribution": attribution or f"the authors and translators named in Debian package {package.name}",
        }

    def _note_files(self, source: SourceRecipe, part: str) -> None:
        self.parts[source.name, part] = {
            "source": source.name,
            "part": part,
            "licence": source.licence or "not stated",
            "attribution": source.attribution,
        }

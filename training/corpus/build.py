"""The corpus step: read, clean, keep each pair once, hold out, watch for leaks, write."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import escape
from pathlib import Path

from tqdm import tqdm

from training.corpus.cleaning import Cleaner
from training.corpus.downloads import DownloadStore
from training.corpus.duplicates import cap, unique
from training.corpus.errors import CorpusError
from training.corpus.holdout import HeldOut, NearDuplicates, draw
from training.corpus.packages import PackageStore
from training.corpus.pair import Pair
from training.corpus.recipe import CorpusRecipe
from training.corpus.repairs import repair
from training.corpus.report import CorpusReport
from training.corpus.sources import Reader
from training.corpus.words import key

DEFAULT_CACHE = Path("~/.cache/dragoman/packages")
DOWNLOADS = "downloads"
"""Folder of the cache in which what comes from the web is kept."""

LEAKS = {
    "same-source": "the source equals a held-out source",
    "same-target": "the translation equals a held-out translation",
    "similar-source": "the source has nearly the words of a held-out source",
    "similar-target": "the translation has nearly the words of a held-out translation",
    "contained-source": "the source contains a held-out source, or makes up most of one",
    "contained-target": "the translation contains a held-out translation, or makes up most of one",
}
"""What `NearDuplicates.find` says → what the report says."""


def build_corpus(
    recipe: CorpusRecipe, out: Path, *, cache: Path = DEFAULT_CACHE, progress: bool = False
) -> CorpusReport:
    """Build the corpus that `recipe` describes in the folder `out`, and return its report.

    Writes one text a line: `train.SRC`, `train.TGT` and `train.origin` (the source each pair came from),
    `test.GROUP.SRC|TGT` and `dev.GROUP.SRC|TGT` for every held-out group, and `report.json`, `report.txt` and
    `sources.json`. The same recipe and inputs give the same bytes. Packages and downloads are kept in `cache`; with
    `progress`, bars are shown on a terminal. Raises `CorpusError` before `out` is touched: an earlier corpus stays
    whole. From then to the last byte `out` holds no report.json, the mark of a finished corpus.
    """
    recipe, place = recipe.as_read(), cache.expanduser().absolute()
    store = PackageStore(place)
    store.prefetch([*recipe.corpus.reserved, *(name for source in recipe.sources for name in source.packages)])
    reader = Reader(recipe, store, DownloadStore(place / DOWNLOADS, progress=progress), progress)
    report = CorpusReport((recipe.source, recipe.target))
    cleaner = Cleaner(recipe, report)
    reserved = _read_reserved(recipe, reader, cleaner, report)
    standing = _read_standing(recipe, reader, report)
    early, late = _read_sources(recipe, reader, cleaner, report)
    limits = _limits(recipe)
    pairs = unique([*early, *late], limits)
    if not pairs:
        raise CorpusError("a corpus must have at least one pair, but cleaning left none; see the recipe's sources.")
    _drop_others([*early, *late], pairs, "duplicate", "the pair, or a more frequent translation, is there", report)
    held_out = standing | _hold_out(recipe, unique(early, limits) if recipe.holdouts else (), reserved)
    held_out |= _hold_out_late(recipe, pairs, held_out)
    watch = NearDuplicates((pair for rows in held_out.values() for pair in rows), recipe.corpus.near_duplicate)
    bar = tqdm(pairs, desc="near duplicates of held-out text", unit="pair", disable=None if progress else True)
    train = _without_leaks(bar, watch, report)
    _check_rest(train, pairs, held_out)
    _describe_sources(reader, train, report)
    report.notes += [*reader.notes, *_losses(train, pairs)]
    _write(out, {"train": train, **held_out}, report)
    report.write(out)
    return report


def _read_reserved(recipe: CorpusRecipe, reader: Reader, cleaner: Cleaner, report: CorpusReport) -> list[Pair]:
    """The pairs of the reserved packages, if the recipe makes a test set of them."""
    if "reserved" not in recipe.holdouts:
        return []
    raw = _counted(reader.reserved(), report)
    return unique(cleaner.clean(raw, split=True), {"reserved": 1})


def _read_standing(recipe: CorpusRecipe, reader: Reader, report: CorpusReport) -> dict[str, tuple[Pair, ...]]:
    """Set name → pairs of the sources that are held-out sets as they stand: all of them, each a line."""
    return {
        f"{source.role}.{source.name}": tuple(
            repair(pair, software=False) for pair in _counted(reader.read(source), report)
        )
        for source in recipe.sources
        if source.role != "train"
    }


def _read_sources(
    recipe: CorpusRecipe, reader: Reader, cleaner: Cleaner, report: CorpusReport
) -> tuple[list[Pair], list[Pair]]:
    """The clean pairs of all sources, within their caps: those of the sources that are there first, and of the late."""
    kept: tuple[list[Pair], list[Pair]] = ([], [])
    for source in recipe.sources:
        if source.role != "train":
            continue
        clean = list(cleaner.clean(_counted(reader.read(source), report), split=source.split_sentences))
        if source.cap:
            distinct = unique(clean, _limits(recipe))
            clean = cap(distinct, source.cap, recipe.corpus.seed)
            _drop_others(distinct, clean, "cap", "the source has more pairs than its cap", report)
        kept[source.late].extend(clean)
    return kept


def _limits(recipe: CorpusRecipe) -> dict[str, int]:
    """Origin → translations kept of one source text."""
    return {source.name: source.targets_per_source for source in recipe.sources}


def _counted(pairs: Iterable[Pair], report: CorpusReport) -> Iterator[Pair]:
    for pair in pairs:
        report.read[pair.origin] += 1
        yield pair


def _drop_others(before: Sequence[Pair], after: Sequence[Pair], reason: str, why: str, report: CorpusReport) -> None:
    """Count the pairs of `before` that are not in `after`, which are some of the same objects in the same order."""
    kept = iter(after)
    awaited = next(kept, None)
    for pair in before:
        if pair is awaited:
            awaited = next(kept, None)
        else:
            report.drop(reason, why, pair)


def _hold_out(recipe: CorpusRecipe, pairs: Sequence[Pair], reserved: Sequence[Pair]) -> dict[str, tuple[Pair, ...]]:
    """Set name → pairs, for `test.GROUP` and `dev.GROUP` of the groups that have a source from the start."""
    groups = {source.name: source.group for source in recipe.sources}
    sets: dict[str, tuple[Pair, ...]] = {}
    for group, sizes in recipe.holdouts.items():
        if group == "reserved":
            candidates = _only_there(reserved, pairs)
        elif group in _late_groups(recipe):
            continue
        else:
            candidates = [pair for pair in pairs if groups[pair.origin] == group]
        sets |= _named(group, draw(candidates, sizes, recipe.corpus.seed, recipe.corpus.near_duplicate))
    return sets


def _hold_out_late(
    recipe: CorpusRecipe, pairs: Sequence[Pair], held_out: Mapping[str, Sequence[Pair]]
) -> dict[str, tuple[Pair, ...]]:
    """The same for groups of late sources. None of these pairs is near to one of `held_out`."""
    late = _late_groups(recipe) & set(recipe.holdouts)
    groups = {source.name: source.group for source in recipe.sources}
    watch = NearDuplicates((pair for rows in held_out.values() for pair in rows), recipe.corpus.near_duplicate)
    sets: dict[str, tuple[Pair, ...]] = {}
    for group in sorted(late):
        candidates = [pair for pair in pairs if groups[pair.origin] == group and watch.find(pair) is None]
        held = draw(candidates, recipe.holdouts[group], recipe.corpus.seed, recipe.corpus.near_duplicate)
        sets |= _named(group, held)
    return sets


def _late_groups(recipe: CorpusRecipe) -> set[str]:
    """Groups all of whose sources come late."""
    early = {source.group for source in recipe.sources if not source.late}
    return {source.group for source in recipe.sources} - early


def _named(group: str, held: HeldOut) -> dict[str, tuple[Pair, ...]]:
    return {f"{name}.{group}": rows for name, rows in (("test", held.test), ("dev", held.dev)) if rows}


def _only_there(reserved: Iterable[Pair], elsewhere: Iterable[Pair]) -> list[Pair]:
    """The reserved pairs of which no other pair has the source or the translation."""
    sources, targets = set(), set()
    for pair in elsewhere:
        sources.add(key(pair.source))
        targets.add(key(pair.target))
    return [pair for pair in reserved if key(pair.source) not in sources and key(pair.target) not in targets]


def _without_leaks(pairs: Iterable[Pair], watch: NearDuplicates, report: CorpusReport) -> list[Pair]:
    kept = []
    for pair in pairs:
        leak = watch.find(pair)
        if leak is None:
            kept.append(pair)
        else:
            report.drop(leak, LEAKS[leak], pair)
    return kept


def _check_rest(train: Sequence[Pair], pairs: Sequence[Pair], held_out: Mapping[str, Sequence[Pair]]) -> None:
    """Raises `CorpusError` if the held-out sets left nothing of `pairs`."""
    if train:
        return
    sizes = ", ".join(f"{name} {len(rows):,}" for name, rows in held_out.items())
    raise CorpusError(
        f"a corpus must have at least one pair to train on, but the held-out sets ({sizes}) and what is near to them "
        f"took all {len(pairs):,}; make them smaller, or find more text."
    )


def _losses(train: Iterable[Pair], pairs: Iterable[Pair]) -> list[str]:
    """A note for each source that lost more than a fifth of its `pairs` to the held-out sets."""
    before, after = (Counter(pair.origin for pair in some) for some in (pairs, train))
    return [
        f"held-out sets and what is near to them took {count - after[name]:,} of the {count:,} pairs of source "
        f"{name!r}, more than a fifth; smaller sets leave more to train on."
        for name, count in before.items()
        if 5 * (count - after[name]) > count
    ]


def _write(out: Path, sets: Mapping[str, Sequence[Pair]], report: CorpusReport) -> None:
    source, target = report.languages
    out.mkdir(parents=True, exist_ok=True)
    clear_corpus(out, report.languages)
    for name, pairs in sets.items():
        write_lines(out / f"{name}.{source}", (pair.source for pair in pairs))
        write_lines(out / f"{name}.{target}", (pair.target for pair in pairs))
        report.count_set(name, pairs)
    write_lines(out / "train.origin", (pair.origin for pair in sets["train"]))


def clear_corpus(out: Path, languages: tuple[str, str]) -> None:
    """Take an earlier corpus out of `out`, whole or not, its mark first: its sets may have had other names.

    Whatever is called as a set of these languages goes, for `fit` and `evaluate` would take it for one.
    """
    report = out / "report.json"
    earlier = _languages_of(report)
    report.unlink(missing_ok=True)
    for name in ("report.txt", "report.partial", "sources.json", "train.origin"):
        (out / name).unlink(missing_ok=True)
    for language in {*languages, *earlier}:
        for kind in ("train", "dev.*", "test.*"):
            for path in out.glob(f"{kind}.{escape(language)}"):
                path.unlink()


def _languages_of(report: Path) -> list[str]:
    """Those of an earlier corpus, which may be others; none if its report is missing or was not written whole."""
    try:
        found: list[str] = json.loads(report.read_text(encoding="utf-8"))["languages"]
    except (FileNotFoundError, ValueError, LookupError):
        return []
    return found


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write `lines`, each ended by LF alone, in UTF-8."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def _describe_sources(reader: Reader, train: Iterable[Pair], report: CorpusReport) -> None:
    counts: dict[tuple[str, str], int] = {}
    for pair in train:
        counts[pair.origin, pair.part] = counts.get((pair.origin, pair.part), 0) + 1
    report.sources = [{**part, "training_pairs": counts.get(where, 0)} for where, part in reader.parts.items()]

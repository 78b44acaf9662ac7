"""The corpus step: read, clean, keep each pair once, hold out, watch for leaks, write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from training.corpus.duplicates import cap, unique
from training.corpus.errors import CorpusError
from training.corpus.holdout import NearDuplicates, draw
from training.corpus.packages import PackageStore
from training.corpus.pair import Pair
from training.corpus.recipe import CorpusRecipe
from training.corpus.repairs import repair
from training.corpus.report import CorpusReport
from training.corpus.rules import LAYOUT_RULE, Languages, Rule, choose_rules
from training.corpus.segments import split_paragraphs, split_sentences
from training.corpus.sources import Reader
from training.corpus.words import key

_LEAKS = {
    "same-source": "the source equals a held-out source",
    "same-target": "the translation equals a held-out translation",
    "similar-source": "the source has nearly the words of a held-out source",
    "contained": "the source contains a held-out source, or makes up most of one",
}
DEFAULT_CACHE = Path("~/.cache/dragoman/packages")


def build_corpus(
    recipe: CorpusRecipe, out: Path, *, cache: Path = DEFAULT_CACHE, progress: bool = False
) -> CorpusReport:
    """Build the corpus that `recipe` describes in the folder `out`, and return its report.

    Writes one text a line: `train.SRC`, `train.TGT` and `train.origin` (the source each pair came from),
    `dev.GROUP.SRC|TGT` and `test.GROUP.SRC|TGT` for every held-out group and for `reserved`, and `report.json`,
    `report.txt`, `sources.json`. The same recipe and inputs give the same bytes. Packages are kept in `cache`.
    Raises `CorpusError`; then `out` holds no finished corpus (the reports are written last).
    """
    reader = Reader(recipe, PackageStore(cache.expanduser().absolute()), progress)
    report = CorpusReport((recipe.source, recipe.target))
    reserved = _read_reserved(recipe, reader, report)
    pairs = _read_sources(recipe, reader, report)
    if not pairs:
        raise CorpusError("a corpus must have at least one pair, but cleaning left none; see the recipe's sources.")
    held_out = _hold_out(recipe, pairs, reserved)
    train = _without_leaks(pairs, held_out, recipe, report, progress)
    report.notes = reader.notes
    _write(out, {"train": train, **held_out}, recipe, report)
    _describe_sources(reader, train, report)
    report.write(out)
    return report


def _read_reserved(recipe: CorpusRecipe, reader: Reader, report: CorpusReport) -> list[Pair]:
    # Even without a reserved test set the packages are looked at: their text domains must stay out of training.
    raw = reader.reserved()
    if "reserved" not in recipe.holdouts:
        return []
    report.read["reserved"] = len(raw)
    return unique(_cleaned(raw, recipe, report, split=True), {"reserved": 1})


def _read_sources(recipe: CorpusRecipe, reader: Reader, report: CorpusReport) -> list[Pair]:
    kept: list[Pair] = []
    for source in recipe.sources:
        raw = _counted(reader.read(source), report)
        clean = list(_cleaned(raw, recipe, report, split=source.split_sentences))
        if source.cap:
            distinct = unique(clean, {source.name: source.targets_per_source})
            chosen = cap(distinct, source.cap, recipe.seed)
            _drop_others(distinct, chosen, "cap", "the source has more pairs than its cap", report)
            clean = chosen
        kept += clean
    distinct = unique(kept, {source.name: source.targets_per_source for source in recipe.sources})
    _drop_others(kept, distinct, "duplicate", "the pair, or a more frequent translation, is there already", report)
    return distinct


def _counted(pairs: Iterable[Pair], report: CorpusReport) -> Iterator[Pair]:
    for pair in pairs:
        report.read[pair.origin] += 1
        yield pair


def _drop_others(before: Sequence[Pair], after: Sequence[Pair], reason: str, why: str, report: CorpusReport) -> None:
    kept = {id(pair) for pair in after}
    for pair in before:
        if id(pair) not in kept:
            report.drop(reason, why, pair)


def _cleaned(raw: Iterable[Pair], recipe: CorpusRecipe, report: CorpusReport, *, split: bool) -> Iterator[Pair]:
    """Pairs that pass every rule, after repairs, cut into paragraphs and (if `split`) sentences."""
    chosen = choose_rules(recipe.cleaning.drop)
    early = tuple(rule for rule in chosen if rule is LAYOUT_RULE)
    late = tuple(rule for rule in chosen if rule is not LAYOUT_RULE)
    languages = Languages(recipe.source, recipe.target)
    for pair in raw:
        for paragraph in split_paragraphs(pair):
            if not _passes(paragraph, early, recipe, languages, report):
                continue
            repaired = repair(paragraph)
            for sentence in split_sentences(repaired) if split else (repaired,):
                if _passes(sentence, late, recipe, languages, report):
                    yield sentence


def _passes(
    pair: Pair, rules: Sequence[Rule], recipe: CorpusRecipe, languages: Languages, report: CorpusReport
) -> bool:
    for rule in rules:
        if not rule.keeps(pair, recipe.cleaning, languages):
            report.drop(rule.name, rule.why, pair)
            return False
    return True


def _hold_out(recipe: CorpusRecipe, pairs: Sequence[Pair], reserved: Sequence[Pair]) -> dict[str, tuple[Pair, ...]]:
    """Set name → pairs, for `test.GROUP` and `dev.GROUP`."""
    groups = {source.name: source.group for source in recipe.sources}
    sets: dict[str, tuple[Pair, ...]] = {}
    for group, sizes in recipe.holdouts.items():
        if group == "reserved":
            candidates = _only_there(reserved, pairs)
        else:
            candidates = [pair for pair in pairs if groups[pair.origin] == group]
        held = draw(candidates, sizes, recipe.seed, recipe.near_duplicate)
        sets |= {f"{name}.{group}": rows for name, rows in (("test", held.test), ("dev", held.dev)) if rows}
    return sets


def _only_there(reserved: Iterable[Pair], elsewhere: Iterable[Pair]) -> list[Pair]:
    """The reserved pairs whose source and translation no other pair has."""
    sources, targets = set(), set()
    for pair in elsewhere:
        sources.add(key(pair.source))
        targets.add(key(pair.target))
    return [pair for pair in reserved if key(pair.source) not in sources and key(pair.target) not in targets]


def _without_leaks(
    pairs: Sequence[Pair],
    held_out: Mapping[str, tuple[Pair, ...]],
    recipe: CorpusRecipe,
    report: CorpusReport,
    progress: bool,
) -> list[Pair]:
    watch = NearDuplicates((pair for rows in held_out.values() for pair in rows), recipe.near_duplicate)
    kept = []
    bar = tqdm(pairs, desc="near duplicates of held-out rows", unit="pair", disable=None if progress else True)
    for pair in bar:
        leak = watch.find(pair)
        if leak is None:
            kept.append(pair)
        else:
            report.drop(leak, _LEAKS[leak], pair)
    return kept


def _write(out: Path, sets: Mapping[str, Sequence[Pair]], recipe: CorpusRecipe, report: CorpusReport) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in ("report.json", "report.txt", "sources.json"):
        (out / name).unlink(missing_ok=True)
    for name, pairs in sets.items():
        write_lines(out / f"{name}.{recipe.source}", (pair.source for pair in pairs))
        write_lines(out / f"{name}.{recipe.target}", (pair.target for pair in pairs))
        report.count_set(name, pairs)
    write_lines(out / "train.origin", (pair.origin for pair in sets["train"]))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write `lines`, each ended by LF alone, in UTF-8."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in lines)


def _describe_sources(reader: Reader, train: Iterable[Pair], report: CorpusReport) -> None:
    counts: dict[tuple[str, str], int] = {}
    for pair in train:
        counts[pair.origin, pair.part] = counts.get((pair.origin, pair.part), 0) + 1
    report.sources = [{**part, "training_pairs": counts.get(where, 0)} for where, part in reader.parts.items()]

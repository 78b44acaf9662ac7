"""Sequence-level knowledge distillation (Kim & Rush, 2016): a student learns from what its teacher writes.

The teacher translates the source side of a corpus, through the engine that serves it, and its translations take the
place of the references. They are simpler and more regular than people's, so a smaller network learns them better. With
several candidates a line, the one nearest to the reference is taken (section 3.3, "sequence-level interpolation").

The work is done in parts, a file each: what was interrupted goes on with the first part that is missing. Translations
that are empty, go round in circles, were cut, lost what they must carry, or break a rule of the corpus are left out and
counted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model.bundle import MANIFEST, Bundle, sha256
from training.checkpoint import CheckpointError
from training.corpus.build import LEAKS, clear_corpus, write_lines
from training.corpus.cleaning import Cleaner
from training.corpus.duplicates import unique
from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.corpus.holdout import NearDuplicates
from training.corpus.pair import Pair
from training.corpus.recipe import CorpusRecipe
from training.corpus.report import CorpusReport
from training.progress import progress
from training.subwords import corpus_files
from training.teacher import REASONS, DistilRecipe, Line, Teacher

PART = 1000
"""Lines a part: what an interruption may cost."""
_PARTS = "parts"
_JOB = "distil.json"


@dataclass(frozen=True)
class Job:
    """What is distilled, and where to."""

    teacher: Path
    corpus: Path
    sources: tuple[Path, ...]
    """More text in the source language alone, a line each."""
    out: Path
    recipe: DistilRecipe
    corpus_recipe: CorpusRecipe

    def identity(self) -> dict[str, Any]:
        """What the parts depend on."""
        files = [*(self.corpus / f"train.{language}" for language in self._languages), *self.sources]
        return {
            "teacher": sha256(self.teacher / MANIFEST),
            "text": [sha256(file) for file in files],
            "recipe": asdict(self.recipe),
            "part": PART,
        }

    @property
    def _languages(self) -> tuple[str, str]:
        return self.corpus_recipe.source, self.corpus_recipe.target

    def lines(self) -> list[Line]:
        """Every line to translate: the corpus, then the other text without what is blank or there already."""
        sides = [list(read_lines(self.corpus / f"train.{language}")) for language in self._languages]
        origins = list(read_lines(self.corpus / "train.origin"))
        if not len(sides[0]) == len(sides[1]) == len(origins):
            raise CorpusError(f"train.* of {self.corpus} must have equally many lines, but has other counts.")
        lines = [Line(*row) for row in zip(sides[0], origins, sides[1], strict=True)]
        seen = set(sides[0])
        for file in self.sources:
            for text in read_lines(file):
                if text.strip() and text not in seen:
                    seen.add(text)
                    lines.append(Line(text, file.name.partition(".")[0]))
        return lines


def distil(job: Job, teacher: Teacher) -> CorpusReport:
    """Write the corpus of `job` into its folder, going on where an earlier call stopped; returns its report.

    The held-out sets are those of the old corpus, byte for byte, and what is near to one of them is left out. Raises
    `CorpusError` when the folder holds something else, `CheckpointError` when it was begun with another job.
    """
    _begin(job)
    lines = job.lines()
    bar = progress(len(lines), "distilling", "line")
    for part in _parts(job, len(lines)):
        chosen = lines[part[0] : part[1]]
        if not part[2].is_file():
            rows = teacher.translate(chosen)
            _write_atomically(part[2], "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        bar.update(len(chosen))
    bar.close()
    return _written(job, lines)


def _parts(job: Job, count: int) -> Iterator[tuple[int, int, Path]]:
    """First line, line after the last, and file of every part."""
    for start in range(0, count, PART):
        yield start, min(start + PART, count), job.out / _PARTS / f"{start // PART:06d}.jsonl"


def _begin(job: Job) -> None:
    """Note what is done in the folder, or see that it is the same as before."""
    if job.out.resolve() == job.corpus.resolve():
        raise CorpusError(f"the new corpus must have a folder of its own, but {job.out} is that of the old one.")
    note = job.out / _JOB
    if note.is_file():
        before = json.loads(note.read_text(encoding="utf-8"))
        if before != job.identity():
            raise CheckpointError(
                f"{job.out} must be gone on with by the same teacher, text and [distil] as it was begun with, but one "
                "of them is another; use another folder."
            )
    elif job.out.exists() and any(job.out.iterdir()):
        raise CorpusError(f"{job.out} must be empty or the beginning of a distillation, but it holds other files.")
    (job.out / _PARTS).mkdir(parents=True, exist_ok=True)
    _write_atomically(note, json.dumps(job.identity(), indent=1) + "\n")


def _write_atomically(path: Path, text: str) -> None:
    part = path.with_suffix(".partial")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _taught(job: Job, lines: Sequence[Line], report: CorpusReport) -> Iterator[Pair]:
    """What the teacher wrote, as raw pairs; the rest is counted."""
    for start, end, path in _parts(job, len(lines)):
        rows = [json.loads(row) for row in read_lines(path)]
        if len(rows) != end - start:
            raise CorpusError(f"{path} must hold {end - start} lines, but holds {len(rows)}; delete it and go on.")
        for line, row in zip(lines[start:end], rows, strict=True):
            report.read[line.origin] += 1
            if reason := row.get("dropped"):
                report.drop(reason, REASONS[reason], Pair(line.source, line.reference, line.origin))
            else:
                yield Pair(line.source, row["target"], line.origin)


def _written(job: Job, lines: Sequence[Line]) -> CorpusReport:
    recipe = job.corpus_recipe
    report = CorpusReport((recipe.source, recipe.target))
    pairs = list(Cleaner(recipe, report).clean(_taught(job, lines, report), split=False))
    if job.recipe.with_references:
        pairs += [Pair(line.source, line.reference, line.origin) for line in lines if line.reference]
    held_out = _held_out(job, report)
    watch = NearDuplicates((pair for rows in held_out.values() for pair in rows), recipe.corpus.near_duplicate)
    kept: list[Pair] = []
    most = len(lines) if job.recipe.with_references else 1
    for pair in unique(pairs, {line.origin: most for line in lines}):
        if leak := watch.find(pair):
            report.drop(leak, LEAKS[leak], pair)
        else:
            kept.append(pair)
    if not kept:
        raise CorpusError(f"a teacher must leave at least one pair to learn from, but that of {job.teacher} left none.")
    _write_sets(job, kept, held_out, report)
    return report


def _held_out(job: Job, report: CorpusReport) -> dict[str, list[Pair]]:
    """`test.NAME` and `dev.NAME` of the old corpus."""
    names = [name.removesuffix(f".{report.languages[0]}") for name in corpus_files(job.corpus)]
    found: dict[str, list[Pair]] = {}
    for name in dict.fromkeys(name for name in names if name.startswith(("test.", "dev."))):
        sides = [job.corpus / f"{name}.{language}" for language in report.languages]
        if all(side.is_file() for side in sides):
            texts = zip(*(read_lines(side) for side in sides), strict=True)
            found[name] = [Pair(*row, name.partition(".")[2]) for row in texts]
    return found


def _write_sets(job: Job, train: Sequence[Pair], held_out: dict[str, list[Pair]], report: CorpusReport) -> None:
    out = job.out
    clear_corpus(out, report.languages)
    for side, language in zip(("source", "target"), report.languages, strict=True):
        write_lines(out / f"train.{language}", (getattr(pair, side) for pair in train))
        for name in held_out:
            shutil.copyfile(job.corpus / f"{name}.{language}", out / f"{name}.{language}")
    write_lines(out / "train.origin", (pair.origin for pair in train))
    report.count_set("train", train)
    for name, pairs in held_out.items():
        report.count_set(name, pairs)
    if (vocabulary := job.corpus / "tokenizer.model").is_file():
        shutil.copyfile(vocabulary, out / vocabulary.name)
    teacher = Bundle.open(job.teacher, verify=False).manifest
    report.sources = _sources(job)
    report.notes += [
        f"The translations are those of {teacher.name} {teacher.version}, beam {job.recipe.beam_size}; the counts of "
        "sources.json are those of the corpus that it read."
    ]
    report.write(out)


def _sources(job: Job) -> list[dict[str, Any]]:
    """What the old corpus says of its parts, and an entry for each file of other text."""
    path = job.corpus / "sources.json"
    old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    more = []
    for file in job.sources:
        lines = sum(1 for _ in read_lines(file))
        about = {"source": file.name.partition(".")[0], "part": file.name, "licence": "not stated", "attribution": ""}
        more.append({**about, "training_pairs": lines})
    return [*old, *more]

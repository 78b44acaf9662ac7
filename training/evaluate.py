"""Scores of what will be served: the graphs of a bundle, through the same engine, on held-out text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from model.decode.batcher import decode_all
from model.decode.options import DecodeOptions
from model.decode.stepper import Stepper
from model.tokenizer import Tokenizer
from training.batches import read_pairs
from training.progress import progress
from training.scores import ScoreError, Scores, score


@dataclass(frozen=True)
class TestSet:
    """Lines and their reference translations."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    name: str
    pairs: Sequence[tuple[str, str]]

    @property
    def sources(self) -> list[str]:
        """The lines to translate."""
        return [source for source, _ in self.pairs]


@dataclass(frozen=True)
class Evaluation:
    """How a model did on one test set."""

    name: str
    scores: Scores
    outputs: tuple[str, ...]
    empty: int
    """Outputs without any text."""
    truncated: int
    """Outputs that the length limit ended."""
    refused: int
    """Lines that the engine would not take, such as one longer than the model's positions; they score as empty."""
    target_tokens: int
    seconds: float


@dataclass(frozen=True)
class Translations:
    """Lines translated, and what happened on the way."""

    texts: tuple[str, ...]
    truncated: int
    refused: int
    target_tokens: int
    """EOS counted."""


class Translator:
    """A stepper with its tokenizer and decoding options; translates lines as the service translates segments."""

    def __init__(self, stepper: Stepper, tokenizer: Tokenizer, options: DecodeOptions) -> None:
        self._stepper, self._tokenizer = stepper, tokenizer
        self._options = replace(options, repetition_guard=True)  # as the service has it

    def translate(self, lines: Sequence[str]) -> Translations:
        """The lines in their order; one that the engine refuses is empty and counted."""
        bar = progress(len(lines), "translating", "line")
        sources = [self._tokenizer.encode(line) for line in lines]
        found = decode_all(self._stepper, sources, self._options, progress=bar.update)
        bar.close()
        best = [finished.hypotheses[0] for finished in found if finished.error is None]
        texts = ("" if f.error is not None else self._tokenizer.decode(f.hypotheses[0].ids) for f in found)
        return Translations(
            texts=tuple(texts),
            truncated=sum(hypothesis.truncated for hypothesis in best),
            refused=len(found) - len(best),
            target_tokens=sum(len(hypothesis.ids) + 1 for hypothesis in best),
        )


def corpus_test_sets(corpus: Path, languages: tuple[str, str]) -> list[TestSet]:
    """Every `test.NAME` of a corpus."""
    source, target = languages
    return [
        TestSet(path.name.split(".")[1], read_pairs(path, path.with_suffix(f".{target}")))
        for path in sorted(corpus.glob(f"test.*.{source}"))
    ]


def folder_test_sets(folder: Path, languages: tuple[str, str]) -> list[TestSet]:
    """Every pair `NAME.SOURCE`, `NAME.TARGET` of a folder, such as newstest2013.en and newstest2013.de."""
    source, target = languages
    return [
        TestSet(path.stem, read_pairs(path, path.with_suffix(f".{target}")))
        for path in sorted(folder.glob(f"*.{source}"))
        if path.with_suffix(f".{target}").is_file()
    ]


def evaluate(translator: Translator, test_set: TestSet) -> Evaluation:
    """Translate and score one test set. Raises `ScoreError` when it is empty."""
    if not test_set.pairs:
        raise ScoreError(f"test set {test_set.name} must hold at least one pair, but is empty.")
    started = time.perf_counter()
    found = translator.translate(test_set.sources)
    seconds = time.perf_counter() - started
    return Evaluation(
        name=test_set.name,
        scores=score(found.texts, [reference for _, reference in test_set.pairs]),
        outputs=found.texts,
        empty=sum(not text.strip() for text in found.texts),
        truncated=found.truncated,
        refused=found.refused,
        target_tokens=found.target_tokens,
        seconds=round(seconds, 2),
    )


def table(evaluations: Sequence[Evaluation]) -> str:
    """Markdown: a row for each test set, the signatures below."""
    heads = ("test set", "sentences", "BLEU", "chrF", "brevity", "empty", "truncated", "refused")
    rows = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    for found in evaluations:
        scores = found.scores
        rows.append(
            f"| {found.name} | {scores.sentences:,} | {scores.bleu:.2f} | {scores.chrf:.2f} "
            f"| {scores.brevity_penalty:.3f} | {found.empty} | {found.truncated} | {found.refused} |"
        )
    signatures = {e.scores.bleu_signature for e in evaluations} | {e.scores.chrf_signature for e in evaluations}
    return "\n".join([*rows, "", *(f"`{signature}`  " for signature in sorted(signatures))])


def as_json(evaluations: Sequence[Evaluation]) -> Mapping[str, Mapping[str, object]]:
    """Scores and counts by test set, without the texts."""
    return {
        found.name: {
            **found.scores.to_dict(),
            "empty": found.empty,
            "truncated": found.truncated,
            "refused": found.refused,
            "target_tokens": found.target_tokens,
            "seconds": found.seconds,
        }
        for found in evaluations
    }

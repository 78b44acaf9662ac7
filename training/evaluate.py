"""Scores of what will be served: the graphs of a bundle, through the same engine, on held-out text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from model.carrying import Carrier, Sentence, is_language
from model.decode.batcher import decode_all
from model.decode.options import DecodeOptions
from model.decode.results import Finished
from model.decode.stepper import Stepper
from model.protection import Protector
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
    language: str = ""
    """What the references are in: what counts as a word depends on it."""

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
    carrying: int
    """Lines with numbers, URLs, placeholders, tags or the like."""
    carried: int
    """Those of them whose translations hold every one of these, exactly as often."""
    fragmented: int
    """Lines that were translated in fragments, because their translation lost something."""
    target_tokens: int
    seconds: float


@dataclass(frozen=True)
class Translations:
    """Lines translated, and what happened on the way."""

    texts: tuple[str, ...]
    truncated: int
    refused: int
    fragmented: int
    target_tokens: int
    """EOS counted."""


class Translator:
    """A stepper with its tokenizer and decoding options; translates lines as the service translates segments."""

    def __init__(self, stepper: Stepper, tokenizer: Tokenizer, options: DecodeOptions) -> None:
        self._stepper, self._carrier = stepper, Carrier(tokenizer)
        self._options = replace(options, repetition_guard=True, carry=tokenizer.sentinel_ids)  # as the service has it

    def translate(self, lines: Sequence[str]) -> Translations:
        """The lines in their order; one that the engine refuses is empty and counted, one without language is kept."""
        sentences = [self._carrier.sentence(self._carrier.protector.protect(line)) for line in lines]
        texts = [sentence.source for sentence in sentences]
        numbers = [number for number, sentence in enumerate(sentences) if is_language(sentence.text)]
        bar = progress(len(numbers), "translating", "line")
        found = self._decoded([sentences[number] for number in numbers], bar.update)
        bar.close()
        lost: list[int] = []
        for number, finished in zip(numbers, found, strict=True):
            written = self._written(finished, sentences[number])
            texts[number] = self._carrier.restored(written, sentences[number])
            if finished.error is None and not self._carrier.carries(written, sentences[number]):
                lost.append(number)
        again, truncated = self._in_fragments([sentences[number] for number in lost])
        for number, text in zip(lost, again, strict=True):
            texts[number] = text
        kept = (finished for number, finished in zip(numbers, found, strict=True) if number not in set(lost))
        best = [finished.hypotheses[0] for finished in found if finished.error is None]
        return Translations(
            texts=tuple(texts),
            truncated=truncated + sum(map(_truncated, kept)),
            refused=len(found) - len(best),
            fragmented=len(lost),
            target_tokens=sum(len(hypothesis.ids) + 1 for hypothesis in best),
        )

    def _decoded(self, sentences: Sequence[Sentence], tell: Callable[[int], object] | None = None) -> list[Finished]:
        sources = [self._carrier.encode(sentence) for sentence in sentences]
        return decode_all(self._stepper, sources, self._options, progress=tell)

    def _written(self, finished: Finished, sentence: Sentence) -> str:
        """What the network wrote, sentinels and all."""
        return "" if finished.error else self._carrier.decode(finished.hypotheses[0].ids, sentence)

    def _in_fragments(self, sentences: Sequence[Sentence]) -> tuple[list[str], int]:
        """Translations of sentences that are cut at what must be carried, and how many fragments are truncated."""
        parts = [list(self._carrier.fragments(sentence)) for sentence in sentences]
        fragments = list(dict.fromkeys(part for row in parts for part in row if isinstance(part, Sentence)))
        found = self._decoded(fragments)
        texts = {
            one: self._written(finished, one).strip() or one.source
            for one, finished in zip(fragments, found, strict=True)
        }
        joined = ["".join(part if isinstance(part, str) else texts[part] for part in row) for row in parts]
        return joined, sum(map(_truncated, found))


def _truncated(finished: Finished) -> bool:
    return finished.error is None and finished.hypotheses[0].truncated


def holds_exactly(source: str, output: str, protector: Protector) -> bool | None:
    """Whether `output` has every span of `source` exactly as often; None if there is none."""
    spans = {source[span.start : span.end] for span in protector.spans(source)}
    if not spans:
        return None
    patterns = [_alone(span) for span in spans]
    return all(len(pattern.findall(output)) == len(pattern.findall(source)) for pattern in patterns)


def _alone(span: str) -> re.Pattern[str]:
    """`span` where it is no part of a longer number or word."""
    before = r"(?<!\d)" if span[0].isdigit() else r"(?<!\w)" if span[0].isalpha() else ""
    after = r"(?!\d)" if span[-1].isdigit() else r"(?!\w)" if span[-1].isalpha() else ""
    return re.compile(before + re.escape(span) + after)


def corpus_test_sets(corpus: Path, languages: tuple[str, str]) -> list[TestSet]:
    """Every `test.NAME` of a corpus."""
    source, target = languages
    return [
        TestSet(path.name.split(".")[1], read_pairs(path, path.with_suffix(f".{target}")), target)
        for path in sorted(corpus.glob(f"test.*.{source}"))
    ]


def folder_test_sets(folder: Path, languages: tuple[str, str]) -> list[TestSet]:
    """Every pair `NAME.SOURCE`, `NAME.TARGET` of a folder, such as newstest2013.en and newstest2013.de.

    Raises `ScoreError` when there is none: who names a folder wants it scored.
    """
    source, target = languages
    found = [
        TestSet(path.stem, read_pairs(path, path.with_suffix(f".{target}")), target)
        for path in sorted(folder.glob(f"*.{source}"))
        if path.with_suffix(f".{target}").is_file()
    ]
    if not found:
        what = "has no such pair" if folder.is_dir() else "is no folder"
        raise ScoreError(f"a folder of test sets must hold NAME.{source} and NAME.{target}, but {folder} {what}.")
    return found


def evaluate(translator: Translator, test_set: TestSet) -> Evaluation:
    """Translate and score one test set. Raises `ScoreError` when it is empty."""
    if not test_set.pairs:
        raise ScoreError(f"test set {test_set.name} must hold at least one pair, but is empty.")
    started = time.perf_counter()
    found = translator.translate(test_set.sources)
    seconds = time.perf_counter() - started
    judged = (holds_exactly(*pair, Protector()) for pair in zip(test_set.sources, found.texts, strict=True))
    exact = [each for each in judged if each is not None]
    return Evaluation(
        name=test_set.name,
        scores=score(found.texts, [reference for _, reference in test_set.pairs], test_set.language),
        outputs=found.texts,
        empty=sum(not text.strip() for text in found.texts),
        truncated=found.truncated,
        refused=found.refused,
        carrying=len(exact),
        carried=sum(exact),
        fragmented=found.fragmented,
        target_tokens=found.target_tokens,
        seconds=round(seconds, 2),
    )


def table(evaluations: Sequence[Evaluation]) -> str:
    """Markdown: a row for each test set, the signatures below."""
    heads = ("test set", "sentences", "BLEU", "chrF", "brevity", "empty", "truncated", "refused", "carried")
    rows = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    for found in evaluations:
        scores = found.scores
        rows.append(
            f"| {found.name} | {scores.sentences:,} | {scores.bleu:.2f} | {scores.chrf:.2f} "
            f"| {scores.brevity_penalty:.3f} | {found.empty} | {found.truncated} | {found.refused} | {_share(found)} |"
        )
    signatures = {e.scores.bleu_signature for e in evaluations} | {e.scores.chrf_signature for e in evaluations}
    return "\n".join([*rows, "", *(f"`{signature}`  " for signature in sorted(signatures))])


def _share(found: Evaluation) -> str:
    return f"{100 * found.carried / found.carrying:.1f} % of {found.carrying:,}" if found.carrying else "–"


def as_json(evaluations: Sequence[Evaluation]) -> Mapping[str, Mapping[str, object]]:
    """Scores and counts by test set, without the texts."""
    return {
        found.name: {
            **found.scores.to_dict(),
            "empty": found.empty,
            "truncated": found.truncated,
            "refused": found.refused,
            "carrying": found.carrying,
            "carried": found.carried,
            "fragmented": found.fragmented,
            "target_tokens": found.target_tokens,
            "seconds": found.seconds,
        }
        for found in evaluations
    }

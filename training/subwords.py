"""Subwords: one SentencePiece vocabulary for both languages, and what it makes of the text."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from itertools import count as count_from
from pathlib import Path
from threading import Event, Thread
from typing import Literal

import sentencepiece as spm

from model.tokenizer import BOS_ID, EOS_ID, PAD_ID, SENTINELS, UNK_ID, Tokenizer, normalize
from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.progress import progress
from training.recipe import RecipeError

_TOO_LARGE = re.compile(r"Vocabulary size (?:is )?too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_SMALL = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")
_STEP = 128
"""Sizes that need no padding in the graphs are multiples of this."""
_FIXED_PIECES = 4 + 256 + len(SENTINELS)
"""Special symbols, bytes and sentinels."""
_THREADS = 2
_BYTES_PER_SECOND = 500_000
"""Text learnt from in a second on two cores; only for the estimate of the progress bar."""


@dataclass(frozen=True, kw_only=True)
class SubwordOptions:
    """How a vocabulary is trained."""

    kind: Literal["unigram", "bpe"] = "unigram"
    """`unigram` (Kudo, 2018), which `[fit] subword_sampling` wants, or `bpe` (Sennrich et al., 2016), the paper's."""
    sentinels: bool = True
    """False: no sentinels; nothing is carried through a translation then, all of it is text."""
    vocab_size: int = 8064
    """Pieces in all: 4 special ones, 256 bytes, what is learnt, and at the end 32 sentinels, which stand for what is
    carried through a translation (`model.protection`)."""
    shrink: bool = False
    """True: fewer pieces where the text holds not so many, in place of an error."""
    character_coverage: float = 0.9999
    """Share of the characters of the text that get a piece of their own; the rest is spelt in bytes."""
    max_lines: int = 0
    """Train on at most this many lines a language, evenly spaced; 0 takes all."""

    def __post_init__(self) -> None:
        if self.max_lines < 0:
            raise RecipeError(f"[tokenizer] max_lines must be at least 0, but is {self.max_lines}.")
        if not 0 < self.character_coverage <= 1:
            raise RecipeError(f"[tokenizer] character_coverage must be in (0, 1], but is {self.character_coverage}.")

    @property
    def reserved(self) -> int:
        """Pieces that are not learnt but put at the end."""
        return len(SENTINELS) if self.sentinels else 0


@dataclass(frozen=True)
class SubwordReport:
    """What a vocabulary makes of one file."""

    lines: int
    words: int
    """By white space."""
    tokens: int
    """Without EOS."""
    unknown: int
    """Tokens that are the unknown id: 0 with byte fallback, or something is wrong."""
    bytes: int
    """Tokens that spell a part of a character the vocabulary lacks."""
    longest: int
    """Most tokens of a line, without EOS."""
    over_128: int
    """Lines of more than 128 tokens."""

    @property
    def tokens_per_word(self) -> float:
        """Fertility: 1 if every word is a piece."""
        return self.tokens / max(self.words, 1)

    def __str__(self) -> str:
        share = 100 / max(self.tokens, 1)
        return (
            f"{self.lines:,} lines, {self.words:,} words, {self.tokens:,} tokens ({self.tokens_per_word:.2f} a word), "
            f"{self.unknown * share:.3f} % unknown, {self.bytes * share:.3f} % bytes, longest {self.longest}, "
            f"{self.over_128:,} lines over 128 tokens"
        )


def train_subwords(corpus: Path, out: Path, options: SubwordOptions | None = None) -> dict[str, SubwordReport]:
    """Train a vocabulary on `train.*` of the folder `corpus`, write it to the file `out`, and report on each file.

    Both languages share it. Text is normalised by `model.tokenizer.normalize`, and by nothing else: the model's own
    normalisation is the identity, so serving sees what training saw. The same input gives the same bytes. The report
    also goes to `out` with the suffix `.report.json`. Raises `CorpusError` if the corpus is not there or too small
    for the vocabulary, and then says how large that may be.
    """
    options = options or SubwordOptions()
    files = corpus_files(corpus)
    text = [file for name, file in files.items() if name.startswith("train.")]
    with _ticking(sum(file.stat().st_size for file in text) // _BYTES_PER_SECOND):
        model = _train(text, options)
        model = with_sentinels(model) if options.sentinels else model
    return _written(model, out, files)


def extend_subwords(vocabulary: Path, corpus: Path, out: Path) -> dict[str, SubwordReport]:
    """Write `vocabulary` with sentinels to the file `out`, and report on each file of the folder `corpus`.

    Every piece keeps its id, so a network that knows the vocabulary goes on knowing it. Raises `TokenizerError` for a
    file that is no vocabulary of the house, `CorpusError` for a corpus that is not there.
    """
    Tokenizer(vocabulary)  # refuses what is none
    return _written(with_sentinels(vocabulary.read_bytes()), out, corpus_files(corpus))


def with_sentinels(model: bytes) -> bytes:
    """A SentencePiece model with `SENTINELS` as its last pieces, each always one id; as it is if it has them.

    A model is a protobuf message: what is appended to its bytes is appended to its repeated field of pieces, and the
    size that its trainer notes is overwritten. Raises `CorpusError` if it learnt some of these characters as letters.
    """
    pieces = spm.SentencePieceProcessor(model_proto=model)
    there = sum(pieces.PieceToId(sentinel) != pieces.unk_id() for sentinel in SENTINELS)
    if there == len(SENTINELS):
        return model
    if there:
        raise CorpusError(f"a vocabulary must have all sentinels or none, but has {there}; take them from its text.")
    # sentencepiece_model.proto: ModelProto {pieces = 1, trainer_spec = 2}, TrainerSpec {vocab_size = 4},
    # SentencePiece {piece = 1, score = 2, type = 3}, where type 4 is USER_DEFINED.
    new = [
        _field(1, _field(1, sentinel.encode()) + b"\x15" + struct.pack("<f", 0.0) + b"\x18\x04")
        for sentinel in SENTINELS
    ]
    return b"".join([model, *new, _field(2, b"\x20" + _varint(pieces.GetPieceSize() + len(SENTINELS)))])


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the highest bit says that more come."""
    low = []
    while value > 0x7F:
        low.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*low, value])


def _written(model: bytes, out: Path, files: dict[str, Path]) -> dict[str, SubwordReport]:
    """Write a vocabulary and what it makes of `files`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    partial.write_bytes(model)
    partial.replace(out)
    reports = {name: inspect_subwords(out, read_lines(file)) for name, file in files.items()}
    report = {name: {**asdict(r), "tokens_per_word": round(r.tokens_per_word, 4)} for name, r in reports.items()}
    out.with_suffix(".report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return reports


def corpus_files(corpus: Path) -> dict[str, Path]:
    """`train.en`, `dev.help.de` … → path: the text files of a corpus folder, training first."""
    from_report = corpus / "report.json"
    if not from_report.is_file():
        raise CorpusError(f"{corpus} must be a finished corpus, but has no report.json; build it first.")
    report = json.loads(from_report.read_text(encoding="utf-8"))
    names = [f"{name}.{language}" for name in report["sets"] for language in report["languages"]]
    return {name: corpus / name for name in names}


@contextmanager
def _ticking(seconds: int) -> Iterator[None]:
    """A bar of about so many seconds: SentencePiece does not say how far it is."""
    done = Event()
    with progress(max(seconds, 1), "learning subwords, estimated", "s") as bar:

        def tick() -> None:
            while not done.wait(1.0):
                bar.update()

        thread = Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _train(files: Sequence[Path], options: SubwordOptions) -> bytes:
    try:
        return _learnt(files, options)
    except (RuntimeError, OSError) as error:
        largest = _largest(error, options)
        if largest and options.shrink:
            return _learnt(files, replace(options, vocab_size=largest))
        raise _explained(error, options) from error


def _learnt(files: Sequence[Path], options: SubwordOptions) -> bytes:
    # Written to memory: a file name would end up in the model.
    model = BytesIO()
    spm.SentencePieceTrainer.Train(
        sentence_iterator=_sentences(files, options.max_lines),
        model_writer=model,
        model_type=options.kind,
        vocab_size=options.vocab_size - options.reserved,
        character_coverage=options.character_coverage,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        pad_id=PAD_ID,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        unk_id=UNK_ID,
        # Sums of floats depend on how threads share the work, and the vocabulary on the sums.
        num_threads=_THREADS,
        minloglevel=2,
    )
    return model.getvalue()


def _largest(error: Exception, options: SubwordOptions) -> int | None:
    """The largest vocabulary that the text holds, if it was too small for the one that was asked for."""
    if not (match := _TOO_LARGE.search(str(error))):
        return None
    largest = int(match[1]) + options.reserved
    advised = largest - largest % _STEP
    return advised if advised > _FIXED_PIECES else largest


def _explained(error: Exception, options: SubwordOptions) -> CorpusError:
    """What to do about a training that SentencePiece refused."""
    asked = options.vocab_size
    if largest := _largest(error, options):
        return CorpusError(
            f"the corpus must be large enough for {asked} subwords, but is not; ask for {largest}, or for fewer where "
            f"there are no more ([tokenizer] shrink = true), or add text."
        )
    if match := _TOO_SMALL.search(str(error)):
        return CorpusError(
            f"vocab_size must be at least {int(match[1]) + options.reserved}, one for each special symbol, byte, "
            f"letter and sentinel, but is {asked}."
        )
    return CorpusError(f"SentencePiece could not train {asked} subwords: {error}")


def _sentences(files: Iterable[Path], max_lines: int) -> Iterator[str]:
    for file in files:
        count = sum(1 for _ in read_lines(file)) if max_lines else 0
        step = count / max_lines if max_lines and max_lines < count else 1
        wanted = (int(i * step) for i in count_from(0))
        awaited = next(wanted)
        for number, line in enumerate(read_lines(file)):  # a corpus may be larger than the memory
            if number == awaited:
                awaited = next(wanted)
                yield normalize(line)


def inspect_subwords(vocabulary: Path, lines: Iterable[str]) -> SubwordReport:
    """Count what the vocabulary in the file `vocabulary` makes of `lines`."""
    tokenizer = Tokenizer(vocabulary)
    pieces = spm.SentencePieceProcessor(model_file=str(vocabulary))
    byte_ids = {i for i in range(tokenizer.vocab_size) if pieces.IsByte(i)}
    counts = dict.fromkeys(("lines", "words", "tokens", "unknown", "bytes", "longest", "over_128"), 0)
    for line in lines:
        ids = tokenizer.encode(line)[:-1]
        counts["lines"] += 1
        counts["words"] += len(line.split())
        counts["tokens"] += len(ids)
        counts["unknown"] += ids.count(UNK_ID)
        counts["bytes"] += sum(i in byte_ids for i in ids)
        counts["longest"] = max(counts["longest"], len(ids))
        counts["over_128"] += len(ids) > 128
    return SubwordReport(**counts)

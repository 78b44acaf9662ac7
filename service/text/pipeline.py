"""From texts to segments in ids, and from translated ids back to texts with everything else in its place.

White space *inside* a sentence is normalised, always: every run of it reaches the model as one space. White space
around sentences, and all that `service.text.segments` keeps, comes back byte for byte. A model has no say in either:
line ends, control characters and outer white space that it makes up are taken out of its sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from model.spans import Span
from model.tokenizer import normalize
from service.errors import Refusal, refusal_of
from service.jobs import SegmentResult
from service.text.alignment import Link, links, same, source_side, target_side
from service.text.segments import CONTROLS, SEAM, Piece, refine, split

WITHOUT_SPACES = frozenset({"bo", "ja", "km", "lo", "my", "th", "zh"})
"""Languages that put no space between sentences."""


_CONTROLS = re.compile(f"[{CONTROLS}]+")
_DAMAGE = re.compile("\ufffd+")
_SPACES = re.compile(r"\s+")


class TextCodec(Protocol):
    """The tokenizer, as far as the pipeline needs it."""

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, EOS last."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own name of each id."""
        ...

    def source_spans(self, text: str) -> list[Span]:
        """Where in the normalised `text` each id of `encode(text)` stands, but for EOS."""
        ...

    def target_spans(self, ids: Sequence[int]) -> list[Span]:
        """Where in `decode(ids)` each of `ids` stands."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """Texts, taken apart."""

    segments: tuple[tuple[int, ...], ...]
    """Source ids of each different segment, EOS included: what the engine gets. Equal segments are sent once."""
    layouts: tuple[tuple[str | int, ...], ...]
    """For each text, its parts in order: a string that is kept, or the index of a segment."""
    sources: tuple[str, ...]
    """The text of each segment."""
    texts: tuple[str, ...] = ()
    """What was taken apart."""

    @property
    def source_tokens(self) -> int:
        """Tokens of all texts, those of equal segments counted each time."""
        return sum(len(self.segments[part]) for layout in self.layouts for part in layout if isinstance(part, int))

    def segments_of(self, text: int) -> list[int]:
        """Indices of the segments of a text, in its order."""
        return [part for part in self.layouts[text] if isinstance(part, int)]


@dataclass(frozen=True, slots=True)
class Variant:
    """A text put together from the hypotheses of one rank."""

    text: str
    score: float
    """Sum of the scores of its segments' hypotheses."""
    log_prob: float
    """The same of their log-probabilities: that of the whole, were the segments independent."""
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """One text, put together again."""

    text: str
    """Empty if refused."""
    truncated: bool
    """True if the length limit ended a segment of it."""
    target_tokens: int
    refusal: Refusal | None = None
    """Why there is no text: a segment of it was refused."""
    guarded: bool = False
    """True if a segment of it went round in circles and was translated again."""
    alignment: tuple[Link, ...] = ()
    """Left to those who want it: see `Pipeline.alignment`."""


@dataclass(slots=True)
class _Collector:
    """Numbers sentences, equal ones alike."""

    indices: dict[str, int] = field(default_factory=dict)

    def index(self, sentence: str) -> int:
        return self.indices.setdefault(" ".join(sentence.split()), len(self.indices))


class Pipeline:
    """The text side of one direction of translation. Safe to share between threads."""

    def __init__(self, tokenizer: TextCodec, max_source_tokens: int, source: str, target: str) -> None:
        """From language `source` into `target`, in segments of at most `max_source_tokens` ids, EOS included."""
        self._tokenizer = tokenizer
        self._limit = max_source_tokens
        self._source, self._target = source.partition("-")[0], target.partition("-")[0]
        self._seam = "" if self._target in WITHOUT_SPACES else " "

    def prepare(self, texts: Iterable[str]) -> Prepared:
        """Take `texts` apart. The inverse of `restore`, with a model's work between them."""
        collector = _Collector()
        texts = tuple(texts)
        layouts = tuple(self._layout(text, collector) for text in texts)
        sources = tuple(collector.indices)
        return Prepared(tuple(tuple(self._tokenizer.encode(source)) for source in sources), layouts, sources, texts)

    def restore(self, prepared: Prepared, results: Sequence[SegmentResult]) -> list[Restored]:
        """Put the texts together again from `results`, which follow `prepared.segments`."""
        texts = [self._sentence(result.ids, source) for result, source in zip(results, prepared.sources, strict=True)]
        return [self._restored(layout, results, texts) for layout in prepared.layouts]

    def variants(self, prepared: Prepared, results: Sequence[SegmentResult], text: int, most: int) -> list[Variant]:
        """The `most` best translations of a text that was not refused, best first; fewer where there are no more.

        The i-th is made of the i-th hypothesis of every segment; a segment that has fewer gives its last one. The first
        is what `restore` gives. Different ids can spell the same text: it is given once, with its best score.
        """
        used = prepared.segments_of(text)
        count = max((len(results[part].hypotheses) for part in used), default=1)
        found: dict[str, Variant] = {}
        for rank in range(max(1, min(most, count))):
            variant = self._variant(prepared, results, text, rank)
            found.setdefault(variant.text, variant)
        return list(found.values())

    def tokens(
        self, prepared: Prepared, results: Sequence[SegmentResult], text: int, eos: str = "</s>"
    ) -> list[tuple[str, float]]:
        """The tokens of the best translation of a text, with their log-probabilities; a segment ends in `eos`."""
        found: list[tuple[str, float]] = []
        for part in prepared.segments_of(text):
            best = results[part].best
            names = [*self._tokenizer.pieces(best.ids), *([] if best.truncated else [eos])]
            found += zip(names, best.token_log_probs, strict=True)
        return found

    def alignment(self, prepared: Prepared, results: Sequence[SegmentResult], text: int, rank: int = 0) -> list[Link]:
        """Which words of a text became which of its translation of `rank`, in the order of that; needs attention.

        What was kept is linked with itself.
        """
        found: list[Link] = []
        here = there = 0
        for piece, part in zip(self._pieces(prepared.texts[text]), prepared.layouts[text], strict=True):
            if isinstance(part, str):
                made, inner = part, same(part, self._source not in WITHOUT_SPACES) if piece.text else []
            else:
                best = results[part].ranked(rank)
                made = self._sentence(best.ids, prepared.sources[part])
                inner = self._links(piece.text, best.ids, best.attention)
            found += [link.moved(here, there) for link in inner]
            here, there = here + len(piece.text), there + len(made)
        return found

    def target_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a piece of a translation, without EOS."""
        return tuple(self._tokenizer.encode(" ".join(text.split()))[:-1])

    def _variant(self, prepared: Prepared, results: Sequence[SegmentResult], text: int, rank: int) -> Variant:
        ranked = {part: results[part].ranked(rank) for part in prepared.segments_of(text)}
        # An equal segment that comes twice counts twice.
        used = [ranked[part] for part in prepared.segments_of(text)]
        return Variant(
            "".join(
                part if isinstance(part, str) else self._sentence(ranked[part].ids, prepared.sources[part])
                for part in prepared.layouts[text]
            ),
            sum(hypothesis.score for hypothesis in used),
            sum(hypothesis.log_prob for hypothesis in used),
            rank,
        )

    def _links(self, sentence: str, ids: Sequence[int], attention: Sequence[Sequence[float]]) -> list[Link]:
        codec = self._tokenizer
        tokens, spaced = codec.source_spans(_one_line(sentence)), self._source not in WITHOUT_SPACES
        source = source_side(sentence, lambda part: normalize(_one_line(part)), tokens, spaced)
        tokens, spaced = codec.target_spans(ids), self._target not in WITHOUT_SPACES
        target = target_side(codec.decode(ids), _mended, tokens, spaced)
        return links(source, target, attention)

    def _sentence(self, ids: Sequence[int], source: str) -> str:
        # An empty translation would drop the sentence in silence; its source stands in.
        return _clean(self._tokenizer.decode(ids)) or source

    def _pieces(self, text: str) -> list[Piece]:
        return [part for piece in split(text, self._source) for part in refine(piece, self._cost, self._limit)]

    def _layout(self, text: str, collector: _Collector) -> tuple[str | int, ...]:
        pieces = self._pieces(text)
        return tuple(
            collector.index(piece.text) if piece.translate else self._kept(pieces, position)
            for position, piece in enumerate(pieces)
        )

    def _kept(self, pieces: list[Piece], position: int) -> str:
        if pieces[position] != SEAM:
            return pieces[position].text
        neighbours = pieces[position - 1 : position + 2 : 2]
        return self._seam if all(piece.translate for piece in neighbours) else ""

    def _cost(self, sentence: str) -> int:
        return len(self._tokenizer.encode(" ".join(sentence.split())))

    def _restored(self, layout: tuple[str | int, ...], results: Sequence[SegmentResult], texts: list[str]) -> Restored:
        used = [results[part] for part in layout if isinstance(part, int)]
        for result in used:
            if result.refusal is not None:
                return Restored("", False, 0, refusal_of(result.refusal))
        return Restored(
            "".join(part if isinstance(part, str) else texts[part] for part in layout),
            any(result.truncated for result in used),
            sum(len(result.ids) for result in used),
            guarded=any(result.guarded for result in used),
        )


def _clean(sentence: str) -> str:
    """A model's sentence without what it has no say in, and with one sign for each run of damaged bytes."""
    return _mended(sentence).strip()


def _mended(sentence: str) -> str:
    return _DAMAGE.sub("\ufffd", _CONTROLS.sub(" ", sentence))


def _one_line(sentence: str) -> str:
    """A sentence with one space for each run of white space."""
    return _SPACES.sub(" ", sentence)

"""From texts to segments in ids, and from translated ids back to texts with everything else in its place.

White space *inside* a sentence is normalised, always: every run of it reaches the model as one space. White space
around sentences, and all that `service.text.segments` keeps, comes back byte for byte. A model has no say in either:
line ends, control characters and outer white space that it makes up are taken out of its sentences.

What is no language inside a sentence is carried through its translation by `model.carrying`. A sentence whose
translation lost some of it is translated `again`, in fragments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from model.carrying import Carrier, Codec, Sentence, is_language
from model.protection import Protected, restore
from model.spans import Span
from model.tokenizer import normalize
from service.errors import Refusal, refusal_of
from service.jobs import SegmentResult
from service.text.alignment import Link, Part, Tokens, align, source_tokens, target_tokens
from service.text.segments import CONTROLS, SEAM, Piece, refine, split, trimmed

WITHOUT_SPACES = frozenset({"bo", "ja", "km", "lo", "my", "th", "zh"})
"""Languages that put no space between sentences."""


_CONTROLS = re.compile(f"[{CONTROLS}]+")
_DAMAGE = re.compile("\ufffd+")


class TextCodec(Codec, Protocol):
    """The tokenizer, as far as the pipeline needs it."""

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
    sentences: tuple[Sentence, ...]
    """What the segments are the ids of."""
    texts: tuple[str, ...] = ()
    """What was taken apart."""
    fragmented: frozenset[int] = frozenset()
    """Texts of which a sentence is now in fragments."""
    given_up: int = 0
    """Segments that no text uses any more, for they lost what must be carried."""

    @property
    def source_tokens(self) -> int:
        """Tokens of all texts, those of equal segments counted each time."""
        return sum(len(self.segments[part]) for layout in self.layouts for part in layout if isinstance(part, int))

    def segments_of(self, text: int) -> list[int]:
        """Indices of the segments of a text, in its order."""
        return [part for part in self.layouts[text] if isinstance(part, int)]

    @property
    def beginnings(self) -> frozenset[int]:
        """The segments that are the first fragments of sentences."""
        return frozenset(index for index, sentence in enumerate(self.sentences) if sentence.beginning)


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
    """True if a segment of it went round in circles, or on and on, and was translated again."""
    fragmented: bool = False
    """True if a sentence of it was translated in fragments, lest something be lost that must be carried."""
    alignment: tuple[Link, ...] = ()
    """Left to those who want it: see `Pipeline.alignment`."""


@dataclass(slots=True)
class _Collector:
    """Numbers sentences, equal ones alike."""

    indices: dict[Sentence, int] = field(default_factory=dict)

    def index(self, sentence: Sentence) -> int:
        return self.indices.setdefault(sentence, len(self.indices))


class Pipeline:
    """The text side of one direction of translation. Safe to share between threads."""

    def __init__(self, tokenizer: TextCodec, max_source_tokens: int, source: str, target: str) -> None:
        """From language `source` into `target`, in segments of at most `max_source_tokens` ids, EOS included."""
        self._tokenizer = tokenizer
        self._carrier = Carrier(tokenizer)
        self._limit = max_source_tokens
        self._source, self._target = source.partition("-")[0], target.partition("-")[0]
        self._seam = "" if self._target in WITHOUT_SPACES else " "

    def carries_beside(self, prefix: str | None) -> bool:
        """False for a prefix that holds what would be carried; True without one."""
        return not (prefix and self._carrier.protector.spans(prefix))

    def prepare(self, texts: Iterable[str], prefix: str | None = None) -> Prepared:
        """Take `texts` apart. The inverse of `restore`, with a model's work between them.

        With a `prefix` that holds itself what would be carried, nothing is: it would come twice.
        """
        sentinels = self.carries_beside(prefix)
        collector = _Collector()
        texts = tuple(texts)
        layouts = tuple(self._layout(text, collector, sentinels) for text in texts)
        return replace(self._prepared(layouts, collector), texts=texts)

    @property
    def carry(self) -> tuple[int, ...]:
        """The ids that a search must carry: `DecodeOptions.carry`."""
        return self._carrier.ids

    def again(self, prepared: Prepared, results: Sequence[SegmentResult]) -> Prepared | None:
        """The same texts with those sentences in fragments whose translation lost something; None if nothing is lost.

        Its first segments are those of `prepared`; only those behind them are to be translated.
        """
        lost = {index for index, result in enumerate(results) if not self._carries(result.ids, prepared, index, result)}
        if not lost:
            return None
        collector = _Collector({sentence: index for index, sentence in enumerate(prepared.sentences)})
        cut = {index: self._in_fragments(prepared.sentences[index], collector) for index in lost}
        layouts = tuple(
            tuple(new for part in layout for new in (cut[part] if isinstance(part, int) and part in cut else (part,)))
            for layout in prepared.layouts
        )
        found = self._prepared(layouts, collector, prepared.segments)
        texts = frozenset(text for text in range(len(layouts)) if not lost.isdisjoint(prepared.segments_of(text)))
        return replace(found, texts=prepared.texts, fragmented=texts, given_up=len(lost))

    def restore(self, prepared: Prepared, results: Sequence[SegmentResult]) -> list[Restored]:
        """Put the texts together again from `results`, which follow `prepared.segments`."""
        texts = [self._sentence(r.ids, sentence) for r, sentence in zip(results, prepared.sentences, strict=True)]
        return [
            replace(self._restored(layout, results, texts), fragmented=text in prepared.fragmented)
            for text, layout in enumerate(prepared.layouts)
        ]

    def variants(self, prepared: Prepared, results: Sequence[SegmentResult], text: int, most: int) -> list[Variant]:
        """The `most` best translations of a text that was not refused, best first; fewer where there are no more.

        The i-th is made of the i-th hypothesis of every segment; a segment that has fewer gives its last one. The first
        is what `restore` gives. Different ids can spell the same text: it is given once, with its best score. One that
        lost what must be carried is left out.
        """
        used = prepared.segments_of(text)
        count = max((len(results[part].hypotheses) for part in used), default=1)
        found: dict[str, Variant] = {}
        for rank in range(max(1, min(most, count))):
            if rank and not all(self._carries(results[i].ranked(rank).ids, prepared, i, results[i]) for i in used):
                continue
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
            spans = prepared.sentences[part].spans
            names = [restore(name, spans) for name in self._tokenizer.pieces(best.ids)]
            names += [] if best.truncated else [eos]
            found += zip(names, best.token_log_probs, strict=True)
        return found

    def alignment(self, prepared: Prepared, results: Sequence[SegmentResult], text: int, rank: int = 0) -> list[Link]:
        """Which words of a text became which of its translation of `rank`, in the order of that; needs attention.

        What was kept is linked with itself.
        """
        parts: list[Part] = []
        for part in prepared.layouts[text]:
            if isinstance(part, str):
                parts.append(Part(part, part))
                continue
            best, sentence = results[part].ranked(rank), prepared.sentences[part]
            parts.append(self._traced(sentence, best.ids, best.attention))
        spaced = (self._source not in WITHOUT_SPACES, self._target not in WITHOUT_SPACES)
        return align(prepared.texts[text], parts, self._carrier.protector, spaced)

    def target_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a piece of a translation, without EOS."""
        return tuple(self._tokenizer.encode(" ".join(text.split()))[:-1])

    def _variant(self, prepared: Prepared, results: Sequence[SegmentResult], text: int, rank: int) -> Variant:
        ranked = {part: results[part].ranked(rank) for part in prepared.segments_of(text)}
        # An equal segment that comes twice counts twice.
        used = [ranked[part] for part in prepared.segments_of(text)]
        return Variant(
            "".join(
                part if isinstance(part, str) else self._sentence(ranked[part].ids, prepared.sentences[part])
                for part in prepared.layouts[text]
            ),
            sum(hypothesis.score for hypothesis in used),
            sum(hypothesis.log_prob for hypothesis in used),
            rank,
        )

    def _traced(self, sentence: Sentence, ids: Sequence[int], attention: Sequence[Sequence[float]]) -> Part:
        """A sentence and its translation, as an alignment wants them."""
        codec, carried = self._tokenizer, sentence.spans if sentence.sentinels else ()
        source, written = self._carrier.read(sentence), _clean(self._carrier.decode(ids, sentence))
        if not written:
            return Part(sentence.source, sentence.source)
        return Part(
            sentence.source,
            self._carrier.restored(written, sentence),
            Tokens(
                source_tokens(normalize(source), codec.source_spans(source), carried),
                target_tokens(codec.decode(ids), _mended, written, codec.target_spans(ids), carried),
                attention,
            ),
        )

    def _sentence(self, ids: Sequence[int], sentence: Sentence) -> str:
        # An empty translation would drop the sentence in silence; its source stands in.
        written = _clean(self._carrier.decode(ids, sentence))
        return self._carrier.restored(written, sentence) if written else sentence.source

    def _carries(self, ids: Sequence[int], prepared: Prepared, index: int, result: SegmentResult) -> bool:
        sentence = prepared.sentences[index]
        return result.refusal is not None or self._carrier.carries(self._carrier.decode(ids, sentence), sentence)

    def _in_fragments(self, sentence: Sentence, collector: _Collector) -> list[str | int]:
        parts = self._carrier.fragments(sentence)
        return [part if isinstance(part, str) else collector.index(part) for part in parts]

    def _prepared(
        self, layouts: tuple[tuple[str | int, ...], ...], collector: _Collector, known: tuple[tuple[int, ...], ...] = ()
    ) -> Prepared:
        sentences = tuple(collector.indices)
        segments = tuple(tuple(self._carrier.encode(sentence)) for sentence in sentences[len(known) :])
        return Prepared((*known, *segments), layouts, sentences)

    def _layout(self, text: str, collector: _Collector, sentinels: bool) -> tuple[str | int, ...]:
        spans = self._carrier.protector.spans(text)
        parts = [
            part
            for piece in split(text, self._source, spans)
            for part in (self._parts(piece, sentinels, bool(spans)) if piece.translate else (piece,))
        ]
        return tuple(
            collector.index(part) if isinstance(part, Sentence) else self._kept(parts, position)
            for position, part in enumerate(parts)
        )

    def _parts(self, piece: Piece, sentinels: bool, carrying: bool) -> Iterator[Piece | Sentence]:
        """The sentences that a piece of a text is, and what stands between them; none if it holds no language."""
        if not carrying:
            yield from self._refined(piece, (), sentinels)
            return
        for protected in self._carrier.protector.chunks(piece.text):
            for part in trimmed(protected.text):
                yield from self._refined(part, protected.spans, sentinels)

    def _refined(self, piece: Piece, spans: Sequence[str], sentinels: bool) -> Iterator[Piece | Sentence]:
        def sentence(text: str) -> Sentence:
            return self._carrier.sentence(Protected(text, tuple(spans)), sentinels=sentinels)

        def cost(text: str) -> int:
            return len(self._carrier.encode(sentence(text)))

        for part in refine(piece, cost, self._limit):
            if part.translate and is_language(part.text):
                yield sentence(part.text)
            else:
                yield part if part == SEAM else Piece(restore(part.text, spans), False)

    def _kept(self, parts: list[Piece | Sentence], position: int) -> str:
        part = parts[position]
        if isinstance(part, Piece) and part != SEAM:
            return part.text
        neighbours = parts[position - 1 : position + 2 : 2]
        return self._seam if all(isinstance(neighbour, Sentence) for neighbour in neighbours) else ""

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

"""What of a sentence a network reads, and how what is carried gets back into its translation.

Where the vocabulary has sentinels, a network reads them in the place of spans; where it has none, the text as it is.
Either way a translation is looked at afterwards: one that lost or doubled a span is given up, and the sentence is
translated again in *fragments*, the stretches between its spans, with the spans themselves put in as they are. So
everything is carried, always; sentinels only save the context that fragments lack.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from model.protection import Protected, Protector, carried, renumbered, restore
from model.tokenizer import normalize

_SENTINEL_OR_TEXT = re.compile("[\ue000-\ue01f]|[^\ue000-\ue01f]+")
_CORE = re.compile(r"\w(?:.*\w)?", re.DOTALL)
_MARKUP_ENDS = (">", "*", "~", ")")
_GLUED = re.compile(r"\w*")


class Codec(Protocol):
    """The tokenizer, as far as carrying needs it."""

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        """Ids of the sentinels, or none."""
        ...

    @property
    def characters(self) -> Collection[str] | None:
        """The characters that the vocabulary has pieces for; None for all."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, EOS last."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`."""
        ...


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is translated at once. Outside its spans every run of white space is one space."""

    text: str
    """With sentinels in the place of spans, whether the network reads those or not."""
    spans: tuple[str, ...] = ()
    sentinels: bool = False
    """True if the network reads sentinels."""
    fragment: bool = False
    """True if it is a stretch between spans, cut out of a longer sentence."""
    beginning: bool = False
    """True for the first such stretch: what a translation is to begin with is for it alone."""

    @property
    def source(self) -> str:
        """As the caller wrote it."""
        return restore(self.text, self.spans)


class Carrier:
    """Sentences to ids and back, for one vocabulary. Safe to share between threads."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.protector = Protector(codec.characters)
        self.ids = codec.sentinel_ids
        """What `DecodeOptions.carry` should hold: the ids of all sentinels, or none."""

    def sentence(self, protected: Protected, *, sentinels: bool = True) -> Sentence:
        """A stretch of a text, in which there may be any of the sentinels, as a sentence of its own."""
        text, spans = renumbered(*protected)
        spans = tuple(map(_spelt, spans))
        return Sentence(" ".join(text.split()), spans, sentinels and bool(self.ids) and bool(spans))

    def read(self, sentence: Sentence) -> str:
        """What the network reads, as text."""
        return sentence.text if sentence.sentinels else " ".join(sentence.source.split())

    def encode(self, sentence: Sentence) -> list[int]:
        """What the network reads, EOS last."""
        return self._codec.encode(self.read(sentence))

    def decode(self, ids: Sequence[int], sentence: Sentence) -> str:
        """What the network wrote, with sentinels in the place of spans if it read such."""
        text = self._codec.decode(ids)
        # Nothing told the network that a fragment goes on.
        return text.rstrip().removesuffix(".") if sentence.fragment else text

    def restored(self, written: str, sentence: Sentence) -> str:
        """What `decode` gave, with its spans."""
        return restore(written, sentence.spans) if sentence.sentinels else written

    def carries(self, written: str, sentence: Sentence) -> bool:
        """Whether what `decode` gave holds every span of the sentence exactly as often."""
        if not sentence.spans:
            return True
        if sentence.sentinels:
            return carried(written, len(sentence.spans))
        found = Counter(written[span.start : span.end] for span in self.protector.spans(written))
        return found == Counter(sentence.spans)

    def fragments(self, sentence: Sentence) -> Iterator[str | Sentence]:
        """The sentence cut at its spans: what stays as it is, and what is translated, in their order.

        Punctuation and white space at the edges of a fragment stay, and so do letters that cling to a span which is no
        markup, such as those of "20th"; what has no letters is not translated.
        """
        clings, beginning = False, True
        for match in _SENTINEL_OR_TEXT.finditer(sentence.text):
            stretch = restore(match.group(), sentence.spans)
            if match.group() != stretch:
                clings = not stretch.endswith(_MARKUP_ENDS)
                yield stretch
                continue
            start = _GLUED.match(stretch).end() if clings else 0  # type: ignore[union-attr]  # it matches nothing, too
            core = _CORE.search(stretch, start)
            if core is None or not any(map(str.isalpha, core.group())):
                yield stretch
                continue
            if core.start():
                yield stretch[: core.start()]
            yield Sentence(core.group(), fragment=True, beginning=beginning)
            beginning = False
            if stretch[core.end() :]:
                yield stretch[core.end() :]


def _spelt(span: str) -> str:
    """A span; a foreign word in the normal form, so that it comes out alike however it was typed."""
    normal = normalize(span)
    return normal if normal.isalpha() else span


def is_language(text: str) -> bool:
    """Whether there is anything to translate in a text with sentinels: a letter outside its spans."""
    return any(map(str.isalpha, text))

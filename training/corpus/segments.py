"""One pair of texts into pairs of paragraphs, and those into pairs of sentences, where the two sides agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from training.corpus.pair import Pair

_BLANK_LINE = re.compile(r"\n[ \t]*\n\s*")
_SENTENCE_END = re.compile(r"[.!?]['\"”’“»)]*\s+(?=[\"'“„»(]?[^\W\d_a-zäöüß])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Za-z]|bzw|usw|etc|evtl|ggf|ca|Nr|No|Dr|Mr|Mrs|Ms|St|vs|vgl|inkl|max|min|approx|Bsp|Abb|engl)|\w\.\w+)\.$",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d+")


def split_paragraphs(pair: Pair) -> Iterator[Pair]:
    """Pairs of what blank lines separate, if both sides have equally many; otherwise `pair` itself."""
    sources = _BLANK_LINE.split(pair.source.strip())
    targets = _BLANK_LINE.split(pair.target.strip())
    if len(sources) != len(targets) or len(sources) == 1:
        yield pair
        return
    for source, target in zip(sources, targets, strict=True):
        yield replace(pair, source=source, target=target)


def split_sentences(pair: Pair) -> Iterator[Pair]:
    """Pairs of single sentences, if both sides have equally many that match in length, ending and numbers.

    An abbreviation cuts one side more often than the other, so the counts differ and the pair stays whole.
    """
    sources, targets = _sentences(pair.source), _sentences(pair.target)
    if len(sources) == 1 or len(sources) != len(targets):
        yield pair
        return
    matched = list(zip(sources, targets, strict=True))
    if not all(_alike(source, target) for source, target in matched):
        yield pair
        return
    for source, target in matched:
        yield replace(pair, source=source, target=target)


def _sentences(text: str) -> list[str]:
    ends = (match.end() for match in _SENTENCE_END.finditer(text))
    cuts = [0, *(end for end in ends if not _ABBREVIATION.search(text[:end].rstrip())), len(text)]
    return [text[start:end].strip() for start, end in pairwise(cuts) if text[start:end].strip()] or [text]


def _alike(source: str, target: str) -> bool:
    long, short = max(len(source), len(target)) + 10, min(len(source), len(target)) + 10
    ends_alike = (source[-1] in ".!?") == (target[-1] in ".!?")
    return long <= 2.2 * short and ends_alike and sorted(_NUMBER.findall(source)) == sorted(_NUMBER.findall(target))

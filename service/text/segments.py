"""Text to pieces and back: which parts are sentences to translate, and what stands between them.

    join(split(text, language)) == text        for every text

The rules, in their order:

1. Control characters are walls: line ends of every kind, tabs (between the cells of a table), NUL and the like. They
   come back byte for byte, so lines and columns stay what they were. A sentence wrapped over two lines is two pieces.
2. Emoji between sentences are walls too, and are kept. One inside a sentence ("I 💚 it") stays there.
3. At the start of a line, markers are kept: "## ", "> ", "- ", "* [x] ", "1. ", "a) ".
4. What is left is cut after sentences. A full stop ends one if white space follows, and then no lower-case letter; not
   after an abbreviation, an initial, or (where they are written so) an ordinal. Chinese and Japanese full stops need no
   white space.
5. White space around a sentence is kept apart from it, byte for byte. Inside a sentence it is the pipeline's business.
6. No cut falls into what is carried through a translation (`model.protection`), such as a URL or `<a title="x. Y">`.
7. A piece without any letter ("12345", "-", "…", "?!") is not language and is kept.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from model.protection import Span
from model.protection_patterns import EMOJI
from service.text.abbreviations import BEFORE_ANYTHING, BEFORE_NUMBERS, DATE_WORDS, MAY_END, ORDINALS


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text. An empty one is a seam: sentences meet there without white space, as Chinese ones do."""

    text: str
    translate: bool
    """False: it comes back as it is."""


SEAM = Piece("", False)

CONTROLS = "\x00-\x1f\x7f\x85\u2028\u2029"
"""Of a character class: line ends, tabs, and what nobody can see."""
_LINE_ENDS = frozenset("\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029")
_WALL = re.compile(f"(?:[{CONTROLS}]|{EMOJI})+")
_CONTROL = re.compile(f"[{CONTROLS}]")
_WORD_BEFORE = re.compile(r"[\w,] ?\Z")
_WORD_AFTER = re.compile(r" ?(\w)")

_MARKER = re.compile(r"(?:#{1,6}|>|[-*+•‣▪◦–—·](?: \[[ xX]\])?|\(?\d{1,3}\)|\d{1,3}\.|\(?[a-z]\))\s+")
_ORDINAL = re.compile(r"\d{1,3}\.\s+(\w+)")

# Runs are taken whole (`++`) and only from their start (`(?<!…)`), so that no text takes quadratic time.
_END = re.compile(
    r"""(?<![.!?…؟۔।॥։])(?P<stop>[.!?…؟۔।॥։]++)(?:["'”’»«›‹“)\]}*_]|\[\d{1,3}\])*+\s++(?=\S)"""
    r"""|(?:[。！？｡]|．(?!\d))+[”’」』）】》〉］"')]*"""
)
_BEFORE_WORD = re.compile(r"""["'“”„‚‘’«»‹›¿¡*_–—\s-]*""")
_BEFORE_WORD_OR_BRACKET = re.compile(r"""["'“”„‚‘’«»‹›¿¡*_–—\s(\[{-]*""")
_LAST_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*\Z")
_LONGEST_ABBREVIATION = 40
"""Characters before a full stop that are looked at."""

_CLAUSE = re.compile(r"(?<=[,;:，、；：])\s+|(?<=[，、；：])|(?<!\s)\s++(?=[–—(])")
_SPACE = re.compile(r"\s+")
_NO_SPACE_NEEDED = re.compile(r"[。！？｡．，、；：][”’」』）】》〉］\"')]*\Z")


def split(text: str, language: str, spans: Sequence[Span] = ()) -> list[Piece]:
    """The pieces of `text`, which is in `language` (a code such as "en"; an unknown one gets the rules for all).

    `spans` are what is carried, in order; no cut falls inside one.
    """
    pieces: list[Piece] = []
    whole = _Whole(spans)
    position, line_start = 0, True
    for wall in _WALL.finditer(text):
        if whole.around(wall.start(), wall.end()) or _inside_sentence(text, wall):
            continue
        stretch = text[position : wall.start()]
        pieces += _stretch(stretch, language, line_start, partial(whole.over, position))
        pieces.append(Piece(wall.group(), False))
        line_start = not _LINE_ENDS.isdisjoint(wall.group()) or (line_start and not stretch.strip())
        position = wall.end()
    pieces += _stretch(text[position:], language, line_start, partial(whole.over, position))
    return pieces


def join(pieces: Iterable[Piece]) -> str:
    """The inverse of `split`."""
    return "".join(piece.text for piece in pieces)


def refine(piece: Piece, cost: Callable[[str], int], limit: int) -> list[Piece]:
    """`piece`, or the pieces of at most `limit` by `cost` that a longer one is cut into; joined they are its text.

    Cuts after clauses where that is enough, else between words, else anywhere but between a character and its marks.
    The pieces are about equally long: a short rest would lack its context. One character alone is never cut.
    """
    if not piece.translate or cost(piece.text) <= limit:
        return [piece]
    pieces: list[Piece] = []
    for part in _cut(piece.text, cost, limit):
        pieces += trimmed(part)
        if _NO_SPACE_NEEDED.search(part):
            pieces.append(SEAM)
    return pieces[:-1] if pieces[-1] == SEAM else pieces


class _Whole:
    """Where no cut may fall."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._starts = [span.start for span in spans]
        self._ends = [span.end for span in spans]

    def around(self, start: int, end: int) -> bool:
        """Whether a span holds all from `start` to `end` and more."""
        i = bisect_right(self._starts, start) - 1
        return i >= 0 and self._ends[i] >= end and (self._starts[i], self._ends[i]) != (start, end)

    def over(self, offset: int, cut: int) -> bool:
        """Whether a span lies on both sides of `cut`, counted from `offset`."""
        cut += offset
        i = bisect_left(self._starts, cut) - 1
        return i >= 0 and self._ends[i] > cut


def _inside_sentence(text: str, wall: re.Match[str]) -> bool:
    """Whether an emoji stands between two words of one sentence."""
    if _CONTROL.search(wall.group()):
        return False
    before, after = (
        _WORD_BEFORE.search(text[max(0, wall.start() - 2) : wall.start()]),
        _WORD_AFTER.match(text, wall.end()),
    )
    return before is not None and after is not None and after[1].islower()


def _stretch(text: str, language: str, line_start: bool, over: Callable[[int], bool]) -> Iterator[Piece]:
    """The pieces of a stretch between two walls; `over` says where it must not be cut."""
    start = _after_markers(text, language) if line_start else 0
    if start:
        yield Piece(text[:start], False)
    for end in _END.finditer(text, start):
        if over(end.end()) or (end["stop"] and not _ends_sentence(text, end, language)):
            continue
        yield from trimmed(text[start : end.end()])
        start = end.end()
        if not end["stop"] and start < len(text) and not text[start].isspace():
            yield SEAM
    yield from trimmed(text[start:])


def _after_markers(text: str, language: str) -> int:
    """Where the text of a line begins, behind white space and markers."""
    position = len(text) - len(text.lstrip())
    while marker := _MARKER.match(text, position):
        ordinal = _ORDINAL.match(text, position)
        if ordinal and ordinal[1].lower() in DATE_WORDS.get(language, ()):
            break
        position = marker.end()
    return position


def _ends_sentence(text: str, end: re.Match[str], language: str) -> bool:
    """Whether the stop at `end`, which white space follows, ends a sentence."""
    plain = end["stop"] == "."
    # "What?" - asks Ann. The bracket in "Stop! (whispering) Go on." begins something new; that in "at 5 p.m. (see
    # below)" does not.
    opening = (_BEFORE_WORD_OR_BRACKET if plain else _BEFORE_WORD).match(text, end.end())
    behind = opening.end() if opening else end.end()
    following = text[behind : behind + 1]
    if following.islower():
        return False
    stop = end.start("stop")
    last = _LAST_WORD.search(text[max(0, stop - _LONGEST_ABBREVIATION) : stop])
    if not plain or not last:
        return True
    return not _is_abbreviation(last.group().lower(), following, language)


def _is_abbreviation(word: str, following: str, language: str) -> bool:
    """Whether the full stop after `word` belongs to it, given the first character behind it."""
    if word in BEFORE_ANYTHING.get(language, ()):
        return True
    if following.isdigit() and word in BEFORE_NUMBERS.get(language, ()):
        return True
    if word.isdecimal():
        return language in ORDINALS and len(word) <= 2
    letters = word.split(".")
    return all(len(letter) == 1 and letter.isalpha() for letter in letters) and word not in MAY_END


def trimmed(text: str) -> Iterator[Piece]:
    """`text` with the white space around it apart."""
    core = text.strip()
    if not core:
        if text:
            yield Piece(text, False)
        return
    start = len(text) - len(text.lstrip())
    if start:
        yield Piece(text[:start], False)
    yield Piece(core, any(map(str.isalpha, core)))
    if rest := text[start + len(core) :]:
        yield Piece(rest, False)


def _cut(text: str, cost: Callable[[str], int], limit: int) -> list[str]:
    total = cost(text)
    if total <= limit or len(text) == 1:
        return [text]
    parts = _after(_CLAUSE, text)
    if len(parts) == 1:
        parts = _after(_SPACE, text)
    if len(parts) == 1:
        middle = _between_characters(text)
        parts = [text[:middle], text[middle:]]
    small = [part for long in parts for part in _cut(long, cost, limit)]
    return _packed(small, cost, limit, aim=total / -(-total // limit))


def _after(boundary: re.Pattern[str], text: str) -> list[str]:
    """The parts of `text` that end behind a `boundary`."""
    ends = [match.end() for match in boundary.finditer(text)]
    return [part for a, b in zip([0, *ends], [*ends, len(text)], strict=True) if (part := text[a:b])]


def _packed(parts: list[str], cost: Callable[[str], int], limit: int, aim: float) -> list[str]:
    """`parts` joined to longer ones: each is closed once it has reached `aim`, or would pass `limit`."""
    packed: list[list[str]] = []
    filled = aim
    for part in parts:
        more = cost(part)
        if filled >= aim or filled + more > limit:
            packed.append([])
            filled = 0
        packed[-1].append(part)
        filled += more
    # Costs need not add up: where joined parts cost more than their sum, they stay apart.
    return [
        text
        for group in packed
        for text in (["".join(group)] if len(group) == 1 or cost("".join(group)) <= limit else group)
    ]


def _between_characters(text: str) -> int:
    """A place near the middle of `text` that separates no character from its combining marks or joiners."""
    for position in range(len(text) // 2, 0, -1):
        if not _clings(text[position]) and text[position - 1] != "\u200d":
            return position
    return len(text) // 2


def _clings(character: str) -> bool:
    return unicodedata.category(character).startswith("M") or character == "\u200d"

"""Repairs: what is taken out of a text because it is no part of the language. Run before the rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from model.tokenizer import normalize
from training.corpus.pair import Pair

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ue000-\uf8ff]")
_MARKED_SUFFIX = re.compile(r"\s*\([&_~]\w\)")
_ENTITY = r"&(?:#\d+|[A-Za-z]{2,8});"
_ACCELERATORS = {mark: re.compile(rf"(?!{_ENTITY}){mark}(?=[^\W_])") for mark in "_&~"}
_ANY_MARK = {mark: re.compile(rf"(?!{_ENTITY}){mark}") for mark in "_&~"}
_NAME_CHARACTERS = re.compile(r"[\d./\\=$%(){}<>@:]")
_CONTEXT_PREFIX = re.compile(r"^[\w /@:.-]{2,40}\|(?=\S)")


def drop_context(pair: Pair) -> Pair:
    """Remove `context\\x04` and the older `Context|` before a message."""
    source = pair.source.rpartition("\x04")[2]
    target = pair.target.rpartition("\x04")[2]
    if source.count("|") == 1 and "|" not in target:
        source = _CONTEXT_PREFIX.sub("", source)
    return replace(pair, source=source, target=target)


def drop_accelerators(pair: Pair) -> Pair:
    """Remove the mark before a menu letter: `_File`, `E&xit`, `~File`, and `(&F)` behind the text.

    Only sides with exactly one such mark are changed; more of them are code. So is a mark inside a name such as
    `max_length` or `LC_ALL`.
    """
    for mark in _ACCELERATORS:
        source = _without_accelerator(pair.source, mark, pair.target)
        target = _without_accelerator(pair.target, mark, pair.source)
        if _clear(pair.source, source, mark) and _clear(pair.target, target, mark):
            pair = replace(pair, source=source or pair.source, target=target or pair.target)
    return pair


def _clear(text: str, without: str | None, mark: str) -> bool:
    """Whether the mark is understood in `text`: it is an accelerator, or not there at all."""
    return without is not None or not _ANY_MARK[mark].search(text)


def _without_accelerator(text: str, mark: str, other: str) -> str | None:
    """`text` without its only accelerator `mark`; None if it has none, or if the mark means something else."""
    if len(_ANY_MARK[mark].findall(text)) != 1 or not (match := _ACCELERATORS[mark].search(text)):
        return None
    if suffix := _MARKED_SUFFIX.search(text):
        return text[: suffix.start()] + text[suffix.end() :]
    before, after = text[: match.start()], text[match.end() :]
    inside = before[-1:].isalnum()
    name = ((before.split() or [""])[-1] if inside else "") + mark + after.split()[0].rstrip(".,:;!?…)\"'")
    if inside and (name in other or _NAME_CHARACTERS.search(name) or name.isupper()):
        return None
    return before + after


def drop_control_characters(pair: Pair) -> Pair:
    """Remove control, direction and private-use characters; keep what separates words."""
    return replace(pair, source=_CONTROL.sub("", pair.source), target=_CONTROL.sub("", pair.target))


def normalise(pair: Pair) -> Pair:
    """Apply the tokenizer's own normalisation, so that training and serving see the same characters."""
    return replace(pair, source=normalize(pair.source), target=normalize(pair.target))


def join_lines(pair: Pair) -> Pair:
    """Turn every run of white space, line ends too, into one space; strip both ends."""
    return replace(pair, source=" ".join(pair.source.split()), target=" ".join(pair.target.split()))


SOFTWARE: tuple[Callable[[Pair], Pair], ...] = (drop_context, drop_accelerators)
"""For the messages of programs."""
PLAIN: tuple[Callable[[Pair], Pair], ...] = (drop_control_characters, normalise, join_lines)
"""For every text, after those: what a corpus of lines and the tokenizer ask for."""


def repair(pair: Pair, *, software: bool = True) -> Pair:
    """`pair` after all repairs, in their order; without `software` only those of any text."""
    for step in (*SOFTWARE, *PLAIN) if software else PLAIN:
        pair = step(pair)
    return pair

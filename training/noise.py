"""Noise in training pairs, seeded: what people type that corpora do not have."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from model.protection import Protector
from training.recipe import NoiseRecipe

_GAP = re.compile(r"[.!?] (?=\S)")
_MARK = re.compile(r"(?<=\w)[.,;:!?](?=\s|$)")


def disturb(
    pair: tuple[str, str],
    noise: NoiseRecipe,
    random: np.random.Generator,
    protector: Protector,
    sentinels: Sequence[str],
) -> tuple[str, str]:
    """`pair` with the noise of the recipe. What is no language keeps its case and its spaces."""
    if not noise:
        return pair
    carry, case, stop, space = random.random(4)
    if carry < noise.carried and sentinels:
        pair = _with_carried(pair, random, sentinels)
    if stop < noise.no_stop:
        pair = _without_stop(pair)
    source, target = pair
    if case < noise.lower:
        source = protector.outside(source, str.lower)
    elif case < noise.lower + noise.upper:
        source, target = protector.outside(source, str.upper), protector.outside(target, str.upper)
    if space < noise.spaces:
        source = _with_stray_space(source, random, protector)
    return source, target


def _with_carried(pair: tuple[str, str], random: np.random.Generator, sentinels: Sequence[str]) -> tuple[str, str]:
    """One or two more sentinels at the same place on both sides: before, behind, or between two sentences."""
    source, target = pair
    free = [sentinel for sentinel in sentinels if sentinel not in source and sentinel not in target]
    chosen = random.permutation(len(free))[: int(random.integers(1, 3))]
    for sentinel in (free[i] for i in chosen):
        x, y = ([0, *(gap.end() for gap in _GAP.finditer(text)), len(text)] for text in (source, target))
        place = int(random.integers(len(x))) if len(x) == len(y) else int(random.integers(2)) - 1
        source, target = _inserted(source, x[place], sentinel), _inserted(target, y[place], sentinel)
    return source, target


def _inserted(text: str, position: int, sentinel: str) -> str:
    if position == len(text):
        return f"{text} {sentinel}"
    return f"{text[:position]}{sentinel} {text[position:]}"


def _without_stop(pair: tuple[str, str]) -> tuple[str, str]:
    """Both sides without their full stop, if both end with one."""
    stops = all(text.endswith(".") and not text.endswith("..") for text in pair)
    return (pair[0][:-1], pair[1][:-1]) if stops else pair


def _with_stray_space(source: str, random: np.random.Generator, protector: Protector) -> str:
    """A space before one of the punctuation marks, where it does not belong. Runs of spaces never reach a network."""
    inside = [range(span.start, span.end) for span in protector.spans(source)]
    places = [mark.start() for mark in _MARK.finditer(source) if not any(mark.start() in stretch for stretch in inside)]
    if not places:
        return source
    place = places[int(random.integers(len(places)))]
    return f"{source[:place]} {source[place:]}"

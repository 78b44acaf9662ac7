"""Weights of sources: how often an epoch shows the pairs of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.recipe import RecipeError

Weights = NDArray[np.float64]

_SALT = 0x77656967
"""Keeps the draw of the weights apart from that of the order."""


def source_weights(sections: Mapping[str, Any]) -> dict[str, float]:
    """Source → its `weight` in the recipe, for the sources whose weight is not 1.

    Raises `RecipeError` for a weight that is no number or below 0, or of what is no source.
    """
    found: dict[str, float] = {}
    for name, values in sections.get("source", {}).items():
        if not isinstance(values, Mapping) or "kind" not in values:
            raise RecipeError(f"[source.{name}] must be a source and say its kind, but says {values!r}.")
        weight = values.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise RecipeError(f"[source.{name}] weight must be a number of at least 0, but is {weight!r}.")
        if weight != 1:
            found[name] = float(weight)
    return found


def line_weights(origins: Path, weights: Mapping[str, float], lines: int) -> list[float] | None:
    """The weight of every one of the `lines` of `train.origin`; None if no source has one. Raises `CorpusError`.

    A source may have a weight and no pair: it was optional, or all that it says stands elsewhere too. A weight counts
    beside the others, so one source must have 1 or more: its pairs are in every epoch.
    """
    if not weights:
        return None
    names = list(read_lines(origins))
    if len(names) != lines:
        raise CorpusError(f"{origins} must name the source of each of {lines} pairs, but has {len(names)} lines.")
    found = [weights.get(name, 1.0) for name in names]
    if max(found) < 1:
        raise CorpusError(f"some source must have a weight of at least 1, but the largest is {max(found):g}.")
    return found


def draw(weights: Weights, seed: int, epoch: int) -> NDArray[np.int64]:
    """Pair numbers of one epoch, in ascending order: a pair of weight w is there ⌊w⌋ or ⌈w⌉ times.

    After E epochs it was there w · E times, to within one: the fractions rotate, so that no pair waits longer than
    its weight says. A function of its arguments alone: a resumed run, or one of several processes, draws the same.
    """
    offset = np.random.default_rng([seed, _SALT]).random(len(weights))
    copies = np.floor(weights * (epoch + 1) + offset) - np.floor(weights * epoch + offset)
    return np.repeat(np.arange(len(weights)), copies.astype(np.int64))

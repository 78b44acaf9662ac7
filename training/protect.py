"""Sentinels in training pairs: what both sides carry is replaced by the same sentinels, so that they are learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from model.protection import Protector, Span, replace_spans
from model.tokenizer import SENTINELS, Tokenizer
from training.noise import disturb
from training.recipe import NoiseRecipe, ProtectRecipe

Prepare = Callable[[int, str, str], tuple[str, str]]
"""Number of a pair, source, target → source and target as the network sees them."""


def protect_pair(
    source: str, target: str, protector: Protector, random: np.random.Generator, *, plain_numbers: bool = False
) -> tuple[str, str]:
    """The pair with every span that both sides have equally often as sentinels, drawn at random without repetition.

    The i-th occurrence of a span on one side is the same sentinel as the i-th on the other. A span that stands on one
    side only stays text, and so do numbers with `plain_numbers`, and everything in a pair of more spans than sentinels.
    """
    x, y = ([s for s in protector.spans(side) if not (plain_numbers and s.number)] for side in (source, target))
    there, here = _counted(source, x), _counted(target, y)
    common = {words: count for words, count in there.items() if here[words] == count}
    if not 0 < sum(common.values()) <= len(SENTINELS):
        return source, target
    drawn = iter(random.permutation(len(SENTINELS)).tolist())
    numbers = {words: [SENTINELS[next(drawn)] for _ in range(count)] for words, count in common.items()}
    return _replaced(source, x, numbers), _replaced(target, y, numbers)


def _counted(text: str, spans: list[Span]) -> Counter[str]:
    return Counter(text[span.start : span.end] for span in spans)


def _replaced(text: str, spans: list[Span], numbers: dict[str, list[str]]) -> str:
    common = [span for span in spans if text[span.start : span.end] in numbers]
    left = {words: iter(sentinels) for words, sentinels in numbers.items()}
    return replace_spans(text, common, [next(left[text[span.start : span.end]]) for span in common])


def preparation(tokenizer: Tokenizer, protect: ProtectRecipe, noise: NoiseRecipe, seed: int) -> Prepare:
    """What `[protect]` and `[noise]` do to the pairs of a run: a function of the seed and a pair's number and text.

    A vocabulary without sentinels gets none.
    """
    protector = Protector(tokenizer.characters)
    sentinels = SENTINELS if protect.enabled and tokenizer.sentinel_ids else ()

    def prepare(number: int, source: str, target: str) -> tuple[str, str]:
        random = np.random.default_rng([seed, number])
        if sentinels:
            plain = bool(random.random() < protect.plain_numbers)
            source, target = protect_pair(source, target, protector, random, plain_numbers=plain)
        return disturb((source, target), noise, random, protector, sentinels)

    return prepare

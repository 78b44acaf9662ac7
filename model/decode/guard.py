"""Notices a translation that lost its way: it goes round in circles, "la la la la …", or comes to no end.

Such a sentence is decoded once more, without repeated n-grams and with a price on each token that comes again, and its
result says so. N-grams alone do not end one that repeats itself in parts of words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from model.decode.options import DecodeOptions, Hypothesis

LONGEST_UNIT = 16
"""Tokens of the longest unit whose repetition is noticed."""
LEAST_TIMES = 4
"""So often in a row a unit must stand."""
LEAST_TOKENS = 8
"""And so long the row must be."""
BLOCKED_NGRAM = 3
"""No so many tokens come twice when it is decoded again: three times "la" at most."""
PENALTY = 1.2
"""The least `repetition_penalty` then."""


def times_in_a_row(ids: Sequence[int]) -> int:
    """How often the most repeated unit stands in a row, among rows of at least `LEAST_TOKENS`; at least 1."""
    # What never goes by a token often enough need not be looked at closely.
    if len(ids) < LEAST_TOKENS or max(Counter(ids).values()) < 2:
        return 1
    most = 1
    for period in range(1, min(LONGEST_UNIT, len(ids) // 2) + 1):
        same = 0
        for earlier, later in zip(ids, ids[period:], strict=False):
            same = same + 1 if earlier == later else 0
            if same + period >= LEAST_TOKENS:
                most = max(most, same // period + 1)
    return most


def goes_in_circles(source: Sequence[int], prefix: Sequence[int], ids: Sequence[int]) -> bool:
    """True if the translation `ids` repeats something, and more than twice as often as source or prefix do."""
    if len(ids) < LEAST_TOKENS or max(Counter(ids).values()) < LEAST_TIMES:
        return False
    times = times_in_a_row(ids)
    return times >= LEAST_TIMES and times > 2 * max(times_in_a_row(source), times_in_a_row(prefix))


def lost_its_way(source: Sequence[int], options: DecodeOptions, best: Hypothesis) -> bool:
    """True if the translation goes round in circles, or a length ended it that the caller did not ask for."""
    endless = best.truncated and options.max_length is None
    return endless or goes_in_circles(source, options.prefix, best.ids)


def guarded(options: DecodeOptions) -> DecodeOptions:
    """The options with which such a sentence is decoded again."""
    n = options.no_repeat_ngram
    return replace(
        options,
        no_repeat_ngram=min(n, BLOCKED_NGRAM) if n else BLOCKED_NGRAM,
        repetition_penalty=max(options.repetition_penalty, PENALTY),
    )

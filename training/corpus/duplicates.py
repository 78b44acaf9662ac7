"""One pair out of many that say the same, and the hash that chooses without favour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

from training.corpus.pair import Pair


def lottery(seed: str, text: str) -> bytes:
    """A number drawn for `text`: stable between runs and machines, and when other texts come or go."""
    return blake2b(text.encode(), key=seed.encode()[:64], digest_size=8).digest()


def cap(pairs: list[Pair], limit: int, seed: str) -> list[Pair]:
    """At most `limit` pairs (0: all), chosen by lottery, in their old order."""
    if not limit or len(pairs) <= limit:
        return pairs
    drawn = sorted(range(len(pairs)), key=lambda i: (lottery(seed, pairs[i].source), i))[:limit]
    return [pairs[i] for i in sorted(drawn)]


def unique(pairs: Iterable[Pair], targets_per_source: Mapping[str, int]) -> list[Pair]:
    """Each pair once, and each source with its most frequent translations only.

    `targets_per_source` says how many an origin may contribute; a source that several origins know counts the votes
    of all. Equal votes go to the pair that came first. The order is that of first appearance.
    """
    first: list[Pair] = []
    votes: list[int] = []
    # Source → the number of its only pair, or target → number where it has several: most have one, and of tens of
    # millions of pairs every dictionary more is gigabytes.
    numbers: dict[str, int | dict[str, int]] = {}
    for pair in pairs:
        number = _number(numbers, first, pair)
        if number == len(first):
            first.append(pair)
            votes.append(0)
        votes[number] += 1
    kept = bytearray(len(first))
    for found in numbers.values():
        rivals = [found] if isinstance(found, int) else sorted(found.values(), key=lambda number: -votes[number])
        taken = 0
        for number in rivals:
            if taken < targets_per_source[first[number].origin]:
                kept[number] = 1
                taken += 1
    return [pair for pair, keep in zip(first, kept, strict=True) if keep]


def _number(numbers: dict[str, int | dict[str, int]], first: Sequence[Pair], pair: Pair) -> int:
    """Which distinct pair `pair` is, counted in `numbers` if it is a new one."""
    known = numbers.setdefault(pair.source, len(first))
    if isinstance(known, dict):
        return known.setdefault(pair.target, len(first))
    if known == len(first) or first[known].target == pair.target:
        return known
    numbers[pair.source] = {first[known].target: known, pair.target: len(first)}
    return len(first)

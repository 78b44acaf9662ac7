"""One pair out of many that say the same, and the hash that chooses without favour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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
    votes: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], Pair] = {}
    by_source: dict[str, list[tuple[str, str]]] = {}
    for pair in pairs:
        both = (pair.source, pair.target)
        votes[both] += 1
        if both not in first:
            first[both] = pair
            by_source.setdefault(pair.source, []).append(both)
    kept: set[tuple[str, str]] = set()
    for rivals in by_source.values():
        taken = 0
        for both in sorted(rivals, key=lambda both: -votes[both]):
            if taken < targets_per_source[first[both].origin]:
                kept.add(both)
                taken += 1
    return [pair for both, pair in first.items() if both in kept]

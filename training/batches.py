"""Sentence pairs in ids, and token-budget batches whose order depends on the seed and the epoch alone."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.config import ModelConfig
from model.tokenizer import PAD_ID, Tokenizer
from training.corpus.files import read_paired
from training.progress import progress
from training.protect import Prepare
from training.ragged import Ids, Ragged
from training.sampling import SubwordSampler
from training.weights import Weights, draw

POOL = 16_384
"""Pairs sorted by length together: batches pad little, and lengths still come in random order."""


@dataclass(frozen=True)
class Pairs:
    """Pairs in ids, EOS last on both sides."""

    sources: Sequence[Ids]
    targets: Sequence[Ids]
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Places of the pairs in the text that they were made from."""
    lines: int = 0
    """Pairs of that text."""
    weights: Weights | None = None
    """How often an epoch shows each pair, on average; once if not given."""
    sampler: SubwordSampler | None = None
    """Cuts the pairs anew for every epoch; they stay as they are if not given."""

    def of_epoch(self, seed: int, epoch: int) -> Pairs:
        """The same pairs, in the ids of one epoch."""
        if self.sampler is None:
            return self
        sources, targets = self.sampler.sample(seed, epoch)
        return replace(self, sources=sources, targets=targets)

    def __len__(self) -> int:
        return len(self.sources)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Ids and numbers of pairs that `encode_pairs` made, to be kept."""
        assert isinstance(self.sources, Ragged)
        assert isinstance(self.targets, Ragged)
        return {
            "source_ids": self.sources.ids,
            "source_ends": self.sources.ends,
            "target_ids": self.targets.ids,
            "target_ends": self.targets.ends,
            "numbers": self.numbers,
            "lines": np.array(self.lines),
        }

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Pairs:
        """The inverse of `arrays`."""
        sources, targets = (Ragged(arrays[f"{side}_ids"], arrays[f"{side}_ends"]) for side in ("source", "target"))
        return cls(sources, targets, arrays["numbers"], int(arrays["lines"]))

    @cached_property
    def source_lengths(self) -> NDArray[np.int64]:
        """Tokens of each source."""
        return _lengths(self.sources)

    @cached_property
    def target_lengths(self) -> NDArray[np.int64]:
        """Tokens of each target."""
        return _lengths(self.targets)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The longer side of each pair: what it costs in a padded batch."""
        return np.maximum(self.source_lengths, self.target_lengths)


def _lengths(side: Sequence[Ids]) -> NDArray[np.int64]:
    return side.lengths if isinstance(side, Ragged) else np.array([len(ids) for ids in side], dtype=np.int64)


@dataclass(frozen=True)
class Batch:
    """One padded batch."""

    source: Tensor
    """(B, S) int64"""
    source_lengths: Tensor
    """(B) int64"""
    target_in: Tensor
    """(B, T) int64, BOS first"""
    target_out: Tensor
    """(B, T) int64, EOS last"""

    @property
    def target_tokens(self) -> int:
        """Real target tokens, EOS counted."""
        return int((self.target_out != PAD_ID).sum())

    def to(self, device: torch.device) -> Batch:
        """The same batch on `device`."""
        return Batch(*(getattr(self, field.name).to(device) for field in fields(self)))


def encode_pairs(
    pairs: Sequence[tuple[str, str]],
    tokenizer: Tokenizer,
    max_length: int,
    prepare: Prepare | None = None,
    sampler: SubwordSampler | None = None,
) -> Pairs:
    """Text, after `prepare`, to ids; pairs with a side over `max_length` tokens or with an empty side are left out.

    `sampler` is told all that is kept, and cuts it anew for every epoch.
    """
    ids, ends = (array("i"), array("i")), (array("q"), array("q"))
    numbers = array("q")
    bar = progress(len(pairs), "encoding", "pair")
    for number, pair in enumerate(pairs):
        bar.update()
        source, target = pair if prepare is None else prepare(number, *pair)
        x, y = tokenizer.encode(source), tokenizer.encode(target)
        if 1 < len(x) <= max_length and 1 < len(y) <= max_length:
            for side, into, until in zip((x, y), ids, ends, strict=True):
                into.extend(side)
                until.append(len(into))
            numbers.append(number)
            if sampler:
                sampler.add((source, target), (x, y))
    bar.close()
    sources, targets = (Ragged(np.array(into), np.array(until)) for into, until in zip(ids, ends, strict=True))
    return Pairs(sources, targets, np.array(numbers), len(pairs), sampler=sampler)


def read_pairs(source: Path, target: Path) -> list[tuple[str, str]]:
    """Two files line for line; pairs that are empty on both sides are left out.

    Raises `CorpusError` for a file that is missing or not UTF-8, and for files of different length.
    """
    return [(pair.source, pair.target) for pair in read_paired(source, target, "") if pair.source or pair.target]


def plan_epoch(pairs: Pairs, batch_tokens: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Batches of pair numbers: every pair once, or as its weight says, in batches within the budget.

    `batch_tokens` is the most of padded tokens on either side. The plan is a pure function of its arguments, so a
    resumed run walks the very same batches.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(pairs) if pairs.weights is None else draw(pairs.weights, seed, epoch))
    x, y = pairs.source_lengths, pairs.target_lengths
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), POOL):
        pool = order[start : start + POOL]
        pool = pool[np.lexsort((x[pool], y[pool]))]
        batches.extend(_cut(pool, pairs.lengths, batch_tokens))
    return [batches[i] for i in random.permutation(len(batches))]


def _cut(pool: NDArray[np.int64], lengths: NDArray[np.int64], batch_tokens: int) -> Iterable[NDArray[np.int64]]:
    first, longest = 0, 0
    for position, pair in enumerate(pool):
        longest = max(longest, int(lengths[pair]))
        if longest * (position - first + 1) > batch_tokens:
            yield pool[first:position]
            first, longest = position, int(lengths[pair])
    if first < len(pool):
        yield pool[first:]


def collate(pairs: Pairs, numbers: Sequence[int] | NDArray[np.int64], config: ModelConfig) -> Batch:
    """The pairs called `numbers`, padded to the longest."""
    xs = [pairs.sources[i] for i in numbers]
    ys = [pairs.targets[i] for i in numbers]
    target_out = _padded(ys, config.pad_id)
    target_in = np.full_like(target_out, config.pad_id)
    target_in[:, 0] = config.bos_id
    for row, y in enumerate(ys):
        target_in[row, 1 : len(y)] = y[:-1]
    return Batch(
        source=torch.from_numpy(_padded(xs, config.pad_id)),
        source_lengths=torch.tensor([len(x) for x in xs]),
        target_in=torch.from_numpy(target_in),
        target_out=torch.from_numpy(target_out),
    )


def _padded(rows: Sequence[Ids], pad_id: int) -> NDArray[np.int64]:
    padded = np.full((len(rows), max(map(len, rows))), pad_id, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


def micro_batches(numbers: NDArray[np.int64], pairs: Pairs, tokens: int) -> list[NDArray[np.int64]]:
    """One update's batch cut into pieces of at most `tokens` padded tokens; 0 leaves it whole.

    Where the fewest pieces that could do are no power of two, there are up to the next one, and the largest is as small
    as can be then: 2, 4 or 8 processes share them almost evenly. `tokens` must hold the longest pair.
    """
    if not tokens:
        return [numbers]
    lengths = pairs.lengths[numbers].tolist()
    count = 1 << (_pieces(lengths, tokens) - 1).bit_length()
    bounds = range(max(lengths), tokens + 1)
    least = bounds[bisect_left(bounds, True, key=lambda bound: _pieces(lengths, bound) <= count)]
    return list(_cut(numbers, pairs.lengths, least))


def _pieces(lengths: list[int], tokens: int) -> int:
    """Into how many pieces `_cut` cuts."""
    pieces, members, longest = 1, 0, 0
    for length in lengths:
        members, longest = members + 1, max(longest, length)
        if longest * members > tokens:
            pieces, members, longest = pieces + 1, 1, length
    return pieces

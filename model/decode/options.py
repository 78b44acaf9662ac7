"""What a caller may ask of a search, for one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from model.errors import DecodeError

MAX_BEAM_SIZE = 16
"""Twice as many candidates leave the graph; this keeps them below the 64 blocks of its top-k."""

EXTRA_TOKENS = 50
"""A translation may be this much longer than its source, in tokens (paper, section 6.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """The two ids a search must know: what it feeds first, and what ends a hypothesis."""

    bos_id: int = 1
    eos_id: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Options of one sentence; sentences with different options share a batch.

    Raises `DecodeError` for a value out of range.
    """

    beam_size: int = 4
    """1 is greedy search. Paper, section 6.1: 4."""
    length_penalty: float = 0.6
    """α of ((5 + |y|) / 6)^α, by which a finished hypothesis' log-probability is divided (Wu et al., 2016)."""
    n_best: int = 1
    """How many hypotheses to return, best first; at most beam_size."""
    max_length: int | None = None
    """Most target tokens, EOS included. It can only lower what `limit` allows without it."""

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= MAX_BEAM_SIZE:
            raise DecodeError(f"beam_size must be in 1..{MAX_BEAM_SIZE}, but is {self.beam_size}.")
        if not 1 <= self.n_best <= self.beam_size:
            raise DecodeError(f"n_best must be in 1..beam_size ({self.beam_size}), but is {self.n_best}.")
        if not 0.0 <= self.length_penalty <= 10.0:
            raise DecodeError(f"length_penalty must be in 0..10, but is {self.length_penalty}.")
        if self.max_length is not None and self.max_length < 1:
            raise DecodeError(f"max_length must be at least 1, but is {self.max_length}.")

    def limit(self, source_tokens: int, max_positions: int) -> int:
        """Most target tokens of one sentence, EOS included.

        min(max_length, source tokens + 50, max_positions - 1), at least 1; the one position less is for BOS. No
        caller can ask for more, so nonsense that never ends costs little.
        """
        allowed = min(source_tokens + EXTRA_TOKENS, max_positions - 1)
        return max(1, allowed if self.max_length is None else min(allowed, self.max_length))


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation of a sentence in ids."""

    ids: tuple[int, ...]
    """Target ids without BOS and EOS."""
    log_prob: float
    """Sum of the token log-probabilities, EOS included."""
    score: float
    """log_prob divided by the length penalty: what the search ranked by."""
    truncated: bool
    """True if max_length ended it, not EOS."""

"""What a caller may ask of a search, for one sentence, and what a search answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from model.errors import DecodeError

MAX_BEAM_SIZE = 16
"""Twice as many candidates leave the graph; this keeps them below the 64 blocks of its top-k."""

EXTRA_TOKENS = 50
"""A translation may be this much longer than its source, in tokens (paper, section 6.1)."""

MAX_SUPPRESSED = 64
"""Sequences that one sentence may suppress: each may cost a candidate more in every step."""

RANGES = {
    "beam_size": (1, MAX_BEAM_SIZE),
    "length_penalty": (0, 10),
    "coverage_penalty": (0, 10),
    "n_best": (1, MAX_BEAM_SIZE),
    "max_length": (1, 100_000),
    "min_length": (0, 100_000),
    "no_repeat_ngram": (0, 16),
    "repetition_penalty": (1, 10),
    "temperature": (0.01, 10),
    "top_k": (0, 1_000_000),
    "top_p": (0.0001, 1),
    "seed": (0, 2**53),
}
"""Least and greatest value of each option that is a number, whatever the others are."""


def check_range(name: str, value: float) -> None:
    """Raise `DecodeError` when the option `name` cannot have this value; NaN is never in range."""
    least, greatest = RANGES[name]
    if not least <= value <= greatest:
        raise DecodeError(f"{name} must be in {least}..{greatest}, but is {value}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """The two ids a search must know: what it feeds first, and what ends a hypothesis."""

    bos_id: int = 1
    eos_id: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Draw each token instead of taking the best. Raises `DecodeError` for a value out of range.

    The probabilities are raised to the power 1 / temperature, cut to the `top_k` best, and of these to the fewest that
    hold `top_p` of what is left (Fan et al., 2018; Holtzman et al., 2020). A draw depends on the seed, the source and
    the position, and on nothing else: the same sentence gives the same sample in any batch.
    """

    temperature: float = 1.0
    """Below 1 the likely becomes likelier, above 1 less so."""
    top_k: int = 0
    """0: the whole vocabulary."""
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "seed"):
            check_range(name, getattr(self, name))


_CHECKED = (
    "beam_size",
    "length_penalty",
    "coverage_penalty",
    "min_length",
    "no_repeat_ngram",
    "repetition_penalty",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeOptions:
    """Options of one sentence; sentences with different options share a batch.

    Raises `DecodeError` for a value out of range.
    """

    beam_size: int = 4
    """1 is greedy search. Paper, section 6.1: 4."""
    length_penalty: float = 0.6
    """α of ((5 + |y|) / 6)^α, by which a finished hypothesis' log-probability is divided (Wu et al., 2016)."""
    coverage_penalty: float = 0.0
    """β of β Σ_i log(min(Σ_j p_ij, 1)), which is added to a finished hypothesis' score (Wu et al., 2016, equation 14);
    p_ij is the share of target token j's attention that source token i has. Only for beams."""
    n_best: int = 1
    """How many hypotheses to return, best first; at most beam_size."""
    max_length: int | None = None
    """Most target tokens, EOS included. It can only lower what `limit` allows without it."""
    min_length: int = 0
    """Fewest target tokens, EOS included: before that EOS is not allowed."""
    no_repeat_ngram: int = 0
    """No sequence of so many tokens may come twice; 0: any may."""
    repetition_penalty: float = 1.0
    """≥ 1: what the log-probability of a token is multiplied by once the hypothesis holds that token. The others keep
    theirs, nothing is normalised again; scores hold the product."""
    sampling: Sampling | None = None
    """Draw instead of search; beam_size must then be 1."""
    prefix: tuple[int, ...] = ()
    """What the target begins with, whatever the other options say. It was given and not predicted, so its tokens have
    log-probability 0, and a hypothesis has that of its continuation; its length counts."""
    suppress: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids that the target must not hold."""
    carry: tuple[int, ...] = ()
    """Ids that a target must hold exactly as often as its source, if the source holds any of them: EOS is not allowed
    while one is missing, and none may come more often. Bought with a few candidates, see `model.decode.constraints`; a
    target can break the rule where those do not suffice, or where the length ends it."""
    token_scores: bool = False
    """Keep the log-probability of every token."""
    alignment: bool = False
    """Run what was found through the network once more, to see what each token of it attends to."""
    repetition_guard: bool = False
    """Decode again, without repeats, what goes round in circles or comes to no end; see `model.decode.guard`."""

    def __post_init__(self) -> None:
        for name in _CHECKED:
            check_range(name, getattr(self, name))
        if self.coverage_penalty and self.beam_size == 1:
            raise DecodeError(
                f"coverage_penalty must be 0 without a beam (beam_size 1), but is {self.coverage_penalty}."
            )
        if not 1 <= self.n_best <= self.beam_size:
            raise DecodeError(f"n_best must be in 1..beam_size ({self.beam_size}), but is {self.n_best}.")
        if self.max_length is not None and self.max_length < max(1, self.min_length, len(self.prefix) + 1):
            raise DecodeError(
                f"max_length must be at least 1, min_length ({self.min_length}) and one more than the prefix "
                f"({len(self.prefix)}), but is {self.max_length}."
            )
        if self.sampling is not None and self.beam_size != 1:
            raise DecodeError(f"beam_size must be 1 where tokens are drawn, but is {self.beam_size}.")
        if len(self.suppress) > MAX_SUPPRESSED or not all(self.suppress):
            raise DecodeError(
                f"suppress must hold at most {MAX_SUPPRESSED} sequences, none of them empty, but holds "
                f"{len(self.suppress)}, the shortest of {min(map(len, self.suppress))} ids."
            )

    @property
    def steered(self) -> bool:
        """True if something comes between the network's candidates and the search, whatever the source."""
        return bool(
            self.prefix
            or self.suppress
            or self.sampling
            or self.min_length > 1
            or self.no_repeat_ngram
            or self.repetition_penalty != 1.0
        )

    def carried(self, source: Sequence[int]) -> Counter[int]:
        """How often each id of `carry` stands in `source`; none where `carry` asks nothing of it."""
        ids = frozenset(self.carry)
        return Counter(token for token in source if token in ids) if ids else Counter()

    @property
    def far_reaching(self) -> bool:
        """True if it may take many candidates a step, which would be dear for its neighbours."""
        many = self.repetition_penalty != 1.0 or self.no_repeat_ngram == 1 or len(self.suppress) > self.beam_size + 8
        return many or self.sampling is not None

    def limit(self, source_tokens: int, max_positions: int) -> int:
        """Most target tokens of one sentence, EOS included.

        min(max_length, source tokens + prefix tokens + 50, max_positions - 1), at least 1; the one position less is for
        BOS. No caller can ask for more, so nonsense that never ends costs little.
        """
        allowed = min(source_tokens + len(self.prefix) + EXTRA_TOKENS, max_positions - 1)
        return max(1, allowed if self.max_length is None else min(allowed, self.max_length))


def chosen(defaults: DecodeOptions, **given: Any) -> DecodeOptions:
    """`defaults` with what a caller has `given`; None is as good as not given. Raises `DecodeError` as they do.

    A beam_size that was not given is 1 for sampling, and never smaller than n_best.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if "beam_size" not in given:
        sampled = given.get("sampling") is not None
        given["beam_size"] = 1 if sampled else max(defaults.beam_size, min(given.get("n_best", 1), MAX_BEAM_SIZE))
    return replace(defaults, **given)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation of a sentence in ids."""

    ids: tuple[int, ...]
    """Target ids without BOS and EOS."""
    log_prob: float
    """Sum of the token log-probabilities, EOS included."""
    score: float
    """log_prob divided by the length penalty, plus the coverage penalty: what the search ranked by."""
    truncated: bool
    """True if max_length ended it, not EOS."""
    token_log_probs: tuple[float, ...] = field(default=(), repr=False)
    """Of each id, and then of EOS unless truncated; empty unless token_scores were asked for."""
    attention: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    """For each id, the share of its attention that each source token has, EOS included; only where alignment was asked
    for."""

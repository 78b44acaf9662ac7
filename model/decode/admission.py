"""Who may enter the running batch, and when: a bounded, strictly first-come-first-served queue."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from model.decode.options import DecodeOptions, Hypothesis, SpecialIds
from model.decode.stepper import Stepper
from model.errors import DecodeError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherLimits:
    """What a batch may hold at once. Raises `DecodeError` for a limit below 1."""

    max_slots: int = 64
    """Sentences in the running batch."""
    max_lanes: int = 256
    """Hypotheses in the running batch, the sum of all widths: what bounds cache memory and the time of a step."""
    max_batch_tokens: int = 4096
    """Encoder work of one step in source tokens, padding counted (longest × count): what bounds how long the running
    sentences wait for newcomers. A single longer sentence is still let in, alone."""

    def __post_init__(self) -> None:
        for name in ("max_slots", "max_lanes", "max_batch_tokens"):
            if getattr(self, name) < 1:
                raise DecodeError(f"{name} must be at least 1, but is {getattr(self, name)}.")


class GroupName(NamedTuple):
    """What sentences must have in common to share a call of the network."""

    width: int
    apart: bool
    """True for those that take many candidates, which would be dear for the others."""
    cohort: int
    attending: bool = False
    """True for those of whom it must be known what they attend to."""
    forced: bool = False
    """True for those that are not searched for: their ids are known."""


@dataclass(slots=True, eq=False)
class Sentence:
    """One sentence from `add` to its end."""

    key: Hashable
    source: tuple[int, ...]
    options: DecodeOptions
    limit: int
    """Most target tokens, EOS included."""
    added_at: float
    started_at: float | None = None
    """When its encoder first ran."""
    cohort: int = 0
    """Sentences step together only with others of their cohort; 0 but for those under suspicion after a fault."""
    guarded: bool = False
    """True once the repetition guard has sent it back."""
    found: tuple[Hypothesis, ...] = ()
    """What the search found, once it only remains to be seen what that attends to."""

    @property
    def width(self) -> int:
        """Lanes it takes."""
        return len(self.found) or self.options.beam_size

    @property
    def group(self) -> GroupName:
        """Sentences of equal group step together."""
        if self.found:
            return GroupName(self.width, False, self.cohort, attending=True, forced=True)
        return GroupName(self.width, self.options.far_reaching, self.cohort, self.options.coverage_penalty > 0)


def source_ids(source: Sequence[int], vocab_size: int, max_positions: int) -> tuple[int, ...]:
    """`source` as plain ints. Raises `DecodeError` when it is empty, too long, or holds anything but ids."""
    try:
        ids = tuple(map(operator.index, source))
    except TypeError as error:
        raise DecodeError(f"a source must be a sequence of whole numbers, but: {error}.") from error
    if not 1 <= len(ids) <= max_positions:
        raise DecodeError(f"a source must have 1 to {max_positions} tokens, but has {len(ids)}; split the text.")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise DecodeError(f"source ids must be in 0..{vocab_size - 1}, but span {min(ids)}..{max(ids)}.")
    return ids


def target_limit(options: DecodeOptions, source_tokens: int, stepper: Stepper) -> int:
    """Most target tokens of a sentence. Raises `DecodeError` for options that do not fit the network."""
    if (options.alignment or options.coverage_penalty) and not stepper.attends:
        raise DecodeError("alignment and coverage_penalty need a network that attends, but this one does not.")
    limit = options.limit(source_tokens, stepper.max_positions)
    if len(options.prefix) >= limit:
        raise DecodeError(f"a prefix must have less than {limit} tokens here, but has {len(options.prefix)}.")
    return limit


def check_ids(options: DecodeOptions, stepper: Stepper, special: SpecialIds) -> None:
    """Raise `DecodeError` if `options` hold ids that the network has not, or that are no words."""
    given = {*options.prefix, *options.carry, *chain.from_iterable(options.suppress)}
    if not all(0 <= token < stepper.vocab_size for token in given):
        raise DecodeError(f"prefix, suppress and carry must hold ids in 0..{stepper.vocab_size - 1}, but one is not.")
    if given & {special.bos_id, special.eos_id}:
        raise DecodeError(
            "prefix, suppress and carry must hold words, but one holds BOS or EOS; min_length can delay EOS."
        )


def padded_tokens(sentences: Sequence[Sentence]) -> int:
    """What encoding these together costs: the longest source times their number."""
    return max((len(sentence.source) for sentence in sentences), default=0) * len(sentences)


class WaitingLine:
    """Sentences that wait, in order. Nobody overtakes: while the first does not fit, nobody enters.

    So room that falls free is kept for a wide sentence at the head, and a sentence waits for at most as many
    admissions as there were sentences before it.
    """

    def __init__(self) -> None:
        self._line: OrderedDict[Hashable, Sentence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._line)

    def append(self, sentence: Sentence) -> None:
        """Join at the end."""
        self._line[sentence.key] = sentence

    def put_back(self, sentences: Sequence[Sentence]) -> None:
        """Return sentences that had left to the head, in their order."""
        for sentence in reversed(sentences):
            self._line[sentence.key] = sentence
            self._line.move_to_end(sentence.key, last=False)

    def remove(self, key: Hashable) -> bool:
        """Drop one from anywhere; False if it is not here."""
        return self._line.pop(key, None) is not None

    def admit(self, slots: int, lanes: int, tokens: int) -> list[list[Sentence]]:
        """Take the longest run from the head that fits `slots`, `lanes` and `tokens`, gathered by group.

        The first sentence may exceed `tokens`; otherwise it could never enter.
        """
        groups: dict[GroupName, list[Sentence]] = {}
        while self._line and slots > 0:
            head = next(iter(self._line.values()))
            grown = {**groups, head.group: [*groups.get(head.group, ()), head]}
            cost = sum(map(padded_tokens, grown.values()))
            if head.width > lanes or (groups and cost > tokens):
                break
            del self._line[head.key]
            groups = grown
            slots -= 1
            lanes -= head.width
        return list(groups.values())

"""The running sentences that step together: those with a search, and what steers it; and those whose ids are known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from model.decode.admission import GroupName, Sentence
from model.decode.options import Hypothesis, SpecialIds
from model.decode.search import open_search
from model.decode.steering import Steering
from model.decode.stepper import Attention, LogProbs, Stepper, Tokens

T = TypeVar("T")


class Group(ABC):
    """Rows of one width; sentences and slots hold the same ones in the same order."""

    def __init__(self, name: GroupName, special: SpecialIds) -> None:
        self.width = name.width
        self.sentences: list[Sentence] = []
        self.slots: list[int] = []
        self._attending = name.attending
        self._special = special

    def enter(self, sentences: Sequence[Sentence], slots: Sequence[int]) -> None:
        """Take in sentences that were just encoded."""
        self.sentences += sentences
        self.slots += slots

    def leave(self, rows: Collection[int]) -> list[int]:
        """Drop rows; the slots they held, in the order of `rows`."""
        freed = [self.slots[row] for row in rows]
        self.sentences, self.slots = without(self.sentences, rows), without(self.slots, rows)
        return freed

    @abstractmethod
    def advance(self, stepper: Stepper) -> list[int]:
        """One decoder step; the rows that ended, ascending. What the stepper raises comes through."""

    @abstractmethod
    def outcome(self, row: int) -> tuple[Hypothesis, ...]:
        """The hypotheses of an ended row, best first. Raises `DecodeError` when the network gave no usable numbers."""

    def _attention(self, stepper: Stepper) -> list[Attention] | None:
        """What the lanes of each row attended to in the step just taken, (W, S) with S its own source tokens."""
        if not self._attending:
            return None
        whole = stepper.attention(self.slots)  # (R, W, S)
        return [whole[row, :, : len(sentence.source)] for row, sentence in enumerate(self.sentences)]


def without(items: Sequence[T], rows: Collection[int]) -> list[T]:
    """All items but those at `rows`."""
    return [item for row, item in enumerate(items) if row not in rows]


class ForcedGroup(Group):
    """Sentences whose hypotheses are known, one in each lane: what each of their tokens attends to is looked at."""

    def __init__(self, name: GroupName, special: SpecialIds) -> None:
        super().__init__(name, special)
        self._seen: list[list[Attention]] = []
        """For each row and step taken, (W, S)."""

    def enter(self, sentences: Sequence[Sentence], slots: Sequence[int]) -> None:
        """See `Group.enter`."""
        super().enter(sentences, slots)
        self._seen += [[] for _ in sentences]

    def leave(self, rows: Collection[int]) -> list[int]:
        """See `Group.leave`."""
        self._seen = without(self._seen, rows)
        return super().leave(rows)

    def advance(self, stepper: Stepper) -> list[int]:
        """See `Group.advance`. The step that predicts a token is the one whose attention is the token's."""
        stepper.step(self.slots, self._tokens(), 1)
        for row, attention in enumerate(self._attention(stepper) or ()):
            self._seen[row].append(attention.copy())
        longest = [max(len(hypothesis.ids) for hypothesis in sentence.found) for sentence in self.sentences]
        return [row for row, seen in enumerate(self._seen) if len(seen) >= longest[row]]

    def outcome(self, row: int) -> tuple[Hypothesis, ...]:
        """See `Group.outcome`: what was found, with its attention."""
        lanes = np.stack(self._seen[row], axis=1).tolist()  # T of (W, S) -> (W, T, S)
        return tuple(
            replace(hypothesis, attention=tuple(map(tuple, lane[: len(hypothesis.ids)])))
            for hypothesis, lane in zip(self.sentences[row].found, lanes, strict=True)
        )

    def _tokens(self) -> Tokens:
        """What to feed next, (R, W)."""
        rows = zip(self.sentences, self._seen, strict=True)
        return np.array([[self._token(each.ids, len(seen)) for each in sentence.found] for sentence, seen in rows])

    def _token(self, ids: Sequence[int], step: int) -> int:
        """BOS, then the ids; a lane that is through gets EOS, which surely is in the vocabulary."""
        if step == 0:
            return self._special.bos_id
        return ids[step - 1] if step <= len(ids) else self._special.eos_id


class SearchGroup(Group):
    """Sentences that are searched for; steerings and search hold the same ones in the same order too."""

    def __init__(self, name: GroupName, special: SpecialIds) -> None:
        super().__init__(name, special)
        self.search = open_search(name.width, special)
        self._steerings: list[Steering | None] = []
        self._steered = 0
        """How many of them there are."""

    def enter(self, sentences: Sequence[Sentence], slots: Sequence[int]) -> None:
        """See `Group.enter`."""
        super().enter(sentences, slots)
        self.search.enter([(sentence.options, sentence.limit) for sentence in sentences])
        self._steerings += [self._steering(sentence) for sentence in sentences]
        self._count()

    def leave(self, rows: Collection[int]) -> list[int]:
        """See `Group.leave`."""
        self._steerings = without(self._steerings, rows)
        self._count()
        self.search.leave(rows)
        return super().leave(rows)

    def outcome(self, row: int) -> tuple[Hypothesis, ...]:
        """See `Group.outcome`."""
        return self.search.outcome(row)

    def advance(self, stepper: Stepper) -> list[int]:
        """See `Group.advance`."""
        search = self.search
        log_probs, ids = stepper.step(self.slots, search.tokens, self._reach(stepper.vocab_size))
        attention = self._attention(stepper)
        if self._steered:
            log_probs, ids = self._steer(log_probs, ids)
        parents, ended = search.advance(log_probs, ids, attention)
        if parents is not None and len(ended) < len(self.slots):
            stepper.reorder(self.slots, parents)
        return ended

    def _steering(self, sentence: Sentence) -> Steering | None:
        options = sentence.options
        if not (options.steered or options.carried(sentence.source)):
            return None
        return Steering(options, sentence.limit, self._special, sentence.source, self.search.candidates)

    def _count(self) -> None:
        self._steered = sum(steering is not None for steering in self._steerings)

    def _reach(self, vocab_size: int) -> int:
        """Candidates of each lane that the step must bring: what the search wants, or the most that a sentence needs.

        Rounded up to a power of two, so that few different sizes occur and buffers are used again.
        """
        usual = most = self.search.candidates
        if self._steered:
            for row, steering in enumerate(self._steerings):
                if steering is not None:
                    most = max(most, steering.reach(self.search.histories(row)))
        return usual if most == usual else max(usual, min(1 << (most - 1).bit_length(), vocab_size))

    def _steer(self, log_probs: LogProbs, ids: Tokens) -> tuple[LogProbs, Tokens]:
        usual = self.search.candidates
        best, names = log_probs[:, :, :usual].copy(), ids[:, :, :usual].copy()  # (R, W, k) -> (R, W, n)
        for row, steering in enumerate(self._steerings):
            if steering is not None:
                best[row], names[row] = steering.steer(log_probs[row], ids[row])
        return best, names

"""The running sentences that step together: their search, and what steers it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from model.decode.admission import Sentence
from model.decode.options import SpecialIds
from model.decode.search import open_search
from model.decode.steering import Steering
from model.decode.stepper import LogProbs, Stepper, Tokens


class Group:
    """Rows of one width; sentences, slots, steerings and search hold the same ones in the same order."""

    def __init__(self, width: int, special: SpecialIds) -> None:
        self.width = width
        self.search = open_search(width, special)
        self.sentences: list[Sentence] = []
        self.slots: list[int] = []
        self._special = special
        self._steerings: list[Steering | None] = []
        self._steered = 0
        """How many of them there are."""

    def enter(self, sentences: Sequence[Sentence], slots: Sequence[int]) -> None:
        """Take in sentences that were just encoded."""
        self.search.enter([(sentence.options, sentence.limit) for sentence in sentences])
        self.sentences += sentences
        self.slots += slots
        self._steerings += [self._steering(sentence) for sentence in sentences]
        self._count()

    def leave(self, rows: Collection[int]) -> list[int]:
        """Drop rows; the slots they held, in the order of `rows`."""
        freed = [self.slots[row] for row in rows]
        keep = [row for row in range(len(self.slots)) if row not in rows]
        self.sentences = [self.sentences[row] for row in keep]
        self.slots = [self.slots[row] for row in keep]
        self._steerings = [self._steerings[row] for row in keep]
        self._count()
        self.search.leave(rows)
        return freed

    def advance(self, stepper: Stepper) -> list[int]:
        """One decoder step; the rows that ended, ascending. What the stepper raises comes through."""
        search = self.search
        log_probs, ids = stepper.step(self.slots, search.tokens, self._reach(stepper.vocab_size))
        if self._steered:
            log_probs, ids = self._steer(log_probs, ids)
        parents, ended = search.advance(log_probs, ids)
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

"""In-flight batching: sentences enter and leave a running batch at step boundaries.

Nobody waits for a batch to fill and nobody is held by a neighbour: a sentence enters at the next step with room for
it, and leaves at the step that ends it. Greedy searches and beams of any width run side by side; those of one width
share a call of the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from operator import length_hint

from model.decode.admission import (
    BatcherLimits,
    GroupName,
    Sentence,
    WaitingLine,
    check_ids,
    padded_tokens,
    source_ids,
    target_limit,
)
from model.decode.group import ForcedGroup, Group, SearchGroup
from model.decode.guard import guarded, lost_its_way
from model.decode.options import DecodeOptions, Hypothesis, SpecialIds
from model.decode.results import Finished, StepStats
from model.decode.stepper import Stepper
from model.errors import DecodeError

__all__ = ["Batcher", "BatcherLimits", "Finished", "StepStats", "decode_all"]


class Batcher:
    """Drives a `Stepper` for many sentences at once. Synchronous; one thread calls it.

    Faults stay with their sentence. If encoding a batch raises, its halves are encoded apart, down to the guilty one.
    If a decoder step raises, the state of its sentences is lost: they start again from their sources, each half in a
    cohort of its own, until the guilty one stands alone and fails. Results do not depend on neighbours, so the
    innocent lose time and nothing else.
    """

    def __init__(
        self,
        stepper: Stepper,
        limits: BatcherLimits | None = None,
        *,
        special: SpecialIds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stepper = stepper
        self._limits = limits or BatcherLimits()
        self._special = special or SpecialIds()
        self._clock = clock
        self._line = WaitingLine()
        self._keys: set[Hashable] = set()
        self._groups: dict[GroupName, Group] = {}
        self._cohorts = 0
        self._checked: DecodeOptions | None = None
        """Those of the last sentence that was added."""
        self._done: list[Finished] = []
        self._stats = StepStats()

    @property
    def waiting(self) -> int:
        """Sentences that hold no slot yet."""
        return len(self._line)

    @property
    def running(self) -> int:
        """Sentences that hold a slot."""
        return sum(len(group.slots) for group in self._groups.values())

    @property
    def idle(self) -> bool:
        """True when `step` would do nothing."""
        return not self._keys

    @property
    def stats(self) -> StepStats:
        """What the last `step` did."""
        return self._stats

    def add(self, key: Hashable, source: Sequence[int], options: DecodeOptions) -> None:
        """Queue a sentence (ids, EOS included) under a key that is not in use. No work is done yet.

        Raises `DecodeError` when it could never be decoded: an empty or too long source, ids out of range, a beam
        wider than `max_lanes`, a key in use, a prefix that leaves no room.
        """
        if key in self._keys:
            raise DecodeError(f"keys must be unique, but {key!r} is still being decoded.")
        if options.beam_size > self._limits.max_lanes:
            raise DecodeError(f"beam_size must be at most max_lanes {self._limits.max_lanes}, not {options.beam_size}.")
        ids = source_ids(source, self._stepper.vocab_size, self._stepper.max_positions)
        limit = target_limit(options, len(ids), self._stepper)
        if options is not self._checked:  # a job's sentences share one object, which may hold thousands of ids
            check_ids(options, self._stepper, self._special)
            self._checked = options
        self._line.append(Sentence(key, ids, options, limit, self._clock()))
        self._keys.add(key)

    def cancel(self, key: Hashable) -> None:
        """Forget a sentence, waiting or running; its slot is free at once. An unknown key is ignored."""
        if key not in self._keys:
            return
        self._keys.discard(key)
        if self._line.remove(key):
            return
        for name, group in list(self._groups.items()):
            rows = [row for row, sentence in enumerate(group.sentences) if sentence.key == key]
            if rows:
                self._release(name, rows)

    def step(self) -> list[Finished]:
        """Let in who fits, take one decoder step with every width, and return the sentences that ended.

        Nothing that `start`, `step` or `reorder` raise comes through; it ends in a `Finished`. What `finish` raises
        does: a stepper that cannot free a slot is of no more use.
        """
        self._done, self._stats = [], StepStats()
        began = self._clock()
        self._admit()
        encoded = self._clock()
        self._stats.encode_seconds = encoded - began
        for name in list(self._groups):
            self._advance(name)
        self._stats.decode_seconds = self._clock() - encoded
        return self._done

    def _admit(self) -> None:
        if not self.waiting:
            return
        slots = self._limits.max_slots - self.running
        lanes = self._limits.max_lanes - sum(len(g.slots) * g.width for g in self._groups.values())
        for sentences in self._line.admit(slots, lanes, self._limits.max_batch_tokens):
            for sentence in sentences:
                if sentence.started_at is None:
                    sentence.started_at = self._clock()
                    self._stats.admitted.append(sentence.key)
            self._encode(sentences)

    def _encode(self, sentences: list[Sentence]) -> None:
        """Start sentences of one group together; where that raises, in halves."""
        name = sentences[0].group
        try:
            sources = [sentence.source for sentence in sentences]
            slots = self._stepper.start(sources, name.width, name.apart, name.attending)
        except Exception as error:  # noqa: BLE001  whatever the network raises must stay with its sentence
            if len(sentences) == 1:
                self._finish(sentences[0], (), error if isinstance(error, DecodeError) else _fault(error))
                return
            half = len(sentences) // 2
            self._encode(sentences[:half])
            self._encode(sentences[half:])
            return
        if name not in self._groups:
            kind = ForcedGroup if name.forced else SearchGroup
            self._groups[name] = kind(name, self._special)
        self._groups[name].enter(sentences, slots)
        self._stats.source_tokens += sum(len(sentence.source) for sentence in sentences)
        self._stats.padded_tokens += padded_tokens(sentences)

    def _advance(self, name: GroupName) -> None:
        """One decoder step of a group."""
        group = self._groups[name]
        self._stats.rows += len(group.slots)
        self._stats.lanes += len(group.slots) * name.width
        try:
            ended = group.advance(self._stepper)
        except Exception as error:  # noqa: BLE001  whatever the network raises must stay with its sentence
            self._split(name, error)
            return
        if ended:
            self._harvest(group, ended)
            self._release(name, ended)

    def _harvest(self, group: Group, rows: Sequence[int]) -> None:
        again = []
        for row in rows:
            sentence = group.sentences[row]
            try:
                found = group.outcome(row)
            except DecodeError as error:
                self._finish(sentence, (), error)
                continue
            if self._wants_more(sentence, found):
                again.append(sentence)
            else:
                self._finish(sentence, found, None)
        self._line.put_back(again)

    def _wants_more(self, sentence: Sentence, found: tuple[Hypothesis, ...]) -> bool:
        """True if the sentence must go through the network once more, for which it has been made ready."""
        options = sentence.options
        if sentence.found:
            return False
        watched = options.repetition_guard and not sentence.guarded
        if watched and lost_its_way(sentence.source, options, found[0]):
            sentence.options, sentence.guarded = guarded(options), True
            return True
        if options.alignment and any(hypothesis.ids for hypothesis in found):
            sentence.found = found
        return bool(sentence.found)

    def _release(self, name: GroupName, rows: Collection[int]) -> None:
        """Give the slots of these rows back; an empty group goes."""
        group = self._groups[name]
        freed = group.leave(rows)
        if not group.slots:
            del self._groups[name]
        self._stepper.finish(freed)

    def _split(self, name: GroupName, error: Exception) -> None:
        """After a fault in a step: a single sentence fails; more start again in two cohorts, next in line."""
        sentences = list(self._groups[name].sentences)
        self._release(name, range(len(sentences)))
        if len(sentences) == 1:
            self._finish(sentences[0], (), _fault(error))
            return
        half = len(sentences) // 2
        for part in (sentences[:half], sentences[half:]):
            self._cohorts += 1
            for sentence in part:
                sentence.cohort = self._cohorts
        self._line.put_back(sentences)

    def _finish(self, sentence: Sentence, hypotheses: tuple[Hypothesis, ...], error: DecodeError | None) -> None:
        self._keys.discard(sentence.key)
        ended = self._clock()
        self._done.append(
            Finished(
                key=sentence.key,
                hypotheses=hypotheses,
                error=error,
                added_at=sentence.added_at,
                started_at=sentence.added_at if sentence.started_at is None else sentence.started_at,
                ended_at=ended,
                guarded=sentence.guarded,
            )
        )


def _fault(cause: Exception) -> DecodeError:
    error = DecodeError(f"the network must decode every valid source, but raised {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


def decode_all(
    stepper: Stepper,
    sources: Sequence[Sequence[int]],
    options: DecodeOptions,
    limits: BatcherLimits | None = None,
    *,
    special: SpecialIds | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[Finished]:
    """Decode `sources`, longest first so that neighbours pad little, and return the results in their order.

    A source that cannot be decoded has an error in its place. `progress` is told how many have just ended.
    """
    batcher = Batcher(stepper, limits, special=special)
    results: dict[Hashable, Finished] = {}
    refused = 0
    for row in sorted(range(len(sources)), key=lambda row: -length_hint(sources[row])):
        try:
            batcher.add(row, sources[row], options)
        except DecodeError as error:
            now = time.monotonic()
            results[row] = Finished(key=row, error=error, added_at=now, started_at=now, ended_at=now)
            refused += 1
    if progress and refused:
        progress(refused)
    try:
        while not batcher.idle:
            done = batcher.step()
            for finished in done:
                results[finished.key] = finished
            if progress and done:
                progress(len(done))
    finally:
        for row in range(len(sources)):
            batcher.cancel(row)  # After an interruption the stepper must be as free as before.
    return [results[row] for row in range(len(sources))]

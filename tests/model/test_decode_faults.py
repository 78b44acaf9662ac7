"""A sentence that cannot be decoded ends alone, and a breach of the protocol is noted."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.batcher import Batcher, BatcherLimits, decode_all
from model.decode.options import DecodeOptions
from model.decode.reference import ReferenceStepper, reference_search
from model.errors import DecodeError
from tests.model.batching import GREEDY, POISON, alone, drain, jobs, toy_stepper
from tests.model.toy_language import BOS, EOS, ToyLanguage


class RefusesPoison(ReferenceStepper):
    """Encoding raises whenever the poison is among the sources."""

    def start(self, sources, width, *rest):
        if any(POISON in source for source in sources):
            raise ValueError("a poisoned source")
        return super().start(sources, width, *rest)


class ChokesOnPoison(ReferenceStepper):
    """The third decoder step of a poisoned source raises, and spoils the state of every slot in the call."""

    def step(self, slots, tokens, k):
        if any(POISON in self._sources[slot] and len(self._lanes[slot][0]) == 2 for slot in slots):
            for slot in slots:
                self._lanes[slot] = [(POISON,)] * len(self._lanes[slot])
            raise MemoryError("no room for this step")
        return super().step(slots, tokens, k)


class SpeaksNonsense(ReferenceStepper):
    """A poisoned source has NaN for log-probabilities from the third step on."""

    def step(self, slots, tokens, k):
        log_probs, ids = super().step(slots, tokens, k)
        for row, slot in enumerate(slots):
            if POISON in self._sources[slot] and len(self._lanes[slot][0]) == 3:
                log_probs[row] = np.nan
        return log_probs, ids


@pytest.mark.parametrize("kind", [RefusesPoison, ChokesOnPoison, SpeaksNonsense])
@settings(deadline=None)
@given(
    jobs=jobs, poisoned=st.sets(st.integers(0, 11)), cancelled=st.dictionaries(st.integers(0, 11), st.integers(0, 4))
)
def test_faults_and_cancellations_leave_every_other_result_as_it_was(kind, jobs, poisoned, cancelled):
    stepper = toy_stepper(kind)
    batcher = Batcher(stepper, BatcherLimits(max_slots=8))
    for key, (source, beam_size) in enumerate(jobs):
        bad = (POISON, *source) if key in poisoned else source
        batcher.add(key, bad, DecodeOptions(beam_size=beam_size))
    ended = {}
    for step in range(5):
        for key, when in cancelled.items():
            if when == step:
                batcher.cancel(key)
        ended.update({finished.key: finished for finished in batcher.step()})
    ended.update(drain(batcher, stepper))
    for key, (source, beam_size) in enumerate(jobs):
        if key in poisoned and key in ended and ended[key].error:
            assert isinstance(ended[key].error, DecodeError)
            assert ended[key].hypotheses == ()
        elif key in ended:
            bad = (POISON, *source) if key in poisoned else source
            assert ended[key].hypotheses == alone(bad, DecodeOptions(beam_size=beam_size))
        else:
            assert key in cancelled


@pytest.mark.parametrize(
    ("kind", "cause"),
    [(RefusesPoison, ValueError), (ChokesOnPoison, MemoryError), (SpeaksNonsense, FloatingPointError)],
)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_of_many_together_only_the_poisoned_one_fails(kind, cause, beam_size):
    class NeverEnding(kind):
        """No EOS before the third step, so that the poison works."""

    language = ToyLanguage(vocab_size=9, never_ends=True)
    stepper = NeverEnding(language, 9, max_positions=12)
    batcher = Batcher(stepper)
    options = DecodeOptions(beam_size=beam_size)
    for key in range(8):
        batcher.add(key, (3, POISON if key == 5 else 4, EOS), options)
    ended = drain(batcher, stepper)
    assert sorted(ended) == list(range(8))
    assert [key for key, finished in ended.items() if finished.error] == [5]
    assert isinstance(ended[5].error.__cause__, cause)
    assert ended[0].hypotheses == reference_search(language, (3, 4, EOS), options, 11)


def test_a_refusal_by_the_steppers_encoder_is_passed_on_as_it_is():
    class Strict(ReferenceStepper):
        def start(self, sources, width, *rest):
            if any(len(source) > 3 for source in sources):
                raise DecodeError("a source must be short.")
            return super().start(sources, width, *rest)

    long, short = decode_all(toy_stepper(Strict), [(3, 4, 5, EOS), (3, EOS)], GREEDY)
    assert str(long.error) == "a source must be short."
    assert long.error.__cause__ is None
    assert short.error is None


def test_a_network_that_always_fails_fails_every_sentence_and_then_is_idle():
    class Broken(ReferenceStepper):
        def step(self, slots, tokens, k):
            raise RuntimeError("the device is gone")

    stepper = toy_stepper(Broken)
    finished = decode_all(stepper, [(3, EOS)] * 7, GREEDY)
    assert all("the device is gone" in str(each.error) for each in finished)
    assert stepper.slots == {}


def test_after_a_fault_the_innocent_start_again_before_all_who_wait_and_count_as_admitted_once():
    ticks = count()
    stepper = ChokesOnPoison(ToyLanguage(vocab_size=9, never_ends=True), 9, max_positions=12)
    batcher = Batcher(stepper, BatcherLimits(max_slots=2), clock=lambda: float(next(ticks)))
    batcher.add("innocent", (4, EOS), GREEDY)
    batcher.add("guilty", (POISON, EOS), GREEDY)
    batcher.add("waiting", (5, EOS), GREEDY)
    admitted, ended = [], {}
    while not batcher.idle:
        ended.update({finished.key: finished for finished in batcher.step()})
        admitted.append(batcher.stats.admitted)
    # The fault comes in the third step; the guilty one alone fails in the sixth, and its slot goes to the next.
    assert admitted[:7] == [["innocent", "guilty"], [], [], [], [], [], ["waiting"]]
    assert [key for key, finished in ended.items() if finished.error] == ["guilty"]
    assert ended["innocent"].started_at < 10.0 < ended["innocent"].ended_at


def test_the_reference_stepper_notes_every_breach_of_the_protocol():
    def breach(act):
        stepper = toy_stepper()
        (one,), (two,) = stepper.start([(4, EOS)], 1), stepper.start([(4, EOS)], 2)
        with pytest.raises(RuntimeError):
            act(stepper, one, two)
        return stepper.breaches[0]

    bos, word = np.full((1, 1), BOS), np.full((1, 1), 4)
    assert "BOS" in breach(lambda stepper, one, two: stepper.step([one], word, 1))
    assert "one width" in breach(lambda stepper, one, two: stepper.step([one, two], bos, 1))
    assert "each once" in breach(lambda stepper, one, two: stepper.step([one, one], bos, 1))
    assert "tokens must be" in breach(lambda stepper, one, two: stepper.step([two], bos, 1))
    assert "in use" in breach(lambda stepper, one, two: stepper.finish([7]))
    assert "no parents" in breach(lambda stepper, one, two: stepper.reorder([two], np.array([[0, 2]])))
    assert "start needs" in breach(lambda stepper, one, two: stepper.start([], 1))

"""In-flight batching: who enters, who leaves, and that neighbours never show in a result."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.admission import Sentence, WaitingLine
from model.decode.batcher import Batcher, BatcherLimits, decode_all
from model.decode.options import DecodeOptions
from model.decode.reference import ReferenceStepper
from model.errors import DecodeError
from tests.model.batching import GREEDY, alone, drain, jobs, toy_stepper
from tests.model.toy_language import EOS, ToyLanguage


@settings(deadline=None)
@given(
    jobs=jobs,
    arrivals=st.lists(st.integers(0, 6), min_size=12, max_size=12),
    shuffle=st.randoms(use_true_random=False),
    limits=st.builds(
        BatcherLimits, max_slots=st.integers(1, 9), max_lanes=st.integers(5, 20), max_batch_tokens=st.integers(1, 40)
    ),
)
def test_a_result_is_the_same_alone_in_any_batch_in_any_order_at_any_time(jobs, arrivals, shuffle, limits):
    stepper = toy_stepper()
    batcher = Batcher(stepper, limits)
    todo = [(step, key, *job) for key, (step, job) in enumerate(zip(arrivals, jobs, strict=False))]
    shuffle.shuffle(todo)
    ended = {}
    for step in count():
        for arrival, key, source, beam_size in todo:
            if arrival == step:
                batcher.add(key, source, DecodeOptions(beam_size=beam_size, n_best=beam_size))
        for finished in batcher.step():
            ended[finished.key] = finished
        assert batcher.running <= limits.max_slots
        assert sum(stepper.slots.values()) <= limits.max_lanes
        assert len(stepper.slots) == batcher.running
        if step > 6 and batcher.idle:
            break
    assert stepper.breaches == []
    assert stepper.slots == {}
    for _, key, source, beam_size in todo:
        assert ended[key].error is None
        assert ended[key].hypotheses == alone(source, DecodeOptions(beam_size=beam_size, n_best=beam_size))


def test_waiting_sentences_are_encoded_together_and_at_once():
    stepper = toy_stepper()
    batcher = Batcher(stepper)
    for key in range(5):
        batcher.add(key, (4, 5, EOS), GREEDY)
    assert stepper.calls == []  # Adding does no work.
    assert (batcher.waiting, batcher.running, batcher.idle) == (5, 0, False)
    batcher.step()
    assert stepper.calls[:2] == [("start", 5), ("step", 5)]
    assert batcher.stats.admitted == [0, 1, 2, 3, 4]


def test_a_sentence_joins_a_running_batch_at_the_next_step():
    stepper = ReferenceStepper(ToyLanguage(vocab_size=9, never_ends=True), 9)
    batcher = Batcher(stepper)
    batcher.add("old", (4, 5, EOS), GREEDY)
    batcher.step()
    batcher.add("new", (6, EOS), GREEDY)
    batcher.step()
    assert stepper.calls[-2:] == [("start", 1), ("step", 2)]
    assert batcher.running == 2


def test_a_finished_row_leaves_at_once_and_its_place_is_taken_in_the_next_step():
    stepper = ReferenceStepper(ToyLanguage(vocab_size=9, never_ends=True), 9)
    batcher = Batcher(stepper, BatcherLimits(max_slots=2))
    batcher.add("short", (4, EOS), DecodeOptions(beam_size=1, max_length=2))
    batcher.add("long", (4, 5, EOS), DecodeOptions(beam_size=1, max_length=20))
    batcher.add("next", (6, EOS), GREEDY)
    assert batcher.step() == []
    assert [finished.key for finished in batcher.step()] == ["short"]
    assert (batcher.running, batcher.waiting) == (1, 1)
    batcher.step()
    assert (batcher.running, batcher.waiting) == (2, 0)


def test_greedy_and_beams_of_several_widths_run_side_by_side_each_with_its_own_options():
    stepper = toy_stepper()
    batcher = Batcher(stepper)
    many = [
        DecodeOptions(beam_size=1),
        DecodeOptions(beam_size=4, length_penalty=0.0),
        DecodeOptions(beam_size=4, length_penalty=3.0, n_best=4),
        DecodeOptions(beam_size=7, max_length=3),
    ]
    for key, options in enumerate(many):
        batcher.add(key, (4, 5, 6, EOS), options)
    batcher.step()
    assert [size for verb, size in stepper.calls if verb == "step"] == [1, 2, 1]
    assert (batcher.stats.rows, batcher.stats.lanes) == (4, 16)
    ended = drain(batcher, stepper)
    for key, options in enumerate(many):
        assert ended[key].hypotheses == alone((4, 5, 6, EOS), options)


def test_encoding_keeps_to_the_token_budget_counting_padding():
    stepper = ReferenceStepper(ToyLanguage(vocab_size=9, never_ends=True), 9)
    batcher = Batcher(stepper, BatcherLimits(max_batch_tokens=12))
    for key, length in enumerate((3, 3, 6, 2, 2, 40, 1)):
        batcher.add(key, (4,) * (length - 1) + (EOS,), GREEDY)
    admitted, padded, real = [], [], []
    for _ in range(5):
        batcher.step()
        admitted.append(batcher.stats.admitted)
        padded.append(batcher.stats.padded_tokens)
        real.append(batcher.stats.source_tokens)
    # 3 + 3 would pad to 18 with the 6; 6 + 2 is 12; the 40 exceeds the budget and so goes alone.
    assert admitted == [[0, 1], [2, 3], [4], [5], [6]]
    assert padded == [6, 12, 2, 40, 1]
    assert real == [6, 8, 2, 40, 1]


def test_a_wide_sentence_at_the_head_is_not_overtaken_for_ever():
    stepper = ReferenceStepper(ToyLanguage(vocab_size=9, never_ends=True), 9)
    batcher = Batcher(stepper, BatcherLimits(max_lanes=8))
    short = DecodeOptions(beam_size=1, max_length=4)
    for key in range(4):
        batcher.add(key, (4, EOS), short)
    batcher.step()
    batcher.add("wide", (4, EOS), DecodeOptions(beam_size=8, max_length=4))
    for step in range(20):
        batcher.add(f"late {step}", (4, EOS), short)
        batcher.step()
        if "wide" in batcher.stats.admitted:
            break
    assert step == 3  # The four that ran before it took so long; nobody else went in.
    assert not any(str(key).startswith("late") for key in batcher.stats.admitted)


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20), budget=st.integers(1, 60))
def test_sentences_enter_in_the_order_they_came(lengths, budget):
    stepper = ReferenceStepper(ToyLanguage(vocab_size=9), 9)
    batcher = Batcher(stepper, BatcherLimits(max_slots=3, max_batch_tokens=budget))
    for key, length in enumerate(lengths):
        batcher.add(key, (4,) * (length - 1) + (EOS,), DecodeOptions(beam_size=1, max_length=3))
    admitted = []
    while not batcher.idle:
        batcher.step()
        admitted += batcher.stats.admitted
    assert admitted == list(range(len(lengths)))


def test_who_is_put_back_stands_first_in_the_old_order():
    line = WaitingLine()
    one, two, three = (Sentence(key, (EOS,), GREEDY, 9, 0.0) for key in (1, 2, 3))
    line.append(three)
    line.put_back([one, two])
    assert line.admit(slots=9, lanes=9, tokens=9) == [[one, two, three]]
    assert len(line) == 0


def test_cancel_frees_a_waiting_or_running_sentence_at_once_and_ignores_unknown_keys():
    stepper = ReferenceStepper(ToyLanguage(vocab_size=9, never_ends=True), 9)
    batcher = Batcher(stepper, BatcherLimits(max_slots=2))
    for key in range(3):
        batcher.add(key, (4, 5, EOS), DecodeOptions(beam_size=2))
    batcher.step()
    batcher.cancel(0)
    assert (batcher.running, batcher.waiting, len(stepper.slots)) == (1, 1, 1)
    batcher.cancel(2)
    batcher.cancel(2)
    batcher.cancel("never seen")
    assert (batcher.running, batcher.waiting) == (1, 0)
    assert sorted(drain(batcher, stepper)) == [1]


def test_a_thousand_sentences_cancelled_at_once_leave_no_slot_taken():
    stepper = toy_stepper()
    batcher = Batcher(stepper, BatcherLimits(max_slots=1))
    for key in range(1000):
        batcher.add(key, (4, EOS), GREEDY)
        if key % 3 == 0:
            batcher.step()
        batcher.cancel(key)
    assert (batcher.idle, stepper.slots) == (True, {})
    for key in range(10):
        batcher.add(key, (4, EOS), GREEDY)
    assert all(finished.hypotheses == alone((4, EOS), GREEDY) for finished in drain(batcher, stepper).values())


def test_a_key_may_be_used_again_once_it_has_ended_but_not_before():
    stepper = toy_stepper()
    batcher = Batcher(stepper)
    batcher.add("key", (4, EOS), GREEDY)
    with pytest.raises(DecodeError, match="keys must be unique"):
        batcher.add("key", (4, EOS), GREEDY)
    drain(batcher, stepper)
    batcher.add("key", (4, EOS), GREEDY)
    assert list(drain(batcher, stepper)) == ["key"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((), "1 to 12 tokens, but has 0"),
        ((4,) * 13, "has 13; split the text"),
        ((4, 9), "must be in 0..8"),
        ((-1, EOS), "must be in 0..8"),
        (None, "sequence of whole numbers"),
        ((4, None), "sequence of whole numbers"),
        ("text", "sequence of whole numbers"),
        ((4.0, EOS), "sequence of whole numbers"),
    ],
)
def test_a_source_that_could_never_be_decoded_is_refused_when_added(source, message):
    batcher = Batcher(toy_stepper())
    with pytest.raises(DecodeError, match=message):
        batcher.add("bad", source, GREEDY)
    assert batcher.idle


def test_a_beam_wider_than_all_lanes_is_refused_when_added():
    batcher = Batcher(toy_stepper(), BatcherLimits(max_lanes=3))
    with pytest.raises(DecodeError, match="max_lanes 3"):
        batcher.add("wide", (4, EOS), DecodeOptions(beam_size=4))


def test_a_stepper_may_overwrite_the_arrays_it_returned():
    class Reusing(ReferenceStepper):
        last = ()

        def _spoil(self):
            for array in self.last:
                array.fill(7)

        def step(self, slots, tokens, k):
            self._spoil()
            self.last = super().step(slots, tokens, k)
            return self.last

        def reorder(self, slots, parents):
            self._spoil()
            super().reorder(slots, parents)

    for options in (GREEDY, DecodeOptions(beam_size=3, n_best=3)):
        stepper = toy_stepper(Reusing)
        (finished, _) = decode_all(stepper, [(4, 5, EOS), (6, EOS)], options)
        assert finished.hypotheses == alone((4, 5, EOS), options)
        assert stepper.breaches == []


def test_sources_may_be_numpy_arrays():
    (finished,) = decode_all(toy_stepper(), [np.array([4, 5, EOS])], GREEDY)
    assert finished.hypotheses == alone((4, 5, EOS), GREEDY)


def test_times_tell_waiting_from_decoding():
    ticks = count()
    stepper = ReferenceStepper(ToyLanguage(vocab_size=9, never_ends=True), 9)
    batcher = Batcher(stepper, BatcherLimits(max_slots=1), clock=lambda: float(next(ticks)))
    options = DecodeOptions(beam_size=1, max_length=3)
    batcher.add("first", (4, EOS), options)
    batcher.add("second", (4, EOS), options)
    ended = drain(batcher, stepper)
    first, second = ended["first"], ended["second"]
    assert first.added_at < first.started_at < first.ended_at < second.started_at < second.ended_at
    assert second.queue_seconds == second.started_at - second.added_at
    assert second.decode_seconds == second.ended_at - second.started_at


def test_the_stats_are_of_the_last_step_only():
    stepper = ReferenceStepper(ToyLanguage(vocab_size=9, never_ends=True), 9)
    batcher = Batcher(stepper)
    batcher.add("a", (4, 5, EOS), DecodeOptions(beam_size=2))
    batcher.add("b", (4, EOS), DecodeOptions(beam_size=2))
    batcher.step()
    stats = batcher.stats
    assert (stats.source_tokens, stats.padded_tokens, stats.rows, stats.lanes) == (5, 6, 2, 4)
    assert stats.encode_seconds > 0
    assert stats.decode_seconds > 0
    batcher.step()
    assert (batcher.stats.admitted, batcher.stats.source_tokens, batcher.stats.rows) == ([], 0, 2)

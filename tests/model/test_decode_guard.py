"""The repetition guard: what it notices, what it leaves alone, and that a neighbour never sees it."""

from __future__ import annotations

import numpy as np
import pytest

from model.decode.batcher import Batcher, BatcherLimits, decode_all
from model.decode.guard import goes_in_circles, guarded, times_in_a_row
from model.decode.options import DecodeOptions
from model.decode.reference import ReferenceStepper, reference_search
from tests.model.toy_language import EOS, ToyLanguage

LA, MI, RE = 7, 8, 9
PLAIN = ToyLanguage(vocab_size=12)


def singer(source, history):
    """The toy language, but whoever begins a source with LA hears it for ever; unless it is forbidden."""
    log_probs = PLAIN(source, history).copy()
    if source[0] == LA:
        log_probs -= 20.0
        log_probs[LA] = np.float32(-1e-3)
    return log_probs


singer.vocab_size = 12


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ((3, EOS), (LA,) * 8),
        ((3, EOS), (4, 5, *(LA,) * 20, 6)),
        ((3, 4, EOS), (LA, MI) * 4),
        ((3, 4, EOS), (5, *(LA, MI, RE) * 4)),
        ((LA, LA, LA, EOS), (LA,) * 40),
        ((3, EOS), tuple(range(20, 36)) * 4),
    ],
)
def test_a_loop_is_noticed(source, ids):
    assert goes_in_circles(source, (), ids)


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        ((3, EOS), ()),
        ((3, EOS), (LA,) * 7),
        ((3, EOS), (LA, MI, RE) * 3),
        ((3, EOS), (LA, 4, LA, 5, LA, 6, LA, 10, LA, 11, LA)),
        # Who says it ten times is translated with ten times.
        ((*(5,) * 10, EOS), (LA,) * 12),
        ((*(5, 6) * 6, EOS), (LA, MI) * 7),
    ],
)
def test_what_is_no_loop_or_is_one_in_the_source_too_is_left_alone(source, ids):
    assert not goes_in_circles(source, (), ids)


def test_a_prefix_that_repeats_may_be_repeated():
    assert not goes_in_circles((3, EOS), (LA,) * 8, (LA,) * 9)


def test_times_in_a_row_are_those_of_the_shortest_unit():
    assert times_in_a_row((LA,) * 9) == 9
    assert times_in_a_row((LA, MI) * 5) == 5
    assert times_in_a_row(()) == 1


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_sentence_that_loops_is_decoded_again_without_repeats_and_says_so(beam_size):
    options = DecodeOptions(beam_size=beam_size, repetition_guard=True)
    stepper = ReferenceStepper(singer, 12)
    source = (LA, 4, EOS)
    (looped,) = decode_all(stepper, [source], DecodeOptions(beam_size=beam_size))
    (finished,) = decode_all(stepper, [source], options)
    assert not looped.guarded
    assert looped.hypotheses[0].ids[-8:] == (LA,) * 8
    assert finished.guarded
    assert finished.hypotheses == reference_search(singer, source, guarded(options), options.limit(3, 64))
    assert not goes_in_circles(source, (), finished.hypotheses[0].ids)
    assert stepper.breaches == []
    assert stepper.slots == {}


def test_neighbours_are_not_touched_and_each_sentence_ends_once():
    options = DecodeOptions(beam_size=2, repetition_guard=True)
    sources = [(LA, 4, EOS), (4, 5, EOS), (LA, EOS), (6, EOS), (LA, LA, EOS)]
    stepper = ReferenceStepper(singer, 12)
    batcher, ended = Batcher(stepper, BatcherLimits(max_slots=3)), []
    for key, source in enumerate(sources):
        batcher.add(key, source, options)
    while not batcher.idle:
        ended += batcher.step()
    assert sorted(finished.key for finished in ended) == [0, 1, 2, 3, 4]
    for finished in ended:
        source = sources[finished.key]
        assert finished.guarded == (source[0] == LA)
        used = guarded(options) if finished.guarded else options
        assert finished.hypotheses == reference_search(singer, source, used, options.limit(len(source), 64))


def test_a_looping_sentence_can_be_cancelled_while_it_waits_to_be_decoded_again():
    stepper = ReferenceStepper(singer, 12)
    batcher = Batcher(stepper)
    batcher.add("la", (LA, EOS), DecodeOptions(beam_size=1, repetition_guard=True))
    while not batcher.waiting:
        assert batcher.step() == []
    batcher.cancel("la")
    assert batcher.idle
    assert stepper.slots == {}


def test_a_stricter_blocking_that_was_asked_for_is_kept():
    assert guarded(DecodeOptions()).no_repeat_ngram == 3
    assert guarded(DecodeOptions(no_repeat_ngram=2)).no_repeat_ngram == 2
    assert guarded(DecodeOptions(no_repeat_ngram=9)).no_repeat_ngram == 3
    assert guarded(DecodeOptions(repetition_penalty=1.1)).repetition_penalty == 1.2
    assert guarded(DecodeOptions(repetition_penalty=1.5)).repetition_penalty == 1.5


def rambler(source, history):
    """Never ends, nor says the same in the same order, as long as it may say again what it has said."""
    log_probs = np.full(12, -3.0, dtype=np.float32)
    said = len(history)
    log_probs[EOS] = -2.3
    log_probs[4 + (said * said + said // 3) % 8] = -2.0
    return log_probs


rambler.vocab_size = 12


def test_a_sentence_that_comes_to_no_end_is_decoded_again_with_a_price_on_what_comes_again():
    options = DecodeOptions(beam_size=1, repetition_guard=True)
    stepper = ReferenceStepper(rambler, 12)
    source = (4, 5, EOS)
    (endless,) = decode_all(stepper, [source], DecodeOptions(beam_size=1))
    assert endless.hypotheses[0].truncated
    assert not goes_in_circles(source, (), endless.hypotheses[0].ids)
    (finished,) = decode_all(stepper, [source], options)
    assert finished.guarded
    assert not finished.hypotheses[0].truncated


def test_a_length_that_was_asked_for_is_no_fault():
    options = DecodeOptions(beam_size=1, repetition_guard=True, max_length=6)
    (finished,) = decode_all(ReferenceStepper(rambler, 12), [(4, 5, EOS)], options)
    assert finished.hypotheses[0].truncated
    assert not finished.guarded

"""Alignment and coverage in the search: what the slow twin finds, and nothing that a neighbour would notice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.batcher import Batcher, BatcherLimits, decode_all
from model.decode.coverage import LEAST, coverage_penalty
from model.decode.options import DecodeOptions, Sampling
from model.decode.reference import ReferenceStepper, reference_search
from model.errors import DecodeError
from tests.model.toy_language import EOS, FIRST, ToyLanguage

VOCABULARY = 11
POSITIONS = 20
LANGUAGE = ToyLanguage(VOCABULARY)
words = st.integers(FIRST, VOCABULARY - 1)
sources = st.lists(words, max_size=5).map(lambda ids: (*ids, EOS))


@st.composite
def some_options(draw: st.DrawFn) -> DecodeOptions:
    sampling = draw(st.sampled_from([None, None, None, Sampling(seed=3)]))
    beam_size = 1 if sampling else draw(st.sampled_from([1, 2, 4, 5]))
    return DecodeOptions(
        beam_size=beam_size,
        n_best=draw(st.integers(1, beam_size)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 3.0])),
        coverage_penalty=0.0 if beam_size == 1 else draw(st.sampled_from([0.0, 0.2, 2.0, 10.0])),
        max_length=draw(st.none() | st.integers(5, 14)),
        no_repeat_ngram=draw(st.sampled_from([0, 0, 2])),
        prefix=tuple(draw(st.just([]) | st.lists(words, max_size=3))),
        sampling=sampling,
        token_scores=draw(st.booleans()),
        alignment=draw(st.booleans()),
    )


def attending(language=LANGUAGE, kind=ReferenceStepper):
    return kind(language, VOCABULARY, POSITIONS, gaze=language.gaze)


def alone(language, source, options):
    limit = options.limit(len(source), POSITIONS)
    return reference_search(language, source, options, limit, gaze=language.gaze)


def decode(source, options, language=LANGUAGE):
    stepper = attending(language)
    (finished,) = decode_all(stepper, [source], options)
    assert stepper.breaches == []
    assert stepper.slots == {}
    if finished.error:
        raise finished.error
    return finished.hypotheses


@settings(deadline=None)
@given(source=sources, options=some_options(), seed=st.integers(0, 30), rounding=st.sampled_from([None, 0]))
def test_alignment_and_coverage_are_what_the_slow_twin_finds(source, options, seed, rounding):
    language = ToyLanguage(VOCABULARY, seed=seed, rounding=rounding)
    assert decode(source, options, language) == alone(language, source, options)


@settings(deadline=None)
@given(
    jobs=st.lists(st.tuples(sources, some_options()), min_size=1, max_size=8),
    arrivals=st.lists(st.integers(0, 5), min_size=8, max_size=8),
    cancelled=st.sets(st.integers(0, 7), max_size=3),
    limits=st.builds(BatcherLimits, max_slots=st.integers(1, 8), max_lanes=st.integers(5, 20)),
)
def test_neighbours_never_show_whoever_of_them_wants_to_know_the_attention(jobs, arrivals, cancelled, limits):
    stepper = attending()
    batcher, ended = Batcher(stepper, limits), {}
    for step in range(500):
        for key, (source, options) in enumerate(jobs):
            if arrivals[key] == step:
                batcher.add(key, source, options)
            if key in cancelled and arrivals[key] + 6 == step:
                batcher.cancel(key)
        ended.update({finished.key: finished for finished in batcher.step()})
        if step > 12 and batcher.idle:
            break
    assert batcher.idle
    assert stepper.breaches == []
    assert stepper.slots == {}
    for key, (source, options) in enumerate(jobs):
        if key in ended:
            assert ended[key].error is None
            assert ended[key].hypotheses == alone(LANGUAGE, source, options)
        else:
            assert key in cancelled


@settings(deadline=None, max_examples=50)
@given(source=sources, options=some_options(), seed=st.integers(0, 30))
def test_to_ask_for_the_alignment_changes_nothing_else(source, options, seed):
    language = ToyLanguage(VOCABULARY, seed=seed)
    plain = decode(source, replace(options, alignment=False), language)
    aligned = decode(source, replace(options, alignment=True), language)
    assert tuple(replace(each, attention=()) for each in aligned) == plain
    for each in aligned:
        assert len(each.attention) == len(each.ids)
        assert all(len(row) == len(source) and sum(row) == pytest.approx(1.0, abs=1e-5) for row in each.attention)


def test_a_coverage_penalty_of_nothing_is_the_plain_search_in_the_plain_pool():
    stepper = attending()
    options = DecodeOptions(beam_size=4)
    plain, zero = (
        decode_all(stepper, [(4, 5, EOS)], each) for each in (options, replace(options, coverage_penalty=0.0))
    )
    assert plain[0].hypotheses == zero[0].hypotheses
    assert "attention" not in {verb for verb, _ in stepper.calls}


def test_the_penalty_is_the_papers():
    coverage = np.array([0.5, 1.0, 3.0, 0.25], np.float32)
    assert coverage_penalty(coverage, 0.2) == pytest.approx(0.2 * (np.log(0.5) + np.log(0.25)))
    assert coverage_penalty(np.ones(4, np.float32), 5.0) == 0.0
    assert coverage_penalty(np.zeros(3, np.float32), 1.0) == pytest.approx(3 * np.log(LEAST))


class Choosy:
    """Two translations, of which the likelier one leaves half of the source out."""

    def __call__(self, source, history):
        log_probs = np.full(VOCABULARY, -np.inf, np.float32)
        if not history:
            log_probs[[5, 6]] = np.log([0.6, 0.4])
        else:
            log_probs[EOS] = 0.0
        return log_probs

    def gaze(self, source, history):
        looks_at_all = np.array([0.5, 0.5, 0.0]) if history == (6,) else np.array([1.0, 0.0, 0.0])
        return (np.array([0.0, 0.0, 1.0]) if history == () else looks_at_all).astype(np.float32)


def test_a_translation_that_leaves_words_out_loses_by_its_coverage():
    source = (3, 4, EOS)
    plain, covered = (
        decode(source, DecodeOptions(beam_size=2, n_best=2, coverage_penalty=beta), Choosy()) for beta in (0.0, 1.0)
    )
    assert [each.ids for each in plain] == [(5,), (6,)]
    assert [each.ids for each in covered] == [(6,), (5,)]
    assert covered[0].score == pytest.approx(plain[1].score + 2 * np.log(0.5))
    assert covered[0].log_prob == plain[1].log_prob


def test_a_beam_with_coverage_and_one_without_do_not_share_a_step():
    stepper = attending()
    batcher = Batcher(stepper)
    batcher.add("plain", (4, EOS), DecodeOptions(beam_size=2))
    batcher.add("covered", (4, EOS), DecodeOptions(beam_size=2, coverage_penalty=0.5))
    batcher.step()
    assert [slots for verb, slots in stepper.calls if verb == "step"] == [1, 1]


@pytest.mark.parametrize("options", [DecodeOptions(alignment=True), DecodeOptions(coverage_penalty=0.1)])
def test_a_network_that_does_not_attend_refuses_when_added(options):
    batcher = Batcher(ReferenceStepper(LANGUAGE, VOCABULARY, POSITIONS))
    with pytest.raises(DecodeError, match="need a network that attends"):
        batcher.add("key", (5, EOS), options)
    assert batcher.idle


@pytest.mark.parametrize(
    "wrong",
    [
        {"coverage_penalty": -0.1},
        {"coverage_penalty": float("nan")},
        {"coverage_penalty": 0.1, "beam_size": 1},
        {"coverage_penalty": 0.1, "beam_size": 1, "sampling": Sampling()},
    ],
)
def test_a_coverage_penalty_needs_a_beam_and_a_number(wrong):
    with pytest.raises(DecodeError, match=r"^coverage_penalty must be"):
        DecodeOptions(**wrong)


def test_a_fault_while_a_sentence_is_aligned_stays_with_it():
    class Chokes(ReferenceStepper):
        def attention(self, slots):
            if any(7 in self._sources[slot] for slot in slots):
                raise MemoryError("no room")
            return super().attention(slots)

    found = decode_all(attending(kind=Chokes), [(4, EOS), (7, EOS), (5, 6, EOS)], DecodeOptions(alignment=True))
    assert [isinstance(each.error and each.error.__cause__, MemoryError) for each in found] == [False, True, False]
    assert found[2].hypotheses == alone(LANGUAGE, (5, 6, EOS), DecodeOptions(alignment=True))


def test_a_sentence_that_is_cancelled_while_it_is_aligned_leaves_its_slot():
    stepper = attending()
    batcher = Batcher(stepper)
    batcher.add("key", (4, 5, EOS), DecodeOptions(beam_size=1, alignment=True, min_length=6))
    while ("attention", 1) not in stepper.calls:
        assert batcher.step() == []
    batcher.cancel("key")
    assert batcher.idle
    assert stepper.slots == {}


def test_an_empty_translation_has_no_alignment():
    nothing = tuple((word,) for word in range(FIRST, VOCABULARY))
    (found,) = decode((4, EOS), DecodeOptions(beam_size=1, alignment=True, suppress=nothing))
    assert (found.ids, found.attention) == ((), ())

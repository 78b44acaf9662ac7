"""Options of one sentence: each does what it says, exactly, whatever the neighbours ask for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.batcher import Batcher, BatcherLimits, decode_all
from model.decode.constraints import Constraints
from model.decode.options import MAX_SUPPRESSED, DecodeOptions, Sampling, SpecialIds
from model.decode.reference import ReferenceStepper, reference_search
from model.decode.sampling import draw, uniform
from model.errors import DecodeError
from tests.model.toy_language import EOS, FIRST, ToyLanguage

VOCABULARY = 11
POSITIONS = 20
words = st.integers(FIRST, VOCABULARY - 1)
sources = st.lists(words, max_size=5).map(lambda ids: (*ids, EOS))


@st.composite
def samplings(draw_: st.DrawFn) -> Sampling:
    return Sampling(
        temperature=draw_(st.sampled_from([0.3, 1.0, 2.5])),
        top_k=draw_(st.sampled_from([0, 1, 3, 50])),
        top_p=draw_(st.sampled_from([0.4, 0.9, 1.0])),
        seed=draw_(st.integers(0, 5)),
    )


@st.composite
def steered_options(draw_: st.DrawFn) -> DecodeOptions:
    """Any mix of all options, many of them left alone."""
    sampling = draw_(st.none() | st.none() | samplings())
    beam_size = 1 if sampling else draw_(st.sampled_from([1, 1, 2, 4, 5]))
    return DecodeOptions(
        beam_size=beam_size,
        n_best=draw_(st.integers(1, beam_size)),
        length_penalty=draw_(st.sampled_from([0.0, 0.6, 3.0])),
        max_length=draw_(st.none() | st.integers(9, 14)),
        min_length=draw_(st.sampled_from([0, 0, 1, 4, 9])),
        no_repeat_ngram=draw_(st.sampled_from([0, 0, 1, 2, 3])),
        repetition_penalty=draw_(st.sampled_from([1.0, 1.0, 1.3, 10.0])),
        sampling=sampling,
        prefix=tuple(draw_(st.just([]) | st.lists(words, max_size=3))),
        token_scores=draw_(st.booleans()),
        carry=tuple(draw_(st.just([]) | st.lists(words, max_size=4, unique=True))),
        suppress=tuple(map(tuple, draw_(st.just([]) | st.lists(st.lists(words, min_size=1, max_size=2), max_size=3)))),
    )


def alone(language, source, options):
    """By the slow twin, without any batch."""
    return reference_search(language, source, options, options.limit(len(source), POSITIONS))


def decode(language, source, options):
    stepper = ReferenceStepper(language, language.vocab_size, POSITIONS)
    (finished,) = decode_all(stepper, [source], options)
    assert stepper.breaches == []
    assert stepper.slots == {}
    if finished.error:
        raise finished.error
    return finished.hypotheses


@settings(deadline=None)
@given(source=sources, options=steered_options(), seed=st.integers(0, 30), rounding=st.sampled_from([None, 0]))
def test_any_mix_of_options_finds_what_the_slow_twin_finds(source, options, seed, rounding):
    language = ToyLanguage(VOCABULARY, seed=seed, rounding=rounding)
    assert decode(language, source, options) == alone(language, source, options)


@settings(deadline=None)
@given(
    jobs=st.lists(st.tuples(sources, steered_options()), min_size=1, max_size=8),
    arrivals=st.lists(st.integers(0, 5), min_size=8, max_size=8),
    cancelled=st.sets(st.integers(0, 7), max_size=3),
    limits=st.builds(BatcherLimits, max_slots=st.integers(1, 8), max_lanes=st.integers(5, 20)),
)
def test_neighbours_and_their_options_never_show_in_a_result(jobs, arrivals, cancelled, limits):
    language = ToyLanguage(VOCABULARY)
    stepper = ReferenceStepper(language, VOCABULARY, POSITIONS)
    batcher, ended = Batcher(stepper, limits), {}
    for step in range(500):
        for key, (source, options) in enumerate(jobs):
            if arrivals[key] == step:
                batcher.add(key, source, options)
            if key in cancelled and arrivals[key] + 3 == step:
                batcher.cancel(key)
        ended.update({finished.key: finished for finished in batcher.step()})
        if step > 8 and batcher.idle:
            break
    assert stepper.breaches == []
    assert stepper.slots == {}
    for key, (source, options) in enumerate(jobs):
        if key in ended:
            assert ended[key].error is None
            assert ended[key].hypotheses == alone(language, source, options)
        else:
            assert key in cancelled


@settings(deadline=None, max_examples=40)
@given(source=sources, seed=st.integers(0, 30), n=st.integers(1, 3), beam_size=st.sampled_from([1, 4]))
def test_no_ngram_comes_twice(source, seed, n, beam_size):
    language = ToyLanguage(VOCABULARY, seed=seed, end=0.1)
    for found in decode(language, source, DecodeOptions(beam_size=beam_size, no_repeat_ngram=n)):
        ngrams = Counter(found.ids[i : i + n] for i in range(len(found.ids) - n + 1))
        assert not ngrams or max(ngrams.values()) == 1


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("shortest", [1, 2, 6, 15])
def test_a_translation_has_at_least_min_length_tokens_with_eos(beam_size, shortest):
    for seed in range(10):
        language = ToyLanguage(VOCABULARY, seed=seed, end=2.0)
        (found, *_) = decode(language, (5, EOS), DecodeOptions(beam_size=beam_size, min_length=shortest))
        assert len(found.ids) + (not found.truncated) >= shortest


def test_a_min_length_beyond_the_limit_is_the_limit():
    options = DecodeOptions(beam_size=1, min_length=1000)
    (found,) = decode(ToyLanguage(VOCABULARY, end=5.0), (5, EOS), options)
    assert len(found.ids) + (not found.truncated) == options.limit(2, POSITIONS)


@settings(deadline=None, max_examples=30)
@given(source=sources, prefix=st.lists(words, min_size=1, max_size=5), beam_size=st.sampled_from([1, 3]))
def test_a_target_begins_with_its_prefix_and_is_scored_without_it(source, prefix, beam_size):
    language = ToyLanguage(VOCABULARY)
    options = DecodeOptions(beam_size=beam_size, n_best=beam_size, prefix=tuple(prefix), token_scores=True)
    found = decode(language, source, options)
    for hypothesis in found:
        end = () if hypothesis.truncated else (EOS,)
        target = (*hypothesis.ids, *end)
        assert list(target[: len(prefix)]) == prefix
        given_ = [0.0] * len(prefix)
        predicted = [float(language(source, target[:i])[target[i]]) for i in range(len(prefix), len(target))]
        assert list(hypothesis.token_log_probs) == given_ + predicted
        assert hypothesis.log_prob == pytest.approx(sum(predicted), abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(
    source=sources,
    seed=st.integers(0, 30),
    suppress=st.lists(st.lists(words, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
)
def test_what_is_suppressed_is_not_said(source, seed, suppress):
    (found, *_) = decode(ToyLanguage(VOCABULARY, seed=seed), source, DecodeOptions(beam_size=3, suppress=suppress))
    for sequence in suppress:
        assert all(found.ids[i : i + len(sequence)] != sequence for i in range(len(found.ids)))


@settings(deadline=None, max_examples=60)
@given(source=sources, seed=st.integers(0, 30), beam_size=st.sampled_from([1, 4]))
def test_what_is_carried_comes_exactly_as_often_as_in_the_source(source, seed, beam_size):
    carry = (8, 9, 10)
    language = ToyLanguage(VOCABULARY, seed=seed, end=2.0)
    (best, *_) = decode(language, source, DecodeOptions(beam_size=beam_size, carry=carry))
    expected = {token: source.count(token) for token in carry}
    if not best.truncated and any(expected.values()):
        assert {token: best.ids.count(token) for token in carry} == expected


def test_a_source_with_nothing_to_carry_is_searched_as_ever():
    language, source = ToyLanguage(VOCABULARY), (4, 5, EOS)
    for beam_size in (1, 4):
        options = DecodeOptions(beam_size=beam_size)
        assert decode(language, source, replace(options, carry=(8, 9, 10))) == decode(language, source, options)


@pytest.mark.parametrize(("beam_size", "asked"), [(1, 8), (4, 16)])
def test_many_things_to_carry_cost_few_candidates(beam_size, asked):
    class Watching(ReferenceStepper):
        def step(self, slots, tokens, k):
            seen.add(k)
            return super().step(slots, tokens, k)

    seen: set[int] = set()
    stepper = Watching(ToyLanguage(100), 100, POSITIONS)
    carry = tuple(range(60, 92))
    decode_all(stepper, [(4, *carry[:12], EOS)], DecodeOptions(beam_size=beam_size, carry=carry))
    assert seen == {asked}


def test_where_everything_is_barred_it_may_come_all_the_same():
    constraints = Constraints(DecodeOptions(carry=tuple(range(5, 20))), 20, SpecialIds(), (4, 5, EOS))
    touched = constraints.touched((5,))
    assert touched.barred == set(range(5, 20))
    assert constraints.touched(()).barred == {*range(6, 20), EOS}
    log_probs, ids = -np.arange(1, 12, dtype=np.float32), np.array([6, 9, 7, 8, 10, 11, 12, 4, 3, 13, 14])
    assert constraints.apply(touched, log_probs, ids, 2)[1].tolist() == [4, 3]
    assert constraints.apply(touched, log_probs, ids, 1)[1].tolist() == [4]
    ids = np.array([6, 9, 7, 8, 10, 11, 12, 13, 4, 3, 14])
    assert constraints.apply(touched, log_probs, ids, 2)[1].tolist() == [4]
    assert constraints.apply(touched, log_probs, ids, 1)[1].tolist() == [6]


def test_where_everything_is_banned_a_hypothesis_may_end():
    everything = tuple((word,) for word in range(FIRST, VOCABULARY))
    options = DecodeOptions(beam_size=2, suppress=everything, min_length=5)
    (found,) = decode(ToyLanguage(VOCABULARY), (4, EOS), options)
    assert (found.ids, found.truncated) == ((), False)


def test_a_repetition_penalty_multiplies_the_log_probability_of_what_was_said():
    history, special = (4, 6, 4), SpecialIds()
    constraints = Constraints(DecodeOptions(repetition_penalty=2.0), 20, special)
    touched = constraints.touched(history)
    assert touched.lowered == {4, 6}
    log_probs, ids = np.array([-1.0, -1.5, -1.9, -5.0], np.float32), np.array([4, 5, 7, 6])
    best, names = constraints.apply(touched, log_probs, ids, 3)
    assert names.tolist() == [5, 7, 4]
    assert best.tolist() == [-1.5, np.float32(-1.9), -2.0]


def test_tokens_are_drawn_as_often_as_they_are_likely():
    log_probs = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    many = 4000
    counts = Counter(draw(log_probs, Sampling(), uniform(7, 1, step)) for step in range(many))
    for place, share in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert counts[place] / many == pytest.approx(share, abs=0.03)
    hot = Counter(draw(log_probs, Sampling(temperature=10.0), uniform(7, 1, step)) for step in range(many))
    cold = Counter(draw(log_probs, Sampling(temperature=0.1), uniform(7, 1, step)) for step in range(many))
    assert hot[0] < counts[0] < cold[0]


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.94, 3), (1.0, 4)])
def test_top_p_keeps_the_fewest_that_hold_so_much(top_p, kept):
    log_probs = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float64)).astype(np.float32)
    found = {draw(log_probs, Sampling(top_p=top_p), chance) for chance in np.linspace(0, 1, 500, endpoint=False)}
    assert found == set(range(kept))


def test_samples_depend_on_the_seed_and_the_source_and_on_nothing_else():
    language = ToyLanguage(40, end=0.1)
    stepper = ReferenceStepper(language, 40, POSITIONS)

    def sample(seed, *sources_):
        options = DecodeOptions(beam_size=1, sampling=Sampling(seed=seed))
        return [finished.hypotheses[0].ids for finished in decode_all(stepper, sources_, options)]

    one, two = (5, 6, EOS), (5, 7, EOS)
    assert sample(1, one, two) == [*sample(1, one), *sample(1, two)]
    assert len({sample(seed, one)[0] for seed in range(8)}) == 8
    assert uniform(1, 2, 3) != uniform(2, 2, 3) != uniform(2, 1, 3) != uniform(2, 1, 4)


def test_a_top_k_of_one_is_greedy_search():
    language = ToyLanguage(VOCABULARY)
    greedy = DecodeOptions(beam_size=1)
    sampled = replace(greedy, sampling=Sampling(top_k=1, temperature=5.0))
    assert decode(language, (4, 5, EOS), sampled) == decode(language, (4, 5, EOS), greedy)


def test_sentences_that_take_many_candidates_step_apart_and_the_others_ask_for_no_more_than_ever():
    class Watching(ReferenceStepper):
        def step(self, slots, tokens, k):
            asked.add((self._kinds[slots[0]][0], k))
            return super().step(slots, tokens, k)

    asked: set[tuple[bool, int]] = set()
    language = ToyLanguage(100, never_ends=True)
    stepper = Watching(language, 100, POSITIONS)
    batcher = Batcher(stepper)
    batcher.add("plain", (4, EOS), DecodeOptions(beam_size=1))
    batcher.add("sampled", (4, EOS), DecodeOptions(beam_size=1, sampling=Sampling()))
    while not batcher.idle:
        batcher.step()
    assert asked == {(False, 1), (True, 100)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DecodeOptions(prefix=(5,) * 19), "must have less than 19 tokens here, but has 19"),
        (DecodeOptions(prefix=(VOCABULARY,)), "ids in 0..10"),
        (DecodeOptions(prefix=(5, EOS)), "must hold words"),
        (DecodeOptions(suppress=((-1,),)), "ids in 0..10"),
        (DecodeOptions(suppress=((5, EOS),)), "must hold words"),
        (DecodeOptions(carry=(VOCABULARY,)), "ids in 0..10"),
        (DecodeOptions(carry=(5, EOS)), "must hold words"),
    ],
)
def test_options_that_do_not_fit_the_network_are_refused_when_added(options, message):
    batcher = Batcher(ReferenceStepper(ToyLanguage(VOCABULARY), VOCABULARY, POSITIONS))
    with pytest.raises(DecodeError, match=message):
        batcher.add("key", (5, EOS), options)
    assert batcher.idle


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_length": -1},
        {"min_length": 5, "max_length": 4},
        {"prefix": (5, 5), "max_length": 2},
        {"no_repeat_ngram": 17},
        {"repetition_penalty": 0.9},
        {"repetition_penalty": float("nan")},
        {"beam_size": 2, "sampling": Sampling()},
        {"suppress": ((),)},
        {"suppress": ((5,),) * (MAX_SUPPRESSED + 1)},
    ],
)
def test_options_that_contradict_are_refused(wrong):
    with pytest.raises(DecodeError, match=r"must be|must hold"):
        DecodeOptions(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"seed": -1}, {"temperature": 99.0}]
)
def test_sampling_out_of_range_is_refused(wrong):
    with pytest.raises(DecodeError, match="must be in"):
        Sampling(**wrong)

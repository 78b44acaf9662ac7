"""The two searches against their slow twin, against exhaustive search, and at their edges."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.batcher import BatcherLimits, decode_all
from model.decode.options import MAX_BEAM_SIZE, DecodeOptions, Hypothesis, SpecialIds
from model.decode.reference import ReferenceStepper, forced_log_prob, reference_search
from model.decode.search import BeamSearch, GreedySearch, length_penalty, open_search
from model.errors import DecodeError
from tests.model.toy_language import BOS, EOS, FIRST, PAD, ToyLanguage

sources = st.lists(st.integers(FIRST, 7), max_size=5).map(lambda ids: (*ids, EOS))
sources_of_one_word = st.integers(0, 5).map(lambda words: (*[FIRST] * words, EOS))


@st.composite
def some_options(draw: st.DrawFn) -> DecodeOptions:
    beam_size = draw(st.integers(1, 6))
    return DecodeOptions(
        beam_size=beam_size,
        n_best=draw(st.integers(1, beam_size)),
        length_penalty=draw(st.sampled_from([0.0, 0.6, 1.0, 3.0])),
        max_length=draw(st.none() | st.integers(1, 9)),
    )


def decode(language, source, options, max_positions=16):
    stepper = ReferenceStepper(language, language.vocab_size, max_positions)
    (finished,) = decode_all(stepper, [source], options)
    assert stepper.breaches == []
    assert stepper.slots == {}
    if finished.error:
        raise finished.error
    return finished.hypotheses


@settings(deadline=None)
@given(source=sources, options=some_options(), seed=st.integers(0, 99), rounding=st.sampled_from([None, 0]))
def test_the_search_finds_what_its_slow_twin_finds(source, options, seed, rounding):
    language = ToyLanguage(vocab_size=9, seed=seed, rounding=rounding)  # Rounded logits: many exact ties.
    limit = options.limit(len(source), 16)
    assert decode(language, source, options) == reference_search(language, source, options, limit)


@settings(deadline=None)
@given(source=sources, options=some_options(), seed=st.integers(0, 99))
def test_the_score_is_the_forced_score_of_the_output(source, options, seed):
    language = ToyLanguage(vocab_size=9, seed=seed)
    for hypothesis in decode(language, source, options):
        assert hypothesis.log_prob == pytest.approx(forced_log_prob(language, source, hypothesis), abs=1e-9)
        length = len(hypothesis.ids) + (not hypothesis.truncated)
        assert hypothesis.token_log_probs == ()
        assert hypothesis.score == hypothesis.log_prob / length_penalty(length, options.length_penalty)


@settings(deadline=None)
@given(source=sources_of_one_word, seed=st.integers(0, 99))
def test_a_beam_that_holds_every_prefix_finds_the_best_of_all_translations(source, seed):
    language = ToyLanguage(vocab_size=5, seed=seed)  # Two words: at most 12 continuations in three steps.
    options = DecodeOptions(beam_size=16, n_best=16, max_length=3)
    every = []
    for words in range(3):
        for ids in product((3, 4), repeat=words):
            log_prob = forced_log_prob(language, source, Hypothesis(ids, 0.0, 0.0, truncated=False))
            every.append((log_prob / length_penalty(words + 1, 0.6), ids))
    best = [ids for _, ids in sorted(every, reverse=True)]
    found = [hypothesis.ids for hypothesis in decode(language, source, options) if not hypothesis.truncated]
    assert found == best[: len(found)]
    assert len(found) == 7


@settings(deadline=None)
@given(source=sources, seed=st.integers(0, 99), beam_size=st.integers(1, 16))
def test_n_best_is_sorted_and_holds_no_hypothesis_twice(source, seed, beam_size):
    options = DecodeOptions(beam_size=beam_size, n_best=beam_size, max_length=6)
    found = decode(ToyLanguage(vocab_size=8, seed=seed), source, options)
    ranks = [(hypothesis.truncated, -hypothesis.score) for hypothesis in found]
    assert ranks == sorted(ranks)
    assert len({(hypothesis.ids, hypothesis.truncated) for hypothesis in found}) == len(found)


def test_greedy_takes_the_likeliest_token_at_each_step():
    language, source, ids = ToyLanguage(), (5, 6, EOS), []
    while (token := int(language(source, tuple(ids)).argmax())) != EOS:
        ids.append(token)
    (found,) = decode(language, source, DecodeOptions(beam_size=1), max_positions=64)
    assert found.ids == tuple(ids)
    assert not found.truncated


def test_a_beam_finds_a_better_translation_where_the_likeliest_first_token_misleads():
    def language(source, history):
        table = {(): {3: 0.6, 4: 0.4}, (3,): {EOS: 0.5, 3: 0.5}, (4,): {EOS: 1.0}}
        probabilities = np.zeros(5)
        for token, probability in table.get(history, {EOS: 1.0}).items():
            probabilities[token] = probability
        with np.errstate(divide="ignore"):
            return np.log(probabilities).astype(np.float32)

    language.vocab_size = 5
    assert decode(language, (3, EOS), DecodeOptions(beam_size=1))[0].ids == (3,)
    assert decode(language, (3, EOS), DecodeOptions(beam_size=2))[0].ids == (4,)


def test_the_length_penalty_is_the_papers():
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert length_penalty(19, 0.5) == 2.0
    assert length_penalty(1000, 0.0) == 1.0


def test_a_larger_length_penalty_prefers_longer_translations():
    language = ToyLanguage(vocab_size=8, seed=3, end=0.2)
    lengths = [
        len(decode(language, (4, 5, EOS), DecodeOptions(beam_size=4, length_penalty=alpha))[0].ids)
        for alpha in (0.0, 10.0)
    ]
    assert lengths[0] < lengths[1]


def test_the_search_goes_on_while_a_longer_hypothesis_may_still_win():
    """A finished hypothesis alone ends nothing: with a strong penalty the later, longer one has the better score."""
    language = ToyLanguage(vocab_size=8, seed=1, end=0.3)
    options = DecodeOptions(beam_size=4, length_penalty=2.0)
    stepper = ReferenceStepper(language, 8)
    (finished,) = decode_all(stepper, [(4, EOS)], options)
    steps = sum(verb == "step" for verb, _ in stepper.calls)
    assert len(finished.hypotheses[0].ids) + 1 <= steps < options.limit(2, 64)


@pytest.mark.parametrize("beam_size", [1, 2, 4, 16])
def test_a_language_that_never_ends_is_cut_at_the_limit_and_says_so(beam_size):
    language = ToyLanguage(end=0.0, seed=2, never_ends=True)
    (found, *_) = decode(language, (4, EOS), DecodeOptions(beam_size=beam_size, max_length=7))
    assert found.truncated
    assert len(found.ids) == 7


@pytest.mark.parametrize("beam_size", [1, 5, 10, 16])
@pytest.mark.parametrize("max_length", [32, 256])
def test_no_width_and_no_length_breaks_the_search(beam_size, max_length):
    language = ToyLanguage(vocab_size=40)
    options = DecodeOptions(beam_size=beam_size, max_length=max_length)
    source = (7, 9, 11, 13, 15, EOS)
    found = decode(language, source, options, max_positions=300)
    assert found == reference_search(language, source, options, options.limit(6, 300))


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_source_of_eos_alone_is_decoded(beam_size):
    (found, *_) = decode(ToyLanguage(), (EOS,), DecodeOptions(beam_size=beam_size))
    assert not found.truncated


@pytest.mark.parametrize("beam_size", [1, 4])
def test_eos_at_once_is_an_empty_translation(beam_size):
    # An EOS whose logit falls with each token of the target and grows with each of the source.
    (found, *_) = decode(ToyLanguage(end=-100.0), (5, 6, 7, EOS), DecodeOptions(beam_size=beam_size))
    assert found.ids == ()
    assert not found.truncated


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_limit_of_one_token_leaves_room_for_eos_or_for_a_word(beam_size):
    options = DecodeOptions(beam_size=beam_size, max_length=1, n_best=beam_size)
    found = decode(ToyLanguage(), (4, 5, EOS), options)
    assert all(len(hypothesis.ids) == hypothesis.truncated for hypothesis in found)


@settings(deadline=None)
@given(source=sources_of_one_word, seed=st.integers(0, 30))
def test_a_beam_wider_than_the_vocabulary_never_chooses_what_cannot_follow(source, seed):
    language = ToyLanguage(vocab_size=4, seed=seed)  # One word and EOS: most of the 32 candidates are -inf.
    options = DecodeOptions(beam_size=16, n_best=16, max_length=5)
    found = decode(language, source, options)
    assert all(set(hypothesis.ids) <= {3} for hypothesis in found)
    assert [len(hypothesis.ids) for hypothesis in found if hypothesis.truncated] == [5]
    assert len(found) == 6


def test_when_every_hypothesis_has_finished_the_search_ends_with_fewer_than_n_best():
    def language(source, history):
        log_probs = np.full(4, -np.inf, np.float32)
        log_probs[EOS if history else 3] = 0.0
        return log_probs

    language.vocab_size = 4
    found = decode(language, (3, EOS), DecodeOptions(beam_size=4, n_best=4))
    assert found == (Hypothesis((3,), 0.0, 0.0, truncated=False),)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1.0])
def test_numbers_that_are_no_log_probabilities_end_their_own_sentence_with_an_error(width, bad):
    search = open_search(width, SpecialIds())
    search.enter([(DecodeOptions(beam_size=width), 9)] * 3)
    k = search.candidates
    log_probs = np.full((3, width, k), -2.0, np.float32)
    ids = np.broadcast_to(np.arange(FIRST, FIRST + k), (3, width, k)).copy()
    log_probs[1, -1, 0] = bad
    assert search.advance(log_probs, ids).ended == [1]
    with pytest.raises(DecodeError, match="step 1 did not"):
        search.outcome(1)
    search.leave([1])
    log_probs, ids[:, :, 0] = log_probs[[0, 2]], EOS
    assert search.advance(log_probs, ids[[0, 2]]).ended == ([0, 1] if width == 1 else [])
    assert search.outcome(0)[0].ids == (FIRST,)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_network_that_offers_nothing_is_an_error(beam_size):
    language = lambda source, history: np.full(8, -np.inf, np.float32)  # noqa: E731
    language.vocab_size = 8
    with pytest.raises(DecodeError, match="must offer a continuation"):
        decode(language, (4, EOS), DecodeOptions(beam_size=beam_size))


def test_equal_candidates_go_to_the_lower_lane_then_to_the_lower_id():
    search = BeamSearch(2, SpecialIds())
    search.enter([(DecodeOptions(beam_size=2), 9)])
    ids = np.array([[[3, 4, 5, 6]] * 2])
    even = np.full((1, 2, 4), -1.0, np.float32)
    search.advance(even, ids)
    assert search.tokens.tolist() == [[3, 4]]
    parents, _ = search.advance(even, ids)
    assert parents is not None
    assert parents.tolist() == [[0, 0]]
    assert search.tokens.tolist() == [[3, 4]]


def test_of_two_equal_scores_the_hypothesis_that_finished_first_stays_ahead():
    search = BeamSearch(2, SpecialIds())
    search.enter([(DecodeOptions(beam_size=2, n_best=2, length_penalty=0.0), 9)])
    for log_prob in (-1.0, -0.5):  # EOS: -1 at once, and -0.5 - 0.5 a step later.
        log_probs = np.array([[[-0.5, log_prob, -5.0, -6.0], [-9.0, -9.0, -9.0, -9.0]]], np.float32)
        _, ended = search.advance(log_probs, np.array([[[3, EOS, 4, 5], [3, 4, 5, 6]]]))
    assert ended == [0]
    assert [(hypothesis.ids, hypothesis.score) for hypothesis in search.outcome(0)] == [((), -1.0), ((3,), -1.0)]


def test_an_ending_that_as_many_continuations_outrank_as_the_beam_is_wide_does_not_finish():
    search = BeamSearch(2, SpecialIds())
    search.enter([(DecodeOptions(beam_size=2, n_best=2, length_penalty=0.0), 9)])
    nothing = [-np.inf] * 4
    for best, finished in (([3, 4, EOS, 5], []), ([3, EOS, 4, 5], [(3,)])):
        log_probs = np.array([[[-0.5, -1.0, -1.5, -2.0], nothing]], np.float32)
        search.advance(log_probs, np.array([[best, [3, 4, 5, 6]]]))
        assert [one.ids for one in search.outcome(0) if not one.truncated] == finished


def test_a_search_of_no_rows_is_empty_and_the_first_tokens_are_bos():
    for search in (GreedySearch(SpecialIds(bos_id=7)), BeamSearch(3, SpecialIds(bos_id=7))):
        assert search.tokens.shape == (0, search.width)
        search.enter([(DecodeOptions(), 5)])
        assert search.tokens.tolist() == [[7] * search.width]


def test_other_special_ids_are_obeyed():
    plain, special = ToyLanguage(vocab_size=9), SpecialIds(bos_id=2, eos_id=1)

    def language(source, history):
        return plain(source, history)[[0, 2, 1, *range(3, 9)]]

    stepper = ReferenceStepper(language, 9, special=special)
    for options in (DecodeOptions(beam_size=1), DecodeOptions(beam_size=3)):
        (swapped,) = decode_all(stepper, [(4, 5, 2)], options, special=special)
        (usual,) = decode_all(ReferenceStepper(plain, 9), [(4, 5, 2)], options)
        assert swapped.hypotheses == usual.hypotheses
    assert stepper.breaches == []


@pytest.mark.parametrize(
    ("asked", "source_tokens", "max_positions", "limit"),
    [
        (None, 10, 512, 60),
        (None, 500, 512, 511),
        (20, 10, 512, 20),
        (50_000, 2, 512, 52),  # A lone letter can't run on, whatever is asked.
        (None, 1, 1, 1),
    ],
)
def test_the_limit_is_source_plus_fifty_within_what_was_asked_and_what_there_is(
    asked, source_tokens, max_positions, limit
):
    assert DecodeOptions(max_length=asked).limit(source_tokens, max_positions) == limit


@pytest.mark.parametrize(
    "wrong",
    [
        {"beam_size": 0},
        {"beam_size": MAX_BEAM_SIZE + 1},
        {"beam_size": 2, "n_best": 3},
        {"n_best": 0},
        {"length_penalty": -0.1},
        {"length_penalty": float("nan")},
        {"max_length": 0},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(DecodeError, match="must be"):
        DecodeOptions(**wrong)


def test_limits_below_one_are_refused():
    for name in ("max_slots", "max_lanes", "max_batch_tokens"):
        with pytest.raises(DecodeError, match=name):
            BatcherLimits(**{name: 0})


def test_the_toy_language_never_says_pad_or_bos():
    assert np.isneginf(ToyLanguage()((3, EOS), ())[[PAD, BOS]]).all()

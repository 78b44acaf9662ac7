"""Real graphs with options: alone or in any company, a sentence's ids and scores are the same, bit for bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from model.decode.batcher import Batcher, BatcherLimits, decode_all
from model.decode.options import DecodeOptions, Sampling
from model.decode.reference import reference_search
from model.errors import DecodeError
from tests.model.networks import exported, random_sources

pytestmark = pytest.mark.usefixtures("each_set_of_operators")

MADE = exported("tied")
CONFIG = MADE.config


def some_options(rng: random.Random) -> DecodeOptions:
    sampling = rng.random() < 0.2
    beam_size = 1 if sampling else rng.choice([1, 1, 2, 4, 4])
    words = range(4, CONFIG.vocab_size)
    return DecodeOptions(
        beam_size=beam_size,
        n_best=rng.randint(1, beam_size),
        max_length=rng.choice([None, 12, 25]),
        min_length=rng.choice([0, 0, 8]),
        no_repeat_ngram=rng.choice([0, 0, 1, 2, 3]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.5]),
        sampling=Sampling(top_k=rng.choice([0, 5, 40]), top_p=0.95, seed=rng.randrange(9)) if sampling else None,
        prefix=tuple(rng.sample(words, rng.choice([0, 0, 0, 1, 4]))),
        suppress=tuple((word,) for word in rng.sample(words, rng.choice([0, 0, 0, 3, 20]))),
        carry=tuple(rng.sample(words, rng.choice([0, 0, 32, 200]))),
        token_scores=rng.random() < 0.5,
        repetition_guard=rng.random() < 0.5,
    )


def jobs(count: int, seed: int):
    rng = random.Random(seed)
    sources = random_sources(CONFIG, tuple(rng.randint(1, 20) for _ in range(count)), seed)
    # Left to itself, the tiny network soon goes round in circles.
    watched = DecodeOptions(beam_size=1, repetition_guard=True)
    return [(source, watched if place < 6 else some_options(rng)) for place, source in enumerate(sources)]


def company(stepper, todo, seed):
    """All of `todo` in random order, arriving while others run, one of them cancelled; what ended, by place."""
    rng, batcher, ended = random.Random(seed), Batcher(stepper, BatcherLimits(max_slots=7, max_lanes=24)), {}
    waiting = list(enumerate(todo))
    rng.shuffle(waiting)
    batcher.add("cancelled", *todo[0])
    while waiting or not batcher.idle:
        for _ in range(rng.randint(0, 3)):
            if waiting:
                key, (source, options) = waiting.pop()
                batcher.add(key, source, options)
        if rng.random() < 0.1:
            batcher.cancel("cancelled")
        ended.update({finished.key: finished for finished in batcher.step()})
    return ended


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_options_of_neighbours_never_change_a_bit(precision):
    stepper, todo = MADE.stepper(precision), jobs(24, seed=5)
    alone = [decode_all(stepper, [source], options)[0] for source, options in todo]
    assert any(finished.guarded for finished in alone)
    for seed in range(2):
        ended = company(MADE.stepper(precision), todo, seed)
        for key, one in enumerate(alone):
            assert one.error is None
            assert (ended[key].hypotheses, ended[key].guarded) == (one.hypotheses, one.guarded)


def test_graphs_with_options_find_what_the_slow_twin_finds_with_the_same_numbers():
    """The twin reads whole distributions from the same graph, so even the scores must be equal."""
    stepper = MADE.stepper("f32")

    def language(source, history):
        (slot,) = stepper.start([source], 1)
        for token in (CONFIG.bos_id, *history):
            log_probs, ids = stepper.step([slot], np.array([[token]]), CONFIG.vocab_size)
        stepper.finish([slot])
        whole = np.full(CONFIG.vocab_size, -np.inf, np.float32)
        whole[ids[0, 0]] = log_probs[0, 0]
        return whole

    compared = 0
    for source, options in jobs(60, seed=1):
        if options.beam_size == 1 and not options.repetition_guard:  # a wider step may differ in its last bit
            compared += 1
            (finished,) = decode_all(stepper, [source], options)
            expected = reference_search(language, tuple(source), options, options.limit(len(source), 224))
            assert finished.hypotheses == expected
    assert compared > 5


def test_slots_that_are_apart_have_caches_of_their_own_and_do_not_step_with_the_others():
    stepper = MADE.stepper()
    (near,) = stepper.start([[5, 6, CONFIG.eos_id]], 1)
    (far,) = stepper.start([[5, 6, CONFIG.eos_id]], 1, apart=True)
    with pytest.raises(DecodeError, match="all or none be apart"):
        stepper.step([near, far], np.array([[1], [1]]), 1)
    one, _ = stepper.step([near], np.array([[1]]), 3)
    two, _ = stepper.step([far], np.array([[1]]), 300)
    np.testing.assert_array_equal(one[0, 0], two[0, 0, :3])
    stepper.finish([far, near])


def test_buffers_for_many_candidates_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr("model.runtime.pool.KEPT_CANDIDATES", 500)
    stepper = MADE.stepper()
    slots = stepper.start([[5, 6, CONFIG.eos_id]], 1)
    for k in range(1, 200):
        log_probs, _ = stepper.step(slots, np.array([[1]]), k)
        assert log_probs.shape == (1, 1, k)
    (pool,) = {pool for pool, _ in stepper._places.values()}
    assert sum(bound.ids.size for bound in pool._bindings.values()) <= 500 + 200

"""Real graphs with options: alone or in any company, a sentence's ids and scores are the same, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from model.decode.batcher import decode_all
from model.decode.reference import reference_search
from model.errors import DecodeError
from tests.model.company import company, jobs
from tests.model.networks import exported

pytestmark = pytest.mark.usefixtures("each_set_of_operators")

MADE = exported("tied")
CONFIG = MADE.config


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_options_of_neighbours_never_change_a_bit(precision):
    stepper, todo = MADE.stepper(precision), jobs(CONFIG, 24, seed=5)
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
    for source, options in jobs(CONFIG, 60, seed=1):
        # A wider step may differ in its last bit, and the twin knows of no attention.
        if options.beam_size == 1 and not (options.repetition_guard or options.alignment):
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

"""Alignment and coverage through real graphs: the same bits alone and in any company, and nothing for those who did
not ask."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from model.decode.batcher import Batcher, BatcherLimits, decode_all
from model.decode.options import DecodeOptions, Sampling
from model.errors import BundleError, DecodeError
from model.runtime import stepper as stepper_module
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import open_graphs
from tests.model.networks import exported, exported_copying, random_sources

MADE = exported("tied")
CONFIG = MADE.config
pytestmark = pytest.mark.usefixtures("each_set_of_operators")
PLAIN = DecodeOptions(beam_size=2, max_length=12)


def some_options(rng: random.Random) -> DecodeOptions:
    sampled = rng.random() < 0.15
    beam_size = 1 if sampled else rng.choice([1, 2, 2, 4])
    return DecodeOptions(
        beam_size=beam_size,
        n_best=rng.randint(1, beam_size),
        max_length=rng.choice([8, 20]),
        coverage_penalty=rng.choice([0.0, 0.3, 3.0]) if beam_size > 1 else 0.0,
        alignment=rng.random() < 0.5,
        prefix=tuple(rng.sample(range(4, CONFIG.vocab_size), rng.choice([0, 0, 3]))),
        sampling=Sampling(seed=1) if sampled else None,
        repetition_guard=rng.random() < 0.5,
    )


def jobs(count: int, seed: int):
    rng = random.Random(seed)
    sources = random_sources(CONFIG, tuple(rng.choice([1, 3, 8, 15, 16, 17, 31, 50, 70]) for _ in range(count)), seed)
    return [(source, some_options(rng)) for source in sources]


def company(stepper, todo, seed):
    """All of `todo`, arriving in random order while others run, and one that is cancelled; what ended, by place."""
    rng, batcher, ended = random.Random(seed), Batcher(stepper, BatcherLimits(max_slots=7, max_lanes=20)), {}
    waiting = rng.sample(list(enumerate(todo)), len(todo))
    batcher.add("cancelled", todo[0][0], DecodeOptions(coverage_penalty=1.0, alignment=True))
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
def test_attention_and_coverage_are_bit_equal_alone_and_in_any_company(precision):
    todo = jobs(24, seed=2)
    stepper = MADE.stepper(precision)
    alone = [decode_all(stepper, [source], options)[0] for source, options in todo]
    assert any(finished.guarded for finished in alone)
    for seed in range(2):
        ended = company(MADE.stepper(precision), todo, seed)
        for key, one in enumerate(alone):
            assert one.error is None
            assert (ended[key].hypotheses, ended[key].guarded) == (one.hypotheses, one.guarded)


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_neither_asking_nor_a_neighbour_that_asks_changes_a_bit(precision):
    todo = [(source, replace(options, coverage_penalty=0.0, alignment=False)) for source, options in jobs(12, seed=7)]
    alone = [decode_all(MADE.stepper(precision), [source], options)[0].hypotheses for source, options in todo]
    asking = [(source, replace(options, alignment=True)) for source, options in todo]
    covered = [(source, DecodeOptions(coverage_penalty=1.0, max_length=15)) for source, _ in todo]
    ended = company(MADE.stepper(precision), [*todo, *asking, *covered], seed=1)
    for key, plain in enumerate(alone):
        assert ended[key].hypotheses == plain
        aligned = ended[len(todo) + key].hypotheses
        assert tuple(replace(each, attention=()) for each in aligned) == plain
        assert [len(each.attention) for each in aligned] == [len(each.ids) for each in aligned]


@pytest.mark.parametrize("precision", ["f32", "int8"])
@pytest.mark.parametrize(
    "options", [DecodeOptions(beam_size=1), DecodeOptions(beam_size=4, n_best=2, coverage_penalty=0.2)]
)
def test_the_alignment_of_a_copy_is_diagonal(precision, options):
    made = exported_copying()
    sources = random_sources(made.config, (2, 9, 17, 40), seed=5)
    for source, finished in zip(
        sources, decode_all(made.stepper(precision), sources, replace(options, alignment=True)), strict=True
    ):
        (best, *_) = finished.hypotheses
        assert list(best.ids) == source[:-1]
        assert np.array(best.attention).argmax(axis=1).tolist() == list(range(len(best.ids)))
        assert np.array(best.attention).sum(axis=1) == pytest.approx(1.0, abs=1e-6)


def test_coverage_makes_a_difference():
    source = random_sources(CONFIG, (20,), seed=4)
    plain, covered = (
        decode_all(MADE.stepper(), source, DecodeOptions(coverage_penalty=beta))[0].hypotheses[0]
        for beta in (0.0, 10.0)
    )
    assert covered.score < covered.log_prob * 0.1
    assert covered.ids != plain.ids


def test_the_attending_decoder_is_tried_at_start_and_opened_when_it_is_needed(monkeypatch):
    opened = []
    open_session = stepper_module.open_session
    monkeypatch.setattr(
        stepper_module, "open_session", lambda path, *rest: opened.append(path.name) or open_session(path, *rest)
    )
    stepper = MADE.stepper()
    assert [name.split(".")[0] for name in opened] == ["encoder", "decoder", "attending"]
    decode_all(stepper, [[5, 6, 2]], PLAIN)
    assert len(opened) == 3
    for _ in range(2):
        decode_all(stepper, [[5, 6, 2]], replace(PLAIN, alignment=True))
        decode_all(stepper, [[5, 6, 2]], replace(PLAIN, coverage_penalty=1.0))
    assert opened[3:] == opened[2:3]


def test_another_graph_in_the_place_of_the_attending_decoder_is_refused_at_start():
    graphs = MADE.record.graph_paths("f32")["stock"]
    with pytest.raises(BundleError, match="output attention: float32"):
        open_graphs(CONFIG, {"stock": {**graphs, "attending": graphs["decoder"]}}, RuntimeOptions())


def test_without_an_attending_decoder_only_what_needs_it_is_refused(each_set_of_operators):
    graphs = {
        operators: {role: path for role, path in paths.items() if role != "attending"}
        for operators, paths in MADE.record.graph_paths("f32").items()
    }
    stepper = open_graphs(CONFIG, graphs, RuntimeOptions(operators=each_set_of_operators))
    assert not stepper.attends
    (plain,) = decode_all(stepper, [[5, 6, 2]], PLAIN)
    assert plain.hypotheses == decode_all(MADE.stepper(), [[5, 6, 2]], PLAIN)[0].hypotheses
    (refused,) = decode_all(stepper, [[5, 6, 2]], replace(PLAIN, alignment=True))
    assert "need a network that attends" in str(refused.error)
    with pytest.raises(DecodeError, match="publish the model anew"):
        stepper.start([[5, 6, 2]], 1, attending=True)


def test_only_attending_slots_can_be_asked_and_they_have_caches_of_their_own():
    stepper = MADE.stepper()
    (plain,) = stepper.start([[5, 6, 2]], 1)
    (attending,) = stepper.start([[5, 6, 2]], 1, attending=True)
    with pytest.raises(DecodeError, match="or attending"):
        stepper.step([plain, attending], np.array([[1], [1]]), 1)
    stepper.step([plain], np.array([[1]]), 1)
    with pytest.raises(DecodeError, match="only slots that were started as attending ones"):
        stepper.attention([plain])
    stepper.finish([plain, attending])
    assert stepper._places == {}

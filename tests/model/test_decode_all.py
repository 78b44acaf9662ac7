"""Many sentences at once: each result in its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.batcher import BatcherLimits, decode_all
from model.decode.options import DecodeOptions
from model.decode.reference import ReferenceStepper
from tests.model.batching import GREEDY, alone, jobs, toy_stepper
from tests.model.toy_language import EOS


@settings(deadline=None)
@given(jobs=jobs, beam_size=st.sampled_from([1, 3]))
def test_decode_all_returns_results_in_the_order_of_the_sources(jobs, beam_size):
    sources = [source for source, _ in jobs]
    stepper, told = toy_stepper(), []
    options = DecodeOptions(beam_size=beam_size)
    finished = decode_all(stepper, sources, options, BatcherLimits(max_slots=3), progress=told.append)
    assert [each.hypotheses for each in finished] == [alone(source, options) for source in sources]
    assert [each.key for each in finished] == list(range(len(sources)))
    assert sum(told) == len(sources)
    assert stepper.slots == {}


def test_decode_all_keeps_the_place_of_a_source_it_refuses():
    told = []
    finished = decode_all(toy_stepper(), [(4, EOS), None, (), (5, EOS)], GREEDY, progress=told.append)
    assert [each.error is None for each in finished] == [True, False, False, True]
    assert sum(told) == 4


def test_decode_all_begins_with_the_longest():
    seen = []

    class Watching(ReferenceStepper):
        def start(self, sources, width, *rest):
            seen.extend(map(len, sources))
            return super().start(sources, width, *rest)

    decode_all(toy_stepper(Watching), [(4, EOS), (4, 5, 6, EOS), (EOS,), (4, 5, EOS)], GREEDY)
    assert seen == [4, 3, 2, 1]


def test_an_interrupted_decode_all_leaves_the_stepper_free():
    def interrupt(_):
        raise KeyboardInterrupt

    stepper = toy_stepper()
    with pytest.raises(KeyboardInterrupt):
        decode_all(stepper, [(4, EOS), (5, 6, EOS), (7, 6, 5, EOS)], GREEDY, progress=interrupt)
    assert stepper.slots == {}

"""What crosses a process comes out as it went in."""

from __future__ import annotations

import pickle

from model.decode.options import DecodeOptions, Hypothesis, Sampling
from service.jobs import Job, Result, SegmentResult


def test_a_job_with_every_option_travels():
    options = DecodeOptions(
        beam_size=1,
        max_length=30,
        min_length=3,
        no_repeat_ngram=2,
        repetition_penalty=1.5,
        sampling=Sampling(temperature=0.5, top_k=9, top_p=0.9, seed=4),
        prefix=(5, 6),
        suppress=((7,), (8, 9)),
        token_scores=True,
        repetition_guard=True,
    )
    job = Job("an-id", ((4, 5, 2), (6, 2)), options, 12.5)
    assert pickle.loads(pickle.dumps(job)) == job


def test_a_result_with_alternatives_travels():
    best, other = (Hypothesis((4, rank), -1.5, -1.0, False, (-0.5, -0.5, -0.5)) for rank in (1, 2))
    segment = SegmentResult(best.ids, best.score, False, hypotheses=(best, other), guarded=True)
    result = Result((segment, SegmentResult((), 0.0, False, "engine_failed")), 0.1, 0.2)
    assert pickle.loads(pickle.dumps(result)) == result


def test_ranks_beyond_the_last_hypothesis_are_the_last():
    one, two = (Hypothesis((4, rank), -1.5, -1.0, False) for rank in (1, 2))
    segment = SegmentResult(one.ids, one.score, False, hypotheses=(one, two))
    assert [segment.ranked(rank) for rank in range(4)] == [one, two, two, two]
    assert segment.best == one
    plain = SegmentResult((4, 1), -1.0, True)
    assert plain.ranked(3) == plain.best == Hypothesis((4, 1), -1.0, -1.0, True)

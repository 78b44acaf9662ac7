"""The engine: jobs in, results out; a bounded queue, deadlines, and callers that leave."""

from __future__ import annotations

import asyncio
import time

import pytest

from model.decode.admission import BatcherLimits
from model.decode.options import DecodeOptions
from service.engine.engine import EngineOptions
from service.engine.loop import LoopOptions
from service.engine.queue import WaitingRoom
from service.errors import DeadlineExceeded, Overloaded
from tests.service.toy_engine import alone, source, toy_engine

SOURCES = [source(3), source(4, 5), source(), source(7, 7, 7, 3), source(5, 6, 4)]


async def test_results_come_in_the_order_of_the_segments_and_equal_the_slow_search():
    with toy_engine() as toy:
        result = await toy.engine.translate(toy.job(*SOURCES, options=DecodeOptions(beam_size=3)))
    for one, segment in zip(SOURCES, result.segments, strict=True):
        best = alone(one, DecodeOptions(beam_size=3))
        assert segment.ids == best.ids
        assert segment.score == pytest.approx(best.score, rel=1e-6)
        assert segment.truncated == best.truncated
        assert segment.refusal is None


async def test_jobs_at_once_share_the_batch_and_get_their_own_results():
    with toy_engine() as toy:
        toy.stepper.gate.clear()
        calls = [asyncio.create_task(toy.engine.translate(toy.job(one))) for one in SOURCES for _ in range(4)]
        await toy.until(toy.stepper.in_step.is_set)
        toy.stepper.gate.set()
        results = await asyncio.gather(*calls)
        assert [r.segments[0].ids for r in results] == [alone(one).ids for one in SOURCES for _ in range(4)]
        assert toy.value("batch_rows_sum") > toy.value("batch_rows_count"), "nobody ever shared a step"


async def test_a_job_without_segments_is_answered_at_once():
    with toy_engine() as toy:
        assert (await toy.engine.translate(toy.job())).segments == ()


async def test_times_tell_waiting_from_working():
    with toy_engine(limits=BatcherLimits(max_slots=1)) as toy:
        toy.stepper.gate.clear()
        first = asyncio.create_task(toy.engine.translate(toy.job(source(3))))
        await toy.until(toy.stepper.in_step.is_set)
        second = asyncio.create_task(toy.engine.translate(toy.job(source(4))))
        await asyncio.sleep(0.1)
        toy.stepper.gate.set()
        first, second = await asyncio.gather(first, second)
    assert first.inference_seconds >= 0.1
    assert first.queue_seconds < 0.1
    assert second.queue_seconds >= 0.1
    assert second.inference_seconds < 0.1


async def test_a_full_queue_refuses_at_once_and_lets_in_again_when_it_has_drained():
    options = EngineOptions(max_queued_tokens=8)
    with toy_engine(options, BatcherLimits(max_slots=1)) as toy:
        toy.stepper.gate.clear()
        calls = [asyncio.create_task(toy.engine.translate(toy.job(source(3))))]
        await toy.until(toy.stepper.in_step.is_set)
        calls += [asyncio.create_task(toy.engine.translate(toy.job(source(4, 5)))) for _ in range(2)]
        await asyncio.sleep(0.01)
        began = time.monotonic()
        with pytest.raises(Overloaded, match="At most 8 source tokens"):
            await toy.engine.translate(toy.job(source(5)))
        assert time.monotonic() - began < 0.05
        assert toy.value("queue_tokens") == 8
        assert toy.value("queue_length") == 3
        assert toy.value("overloads_total") == 1
        toy.stepper.gate.set()
        await asyncio.gather(*calls)
        assert toy.value("queue_tokens") == 0
        await toy.engine.translate(toy.job(source(5)))


def test_an_empty_queue_takes_a_job_of_any_size_and_no_second_one():
    room = WaitingRoom(10)
    room.enter([8, 9])
    with pytest.raises(Overloaded):
        room.enter([1])
    room.leave(8)
    room.enter([1])
    assert (room.segments, room.tokens) == (2, 10)


async def test_a_caller_that_leaves_frees_its_slots_at_the_next_step():
    with toy_engine(limits=BatcherLimits(max_slots=2)) as toy:
        toy.stepper.gate.clear()
        call = asyncio.create_task(toy.engine.translate(toy.job(*SOURCES)))
        await toy.until(toy.stepper.in_step.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        steps = toy.value("batch_rows_count")
        toy.stepper.gate.set()
        await toy.until(lambda: not toy.stepper.slots)
        assert toy.value("batch_rows_count") <= steps + 1, "a step was spent on a caller who had left"
        assert toy.value("abandoned_segments_total") == len(SOURCES)
        assert toy.value("queue_length") == 0
        assert (await toy.engine.translate(toy.job(source(3)))).segments[0].ids == alone(source(3)).ids


async def test_a_thousand_callers_that_leave_at_once_leave_nothing_behind():
    with toy_engine(limits=BatcherLimits(max_slots=1)) as toy:
        for _ in range(1000):
            call = asyncio.create_task(toy.engine.translate(toy.job(source(3, 4))))
            await asyncio.sleep(0)
            call.cancel()
        results = await asyncio.gather(*(toy.engine.translate(toy.job(source(5))) for _ in range(10)))
        assert {r.segments[0].ids for r in results} == {alone(source(5)).ids}
        assert not toy.stepper.slots
        assert toy.value("queue_tokens") == 0


async def test_a_wave_of_abandoned_requests_does_not_harm_the_next_wave():
    with toy_engine(limits=BatcherLimits(max_slots=4)) as toy:
        healthy = [asyncio.create_task(toy.engine.translate(toy.job(*SOURCES))) for _ in range(20)]
        hasty = [asyncio.create_task(toy.engine.translate(toy.job(*SOURCES, seconds=0.001))) for _ in range(20)]
        after = [asyncio.create_task(toy.engine.translate(toy.job(*SOURCES))) for _ in range(20)]
        outcomes = await asyncio.gather(*hasty, return_exceptions=True)
        assert any(isinstance(outcome, DeadlineExceeded) for outcome in outcomes)
        for result in await asyncio.gather(*healthy, *after):
            assert [segment.ids for segment in result.segments] == [alone(one).ids for one in SOURCES]
        await toy.until(lambda: not toy.stepper.slots)
        assert toy.value("queue_tokens") == 0


async def test_a_deadline_ends_a_request_even_while_a_step_hangs_and_the_engine_lives():
    with toy_engine() as toy:
        toy.stepper.gate.clear()
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await toy.engine.translate(toy.job(source(3), seconds=0.1))
        assert 0.09 < time.monotonic() - began < 1.0
        toy.stepper.gate.set()
        assert (await toy.engine.translate(toy.job(source(4)))).segments[0].ids == alone(source(4)).ids


async def test_a_job_that_comes_too_late_is_not_begun():
    with toy_engine() as toy:
        with pytest.raises(DeadlineExceeded):
            await toy.engine.translate(toy.job(source(3), seconds=-1.0))
        assert toy.stepper.encoded == []


async def test_an_idle_engine_may_wait_for_company():
    options = EngineOptions(loop=LoopOptions(batch_wait_seconds=0.1))
    with toy_engine(options) as toy:
        calls = []
        for one in SOURCES:
            calls.append(asyncio.create_task(toy.engine.translate(toy.job(one))))
            await asyncio.sleep(0.005)
        await asyncio.gather(*calls)
        assert toy.value("encode_seconds_count") == 1


async def test_segments_that_the_length_limit_ends_are_marked_and_counted():
    with toy_engine() as toy:
        options = DecodeOptions(beam_size=1, max_length=1)
        result = await toy.engine.translate(toy.job(source(3), source(4), options=options))
        cut = sum(segment.truncated for segment in result.segments)
        assert cut == sum(alone(one, options).truncated for one in (source(3), source(4))) > 0
        assert toy.value("truncated_segments_total") == cut


async def test_more_jobs_than_the_engine_may_hold_are_refused_at_once():
    with toy_engine(EngineOptions(max_jobs=2)) as toy:
        toy.stepper.gate.clear()
        calls = [asyncio.create_task(toy.engine.translate(toy.job(source(3)))) for _ in range(2)]
        await toy.until(toy.stepper.in_step.is_set)
        with pytest.raises(Overloaded, match="At most 2 requests"):
            await toy.engine.translate(toy.job(source(4)))
        toy.stepper.gate.set()
        await asyncio.gather(*calls)
        await toy.engine.translate(toy.job(source(4)))

"""The engine when things break: one bad segment, a broken network, a hung step, a dead loop, the end."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import pytest

from service.engine.engine import EngineOptions
from service.engine.loop import LoopOptions
from service.errors import EngineFailed, EngineUnavailable
from service.logs import JsonFormatter
from tests.service.toy_engine import POISON, BrokenBatcher, alone, source, toy_engine


async def test_one_poisoned_segment_is_a_refusal_in_its_slot():
    with toy_engine() as toy:
        result = await toy.engine.translate(toy.job(source(3), source(POISON), source(4)))
        assert [segment.refusal for segment in result.segments] == [None, "engine_failed", None]
        assert result.segments[0].ids == alone(source(3)).ids
        assert result.segments[2].ids == alone(source(4)).ids
        assert toy.value("network_failures_total") == 1
        toy.engine.check()


async def test_a_poisoned_request_fails_alone_and_its_id_is_in_the_log(caplog):
    with toy_engine() as toy, caplog.at_level(logging.ERROR, "dragoman.engine"):
        good = [asyncio.create_task(toy.engine.translate(toy.job(source(w)))) for w in (3, 4, 5)]
        bad = toy.job(source(POISON), source(3, POISON))
        with pytest.raises(EngineFailed):
            await toy.engine.translate(bad)
        assert [r.segments[0].ids for r in await asyncio.gather(*good)] == [alone(source(w)).ids for w in (3, 4, 5)]
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert {"request_id": bad.request_id, "code": "engine_failed"}.items() <= lines[-1].items()
    assert any("toy_engine.py" in str(line.get("exception")) for line in lines), "the log does not say where"


@pytest.mark.parametrize("segment", [(), (3, 99, 2), (3,) * 25])
async def test_a_segment_that_can_not_be_decoded_is_a_refusal_in_its_slot(segment):
    with toy_engine() as toy:
        result = await toy.engine.translate(toy.job(segment, source(3)))
        assert result.segments[0].refusal == "text_too_long"
        assert result.segments[1].ids == alone(source(3)).ids
        assert toy.value("queue_tokens") == 0


async def test_a_network_that_fails_on_everything_turns_health_red_and_nobody_hangs():
    with toy_engine(EngineOptions(loop=LoopOptions(max_failures=4))) as toy:
        toy.stepper.broken = True
        outcomes = await asyncio.gather(
            *(toy.engine.translate(toy.job(source(3))) for _ in range(12)), return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} <= {EngineFailed, EngineUnavailable}
        with pytest.raises(EngineUnavailable, match="NetworkBrokenError"):
            toy.engine.check()
        with pytest.raises(EngineUnavailable):
            await toy.engine.translate(toy.job(source(4)))


async def test_failures_between_successes_are_not_a_broken_network():
    with toy_engine(EngineOptions(loop=LoopOptions(max_failures=2))) as toy:
        for _ in range(5):
            with pytest.raises(EngineFailed):
                await toy.engine.translate(toy.job(source(POISON)))
            await toy.engine.translate(toy.job(source(3)))
        toy.engine.check()


async def test_a_loop_that_dies_answers_everybody_and_turns_health_red():
    with toy_engine(kind=BrokenBatcher) as toy:
        calls = [toy.engine.translate(toy.job(source(3))) for _ in range(3)]
        async with asyncio.timeout(5.0):
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, EngineUnavailable) for outcome in outcomes)
        with pytest.raises(EngineUnavailable, match="AssertionError"):
            toy.engine.check()


async def test_a_step_that_hangs_turns_health_red_and_green_again_when_it_moves():
    with toy_engine(EngineOptions(loop=LoopOptions(stall_seconds=0.1))) as toy:
        toy.stepper.gate.clear()
        call = asyncio.create_task(toy.engine.translate(toy.job(source(3))))
        await toy.until(toy.stepper.in_step.is_set)
        toy.engine.check()
        await asyncio.sleep(0.15)
        with pytest.raises(EngineUnavailable, match="one step has taken"):
            toy.engine.check()
        with pytest.raises(EngineUnavailable):
            await toy.engine.translate(toy.job(source(4)))
        toy.stepper.gate.set()
        await call
        toy.engine.check()


async def test_an_idle_engine_is_healthy_however_long_it_idles():
    with toy_engine(EngineOptions(loop=LoopOptions(stall_seconds=0.05))) as toy:
        await asyncio.sleep(0.1)
        toy.engine.check()
        await toy.engine.translate(toy.job(source(3)))
        await asyncio.sleep(0.1)
        toy.engine.check()


async def test_stopping_refuses_what_is_still_here():
    with toy_engine() as toy:
        toy.stepper.gate.clear()
        call = asyncio.create_task(toy.engine.translate(toy.job(source(3))))
        await toy.until(toy.stepper.in_step.is_set)
        began = time.monotonic()
        toy.engine.stop()
        with pytest.raises(EngineUnavailable):
            await call
        assert time.monotonic() - began < 1.0
        with pytest.raises(EngineUnavailable, match="stopped"):
            toy.engine.check()

"""One job, one answer: what the ingress does when an engine replica dies, refuses, hangs, or is full."""

from __future__ import annotations

import asyncio
import time

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError
from ray.serve.exceptions import BackPressureError

from model.decode.options import DecodeOptions
from service.errors import (
    DeadlineExceeded,
    EngineFailed,
    EngineUnavailable,
    Overloaded,
    TextTooLong,
)
from service.ingress.calls import EngineCalls, RetryOptions
from service.jobs import Job, Result

RESULT = Result((), 0.1, 0.2)
DIED = ActorDiedError()
AWAY = ActorUnavailableError("away", b"0" * 16)
MEMORY = OutOfMemoryError("killed")
HANG = object()


class Handle:
    """A deployment's handle whose replicas do one thing after the other: raise, hang, or return."""

    def __init__(self, *script: object) -> None:
        self._script = list(script)
        self.calls = 0
        self.cancelled = 0
        self.translate = self

    def remote(self, job: Job) -> Response:
        self.calls += 1
        return Response(self, self._script.pop(0))


class Response:
    def __init__(self, handle: Handle, outcome: object) -> None:
        self._handle, self._outcome = handle, outcome

    def __await__(self):
        return self._run().__await__()

    async def _run(self) -> object:
        if self._outcome is HANG:
            await asyncio.Event().wait()
        if isinstance(self._outcome, Exception) and not isinstance(self._outcome, EngineFailed | Overloaded):
            raise self._outcome
        return self._outcome

    def cancel(self) -> None:
        self._handle.cancelled += 1


def job(seconds: float = 5.0) -> Job:
    return Job("an-id", ((5, 2),), DecodeOptions(), time.time() + seconds)


def calls(handle: Handle, retries: list[int] | None = None) -> EngineCalls:
    noted = [] if retries is None else retries
    return EngineCalls(handle, RetryOptions(pause=(0.0, 0.001)), lambda: noted.append(1))


async def test_a_result_is_handed_on():
    handle, retries = Handle(RESULT), []
    assert await calls(handle, retries).translate(job()) == RESULT
    assert (handle.calls, retries) == (1, [])


@pytest.mark.parametrize("deaths", [[DIED], [AWAY], [MEMORY], [DIED, AWAY], [DIED, MEMORY]])
async def test_a_job_goes_to_another_replica_when_one_dies(deaths):
    handle, retries = Handle(*deaths, RESULT), []
    assert await calls(handle, retries).translate(job()) == RESULT
    assert len(retries) == len(deaths)


async def test_after_three_deaths_the_caller_is_told_to_come_back():
    handle = Handle(DIED, AWAY, DIED, RESULT)
    with pytest.raises(EngineUnavailable):
        await calls(handle).translate(job())
    assert handle.calls == 3


async def test_a_job_under_which_two_replicas_ran_out_of_memory_is_not_given_to_a_third():
    handle = Handle(MEMORY, MEMORY, RESULT)
    with pytest.raises(EngineUnavailable):
        await calls(handle).translate(job())
    assert handle.calls == 2


@pytest.mark.parametrize("refusal", [Overloaded("full"), EngineFailed(), TextTooLong()])
async def test_what_an_engine_says_itself_is_the_answer(refusal):
    handle = Handle(refusal, RESULT)
    with pytest.raises(type(refusal)):
        await calls(handle).translate(job())
    assert handle.calls == 1


async def test_an_engine_that_says_it_is_ill_is_not_the_last_word():
    assert await calls(Handle(EngineUnavailable(), RESULT)).translate(job()) == RESULT


async def test_an_exception_of_our_own_code_is_not_tried_again():
    handle = Handle(ZeroDivisionError(), RESULT)
    with pytest.raises(ZeroDivisionError):
        await calls(handle).translate(job())
    assert handle.calls == 1


async def test_a_full_router_is_an_overload():
    with pytest.raises(Overloaded):
        await calls(Handle(BackPressureError(9, 9))).translate(job())


async def test_an_answer_that_is_no_result_is_our_fault():
    with pytest.raises(EngineFailed):
        await calls(Handle("what?")).translate(job())


async def test_a_replica_that_is_only_slow_is_not_asked_twice():
    handle = Handle(HANG, RESULT)
    with pytest.raises(DeadlineExceeded):
        await calls(handle).translate(job(0.1))
    assert (handle.calls, handle.cancelled) == (1, 1)


async def test_a_second_call_that_hangs_leaves_time_for_a_third():
    handle = Handle(DIED, HANG, RESULT)
    began = time.monotonic()
    assert await calls(handle).translate(job(0.4)) == RESULT
    assert 0.1 < time.monotonic() - began < 0.4
    assert handle.cancelled == 1


async def test_a_caller_that_leaves_cancels_the_engines_work():
    handle = Handle(HANG)
    call = asyncio.create_task(calls(handle).translate(job()))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert handle.cancelled == 1

"""An engine in a process of its own answers as one in this process does, and nobody waits for one that has gone."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from model.bundle import Bundle
from model.decode.options import DecodeOptions
from model.errors import BundleError
from service.child import Answering, _portable
from service.engine.engine import Engine
from service.engine.frames import Frames
from service.engine.opening import open_engine
from service.engine.process import CANCEL, CHECK, TRANSLATE, EngineProcess
from service.errors import DeadlineExceeded, EngineUnavailable, Overloaded
from service.jobs import Job, Result
from service.metrics.families import open_registry
from service.metrics.snapshots import Snapshot
from service.settings import Settings
from tests.service.tiny_bundle import tiny_bundle

SOURCES = ((5, 6, 7, 2), (9, 8, 2), (11, 12, 13, 14, 15, 2))


def job(sources: tuple[tuple[int, ...], ...] = SOURCES, seconds: float = 30.0, **options: Any) -> Job:
    return Job("a request", sources, DecodeOptions(**options), time.time() + seconds)


def asked(work: Callable[[EngineProcess], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    """What `work` makes of a process, in an event loop; the process ends with it."""
    process = EngineProcess(tiny_bundle(), Settings(bundles=(tiny_bundle(),), **settings))

    async def whole() -> Any:
        try:
            return await work(process)
        finally:
            await process.stop()

    found = asyncio.run(whole())
    assert wait_for_end(process.pid)
    return found


def wait_for_end(pid: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # if it is ours
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_it_answers_as_an_engine_in_this_process_does() -> None:
    async def here() -> Result:
        engine, labels = open_engine(Bundle.open(tiny_bundle()), Settings(), open_registry("engine"))
        assert labels.operators
        try:
            return await engine.translate(job(beam_size=3, n_best=2))
        finally:
            engine.stop()

    expected = asyncio.run(here())
    found = asked(lambda process: process.translate(job(beam_size=3, n_best=2)))
    assert found.segments == expected.segments


def test_many_at_once_each_get_their_own_answer() -> None:
    async def alone_and_together(process: EngineProcess) -> tuple[list[Result], list[Result]]:
        jobs = [job(((*range(4, 5 + i), 2),)) for i in range(20)]
        alone = [await process.translate(each) for each in jobs]
        return alone, list(await asyncio.gather(*map(process.translate, jobs)))

    alone, together = asked(alone_and_together)
    assert [result.segments for result in together] == [result.segments for result in alone]


def test_what_the_engine_refuses_is_raised_here() -> None:
    async def refused(process: EngineProcess) -> None:
        many = ((*[5] * 60, 2),) * 60
        first = asyncio.create_task(process.translate(job(many)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="Try again"):
            await process.translate(job(many))
        assert len((await first).segments) == len(many)
        with pytest.raises(DeadlineExceeded):
            await process.translate(job(seconds=-1.0))
        assert (await process.translate(job())).segments

    asked(refused, max_queued_tokens=4096)


def test_a_caller_that_leaves_takes_its_segments_along() -> None:
    async def left(process: EngineProcess) -> float:
        task = asyncio.create_task(process.translate(job(((*[5] * 60, 2),) * 20)))
        await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert (await process.translate(job())).segments
        family = (await process.snapshot())["translation_abandoned_segments"]
        return sum(family.samples.values())

    assert asked(left) > 0


def test_its_metrics_come_from_there() -> None:
    async def counted(process: EngineProcess) -> float:
        await process.translate(job())
        return count(await process.snapshot())

    assert asked(counted) == len(SOURCES)


def test_who_waits_when_the_process_is_killed_is_told_and_another_one_takes_its_place() -> None:
    async def killed(process: EngineProcess) -> None:
        await process.translate(job())
        before, first = await process.snapshot(), process.pid
        os.kill(first, signal.SIGSTOP)  # so that it cannot be too fast
        waiting = asyncio.create_task(process.translate(job()))
        await asyncio.sleep(0.05)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(EngineUnavailable, match="has gone"):
            await waiting
        with pytest.raises(EngineUnavailable, match="has gone"):
            await process.check()
        left = await process.snapshot()
        assert left["translation_decode_seconds"] == before["translation_decode_seconds"]
        assert "translation_batch_rows_active" not in left  # nothing is running
        await until_it_answers(process)
        assert process.pid != first
        assert (await process.translate(job())).segments
        assert count(await process.snapshot()) == 2 * len(SOURCES)

    asked(killed)


async def until_it_answers(process: EngineProcess) -> None:
    async with asyncio.timeout(20.0):
        while True:
            with suppress(EngineUnavailable):
                return await process.check()
            await asyncio.sleep(0.02)


def count(snapshot: Snapshot) -> float:
    """Segments that were decoded."""
    samples = snapshot["translation_decode_seconds"].samples
    return next(value for (name, _), value in samples.items() if name.endswith("_count"))


def test_a_process_that_dies_again_and_again_is_left_to_who_watches() -> None:
    async def killed(process: EngineProcess) -> None:
        for _ in range(3):
            await until_it_answers(process)
            os.kill(process.pid, signal.SIGKILL)
            await asyncio.sleep(0.5)  # by then it is known
        while process.reviving:
            await asyncio.sleep(0.01)
        with pytest.raises(EngineUnavailable, match="has gone"):
            await process.check()

    asked(killed)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_process_that_hangs_or_says_that_it_is_ill_is_ended_and_another_one_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    async def refuse(*_: object) -> None:
        raise EngineUnavailable("The engine must decode, but its loop has stopped.")

    async def ill(process: EngineProcess) -> None:
        await process.check()
        first = process.pid
        if hangs:
            os.kill(first, signal.SIGSTOP)
            monkeypatch.setattr("service.engine.process._PATIENCE", 0.2)
        else:
            monkeypatch.setattr(process, "_ask", refuse)
        with pytest.raises(EngineUnavailable, match=r"must answer within 0\.2 s" if hangs else "its loop has stopped"):
            await process.check()
        monkeypatch.undo()
        await asyncio.sleep(0.2)  # by then it is known
        await until_it_answers(process)
        assert process.pid != first

    asked(ill)


class NoEngine(Engine):
    """Translates for ever, and says that it is ill."""

    def __init__(self) -> None:
        """No loop."""

    async def translate(self, job: Job) -> Result:
        await asyncio.Event().wait()
        raise AssertionError

    def check(self) -> None:
        raise EngineUnavailable("ill")


def test_a_question_that_is_withdrawn_before_it_was_begun_leaves_nothing_behind() -> None:
    async def withdrawn() -> tuple[int, int]:
        answering = Answering(NoEngine(), open_registry("engine"))
        answering._take((1, TRANSLATE, job()))
        answering._take((1, CANCEL, None))
        answering._take((2, TRANSLATE, job()))
        await asyncio.sleep(0)
        running = len(answering._running)
        answering._take((2, CANCEL, None))
        for _ in range(3):
            await asyncio.sleep(0)
        return running, len(answering._running)

    assert asyncio.run(withdrawn()) == (2, 0)


class Sent(Frames):
    """What was sent, in place of sending it."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: object) -> None:
        self.messages.append(message)


def test_an_illness_of_the_engine_is_an_answer() -> None:
    async def ill() -> list[Any]:
        answering, sent = Answering(NoEngine(), open_registry("engine")), Sent()
        answering._frames = sent
        answering._take((7, CHECK, None))
        return sent.messages

    ((number, answer),) = asyncio.run(ill())
    assert number == 7
    assert isinstance(answer, EngineUnavailable)


class StubbornError(Exception):
    """Can be pickled, but not read again."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(one)


@pytest.mark.parametrize("error", [BundleError("no bundle"), StubbornError(1, 2)])
def test_whatever_keeps_an_engine_from_starting_survives_the_way(error: Exception) -> None:
    found = pickle.loads(pickle.dumps(_portable(error)))
    assert type(found) is (EngineUnavailable if isinstance(error, StubbornError) else BundleError)
    assert str(error) in str(found)


def test_a_process_that_hangs_keeps_nobody_beyond_his_deadline() -> None:
    async def hung(process: EngineProcess) -> float:
        await process.check()
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            await process.translate(job(seconds=0.3))
        os.kill(process.pid, signal.SIGCONT)
        return time.monotonic() - began

    assert asked(hung) < 3.0


def test_a_bundle_that_cannot_be_opened_is_refused_as_it_would_be_here(tmp_path: Any) -> None:
    with pytest.raises(BundleError):
        EngineProcess(tmp_path, Settings())


def test_it_ends_when_its_parent_is_killed() -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from service.engine.process import EngineProcess\n"
        "from service.settings import Settings\n"
        "print(EngineProcess(Path(sys.argv[1]), Settings()).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tiny_bundle())], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert wait_for_end(pid)

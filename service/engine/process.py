"""An engine in a process of its own, beside the one that asks it.

In one process the threads of HTTP and of the decode loop take the interpreter from each other at every step, and a call
of Ray is dear; a socket costs a pickle on each side.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.engine.frames import Frames, pack, receive
from service.errors import DeadlineExceeded, EngineUnavailable
from service.jobs import Job, Result
from service.metrics.families import ModelLabels
from service.metrics.snapshots import Snapshot, lasting, merge
from service.settings import Settings

CANCEL, CHECK, SNAPSHOT, TRANSLATE = "cancel", "check", "snapshot", "translate"
"""What a process is asked. A question is (number, one of these, content), an answer (number, content)."""

_PATIENCE = 5.0
"""Seconds for an answer that needs no network; an engine that takes longer counts as ill."""
_LEAVE = 2.0
"""Seconds that it has to end when it is told to."""
_START = 300.0
"""Seconds that it has to load."""
_OFTEN = (3, 60.0)
"""So many deaths within so many seconds are no accident: then it is not started again."""
_GONE = "The engine's process has gone; try again in a moment."
_log = logging.getLogger("dragoman.engine")


@dataclass(frozen=True, slots=True)
class Child:
    """A process that has translated something, our end of the socket, and what runs there."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    labels: ModelLabels

    @classmethod
    def start(cls, bundle: Path, settings: Settings) -> Child:
        """Raises what `open_engine` raises there, and `EngineUnavailable` if the process ends before."""
        ours, theirs = socket.socketpair()
        with theirs:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            command = [sys.executable, "-P", "-m", "service.child", str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        ours.settimeout(_START)
        labels: object = None
        with suppress(OSError, EOFError):  # it has ended, or takes too long
            ours.sendall(pack((bundle, settings)))
            labels = receive(ours)
        if isinstance(labels, ModelLabels):
            return cls(process, ours, labels)
        ours.close()
        process.kill()
        status = process.wait()
        if isinstance(labels, Exception):
            raise labels
        raise EngineUnavailable(f"The engine's process must start within {_START:g} s, but ended with {status}.")

    def end(self) -> None:
        """Let it end, or end it."""
        with suppress(OSError):  # it has gone already
            self.connection.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(_LEAVE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.connection.close()


class EngineProcess:
    """Asks the engine of one bundle, in a child that is started again when it ends. Belongs to one event loop."""

    def __init__(self, bundle: Path, settings: Settings) -> None:
        """See `Child.start`."""
        self._start = functools.partial(Child.start, bundle, settings)
        self._child = self._start()
        self._link: asyncio.Task[Frames] | None = None
        self._revival: asyncio.Task[None] | None = None
        self._deaths: deque[float] = deque(maxlen=_OFTEN[0])  # when, in monotonic seconds
        self._gone = self._stopping = False
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._snapshot: Snapshot = {}
        self._past: Snapshot = {}
        """What is left of the metrics of children that ended."""

    @property
    def labels(self) -> ModelLabels:
        """What runs there."""
        return self._child.labels

    @property
    def pid(self) -> int:
        """The process."""
        return self._child.process.pid

    @property
    def reviving(self) -> bool:
        """True while another child is on its way."""
        return self._revival is not None and not self._revival.done()

    async def translate(self, job: Job) -> Result:
        """See `Engine.translate`; a process that has gone raises `EngineUnavailable`."""
        number = next(self._numbers)
        try:
            async with asyncio.timeout(max(0.0, job.deadline - time.time())):
                result = await self._ask(number, TRANSLATE, job)
        except TimeoutError:
            await self._tell(number, CANCEL)
            raise DeadlineExceeded() from None
        except asyncio.CancelledError:
            await self._tell(number, CANCEL)
            raise
        assert isinstance(result, Result)
        return result

    async def check(self) -> None:
        """Raise `EngineUnavailable` if the process has gone, or its decode loop is dead or hangs; then it is ended."""
        child = self._child
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._ask(next(self._numbers), CHECK)
        except TimeoutError:
            child.process.kill()
            raise EngineUnavailable(f"The engine must answer within {_PATIENCE:g} s, but did not.") from None
        except EngineUnavailable:
            child.process.kill()
            raise

    async def snapshot(self) -> Snapshot:
        """Its metrics, with the counts of those that were before it."""
        with suppress(EngineUnavailable, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                self._snapshot = await self._ask(next(self._numbers), SNAPSHOT)
        return merge((self._past, self._snapshot))

    async def stop(self) -> None:
        """Refuse what is still there, and end the process."""
        self._stopping = True
        if self._revival is not None:
            await self._revival
        if self._link is not None:  # a socket must be closed by what watches it
            with suppress(OSError):
                (await self._link).close()
        await asyncio.to_thread(self._child.end)

    async def _frames(self) -> Frames:
        if self._link is None:
            self._link = asyncio.create_task(Frames.over(self._child.connection, self._take, self._lost))
        return await asyncio.shield(self._link)

    async def _ask(self, number: int, kind: str, content: object = None) -> Any:
        if self._gone or self._stopping:
            raise EngineUnavailable(_GONE)
        frames = await self._frames()
        if self._gone:  # meanwhile: nobody would end what is noted now
            raise EngineUnavailable(_GONE)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        frames.send((number, kind, content))
        try:
            return await answer
        finally:
            self._asked.pop(number, None)

    async def _tell(self, number: int, kind: str) -> None:
        if not self._gone and not self._stopping:
            (await self._frames()).send((number, kind, None))

    def _take(self, message: tuple[int, object]) -> None:
        number, content = message
        answer = self._asked.get(number)
        if answer is None or answer.done():  # its caller left
            return
        if isinstance(content, Exception):
            answer.set_exception(content)
        else:
            answer.set_result(content)

    def _lost(self) -> None:
        self._gone = True
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(EngineUnavailable(_GONE))
        self._past, self._snapshot = merge((self._past, lasting(self._snapshot))), {}
        if not self._stopping:
            self._revival = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        """Start another child. Where none starts, `check` goes on raising, and whoever asks it must help."""
        await asyncio.to_thread(self._child.end)
        status = self._child.process.returncode
        _log.error("the engine's process ended", extra={"fields": {"status": status}})
        self._deaths.append(time.monotonic())
        if self._stopping or (len(self._deaths) == _OFTEN[0] and self._deaths[-1] - self._deaths[0] < _OFTEN[1]):
            return
        try:
            self._child = await asyncio.to_thread(self._start)
        except Exception:  # noqa: BLE001  whatever it is, the health check tells it
            _log.exception("the engine's process does not start again")
            return
        self._link, self._gone = None, False

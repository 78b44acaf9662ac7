"""The process that `service.engine.process` starts: an engine, asked over the socket that it inherits.

    python -m service.child FILE_DESCRIPTOR

It ends when the other side of the socket has gone, however that came about; while it loads, as soon as it has loaded.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys

from model.bundle import Bundle
from service.engine.engine import Engine
from service.engine.frames import Frames, pack, receive
from service.engine.opening import open_engine
from service.engine.process import CANCEL, CHECK, TRANSLATE
from service.errors import EngineFailed, EngineUnavailable, Refusal
from service.jobs import Job
from service.logs import configure
from service.metrics.families import Registry, open_registry
from service.metrics.snapshots import take

_SWITCH_SECONDS = 0.0001
"""The decode loop wants the interpreter for a moment between two steps; usually it would wait up to 5 ms for it."""


class Answering:
    """Answers questions about one engine."""

    def __init__(self, engine: Engine, registry: Registry) -> None:
        self._engine = engine
        self._registry = registry
        self._running: dict[int, asyncio.Task[None]] = {}
        self._done = asyncio.Event()
        self._frames: Frames | None = None

    async def over(self, connection: socket.socket) -> None:
        """Until the other side has gone."""
        self._frames = await Frames.over(connection, self._take, self._done.set)
        await self._done.wait()
        self._engine.stop()

    def _take(self, message: tuple[int, str, object]) -> None:
        number, kind, content = message
        if kind == TRANSLATE:
            assert isinstance(content, Job)
            self._running[number] = asyncio.create_task(self._translate(number, content))
            # Not at its own end: one that is cancelled before it has begun has none.
            self._running[number].add_done_callback(lambda _: self._running.pop(number))
        elif kind == CANCEL:
            if (task := self._running.get(number)) is not None:
                task.cancel()
        elif kind == CHECK:
            self._check(number)
        else:
            self._send(number, take(self._registry))

    async def _translate(self, number: int, job: Job) -> None:
        try:
            self._send(number, await self._engine.translate(job))
        except Refusal as refusal:
            self._send(number, refusal)
        except Exception:
            self._send(number, EngineFailed())
            raise

    def _check(self, number: int) -> None:
        try:
            self._engine.check()
        except Refusal as refusal:
            self._send(number, refusal)
        else:
            self._send(number, None)

    def _send(self, number: int, content: object) -> None:
        assert self._frames is not None
        self._frames.send((number, content))


def _portable(error: Exception) -> Exception:
    """`error`, or one that says the same and survives the way."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  whatever its class does there
        return EngineUnavailable(f"The engine's process must start, but raised {error!r}.")
    return error


def main() -> None:
    """Open what the first message asks for, say how that went, and answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the service, which then lets us end
    connection = socket.socket(fileno=int(sys.argv[1]))
    bundle, settings = receive(connection)
    configure(settings.log_level)
    sys.setswitchinterval(_SWITCH_SECONDS)
    registry = open_registry("engine")
    try:
        engine, labels = open_engine(Bundle.open(bundle), settings, registry)
    except Exception as error:  # noqa: BLE001  the other side raises it
        connection.sendall(pack(_portable(error)))
        return
    connection.sendall(pack(labels))
    asyncio.run(Answering(engine, registry).over(connection))
    os._exit(0)  # a step that hangs must not keep the process


if __name__ == "__main__":
    main()

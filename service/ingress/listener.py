"""An HTTP server inside the ingress replica, where nothing need stand between it and its callers.

Every replica of a machine listens on the same address; the kernel spreads the connections over them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

_KEEP_ALIVE_SECONDS = 90
"""How long a connection may be idle; longer than gateways hold theirs."""


class ListenerError(RuntimeError):
    """The server has ended without having been told to."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to Ray."""
        yield


class Listener:
    """Serves an ASGI application from the running event loop."""

    def __init__(self, host: str, port: int, patience: float) -> None:
        """Listen on `host` and `port` once started; at the end requests have `patience` seconds to be answered."""
        self._address = (host, port)
        self._patience = max(1, round(patience))
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, app: Any) -> None:
        """Begin to serve `app`. Raises `OSError` when nobody can listen there."""
        config = uvicorn.Config(
            app,
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="critical",  # it quotes what it could not read
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=self._patience,
        )
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[_bound(*self._address)]))

    @property
    def started(self) -> bool:
        """True once `start` was called."""
        return self._task is not None

    def check(self) -> None:
        """Raise `ListenerError` if the server has ended."""
        if self._task is not None and self._task.done():
            reason = None if self._task.cancelled() else self._task.exception()
            raise ListenerError("the HTTP server must run, but has ended") from reason

    async def close(self) -> None:
        """Take no more connections, let those that are open have their answers, and end."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            with suppress(Exception):  # it was to end, and has
                await self._task


def _bound(host: str, port: int) -> socket.socket:
    """A socket that other replicas may have too. `service.local` has made sure that nobody else has."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port))
    except OSError:
        listening.close()
        raise
    return listening

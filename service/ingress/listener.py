"""An HTTP server inside the ingress replica, where nothing need stand between it and its callers.

Every replica of a machine listens on the same address; the kernel spreads the connections over them.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.api.errors import error_response
from service.api.observe import MAX_HEADER_BYTES
from service.errors import HeadersTooLarge, HeadersTooSlow, MalformedHttp, Refusal

_KEEP_ALIVE_SECONDS = 90
"""How long a connection may be idle; longer than gateways hold theirs."""
_HEAD_SECONDS = 20
"""From the first byte of a request to the end of its header fields."""


class ListenerError(RuntimeError):
    """The server has ended without having been told to."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to Ray."""
        yield


class _Part(enum.Enum):
    """Of what the next byte of a connection is."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class Connection(HttpToolsProtocol):
    """One connection. A request that is no HTTP, or whose head is endless or slow, is refused in the one JSON shape.

    The parser gives each head to nobody before its end, and has no limits of its own. Fields may also come behind a
    body in chunks, and chunks have heads themselves: both count as what carries no body. What comes at once may hold
    the end of one request and the beginning of the next; then counting begins with what comes after it.
    """

    head_seconds: float = _HEAD_SECONDS
    idle_seconds: float = _KEEP_ALIVE_SECONDS
    _part = _Part.NOTHING
    _turned = False
    """Whether a head or a body ended in what has just come."""
    _bytes = 0
    """Of the head that is being received; of a body those round it, less those that short chunks may need."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, but not for ever."""
        super().connection_made(transport)
        self._limit(self.idle_seconds, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the limits."""
        self._limit(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and count what carries no body."""
        before, self._turned = self._part, False
        super().data_received(data)
        if not self._turned:
            self._bytes += len(data)
        head_began = self._part is _Part.HEAD and (self._turned or before is _Part.NOTHING)
        if head_began or (self._part is _Part.NOTHING and 0 < self._bytes == len(data)):  # the latter are empty lines
            self._limit(self.head_seconds, lambda: self._refuse(HeadersTooSlow()))
        if self._bytes > 2 * MAX_HEADER_BYTES:
            # The application refuses smaller ones, and can name the request.
            message = f"The header fields must have at most {MAX_HEADER_BYTES} bytes in all."
            self._refuse(HeadersTooLarge(message))

    def on_message_begin(self) -> None:
        """A head begins."""
        self._part, self._bytes = _Part.HEAD, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there; what follows has limits of its own."""
        self._part, self._bytes, self._turned = _Part.BODY, 0, True
        self._limit(None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body, which may have come in chunks of one byte with five round each."""
        self._bytes -= 6 * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """What follows is another head."""
        self._part, self._bytes, self._turned = _Part.NOTHING, 0, True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Called when what came cannot be parsed."""
        self._refuse(MalformedHttp())

    def _limit(self, seconds: float | None, end: Callable[[], None] = lambda: None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, end)

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in place of the application, and close."""
        if self.transport.is_closing():
            return
        self._limit(None)
        if self._owes_answers():
            self.cycle.keep_alive = False  # the last of them closes the connection
            self.flow.pause_reading()
            return
        if self._part is _Part.BODY and self.cycle.response_started:  # it has its answer
            self.transport.close()
            return
        request_id = uuid.uuid4().hex
        response = error_response(refusal, request_id)
        fields = [*response.raw_headers, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
        status = HTTPStatus(response.status_code)
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() + b"".join(b"%b: %b\r\n" % one for one in fields)
        self.transport.write(head + b"\r\n" + bytes(response.body))
        self.transport.close()

    def _owes_answers(self) -> bool:
        """Whether requests that came before the one that is being received are still to be answered."""
        if self._part is _Part.BODY:
            return bool(self.pipeline)
        return self.cycle is not None and not self.cycle.response_complete


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
            http=Connection,
            ws="none",
            proxy_headers=False,  # nobody asks who a caller says that he is
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

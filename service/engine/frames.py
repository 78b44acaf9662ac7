"""Messages between two processes of ours over a socket that nobody else holds: pickled, each behind its length."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

_LENGTH = struct.Struct("!Q")


def pack(message: object) -> bytes:
    """A message as it travels."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


def receive(connection: socket.socket) -> Any:
    """The next message, however long it takes. Raises `EOFError` when the other side has gone."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return pickle.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        try:
            part = connection.recv(count - len(found))
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError("the other process must answer, but has gone.")
        found += part
    return bytes(found)


class Frames(asyncio.Protocol):
    """One end of the socket in an event loop."""

    def __init__(self, take: Callable[[Any], None], lost: Callable[[], None]) -> None:
        """`take` is called with each message, `lost` once, when the other side has gone."""
        self._take = take
        self._lost = lost
        self._held = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def over(cls, connection: socket.socket, take: Callable[[Any], None], lost: Callable[[], None]) -> Frames:
        """The end that `connection` is, in the running event loop."""
        connection.setblocking(False)
        _, frames = await asyncio.get_running_loop().create_connection(lambda: cls(take, lost), sock=connection)
        return frames

    def send(self, message: object) -> None:
        """Send a message; one to a side that has gone is lost."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(message))

    def close(self) -> None:
        """Send what is still to be sent, and hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.WriteTransport, transport)  # that of uvloop is none by descent

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._held += data
        while len(self._held) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held)
            end = _LENGTH.size + length
            if len(self._held) < end:
                break
            content = bytes(self._held[_LENGTH.size : end])
            del self._held[:end]
            self._take(pickle.loads(content))

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._lost()

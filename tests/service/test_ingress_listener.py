"""The ingress's own HTTP server: what is no request is refused in our words, and takes nothing from the others."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from service.api.errors import STATUS
from service.ingress.listener import Connection, Listener

HEAD = b"GET /here HTTP/1.1\r\nHost: x\r\n"


async def application(scope, receive, send):
    """Answers with the path, once the body is there."""
    while (await receive()).get("more_body"):
        pass
    body = scope["path"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def served(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]) -> bytes:
    """What `talk` returns of a connection to a server that listens for it."""

    async def run() -> bytes:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        listener = Listener("127.0.0.1", port, patience=1.0)
        listener.start(application)
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except OSError:
                await asyncio.sleep(0.01)
        try:
            return await asyncio.wait_for(talk(reader, writer), 10)
        finally:
            writer.close()
            await listener.close()

    return asyncio.run(run())


def refused(answer: bytes, code: str) -> None:
    """`answer` is a refusal with this code, in the one JSON shape."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    error = json.loads(body)["error"]
    assert lines[0].startswith(f"http/1.1 {STATUS[code]} ")
    assert error["code"] == code
    assert f"x-request-id: {error['request_id']}" in lines
    assert "connection: close" in lines


def test_requests_on_one_connection_are_answered_in_turn() -> None:
    async def talk(reader, writer) -> bytes:
        found = b""
        for path in (b"/one", b"/two"):
            writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
            await reader.readuntil(b"\r\n\r\n")
            found += await reader.readexactly(4)
        return found

    assert served(talk) == b"/one/two"


BIG = b"POST /big HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + b"a" * 200_000
ASKED = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [(BIG, [b"/big"]), (ASKED + BIG, [b"/a", b"/big"]), (BIG + BIG + ASKED, [b"/big", b"/big", b"/a"])],
    ids=["one", "two", "three"],
)
def test_what_comes_at_once_is_no_long_head(sent: bytes, answers: list[bytes]) -> None:
    async def talk(reader, writer) -> bytes:
        writer.write(sent)
        found = b""
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            found += await reader.readexactly(len(answer))
        return found

    assert served(talk) == b"".join(answers)


def test_hundreds_of_requests_may_come_at_once() -> None:
    async def talk(reader, writer) -> bytes:
        writer.write((ASKED[:-2] + b"x-noise: " + b"n" * 250 + b"\r\n\r\n") * 400)
        found = 0
        for _ in range(400):
            await reader.readuntil(b"\r\n\r\n")
            found += len(await reader.readexactly(2))
        return b"%d" % found

    assert served(talk) == b"800"


def test_answers_that_are_owed_are_given_before_a_connection_is_closed_for_noise() -> None:
    async def talk(reader, writer) -> bytes:
        writer.write(ASKED + ASKED + b"what is this?\r\n\r\n")
        return await reader.read()

    assert served(talk).count(b"\r\n\r\n/a") == 2


@pytest.mark.parametrize("before", [ASKED, BIG], ids=["a request in one packet", "a request in many"])
def test_the_head_of_a_later_request_must_end_in_time_too(before: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.05)

    async def talk(reader, writer) -> bytes:
        writer.write(before)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2 if before is ASKED else 4)
        writer.write(HEAD)
        return await reader.read()

    refused(served(talk), "headers_too_slow")


def test_empty_lines_hold_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.05)

    async def talk(reader, writer) -> bytes:
        writer.write(ASKED)
        await reader.readuntil(b"\r\n\r\n/a")
        answer = asyncio.ensure_future(reader.read())
        with suppress(ConnectionError):
            while not answer.done():
                writer.write(b"\r\n")
                await asyncio.sleep(0.01)
        return await answer

    refused(served(talk), "headers_too_slow")


def test_a_head_that_begins_behind_another_request_must_end_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.05)

    async def talk(reader, writer) -> bytes:
        writer.write(ASKED + HEAD)
        await reader.readuntil(b"\r\n\r\n/a")
        return await reader.read()

    refused(served(talk), "headers_too_slow")


@pytest.mark.parametrize("noise", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_no_http_is_refused_in_json(noise: bytes) -> None:
    async def talk(reader, writer) -> bytes:
        writer.write(noise)
        return await reader.read()

    refused(served(talk), "invalid_http")


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("endless", [b"x-noise: nnnnnn\r\n" * 1000, b"n" * 16_000], ids=["many fields", "one field"])
@pytest.mark.parametrize(
    "begin", [HEAD, CHUNKED + b"1\r\na\r\n0\r\n"], ids=["before a body", "behind a body in chunks"]
)
def test_header_fields_without_an_end_are_refused_before_they_fill_the_memory(begin: bytes, endless: bytes) -> None:
    sent = 0

    async def talk(reader, writer) -> bytes:
        nonlocal sent
        writer.write(begin + b"x-begin: ")
        answer = asyncio.ensure_future(reader.read())
        with suppress(ConnectionError):
            while not answer.done() and sent < 100 * 2**20:
                writer.write(endless)
                sent += len(endless)
                await writer.drain()
                await asyncio.sleep(0)
        return await answer

    with suppress(ConnectionError):  # it may be closed while more is on its way
        refused(served(talk), "headers_too_large")
    assert sent < 10 * 2**20


def test_a_body_may_come_in_the_smallest_chunks_and_with_fields_behind_it() -> None:
    async def talk(reader, writer) -> bytes:
        writer.write(CHUNKED.replace(b" / ", b" /many "))
        for _ in range(100):
            writer.write(b"1\r\na\r\n" * 1000)
            await writer.drain()
        writer.write(b"0\r\nx-sum: 7\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        return await reader.readexactly(5)

    assert served(talk) == b"/many"


def test_a_head_that_does_not_end_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.05)

    async def talk(reader, writer) -> bytes:
        writer.write(HEAD)
        return await reader.read()

    refused(served(talk), "headers_too_slow")


def test_a_slow_body_is_the_application_s_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.05)

    async def talk(reader, writer) -> bytes:
        writer.write(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        await asyncio.sleep(0.2)
        writer.write(b"abc")
        await reader.readuntil(b"\r\n\r\n")
        return await reader.readexactly(5)

    assert served(talk) == b"/slow"


def test_who_says_nothing_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "idle_seconds", 0.05)

    async def talk(reader, _writer) -> bytes:
        return await reader.read()

    assert served(talk) == b""

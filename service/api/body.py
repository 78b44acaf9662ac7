"""A request's body: its type, its size, its JSON; and whether somebody still waits for the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from email.message import Message
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from service.errors import BodyTooLarge, Cancelled, InvalidRequest, MalformedJson, UnsupportedMediaType

T = TypeVar("T")

_PATIENCE_S = 1.0
_LONGEST_INTEGER = 40
"""Digits; far more than any field takes, few enough to be repeated in a message."""


async def read_json(request: Request, max_bytes: int) -> dict[str, Any]:
    """The JSON object in the body.

    Raises `UnsupportedMediaType`, `BodyTooLarge` (as soon as that is known, whether or not a length was announced),
    `MalformedJson`, `InvalidRequest` for JSON that is no object, or `Cancelled` when the caller left.
    """
    _check_type(request)
    try:
        return parse(await _read(request, max_bytes))
    except ClientDisconnect as error:
        raise Cancelled from error


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`; strict: UTF-8, no NaN, no field twice."""
    try:
        value = json.loads(
            body.decode("utf-8-sig"),
            parse_constant=_refuse_constant,
            parse_int=_integer,
            object_pairs_hook=_without_duplicates,
        )
    except UnicodeDecodeError as error:
        raise MalformedJson(f"The body must be UTF-8, but byte {error.start} is not.") from error
    except json.JSONDecodeError as error:
        raise MalformedJson(
            f"The body must be JSON, but is not at line {error.lineno}, column {error.colno}."
        ) from error
    except RecursionError as error:
        raise MalformedJson("The body must be JSON of modest depth, but is nested too deeply.") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"The body must be a JSON object, but is {json_type(value)}.")
    return value


def json_type(value: Any) -> str:
    """The name of a JSON value's type, with its article, as an error message says it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {str: "a string", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return names[type(value)]


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled if the caller leaves first (`Cancelled`). The body must be read."""
    job = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((job, gone), return_when=asyncio.FIRST_COMPLETED)
        if job.done():
            return job.result()
        raise Cancelled
    finally:
        for task in (job, gone):
            task.cancel()
            task.add_done_callback(_retrieve)
        # Work that does not end when it is told to must not hold up the answer.
        await asyncio.wait((job, gone), timeout=_PATIENCE_S)


def _check_type(request: Request) -> None:
    given = request.headers.get("content-type")
    described = Message()  # it reads parameters, quoted or not, in any order
    described["content-type"] = given or ""
    if not given or described.get_content_type() != "application/json":
        found = given.partition(";")[0].strip() if given else "missing"
        raise UnsupportedMediaType(f"Content-Type must be application/json, but is {found[:80]}.")
    if (charset := str(described.get_param("charset", "utf-8"))).lower() not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(f"JSON must be in UTF-8, but the charset is {charset[:80]}.")
    if (encoding := request.headers.get("content-encoding", "identity").strip()).lower() != "identity":
        raise UnsupportedMediaType(f"The body must not be compressed, but Content-Encoding is {encoding[:80]}.")


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    too_large = BodyTooLarge(f"The body must have at most {max_bytes} bytes; send fewer texts at a time.")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Take note of how `task` ended; else asyncio would log its exception, with whatever that quotes."""
    if not task.cancelled():
        task.exception()


def _integer(digits: str) -> int:
    if len(digits) > _LONGEST_INTEGER:
        raise MalformedJson(f"The body must be JSON with integers of at most {_LONGEST_INTEGER} digits.")
    return int(digits)


def _refuse_constant(name: str) -> None:
    raise MalformedJson(f"The body must be JSON, which has no {name}.")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise InvalidRequest(f"Each field must be given once, but {name[:40]} is given twice.", name[:40])
        fields[name] = value
    return fields

"""What surrounds every request: its id, its figures, its log line, and the answer when nothing else answered."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.errors import error_response
from service.api.ports import HttpRecorder
from service.errors import HeadersTooLarge, InternalFault, NotReady

MAX_HEADER_BYTES = 32 * 1024
"""All header fields together; some servers in front of us pass any number on."""

_REQUEST_ID = re.compile(r"[!-~]{1,128}")
"""Visible ASCII: wide enough for what gateways and tracers send, so that log, body and header show the same id."""
QUIET = {"/healthz", "/readyz", "/metrics"}
"""Paths that machines ask all the time."""
_CLIENT_LEFT = 499

_log = logging.getLogger("dragoman.api")


class Observe:
    """ASGI middleware, the outermost of ours.

    Leaves `request_id` and `started` (of `time.perf_counter`) in the request's state, and `X-Request-ID` on every
    response: the caller's own id if it is a modest one, else a new one. A proxy that gives every request an id and
    writes it on every response, such as Ray Serve's, is a caller like any other; only is the header not written twice.
    """

    def __init__(self, app: ASGIApp, recorder: HttpRecorder, routes: Iterable[BaseRoute], proxied: bool) -> None:
        """Wrap `app`, whose closed set of `routes` gives the endpoint labels."""
        self._app = app
        self._recorder = recorder
        self._routes = routes
        self._proxied = proxied

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request_id = _request_id(scope)
        endpoint = endpoint_of(scope, self._routes)
        scope.setdefault("state", {}).update(request_id=request_id, started=started)
        reply = _Reply(send, request_id, with_header=not self._proxied)
        self._recorder.http_started(endpoint)
        try:
            await self._answer(scope, receive, reply)
        finally:
            seconds = time.perf_counter() - started
            method = scope["method"]
            self._recorder.http_finished(
                api="native", endpoint=endpoint, method=method, code=reply.status, seconds=seconds
            )
            _log.log(
                logging.DEBUG if endpoint in QUIET and reply.status < 500 else logging.INFO,
                "request",
                extra={
                    "fields": {
                        "request_id": request_id,
                        "method": method[:16],
                        "endpoint": endpoint,
                        "status": reply.status,
                        "ms": round(seconds * 1000, 3),
                    }
                },
            )

    async def _answer(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        request_id = reply.request_id
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            message = f"The header fields must have at most {MAX_HEADER_BYTES} bytes in all."
            await error_response(HeadersTooLarge(message), request_id)(scope, receive, reply)
            return
        try:
            await self._app(scope, receive, reply)
        except asyncio.CancelledError:
            if reply.started or self._proxied:  # a proxy cancels what its caller has given up
                raise
            # Our own server cancels only what is still open at the end of its patience.
            await error_response(NotReady("The service is stopping; ask again."), request_id)(scope, receive, reply)
        except Exception:
            _log.exception("request failed", extra={"fields": {"request_id": request_id}})
            if reply.started:
                raise  # half an answer is out; only a broken connection can still say so
            await error_response(InternalFault(), request_id)(scope, receive, reply)


class _Reply:
    """A `send` that adds the request id to the response and remembers its status."""

    def __init__(self, send: Send, request_id: str, with_header: bool) -> None:
        self._send = send
        self._with_header = with_header
        self.request_id = request_id
        self.started = False
        self.status = _CLIENT_LEFT

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            if self._with_header:
                MutableHeaders(scope=message)["X-Request-ID"] = self.request_id
        await self._send(message)


def endpoint_of(scope: Scope, routes: Iterable[BaseRoute]) -> str:
    """The template of the route that takes this path, whatever the method; "other" for an unknown path."""
    for route in routes:
        if route.matches(scope)[0] is not Match.NONE:
            return str(getattr(route, "path", "other"))
    return "other"


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

"""The door: at most so many requests are inside at once; who comes on top is refused at once, in our own words."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.errors import error_response
from service.api.observe import QUIET
from service.errors import Overloaded


class Gate:
    """ASGI middleware inside `Observe`, whose request id it needs. Probes and scrapes always pass.

    Whatever stands in front has its own limit, but refuses in plain text, without an id, and uncounted; ours must be
    the lower one.
    """

    def __init__(self, app: ASGIApp, most: int, retry_after_s: float) -> None:
        """Let `most` requests into `app` at once; the others are told to come back after `retry_after_s`."""
        self._app = app
        self._most = most
        self._retry_after_s = retry_after_s
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
        elif self._inside >= self._most:
            refusal = Overloaded(f"At most {self._most} requests may be here at once. Try again in a moment.")
            await error_response(refusal, scope["state"]["request_id"], self._retry_after_s)(scope, receive, send)
        else:
            self._inside += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._inside -= 1

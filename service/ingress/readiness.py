"""Is a model ready? It is if a real translation has just worked, or the queue is full of those that soon will.

To take a replica that works out of its service because all want something of it would only hit the next one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from service.errors import Overloaded

Probe = Callable[[], Awaitable[str | None]]
"""Translates something short; None if that worked, else why not."""


class Readiness:
    """The state of one model. Many may ask at once; they share one probe, and a fresh answer is not asked for twice."""

    def __init__(self, probe: Probe, fresh_seconds: float = 1.0, busy_seconds: float = 30.0) -> None:
        """With a full queue it counts as ready for `busy_seconds` after a translation worked."""
        self._probe = probe
        self._fresh_seconds = fresh_seconds
        self._busy_seconds = busy_seconds
        self._worked_at = float("-inf")
        self._probed_at = float("-inf")
        self._reason: str | None = None
        self._running: asyncio.Task[str | None] | None = None

    def worked(self) -> None:
        """A real translation just worked, whoever asked for it."""
        self._worked_at = time.monotonic()

    async def ask(self) -> str | None:
        """None if the model is ready, else why not."""
        oldest = time.monotonic() - self._fresh_seconds
        if self._worked_at >= oldest:
            return None
        if self._probed_at >= oldest:
            return self._reason
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        # One asker that leaves must not end the probe of the others.
        return await asyncio.shield(self._running)

    async def _run(self) -> str | None:
        self._reason = await self._probe()
        if self._reason is None:
            self.worked()
            return None
        self._probed_at = time.monotonic()
        if self._reason == Overloaded.code and self._probed_at - self._worked_at <= self._busy_seconds:
            self._reason = None
        return self._reason

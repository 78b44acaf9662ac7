"""Is a model ready? It is if a real translation has just worked, and only then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

Probe = Callable[[], Awaitable[str | None]]
"""Translates something short; None if that worked, else why not."""


class Readiness:
    """The state of one model. Many may ask at once; they share one probe, and a fresh answer is not asked for twice."""

    def __init__(self, probe: Probe, fresh_seconds: float = 1.0) -> None:
        self._probe = probe
        self._fresh_seconds = fresh_seconds
        self._worked_at = float("-inf")
        self._failed_at = float("-inf")
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
        if self._failed_at >= oldest:
            return self._reason
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        # One asker that leaves must not end the probe of the others.
        return await asyncio.shield(self._running)

    async def _run(self) -> str | None:
        self._reason = await self._probe()
        if self._reason is None:
            self.worked()
        else:
            self._failed_at = time.monotonic()
        return self._reason

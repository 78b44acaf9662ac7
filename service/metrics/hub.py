"""One `/metrics` over all replicas, exact at the moment of the scrape. No Ray here; `service.replica` carries it.

Every replica is a *source*. It keeps one call to the hub open: `exchange` brings a snapshot and returns when the hub
wants the next one, which is at the next scrape or, failing that, after a period. A scrape asks every live source for a
snapshot taken after it began, and waits for them for a moment. So nothing that was counted before a scrape is missing
from it, and what a killed replica counted is lost for one period at most.

A source that leaves, or that is silent for too long, is *retired*: its counts stay in every later sum, so that no
counter ever falls, and its gauges go. If it was only slow and speaks again, it is live again, and counted once.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from service.metrics.snapshots import Snapshot, exposition, lasting, merge


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    """Times in seconds."""

    period: float = 1.0
    """How often a source brings a snapshot when nobody scrapes."""
    patience: float = 0.5
    """How long a scrape waits for the sources."""
    silence: float = 5.0
    """A source that was not heard for this long is retired."""
    remembered: int = 256
    """Retired sources that may still come back; older ones are added up for good."""


@dataclass(frozen=True, slots=True)
class _Source:
    snapshot: Snapshot
    generation: int
    """Of the latest scrape the source knew of when it took the snapshot."""
    heard: float


class MetricsHub:
    """Holds the last snapshot of every source. All methods run in one event loop."""

    def __init__(self, options: HubOptions | None = None) -> None:
        self._options = options or HubOptions()
        self._live: dict[str, _Source] = {}
        self._retired: OrderedDict[str, Snapshot] = OrderedDict()
        self._settled: Snapshot = {}
        self._generation = 0
        self._changed = asyncio.Condition()

    async def exchange(self, source: str, snapshot: Snapshot, generation: int) -> int:
        """Keep `snapshot`; return the generation of the next one when it is wanted.

        `generation` is what the last call returned, 0 at first.
        """
        async with self._changed:
            self._keep(source, snapshot, generation)
            self._changed.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.period):
                    await self._changed.wait_for(lambda: self._generation > generation)
        return self._generation

    async def leave(self, source: str, snapshot: Snapshot) -> None:
        """Keep the last snapshot of a source that ends."""
        async with self._changed:
            self._keep(source, snapshot, self._generation)
            self._retire(source)
            self._changed.notify_all()

    async def scrape(self, source: str, snapshot: Snapshot) -> str:
        """The exposition over all sources; `snapshot` is the asking source's own, taken just now."""
        async with self._changed:
            self._generation += 1
            wanted = self._generation
            self._keep(source, snapshot, wanted)
            self._changed.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.patience):
                    await self._changed.wait_for(lambda: self._all_have(wanted))
            self._retire_silent()
            return exposition(self._sum())

    def _all_have(self, generation: int) -> bool:
        return all(source.generation >= generation for source in self._live.values())

    def _keep(self, source: str, snapshot: Snapshot, generation: int) -> None:
        # A live source and its retired self must never both count.
        self._retired.pop(source, None)
        self._live[source] = _Source(snapshot, generation, time.monotonic())

    def _retire(self, source: str) -> None:
        self._retired[source] = lasting(self._live.pop(source).snapshot)
        if len(self._retired) > self._options.remembered:
            _, oldest = self._retired.popitem(last=False)
            self._settled = merge((self._settled, oldest))

    def _retire_silent(self) -> None:
        limit = time.monotonic() - self._options.silence
        for name in [name for name, source in self._live.items() if source.heard < limit]:
            self._retire(name)

    def _sum(self) -> Snapshot:
        return merge((*(source.snapshot for source in self._live.values()), *self._retired.values(), self._settled))

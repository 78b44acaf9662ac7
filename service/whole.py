"""The deployment of one machine: HTTP and text work, and an engine for each bundle in a process beside them.

A call of Ray between two replicas costs a request about as much processor time as its translation by a small network.
`service.app` makes a deployment of it where the settings want one. If an engine's process ends, those who wait for it
are told so, and another one is started.
"""

from __future__ import annotations

from typing import Any

from model.bundle import Bundle
from service.engine.process import EngineProcess
from service.ingress.backend import Engines
from service.ingress.deployment import ListeningIngress
from service.metrics.families import RequestMetrics
from service.replica import MetricsSource
from service.settings import Settings


class Whole(ListeningIngress):
    """An ingress that listens itself and starts its engines."""

    def __init__(self, settings: Settings) -> None:
        """Load every bundle; a replica that cannot translate does not start."""
        self._processes: list[EngineProcess] = []
        self._sources: list[MetricsSource] = []
        super().__init__(settings)
        for process in self._processes:
            self._backend.introduce(process.labels)

    def _engines(self, _index: int, bundle: Bundle, _metrics: RequestMetrics) -> Engines:
        """An engine of our own."""
        process = EngineProcess(bundle.path, self._settings)
        self._processes.append(process)
        self._sources.append(MetricsSource("engine", process.snapshot))
        return process

    def _open(self, proxied: bool) -> Any:
        """Begin what the event loop does in the background; the application."""
        for source in self._sources:
            source.start()
        return super()._open(proxied)

    async def check_health(self) -> None:
        """Raise if nobody listens, or an engine does not come back by itself; Serve then replaces the replica."""
        await super().check_health()
        for process in self._processes:
            if not process.reviving:
                await process.check()

    async def __del__(self) -> None:
        """Answer who is here, refuse the rest, and leave the last counts with the hub."""
        await super().__del__()
        for source in self._sources:
            await source.close()
        for process in self._processes:
            await process.stop()

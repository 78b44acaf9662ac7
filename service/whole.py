"""The deployment of a machine that needs one engine: HTTP, text work and the engine in one replica.

A call of Ray between two replicas costs a request about as much processor time as its translation by a small network.
What is lost is that a crash of the engine takes the connections along; Serve starts both anew. `service.app` makes a
deployment of it where the settings want one.
"""

from __future__ import annotations

import sys
from typing import Any

from model.bundle import Bundle
from service.engine.engine import Engine
from service.engine.opening import open_engine
from service.ingress.backend import Engines
from service.ingress.deployment import ListeningIngress
from service.metrics.families import ModelLabels, RequestMetrics
from service.replica import MetricsSource
from service.settings import Settings

_SWITCH_SECONDS = 0.0001
"""The decode loop wants the interpreter for a moment between two steps; usually it would wait up to 5 ms for it."""


class Whole(ListeningIngress):
    """An ingress that listens itself and holds its engines."""

    def __init__(self, settings: Settings) -> None:
        """Load every bundle; a replica that cannot translate does not start."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._engine_source = MetricsSource("engine")
        self._opened: list[tuple[Engine, ModelLabels]] = []
        super().__init__(settings)
        for _, labels in self._opened:
            self._backend.introduce(labels)

    def _engines(self, _index: int, bundle: Bundle, _metrics: RequestMetrics) -> Engines:
        """An engine of our own."""
        opened = open_engine(bundle, self._settings, self._engine_source.registry)
        self._opened.append(opened)
        return opened[0]

    def _open(self, proxied: bool) -> Any:
        """Begin what the event loop does in the background; the application."""
        self._engine_source.start()
        return super()._open(proxied)

    async def check_health(self) -> None:
        """Raise if nobody listens, or a decode loop is dead or hangs; Serve then replaces the replica."""
        await super().check_health()
        for engine, _ in self._opened:
            engine.check()

    async def __del__(self) -> None:
        """Answer who is here, refuse the rest, and leave the last counts with the hub."""
        await self._listener.close()
        for engine, _ in self._opened:
            engine.stop()
        await self._engine_source.close()
        await super().__del__()

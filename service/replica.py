"""What both deployments share: a replica's metrics, and its way to the hub over Ray."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from service.metrics.families import open_registry
from service.metrics.hub import MetricsHub
from service.metrics.snapshots import Snapshot, take

HUB_NAME = "dragoman-metrics"
HUB_NAMESPACE = "dragoman"

_PATIENCE = 3.0
_log = logging.getLogger("dragoman.metrics")


def metrics_hub() -> Any:
    """A handle to the cluster's one hub; the first who asks starts it, and Ray restarts it if it dies."""
    return (
        ray.remote(MetricsHub)
        .options(
            name=HUB_NAME,
            namespace=HUB_NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
        )
        .remote()
    )


class MetricsSource:
    """One replica's metrics, and the task that keeps the hub informed of them."""

    def __init__(self, role: str, snapshot: Callable[[], Awaitable[Snapshot]] | None = None) -> None:
        """Open the registry of a replica that plays `role`: "ingress" or "engine".

        Or `snapshot` gives the metrics, of a process that is not known to Ray.
        """
        self.registry = open_registry(role)
        self._snapshot = snapshot or self._take
        # A name of its own for every process: a new replica must not take the place of its dead predecessor.
        self._name = f"{role}-{uuid.uuid4().hex}"
        self._hub = metrics_hub()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to inform the hub, from the running event loop. Further calls do nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._inform())

    async def scrape(self) -> str:
        """The exposition over all replicas. Raises `RayError` or `TimeoutError` when the hub is away."""
        async with asyncio.timeout(_PATIENCE):
            return str(await self._hub.scrape.remote(self._name, await self._snapshot()))

    async def close(self) -> None:
        """Leave the last counts with the hub."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._hub.leave.remote(self._name, await self._snapshot())

    async def _take(self) -> Snapshot:
        return take(self.registry)

    async def _inform(self) -> None:
        generation = 0
        while True:
            try:
                generation = await self._hub.exchange.remote(self._name, await self._snapshot(), generation)
            except RayError as error:
                # A new hub counts its scrapes from zero.
                generation = 0
                _log.warning("metrics hub away", extra={"fields": {"error": type(error).__name__}})
                await asyncio.sleep(1.0)

"""The engine deployment: one bundle, one `Engine`, ids in and ids out. `service.app` makes a deployment of it."""

from __future__ import annotations

from pathlib import Path

from model.bundle import Bundle
from service.engine.opening import open_engine
from service.errors import Refusal
from service.jobs import Job, Result
from service.logs import configure
from service.metrics.families import ModelLabels
from service.replica import MetricsSource
from service.settings import Settings


class Translator:
    """One replica of one bundle's engine."""

    def __init__(self, bundle: Path, settings: Settings) -> None:
        """Load the folder `bundle`; a replica that cannot translate does not start."""
        configure(settings.log_level)
        self._source = MetricsSource("engine")
        self._engine, self._labels = open_engine(Bundle.open(bundle), settings, self._source.registry)

    async def translate(self, job: Job) -> Result | Refusal:
        """The result of `job`, or why there is none.

        Refusals are returned and not raised: Serve would log each one with a traceback, which is dear under overload.
        """
        self._source.start()
        try:
            return await self._engine.translate(job)
        except Refusal as refusal:
            return refusal

    async def describe(self) -> ModelLabels:
        """What runs here, read back from the session."""
        return self._labels

    async def check_health(self) -> None:
        """Raise if the decode loop is dead or hangs; Serve then replaces the replica."""
        self._source.start()
        self._engine.check()

    async def __del__(self) -> None:
        """Refuse what is left and leave the last counts with the hub; Serve calls this when the replica stops."""
        self._engine.stop()
        await self._source.close()

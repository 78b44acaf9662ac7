"""The ingress deployment: a thin shim between Ray Serve and the API. `service.app` makes a deployment of it.

`Ingress` is called by Serve's proxy; `ListeningIngress` is the same with an HTTP server of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from model.bundle import Bundle
from model.decode.options import DecodeOptions
from service.api.application import build_api
from service.api.ports import ModelInfo
from service.errors import NotReady
from service.ingress.backend import Backend, BackendOptions, Engines, ServedModel
from service.ingress.calls import EngineCalls, RetryOptions
from service.ingress.listener import Listener
from service.languages import Pair
from service.logs import configure
from service.metrics.families import HttpMetrics, RequestMetrics
from service.replica import MetricsSource
from service.settings import Settings
from service.text.pipeline import Pipeline

UNKNOWN = "unknown"
"""Precision, provider and operators of a model until one of its engines has said what really runs."""

_log = logging.getLogger("dragoman.ingress")


class Ingress:
    """One replica that takes HTTP, does the text work, and asks the engines."""

    def __init__(self, settings: Settings, *translators: Any) -> None:
        """`translators` are the handles of the engine deployments, in the order of `settings.bundles`."""
        configure(settings.log_level)
        self._settings = settings
        self._source = MetricsSource("ingress")
        metrics = RequestMetrics(self._source.registry)
        self._translators = translators
        bundles = [Bundle.open(path) for path in settings.bundles]
        models = [serve_model(bundle, settings, self._engines(i, bundle, metrics)) for i, bundle in enumerate(bundles)]
        options = BackendOptions(ready_timeout=settings.ready_timeout_s)
        self._backend = Backend(models, metrics, self._scrape, options)
        self._introduction: asyncio.Task[None] | None = None

    def _engines(self, index: int, bundle: Bundle, metrics: RequestMetrics) -> Engines:
        """Who translates with `bundle`, the one at `index` of the settings."""
        retry, name = RetryOptions(attempts=1 + self._settings.engine_retries), bundle.manifest.name
        return EngineCalls(self._translators[index], retry, lambda: metrics.retried(name))

    def __serve_build_asgi_app__(self) -> Any:
        """Called by Serve after the constructor, in the event loop."""
        return self._open(proxied=True)

    def _open(self, proxied: bool) -> Any:
        """Begin what the event loop does in the background; the application."""
        self._source.start()
        self._introduction = asyncio.get_running_loop().create_task(self._introduce())
        return build_api(self._backend, self._settings, HttpMetrics(self._source.registry), proxied=proxied)

    async def _scrape(self) -> str:
        try:
            return await self._source.scrape()
        except (RayError, TimeoutError) as error:
            raise NotReady("The metrics of all replicas cannot be added up now; try again in a moment.") from error

    async def _introduce(self) -> None:
        """Ask every engine once what it really runs, however long it takes to start."""
        for translator in self._translators:
            while True:
                try:
                    labels = await translator.describe.remote()
                except (RayError, RayServeException):
                    await asyncio.sleep(1.0)
                    continue
                self._backend.introduce(labels)
                break

    async def __del__(self) -> None:
        """Leave the last counts with the hub; Serve calls this when the replica stops."""
        if self._introduction is not None:
            self._introduction.cancel()
        await self._source.close()


class ListeningIngress(Ingress):
    """An ingress that nothing stands in front of: it listens on the port of the settings itself."""

    def __init__(self, settings: Settings, *translators: Any) -> None:
        """See `Ingress`."""
        super().__init__(settings, *translators)
        # A second of the time that Serve gives is left to hand over the last counts.
        patience = max(0.0, settings.graceful_shutdown_s - 1.0)
        self._listener = Listener(settings.host, settings.port, patience)

    async def check_health(self) -> None:
        """Raise if nobody listens; Serve asks once before the replica counts as started, and so it starts here."""
        if not self._listener.started:
            self._listener.start(self._open(proxied=False))
        self._listener.check()

    async def __del__(self) -> None:
        """Answer who is here; then as every ingress."""
        await self._listener.close()
        await super().__del__()


def serve_model(bundle: Bundle, settings: Settings, engines: Engines) -> ServedModel:
    """What the ingress must know of a bundle to serve it with `engines`."""
    manifest, tokenizer = bundle.manifest, bundle.tokenizer()
    longest = settings.segment_tokens(bundle.config.max_positions)
    pairs = itertools.product(manifest.source_languages, manifest.target_languages)
    defaults = DecodeOptions(
        beam_size=manifest.decoding.beam_size, length_penalty=manifest.decoding.length_penalty, repetition_guard=True
    )
    info = ModelInfo(
        name=manifest.name,
        version=manifest.version,
        pairs=tuple(Pair(source, target) for source, target in pairs if source != target),
        precision=UNKNOWN,
        provider=UNKNOWN,
        operators=UNKNOWN,
        defaults={"beam_size": defaults.beam_size, "length_penalty": defaults.length_penalty},
        alignment=all(
            map(bundle.attends, manifest.precisions if settings.precision == "auto" else [settings.precision])
        ),
    )
    return ServedModel(
        info=info,
        defaults=defaults,
        pipelines={pair: Pipeline(tokenizer, longest, pair.source, pair.target) for pair in info.pairs},
        engines=engines,
        probe=tuple(tokenizer.encode("Test.")),
    )

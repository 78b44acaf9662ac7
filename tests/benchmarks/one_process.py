"""The API, the text work and the engine in one process, without Ray: the most that a single deployment could reach.

    python -m tests.benchmarks.one_process --port 8000

`bench_service` measures it beside the service; nobody serves with it.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from dataclasses import replace

import uvicorn

from model.bundle import Bundle
from service.api.application import build_api
from service.engine.opening import open_engine
from service.ingress.backend import Backend
from service.ingress.deployment import serve_model
from service.metrics.families import HttpMetrics, RequestMetrics, open_registry
from service.settings import Settings


async def serve(port: int) -> None:
    """Serve the bundled model on loopback until a signal comes."""
    settings = Settings()
    bundle = Bundle.open(settings.bundles[0])
    engine, _ = open_engine(bundle, settings, open_registry("engine"))
    ingress = open_registry("ingress")
    metrics = RequestMetrics(ingress)
    model = replace(serve_model(bundle, settings, None, metrics), engines=engine)
    api = build_api(Backend([model], metrics, lambda: asyncio.sleep(0, "")), settings, HttpMetrics(ingress))
    config = uvicorn.Config(api, port=port, lifespan="off", access_log=False, log_config=None)
    await uvicorn.Server(config).serve()
    engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(serve(parser.parse_args().port))


if __name__ == "__main__":
    main()

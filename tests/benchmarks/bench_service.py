"""The service under load, seen by its callers: `make bench` starts one, asks it, and prints a table for the README.

Each request holds one sentence; every caller sends the next one as soon as it has its answer. Client and service share
the machine, so the figures are a lower bound. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

import httpx

SENTENCES = tuple((Path(__file__).parent / "sentences.en").read_text(encoding="utf-8").splitlines())
START_SECONDS = 120
STOP_SECONDS = 60


@dataclass
class Load:
    """What `concurrency` callers saw."""

    concurrency: int
    seconds: float = 0.0
    tokens: int = 0
    refused: int = 0
    latencies: list[float] = field(default_factory=list)

    def row(self) -> str:
        """One row of the table."""
        cuts = [1000 * cut for cut in quantiles(self.latencies, n=20)]
        return (
            f"| {self.concurrency} | {len(self.latencies) / self.seconds:.1f} | {self.tokens / self.seconds:.0f} "
            f"| {cuts[9]:.0f} | {cuts[18]:.0f} | {self.refused} |"
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the service must keep running, but ended with {process.returncode}; its log stands above.")
        try:
            if httpx.get(f"{url}/readyz").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    sys.exit(f"the service must be ready within {START_SECONDS} s, but was not.")


@contextmanager
def _service() -> Iterator[str]:
    """A service of this machine's own; its URL."""
    port = _free_port()
    command = [Path(sys.executable).with_name("dragoman"), "serve", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_SECONDS)


async def _caller(client: httpx.AsyncClient, turns: Iterator[int], load: Load) -> None:
    for turn in turns:
        body = {"text": SENTENCES[turn % len(SENTENCES)], "source": "en", "target": "de"}
        started = time.perf_counter()
        answer = await client.post("/v1/translate", json=body)
        if answer.status_code == httpx.codes.OK:
            load.latencies.append(time.perf_counter() - started)
            load.tokens += answer.json()["usage"]["target_tokens"]
        else:
            load.refused += 1


async def _measure(url: str, concurrency: int, requests: int) -> Load:
    load = Load(concurrency)
    turns = iter(range(requests))
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        started = time.perf_counter()
        await asyncio.gather(*(_caller(client, turns, load) for _ in range(concurrency)))
        load.seconds = time.perf_counter() - started
    return load


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def _report(url: str, requests: int, concurrencies: list[int]) -> None:
    asyncio.run(_measure(url, concurrency=4, requests=len(SENTENCES)))  # warm-up
    print(f"{_machine()}; {requests} requests of one sentence each.\n")
    print("| callers | requests/s | target tokens/s | p50 ms | p95 ms | refused |\n|--:|--:|--:|--:|--:|--:|")
    for concurrency in concurrencies:
        print(asyncio.run(_measure(url, concurrency, requests)).row(), flush=True)


def main() -> None:
    """Measure a running service, or one started for this."""
    parser = argparse.ArgumentParser(description="Measure the service under load.")
    parser.add_argument("--url", help="a running service; without it, one is started and ended")
    parser.add_argument("--requests", type=int, default=400, help="requests for each row (default: %(default)s)")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 64], help="rows (default: 1 8 64)")
    options = parser.parse_args()
    if options.url:
        _report(options.url, options.requests, options.callers)
    else:
        with _service() as url:
            _report(url, options.requests, options.callers)


if __name__ == "__main__":
    main()

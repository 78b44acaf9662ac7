"""The service under load, seen by its callers, beside the bare engine: what HTTP, text work and Ray cost.

    python -m tests.benchmarks.bench_service
    python -m tests.benchmarks.bench_service --services laptop --callers 64

Each request holds one sentence; every caller sends the next one as soon as it has its answer. The bare engine is the
batcher in this process: the same bundle, sentences, options, slots and threads, kept as full as the callers would. It
takes turns with each service. Client and service share the machine, so the figures are a lower bound. Nothing here is
asserted. Writes `service.json` and `service.md` into `--out`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

import httpx

from model.bundle import Bundle
from model.decode.batcher import Batcher, BatcherLimits
from model.decode.options import DecodeOptions
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import open_stepper
from service.engine.opening import choose_precision, threads_for
from service.settings import Settings
from tests.benchmarks.report import machine
from tests.system.running_service import descendants

SENTENCES = tuple((Path(__file__).parent / "sentences.en").read_text(encoding="utf-8").splitlines())
START_SECONDS = 120
STOP_SECONDS = 60

CLUSTER = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
"""What deploy/serve-cluster.yaml asks for before `ray start`."""


@dataclass(frozen=True)
class Started:
    """How a service is started."""

    command: tuple[str, ...] = ("service.cli", "serve", "--log-level", "warning", "--bundles", "en-de")
    environment: Mapping[str, str] = field(default_factory=dict)


SERVE = Started().command
SERVICES = {
    "laptop": Started(),
    "apart": Started((*SERVE, "--engines", "apart")),
    "proxy": Started((*SERVE, "--listener", "proxy")),
    "cluster": Started((*SERVE, "--listener", "proxy", "--host", "0.0.0.0"), CLUSTER),
}
"""The defaults of a laptop; the same with the engine in a replica of its own; that behind Ray's Python proxy; and
behind HAProxy, with the options of the cluster."""


@dataclass
class Load:
    """What `callers` saw."""

    callers: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of the service, or of this process for the bare engine."""
    tokens: int = 0
    refused: int = 0
    latencies: list[float] = field(default_factory=list)

    def record(self) -> dict[str, float]:
        """For the JSON: rates by the second, latencies in milliseconds."""
        cuts = [1000 * cut for cut in quantiles(self.latencies, n=100)]
        return {
            "callers": self.callers,
            "requests": len(self.latencies),
            "refused": self.refused,
            "requests_per_second": len(self.latencies) / self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
            "cpu_ms_per_request": 1000 * self.cpu_seconds / len(self.latencies),
            "p50_ms": cuts[49],
            "p95_ms": cuts[94],
            "p99_ms": cuts[98],
        }


class Bare:
    """The batcher over the bundle's graphs, set as the service sets it, driven from here."""

    def __init__(self, settings: Settings) -> None:
        bundle = Bundle.open(settings.bundles[0])
        runtime = RuntimeOptions(provider=settings.provider, threads=threads_for(settings))
        self._stepper = open_stepper(bundle, choose_precision(bundle, settings), runtime)
        self._limits = BatcherLimits(max_slots=settings.max_slots, max_batch_tokens=settings.max_batch_tokens)
        decoding, tokenizer = bundle.manifest.decoding, bundle.tokenizer()
        self._options = DecodeOptions(
            beam_size=decoding.beam_size, length_penalty=decoding.length_penalty, repetition_guard=True
        )
        self._sources = [tokenizer.encode(text) for text in SENTENCES]

    def measure(self, callers: int, requests: int) -> Load:
        """So many sentences in all, so many at once."""
        load, batcher = Load(callers), Batcher(self._stepper, self._limits)
        turns = iter(range(requests))

        def ask(count: int) -> None:
            for turn in islice(turns, count):
                batcher.add(turn, self._sources[turn % len(self._sources)], self._options)

        began, cpu = time.perf_counter(), time.process_time()
        ask(callers)
        while not batcher.idle:
            done = batcher.step()
            for finished in done:
                load.latencies.append(finished.ended_at - finished.added_at)
                load.tokens += len(finished.hypotheses[0].ids)
            ask(len(done))
        load.seconds, load.cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        return load


def cpu_seconds(root: int) -> float:
    """Processor time of all living processes below `root`."""
    total = 0
    for pid in descendants(root):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


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
def _service(started: Started) -> Iterator[str]:
    """A service of this machine's own; its URL."""
    port = _free_port()
    command = [sys.executable, "-m", *started.command, "--port", str(port)]
    with subprocess.Popen(command, stdout=sys.stderr, env={**os.environ, **started.environment}) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_SECONDS)


class _Connection:
    """As little of an HTTP client as will do: a good one takes as much of the processor as the service does."""

    def __init__(self, url: str) -> None:
        self._host, _, self._port = url.removeprefix("http://").partition(":")

    async def __aenter__(self) -> _Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. What stands in front may have closed an idle connection; then by a new one."""
        try:
            return await self._post(path, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.__aenter__()
            return await self._post(path, body)

    async def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
        return int(lines[0].split()[1]), await self._reader.readexactly(length)


async def _caller(url: str, turns: Iterator[int], load: Load) -> None:
    async with _Connection(url) as connection:
        for turn in turns:
            text = SENTENCES[turn % len(SENTENCES)]
            body = json.dumps({"text": text, "source": "en", "target": "de"}).encode()
            started = time.perf_counter()
            status, answer = await connection.post("/v1/translate", body)
            if status == httpx.codes.OK:
                load.latencies.append(time.perf_counter() - started)
                load.tokens += json.loads(answer)["usage"]["target_tokens"]
            else:
                load.refused += 1


async def _measure(url: str, callers: int, requests: int) -> Load:
    load = Load(callers)
    turns = iter(range(requests))
    started, cpu = time.perf_counter(), cpu_seconds(os.getpid())
    await asyncio.gather(*(_caller(url, turns, load) for _ in range(callers)))
    load.seconds, load.cpu_seconds = time.perf_counter() - started, cpu_seconds(os.getpid()) - cpu
    return load


def _compare(name: str, url: str, bare: Bare, options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """A record for each number of callers: the medians of the turns of both sides."""
    asyncio.run(_measure(url, callers=4, requests=len(SENTENCES)))  # warm-up
    bare.measure(4, len(SENTENCES))
    for callers in options.callers:
        turns = [
            (asyncio.run(_measure(url, callers, options.requests)), bare.measure(callers, options.requests))
            for _ in range(options.turns)
        ]
        served, alone = (_middle([load.record() for load in loads]) for loads in zip(*turns, strict=True))
        record = {"service": name, "callers": callers, "served": served, "bare": alone, **_costs(served, alone)}
        print(_row(record), flush=True)
        yield record


def _middle(records: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(record[name] for record in records) for name in records[0]}


def _costs(served: dict[str, float], alone: dict[str, float]) -> dict[str, float]:
    return {
        "throughput_ratio": served["requests_per_second"] / alone["requests_per_second"],
        "added_p50_ms": served["p50_ms"] - alone["p50_ms"],
        "added_p95_ms": served["p95_ms"] - alone["p95_ms"],
    }


HEAD = (
    "| service | callers | requests/s | target tokens/s | p50 ms | p95 ms | CPU ms "
    "| bare tokens/s | bare p50 | bare p95 | bare CPU ms | × bare | + p50 ms | refused |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def _row(record: dict[str, object]) -> str:
    served, alone = record["served"], record["bare"]
    assert isinstance(served, dict)
    assert isinstance(alone, dict)
    cells = (
        record["service"],
        record["callers"],
        f"{served['requests_per_second']:.1f}",
        f"{served['tokens_per_second']:.0f}",
        f"{served['p50_ms']:.1f}",
        f"{served['p95_ms']:.1f}",
        f"{served['cpu_ms_per_request']:.1f}",
        f"{alone['tokens_per_second']:.0f}",
        f"{alone['p50_ms']:.1f}",
        f"{alone['p95_ms']:.1f}",
        f"{alone['cpu_ms_per_request']:.1f}",
        f"**{record['throughput_ratio']:.2f}**",
        f"**{record['added_p50_ms']:.1f}**",
        f"{served['refused']:.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    """Measure running services, or some started for this, and write the report."""
    parser = argparse.ArgumentParser(description="Measure the service under load, beside the bare engine.")
    parser.add_argument("--url", help="a running service; without it, some are started and ended")
    parser.add_argument("--services", nargs="+", choices=SERVICES, default=list(SERVICES))
    parser.add_argument("--requests", type=int, default=400, help="requests for each turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="turns for each row (default: %(default)s)")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8, 64], help="rows (default: 1 8 64)")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    bare = Bare(Settings.load({"bundles": "en-de"}))
    records: list[dict[str, object]] = []
    print(f"{machine()}; {options.requests} requests of one sentence each.\n\n{HEAD}", flush=True)
    if options.url:
        records += _compare("url", options.url, bare, options)
    for name in [] if options.url else options.services:
        with _service(SERVICES[name]) as url:
            records += _compare(name, url, bare, options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "service.json").write_text(json.dumps({"machine": machine(), "points": records}, indent=1))
    text = "\n".join([f"{machine()}.\n", HEAD, *map(_row, records), ""])
    (options.out / "service.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""`dragoman serve` as a process of its own, on a free port: what an operator starts, and what a caller sees."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))

START_SECONDS = 180.0
"""Generous: the machine may be busy with something else."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: dict[str, str]
    seconds: float

    @property
    def texts(self) -> list[str]:
        return [translation["text"] for translation in self.body["translations"]]


class RunningService:
    """A started service; `stop` ends it and says how that went."""

    def __init__(self, **settings: object) -> None:
        self.port = free_port()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by `kill`
        began = time.monotonic()
        self.process = start(self._log, port=self.port, **settings)
        self._lines: list[str] = []
        assert self.process.stdout is not None
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ready.wait(START_SECONDS)
        self.start_seconds = time.monotonic() - began
        if self.process.poll() is not None or not self._ready.is_set():
            told = f"the service did not start:\n{''.join(self._lines)}\n{self.log_text()}"
            self.kill()
            raise AssertionError(told)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if "curl" in line:
                self._ready.set()
        self._ready.set()

    def call(self, path: str, body: Any = None, timeout: float = 60.0, **headers: str) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json", **headers})
        began = time.monotonic()
        try:
            with _OPENER.open(request, timeout=timeout) as reply:
                return _answer(reply.status, reply.read(), reply.headers, began)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error.code, error.read(), error.headers, began)

    def translate(self, text: str | list[str], timeout: float = 60.0, **headers: str) -> Answer:
        return self.call("/v1/translate", {"text": text, "source": "en", "target": "de"}, timeout, **headers)

    def metrics(self) -> dict[str, float]:
        """Every sample by its name and the values of its labels, with spaces between them; a status comes last."""
        found = {}
        for family in text_string_to_metric_families(self.call("/metrics").body):
            for sample in family.samples:
                labels = sorted(sample.labels.items(), key=lambda label: label[0] == "code")
                found[" ".join((sample.name, *(value for _, value in labels)))] = sample.value
        return found

    def log_text(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def processes(self, name: str = "") -> dict[int, str]:
        """Living descendants whose command line holds `name`."""
        return {pid: command for pid, command in descendants(self.process.pid).items() if name in command}

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Seconds from the signal to the end of the process."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(60.0)
        return time.monotonic() - began

    def kill(self) -> None:
        """End everything, whatever state it is in."""
        left = list(self.processes())
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in left:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        assert self.process.stdout is not None
        self._reader.join(10.0)
        self.process.stdout.close()
        self._log.close()


class Load:
    """Callers that ask one request after the other until they are told to stop."""

    def __init__(self, service: RunningService, callers: int, text: str) -> None:
        self._service, self._text = service, text
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(callers)
        self._calls: list[Future[list[Answer | Exception]]] = [
            self._pool.submit(self._ask, number) for number in range(callers)
        ]

    def _ask(self, number: int) -> list[Answer | Exception]:
        outcomes: list[Answer | Exception] = []
        while not self._stop.is_set():
            try:
                outcomes.append(self._service.translate(f"{number} {self._text}"))
            except OSError as error:
                outcomes.append(error)
        return outcomes

    def end(self) -> list[Answer | Exception]:
        """Stop asking; what became of every request."""
        self._stop.set()
        outcomes = [outcome for call in self._calls for outcome in call.result()]
        self._pool.shutdown()
        return outcomes


def start(log: Any, **settings: object) -> subprocess.Popen[str]:
    """The command, started; it may still fail."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    return subprocess.Popen(
        [sys.executable, "-m", "service.cli", "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[2],
        start_new_session=True,
    )


def say(message: str) -> None:
    """A figure for whoever runs the tests with -s."""
    sys.stdout.write(f"\n    {message}\n")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    """True for a process that runs; one that ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(root: int) -> dict[int, str]:
    """Living processes below `root`, with their command lines."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for pid in [pid for pid, its_parent in parents.items() if its_parent == parent]:
            found[pid] = commands[pid]
            waiting.append(pid)
    return found


def _answer(status: int, body: bytes, headers: Any, began: float) -> Answer:
    text = body.decode()
    parsed = json.loads(text) if headers.get_content_type() == "application/json" else text
    return Answer(status, parsed, {name.lower(): value for name, value in headers.items()}, time.monotonic() - began)

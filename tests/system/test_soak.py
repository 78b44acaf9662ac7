"""Mixed load for a while: what the processes hold at the end is what they held when they were warm.

Half a minute in the suite; as long as `SOAK_SECONDS` says for whoever wants to know (`make soak`: ten minutes).
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from tests.english import texts
from tests.service.test_options_whole_way import random_options
from tests.system.running_service import RunningService, say

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("SOAK_SECONDS", "25"))
CALLERS = 6
GROWTH = 1.05
WARM_SECONDS, WARM_REQUESTS = 10.0, 100
"""A service is warm when it has worked for so long and has answered so many."""
LONG = " ".join(text for text in texts() if text.isascii() and len(text) > 60 and text.endswith("."))[:9_000]
"""About two thousand tokens."""


class Mix:
    """Callers that ask at random: mostly short texts, some with options, one long text again and again; and some that
    hang up."""

    def __init__(self, service: RunningService) -> None:
        self._service = service
        self._stop = threading.Event()
        self.answered, self.left, self.wrong = 0, 0, []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CALLERS)]
        for thread in self._threads:
            thread.start()

    def _ask(self, number: int) -> None:
        rng = random.Random(number)
        while not self._stop.is_set():
            patience = 60.0
            if number == 0:
                body = {"text": LONG}
            else:
                body = {"text": rng.sample(texts()[:180], rng.choice([1, 1, 1, 4]))}
                if rng.random() < 0.3:
                    body |= random_options(rng)
                    body.pop("prefix", None)
                if rng.random() < 0.1:
                    patience = 0.02
            self._call({**body, "source": "en", "target": "de"}, patience)

    def _call(self, body: dict, patience: float) -> None:
        try:
            status = self._service.call("/v1/translate", body, timeout=patience).status
        except OSError:  # a timeout is one
            status = 0
        with self._lock:
            self.answered += status == 200
            self.left += status == 0 and patience < 1.0
            if status not in (0, 200, 429) or (status == 0 and patience >= 1.0):
                self.wrong.append((status, body))

    def run(self, seconds: float, requests: int) -> None:
        """At least so long, and until so many are answered."""
        end, most = time.monotonic() + seconds, time.monotonic() + seconds + 180.0
        goal = self.answered + requests
        while time.monotonic() < end or (self.answered < goal and time.monotonic() < most):
            time.sleep(0.1)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def fill(service: RunningService) -> None:
    """Let every kind of search hold as many sentences at once as it can.

    Room for the next sentences is kept, up to a bound, and how much that is just now goes with what was asked last. So
    the same is asked before each look at the memory.
    """
    whole = [text for text in texts() if len(text) < 400]
    for options in ({}, {"beam_size": 1}, {"beam_size": 2}, {"sampling": {}}, {"repetition_penalty": 1.5}):
        for wanted in (whole[:100], LONG, whole[100:]):
            body = {"text": wanted, "source": "en", "target": "de", "return_scores": True, **options}
            service.call("/v1/translate", body, timeout=120.0)


def level(service: RunningService) -> dict[str, int]:
    """Bytes of memory that each replica holds, all callers being gone, after the same work."""
    fill(service)
    found = {}
    for pid, command in (service.processes("ray::ServeReplica") | service.processes("service.child")).items():
        kind = "engine" if "service.child" in command else command.rpartition(":")[2].strip(" \0")
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found[kind] = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return found


def mixed(service: RunningService, seconds: float, requests: int) -> Mix:
    """What became of such a load, all of it answered or left by its caller."""
    mix = Mix(service)
    try:
        mix.run(seconds, requests)
    finally:
        mix.end()
    assert not mix.wrong
    assert mix.answered > 0
    return mix


def test_memory_after_a_mixed_load_is_that_of_a_warm_service(served):
    mixed(served, max(WARM_SECONDS, SECONDS / 5), WARM_REQUESTS)
    warm = level(served)
    mix = mixed(served, SECONDS, 1)
    hot = level(served)
    for kind, before in warm.items():
        mib = [value / 2**20 for value in (before, hot[kind])]
        say(f"{kind}: {mib[0]:.1f} MiB warm, {mib[1]:.1f} MiB at the end ({hot[kind] / before - 1:+.1%})")
    say(f"{mix.answered} requests answered in {SECONDS:.0f} s, {mix.left} callers hung up")
    assert mix.left > 0
    for kind, before in warm.items():
        assert hot[kind] <= GROWTH * before, f"{kind} has grown"
    assert served.translate("The file could not be opened.").status == 200

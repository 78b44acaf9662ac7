"""The service as it ships: there and back, each by an engine of its own beside one ingress."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.system.running_service import Answer, RunningService

THERE = {"text": "The file could not be opened.", "source": "en", "target": "de"}
BACK = {"text": "Die Datei konnte nicht geöffnet werden.", "source": "de", "target": "en"}


def ask(served: RunningService, body: dict[str, str]) -> Answer:
    return served.call("/v1/translate", body)


def test_both_directions_are_served_and_what_goes_there_comes_back(served: RunningService) -> None:
    assert served.call("/readyz").body["models"] == {"en-de": "ready", "de-en": "ready"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: ask(served, body), [THERE, BACK] * 8))
    assert {answer.status for answer in answers} == {httpx.codes.OK}
    assert {(answer.body["model"], *answer.texts) for answer in answers} == {
        ("en-de", BACK["text"]),
        ("de-en", THERE["text"]),
    }


def test_a_language_into_itself_is_refused_with_the_pairs_that_there_are(served: RunningService) -> None:
    answer = ask(served, {**THERE, "target": "en"})
    assert (answer.status, answer.body["error"]["code"]) == (httpx.codes.UNPROCESSABLE_ENTITY, "unsupported_pair")


def test_while_one_engine_is_away_the_other_goes_on(served: RunningService) -> None:
    engines = served.processes("service.child")
    assert len(engines) == 2
    os.kill(next(iter(engines)), signal.SIGKILL)
    codes: dict[str, list[int]] = {"de": [], "en": []}
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for body in (THERE, BACK):
            codes[body["target"]].append(ask(served, body).status)
        if codes["de"][-1] == codes["en"][-1] == httpx.codes.OK and len(served.processes("service.child")) == 2:
            break
    assert codes["de"][-1] == codes["en"][-1] == httpx.codes.OK
    assert not engines.keys() <= served.processes("service.child").keys(), "another process is there now"
    assert [set(found) == {httpx.codes.OK} for found in codes.values()].count(True) >= 1
    assert set(codes["de"]) | set(codes["en"]) <= {httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE}

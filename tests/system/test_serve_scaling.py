"""Two models, two replicas: replicas come under load, and what is killed is not missed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.system.endless_bundle import NAME, endless_bundle
from tests.system.running_service import Answer, Load, RunningService, alive, say

pytestmark = pytest.mark.slow

TEXT = "The file could not be opened."
REPLICA = f"ray::ServeReplica:dragoman:translator-{NAME}"


@pytest.fixture(scope="module")
def service():
    """Two models with one engine replica each, and room for a second."""
    running = RunningService(
        bundles=f"{endless_bundle()}:{endless_bundle('fr')}",
        max_replicas=2,
        target_ongoing=2,
        upscale_delay_s=1,
        downscale_delay_s=600,
        max_slots=4,
        engine_cpus=0.25,
        ingress_replicas=2,
        health_period_s=1,
    )
    yield running
    running.kill()


def test_each_pair_is_translated_by_its_own_model(service):
    for target, model in (("de", NAME), ("fr", "endless-en-fr")):
        answer = service.call("/v1/translate", {"text": TEXT, "source": "en", "target": target})
        assert answer.status == 200
        assert answer.body["model"] == model
    assert set(service.call("/readyz").body["models"]) == {NAME, "endless-en-fr"}


def test_replicas_go_from_one_to_two_under_load(service):
    counts = [_replicas(service)]
    began = time.monotonic()
    load = Load(service, callers=12, text=TEXT)
    while counts[-1] < 2 and time.monotonic() - began < 90.0:
        time.sleep(0.5)
        counts.append(_replicas(service))
    seconds = time.monotonic() - began
    outcomes = load.end()
    say(f"replicas {counts[0]} -> {counts[-1]} after {seconds:.1f} s; requests sent {len(outcomes)}")
    assert counts[0] == 1
    assert counts[-1] == 2
    assert counts == sorted(counts), "the number of replicas went up and down"
    assert _lost(outcomes) == []


def test_killing_one_of_two_replicas_under_load_loses_no_accepted_request(service):
    _until(lambda: _replicas(service) == 2, 60.0)
    answered = "translation_http_requests_total native /v1/translate POST 200"
    before = service.metrics()
    load = Load(service, callers=8, text=TEXT)
    time.sleep(2.0)
    victim = next(iter(service.processes(REPLICA)))
    os.kill(victim, signal.SIGKILL)
    _until(lambda: not alive(victim), 10.0)
    time.sleep(3.0)
    _until(lambda: _replicas(service) == 2, 90.0)
    outcomes = load.end()
    after = service.metrics()
    lost = _lost(outcomes)
    retried = f"translation_request_retries_total {NAME}"
    say(
        f"sent {len(outcomes)}, answered {len(outcomes) - len(lost)}, lost {len(lost)}, "
        f"given to another replica {after[retried] - before[retried]:.0f}"
    )
    assert lost == []
    assert after[answered] - before[answered] == len(outcomes)
    for name, value in before.items():
        if name.split()[0].endswith(("_total", "_count")):
            assert after[name] >= value, f"{name} fell from {value} to {after[name]}"


def test_killing_the_metrics_hub_is_mended_and_what_the_living_counted_is_not_lost(service):
    answered = "translation_http_requests_total native /v1/translate POST 200"
    before = service.metrics()[answered]
    (hub,) = service.processes("ray::MetricsHub")
    os.kill(hub, signal.SIGKILL)
    assert service.translate(TEXT).status == 200
    _until(lambda: service.call("/metrics").status == 200, 30.0)
    _until(lambda: service.metrics()[answered] == before + 1, 10.0)


def _replicas(service: RunningService) -> int:
    """Living engine replicas of the first model; the second one, which has no load, always has one."""
    return int(service.metrics()["translation_replica_up engine"]) - 1


def _lost(outcomes: list[Answer | Exception]) -> list[object]:
    return [one if isinstance(one, Exception) else one.body for one in outcomes if getattr(one, "status", 0) != 200]


def _until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} seconds"
        time.sleep(0.2)

"""What is counted, under which names and labels."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from service.api.ports import HttpRecorder
from service.languages import Pair
from service.metrics.families import (
    EngineMetrics,
    HttpMetrics,
    ModelLabels,
    RequestMetrics,
    Volume,
    open_registry,
)
from service.metrics.snapshots import exposition, take

VOLUME = Volume(texts=2, source_characters=30, segments=3, source_tokens=9, target_tokens=11)
LABELS = ModelLabels(model="en-de", version="1", precision="int8", provider="cpu", operators="stock")


@pytest.fixture
def busy_registry():
    """Everything that can be counted, counted at least once."""
    registry = open_registry("ingress")
    http: HttpRecorder = HttpMetrics(registry)
    http.http_started("/v1/translate")
    http.http_finished(api="native", endpoint="/v1/translate", method="POST", code=200, seconds=0.2)
    requests = RequestMetrics(registry)
    requests.declare("en-de", Pair("en", "de"))
    requests.tokenized("en-de", 0.001)
    requests.retried("en-de")
    requests.refused("en-de", "overloaded")
    requests.answered("en-de", Pair("en", "de"), VOLUME)
    EngineMetrics(registry, LABELS).loaded(0.5)
    return registry


def test_a_request_is_counted_with_its_labels_and_its_duration(busy_registry):
    labels = {"api": "native", "endpoint": "/v1/translate"}
    value = busy_registry.get_sample_value
    assert value("translation_http_requests_total", {**labels, "method": "POST", "code": "200"}) == 1
    assert value("translation_http_request_duration_seconds_sum", labels) == 0.2
    assert value("translation_http_request_duration_seconds_bucket", {**labels, "le": "0.1"}) == 0
    assert value("translation_http_request_duration_seconds_bucket", {**labels, "le": "0.2"}) == 1
    assert value("translation_http_requests_in_flight", {"endpoint": "/v1/translate"}) == 0


def test_an_answered_request_is_counted_in_texts_characters_segments_and_tokens(busy_registry):
    pair = {"model": "en-de", "source_lang": "en", "target_lang": "de"}
    value = busy_registry.get_sample_value
    for name in ("texts", "source_characters", "segments", "source_tokens", "target_tokens"):
        assert value(f"translation_{name}_total", pair) == getattr(VOLUME, name)
    assert value("translation_requests_total", {"model": "en-de"}) == 2
    assert value("translation_request_failures_total", {"model": "en-de", "reason": "overloaded"}) == 1


def test_what_a_caller_makes_up_never_becomes_a_label(busy_registry):
    http, requests = HttpMetrics(open_registry("x")), RequestMetrics(registry := open_registry("y"))
    http = HttpMetrics(registry)
    http.http_finished(api="native", endpoint="other", method="GET", code=404, seconds=0.1)
    http.http_finished(api="other", endpoint="/readyz", method="other", code=0, seconds=0.1)
    requests.refused("en-de", "other")
    before = len(exposition(take(registry)).splitlines())
    for number in range(2000):
        http.http_started(f"/translate/{number}")
        http.http_finished(
            api=f"api-{number}", endpoint=f"/translate/{number}", method=f"M{number}", code=404, seconds=0.1
        )
        requests.refused("en-de", f"reason-{number}")
    after = exposition(take(registry)).splitlines()
    assert len(after) - before < 40
    assert 'endpoint="other",method="other"' in "\n".join(after)


def test_the_series_of_a_loaded_model_are_there_before_its_first_request():
    requests = RequestMetrics(registry := open_registry("ingress"))
    requests.declare("en-de", Pair("en", "de"))
    assert registry.get_sample_value("translation_requests_total", {"model": "en-de"}) == 0
    text = exposition(take(registry))
    assert 'translation_target_tokens_total{model="en-de",source_lang="en",target_lang="de"} 0.0' in text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_series_of_every_route_and_refusal_are_there_before_they_are_needed():
    registry = open_registry("ingress")
    HttpMetrics(registry)
    RequestMetrics(registry).declare("en-de", Pair("en", "de"))
    labels = {"api": "native", "endpoint": "/v1/translate"}
    assert registry.get_sample_value("translation_http_request_duration_seconds_count", labels) == 0.0
    assert (
        registry.get_sample_value("translation_http_requests_total", {**labels, "method": "POST", "code": "200"}) == 0
    )
    failures = {"model": "en-de", "reason": "overloaded"}
    assert registry.get_sample_value("translation_request_failures_total", failures) == 0.0


def test_promtool_finds_nothing_to_say(busy_registry):
    text = exposition(take(busy_registry))
    check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")

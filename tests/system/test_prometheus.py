"""A real Prometheus scrapes the service, and answers what an operator asks of it."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.system.running_service import RunningService, free_port

ROOT = Path(__file__).resolve().parents[2]
QUANTILE = (
    "histogram_quantile(0.95, sum by (le) ("
    'rate(translation_http_request_duration_seconds_bucket{endpoint="/v1/translate"}[1m])))'
)
REQUESTS = 20
PATIENCE_SECONDS = 60

# CI must not skip what an operator relies on; on a machine of one's own it may.
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None and not os.environ.get("CI"), reason="Prometheus is not installed"
)
pytestmark = [pytest.mark.slow, needs_prometheus]


def _translate(served: RunningService, times: int) -> None:
    for turn in range(times):
        assert served.translate(f"The file number {turn} could not be opened.").status == httpx.codes.OK


def _answered(served: RunningService) -> float:
    """How many translations the service says it has answered."""
    wanted = {"translation_http_requests_total", "/v1/translate", "200"}
    return sum(value for series, value in served.metrics().items() if wanted <= set(series.split()))


@pytest.fixture
def prometheus(served: RunningService, tmp_path: Path) -> Iterator[str]:
    """A Prometheus with the shipped rules that scrapes the served service every second; its URL."""
    rules = ROOT / "deploy/prometheus/alerts.yml"
    configuration = tmp_path / "prometheus.yml"
    configuration.write_text(
        f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - {{job_name: dragoman, static_configs: [{{targets: ["{served.url.removeprefix("http://")}"]}}]}}
""",
        encoding="utf-8",
    )
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={configuration}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with subprocess.Popen(command) as process:
        try:
            _wait_until_ready(f"http://{address}")
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(prometheus: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"{prometheus}/-/ready").status_code == httpx.codes.OK:
                return
        time.sleep(0.2)
    pytest.fail(f"Prometheus must be ready within {PATIENCE_SECONDS} s, but was not.")


def _number(prometheus: str, query: str) -> float:
    """What `query` comes to, as soon as it comes to a number."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}).json()
        values = [float(result["value"][1]) for result in answer["data"]["result"]]
        if values and not math.isnan(values[0]):
            return values[0]
        time.sleep(0.5)
    pytest.fail(f"{query} came to no number within {PATIENCE_SECONDS} s.")


def test_prometheus_answers_the_percentile_of_the_request_time(served: RunningService, prometheus: str) -> None:
    assert _number(prometheus, 'up{job="dragoman"}') == 1.0
    _translate(served, REQUESTS)
    assert 0.0 < _number(prometheus, QUANTILE) < 30.0


def test_prometheus_sees_every_request_once(served: RunningService, prometheus: str) -> None:
    before = _answered(served)
    _translate(served, REQUESTS)
    assert _answered(served) == before + REQUESTS
    query = 'sum(translation_http_requests_total{endpoint="/v1/translate", code="200"})'
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (seen := _number(prometheus, query)) < before + REQUESTS and time.monotonic() < deadline:
        time.sleep(0.5)
    assert seen == before + REQUESTS


def test_the_shipped_rules_load_and_are_silent_on_a_healthy_service(prometheus: str) -> None:
    assert _number(prometheus, 'up{job="dragoman"}') == 1.0
    deadline = time.monotonic() + PATIENCE_SECONDS
    health = {"unknown"}
    while "unknown" in health and time.monotonic() < deadline:
        time.sleep(0.5)
        (group,) = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
        health = {rule["health"] for rule in group["rules"]}
    assert health == {"ok"}
    assert {rule["state"] for rule in group["rules"]} == {"inactive"}


def test_promtool_finds_nothing_to_mend_in_the_metrics(served: RunningService) -> None:
    _translate(served, 1)
    exposition = httpx.get(f"{served.url}/metrics").content
    run = subprocess.run(["promtool", "check", "metrics"], input=exposition, capture_output=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")

"""What stands in deploy/ fits the code: metrics that exist, and configurations that Ray Serve accepts."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from service.metrics.families import EngineMetrics, HttpMetrics, ModelLabels, RequestMetrics, open_registry
from service.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def _exposed() -> set[str]:
    """The name of every series that the service can show."""
    registry = open_registry("engine")
    HttpMetrics(registry)
    RequestMetrics(registry)
    EngineMetrics(
        registry, ModelLabels(model="en-de", version="1", precision="int8", provider="cpu", operators="stock")
    )
    return {family.name + suffix for family in registry.collect() for suffix in SUFFIXES[family.type]}


@pytest.mark.parametrize(
    "name",
    ["deploy/prometheus/alerts.yml", "deploy/prometheus/alerts_test.yml", "deploy/grafana/dragoman.json", "README.md"],
)
def test_only_metrics_that_exist_are_asked_for(name: str) -> None:
    asked = set(re.findall(r"\btranslation_\w+(?=[\[({)])", (ROOT / name).read_text(encoding="utf-8")))
    assert asked
    assert asked - _exposed() == set()


def test_every_panel_of_the_dashboard_has_a_query_and_a_place_of_its_own() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dragoman.json").read_text(encoding="utf-8"))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    assert all(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])


@needs_promtool
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    command = ["promtool", "test", "rules", "alerts_test.yml"]
    run = subprocess.run(command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", ["compose.yaml", "grafana/datasource.yaml", "grafana/dashboards.yaml"])
def test_every_file_that_is_mounted_or_named_exists(name: str) -> None:
    path = DEPLOY / name
    for local in re.findall(r"^ +- (\./[^:\s]+):", path.read_text(encoding="utf-8"), re.MULTILINE):
        assert (path.parent / local).exists(), f"{name} mounts {local}."


def _serve_configuration(name: str) -> ServeDeploySchema:
    """The Serve configuration of a file; in KubeRay's it stands as text in the first document."""
    document = next(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))
    if document.get("kind") == "RayService":
        document = yaml.safe_load(document["spec"]["serveConfigV2"])
    return ServeDeploySchema.model_validate(document)


@pytest.mark.parametrize("name", ["serve-laptop.yaml", "serve-cluster.yaml", "rayservice.yaml"])
def test_ray_serve_accepts_the_configuration_and_the_service_its_settings(name: str) -> None:
    (application,) = _serve_configuration(name).applications
    module, _, builder = application.import_path.partition(":")
    assert callable(getattr(importlib.import_module(module), builder))
    assert Settings(**application.args).profile == application.args["profile"]


def test_kubernetes_runs_the_same_configuration_as_any_cluster() -> None:
    assert _serve_configuration("rayservice.yaml") == _serve_configuration("serve-cluster.yaml")


def test_everything_the_image_copies_exists_and_is_let_in() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE) for name in line.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / name).exists() for name in copied)


def test_no_port_of_the_compose_file_is_open_to_the_network() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    ports = [port for service in services.values() for port in service["ports"]]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)

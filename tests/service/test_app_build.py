"""The composition root, and what surrounds a Ray of our own; nothing is started here."""

from __future__ import annotations

import errno
import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from model.errors import BundleError
from service.app import _build, build
from service.errors import SettingsError
from service.local import _write_lines, claimed_port, interruptible, prepare
from service.settings import Settings
from tests.service.tiny_bundle import tiny_bundle


def deployments(settings: Settings, listens: bool = False):
    """Every deployment of the application by its name."""
    from ray.serve._private.build_app import build_app

    built = build_app(_build(settings, listens), name="dragoman", default_runtime_env={})
    return {deployment.name: deployment for deployment in built.deployments}


def other_bundle(folder: Path) -> Path:
    """A copy of the tiny bundle that is called `other`."""
    copy = folder / "other"
    shutil.copytree(tiny_bundle(), copy)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"name": "tiny-en-de"', '"name": "other"'))
    return copy


def test_there_is_an_ingress_and_one_engine_deployment_for_each_bundle(tmp_path):
    found = deployments(Settings(bundles=(tiny_bundle(), other_bundle(tmp_path))))
    assert set(found) == {"ingress", "translator-tiny-en-de", "translator-other"}


@pytest.mark.parametrize(
    ("asked", "apart"),
    [({}, False), ({"engines": "apart"}, True), ({"max_replicas": 2}, True), ({"ingress_replicas": 2}, True)],
)
def test_an_ingress_that_listens_holds_its_engine_where_one_is_enough(asked: dict[str, object], apart: bool) -> None:
    found = deployments(Settings(bundles=(tiny_bundle(),), engine_cpus=0.5, **asked), listens=True)
    assert set(found) == {"ingress", "translator-tiny-en-de"} if apart else {"ingress"}
    holder = found["translator-tiny-en-de" if apart else "ingress"]._replica_config
    assert holder.ray_actor_options["num_cpus"] == 0.5


def test_an_ingress_reserves_the_processors_of_all_engines_that_it_holds(tmp_path: Path) -> None:
    settings = Settings(bundles=(tiny_bundle(), other_bundle(tmp_path)), engine_cpus=0.5)
    found = deployments(settings, listens=True)
    assert set(found) == {"ingress"}
    assert found["ingress"]._replica_config.ray_actor_options["num_cpus"] == 1.0


def test_behind_a_proxy_engines_are_apart() -> None:
    settings = Settings(bundles=(tiny_bundle(),))
    assert set(deployments(settings)) == {"ingress", "translator-tiny-en-de"}
    with pytest.raises(SettingsError, match="engines must be auto or apart where"):
        build(Settings(bundles=(tiny_bundle(),), engines="within"))


def test_two_bundles_of_one_name_are_refused(tmp_path):
    shutil.copytree(tiny_bundle(), tmp_path / "copy")
    with pytest.raises(SettingsError, match="different names"):
        build(Settings(bundles=(tiny_bundle(), tmp_path / "copy")))


def test_a_bundle_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BundleError, match=r"manifest\.json"):
        build(Settings(bundles=(tmp_path,)))


def test_the_options_of_the_engine_come_from_the_settings():
    settings = Settings(
        bundles=(tiny_bundle(),),
        min_replicas=2,
        max_replicas=5,
        target_ongoing=3,
        engine_cpus=0.5,
        upscale_delay_s=7,
        downscale_delay_s=70,
        health_period_s=3,
    )
    engine = deployments(settings)["translator-tiny-en-de"]._deployment_config
    scaling = engine.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas, scaling.target_ongoing_requests) == (2, 5, 3)
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s) == (7, 70)
    assert scaling.look_back_period_s > scaling.metrics_interval_s
    assert engine.health_check_period_s == 3
    assert engine.max_ongoing_requests > 8 * settings.max_slots, "Serve's limit must be above the engine's own"
    assert engine.backpressure_config.status_code == 429


def test_the_api_refuses_before_serve_does():
    settings = Settings(bundles=(tiny_bundle(),), ingress_max_ongoing=7)
    ingress = deployments(settings)["ingress"]._deployment_config
    assert min(ingress.max_ongoing_requests, ingress.max_queued_requests) > settings.ingress_max_ongoing


def test_a_serve_file_can_name_build_with_settings_as_args():
    (parameter,) = inspect.signature(build).parameters.values()
    assert parameter.annotation is Settings
    assert parameter.annotation.model_validate({"profile": "cluster"}).ingress_replicas == 2


def test_importing_the_application_does_not_import_ray():
    code = "import sys, service.app; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_what_the_operator_set_for_ray_stays(monkeypatch):
    monkeypatch.setattr(os, "environ", {"RAY_AUTH_MODE": "disabled"})
    prepare()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    token = os.environ["RAY_AUTH_TOKEN"]
    prepare()
    assert os.environ["RAY_AUTH_TOKEN"] == token


def test_a_claimed_port_is_refused_to_a_second_service_but_not_to_our_own_server():
    with claimed_port("127.0.0.1", 0) as port:
        assert port > 0
        with (
            pytest.raises(SettingsError, match=f"port {port} on 127.0.0.1 must be free"),
            claimed_port("127.0.0.1", port),
        ):
            pass
        with socket.socket() as server:
            # As Serve opens it.
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port)) as client:
                server.accept()[0].close()
                assert client.recv(1) == b""
    with claimed_port("127.0.0.1", port) as again:
        assert again == port, "connections that still fade away must not hold a port"


def test_a_port_somebody_listens_on_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SettingsError, match="--port"), claimed_port("127.0.0.1", port):
            pass


@pytest.mark.parametrize("host", ["192.0.2.1", "no..host"])
def test_a_host_that_is_not_this_machine_is_not_called_a_port_in_use(host):
    words = f"host must be an address of this machine, but is {host}"
    with pytest.raises(SettingsError, match=words), claimed_port(host, 0):
        pass


def test_a_port_that_needs_privileges_is_not_called_a_port_in_use(monkeypatch):
    def deny(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", deny)
    with pytest.raises(SettingsError, match="choose one above 1023"), claimed_port("127.0.0.1", 80):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_interrupt_the_block_and_only_it(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_log_lines_of_replicas_come_through_as_json_and_those_of_ray_do_not(capsys):
    ours = json.dumps({"message": "request"})
    _write_lines({"actor_name": "ServeReplica:dragoman:ingress", "lines": [ours, "Fatal Python error"]})
    _write_lines({"actor_name": "ServeController", "lines": ["INFO nothing new"]})
    _write_lines({"actor_name": None, "lines": ["raylet"]})
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["message"] for line in lines] == ["request", "Fatal Python error"]

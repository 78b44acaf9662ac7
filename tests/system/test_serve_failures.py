"""`dragoman serve` when it cannot serve: a clear message, the right exit status, and nothing left running."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time

import pytest

from model.bundle import sha256
from tests.service.tiny_bundle import tiny_bundle
from tests.system.running_service import alive, descendants, free_port, say, start

pytestmark = pytest.mark.slow


def ended(seconds: float, **settings: object) -> tuple[int, str]:
    """Exit status and standard error of a service that must end by itself."""
    with tempfile.TemporaryFile("w+") as log, start(log, port=free_port(), **settings) as process:
        status = process.wait(seconds)
        log.seek(0)
        return status, log.read()


@pytest.fixture
def unloadable(tmp_path):
    """A bundle that is whole, but whose decoder is no graph."""
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle(), bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    for roles in (roles for graphs in manifest["precisions"].values() for roles in graphs.values()):
        graph = bundle / roles["decoder"]
        graph.write_bytes(b"this is no graph")
        manifest["files"][graph.name] = {"sha256": sha256(graph), "bytes": graph.stat().st_size}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    return bundle


def test_a_replica_that_can_not_start_ends_the_service_with_its_reason(unloadable):
    status, log = ended(150, bundles=unloadable)
    assert status == 1
    assert "dragoman: every replica must start, but one does not" in log
    assert "must be a graph that ONNX Runtime can load" in log


def test_a_damaged_bundle_is_refused_before_anything_starts(tmp_path):
    bundle = tmp_path / "bundle"
    shutil.copytree(tiny_bundle(), bundle)
    with (bundle / "tokenizer.model").open("ab") as file:
        file.write(b"x")
    began = time.monotonic()
    status, log = ended(20, bundles=bundle)
    assert status == 1
    assert log.startswith("dragoman: ")
    assert log.count("\n") == 1
    assert time.monotonic() - began < 15


def test_a_precision_that_the_bundle_lacks_is_refused_before_anything_starts(tmp_path):
    status, log = ended(20, bundles=tiny_bundle(), provider="cuda", engine_gpus=1, precision="f16")
    assert status == 1
    assert "dragoman: precision must be one of" in log


def test_a_signal_during_the_start_ends_everything():
    with tempfile.TemporaryFile("w+") as log, start(log, port=free_port(), bundles=tiny_bundle()) as process:
        deadline = time.monotonic() + 60.0
        while not (started := descendants(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        say(f"ended {time.monotonic() - began:.1f} s after the signal")
        time.sleep(1.0)
        assert not any(map(alive, started))
        log.seek(0)
        assert "Traceback" not in log.read()

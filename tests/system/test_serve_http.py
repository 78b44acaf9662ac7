"""`dragoman serve` on a real Ray, from its start to its end, as an operator and a caller see it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.system.endless_bundle import NAME, endless_bundle
from tests.system.running_service import RunningService, alive, say, start

pytestmark = pytest.mark.slow

TEXT = "The file could not be opened."


LATE = [f"Boat {'and boat ' * n}left the harbour before the storm came, and nobody saw it again." for n in range(60)]
"""Work for a second or two, so that there is something to see of it."""


@pytest.fixture(scope="module", params=["ingress", "proxy"])
def service(request):
    """One engine with one slot and a short queue: within an ingress that listens, or apart and behind Ray's proxy."""
    running = RunningService(
        listener=request.param,
        bundles=endless_bundle(),
        max_slots=1,
        max_source_tokens=32,
        max_batch_tokens=32,
        max_queued_tokens=256,
        ready_timeout_s=1,
        graceful_shutdown_s=15,
    )
    yield running
    running.kill()


def test_it_says_where_it_is_once_a_translation_works(service):
    say(f"ready after {service.start_seconds:.1f} s")
    assert service.url in service.output
    command = service.output[service.output.index("curl") :]
    reply = subprocess.run(command, shell=True, capture_output=True, check=True)
    assert json.loads(reply.stdout)["translations"][0]["text"]


def test_a_request_comes_back_whole_and_in_order(service):
    texts = [f"Line {n}.\n\n  And {n} more lines. \n" for n in range(20)]
    answer = service.translate(texts)
    assert answer.status == 200
    assert [service.translate(text).texts[0] for text in texts] == answer.texts
    assert all(text.count("\n") == 3 and text.endswith(" \n") for text in answer.texts)


def test_the_model_says_what_really_runs(service):
    (model,) = service.call("/v1/models").body["models"]
    assert (model["name"], model["provider"]) == (NAME, "cpu")
    assert model["precision"] in ("int8", "f32")


def test_it_is_ready_and_says_for_which_models(service):
    assert service.call("/readyz").body == {"status": "ready", "models": {NAME: "ready"}}
    assert service.call("/healthz").status == 200


def test_a_full_queue_answers_429_at_once_and_what_was_accepted_is_answered(service):
    def ask(caller):
        return service.translate([f"Boat {caller} is number {n} here." for n in range(20)])

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))
    refused = [answer for answer in answers if answer.status == 429]
    accepted = [answer for answer in answers if answer.status == 200]
    slowest = max(answer.seconds for answer in refused) if refused else 0.0
    say(f"sent {len(answers)}, answered {len(accepted)}, refused {len(refused)} within {slowest:.3f} s")
    assert len(refused) + len(accepted) == len(answers)
    assert refused
    assert accepted
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert {answer.body["error"]["code"] for answer in refused} == {"overloaded"}


def test_a_scrape_counts_every_request_that_was_answered_before_it(service):
    name = "translation_http_requests_total native /v1/translate POST 200"
    before = service.metrics()
    for count in range(1, 6):
        service.translate(TEXT)
        now = service.metrics()
        assert now[name] == before[name] + count
        decoded = f"translation_decode_seconds_count {NAME}"
        assert now[decoded] == before[decoded] + count
    for stage in ("queue", "encode", "decode", "inference"):
        assert now[f"translation_{stage}_seconds_count {NAME}"] > 0
    assert now["translation_replica_up engine"] == now["translation_replica_up ingress"] == 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_in_the_exposition(service):
    text = service.call("/metrics").body
    check = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def test_a_caller_that_hangs_up_frees_its_slot(service):
    body = json.dumps(
        {"text": [f"This is boat number {n} here." for n in range(100)], "source": "en", "target": "de"}
    ).encode()
    abandoned = f"translation_abandoned_segments_total {NAME}"
    before = service.metrics()[abandoned]
    with socket.create_connection(("127.0.0.1", service.port)) as connection:
        head = (
            f"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        connection.sendall(f"{head}\r\n\r\n".encode() + body)
        _until(lambda: service.metrics()[f"translation_batch_rows_active {NAME}"] > 0)
    _until(lambda: service.metrics()[f"translation_batch_rows_active {NAME}"] == 0)
    after = service.metrics()
    assert after[abandoned] > before
    assert after[f"translation_queue_length {NAME}"] == 0
    assert service.translate(TEXT).status == 200


def test_an_engine_that_hangs_turns_readiness_red_and_green_again(service):
    engine = next(iter(service.processes("ServeReplica:dragoman:translator") | service.processes("service.child")))
    assert service.call("/readyz").status == 200
    os.kill(engine, signal.SIGSTOP)
    try:
        time.sleep(1.1)
        answer = service.call("/readyz")
        assert (answer.status, answer.body["error"]["code"]) == (503, "not_ready")
        assert answer.seconds < 2.0
        assert service.call("/healthz").status == 200
    finally:
        os.kill(engine, signal.SIGCONT)
    _until(lambda: service.call("/readyz").status == 200)
    assert service.translate(TEXT).status == 200


def test_the_log_is_json_with_ids_and_without_the_text(service):
    service.translate("Quaint xylophones hum.", **{"X-Request-ID": "look-for-me"})
    _until(lambda: "look-for-me" in service.log_text())
    lines = [json.loads(line) for line in service.log_text().splitlines()]
    assert any(line.get("request_id") == "look-for-me" for line in lines)
    assert "xylophones" not in service.log_text()


def test_a_port_in_use_is_a_clear_error_before_anything_starts(service):
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as log, start(log, port=service.port, bundles=endless_bundle()) as second:
        assert second.wait(20) == 1
        log.seek(0)
        message = log.read()
    assert time.monotonic() - began < 10
    assert f"port {service.port} on 127.0.0.1 must be free" in message
    assert "Traceback" not in message
    assert service.translate(TEXT).status == 200


def test_nothing_imports_torch_in_the_service(service):
    for pid in (service.process.pid, *service.processes("ray::")):
        with open(f"/proc/{pid}/maps") as maps:
            assert "libtorch" not in maps.read()


def test_it_listens_on_loopback_only(service):
    assert _listening_addresses(service.port) == {"127.0.0.1"}


def test_an_engine_that_is_killed_beside_its_ingress_is_started_again(service):
    engine = next(iter(service.processes("service.child")), None)
    if engine is None:
        pytest.skip("Ray replaces an engine of its own: test_serve_scaling")
    os.kill(engine, signal.SIGKILL)
    _until(lambda: not alive(engine))
    began = time.monotonic()
    _until(lambda: _answers(service))
    say(f"translated again {time.monotonic() - began:.1f} s after the engine was killed")


def test_an_ingress_that_is_killed_is_replaced_on_the_same_port(service):
    (ingress,) = service.processes("ray::ServeReplica:dragoman:ingress")
    os.kill(ingress, signal.SIGKILL)
    _until(lambda: not alive(ingress))
    _until(lambda: _answers(service), 60.0)


def test_ctrl_c_answers_who_is_here_ends_cleanly_and_leaves_no_process(service, request):
    """Ray's proxy gives up what still runs when it is told to stop, so nobody is here with it."""
    processes = [service.process.pid, *service.processes()]
    assert len(processes) > 5
    seconds = service.stop(signal.SIGINT) if "proxy" in request.node.name else _stop_while_asked(service)
    say(f"ended {seconds:.1f} s after the signal")
    assert service.process.returncode == 0
    _until(lambda: not any(map(alive, processes)))
    assert "Traceback" not in service.log_text()


def _stop_while_asked(service):
    with ThreadPoolExecutor(1) as pool:
        body = {"text": LATE, "source": "en", "target": "de", "beam_size": 8}
        asked = pool.submit(service.call, "/v1/translate", body, 60.0)
        _until(lambda: service.metrics()[f"translation_batch_rows_active {NAME}"] > 0)
        seconds = service.stop(signal.SIGINT)
        answer = asked.result()
    assert (answer.status, len(answer.texts)) == (200, len(LATE))
    return seconds


def _answers(service):
    try:
        return service.translate(TEXT).status == 200
    except OSError:
        return False


def _listening_addresses(port):
    """Where somebody listens on `port`; an IPv6 address as the kernel writes it."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, its_port = local.partition(":")
            if state == "0A" and int(its_port, 16) == port:
                v4 = bytes.fromhex(address)[::-1] if table == "tcp" else b""
                found.add(socket.inet_ntoa(v4) if v4 else address)
    return found


def _until(condition, seconds=15.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} seconds"
        time.sleep(0.05)

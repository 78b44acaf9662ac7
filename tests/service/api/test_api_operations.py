from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest

from service.api.application import build_api
from service.api.ports import ReadyReport
from service.settings import Settings


def test_health_says_that_the_process_is_up(call, backend):
    backend.report = ReadyReport({"en-de": "broken"})
    answer = call("GET", "/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_readiness_is_green_after_a_translation_that_worked(call):
    answer = call("GET", "/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "models": {"en-de": "ready"}})


def test_readiness_is_red_if_one_model_is_ill_or_there_is_none(call, backend):
    backend.report = ReadyReport({"en-de": None, "fr-de": "no end of sentence"})
    answer = call("GET", "/readyz")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    error = answer.json()["error"]
    assert error["code"] == "not_ready"
    assert error["details"] == {"models": {"en-de": "ready", "fr-de": "no end of sentence"}}
    backend.report = ReadyReport({})
    assert call("GET", "/readyz").status_code == 503


def test_readiness_is_red_when_the_trial_hangs(backend, recorder):
    backend.delay = 30
    api = build_api(backend, Settings(ready_timeout_s=0.1), recorder)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://test") as client:
            return await client.get("/readyz")

    answer = asyncio.run(send())
    assert answer.status_code == 503
    assert "too long" in answer.json()["error"]["details"]["models"]["en-de"]


def test_a_probe_may_ask_with_head(call, backend):
    assert call("HEAD", "/healthz").status_code == call("HEAD", "/readyz").status_code == 200
    backend.report = ReadyReport({"en-de": "broken"})
    assert call("HEAD", "/readyz").status_code == 503


def test_languages_list_the_targets_of_each_source(call):
    assert call("GET", "/v1/languages").json() == {
        "languages": [{"source": "en", "targets": ["de"]}, {"source": "fr", "targets": ["de", "en"]}]
    }


def test_models_say_what_runs_them(call):
    assert call("GET", "/v1/models").json() == {
        "models": [
            {
                "name": "en-de",
                "version": "1",
                "pairs": [{"source": "en", "target": "de"}],
                "precision": "int8",
                "provider": "CPUExecutionProvider",
                "operators": "stock",
                "defaults": {"beam_size": 4},
                "alignment": False,
            }
        ]
    }


def test_metrics_are_prometheus_text(call):
    answer = call("GET", "/metrics")
    assert answer.text == "# TYPE up gauge\nup 1\n"
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_the_documentation_loads_nothing_from_elsewhere(call):
    answer = call("GET", "/docs")
    assert answer.status_code == 200
    assert not re.search(r"""(src|href|url|import)\s*[=(]?\s*["']?(https?:)?//""", answer.text)
    assert "openapi.json" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_the_openapi_shows_the_request_with_examples_and_every_error(call):
    operation = call("GET", "/openapi.json").json()["paths"]["/v1/translate"]["post"]
    body = operation["requestBody"]["content"]["application/json"]
    assert {"text", "source", "target", "beam_size", "length_penalty"} <= set(body["schema"]["properties"])
    assert body["schema"]["required"] == ["text", "source", "target"]
    assert all({"text", "source", "target"} <= set(example["value"]) for example in body["examples"].values())
    assert set(operation["responses"]) >= {"200", "400", "413", "415", "422", "429", "500", "503", "504"}


def test_a_request_id_is_echoed_if_it_is_modest_and_made_otherwise(call):
    for given in ("abc-1.2_3", "Root=1-67891233-abcdef012345678912345678;Parent=53/9", "x" * 128):
        assert call("GET", "/healthz", headers={"x-request-id": given}).headers["x-request-id"] == given
    immodest = ("", "a b", "x" * 129)
    made = {call("GET", "/healthz", headers={"x-request-id": i}).headers["x-request-id"] for i in immodest}
    assert len(made) == 3
    assert all(re.fullmatch("[0-9a-f]{32}", i) for i in made)


def test_behind_a_proxy_that_writes_the_request_id_it_is_not_written_twice(backend, recorder, settings):
    api = build_api(backend, settings, recorder, proxied=True)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://test") as client:
            return await client.get("/nothing", headers={"x-request-id": "the-proxys"})

    answer = asyncio.run(send())
    assert "x-request-id" not in answer.headers
    assert answer.json()["error"]["request_id"] == "the-proxys"


def test_figures_are_labelled_by_the_closed_table_of_routes(call, recorder):
    for i in range(20):
        call("GET", f"/translate/{i}")
    call("GET", "/v1/translate")
    call("GET", "/v1/languages?x=1")
    seen = {(f["endpoint"], f["method"], f["code"]) for f in recorder.finished}
    assert seen == {("other", "GET", 404), ("/v1/translate", "GET", 405), ("/v1/languages", "GET", 200)}
    assert set(recorder.in_flight.values()) == {0}
    assert all(f["api"] == "native" and f["seconds"] >= 0 for f in recorder.finished)


def test_every_request_is_one_log_line_without_its_text(post, log_lines):
    answer = post({"text": "a secret text"})
    line = json.loads(log_lines[-1])
    assert line["message"] == "request"
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["method"], line["endpoint"], line["status"]) == ("POST", "/v1/translate", 200)
    assert "secret" not in "".join(log_lines)


def test_a_request_that_its_server_gives_up_on_is_told_so_and_counted_so(backend, recorder):
    """Our own server cancels what is open when its patience ends; a proxy cancels what its caller has left."""
    backend.delay = 30

    async def cancelled(proxied: bool) -> httpx.Response:
        api = build_api(backend, Settings(), recorder, proxied=proxied)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as client:
            body = {"text": "hello", "source": "en", "target": "de"}
            task = asyncio.ensure_future(client.post("/v1/translate", json=body))
            while not any(recorder.in_flight.values()):
                await asyncio.sleep(0.001)
            task.cancel()
            return await task

    answer = asyncio.run(cancelled(proxied=False))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled(proxied=True))

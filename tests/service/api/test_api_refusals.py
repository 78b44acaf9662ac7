from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest

from service.api.application import build_api
from service.api.errors import STATUS
from service.errors import REFUSALS, EngineFailed, EngineUnavailable, NotReady, Overloaded
from service.settings import Settings

GOOD = b'{"text": "a", "source": "en", "target": "de"}'
JSON = {"content-type": "application/json"}


def error_of(answer: httpx.Response, status: int, code: str) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) >= {"code", "message", "field", "request_id"}
    assert error["code"] == code
    assert error["request_id"] == answer.headers["x-request-id"]
    return error


def test_every_refusal_has_a_status():
    assert set(STATUS) == set(REFUSALS)


@pytest.mark.parametrize(
    "body", [b'{"text": (cut off)', b"", b'{"text": "a"', b"\xff\xfe", b'{"text": NaN}', b"{'a': 1}"]
)
def test_what_is_not_json_is_a_400(call, body):
    error_of(call("POST", "/v1/translate", content=body, headers=JSON), 400, "invalid_json")


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b'{"a": -' + b"9" * 41 + b"}"])
def test_hostile_json_is_a_400(backend, recorder, body):
    api = build_api(backend, Settings(), recorder)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://test") as client:
            return await client.post("/v1/translate", content=body, headers=JSON)

    error_of(asyncio.run(send()), 400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"text"'])
def test_json_that_is_no_object_is_a_422(call, body):
    error = error_of(call("POST", "/v1/translate", content=body, headers=JSON), 422, "invalid_request")
    assert "must be a JSON object" in error["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json; version=1; charset=latin-1"},
        {"content-type": "application/json/"},
        {**JSON, "content-encoding": "gzip"},
    ],
)
def test_another_content_type_is_a_415(call, headers):
    error_of(call("POST", "/v1/translate", content=GOOD, headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "Application/JSON"},
        {"content-type": 'application/json; charset="UTF-8"; version=1'},
        {"content-type": "application/json;version=1;charset=utf-8"},
        {**JSON, "content-encoding": " Identity"},
    ],
)
def test_json_may_say_what_it_is_in_many_ways(call, headers):
    assert call("POST", "/v1/translate", content=GOOD, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"text": None}, "text", "text must be a string or an array of strings, but is null."),
        ({"text": 5}, "text", "is a number"),
        ({"text": {"a": 1}}, "text", "is an object"),
        ({"text": True}, "text", "is true"),
        ({"text": []}, "text", "is an empty array"),
        ({"source": None}, "source", "source must be a string, but is null."),
        ({"target": ["de"]}, "target", "target must be a string, but is an array."),
        ({"num_beems": 4}, "num_beems", "num_beems is not a field of this request; the fields are text, source"),
        ({"beam_size": "4"}, "beam_size", "beam_size must be a whole number, but is a string."),
        ({"beam_size": True}, "beam_size", "is true"),
        ({"beam_size": 1.5}, "beam_size", "beam_size"),
        ({"beam_size": 0}, "beam_size", "beam_size must be in 1..16, but is 0."),
        ({"beam_size": 10**30}, "beam_size", "beam_size must be in 1..16"),
        ({"length_penalty": 10**30}, "length_penalty", "length_penalty must be in 0..10"),
        ({"length_penalty": -1}, "length_penalty", "length_penalty must be in 0..10"),
        ({"length_penalty": [1]}, "length_penalty", "length_penalty must be a number, but is an array."),
    ],
)
def test_a_wrong_field_is_a_422_that_names_it(post, change, field, words):
    error = error_of(post({"text": "a", **change}), 422, "invalid_request")
    assert error["field"] == field
    assert words in error["message"]


@pytest.mark.parametrize("missing", ["text", "source", "target"])
def test_a_missing_field_is_a_422_that_names_it(call, missing):
    fields = {"text": "a", "source": "en", "target": "de"}
    del fields[missing]
    error = error_of(call("POST", "/v1/translate", json=fields), 422, "invalid_request")
    assert error["field"] == missing


def test_a_misspelt_field_is_named_rather_than_the_one_it_stood_for(call):
    error = error_of(
        call("POST", "/v1/translate", json={"texts": "a", "source": "en", "target": "de"}), 422, "invalid_request"
    )
    assert error["field"] == "texts"


def test_a_field_given_twice_is_a_422(call):
    body = b'{"text": "a", "text": "b", "source": "en", "target": "de"}'
    error = error_of(call("POST", "/v1/translate", content=body, headers=JSON), 422, "invalid_request")
    assert error["field"] == "text"


def test_a_field_name_of_lone_surrogates_is_a_422(call):
    body = rb'{"\ud800": 1, "text": "a", "source": "en", "target": "de"}'
    error_of(call("POST", "/v1/translate", content=body, headers=JSON), 422, "invalid_request")


@pytest.mark.parametrize("code", ["ee-XX", "", "zh-Hans", "\x00", "x" * 500, "en\ud800", "de; drop"])
@pytest.mark.parametrize("field", ["source", "target"])
def test_an_unknown_language_is_a_422_that_lists_what_there_is(call, field, code):
    fields = {"text": "hi", "source": "en", "target": "de", field: code}
    answer = call("POST", "/v1/translate", content=json.dumps(fields).encode(), headers=JSON)
    error = error_of(answer, 422, "unsupported_language")
    assert error["field"] == field
    assert error["details"]["supported"] == (["en", "fr"] if field == "source" else ["de", "en"])
    assert len(error["message"]) < 200


def test_an_unknown_pair_is_a_422_that_lists_what_there_is(post):
    error = error_of(post({"text": "a", "source": "en", "target": "en"}), 422, "unsupported_pair")
    assert error["message"] == "target must be one of de when source is en, but is en."
    assert {"source": "fr", "target": "en"} in error["details"]["supported"]


def test_too_many_texts_are_a_422(post, backend):
    error = error_of(post({"text": ["a"] * 5}), 422, "too_many_texts")
    assert error["message"] == "text must hold at most 4 texts, but holds 5."
    assert not backend.commands


def test_a_single_text_that_is_refused_refuses_the_request(post):
    assert error_of(post({"text": "x" * 101}), 422, "text_too_long")["field"] == "text"
    error_of(post({"text": "spoilt"}), 422, "text_too_long")


def test_a_large_body_is_a_413_before_it_is_read(call):
    async def never():
        raise AssertionError("the body was read")
        yield b""

    headers = {**JSON, "content-length": "2001"}
    error_of(call("POST", "/v1/translate", content=never(), headers=headers), 413, "body_too_large")


def test_a_large_body_of_unknown_length_is_a_413_as_soon_as_it_is_too_large(call):
    sent = []

    async def chunks():
        for i in range(100):
            sent.append(i)
            yield b" " * 500

    error_of(call("POST", "/v1/translate", content=chunks(), headers=JSON), 413, "body_too_large")
    assert len(sent) < 10


def test_an_unknown_path_is_a_404_and_a_wrong_method_a_405(call):
    error_of(call("GET", "/v1/nothing"), 404, "not_found")
    error_of(call("GET", "/v1/translate/"), 404, "not_found")
    answer = call("GET", "/v1/translate")
    error_of(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    error_of(call("DELETE", "/healthz"), 405, "method_not_allowed")


def test_large_headers_are_a_431(call):
    error_of(call("GET", "/healthz", headers={"x-noise": "n" * 40_000}), 431, "headers_too_large")


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded(), 429), (NotReady(), 503), (EngineUnavailable(), 503), (EngineFailed(), 500)]
)
def test_a_refusal_of_the_backend_has_its_status(post, backend, error, status):
    backend.error = error
    answer = post({"text": "a"})
    error_of(answer, status, error.code)
    assert answer.headers.get("retry-after") == ("1" if status in (429, 503) else None)


def test_a_crash_is_a_500_whose_id_is_in_the_log_without_the_text(post, backend, log_lines):
    backend.error = ValueError("could not digest: a secret text")
    answer = post({"text": "a secret text"})
    error = error_of(answer, 500, "internal_error")
    assert "secret" not in answer.text
    crash = [json.loads(line) for line in log_lines if "request failed" in line]
    assert len(crash) == 1
    assert crash[0]["request_id"] == error["request_id"]
    assert crash[0]["exception"].endswith("builtins.ValueError")
    assert "conftest.py" in crash[0]["exception"]
    assert "secret" not in "".join(log_lines)


def test_a_failed_engine_is_in_the_log_under_the_request_id(post, backend, log_lines):
    backend.error = EngineFailed()
    error = error_of(post({"text": "a"}), 500, "engine_failed")
    refused = next(json.loads(line) for line in log_lines if "request refused" in line)
    assert refused["request_id"] == error["request_id"]
    assert refused["code"] == "engine_failed"


def test_a_request_out_of_time_is_a_504_and_its_work_is_cancelled(backend, recorder):
    backend.delay = 30
    api = build_api(backend, Settings(request_timeout_s=0.2, ready_timeout_s=0.1), recorder)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://test") as client:
            return await client.post("/v1/translate", content=GOOD, headers=JSON)

    began = time.monotonic()
    error_of(asyncio.run(send()), 504, "deadline_exceeded")
    assert time.monotonic() - began < 5
    assert backend.cancelled == 1


def test_who_comes_on_top_is_refused_at_once_and_probes_still_pass(backend, recorder):
    backend.delay = 0.2
    api = build_api(backend, Settings(ingress_max_ongoing=2, retry_after_s=1.5), recorder)

    async def send() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://test") as client:
            posts = [client.post("/v1/translate", content=GOOD, headers=JSON) for _ in range(5)]
            answers = await asyncio.gather(*posts, client.get("/healthz"), client.get("/metrics"))
            return [*answers, await client.post("/v1/translate", content=GOOD, headers=JSON)]

    *posts, health, metrics, later = asyncio.run(send())
    assert sorted(answer.status_code for answer in posts) == [200, 200, 429, 429, 429]
    for answer in posts:
        if answer.status_code == 429:
            assert "At most 2 requests" in error_of(answer, 429, "overloaded")["message"]
            assert answer.headers["retry-after"] == "2"
    assert (health.status_code, metrics.status_code, later.status_code) == (200, 200, 200)
    assert sum(finished["code"] == 429 for finished in recorder.finished) == 3


def test_a_body_that_does_not_arrive_in_time_is_the_callers_fault(backend, recorder):
    api = build_api(backend, Settings(request_timeout_s=0.2, ready_timeout_s=0.1), recorder)

    async def dripping():
        yield GOOD[:9]
        await asyncio.sleep(30)
        yield GOOD[9:]

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://test") as client:
            return await client.post("/v1/translate", content=dripping(), headers=JSON)

    error_of(asyncio.run(send()), 408, "body_too_slow")
    assert not backend.commands


def test_a_caller_who_leaves_takes_his_work_with_him(backend, recorder, settings):
    backend.delay = 30
    api = build_api(backend, settings, recorder)
    messages = iter([{"type": "http.request", "body": GOOD, "more_body": False}, {"type": "http.disconnect"}])
    sent = []

    async def receive():
        await asyncio.sleep(0.01)
        return next(messages)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/translate",
        "raw_path": b"/v1/translate",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"content-type", b"application/json")],
    }
    asyncio.run(asyncio.wait_for(api(scope, receive, send), 5))
    assert backend.cancelled == 1
    assert recorder.finished[0]["code"] == 499
    assert recorder.in_flight == {"/v1/translate": 0}

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from service.languages import Pair


def test_one_text_is_translated(post, backend):
    answer = post({"text": "hello"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["model"] == "en-de"
    assert body["translations"] == [{"text": "HELLO", "source": "en", "target": "de", "truncated": False}]
    assert body["usage"] == {"characters": 5, "source_tokens": 3, "target_tokens": 5}
    assert body["timing_ms"]["queue"] == 1.0
    assert body["timing_ms"]["inference"] == 2.0
    assert body["timing_ms"]["total"] > 0


def test_many_texts_keep_their_order(post):
    texts = ["one", "two", "three", "four"]
    body = post({"text": texts}).json()
    assert [slot["text"] for slot in body["translations"]] == ["ONE", "TWO", "THREE", "FOUR"]
    assert body["usage"]["characters"] == 15


def test_a_translation_says_when_it_was_cut(post):
    assert [slot["truncated"] for slot in post({"text": ["cut", "whole"]}).json()["translations"]] == [True, False]


def test_options_reach_the_backend_and_are_left_to_the_model_otherwise(post, backend):
    post({"text": "a", "beam_size": 2, "length_penalty": 1})
    post({"text": "a"})
    assert [(c.beam_size, c.length_penalty) for c in backend.commands] == [(2, 1.0), (None, None)]


@pytest.mark.parametrize(
    ("source", "target"), [("EN", "DE"), ("en-US", "de_AT"), ("en_gb", "De"), (" en ", "de-1996"), ("EN-Latn-GB", "de")]
)
def test_a_language_code_may_be_written_in_many_ways(post, backend, source, target):
    answer = post({"text": "a", "source": source, "target": target})
    assert answer.status_code == 200
    assert backend.commands[0].pair == Pair("en", "de")
    assert answer.json()["translations"][0]["source"] == "en"
    assert answer.json()["translations"][0]["target"] == "de"


def test_a_bad_text_is_refused_in_its_slot_and_the_others_are_not_touched(post, backend):
    answer = post({"text": ["fine", None, "x" * 101, "also fine"]})
    assert answer.status_code == 200
    slots = answer.json()["translations"]
    assert [slot.get("text") for slot in slots] == ["FINE", None, None, "ALSO FINE"]
    assert [slot.get("error", {}).get("code") for slot in slots] == [None, "invalid_request", "text_too_long", None]
    assert slots[1]["error"]["field"] == "text[1]"
    assert slots[1]["error"]["message"] == "text[1] must be a string, but is null."
    assert backend.commands[0].texts == ("fine", "also fine")


def test_a_refusal_of_the_engine_stands_in_the_slot_it_belongs_to(post):
    slots = post({"text": [7, "spoilt", "good"]}).json()["translations"]
    assert [slot.get("error", {}).get("field") for slot in slots] == ["text[0]", "text[1]", None]
    assert slots[1]["error"]["code"] == "text_too_long"
    assert slots[2]["text"] == "GOOD"


def test_empty_and_blank_texts_are_texts(post):
    body = post({"text": ["Good day", "", "12345", "   "]}).json()
    assert [slot["text"] for slot in body["translations"]] == ["GOOD DAY", "", "12345", "   "]


def test_lone_surrogates_are_refused_in_their_slot(call):
    body = rb'{"text": ["a\ud800b", "\ud83d\ude48 ok"], "source": "en", "target": "de"}'
    answer = call("POST", "/v1/translate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    slots = answer.json()["translations"]
    assert slots[0]["error"]["code"] == "invalid_text"
    assert "character 1" in slots[0]["error"]["message"]
    assert slots[1]["text"] == "🙈 OK"


def test_control_characters_reach_the_backend_whole(call, backend):
    body = rb'{"text":"Alpha\u0000Beta \u0007gamma\u000b delta","source":"en","target":"de"}'
    answer = call("POST", "/v1/translate", content=body, headers={"content-type": "application/json; charset=UTF-8"})
    assert answer.status_code == 200
    assert backend.commands[0].texts == ("Alpha\0Beta \7gamma\v delta",)


def test_a_body_may_begin_with_a_byte_order_mark(call):
    body = b"\xef\xbb\xbf" + json.dumps({"text": "a", "source": "en", "target": "de"}).encode()
    answer = call("POST", "/v1/translate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200


@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    )
)
def test_no_json_value_whatever_is_a_server_error(call, value):
    for body in (
        value,
        {"text": value, "source": "en", "target": "de"},
        {"text": "a", "source": value, "target": "de"},
    ):
        content = json.dumps(body).encode()
        answer = call("POST", "/v1/translate", content=content, headers={"content-type": "application/json"})
        assert answer.status_code < 500
        assert answer.json()

"""Options of the search in a request: they reach the backend as they are, or are refused by name."""

from __future__ import annotations

import pytest

from model.decode.options import Sampling


def test_every_option_reaches_the_backend(post, backend):
    options = {
        "beam_size": 5,
        "length_penalty": 0.8,
        "coverage_penalty": 0.2,
        "n_best": 3,
        "max_length": 40,
        "min_length": 2,
        "no_repeat_ngram": 3,
        "repetition_penalty": 1.2,
        "prefix": "Guten Tag",
        "suppress": ["Herr", "Frau"],
        "repetition_guard": False,
        "return_scores": True,
        "alignment": True,
    }
    assert post({"text": "a", **options}).status_code == 200
    (command,) = backend.commands
    assert {name: getattr(command, name) for name in options} == {**options, "suppress": ("Herr", "Frau")}


def test_what_is_left_out_is_left_to_the_model_and_the_guard_watches(post, backend):
    post({"text": "a"})
    (command,) = backend.commands
    assert (command.n_best, command.max_length, command.min_length, command.no_repeat_ngram) == (None,) * 4
    assert (command.repetition_penalty, command.sampling, command.prefix, command.suppress) == (None, None, None, ())
    assert (command.repetition_guard, command.return_scores) == (True, False)
    assert (command.coverage_penalty, command.alignment) == (None, False)


def test_sampling_has_usual_values_too(post, backend):
    post({"text": "a", "sampling": {}})
    post({"text": "a", "sampling": {"temperature": 1, "top_k": 5, "top_p": 0.9, "seed": 7}})
    assert [c.sampling for c in backend.commands] == [
        Sampling(),
        Sampling(temperature=1.0, top_k=5, top_p=0.9, seed=7),
    ]


def test_alternatives_and_scores_are_answered_where_they_are_asked_for_and_only_there(post):
    (plain,) = post({"text": ["a"]}).json()["translations"]
    assert set(plain) == {"text", "source", "target", "truncated"}
    (full,) = post({"text": ["a"], "n_best": 2, "return_scores": True}).json()["translations"]
    assert full["alternatives"] == [{"text": "A", "score": -1.0}, {"text": "A!", "score": -2.0}]
    assert full["scores"] == {
        "score": -0.5,
        "log_probability": -1.0,
        "tokens": [{"token": "▁A", "log_probability": -0.75}, {"token": "</s>", "log_probability": -0.25}],
    }


def test_an_alignment_is_answered_where_it_is_asked_for_with_that_of_each_alternative(post):
    (aligned,) = post({"text": ["a"], "n_best": 2, "alignment": True}).json()["translations"]
    assert aligned["alignment"] == [[0, 1, 0, 1]]
    assert [one["alignment"] for one in aligned["alternatives"]] == [[[0, 1, 0, 1]], [[0, 1, 0, 1]]]
    (empty,) = post({"text": [" "], "alignment": True}).json()["translations"]
    assert empty["alignment"] == []


def test_the_guard_says_so_when_it_stepped_in(post):
    slots = post({"text": ["a", "la la la"]}).json()["translations"]
    assert [slot.get("repetition_guard") for slot in slots] == [None, True]
    (slot,) = post({"text": ["la la la"], "repetition_guard": False}).json()["translations"]
    assert "repetition_guard" not in slot


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"n_best": 0}, "n_best", "n_best must be in 1..16, but is 0."),
        ({"coverage_penalty": -1}, "coverage_penalty", "coverage_penalty must be in 0..10, but is -1"),
        ({"coverage_penalty": "much"}, "coverage_penalty", "coverage_penalty must be a number, but is a string."),
        ({"alignment": 1}, "alignment", "alignment must be true or false, but is a number."),
        ({"max_length": 0}, "max_length", "max_length must be in 1..100000"),
        ({"min_length": -1}, "min_length", "min_length must be in 0.."),
        ({"no_repeat_ngram": 99}, "no_repeat_ngram", "must be in 0..16"),
        ({"repetition_penalty": 0.5}, "repetition_penalty", "must be in 1..10"),
        ({"repetition_guard": "yes"}, "repetition_guard", "must be true or false, but is a string."),
        ({"return_scores": 1}, "return_scores", "must be true or false, but is a number."),
        ({"prefix": 5}, "prefix", "prefix must be a string, but is a number."),
        ({"prefix": "  "}, "prefix", "prefix must hold a word, but is blank."),
        ({"suppress": "word"}, "suppress", "suppress must be an array of strings, but is a string."),
        ({"suppress": []}, "suppress", "suppress must hold 1 to 64 strings, but holds 0."),
        ({"suppress": ["a"] * 65}, "suppress", "but holds 65."),
        ({"suppress": ["a", "b" * 201]}, "suppress[1]", "suppress[1] must have at most 200 characters, but has 201."),
        ({"suppress": ["a", None]}, "suppress[1]", "suppress[1] must be a string, but is null."),
        ({"suppress": ["a", ""]}, "suppress[1]", "suppress[1] must hold a word, but is blank."),
        ({"sampling": 1}, "sampling", "sampling must be an object, but is a number."),
        ({"sampling": {"heat": 1}}, "sampling.heat", "those of sampling are temperature, top_k, top_p, seed."),
        ({"sampling": {"top_k": "5"}}, "sampling.top_k", "must be a whole number, but is a string."),
        ({"sampling": {"temperature": 0}}, "sampling.temperature", "sampling.temperature must be in 0.01..10"),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p", "sampling.top_p must be in"),
        ({"sampling": {"seed": -1}}, "sampling.seed", "sampling.seed must be in"),
    ],
)
def test_an_option_out_of_range_is_a_422_that_names_it(post, backend, change, field, words):
    answer = post({"text": "a", **change})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == ("invalid_request", field)
    assert words in error["message"]
    assert backend.commands == []


def test_a_prefix_may_be_no_longer_than_a_text(post):
    error = post({"text": "a", "prefix": "x" * 101}).json()["error"]
    assert (error["code"], error["field"]) == ("text_too_long", "prefix")
    assert error["message"] == "prefix must have at most 100 characters, but has 101."


def test_a_lone_surrogate_in_a_prefix_is_refused_without_being_shown(call):
    body = rb'{"text": "a", "source": "en", "target": "de", "prefix": "geheim\ud800"}'
    answer = call("POST", "/v1/translate", content=body, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (error["code"], error["field"]) == ("invalid_text", "prefix")
    assert "geheim" not in answer.text


def test_the_documentation_shows_every_option_with_its_bounds(call):
    api = call("GET", "/openapi.json").json()
    content = api["paths"]["/v1/translate"]["post"]["requestBody"]["content"]["application/json"]
    fields = content["schema"]["properties"]
    assert fields["n_best"]["maximum"] == 16
    assert "$ref" not in str(content)
    sampling = fields["sampling"]["anyOf"][0]["properties"]
    assert set(sampling) == {"temperature", "top_k", "top_p", "seed"}
    assert all("description" in field for field in (*fields.values(), *sampling.values()))
    assert {"alternatives with scores", "carry on", "samples", "alignment"} <= set(content["examples"])

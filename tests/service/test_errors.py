from __future__ import annotations

import pickle
import re

import pytest

import service.errors
from service.errors import REFUSALS, InternalFault, Overloaded, TextTooLong, UnsupportedLanguage, refusal_of


@pytest.mark.parametrize("kind", REFUSALS.values())
def test_a_refusal_crosses_processes_whole(kind):
    refusal = kind("Because.", "text[3]", {"supported": ["de"]})
    back = pickle.loads(pickle.dumps(refusal))
    assert type(back) is kind
    assert (back.code, back.message, back.field, back.details) == (
        kind.code,
        "Because.",
        "text[3]",
        {"supported": ["de"]},
    )


@pytest.mark.parametrize("kind", REFUSALS.values())
def test_a_refusal_without_words_has_the_usual_ones(kind):
    assert str(kind()) == kind.usual
    assert kind.usual.endswith(".")


def test_a_code_turns_back_into_its_refusal():
    assert isinstance(refusal_of("overloaded"), Overloaded)
    assert refusal_of("text_too_long", "text").field == "text"
    assert isinstance(refusal_of("text_too_long"), TextTooLong)
    assert isinstance(refusal_of("from the future"), InternalFault)


def test_no_two_refusals_share_a_code():
    names = {kind.__name__ for kind in REFUSALS.values()}
    defined = {
        name
        for name, value in vars(service.errors).items()
        if isinstance(value, type) and issubclass(value, service.errors.Refusal)
    }
    assert names == defined


def test_the_tree_in_the_docstring_is_the_tree_in_the_code():
    drawn = dict(re.findall(r"── (\w+) +(\w+)", service.errors.__doc__ or ""))
    del drawn["SettingsError"], drawn["Refusal"]
    assert drawn == {kind.__name__: code for code, kind in REFUSALS.items() if code != "refused"}


def test_a_refusal_is_shown_by_its_message():
    assert str(UnsupportedLanguage("No.", "source")) == "No."

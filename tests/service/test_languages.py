from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidRequest, UnsupportedLanguage, UnsupportedPair
from service.languages import Pair, resolve, resolve_pair

PAIRS = (Pair("en", "de"), Pair("pt-BR", "en"), Pair("pt", "en"), Pair("zh-Hant", "en"))


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        ("en", "en"), ("EN", "en"), ("en_US", "en"), ("en-Latn-GB", "en"), (" en ", "en"),
        ("pt-br", "pt-BR"), ("PT_BR", "pt-BR"), ("pt-PT", "pt"), ("zh-hant-TW", "zh-Hant"),
    ],
)  # fmt: skip
def test_a_code_means_the_longest_supported_tag_it_begins_with(code, meant):
    assert resolve(code, [pair.source for pair in PAIRS], "source") == meant


@pytest.mark.parametrize(
    "code", ["", "e", "eng", "zh", "zh-Hans", "en--us", "en us", "ﬁ", "e\0n", "-en", "en-" + "x" * 99]
)
def test_any_other_code_is_refused_with_those_there_are(code):
    with pytest.raises(UnsupportedLanguage) as caught:
        resolve(code, [pair.source for pair in PAIRS], "source")
    assert caught.value.details == {"supported": ["en", "pt", "pt-BR", "zh-Hant"]}
    assert caught.value.field == "source"


def test_a_pair_that_no_model_has_is_refused_with_those_there_are():
    with pytest.raises(UnsupportedPair, match="target must be one of de when source is en, but is en"):
        resolve_pair("en", "en-GB", PAIRS)


@given(st.text(), st.text())
def test_no_code_whatever_does_anything_else(source, target):
    with suppress(InvalidRequest):
        assert resolve_pair(source, target, PAIRS) in PAIRS

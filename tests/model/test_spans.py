"""Where tokens stand in a text, and which characters of a text a rewritten one is made of."""

from __future__ import annotations

import itertools
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.spans import origins, spans
from model.tokenizer import Tokenizer, normalize
from service.text.alignment import key
from tests.model.networks import TEXTS, train_tokenizer

MARKS = "\u0301\u0323\u0308\u0327\u0342"
texts = st.text(
    st.sampled_from("aeoux \t\n\u00a0-.1\u00ad\u200b\ufeff가각ᄀ\u1161\u11a8日😀ßÅ\u212b" + MARKS), max_size=14
)

some_texts = st.text(st.sampled_from("abe ,.\u2581日ßк<0x41>"), max_size=20) | st.sampled_from(TEXTS)


def one_line(text: str) -> str:
    return normalize(re.sub(r"\s+", " ", text))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer(train_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@settings(deadline=None)
@given(text=texts)
def test_every_character_of_a_normalised_text_comes_from_a_part_that_makes_it(text):
    whole, found = one_line(text), origins(text, one_line)
    assert len(found) == len(whole)
    assert found == sorted(found)
    for character, (start, end) in zip(whole, found, strict=True):
        assert 0 <= start < end <= len(text)
        assert character in one_line(text[start:end])


@settings(deadline=None)
@given(text=texts)
def test_parts_of_a_text_that_are_apart_stay_apart(text):
    """Ranges are equal or do not overlap, and what nothing comes from was invisible or white space."""
    found = sorted(set(origins(text, one_line)))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(found))
    covered = {place for start, end in found for place in range(start, end)}
    assert all(not normalize(text[place]).strip() for place in range(len(text)) if place not in covered)


def test_an_accent_that_stands_apart_is_one_with_its_letter():
    assert origins("xe\u0301y", normalize) == [(0, 1), (1, 3), (3, 4)]
    assert origins("a\u0327\u0301", normalize) == [(0, 3)] * len(unicodedata.normalize("NFC", "a\u0327\u0301"))
    assert origins("so\u00adft", normalize) == [(0, 1), (1, 2), (3, 4), (4, 5)]
    assert origins("a \t b", one_line) == [(0, 1), (1, 4), (4, 5)]


def test_of_a_rewriting_that_is_not_local_nothing_is_claimed():
    assert origins("abc", lambda text: text.upper() if len(text) > 2 else text) == [(0, 0)] * 3


@settings(deadline=None)
@given(text=some_texts)
def test_tokens_cover_a_source_from_left_to_right_but_for_its_white_space(tokenizer, text):
    whole, found = normalize(text), tokenizer.source_spans(text)
    assert len(found) == len(tokenizer.encode(text)) - 1
    starts = [start for start, _ in found]
    assert starts == sorted(starts)
    covered = {place for start, end in found for place in range(start, end)}
    left = "".join(whole[place] for place in range(len(whole)) if place not in covered)
    # The tests' vocabulary, unlike the house's, has a spelling of its own for some characters.
    assert not left.replace("\u2581", "").replace("…", "").strip()


@settings(deadline=None)
@given(text=some_texts)
def test_the_tokens_of_a_translation_stand_where_they_are_spelt(tokenizer, text):
    ids = tokenizer.encode(text)
    decoded, found = tokenizer.decode(ids), tokenizer.target_spans(ids)
    assert len(found) == len(ids)
    for name, (start, end) in zip(tokenizer.pieces(ids), found, strict=True):
        if not name.startswith("<"):
            assert decoded[start:end] == name.lstrip("\u2581").replace("\u2581", " ")
    covered = {place for start, end in found for place in range(start, end)}
    assert not "".join(decoded[place] for place in range(len(decoded)) if place not in covered).strip()


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 300), max_size=20))
def test_any_ids_have_a_place_in_what_they_spell(tokenizer, ids):
    decoded, found = tokenizer.decode(ids), tokenizer.target_spans(ids)
    assert len(found) == len(ids)
    assert all(0 <= start <= end <= len(decoded) for start, end in found)
    assert [start for start, _ in found] == sorted(start for start, _ in found)


def test_each_byte_of_a_character_has_the_character_and_a_lost_byte_its_sign():
    assert spans("日本", [b"\xe6", b"\x97", b"\xa5", b"\xe6", b"\x9c", b"\xac"]) == [(0, 1)] * 3 + [(1, 2)] * 3
    assert spans("\ufffd ok", [b"\xe6", "\u2581ok"]) == [(0, 1), (2, 4)]
    assert spans("a b", ["\u2581a", "\u2581", "b"]) == [(0, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(
    "unit", ["\u200b", "\ufeff ", "\u00ad\t", "a\u200b", "\u0301", "\u0301\u200b", "\u200ba\u0301"]
)
@pytest.mark.parametrize("rewrite", [normalize, key])
def test_a_long_run_of_what_vanishes_costs_no_more_than_its_length(unit, rewrite):
    """Someone may send thousands of invisible characters; a text that costs their square blocks all others."""

    def cost(times: int) -> int:
        read = 0

        def counted(text: str) -> str:
            nonlocal read
            read += len(text)
            return rewrite(text)

        origins("x" + unit * times + "y", counted)
        return read

    assert cost(2000) < 3 * cost(1000)

"""What counts as a word of an alignment."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.words import words


def shown(text: str, spaced: bool = True) -> list[str]:
    return [text[start:end] for start, end in words(text, spaced)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("  Hello,  world! ", ["Hello", ",", "world", "!"]),
        ("don't say “Wi-Fi”…", ["don't", "say", "“", "Wi-Fi", "”", "…"]),
        ("1,000.5 km at 10:30.", ["1,000.5", "km", "at", "10:30", "."]),
        ("end- of -it a--b 'x'", ["end", "-", "of", "-", "it", "a", "-", "-", "b", "'", "x", "'"]),
        ("e\u0301te\u0301 n\u0303", ["e\u0301te\u0301", "n\u0303"]),
        ("Zusam\u00admen\u200bhang", ["Zusam\u00admen\u200bhang"]),
        ("क्षेत्र में", ["क्षेत्र", "में"]),
        ("snake_case x2", ["snake_case", "x2"]),
    ],
)
def test_words_are_runs_of_letters_and_signs_stand_alone(text, found):
    assert shown(text) == found


def test_where_nothing_is_spaced_each_character_is_a_word():
    assert shown("北京は。", spaced=False) == ["北", "京", "は", "。"]
    assert shown("กำ", spaced=False) == ["ก", "ำ"]


@given(text=st.text(max_size=30), spaced=st.booleans())
def test_words_cover_all_but_white_space_once_and_in_order(text, spaced):
    found = words(text, spaced)
    assert all(start < end for start, end in found)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(found))
    covered = {place for start, end in found for place in range(start, end)}
    assert covered >= {place for place, character in enumerate(text) if not character.isspace()}
    assert not any(character.isspace() for start, end in found for character in text[start:end])

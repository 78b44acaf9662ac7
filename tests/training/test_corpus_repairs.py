"""Repairs take out what is no language, from both sides, and leave the rest alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.corpus.pair import Pair
from training.corpus.repairs import (
    drop_accelerators,
    drop_context,
    drop_control_characters,
    join_lines,
    normalise,
    repair,
)


def both(pair: Pair) -> tuple[str, str]:
    return pair.source, pair.target


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("_File", "_Datei", ("File", "Datei")),
        ("E&xit", "B&eenden", ("Exit", "Beenden")),
        ("~Edit", "~Bearbeiten", ("Edit", "Bearbeiten")),
        ("C_aption:", "_Beschriftung:", ("Caption:", "Beschriftung:")),
        ("&Font", "Schrift(&F)", ("Font", "Schrift")),
        ("ARP _targets", "ARP-_Ziele", ("ARP targets", "ARP-Ziele")),
        ("_Open", "Öffnen", ("Open", "Öffnen")),
        ("Open", "Ö_ffnen", ("Open", "Öffnen")),
        # What looks like a mark and is none.
        ("Set max_length", "max_length setzen", ("Set max_length", "max_length setzen")),
        ("Unset LC_ALL", "LC_ALL löschen", ("Unset LC_ALL", "LC_ALL löschen")),
        ("Tom &amp; Mary", "Tom &amp; Mary", ("Tom &amp; Mary", "Tom &amp; Mary")),
        ("Cut & paste", "Ausschneiden & einfügen", ("Cut & paste", "Ausschneiden & einfügen")),
        ("_a_ or _b_", "_a_ oder _b_", ("_a_ or _b_", "_a_ oder _b_")),
        ("Read ~/.bashrc", "~/.bashrc lesen", ("Read ~/.bashrc", "~/.bashrc lesen")),
        # One side is clear, the other is not: both stay, so that they still match.
        ("_Open", "_Ö_ffnen", ("_Open", "_Ö_ffnen")),
    ],
)
def test_an_accelerator_goes_and_a_name_stays(source: str, target: str, expected: tuple[str, str]) -> None:
    assert both(drop_accelerators(Pair(source, target))) == expected


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("menu\x04Open", "Öffnen", ("Open", "Öffnen")),
        ("Stock label|Open", "Öffnen", ("Open", "Öffnen")),
        ("yes|no", "ja|nein", ("yes|no", "ja|nein")),
        ("a | b", "a oder b", ("a | b", "a oder b")),
    ],
)
def test_a_context_before_the_message_goes(source: str, target: str, expected: tuple[str, str]) -> None:
    assert both(drop_context(Pair(source, target))) == expected


def test_control_and_direction_characters_go_and_white_space_stays() -> None:
    assert both(drop_control_characters(Pair("a\x07b\tc\n", "\u202aeins\u202c\ue000"))) == ("ab\tc\n", "eins")


def test_both_sides_are_normalised_as_the_tokenizer_does() -> None:
    assert both(normalise(Pair("Cafe\u0301", "Zu\u0308\u00adrich"))) == ("Café", "Zürich")


def test_lines_become_one_whatever_ends_them() -> None:
    assert both(join_lines(Pair(" a\r\n  b\u2028c\u00a0d ", "\teins\n"))) == ("a b c d", "eins")


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_repaired_text_is_one_line_and_normalised(source: str, target: str) -> None:
    for text in both(repair(Pair(source, target))):
        assert text == " ".join(text.split())
        assert len(text.splitlines()) <= 1


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1), st.sampled_from("_&~"))
def test_a_mark_before_any_word_is_found(word: str, mark: str) -> None:
    assert both(drop_accelerators(Pair(mark + word, mark + word))) == (word, word)

"""Texts are cut where both sides agree, and nothing is lost by it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.corpus.pair import Pair
from training.corpus.segments import split_paragraphs, split_sentences


def cut(pair: Pair) -> list[tuple[str, str]]:
    return [(piece.source, piece.target) for piece in split_sentences(pair)]


def test_equally_many_sentences_become_pairs() -> None:
    pair = Pair("The file is open. Close it first!", "Die Datei ist offen. Schließen Sie sie zuerst!")
    assert cut(pair) == [
        ("The file is open.", "Die Datei ist offen."),
        ("Close it first!", "Schließen Sie sie zuerst!"),
    ]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("One. Two.", "Eins, zwei."),
        ("Use e.g. This one here.", "Nehmen Sie z. B. Diesen hier."),
        ("It is 5. So it is a lot of text.", "Viel Text ist es, nämlich ja. Es ist 5."),
        ("Short. And this one is very much longer than that.", "Und dies hier ist sehr viel länger. Kurz."),
        ("Ask why. Then go on.", "Fragen Sie. Weiter geht es mit:"),
    ],
)
def test_sides_that_do_not_match_stay_whole(source: str, target: str) -> None:
    assert cut(Pair(source, target)) == [(source, target)]


def test_an_abbreviation_ends_no_sentence() -> None:
    pair = Pair("Dr. Who is here. Mr. Bean left.", "Dr. Who ist da. Mr. Bean ging.")
    assert [source for source, _ in cut(pair)] == ["Dr. Who is here.", "Mr. Bean left."]


def test_paragraphs_are_cut_at_blank_lines_if_both_sides_have_equally_many() -> None:
    pieces = list(split_paragraphs(Pair("One\nmore\n\nTwo\n", "Eins\n \nZwei")))
    assert [(piece.source, piece.target) for piece in pieces] == [("One\nmore", "Eins"), ("Two", "Zwei")]
    uneven = Pair("One\n\nTwo", "Eins und zwei")
    assert list(split_paragraphs(uneven)) == [uneven]


WORDS = st.lists(st.sampled_from(["Open.", "Close!", "the", "File", "Why?", "e.g.", "12"]), min_size=1, max_size=12)


@given(WORDS, WORDS)
def test_the_pieces_joined_are_the_text(source: list[str], target: list[str]) -> None:
    pair = Pair(" ".join(source), " ".join(target))
    pieces = list(split_sentences(pair))
    assert " ".join(piece.source for piece in pieces) == pair.source
    assert " ".join(piece.target for piece in pieces) == pair.target

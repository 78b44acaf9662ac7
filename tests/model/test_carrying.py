"""A sentence and what it carries: read with sentinels or without, and cut at its spans where a translation lost one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.carrying import Carrier, Sentence, is_language
from tests.service.text.letters import Letters

PLAIN, SENTINEL = Carrier(Letters()), Carrier(Letters(sentinels=True))
BOTH = pytest.mark.parametrize("carrier", [PLAIN, SENTINEL], ids=["plain", "sentinels"])
TEXTS = st.text(st.sampled_from("ab3. ,%s<>/`*🙈(\n")) | st.text(st.characters(exclude_categories=["Cs"]))


def sentence(carrier: Carrier, text: str) -> Sentence:
    return carrier.sentence(carrier.protector.protect(text))


def parts(text: str, carrier: Carrier = PLAIN) -> list[str | Sentence]:
    return list(carrier.fragments(sentence(carrier, text)))


def text_of(part: str | Sentence) -> str:
    return part if isinstance(part, str) else part.source


@BOTH
def test_what_a_network_copies_comes_back_as_it_was(carrier: Carrier) -> None:
    text = 'Hi  %1$s, <b class="a  b">look</b> at `x  =  1`.'
    one = sentence(carrier, text)
    written = carrier.decode(carrier.encode(one)[:-1], one)
    restored = carrier.restored(written, one)
    if carrier is SENTINEL:
        assert carrier.carries(written, one)
        assert restored == text.replace("Hi  ", "Hi ")
    else:
        assert not carrier.carries(written, one), "the spaces inside of code are lost on the way"
        assert restored == " ".join(text.split())


@BOTH
@pytest.mark.parametrize("written", ["Es kostet.", "40 oder 40 oder 50", "Es kostet 40"])
def test_a_translation_that_lost_or_doubled_something_does_not_carry(carrier: Carrier, written: str) -> None:
    one = sentence(carrier, "It costs 40 or 50.")
    said = carrier.protector.protect(written).text if carrier is SENTINEL else written
    assert not carrier.carries(said, one)


@BOTH
def test_a_translation_may_move_what_it_carries(carrier: Carrier) -> None:
    one = sentence(carrier, "It costs 40 in A4.")
    said = one.text if carrier is SENTINEL else "In A4 kostet es 40."
    assert carrier.carries("".join(reversed(said)) if carrier is SENTINEL else said, one)


def test_fragments_are_what_stands_between_the_spans_without_its_edges() -> None:
    assert parts("Hi %s, you have <b>2 files</b>. Ok?") == [
        Sentence("Hi", fragment=True, beginning=True), " ", "%s", ", ",
        Sentence("you have", fragment=True), " ", "<b>2", " ",
        Sentence("files", fragment=True), "</b>", ". ", Sentence("Ok", fragment=True), "?",
    ]  # fmt: skip


def test_letters_that_cling_to_a_number_stay_with_it_and_those_in_markup_do_not() -> None:
    assert parts("20th May") == ["20", "th ", Sentence("May", fragment=True, beginning=True)]
    assert parts("<b>Go</b>") == ["<b>", Sentence("Go", fragment=True, beginning=True), "</b>"]


def test_a_foreign_word_is_spelt_alike_however_it_was_typed() -> None:
    class Ascii(Letters):
        def __init__(self) -> None:
            super().__init__(sentinels=True)
            self.characters = frozenset(map(chr, range(32, 127)))

    carrier = Carrier(Ascii())
    one, other = sentence(carrier, "Cafe\u0301 na\u00adi\u0308ve"), sentence(carrier, "Caf\u00e9 na\u00efve")
    assert one == other
    assert sentence(carrier, "http://a.org/e\u0301").spans == ("http://a.org/e\u0301",)


@given(TEXTS, st.sampled_from([PLAIN, SENTINEL]))
def test_fragments_joined_are_the_sentence(text: str, carrier: Carrier) -> None:
    one = sentence(carrier, text)
    assert "".join(map(text_of, carrier.fragments(one))) == one.source


@given(TEXTS)
def test_fragments_hold_letters_and_nothing_that_is_carried(text: str) -> None:
    for part in PLAIN.fragments(sentence(PLAIN, text)):
        if isinstance(part, Sentence):
            assert is_language(part.text)
            assert part.spans == ()


def test_a_full_stop_that_a_fragment_did_not_have_is_not_its_translation_s() -> None:
    fragment = Sentence("It costs", fragment=True)
    assert PLAIN.decode(Letters().encode("Es kostet.")[:-1], fragment) == "Es kostet"


def test_spans_alone_are_no_language() -> None:
    assert not is_language(sentence(SENTINEL, "A4, <b>%s</b> – 3.5!").text)
    assert is_language(sentence(SENTINEL, "A4 or %s").text)

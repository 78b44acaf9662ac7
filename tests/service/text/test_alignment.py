"""From attention to words of the texts that a caller knows: over segments, lines, white space and accents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.options import Hypothesis
from model.protection import Protector
from model.tokenizer import Tokenizer, normalize
from service.jobs import SegmentResult
from service.text.alignment import Part, Tokens
from service.text.alignment import align as align_parts
from service.text.pipeline import Pipeline
from tests.model.networks import TEXTS, train_tokenizer
from tests.service.text.letters import Letters


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer(train_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def looking(*places: int, size: int) -> tuple[tuple[float, ...], ...]:
    """Attention of one token a place, which mostly goes there."""
    return tuple(tuple(0.9 if place == here else 0.1 / size for here in range(size)) for place in places)


def copied(source: tuple[int, ...]) -> SegmentResult:
    """A segment said again, each token looking at itself."""
    ids = source[:-1]
    best = Hypothesis(ids, -1.0, -1.0, False, attention=looking(*range(len(ids)), size=len(source)))
    return SegmentResult(ids, -1.0, False, hypotheses=(best,))


def shown(text: str, made: str, found) -> list[tuple[str, str]]:
    return [(text[a:b], made[c:d]) for a, b, c, d in found]


def align(pipeline: Pipeline, text: str) -> tuple[str, list]:
    prepared = pipeline.prepare([text])
    results = [copied(segment) for segment in prepared.segments]
    (restored,) = pipeline.restore(prepared, results)
    return restored.text, pipeline.alignment(prepared, results, 0)


@pytest.mark.parametrize(
    "text", ["One two. Three!", "  a\u00a0 b.\r\n\r\n- [x] Go on.\tNow?\n12345 😀\n", TEXTS[4], TEXTS[11]]
)
def test_a_copy_is_aligned_word_for_word(tokenizer, text):
    made, found = align(Pipeline(tokenizer, 30, "en", "de"), text)
    pairs = shown(text, made, found)
    assert [word for word, _ in pairs] == [word for _, word in pairs]
    assert "".join(word for word, _ in pairs) == "".join(text.split())


def test_accents_and_invisible_marks_of_the_source_are_part_of_its_words(tokenizer):
    text = "Cafe\u0301  au\u00ad\u200blait\tEnde."
    made, found = align(Pipeline(tokenizer, 30, "fr", "de"), text)
    assert made == "Café aulait\tEnde."
    assert shown(text, made, found) == [
        ("Cafe\u0301", "Café"),
        ("au\u00ad\u200blait", "aulait"),
        ("Ende", "Ende"),
        (".", "."),
    ]


@settings(deadline=None, max_examples=60)
@given(text=st.text(st.sampled_from("ab e\u0301 \u00ad.\n\t!?1😀日, "), max_size=40))
def test_whatever_the_text_links_stay_inside_it_and_join_what_is_the_same(text):
    tokenizer = Letters()
    made, found = align(Pipeline(tokenizer, 12, "en", "de"), normalize(text))
    for start, end, there, until in found:
        assert normalize(text)[start:end] == made[there:until]


def linked(text: str, made: str, source, target, *places: int) -> list[tuple[str, str]]:
    tokens = Tokens(source, target, looking(*places, size=len(source) + 1))
    return shown(text, made, align_parts(text, [Part(text, made, tokens)], Protector(), (True, True)))


def test_several_words_may_become_one_and_one_several():
    """A compound is linked with both of its words, token by token."""
    both = ("address bar", "Adressleiste")
    assert linked(*both, [(0, 7), (7, 10)], [(0, 6), (6, 12)], 0, 1) == [
        ("address", "Adressleiste"),
        ("bar", "Adressleiste"),
    ]
    assert linked(*both[::-1], [(0, 6), (6, 12)], [(0, 7), (8, 11)], 0, 1) == [
        ("Adressleiste", "address"),
        ("Adressleiste", "bar"),
    ]


def test_what_looks_at_the_end_of_the_source_is_linked_with_nothing():
    assert linked("a b", "x y", [(0, 1), (1, 2)], [(0, 1), (2, 3)], 2, 1) == [("b", "y")]


def test_links_come_in_the_order_of_the_translation():
    assert linked("a b", "x y", [(0, 1), (1, 2)], [(0, 1), (2, 3)], 1, 0) == [("b", "x"), ("a", "y")]


def test_what_is_carried_is_one_word_whatever_stands_for_it():
    text = "See  https://x.org/a-b?c=d or <b class='x y'>me</b>\u00a0now."
    made, found = align(Pipeline(Letters(sentinels=True), 60, "en", "de"), text)
    assert made == "See https://x.org/a-b?c=d or <b class='x y'>me</b> now."
    pairs = shown(text, made, found)
    assert [word for word, _ in pairs] == [word for _, word in pairs]
    assert ("https://x.org/a-b?c=d",) * 2 in pairs
    assert ("<b class='x y'>",) * 2 in pairs


def test_a_sentence_in_fragments_is_aligned_all_the_same():
    text = "Go on.\tAnd to  https://x.org/a-b  and then stop."
    pipeline = Pipeline(Letters(sentinels=True), 60, "en", "de")
    prepared = pipeline.prepare([text])
    lost = SegmentResult((75,), -1.0, False, hypotheses=(Hypothesis((75,), -1.0, -1.0, False),))
    first = [
        lost if sentence.spans else copied(segment)
        for sentence, segment in zip(prepared.sentences, prepared.segments, strict=True)
    ]
    again = pipeline.again(prepared, first)
    assert again is not None
    results = [*first, *map(copied, again.segments[len(first) :])]
    (restored,) = pipeline.restore(again, results)
    pairs = shown(text, restored.text, pipeline.alignment(again, results, 0))
    assert restored.fragmented
    assert [word for word, _ in pairs] == [word for _, word in pairs]
    assert "".join(word for word, _ in pairs) == "".join(text.split())


def test_equal_sentences_are_aligned_where_each_of_them_stands():
    text = "Go on. Go on."
    made, found = align(Pipeline(Letters(), 30, "en", "de"), text)
    assert found == [(0, 2, 0, 2), (3, 5, 3, 5), (5, 6, 5, 6), (7, 9, 7, 9), (10, 12, 10, 12), (12, 13, 12, 13)]
    assert made == text


def test_a_translation_of_nothing_has_its_source_in_its_place_linked_with_itself():
    pipeline = Pipeline(Letters(), 30, "en", "de")
    prepared = pipeline.prepare(["One."])
    nothing = SegmentResult((), 0.0, False, hypotheses=(Hypothesis((), -1.0, -1.0, False),))
    assert pipeline.alignment(prepared, [nothing], 0) == [(0, 3, 0, 3), (3, 4, 3, 4)]


def test_each_alternative_has_its_own_alignment():
    pipeline = Pipeline(Letters(), 30, "en", "de")
    prepared = pipeline.prepare(["a b"])
    size = len(prepared.segments[0])
    hypotheses = tuple(
        Hypothesis(tuple(Letters().encode(text)[:-1]), -1.0, -1.0, False, attention=looking(*places, size=size))
        for text, places in (("x y", (0, 1, 2)), ("y x", (2, 1, 0)))
    )
    result = SegmentResult(hypotheses[0].ids, -1.0, False, hypotheses=hypotheses)
    assert pipeline.alignment(prepared, [result], 0, 0) == [(0, 1, 0, 1), (2, 3, 2, 3)]
    assert pipeline.alignment(prepared, [result], 0, 1) == [(2, 3, 0, 1), (0, 1, 2, 3)]


def test_damage_that_is_mended_in_a_translation_does_not_move_its_words():
    pipeline = Pipeline(Letters(), 30, "en", "de")
    prepared = pipeline.prepare(["ab cd"])
    ids = tuple(Letters().encode("\n\x01ab\ufffd\ufffd \n cd")[:-1])
    places = (5, 5, 0, 1, 5, 5, 5, 5, 5, 3, 4)
    best = Hypothesis(ids, -1.0, -1.0, False, attention=looking(*places, size=6))
    result = SegmentResult(ids, -1.0, False, hypotheses=(best,))
    (restored,) = pipeline.restore(prepared, [result])
    found = pipeline.alignment(prepared, [result], 0)
    assert shown("ab cd", restored.text, found) == [("ab", "ab"), ("cd", "cd")]

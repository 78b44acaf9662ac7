"""From attention to words of the texts that a caller knows: over segments, lines, white space and accents."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.options import Hypothesis
from model.tokenizer import Tokenizer, normalize
from service.jobs import SegmentResult
from service.text.alignment import Side, links
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


def test_several_words_may_become_one_and_one_several():
    """`address bar` became `Adressleiste`: a compound is linked with both, token by token."""
    source = Side([(0, 7), (8, 11)], [{0}, {1}])
    target = Side([(0, 12)], [{0}, {0}])
    assert links(source, target, looking(0, 1, size=3)) == [(0, 7, 0, 12), (8, 11, 0, 12)]
    assert links(target, source, looking(0, 1, size=3)) == [(0, 12, 0, 7), (0, 12, 8, 11)]


def test_what_looks_at_the_end_of_the_source_is_linked_with_nothing():
    side = Side([(0, 1), (2, 3)], [{0}, {1}])
    assert links(side, side, looking(2, 1, size=3)) == [(2, 3, 2, 3)]


def test_links_come_in_the_order_of_the_translation():
    side = Side([(0, 1), (2, 3)], [{0}, {1}])
    assert links(side, side, looking(1, 0, size=3)) == [(2, 3, 0, 1), (0, 1, 2, 3)]


def test_equal_sentences_are_aligned_where_each_of_them_stands():
    text = "Go on. Go on."
    made, found = align(Pipeline(Letters(), 30, "en", "de"), text)
    assert found == [(0, 2, 0, 2), (3, 5, 3, 5), (5, 6, 5, 6), (7, 9, 7, 9), (10, 12, 10, 12), (12, 13, 12, 13)]
    assert made == text


def test_a_translation_of_nothing_has_its_source_in_its_place_and_no_links():
    pipeline = Pipeline(Letters(), 30, "en", "de")
    prepared = pipeline.prepare(["One."])
    nothing = SegmentResult((), 0.0, False, hypotheses=(Hypothesis((), -1.0, -1.0, False),))
    assert pipeline.alignment(prepared, [nothing], 0) == []


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

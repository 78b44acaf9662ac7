"""Alternatives and token scores of texts, put together from those of their segments."""

from __future__ import annotations

import pytest

from model.decode.options import Hypothesis
from service.jobs import SegmentResult
from service.text.pipeline import Pipeline
from tests.service.text.letters import Letters


def result(*texts: str, truncated: bool = False) -> SegmentResult:
    """Hypotheses with log-probabilities -1, -2, … and half of that as scores."""
    hypotheses = tuple(
        Hypothesis(
            tuple(Letters().encode(text)[:-1]),
            -1.0 - rank,
            -0.5 * (1 + rank),
            truncated,
            (-0.125,) * (len(text) + (not truncated)),
        )
        for rank, text in enumerate(texts)
    )
    best = hypotheses[0]
    return SegmentResult(best.ids, best.score, best.truncated, hypotheses=hypotheses)


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline(Letters(), 30, "en", "de")


def test_alternatives_of_one_sentence_are_its_hypotheses_with_what_is_kept_round_them(pipeline):
    prepared = pipeline.prepare(["  One.\n"])
    found = pipeline.variants(prepared, [result("Eins.", "Ein.", "Einer.")], 0, 2)
    assert [(one.text, one.score, one.log_prob) for one in found] == [
        ("  Eins.\n", -0.5, -1.0),
        ("  Ein.\n", -1.0, -2.0),
    ]


def test_the_ith_alternative_of_a_text_is_made_of_the_ith_of_each_sentence(pipeline):
    prepared = pipeline.prepare(["One. Two."])
    found = pipeline.variants(prepared, [result("Eins.", "Ein."), result("Zwei.", "Zwo.", "2.")], 0, 9)
    assert [one.text for one in found] == ["Eins. Zwei.", "Ein. Zwo.", "Ein. 2."]
    assert [one.score for one in found] == [-1.0, -2.0, -2.5]


def test_the_first_alternative_is_the_translation(pipeline):
    prepared = pipeline.prepare(["One. One. Two."])
    results = [result("Eins.", "Ein."), result("", "Zwo.")]
    first, second = pipeline.variants(prepared, results, 0, 2)
    assert first.text == pipeline.restore(prepared, results)[0].text == "Eins. Eins. Two."
    assert first.log_prob == -3.0, "a sentence that comes twice counts twice"
    assert second.text == "Ein. Ein. Zwo."


def test_hypotheses_that_spell_the_same_are_one_alternative(pipeline):
    prepared = pipeline.prepare(["One."])
    found = pipeline.variants(prepared, [result("Eins.", "Eins. ", "Ein.")], 0, 3)
    assert [(one.text, one.score) for one in found] == [("Eins.", -0.5), ("Ein.", -1.5)]


def test_a_text_without_language_has_one_alternative_itself(pipeline):
    prepared = pipeline.prepare([" → "])
    (only,) = pipeline.variants(prepared, [], 0, 5)
    assert (only.text, only.score) == (" → ", 0.0)
    assert pipeline.tokens(prepared, [], 0) == []


def test_tokens_are_those_of_all_sentences_each_with_its_end_unless_it_was_cut(pipeline):
    prepared = pipeline.prepare(["One. Two."])
    found = pipeline.tokens(prepared, [result("Ja", "Jo"), result("No", truncated=True)], 0)
    assert [token for token, _ in found] == ["J", "a", "</s>", "N", "o"]
    assert all(log_prob == -0.125 for _, log_prob in found)


def test_a_text_says_that_one_of_its_sentences_went_round_in_circles(pipeline):
    prepared = pipeline.prepare(["One. Two.", "Three."])
    results = [SegmentResult(r.ids, 0.0, False, guarded=i == 1) for i, r in enumerate(map(result, "ABC"))]
    assert [one.guarded for one in pipeline.restore(prepared, results)] == [True, False]


def test_the_words_of_a_prefix_become_ids_without_an_end(pipeline):
    assert pipeline.target_ids("  Guten \n Tag ") == tuple(Letters().encode("Guten Tag")[:-1])

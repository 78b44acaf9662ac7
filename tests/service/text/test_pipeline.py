from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import TextTooLong
from service.jobs import SegmentResult
from service.text.pipeline import Pipeline, Prepared
from tests.service.text.letters import Letters


def echo(prepared: Prepared) -> list[SegmentResult]:
    """A model that gives back what it reads."""
    return [SegmentResult(ids[:-1], 0.0, False) for ids in prepared.segments]


def upper(prepared: Prepared) -> list[SegmentResult]:
    tokens = Letters()
    return [
        SegmentResult(tuple(tokens.encode(tokens.decode(ids[:-1]).upper())[:-1]), 0.0, False)
        for ids in prepared.segments
    ]


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline(Letters(), 30, "en", "de")


def translated(pipeline: Pipeline, *texts: str) -> list[str]:
    prepared = pipeline.prepare(texts)
    return [restored.text for restored in pipeline.restore(prepared, upper(prepared))]


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from("ab. ,\n\t🙈-1。"), max_size=200),
        max_size=4,
    )
)
def test_a_model_that_changes_nothing_gives_the_text_back_up_to_inner_runs_of_space(texts):
    pipeline = Pipeline(Letters(), 30, "en", "zh")
    prepared = pipeline.prepare(texts)
    back = [restored.text for restored in pipeline.restore(prepared, echo(prepared))]
    assert [text.split() for text in back] == [text.split() for text in texts]
    assert all(len(ids) <= 30 for ids in prepared.segments)


def test_lines_and_outer_white_space_come_back_and_inner_runs_become_one_space(pipeline):
    assert translated(pipeline, "\n  One  fish.   Two.\r\n\r\nthree,\tfour  ") == [
        "\n  ONE FISH.   TWO.\r\n\r\nTHREE,\tFOUR  "
    ]


def test_what_is_no_language_never_reaches_the_model(pipeline):
    texts = [" ", "-", "…", "\t", "\n", "?", "12345", ""]
    prepared = pipeline.prepare(texts)
    assert prepared.segments == ()
    assert [r.text for r in pipeline.restore(prepared, [])] == texts


def test_text_on_both_sides_of_a_nul_survives(pipeline):
    assert translated(pipeline, "Alpha\0Beta \7gamma\v delta") == ["ALPHA\0BETA \7GAMMA\v DELTA"]


def test_equal_segments_are_sent_once_and_counted_each_time(pipeline):
    prepared = pipeline.prepare(["Yes. No. Yes.", "Yes."])
    assert len(prepared.segments) == 2
    assert prepared.source_tokens == 5 + 4 + 5 + 5
    restored = pipeline.restore(prepared, upper(prepared))
    assert [r.text for r in restored] == ["YES. NO. YES.", "YES."]
    assert [r.target_tokens for r in restored] == [4 + 3 + 4, 4]


def test_a_long_sentence_is_sent_in_parts_and_nothing_of_it_is_lost(pipeline):
    text = "A holder with a base, a ring, a spring and a pin, wherein the label bears the code 9917."
    prepared = pipeline.prepare([text])
    assert len(prepared.segments) > 1
    assert pipeline.restore(prepared, upper(prepared))[0].text == text.upper()


def test_a_refused_segment_refuses_its_own_text_only(pipeline):
    prepared = pipeline.prepare(["One. Two.", "Three."])
    results = [*upper(prepared)]
    results[1] = SegmentResult((), 0.0, False, refusal="text_too_long")
    spoilt, fine = pipeline.restore(prepared, results)
    assert isinstance(spoilt.refusal, TextTooLong)
    assert spoilt.text == ""
    assert (fine.refusal, fine.text) == (None, "THREE.")


def test_a_text_says_that_one_of_its_segments_was_cut(pipeline):
    prepared = pipeline.prepare(["One. Two.", "Three."])
    results = [SegmentResult(r.ids, 0.0, truncated=i == 1) for i, r in enumerate(upper(prepared))]
    assert [r.truncated for r in pipeline.restore(prepared, results)] == [True, False]


@pytest.mark.parametrize(("target", "joint"), [("en", " "), ("de-AT", " "), ("ja", ""), ("zh-Hant", "")])
def test_chinese_sentences_are_joined_as_the_target_wants_it(target, joint):
    pipeline = Pipeline(Letters(), 30, "zh", target)
    assert translated(pipeline, "今天下雨了。我们走！123。\n好") == [f"今天下雨了。{joint}我们走！123。\n好"]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (" Ja.\n", "Ja."),
        ("A\r\nB\0C\u2028D\x85E", "A B C D E"),
        ("\ufffd\ufffd\ufffd x", "\ufffd x"),
        ("", "One."),
        ("\n", "One."),
    ],
)
def test_a_model_cannot_change_the_lines_of_a_text_or_drop_a_sentence(pipeline, output, expected):
    prepared = pipeline.prepare(["One.\n"])
    ids = tuple(Letters().encode(output)[:-1])
    assert pipeline.restore(prepared, [SegmentResult(ids, 0.0, False)])[0].text == expected + "\n"


@given(
    st.lists(st.text(st.sampled_from("ab. !-\t\n\r\v\x85\u2028\u00a0🙈1"), max_size=60), max_size=3),
    st.lists(st.text(st.sampled_from("xy \n\r\t\0\u2028\ufffd"), max_size=8), min_size=1, max_size=4),
)
def test_no_model_whatever_it_says_moves_a_line_or_its_white_space(texts, sayings):
    pipeline = Pipeline(Letters(), 30, "en", "de")
    prepared = pipeline.prepare(texts)
    said = [tuple(Letters().encode(sayings[i % len(sayings)])[:-1]) for i in range(len(prepared.segments))]
    results = pipeline.restore(prepared, [SegmentResult(ids, 0.0, False) for ids in said])
    for text, result in zip(texts, results, strict=True):
        before, after = text.splitlines(keepends=True), result.text.splitlines(keepends=True)
        assert len(before) == len(after)
        for old, new in zip(before, after, strict=True):
            core_before, core_after = old.strip(), new.strip()
            assert bool(core_before) == bool(core_after)
            if core_before:
                assert old.partition(core_before)[::2] == new.partition(core_after)[::2]
            else:
                assert old == new

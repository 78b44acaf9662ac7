"""What is no language inside sentences survives any model: one that carries it, and one that does not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.decode.options import Hypothesis
from model.tokenizer import SENTINELS
from service.jobs import SegmentResult
from service.text.pipeline import Pipeline, Prepared, Restored
from service.text.segments import split
from tests.service.text.letters import Letters

CASES = (
    "See https://example.org/a_b/c-1?x=1&y=%20z#part-2 or write to info@example.org.",
    'Hi %1$s, you have %d new files in <b class="n">%2$s</b>.',
    "Remove the selected %(model)s? %(n)d rows (100%%) will be gone.",
    '<b>Sea</b><i>food</i> <a id="x">tonight</a>.',
    "Turn on '<x id=\"1\">Quiet mode</x>' in the '<x id=\"2\">Sound</x>' tab.",
    "Zn2+ rose to 5 mM while the link ran at 20 Mbps, not 20 MBps.",
    "VAT no. XX0777700011, order 2000000420, ref. 10-00-111.",
    "$318.40 USD | €318.40 EUR",
    "It&#39;s R&amp;D &lt;beta&gt;",
    "Hello Maria. Tom, call me at 15:40.",
    "The bus was late again. 🙈 We still got there, 👩‍🔧 and 👍🏿 all of us, before lunch.",
    "## **Safety notice**\n\nSee [the guide](img/a1.png) and run `x  = 1`.\n\n- item",
    "2031-05-02\t08:15:00\tAda\tThe door is open :)\n",
    "Open <a title='First. Second' href='x.html'>this</a> file. Then v1.2.3 of it.",
    "Private \ue000 and \ue005 signs, and a\u2581b.",
)
BOTH = pytest.mark.parametrize("sentinels", [False, True], ids=["plain", "sentinels"])


def make(sentinels: bool, limit: int = 400) -> Pipeline:
    return Pipeline(Letters(sentinels), limit, "en", "de")


def say(text: str) -> SegmentResult:
    return SegmentResult(tuple(Letters().encode(text)[:-1]), 0.0, False)


def whole_way(pipeline: Pipeline, texts: list[str], model) -> list[Restored]:
    """As the service goes it: translate, look for what was lost, translate that in fragments, put together."""

    def translated(segments) -> list[SegmentResult]:
        return [say(model(Letters().decode(ids[:-1]))) for ids in segments]

    prepared = pipeline.prepare(texts)
    results = translated(prepared.segments)
    again = pipeline.again(prepared, results)
    if again is None:
        return pipeline.restore(prepared, results)
    assert again.segments[: len(prepared.segments)] == prepared.segments
    return pipeline.restore(again, [*results, *translated(again.segments[len(prepared.segments) :])])


def held(text: str) -> list[str]:
    protector = make(False)._carrier.protector
    return [text[span.start : span.end] for span in protector.spans(text)]


@BOTH
@pytest.mark.parametrize("text", CASES)
def test_a_model_that_keeps_nothing_loses_nothing(text: str, sentinels: bool) -> None:
    (found,) = whole_way(make(sentinels), [text], lambda _: "und")
    assert held(found.text) == held(text)
    assert "und" in found.text


@BOTH
@pytest.mark.parametrize("text", CASES)
def test_a_model_that_copies_gives_the_text_back(text: str, sentinels: bool) -> None:
    (found,) = whole_way(make(sentinels), [text], lambda written: written)
    assert found.text == text
    assert not (sentinels and found.fragmented)


@pytest.mark.parametrize("text", CASES)
def test_with_sentinels_a_model_sees_nothing_of_what_is_carried_and_may_move_it(text: str) -> None:
    pipeline, seen = make(sentinels=True), []

    def model(written: str) -> str:
        seen.append(written)
        words = [character for character in written if character in SENTINELS]
        return " ".join(["Wort", *reversed(words)])

    (found,) = whole_way(pipeline, [text], model)
    assert "Wort" in found.text
    assert not found.fragmented
    for span in held(text):
        if span.isalnum() and len(span) > 4:
            assert not any(span in written for written in seen)
            assert found.text.count(span) == text.count(span)


def test_a_text_of_nothing_but_spans_needs_no_model() -> None:
    for text in ("A4", "%s", "<b>%s</b>: 3.5", "https://example.org", "`code here`", "user@example.org, v1.2.3"):
        prepared = make(sentinels=True).prepare([text])
        assert prepared.segments == ()
        assert make(sentinels=True).restore(prepared, [])[0].text == text


@BOTH
@pytest.mark.parametrize("model", [str, lambda _: "x"], ids=["copies", "forgets"])
def test_more_spans_than_sentinels_are_carried_all(sentinels: bool, model) -> None:
    text = " and ".join(f"part {i}.{i}" for i in range(100)) + "."
    (found,) = whole_way(make(sentinels, 10_000), [text], model)
    assert held(found.text) == held(text)


@BOTH
def test_a_span_longer_than_a_segment_is_carried(sentinels: bool) -> None:
    url = "https://example.org/" + "a" * 300
    (found,) = whole_way(make(sentinels, 40), [f"See {url} for more of it."], lambda written: written)
    assert found.text == f"See {url} for more of it."


def test_a_sentence_is_cut_nowhere_inside_of_what_is_carried() -> None:
    text = "Open <a title='First. Second'>it</a>. Run `a. B` now. See x."
    spans = make(False)._carrier.protector.spans(text)
    sentences = [piece.text for piece in split(text, "en", spans) if piece.translate]
    assert sentences == ["Open <a title='First. Second'>it</a>.", "Run `a. B` now.", "See x."]


def test_a_tag_over_two_lines_is_one() -> None:
    text = "Open <a\n href='x.html'>it</a> now.\nGo."
    (found,) = whole_way(make(sentinels=True), [text], lambda written: written)
    assert found.text == text


def test_an_emoji_inside_a_sentence_does_not_cut_it() -> None:
    assert len(make(sentinels=True).prepare(["I 🙈 you, and 👍🏿 it."]).segments) == 1
    assert len(make(sentinels=True).prepare(["I see. 🙈 You too."]).segments) == 2


def test_a_text_says_that_it_was_translated_in_fragments() -> None:
    pipeline = make(sentinels=True)
    found = whole_way(pipeline, ["It costs 40.", "Nothing here.", "See A4. Fine."], lambda _: "Nein")
    assert [one.fragmented for one in found] == [True, False, True]
    assert [one.text for one in found] == ["Nein 40.", "Nein", "Nein A4. Nein"]


def test_a_refused_sentence_is_not_translated_again() -> None:
    pipeline = make(sentinels=True)
    prepared = pipeline.prepare(["It costs 40."])
    assert pipeline.again(prepared, [SegmentResult((), 0.0, False, refusal="engine_failed")]) is None


def test_alternatives_that_lost_something_are_left_out() -> None:
    pipeline = make(sentinels=True)
    prepared = pipeline.prepare(["It costs 40."])
    said = [f"Es kostet {SENTINELS[0]}.", "Es kostet.", f"{SENTINELS[0]} kostet es."]
    hypotheses = tuple(Hypothesis(say(text).ids, -1.0, -1.0, False) for text in said)
    result = SegmentResult(hypotheses[0].ids, -1.0, False, hypotheses=hypotheses)
    assert [one.text for one in pipeline.variants(prepared, [result], 0, 3)] == ["Es kostet 40.", "40 kostet es."]


def test_a_prefix_with_a_number_leaves_numbers_to_the_model() -> None:
    pipeline = make(sentinels=True)
    assert not any(c in SENTINELS for c in _read(pipeline.prepare(["It costs 40."], prefix="Die 40")))
    assert any(c in SENTINELS for c in _read(pipeline.prepare(["It costs 40."], prefix="Das")))


def _read(prepared: Prepared) -> str:
    return "".join(Letters().decode(ids[:-1]) for ids in prepared.segments)


SPANS = ("A4", "3.5", "%s", "<b>", "</b>", "🙈", "`x. Y`", "a@b.c")
WORDS = st.sampled_from(["word", "Wort", "and", "20th", ".", ",", *SPANS])


@given(st.lists(WORDS, max_size=60).map(" ".join), st.integers(0, 1000), st.booleans(), st.integers(25, 60))
def test_whatever_a_model_says_every_span_of_a_sentence_comes_out(
    text: str, seed: int, sentinels: bool, limit: int
) -> None:
    rng = random.Random(seed)

    def model(written: str) -> str:
        return rng.choice([written, "", "so", written[::-1], written[: len(written) // 2], SENTINELS[9]])

    (found,) = whole_way(make(sentinels, limit), [text], model)
    for span in SPANS:
        assert found.text.count(span) == text.count(span)

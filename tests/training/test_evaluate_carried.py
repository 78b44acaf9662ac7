"""What `evaluate` says of numbers, tags and the like, and that it translates as the service does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model.bundle import Bundle
from model.decode.options import DecodeOptions, SpecialIds
from model.decode.reference import ReferenceStepper
from model.protection import Protector
from service.jobs import SegmentResult
from service.text.pipeline import Pipeline
from tests.service.tiny_bundle import tiny_bundle
from training.evaluate import (
    TestSet,
    Translator,
    as_json,
    corpus_test_sets,
    evaluate,
    folder_test_sets,
    holds_exactly,
    table,
)


@pytest.mark.parametrize(
    ("source", "output", "expected"),
    [
        ("Nothing here.", "Nichts 5.", None),
        ("See A4 and 3.5.", "3.5 und A4.", True),
        ("See A4 and 3.5.", "3,5 und A4.", False),
        ("In the 20th.", "Im 20. davon.", True),
        ("Pay 20.", "Zahle 200.", False),
        ("Pay 20.", "Zahle 20 und 20.", False),
        ("<b>Go</b>", "<b>Geh</b>", True),
        ("<b>Go</b>", "<b> Geh", False),
    ],
)
def test_a_translation_holds_exactly_what_is_no_language(source: str, output: str, expected: bool | None) -> None:
    assert holds_exactly(source, output, Protector()) is expected


def stepper(word: int) -> ReferenceStepper:
    """A network that says one word and ends."""
    return ReferenceStepper(
        lambda _source, history: np.eye(384, dtype=np.float32)[2 if history else word] * 50 - 50, 384, 200, SpecialIds()
    )


def test_a_line_whose_numbers_are_lost_is_translated_in_fragments_and_counted() -> None:
    tokenizer = Bundle.open(tiny_bundle()).tokenizer()
    (word,) = tokenizer.encode("the")[:-1]
    translator = Translator(stepper(word), tokenizer, DecodeOptions(beam_size=1))
    lines = ["Seven boats left.", "Pay 3.5 or more.", "A4, 3.5!"]
    found = translator.translate(lines)
    assert found.texts == ("the", "the 3.5 the.", "A4, 3.5!")
    assert (found.fragmented, found.refused) == (1, 0)
    evaluation = evaluate(translator, TestSet("few", [(line, line) for line in lines]))
    assert (evaluation.carrying, evaluation.carried, evaluation.fragmented) == (2, 2, 1)
    assert "| 100.0 % of 2 |" in table([evaluation])
    assert as_json([evaluation])["few"]["carried"] == 2


def test_a_line_is_translated_as_the_service_translates_a_sentence() -> None:
    tokenizer = Bundle.open(tiny_bundle()).tokenizer()
    (word,) = tokenizer.encode("the")[:-1]
    pipeline = Pipeline(tokenizer, 100, "en", "de")
    for line in ("Pay 3.5 or more.", "<b>Go</b> to the 20th place, {name}", "Yes."):
        (ours,) = Translator(stepper(word), tokenizer, DecodeOptions(beam_size=1)).translate([line]).texts
        prepared = pipeline.prepare([line])
        said = SegmentResult((word,), 0.0, False)
        again = pipeline.again(prepared, [said]) or prepared
        (served,) = pipeline.restore(again, [said] * len(again.segments))
        assert ours == served.text


def test_a_test_set_is_scored_in_the_words_of_its_language_and_the_table_says_so(tmp_path: Path) -> None:
    for name in ("test.few.en", "test.few.zh"):
        (tmp_path / name).write_text("3.5!\n")
    tokenizer = Bundle.open(tiny_bundle()).tokenizer()
    translator = Translator(stepper(0), tokenizer, DecodeOptions(beam_size=1))
    for sets in (corpus_test_sets, folder_test_sets):
        (test_set,) = sets(tmp_path, ("en", "zh"))
        assert "|tok:zh|" in table([evaluate(translator, test_set)])

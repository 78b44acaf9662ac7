"""Distillation: what the teacher says is kept or left out for a reason, and an interruption costs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model.decode.options import SpecialIds
from model.decode.reference import ReferenceStepper
from model.tokenizer import Tokenizer
from tests.model.networks import train_tokenizer
from tests.service.tiny_bundle import copying_bundle, tiny_bundle
from training import distil as distilling
from training.cli import main
from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.corpus.recipe import load_recipe
from training.distil import Job, distil
from training.recipe import RecipeError
from training.subwords import with_sentinels
from training.teacher import DistilRecipe, Line, Teacher, nearest

RECIPE = """
[languages]
source = "en"
target = "de"
[source.talk]
kind = "tsv"
path = "talk.tsv"
[model]
preset = "small"
d_model = 16
heads = 2
d_ff = 16
encoder_layers = 1
decoder_layers = 1
[fit]
updates = 2
batch_tokens = 400
max_length = 200
precision = "f32"
threads = 1
[cleaning]
drop = ["untranslated", "half-translated", "language"]
"""
PAIRS = {
    "The cat slept on the warm stove.": "Die Katze schlief auf dem warmen Ofen.",
    "Seven boats left at dawn.": "Sieben Boote fuhren im Morgengrauen ab.",
    "Keep to the marked path.": "Bleiben Sie auf dem markierten Weg.",
    "Tickets are sold at the gate.": "Karten gibt es am Tor.",
}
HELD = ("He lost his left glove.", "Er hat seinen linken Handschuh verloren.")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    write(folder, "train", PAIRS)
    write(folder, "test.talk", dict([HELD]))
    (folder / "train.origin").write_text("talk\n" * len(PAIRS), encoding="utf-8")
    sets: dict[str, object] = {"train": {}, "test.talk": {}}
    (folder / "report.json").write_text(json.dumps({"languages": ["en", "de"], "sets": sets}), encoding="utf-8")
    train_tokenizer(folder)
    return folder


def write(folder: Path, name: str, pairs: Mapping[str, str]) -> None:
    for language, lines in (("en", pairs), ("de", pairs.values())):
        (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def says(tokenizer: Tokenizer, answers: Mapping[str, Sequence[str]]) -> ReferenceStepper:
    """A network that translates each source into one of its answers, the first the likeliest."""
    known = {
        tuple(tokenizer.encode(source)): [tokenizer.encode(text) for text in texts] for source, texts in answers.items()
    }

    def language(source: tuple[int, ...], history: tuple[int, ...]) -> np.ndarray:
        logits = np.full(tokenizer.vocab_size, -50.0)
        logits[:2] = -np.inf  # PAD and BOS
        for rank, ids in enumerate(known[source]):
            if tuple(ids[: len(history)]) == history and len(ids) > len(history):
                logits[ids[len(history)]] = max(logits[ids[len(history)]], -0.1 * rank)
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)

    return ReferenceStepper(language, tokenizer.vocab_size, 400, SpecialIds())


def teacher(corpus: Path, answers: Mapping[str, Sequence[str]], **recipe: object) -> Teacher:
    tokenizer = Tokenizer(corpus / "tokenizer.model")
    return Teacher(says(tokenizer, answers), tokenizer, DistilRecipe(**recipe))


def job(corpus: Path, *sources: Path, **recipe: object) -> Job:
    found = load_recipe(corpus.parent / "recipe.toml")
    return Job(tiny_bundle(), corpus, sources, corpus.parent / "new", DistilRecipe(**recipe), found)


ANSWERS = {source: [f"{target[:-1]}!"] for source, target in PAIRS.items()}


def read(folder: Path, name: str) -> list[tuple[str, str]]:
    return list(zip(*(read_lines(folder / f"{name}.{language}") for language in ("en", "de")), strict=True))


def test_the_translations_of_the_teacher_take_the_place_of_the_references(corpus: Path) -> None:
    distil(job(corpus), teacher(corpus, ANSWERS))
    new = corpus.parent / "new"
    assert read(new, "train") == [(source, answer) for source, (answer,) in ANSWERS.items()]
    assert list(read_lines(new / "train.origin")) == ["talk"] * 4
    assert (new / "test.talk.de").read_bytes() == (corpus / "test.talk.de").read_bytes()
    assert (new / "tokenizer.model").read_bytes() == (corpus / "tokenizer.model").read_bytes()
    assert json.loads((new / "report.json").read_text(encoding="utf-8"))["sets"]["train"]["pairs"] == 4


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "empty"),
        ("la " * 30, "looped"),
        ("the river " * 200, "looped"),
        ("Weg", "length-ratio"),
        ("Er hat seinen linken Handschuh verloren.", "same-target"),
    ],
)
def test_what_cannot_be_learnt_from_is_left_out_and_counted(corpus: Path, answer: str, reason: str) -> None:
    first = next(iter(PAIRS))
    report = distil(job(corpus), teacher(corpus, {**ANSWERS, first: [answer.strip()]}))
    assert first not in dict(read(corpus.parent / "new", "train"))
    assert report.dropped[reason].counts == {"talk": 1}


def test_a_translation_that_the_length_limit_ended_is_left_out(tmp_path: Path) -> None:
    tokenizer = Tokenizer(train_tokenizer(tmp_path))
    endless = " ".join(str(number) for number in range(300))
    greedy = Teacher(says(tokenizer, {"Yes.": [endless]}), tokenizer, DistilRecipe(beam_size=1))
    (said,) = greedy.translate([Line("Yes.", "x")])
    assert said == {"dropped": "cut"}


@pytest.mark.parametrize("sentinels", [True, False])
def test_what_must_be_carried_is_carried_as_the_service_does_or_the_line_is_left_out(
    tmp_path: Path, sentinels: bool
) -> None:
    path = train_tokenizer(tmp_path)
    if sentinels:
        path.write_bytes(with_sentinels(path.read_bytes()))
    tokenizer = Tokenizer(path)
    read_as = {True: "\ue000", False: "%s"}[sentinels]
    # In the few letters of this vocabulary: others would be carried as foreign words.
    answers = {f"Keep {read_as} near": [f"the {read_as} stove"], f"Keep {read_as} there": ["the stove"]}
    lines = [Line("Keep %s near", "x"), Line("Keep %s there", "x"), Line("3.5 %s", "x")]
    said = Teacher(says(tokenizer, answers), tokenizer, DistilRecipe()).translate(lines)
    # The search does not let a network end without its sentinels: one that cannot write them goes round in circles.
    assert said == [{"target": "the %s stove"}, {"dropped": "looped" if sentinels else "lost"}, {"dropped": "copied"}]


@pytest.mark.parametrize("nearness", ["chrf", "bleu"])
def test_of_several_candidates_the_one_nearest_to_the_reference_is_taken(corpus: Path, nearness: str) -> None:
    answers = {source: ["Irgendwas ganz anderes steht nun hier.", target] for source, target in PAIRS.items()}
    distil(job(corpus, candidates=2), teacher(corpus, answers, candidates=2, nearness=nearness))
    assert read(corpus.parent / "new", "train") == list(PAIRS.items())
    assert nearest(["Das Haus", "Das Haus"], "", "chrf") == "Das Haus"


def test_candidates_in_a_language_without_spaces_are_compared_by_its_words() -> None:
    candidates, reference = ["我们都很高兴", "他今天不来学校"], "他今天没有来学校"
    assert nearest(candidates, reference, "bleu", "zh") == candidates[1]


def test_the_command_compares_candidates_by_the_words_of_the_target_language(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def first(candidates: Sequence[str], _reference: str, _nearness: str, language: str) -> str:
        asked.append(language)
        return candidates[0]

    monkeypatch.setattr("training.teacher.nearest", first)
    given = ["--recipe", str(corpus.parent / "recipe.toml"), "--corpus", str(corpus), "--bundle", str(copying_bundle())]
    assert main(["distil", *given, "--out", str(corpus.parent / "new")]) == 0
    assert asked == ["de"] * len(PAIRS)


def test_sets_that_the_old_corpus_no_longer_has_do_not_stay_in_the_new_one(corpus: Path) -> None:
    distil(job(corpus), teacher(corpus, ANSWERS))
    new = corpus.parent / "new"
    write(new, "dev.gone", dict([HELD]))
    distil(job(corpus), teacher(corpus, ANSWERS))
    assert not list(new.glob("dev.gone.*"))
    assert len(read(new, "train")) == len(PAIRS)


def test_references_stay_beside_the_translations_if_they_are_asked_for(corpus: Path) -> None:
    asked = {"with_references": True}
    distil(job(corpus, **asked), teacher(corpus, ANSWERS, **asked))
    assert set(read(corpus.parent / "new", "train")) == {
        *PAIRS.items(),
        *((source, answer) for source, (answer,) in ANSWERS.items()),
    }


def test_other_text_is_translated_too_but_nothing_like_a_held_out_line(corpus: Path) -> None:
    more = corpus.parent / "news.txt"
    first = next(iter(PAIRS))
    more.write_text(f"Please sign here today.\n\n{HELD[0]}\n{first}\n", encoding="utf-8")
    answers = {
        "Please sign here today.": ["Bitte heute hier unterschreiben."],
        HELD[0]: ["Er verlor ihn gestern dort."],
    }
    report = distil(job(corpus, more), teacher(corpus, {**ANSWERS, **answers}))
    assert read(corpus.parent / "new", "train")[4:] == [("Please sign here today.", "Bitte heute hier unterschreiben.")]
    assert list(read_lines(corpus.parent / "new/train.origin"))[4:] == ["news"]
    assert report.dropped["same-source"].counts == {"news": 1}


def test_an_interrupted_distillation_goes_on_and_ends_as_one_that_was_not(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distilling, "PART", 2)
    whole = replace(job(corpus), out=corpus.parent / "whole")
    distil(whole, teacher(corpus, ANSWERS))

    class Tired(Teacher):
        asked: list[str] = []  # noqa: RUF012

        def translate(self, lines: Sequence[Line]) -> list[dict[str, str]]:
            if self.asked:
                raise KeyboardInterrupt
            self.asked.extend(line.source for line in lines)
            return super().translate(lines)

    tokenizer = Tokenizer(corpus / "tokenizer.model")
    with pytest.raises(KeyboardInterrupt):
        distil(job(corpus), Tired(says(tokenizer, ANSWERS), tokenizer, DistilRecipe()))
    assert not (corpus.parent / "new/report.json").exists()
    late = dict(list(ANSWERS.items())[2:])  # it knows no other line: those of the first part are not asked for again
    distil(job(corpus), teacher(corpus, late))
    for name in ("train.en", "train.de", "train.origin", "report.json", "sources.json"):
        assert (corpus.parent / "new" / name).read_bytes() == (whole.out / name).read_bytes(), name


def test_another_teacher_text_or_recipe_does_not_go_on_with_what_was_begun(corpus: Path) -> None:
    distil(job(corpus), teacher(corpus, ANSWERS))
    with pytest.raises(distilling.CheckpointError, match="use another folder"):
        distil(job(corpus, beam_size=2), teacher(corpus, ANSWERS))
    with pytest.raises(CorpusError, match="folder of its own"):
        distil(replace(job(corpus), out=corpus), teacher(corpus, ANSWERS))
    (corpus.parent / "full").mkdir()
    (corpus.parent / "full/letter.txt").write_text("mine")
    with pytest.raises(CorpusError, match="holds other files"):
        distil(replace(job(corpus), out=corpus.parent / "full"), teacher(corpus, ANSWERS))


def test_more_candidates_than_beams_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"candidates must be in 1\.\.beam_size \(4\), but is 5"):
        DistilRecipe(candidates=5)


def test_a_student_is_trained_on_what_the_command_made(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--recipe", str(corpus.parent / "recipe.toml")]
    new = str(corpus.parent / "new")
    asked = ["distil", *given, "--corpus", str(corpus), "--out", new, "--set", "distil.beam_size=2"]
    assert main([*asked, "--bundle", str(copying_bundle())]) == 0
    assert "Written" in capsys.readouterr().out
    assert read(corpus.parent / "new", "train") == [(source, source) for source in PAIRS]
    assert main(["fit", *given, "--corpus", new, "--run", str(corpus.parent / "run")]) == 0
    assert main([*asked, "--bundle", str(copying_bundle()), "--set", "languages.target=fr"]) == 1
    assert "the teacher must translate en to fr" in capsys.readouterr().err

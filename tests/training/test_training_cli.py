"""Errors of the training commands: one line that helps, and no traceback."""

from pathlib import Path

import pytest

from tests.model.networks import train_tokenizer
from tests.service.tiny_bundle import copying_bundle, heedless_bundle, tiny_bundle
from training.cli import main

RECIPE = '[languages]\nsource = "en"\ntarget = "de"\n[model]\npreset = "small"\n[publish]\nname = "x"\n'


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.mark.parametrize("step", ["corpus", "tokenizer", "fit", "publish", "evaluate", "distil"])
def test_every_step_explains_itself(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([step, "--help"])
    assert "usage: dragoman-train" in capsys.readouterr().out


def test_a_step_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "STEP" in capsys.readouterr().err


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("dragoman-train: ")
    assert "Traceback" not in shown.err
    return shown.err


def test_a_missing_recipe_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no file" in said(["fit", "--recipe", "none.toml", "--corpus", "c", "--run", str(tmp_path)], capsys)


def test_a_corpus_without_sources_is_one_line(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "[source.NAME]" in said(["corpus", "--recipe", recipe, "--out", str(tmp_path / "c")], capsys)


def test_a_missing_tokenizer_is_one_line(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", "--recipe", recipe, "--corpus", str(tmp_path), "--run", str(tmp_path / "run")]
    assert "tokenizer must be at" in said(arguments, capsys)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (None, b"", "file must be at"),
        (b"one\ntwo\n", b"eins\n", "equally many lines"),
        (b"\xff\n", b"eins\n", "must be text in UTF-8"),
        (b"", b"", "at least one pair"),
        (b"one\n", b"eins " * 5000, "at least one pair"),
    ],
)
def test_a_corpus_that_cannot_be_learnt_from_is_one_line(
    source: bytes | None, target: bytes, words: str, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_tokenizer(tmp_path)
    if source is not None:
        (tmp_path / "train.en").write_bytes(source)
    (tmp_path / "train.de").write_bytes(target)
    arguments = ["fit", "--recipe", recipe, "--corpus", str(tmp_path), "--run", str(tmp_path / "run")]
    assert words in said(arguments, capsys)


def test_a_model_with_a_wrong_kind_of_value_is_one_line(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_tokenizer(tmp_path)
    arguments = ["fit", "--recipe", recipe, "--corpus", str(tmp_path), "--run", str(tmp_path / "run")]
    assert "d_model must be" in said([*arguments, "--set", "model.d_model=wide"], capsys)
    assert "must say source and target" in said([*arguments, "--set", "languages.source=5"], capsys)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--beam-size", "0"), "beam_size must be in 1..16, but is 0"),
        (("--precision", "f64"), "precision must be one of"),
        (("--json", "/nowhere/figures.json"), "/nowhere/figures.json"),
        (("--coverage-penalty", "11"), "coverage_penalty must be in 0..10, but is 11.0"),
    ],
)
def test_what_evaluate_cannot_do_is_one_line(
    flags: tuple[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.en").write_text("Yes.\n")
    (tmp_path / "a.de").write_text("Ja.\n")
    assert words in said(["evaluate", "--bundle", str(tiny_bundle()), "--test", str(tmp_path), *flags], capsys)


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_folder_without_test_sets_is_one_line(
    language: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = tmp_path / "good"
    good.mkdir()
    (good / "a.en").write_text("Yes.\n")
    (good / "a.de").write_text("Ja.\n")
    arguments = ["evaluate", "--bundle", str(tiny_bundle()), "--test", str(good)]
    (tmp_path / f"alone.{language}").write_text("Yes.\n")
    what = "a folder of test sets must hold NAME.en and NAME.de, but"
    assert f"{what} {tmp_path} has no such pair" in said([*arguments, "--test", str(tmp_path)], capsys)
    assert f"{what} {tmp_path}/typo is no folder" in said([*arguments, "--test", f"{tmp_path}/typo"], capsys)
    corpus = f"--corpus must name a corpus with en to de test sets, but {tmp_path}/typo has none"
    assert corpus in said([*arguments, "--corpus", f"{tmp_path}/typo"], capsys)
    assert "nothing was named" in said(arguments[:3], capsys)


def test_a_coverage_penalty_is_scored_by_bundles_that_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.en").write_text("Good evening to all of you.\n")
    (tmp_path / "a.de").write_text("Good evening to all of you.\n")
    arguments = ["evaluate", "--test", str(tmp_path), "--coverage-penalty", "0.2", "--bundle"]
    assert main([*arguments, str(copying_bundle())]) == 0
    assert "| a | 1 | 100.00 | 100.00 |" in capsys.readouterr().out
    assert "needs an attending decoder" in said([*arguments, str(heedless_bundle())], capsys)


def test_a_folder_that_is_no_run_is_one_line(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["publish", "--recipe", recipe, "--run", str(tmp_path), "--out", str(tmp_path / "bundle")]
    assert "is this a run folder?" in said(arguments, capsys)
    assert not (tmp_path / "bundle").exists()


def test_a_folder_that_is_no_bundle_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "manifest.json" in said(["evaluate", "--bundle", str(tmp_path), "--test", str(tmp_path)], capsys)

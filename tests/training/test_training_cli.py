"""Errors of the training commands: one line that helps, and no traceback."""

from pathlib import Path

import pytest

from training.cli import main

RECIPE = '[languages]\nsource = "en"\ntarget = "de"\n[model]\npreset = "small"\n[publish]\nname = "x"\n'


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return str(path)


@pytest.mark.parametrize("step", ["corpus", "tokenizer", "fit", "publish", "evaluate"])
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


def test_a_folder_that_is_no_run_is_one_line(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["publish", "--recipe", recipe, "--run", str(tmp_path), "--out", str(tmp_path / "bundle")]
    assert "is this a run folder?" in said(arguments, capsys)
    assert not (tmp_path / "bundle").exists()


def test_a_folder_that_is_no_bundle_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "manifest.json" in said(["evaluate", "--bundle", str(tmp_path), "--test", str(tmp_path)], capsys)

"""Corpora that tests build from a recipe in a folder of their own, and read again."""

from pathlib import Path

from training.corpus.build import build_corpus
from training.corpus.files import read_lines
from training.corpus.pair import Pair
from training.corpus.recipe import load_recipe


def build(folder: Path, *overrides: str, out: str = "corpus") -> Path:
    build_corpus(load_recipe(folder / "recipe.toml", overrides), folder / out, cache=folder / "cache")
    return folder / out


def read(corpus: Path, name: str) -> list[Pair]:
    sides = (read_lines(corpus / f"{name}.{language}") for language in ("en", "de"))
    return [Pair(source, target) for source, target in zip(*sides, strict=True)]

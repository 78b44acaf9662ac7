"""A recipe is read as it is meant, or refused with the reason."""

from pathlib import Path

import pytest

from training.corpus.errors import CorpusError
from training.corpus.recipe import CorpusRecipe, load_recipe
from training.recipe import RecipeError

RECIPES = Path(__file__).parents[2] / "training/recipes"
HEAD = '[languages]\nsource = "en"\ntarget = "de"\n'
TSV = '[source.small]\nkind = "tsv"\npath = "small.tsv"\n'


def recipe(tmp_path: Path, text: str, *overrides: str) -> CorpusRecipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, overrides)


@pytest.mark.parametrize("name", ["en-de", "en-de-tiny"])
def test_the_recipes_of_the_house_are_good(name: str) -> None:
    loaded = load_recipe(RECIPES / f"{name}.toml")
    read = [(source.kind, source.select, package) for source in loaded.sources for package in source.packages]
    assert len(read) == len(set(read))
    assert set(loaded.corpus.reserved) == {
        "evolution-common",
        "gnucash-common",
        "kdenlive-data",
        "okular",
        "wesnoth-1.16-did",
    }
    assert all(source.licence and source.attribution for source in loaded.sources if source.path)


def test_a_path_starts_at_the_recipe_and_an_overridden_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    loaded = recipe(tmp_path, HEAD + TSV)
    assert loaded.resolve(loaded.sources[0].path) == tmp_path / "small.tsv"
    moved = recipe(tmp_path, HEAD + TSV, "source.small.path=data/x.tsv", "corpus.seed=other")
    assert moved.resolve(moved.sources[0].path) == Path("/data/x.tsv")
    assert moved.corpus.seed == "other"


def test_a_source_is_its_own_group_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert recipe(tmp_path, HEAD + TSV).sources[0].group == "small"
    assert recipe(tmp_path, HEAD + TSV + 'group = "all"\n').sources[0].group == "all"


def test_the_sections_of_other_steps_are_left_to_them(tmp_path: Path) -> None:
    recipe(tmp_path, HEAD + TSV + "[fit]\nupdates = 3\n[tokenizer]\nvocab_size = 9\n")


PACKAGES = '[source.c]\nkind = "gettext"\npackages = ["okular", "nano"]\n'


def test_a_reserved_package_is_refused_as_a_source(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"\[source\.c\] lists okular, which the recipe reserves for evaluation"):
        recipe(tmp_path, HEAD + '[corpus]\nreserved = ["okular"]\n' + PACKAGES)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (HEAD, CorpusError, "at least one"),
        (TSV, RecipeError, r"\[languages\] must say"),
        ("no toml", RecipeError, "must be TOML"),
        (HEAD + TSV + "[sources.x]\n", CorpusError, "also has sources"),
        (HEAD + "source = 3\n" + TSV, RecipeError, "must be TOML"),
        (HEAD + '[source]\nkind = "tsv"\n', CorpusError, "must be a table of tables"),
        (HEAD + '[source.x]\npath = "x"\n', RecipeError, "must say kind"),
        (
            HEAD + '[source.x]\nkind = "csv"\npath = "x"\n',
            RecipeError,
            "must be one of gettext, libreoffice-help",
        ),
        (HEAD + TSV + "pats = 1\n", RecipeError, "has no pats"),
        (HEAD + TSV + 'cap = "3"\n', RecipeError, "cap must be int"),
        (HEAD + TSV + "cap = true\n", RecipeError, "cap must be int"),
        (HEAD + TSV + "cap = -1\n", CorpusError, "cap >= 0"),
        (HEAD + TSV + "weight = -1\n", CorpusError, "weight >= 0"),
        (HEAD + TSV + 'select = "terms"\n', CorpusError, "select must be given for kind ding only"),
        (HEAD + TSV + 'keys = ["en", "de"]\n', CorpusError, "for kind jsonl only"),
        (HEAD + TSV + "targets_per_source = 0\n", CorpusError, "targets_per_source >= 1"),
        (HEAD + TSV + 'packages = ["nano"]\n', CorpusError, "a path, and no packages"),
        (HEAD + TSV + 'target_path = "x"\n', CorpusError, "target_path must be given for kind paired"),
        (HEAD + '[source.x]\nkind = "paired"\npath = "x"\n', CorpusError, "target_path must be given"),
        (HEAD + '[source.x]\nkind = "gettext"\n', CorpusError, "either packages or the path"),
        (HEAD + PACKAGES + 'path = "x"\n', CorpusError, "either packages or the path"),
        (HEAD + TSV + "[holdout.big]\ntest = 1\n", CorpusError, "also names big"),
        (HEAD + TSV + "[holdout.small]\ntest = -1\n", CorpusError, "test >= 0"),
        (HEAD + TSV + "[corpus]\nnear_duplicate = 0\n", CorpusError, r"must be in \(0, 1\]"),
        (HEAD + TSV + '[corpus]\nseed = ""\n', CorpusError, "seed must be 1 to 64"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        recipe(tmp_path, text)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("source.small.path", "must look like"),
        ("path=x", "must look like"),
        ("source..path=x", "must look like"),
        ("source.smal.path=x", r"\[source\.smal\] must say kind"),
        ("source.small.optional=3", "optional must be bool"),
        ("source.small.path.x=3", "path is a single value"),
    ],
)
def test_an_override_that_fits_nothing_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(tmp_path, HEAD + TSV, override)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no file"):
        load_recipe(tmp_path / "none.toml")

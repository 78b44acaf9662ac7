"""The whole corpus step, from small files to a folder that training reads."""

import json
from pathlib import Path

import polib
import pytest

from tests.training.corpora import build, read
from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.corpus.holdout import NearDuplicates
from training.corpus.pair import Pair
from training.corpus.report import CorpusReport
from training.corpus.words import key

THINGS = {
    "file": "Datei",
    "window": "Fenster",
    "printer": "Drucker",
    "table": "Tabelle",
    "image": "Bild",
    "disk": "Platte",
}
VERBS = {"open": "öffnen", "close": "schließen", "print": "drucken", "delete": "löschen", "copy": "kopieren"}
SENTENCES = {
    f"Please {verb} the {thing} before you go home": f"Bitte {thing_de} {verb_de}, bevor Sie nach Hause gehen"
    for thing, thing_de in THINGS.items()
    for verb, verb_de in VERBS.items()
}
RECIPE = """
[languages]
source = "en"
target = "de"

[source.catalogues]
kind = "gettext"
path = "po"
licence = "GPL-3+"

[source.talk]
kind = "tsv"
path = "talk.tsv"
optional = true
targets_per_source = 2
attribution = "talkers"

[source.lines]
kind = "paired"
path = "lines.en"
target_path = "lines.de"

[holdout.talk]
test = 4
dev = 2
min_words = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "po").mkdir()
    catalogue = polib.POFile()
    catalogue.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    for source, target in {
        "_Open": "Ö_ffnen",
        "Guess": "Vermutung",
        "Copy %s": "Kopieren",
        "Window": "Fenster",
    }.items():
        flags = ["fuzzy"] if source == "Guess" else []
        catalogue.append(polib.POEntry(msgid=source, msgstr=target, flags=flags))
    catalogue.save(str(tmp_path / "po/de.po"))
    talk = "".join(f"{source}.\t{target}.\n" for source, target in SENTENCES.items())
    (tmp_path / "talk.tsv").write_text(talk + "Window\tFenster\n", encoding="utf-8")
    # The same sentences in disguise: whatever is held out of `talk` must go from here too.
    (tmp_path / "lines.en").write_text("".join(f"{s.upper()} NOW!\n" for s in SENTENCES) + "Disk\n", encoding="utf-8")
    (tmp_path / "lines.de").write_text(
        "".join(f"{t} sofort!\n" for t in SENTENCES.values()) + "Platte\n", encoding="utf-8"
    )
    (tmp_path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def test_a_corpus_has_its_sets_line_for_line(folder: Path) -> None:
    corpus = build(folder)
    assert len(read(corpus, "test.talk")) == 4
    assert len(read(corpus, "dev.talk")) == 2
    train = read(corpus, "train")
    assert Pair("Open", "Öffnen") in train
    assert len(list(read_lines(corpus / "train.origin"))) == len(train)
    assert "Guess" not in {pair.source for pair in train}


def test_nothing_like_a_held_out_pair_is_trained_on(folder: Path) -> None:
    corpus = build(folder)
    held_out = [*read(corpus, "test.talk"), *read(corpus, "dev.talk")]
    watch = NearDuplicates(held_out, 0.7)
    assert all(watch.find(pair) is None for pair in read(corpus, "train"))
    report = json.loads((corpus / "report.json").read_text(encoding="utf-8"))
    leaks = [f"{how}-{side}" for how in ("same", "similar", "contained") for side in ("source", "target")]
    assert sum(tally["total"] for reason, tally in report["dropped"].items() if reason in leaks) >= 12


def test_no_training_text_contains_a_held_out_one_or_lies_within_it_on_either_side(folder: Path) -> None:
    for name in ("en", "de"):
        lines = [" ".join(("Well", line.removesuffix("Disk"), "then")) for line in read_lines(folder / f"lines.{name}")]
        (folder / f"lines.{name}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    corpus = build(folder)
    held_out = [*read(corpus, "test.talk"), *read(corpus, "dev.talk")]
    train = read(corpus, "train")
    assert len(held_out) == 6
    assert len(train) > 20
    for side in ("source", "target"):
        for held in (key(getattr(pair, side)) for pair in held_out):
            texts = [key(getattr(pair, side)) for pair in train]
            assert not any(f" {held} " in f" {text} " for text in texts)
            assert not any(
                f" {text} " in f" {held} " for text in texts if len(text.split()) >= len(held.split()) / 2 > 2
            )


def test_a_late_source_leaves_the_held_out_sets_of_the_others_as_they_are(folder: Path) -> None:
    alone = build(folder, "source.lines.optional=true", "source.lines.path=gone", out="alone")
    # Votes for other translations, and rows that would win the lottery, must not change what is measured.
    votes = "".join(f"{source}.\tAnders {number}\n" * 3 for number, source in enumerate(SENTENCES))
    colours = ("blue", "green", "yellow", "purple", "orange", "silver")
    new = "".join(f"Nobody has {colour} {thing}s\tKeiner {colour} {thing}\n" for colour in colours for thing in THINGS)
    (folder / "late.tsv").write_text(votes + new, encoding="utf-8")
    recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
    late = '[source.late]\nkind = "tsv"\npath = "late.tsv"\nlate = true\n[holdout.late]\ntest = 2\ndev = 1\n'
    (folder / "recipe.toml").write_text(recipe + late, encoding="utf-8")
    both = build(folder, "source.lines.optional=true", "source.lines.path=gone", out="both")
    for name in ("test.talk", "dev.talk"):
        assert read(alone, name) == read(both, name)
    own = [*read(both, "test.late"), *read(both, "dev.late")]
    assert len(own) == 3
    watch = NearDuplicates([*read(both, "test.talk"), *read(both, "dev.talk")], 0.7)
    assert all(watch.find(pair) is None for pair in own)
    assert all(NearDuplicates(own, 0.7).find(pair) is None for pair in read(both, "train"))


def test_every_pair_is_accounted_for(folder: Path) -> None:
    corpus = build(folder)
    report = json.loads((corpus / "report.json").read_text(encoding="utf-8"))
    dropped = {reason: tally["total"] for reason, tally in report["dropped"].items()}
    # A held-out pair is also dropped from training, as the source that it equals.
    in_sets = report["sets"]["train"]["pairs"]
    assert sum(report["read"].values()) == in_sets + sum(dropped.values())
    assert dropped["fuzzy"] == 1
    assert dropped["placeholders"] == 1
    assert dropped["duplicate"] == 1
    assert report["dropped"]["placeholders"]["examples"] == [
        {"from": "catalogues", "source": "Copy %s", "target": "Kopieren"}
    ]


def test_the_report_for_people_names_every_reason_and_set(folder: Path) -> None:
    text = (build(folder) / "report.txt").read_text(encoding="utf-8")
    for word in (
        "catalogues",
        "placeholders: the sides hold different placeholders",
        "test.talk",
        "Copy %s  →  Kopieren",
    ):
        assert word in text


def test_the_sources_keep_their_licences(folder: Path) -> None:
    sources = json.loads((build(folder) / "sources.json").read_text(encoding="utf-8"))
    by_name = {entry["source"]: entry for entry in sources}
    assert by_name["catalogues"]["licence"] == "GPL-3+"
    assert by_name["talk"]["attribution"] == "talkers"
    assert by_name["lines"]["licence"] == "not stated"
    assert by_name["catalogues"]["training_pairs"] == 2


def test_the_same_recipe_gives_the_same_bytes(folder: Path) -> None:
    first, second = build(folder, out="one"), build(folder, out="two")
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_an_optional_source_may_be_absent_and_the_report_says_so(folder: Path) -> None:
    (folder / "talk.tsv").unlink()
    corpus = build(folder)
    assert "Note: source 'talk' was left out" in (corpus / "report.txt").read_text(encoding="utf-8")
    assert not list(corpus.glob("test.talk.*"))


def test_a_source_that_is_needed_and_absent_is_an_error(folder: Path) -> None:
    (folder / "lines.de").unlink()
    with pytest.raises(CorpusError, match=r"source 'lines' must be at .*lines\.de, but nothing is there"):
        build(folder)


def test_an_earlier_corpus_in_the_folder_leaves_nothing_behind(folder: Path) -> None:
    build(folder)
    (folder / "corpus/my-notes.txt").write_text("mine")
    corpus = build(folder, "holdout.talk.dev=0")
    assert not list(corpus.glob("dev.*"))
    assert (corpus / "my-notes.txt").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cleaning.min_letters=9999", "at least one pair, but cleaning left none"),
        ("holdout.talk.test=5", r"to train on, but the held-out sets \(test\.talk 5, dev\.talk 2\) .* took all 60"),
    ],
)
def test_a_corpus_without_training_text_is_refused_and_an_earlier_one_stays_as_it_was(
    folder: Path, override: str, message: str
) -> None:
    earlier = {path: path.read_bytes() for path in build(folder).iterdir()}
    # From here on there are sentences alone, all of them alike.
    (folder / "po/de.po").unlink()
    for name, last in (("lines.en", "Disk\n"), ("lines.de", "Platte\n"), ("talk.tsv", "Window\tFenster\n")):
        text = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(text.removesuffix(last), encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        build(folder, override)
    assert {path: path.read_bytes() for path in (folder / "corpus").iterdir()} == earlier
    with pytest.raises(CorpusError, match=message):
        build(folder, override, out="new")
    assert not (folder / "new").exists()


@pytest.mark.parametrize("dies", ["in a set", "before the report", "in the report"])
def test_a_build_that_dies_while_it_writes_leaves_no_report_and_the_next_no_set_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    first = RECIPE.replace('path = "talk.tsv"', 'path = "talk.tsv"\ngroup = "first"').replace(
        "holdout.talk", "holdout.first"
    )
    (folder / "recipe.toml").write_text(first, encoding="utf-8")
    assert list(build(folder).glob("dev.first.*"))
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as broken:
        if dies == "in a set":
            broken.setattr(CorpusReport, "count_set", full)
        elif dies == "before the report":
            broken.setattr(CorpusReport, "write", full)
        else:
            broken.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="no space left"):
            build(folder)
    assert not (folder / "corpus/report.json").exists()
    assert not list((folder / "corpus").glob("*.first.*"))
    (folder / "corpus/my-notes.txt").write_text("mine")
    (folder / "recipe.toml").write_text(RECIPE.replace("holdout.talk", "holdout.lines"), encoding="utf-8")
    corpus = build(folder)
    sets = ("train", "dev.lines", "test.lines")
    files = [f"{name}.{language}" for name in sets for language in ("en", "de")]
    others = ["train.origin", "report.json", "report.txt", "sources.json", "my-notes.txt"]
    assert sorted(path.name for path in corpus.iterdir()) == sorted(files + others)


def test_half_a_report_of_an_earlier_corpus_stops_no_build(folder: Path) -> None:
    corpus = build(folder)
    (corpus / "report.json").write_text('{"languages": ["en", "d')
    assert json.loads((build(folder) / "report.json").read_text(encoding="utf-8"))["languages"] == ["en", "de"]


def test_a_corpus_of_other_languages_leaves_nothing_behind_either(folder: Path) -> None:
    build(folder, "languages.target=fr")
    corpus = build(folder)
    assert not list(corpus.glob("*.fr"))


def test_a_source_that_loses_much_to_the_held_out_sets_is_noted(folder: Path) -> None:
    def noted(corpus: Path) -> list[str]:
        notes: list[str] = json.loads((corpus / "report.json").read_text(encoding="utf-8"))["notes"]
        return [note for note in notes if "more than a fifth" in note]

    # These sentences are so alike that anything less would count as near.
    strict = ("corpus.near_duplicate=1.0", "holdout.talk.dev=0")
    assert noted(build(folder, *strict, "holdout.talk.test=6")) == []
    talk, lines = noted(build(folder, *strict, "holdout.talk.test=7"))
    assert talk.startswith("held-out sets and what is near to them took 7 of the 30 pairs of source 'talk'")
    assert "took 7 of the 31 pairs of source 'lines'" in lines


PROSE = "It takes ~5 minutes to play rock&roll.\tEs dauert ~5 Minuten, Rock&Roll zu spielen.\nIt is $5.\tEs ist 5 $.\n"


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("source.talk.cap=0", PROSE),
        (
            "source.talk.messages=true",
            "It takes 5 minutes to play rockroll.\tEs dauert 5 Minuten, RockRoll zu spielen.\n",
        ),
    ],
)
def test_marks_are_taken_out_of_program_messages_and_not_of_what_people_write(
    folder: Path, override: str, kept: str
) -> None:
    (folder / "talk.tsv").write_text(PROSE, encoding="utf-8")
    train = read(build(folder, override, "holdout.talk.test=0", "holdout.talk.dev=0"), "train")
    assert [pair for pair in train if "It " in pair.source] == [Pair(*row.split("\t")) for row in kept.splitlines()]
    assert Pair("Open", "Öffnen") in train


def test_messages_keep_their_marks_where_the_recipe_says_so(folder: Path) -> None:
    assert Pair("_Open", "Ö_ffnen") in read(build(folder, "cleaning.software_marks=false"), "train")
    assert Pair("_Open", "Ö_ffnen") in read(build(folder, "source.catalogues.messages=false"), "train")


def test_rules_that_do_not_know_a_language_are_noted(folder: Path) -> None:
    text = (build(folder, "languages.source=fr") / "report.txt").read_text(encoding="utf-8")
    assert "Note: every pair passed half-translated, language, for no function words of fr are known." in text


def test_a_corpus_that_is_read_the_other_way_round_has_the_same_files(folder: Path) -> None:
    one = build(folder, out="one")
    turned = ("languages.source=de", "languages.target=en", "corpus.reversed=true")
    other = build(folder, *turned, out="other")
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name

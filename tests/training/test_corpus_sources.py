"""The corpus step from what Debian has: packages, help pages, and many kinds of sources together."""

import gzip
import json
import shutil
from pathlib import Path

import polib
import pytest

from tests.training.corpora import build, read
from tests.training.packages_for_tests import make_package
from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.corpus.pair import Pair

needs_dpkg = pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg-deb, which Debian brings")


def catalogue(folder: Path, messages: dict[str, str]) -> bytes:
    po = polib.POFile()
    po.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    po.extend(polib.POEntry(msgid=source, msgstr=target) for source, target in messages.items())
    po.save_as_mofile(str(folder / "x.mo"))
    return (folder / "x.mo").read_bytes()


PACKAGES = """
[languages]
source = "en"
target = "de"

[corpus]
reserved = ["kept-away"]

[source.catalogues]
kind = "gettext"
packages = ["tool", "other"]

[holdout.reserved]
test = 10
min_words = 3
"""


@needs_dpkg
def test_the_strings_that_only_a_reserved_package_has_become_a_test_set(tmp_path: Path) -> None:
    shared = {"Save the current file": "Aktuelle Datei speichern"}
    secret = {"Zoom into the secret drawing": "In die geheime Zeichnung hineinzoomen"}
    theirs = {"Secret drawing, zoom into the": "Hineinzoomen", "Quit": "Beenden"}
    locale = "usr/share/locale/de/LC_MESSAGES"
    cache = tmp_path / "cache"
    make_package(cache, "kept-away", {f"{locale}/away.mo": catalogue(tmp_path, {**shared, **secret})})
    make_package(cache, "tool", {f"{locale}/tool.mo": catalogue(tmp_path, {**shared, **theirs})})
    # A copy of the reserved catalogue in another package is known by its text domain.
    copies = {f"{locale}/away.mo": catalogue(tmp_path, secret), f"{locale}/o.mo": catalogue(tmp_path, {"Go": "Los"})}
    make_package(cache, "other", copies)
    (tmp_path / "recipe.toml").write_text(PACKAGES, encoding="utf-8")
    corpus = build(tmp_path)
    assert read(corpus, "test.reserved") == [Pair(*next(iter(secret.items())))]
    assert {pair.source for pair in read(corpus, "train")} == {*shared, "Quit", "Go"}
    report = (corpus / "report.txt").read_text(encoding="utf-8")
    assert "away.mo of other was left out: its domain away is reserved" in report


@needs_dpkg
def test_a_package_without_catalogues_is_noted_and_named_in_the_sources(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    locale = "usr/share/locale/de/LC_MESSAGES"
    make_package(cache, "tool", {f"{locale}/tool.mo": catalogue(tmp_path, {"Quit": "Beenden"})})
    make_package(cache, "other", {"usr/bin/other": b""})
    text = PACKAGES.partition("[holdout.reserved]")[0]
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    corpus = build(tmp_path)
    assert "Note: other has no catalogue for de." in (corpus / "report.txt").read_text(encoding="utf-8")
    sources = json.loads((corpus / "sources.json").read_text(encoding="utf-8"))
    assert [(entry["part"], entry["version"], entry["training_pairs"]) for entry in sources] == [
        ("tool", "1.0-1", 1),
        ("other", "1.0-1", 0),
    ]


HELP = """
[languages]
source = "en"
target = "de"

[source.help]
kind = "libreoffice-help"
path = "help"
"""


def test_a_help_is_read_from_a_folder_too(tmp_path: Path) -> None:
    for language, text in (("en-US", "Open the file."), ("de", "Öffnen Sie die Datei.")):
        page = tmp_path / f"help/usr/share/libreoffice/help/{language}/text/a.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<p id="par_1">{text}</p>', encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(HELP, encoding="utf-8")
    assert read(build(tmp_path), "train") == [Pair("Open the file.", "Öffnen Sie die Datei.")]
    shutil.rmtree(tmp_path / "help/usr/share/libreoffice/help/de")
    with pytest.raises(CorpusError, match="must hold help pages in 'de'"):
        build(tmp_path)


MANY = """
[languages]
source = "en"
target = "de"

[source.manuals]
kind = "pages"
packages = ["manuals-en", "manuals-de"]

[source.sentences]
kind = "ding"
path = "de-en.txt"
select = "sentences"

[source.memory]
kind = "tmx"
path = "memory.tmx"

[source.rows]
kind = "jsonl"
path = "rows.jsonl"
keys = ["text.from", "text.to"]
"""


@needs_dpkg
def test_pages_dictionaries_memories_and_json_lines_come_together(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    page = ".TH X 1\n.SH NAME\n{}\n"
    make_package(cache, "manuals-en", {"usr/share/man/man1/x.1.gz": gzip.compress(page.format("shows text").encode())})
    german = {"usr/share/man/de/man1/x.1.gz": gzip.compress(page.format("zeigt Text").encode())}
    make_package(cache, "manuals-de", german)
    (tmp_path / "de-en.txt").write_text(
        "Es ist spät.; Wir gehen. :: It is late.\nHaus {n} :: house\n", encoding="utf-8"
    )
    unit = '<tu><tuv xml:lang="en"><seg>Good day</seg></tuv><tuv xml:lang="de"><seg>Guten Tag</seg></tuv></tu>'
    (tmp_path / "memory.tmx").write_text(f"<tmx><body>{unit}</body></tmx>", encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"text": {"from": "Thanks", "to": "Danke"}}\n', encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(MANY, encoding="utf-8")
    corpus = build(tmp_path)
    assert read(corpus, "train") == [
        Pair("shows text", "zeigt Text"),
        Pair("It is late.", "Es ist spät."),
        Pair("Good day", "Guten Tag"),
        Pair("Thanks", "Danke"),
    ]
    assert list(read_lines(corpus / "train.origin")) == ["manuals", "sentences", "memory", "rows"]
    sources = json.loads((corpus / "sources.json").read_text(encoding="utf-8"))
    assert [(s["part"], s["training_pairs"]) for s in sources] == [
        ("manuals-en", 0),
        ("manuals-de", 1),
        ("sentences", 1),
        ("memory.tmx", 1),
        ("rows.jsonl", 1),
    ]

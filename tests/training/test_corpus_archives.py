"""Archives from the web become pairs: the wanted members, packed or not, and the test sets of WMT as they stand."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.training.file_server import Site, serving
from training.corpus.archives import unpack
from training.corpus.build import build_corpus
from training.corpus.errors import CorpusError
from training.corpus.files import read_lines, read_paired, read_segments
from training.corpus.recipe import CorpusRecipe, load_recipe

LETTERS = "abcdefghijklmnopqrst"
EN = "".join(f"The house called {a}{b} is red & _old.\n" for a in LETTERS for b in "oe")
DE = "".join(f"Das Haus namens {a}{b} ist rot & _alt.\n" for a in LETTERS for b in "oe")
SGM = """<srcset setid="news" srclang="any">
<doc sysid="ref" docid="a" genre="news" origlang="en">
<hl>
<seg id="1">{0}</seg>
</hl>
<p>
<seg id="2"> AT&amp;T &quot;pays&quot;
 AT&T </seg><seg id="3">Tick.</seg>
</p>
</doc>
</srcset>
"""


def tar(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_the_wanted_members_of_an_archive_are_unpacked_and_nothing_else(tmp_path: Path, mode: str) -> None:
    (tmp_path / "x").write_bytes(tar({"./a/x.en": b"one", "a/x.de": b"eins", "a/x.fr": b"un"}, mode))
    english, german = unpack(tmp_path / "x", ["a/x.en", "a/x.de"], tmp_path / "out")
    assert (english.read_bytes(), german.read_bytes()) == (b"one", b"eins")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.*")) == ["x.de", "x.en"]


def test_members_that_are_unpacked_already_are_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(tar({"x.en": b"one"}))
    unpack(tmp_path / "x", ["x.en"], tmp_path / "out")[0].write_bytes(b"kept")
    assert unpack(tmp_path / "x", ["x.en"], tmp_path / "out")[0].read_bytes() == b"kept"


def test_an_archive_that_is_damaged_or_another_one_says_so(tmp_path: Path) -> None:
    whole = tar({"a/x.en": b"one" * 9999, "a/x.de": b"eins"})
    (tmp_path / "x").write_bytes(whole)
    with pytest.raises(CorpusError, match=r"must hold a/x\.fr, but holds a/x\.en, a/x\.de; correct the members"):
        unpack(tmp_path / "x", ["a/x.en", "a/x.fr"], tmp_path / "out")
    (tmp_path / "half").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match="must be a tar archive, but cannot be read"):
        unpack(tmp_path / "half", ["a/x.de"], tmp_path / "half-out")
    (tmp_path / "page").write_bytes(b"<html>not here</html>")
    with pytest.raises(CorpusError, match="must be a tar archive"):
        unpack(tmp_path / "page", ["a/x.de"], tmp_path / "page-out")


def test_a_link_in_an_archive_is_no_member(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x", "w") as archive:
        entry = tarfile.TarInfo("x.en")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(entry)
    with pytest.raises(CorpusError, match=r"must hold x\.en"):
        unpack(tmp_path / "x", ["x.en"], tmp_path / "out")


def test_segments_are_read_from_what_is_no_xml(tmp_path: Path) -> None:
    (tmp_path / "x.sgm").write_text(SGM.format("Tock <3."), encoding="utf-8")
    assert list(read_segments(tmp_path / "x.sgm")) == ["Tock <3.", 'AT&T "pays" AT&T', "Tick."]
    (tmp_path / "y.de.sgm.gz").write_bytes(gzip.compress(SGM.format("Größe").encode()))
    pairs = list(read_paired(tmp_path / "x.sgm", tmp_path / "y.de.sgm.gz", "news"))
    assert (pairs[0].source, pairs[0].target, len(pairs)) == ("Tock <3.", "Größe", 3)
    (tmp_path / "z.sgm").write_text("Plain.\n", encoding="utf-8")
    with pytest.raises(CorpusError, match="must hold text between <seg> and </seg>"):
        list(read_segments(tmp_path / "z.sgm"))


RECIPE = """
[languages]
source = "en"
target = "de"

[corpus]
near_duplicate = 1.0

[cleaning]
software_marks = false

[source.europarl]
kind = "archive"
url = "{site}/train.tgz"
sha256 = "{digest}"
members = ["training/europarl.de-en.en", "training/europarl.de-en.de.gz"]
split_sentences = false
licence = "free"

[source.newstest]
kind = "archive"
role = "test"
url = "{site}/test.tgz"
members = ["test/src.en.sgm", "test/ref.de.sgm"]
"""


def recipe(folder: Path, text: str, *overrides: str) -> CorpusRecipe:
    (folder / "recipe.toml").write_text(text, encoding="utf-8")
    return load_recipe(folder / "recipe.toml", overrides)


def test_archives_are_downloaded_unpacked_cleaned_and_kept_apart_from_their_test_set(tmp_path: Path) -> None:
    archive = tar(
        {"training/europarl.de-en.de.gz": gzip.compress(DE.encode()), "training/europarl.de-en.en": EN.encode()}
    )
    held = {
        "test/src.en.sgm": SGM.format("The house called ce is red & _old."),
        "test/ref.de.sgm": SGM.format("Haus ce"),
    }
    files = {"train.tgz": archive, "test.tgz": tar({name: text.encode() for name, text in held.items()})}
    with serving(Site(files)) as site:
        asked = RECIPE.format(site=site.address, digest=hashlib.sha256(archive).hexdigest())
        report = build_corpus(recipe(tmp_path, asked), tmp_path / "out", cache=tmp_path / "cache")
        build_corpus(recipe(tmp_path, asked), tmp_path / "again", cache=tmp_path / "cache")
        assert len(site.asked) == 2
    train = list(read_lines(tmp_path / "out/train.en"))
    assert len(train) == 39
    assert train[0] == "The house called ao is red & _old."
    assert list(read_lines(tmp_path / "out/test.newstest.en")) == [
        "The house called ce is red & _old.",
        'AT&T "pays" AT&T',
        "Tick.",
    ]
    assert report.dropped["same-source"].counts == {"europarl": 1}
    parts = {part["part"]: part for part in json.loads((tmp_path / "out/sources.json").read_text())}
    assert (parts["train.tgz"]["training_pairs"], parts["train.tgz"]["licence"]) == (39, "free")
    for name in ("train.en", "train.de", "test.newstest.de"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_an_archive_that_is_here_already_is_read_where_it_is(tmp_path: Path) -> None:
    archive = tar(
        {"training/europarl.de-en.de.gz": gzip.compress(DE.encode()), "training/europarl.de-en.en": EN.encode()}
    )
    (tmp_path / "here.tgz").write_bytes(archive)
    text = RECIPE.format(site="http://nowhere.invalid", digest=hashlib.sha256(archive).hexdigest())
    text = text.partition("[source.newstest]")[0]
    asked = recipe(tmp_path, text, f"source.europarl.path={tmp_path}/here.tgz")
    build_corpus(asked, tmp_path / "out", cache=tmp_path / "cache")
    assert len(list(read_lines(tmp_path / "out/train.de"))) == 40
    (tmp_path / "here.tgz").write_bytes(archive + b"\0")
    with pytest.raises(CorpusError, match="must have the SHA-256"):
        build_corpus(asked, tmp_path / "out", cache=tmp_path / "cache")


def test_a_held_out_set_keeps_every_pair_in_its_order(tmp_path: Path) -> None:
    """The same texts twice, one that cleaning would drop, and an empty one: BLEU is over all of them."""
    (tmp_path / "dev.tsv").write_text("b  c\tx\n42\t42\nb c\tx\n\ty\n", encoding="utf-8")
    (tmp_path / "train.tsv").write_text("A longer sentence here.\tEin längerer Satz hier.\n", encoding="utf-8")
    sources = '[source.t]\nkind = "tsv"\npath = "train.tsv"\n[source.d]\nkind = "tsv"\nrole = "dev"\npath = "dev.tsv"\n'
    build_corpus(recipe(tmp_path, RECIPE.partition("[corpus]")[0] + sources), tmp_path / "out", cache=tmp_path)
    assert list(read_lines(tmp_path / "out/dev.d.en")) == ["b c", "42", "b c", ""]
    assert list(read_lines(tmp_path / "out/dev.d.de")) == ["x", "42", "x", "y"]


SOURCE = '[languages]\nsource = "en"\ntarget = "de"\n[source.t]\nkind = "archive"\n'
MEMBERS = 'members = ["a", "b"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOURCE + MEMBERS, r"\[source\.t\] must have the url of an archive, or the path"),
        (SOURCE + 'url = "https://x/y.tgz"\n', r"members must be two relative paths .*, but are \[\]"),
        (SOURCE + 'url = "https://x/y.tgz"\nmembers = ["a", "../b"]\n', "two relative paths"),
        (SOURCE.replace("archive", "tsv") + 'path = "t"\nurl = "https://x/y"\n', "for kind archive only"),
        (SOURCE + MEMBERS + 'path = "t"\nrole = "dev"\ncap = 5\n', "must have no cap"),
        (SOURCE + MEMBERS + 'path = "t"\nrole = "dev"\n', "must have the role train, but all are dev or test sets"),
        (SOURCE + MEMBERS + 'path = "t"\nrole = "train-test"\n', "must be one of train, dev, test"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        recipe(tmp_path, text)

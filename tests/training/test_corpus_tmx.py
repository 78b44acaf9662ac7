"""Translation memories: the segments of both languages, as a stream, and nothing that entities could smuggle in."""

import bz2
from pathlib import Path

import pytest

from training.corpus.errors import CorpusError
from training.corpus.tmx import read_tmx

LANGUAGES = ("en", "de")
MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><note>ignored</note>
  <tuv xml:lang="EN-US"><seg>Click <bpt i="1">&lt;b&gt;</bpt>here<ept i="1">&lt;/b&gt;</ept> &amp; wait</seg></tuv>
  <tuv xml:lang="de"><seg>Hier <hi>klicken</hi> &amp; warten<ph>x<sub>y</sub></ph></seg></tuv>
  <tuv xml:lang="fr"><seg>Cliquez ici</seg></tuv>
</tu>
<tu><tuv lang="de_AT"><seg>Jänner</seg></tuv>
<tuv lang="en"><seg>January</seg></tuv><tuv lang="de"><seg>Januar</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Only English</seg></tuv></tu>
</body></tmx>
"""


def memory(tmp_path: Path, text: str = MEMORY) -> Path:
    path = tmp_path / "memory.tmx"
    path.write_text(text, encoding="utf-8")
    return path


def texts(path: Path) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_tmx(path, "memory", LANGUAGES)]


def test_units_in_both_languages_are_pairs_without_the_codes_of_other_formats(tmp_path: Path) -> None:
    assert texts(memory(tmp_path)) == [
        ("Click here & wait", "Hier klicken & warten"),
        ("January", "Jänner"),
        ("January", "Januar"),
    ]


def test_a_memory_may_be_utf_16_and_compressed(tmp_path: Path) -> None:
    path = tmp_path / "memory.tmx.bz2"
    path.write_bytes(bz2.compress(MEMORY.replace("UTF-8", "UTF-16").encode("utf-16")))
    assert texts(path) == texts(memory(tmp_path))


def test_units_come_before_the_file_is_read_to_its_end(tmp_path: Path) -> None:
    unit = '<tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu>\n'
    path = memory(tmp_path, "<tmx><body>" + unit * 5000 + "<broken")
    found = read_tmx(path, "memory", LANGUAGES)
    assert next(found).target == "eins"
    with pytest.raises(CorpusError, match="translation memory"):
        list(found)


@pytest.mark.parametrize("declaration", ['<!ENTITY a "aaaa">', '<!ENTITY a SYSTEM "file:///etc/passwd">'])
def test_declared_entities_are_refused(tmp_path: Path, declaration: str) -> None:
    text = MEMORY.replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', f"<!DOCTYPE tmx [{declaration}]>")
    with pytest.raises(CorpusError, match="must declare no entities"):
        texts(memory(tmp_path, text))


def test_a_memory_without_the_languages_says_which_it_has(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"en and pl, but none has both\. Its languages: EN-US \(1\), de \(2\)"):
        list(read_tmx(memory(tmp_path), "memory", ("en", "pl")))


def test_what_is_no_xml_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"memory\.tmx must be a translation memory"):
        texts(memory(tmp_path, "not xml"))
    with pytest.raises(CorpusError, match="there is none"):
        texts(tmp_path / "missing.tmx")

"""Catalogues give messages and translations, and nothing else that a catalogue holds."""

import bz2
import gzip
import lzma
from contextlib import suppress
from pathlib import Path

import polib
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training.corpus.catalogues import domain, find_catalogues, is_catalogue, read_catalogue
from training.corpus.errors import CorpusError
from training.corpus.pair import Pair

PO = r"""
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

msgid "Open"
msgstr "Öffnen"

msgctxt "menu"
msgid "Save"
msgstr "Speichern"

#, fuzzy
msgid "Guess"
msgstr "Vermutung"

msgid "Not done"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

#~ msgid "Old"
#~ msgstr "Alt"
"""


@pytest.fixture
def po(tmp_path: Path) -> Path:
    path = tmp_path / "de.po"
    path.write_text(PO, encoding="utf-8")
    return path


def texts(path: Path) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_catalogue(path, "c", "p")]


def test_a_message_without_its_context_is_a_pair_and_a_plural_is_two(po: Path) -> None:
    assert texts(po) == [
        ("Open", "Öffnen"),
        ("Save", "Speichern"),
        ("Guess", "Vermutung"),
        ("Not done", ""),
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
    ]


def test_neither_the_header_nor_an_obsolete_message_is_a_pair(po: Path) -> None:
    sources = [source for source, _ in texts(po)]
    assert "" not in sources
    assert "Old" not in sources


def test_a_guess_is_marked(po: Path) -> None:
    assert [pair.source for pair in read_catalogue(po, "c", "p") if pair.fuzzy] == ["Guess"]


def test_a_compiled_catalogue_gives_the_confirmed_messages(po: Path, tmp_path: Path) -> None:
    mo = tmp_path / "x.mo"
    polib.pofile(str(po)).save_as_mofile(str(mo))
    assert set(texts(mo)) == {p for p in texts(po) if p[0] not in ("Guess", "Not done")}


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zst"])
def test_a_packed_catalogue_is_the_same_catalogue(po: Path, tmp_path: Path, suffix: str) -> None:
    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zst": zstandard.compress}[suffix]
    polib.pofile(str(po)).save_as_mofile(str(tmp_path / "plain.mo"))
    packed = [tmp_path / f"packed/de.po{suffix}", tmp_path / f"packed/de/LC_MESSAGES/x.mo{suffix}"]
    for path, plain in zip(packed, (po, tmp_path / "plain.mo"), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pack(plain.read_bytes()))
        assert texts(path) == texts(plain)
    assert find_catalogues(tmp_path / "packed", "de") == sorted(packed)
    assert [domain(path, "de") for path in packed] == ["packed", "x"]


def test_a_language_with_one_plural_form_gives_the_plural_alone(tmp_path: Path) -> None:
    path = tmp_path / "ja.po"
    path.write_text('msgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%d 個のファイル"\n', encoding="utf-8")
    assert texts(path) == [("%d files", "%d 個のファイル")]


def test_a_pair_says_where_it_comes_from(po: Path) -> None:
    assert next(read_catalogue(po, "catalogues", "nano")) == Pair("Open", "Öffnen", "catalogues", "nano")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_a_damaged_catalogue_is_an_error_of_ours_or_is_read(po: Path, tmp_path: Path, data: st.DataObject) -> None:
    mo = tmp_path / "x.mo"
    polib.pofile(str(po)).save_as_mofile(str(mo))
    whole = mo.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    mo.write_bytes(whole[:cut])
    # A cut between two messages may leave a readable file; any other must be named.
    with suppress(CorpusError):
        texts(mo)


def test_a_file_that_is_no_catalogue_is_named(tmp_path: Path) -> None:
    for name in ("x.mo", "x.po"):
        (tmp_path / name).write_bytes(b"neither compiled nor not")
        with pytest.raises(CorpusError, match=rf"{name} must be a gettext catalogue"):
            texts(tmp_path / name)


def test_a_missing_catalogue_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="must be a gettext catalogue"):
        texts(tmp_path / "none.po")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("usr/share/locale/de/LC_MESSAGES/nano.mo", True),
        ("usr/share/locale/de_AT/LC_MESSAGES/nano.mo", False),
        ("usr/share/locale/fr/LC_MESSAGES/nano.mo", False),
        ("usr/share/locale/de/LC_TIME/nano.mo", False),
        ("usr/share/locale/de/cups_de.po", True),
        ("usr/share/wordpress/languages/admin-de_DE.mo", True),
        ("usr/share/wordpress/languages/admin-de_AT.mo", False),
        ("usr/share/qt5/translations/designer_de.qm", True),
        ("usr/share/qt5/translations/designer_fr.qm", False),
        ("src/po/de.po", True),
        ("src/po/fr.po", False),
        ("src/de/messages.po", True),
        ("usr/share/doc/de.txt", False),
    ],
)
def test_a_catalogue_is_known_by_its_path(path: str, expected: bool) -> None:
    assert is_catalogue(path, "de") is expected


def test_catalogues_are_found_in_order_and_a_single_file_is_itself(tmp_path: Path) -> None:
    for name in ("b", "a"):
        file = tmp_path / f"usr/share/locale/de/LC_MESSAGES/{name}.mo"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    found = find_catalogues(tmp_path, "de")
    assert [path.stem for path in found] == ["a", "b"]
    assert find_catalogues(found[0], "de") == [found[0]]


def test_the_text_domain_is_the_file_or_for_a_bare_language_its_folder() -> None:
    assert domain(Path("locale/de/LC_MESSAGES/okular.mo"), "de") == "okular"
    assert domain(Path("nano/po/de.po"), "de") == "po"

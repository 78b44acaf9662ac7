"""Help pages give the paragraphs that both languages have, as a reader sees them."""

from pathlib import Path

from training.corpus.libreoffice import find_help, is_help_page, paired_pages, read_page, read_paragraphs

PAGE = """<!DOCTYPE html><html><head><title>x</title></head><body>
<h1 id="hd_id1">Load/Save <span>options</span></h1>
<p id="par_id2" class="paragraph"><a name="x"></a>Specifies
  <span class="emph">general</span> settings &amp; more.<br>Next line.</p>
<p id="par_id3">Choose <span class="switchinline"><span hidden="true" id="MAC1" class="MAC">Preferences</span><span
  hidden="true" id="default1">Options</span></span>.</p>
<div id="other">No paragraph.</div>
<table><tr><td><p id="par_id4">Cell</p></td></tr></table>
<p id="par_id2">A second of the same id</p>
<p id="par_id5">Never closed
</body></html>"""


def test_paragraphs_and_headings_are_text_without_markup() -> None:
    found = read_paragraphs(PAGE)
    assert found["hd_id1"] == "Load/Save options"
    assert found["par_id2"] == "Specifies general settings & more. Next line."
    assert found["par_id4"] == "Cell"
    assert "other" not in found


def test_of_variants_for_systems_only_the_default_is_read() -> None:
    assert read_paragraphs(PAGE)["par_id3"] == "Choose Options."


def test_an_element_that_is_never_closed_ends_with_its_parent() -> None:
    assert read_paragraphs(PAGE)["par_id5"] == "Never closed"


def test_an_end_without_a_start_is_ignored() -> None:
    assert read_paragraphs('</p></div><p id="par_1">Text</em></p>') == {"par_1": "Text"}


def page(folder: Path, language: str, name: str, text: str) -> None:
    path = folder / f"usr/share/libreoffice/help/{language}/text/{name}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_pairs_are_paragraphs_of_the_same_id_on_the_same_page(tmp_path: Path) -> None:
    page(tmp_path, "en-US", "a", '<p id="par_1">One</p><p id="par_2">Two</p>')
    page(tmp_path, "en-US", "only-english", '<p id="par_1">Alone</p>')
    page(tmp_path, "de", "a", '<p id="par_3">Drei</p><p id="par_1">Eins</p>')
    ours, theirs = find_help(tmp_path, "en"), find_help(tmp_path, "de")
    assert ours is not None
    assert theirs is not None
    pages = paired_pages(ours, theirs)
    assert [left.stem for left, _ in pages] == ["a"]
    pairs = [pair for left, right in pages for pair in read_page(left, right, "help", "part")]
    assert [(pair.source, pair.target, pair.part) for pair in pairs] == [("One", "Eins", "part")]


def test_a_language_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    page(tmp_path, "de", "a", "")
    assert find_help(tmp_path, "fr") is None


def test_only_the_text_of_the_help_is_unpacked() -> None:
    assert is_help_page("usr/share/libreoffice/help/de/text/swriter/01.html")
    assert not is_help_page("usr/share/libreoffice/help/de/index.html")
    assert not is_help_page("usr/share/libreoffice/help/de/text/help.css")
    assert not is_help_page("usr/share/doc/text/x.html")

"""Pages of documentation: paired by their paths, aligned where their structure agrees, and nowhere else."""

import gzip
from pathlib import Path

import pytest

from training.corpus.manpages import man_blocks, unescape
from training.corpus.markup import HOLE, Block, declared_entities, markup_blocks
from training.corpus.pages import align, is_page, pair_pages, read_entities, read_pages, tags

LANGUAGES = ("en", "de")
NONE = ({}, {})


def texts(page: str) -> list[str]:
    return [block.text for block in markup_blocks(page)]


def write(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode()) if path.endswith(".gz") else text.encode())
    return file


def test_blocks_are_what_a_reader_sees_as_paragraphs() -> None:
    page = """<html><head><title>No</title><style>p {}</style></head><body><h1>Open a <b>file</b></h1>
    <p>Click<br>here &amp; wait.</p><ul><li>One<li><p>Two</p></ul><pre>code</pre><script>x()</script></body></html>"""
    assert texts(page) == ["Open a file", "Click here & wait.", "One", "Two"]
    assert [block.heading for block in markup_blocks(page)] == [True, False, False, False]


def test_docbook_and_mallard_lose_their_people_indexes_and_listings() -> None:
    page = """<?xml version="1.0"?><chapter><title
    >Usage</title><para>Press <indexterm><primary>keys</primary></indexterm><keycombo><keycap>Ctrl</keycap>
    <keycap>Q</keycap></keycombo>, or <menuchoice><shortcut><keycap>F1</keycap></shortcut><guimenu>File</guimenu>
    <guimenuitem>Quit</guimenuitem></menuchoice>.</para><author><firstname>A</firstname></author>
    <screen>ls</screen></chapter>"""
    assert texts(page) == ["Usage", "Press Ctrl+Q, or File → Quit."]
    mallard = """<page xmlns="m"><info><credit><name>N</name></credit><desc>About it.</desc></info>
    <p>Go to <guiseq><gui>A</gui><gui>B</gui></guiseq>.</p></page>"""
    assert texts(mallard) == ["About it.", "Go to A → B."]


def test_a_block_within_a_block_does_not_cut_it() -> None:
    assert texts("<?xml version='1.0'?><para>One<footnote><para>Note</para></footnote> two.</para>") == [
        "One two.",
        "Note",
    ]


def test_what_the_page_does_not_say_leaves_a_hole() -> None:
    assert texts('<?xml version="1.0"?><page><p>See <link xref="x"/>.</p><p>The &strange; key</p></page>') == [
        f"See {HOLE}.",
        f"The {HOLE} key",
    ]
    assert texts("<p>Click <img src='x.png'> now</p>") == [f"Click {HOLE} now"]


def test_entities_are_explained_by_the_page_and_by_its_neighbours(tmp_path: Path) -> None:
    write(
        tmp_path,
        "kdoctools/customization/entities/general.entities",
        '<!ENTITY kate "<application>Kate</application>">',
    )
    write(
        tmp_path,
        "kdoctools/customization/de/user.entities",
        "<!ENTITY LMB '<mousebutton>linke</mousebutton> Maustaste'>",
    )
    write(tmp_path, "kdoctools/customization/fr/user.entities", '<!ENTITY LMB "gauche">')
    entities = read_entities([tmp_path], "de")
    page = '<?xml version="1.0"?><!DOCTYPE book [<!ENTITY app "&kate;">]><para>&app; &amp; &LMB;</para>'
    assert [block.text for block in markup_blocks(page, entities)] == ["Kate & linke Maustaste"]


def test_entities_that_name_each_other_in_a_ring_end_as_a_hole() -> None:
    assert declared_entities('<!ENTITY a "&b;"><!ENTITY b "&a;">') == {"a": "&b;", "b": "&a;"}
    assert texts('<!ENTITY a "&b;"><!ENTITY b "&a;"><p>x &a;</p>') == [f"x {HOLE}"]


MANUAL = r""".\" comment
.TH LS 1
.SH NAME
ls \- list directory contents
.SH DESCRIPTION
.PP
List \fBfiles\fP.
.B \-a
is
.IR known ,
too.
.TP
.BR \-a ", " \-\-all
do not ignore entries
.nf
verbatim
.fi
After it. \(lqquoted\(rq \[u00E4] \*(Xx
"""


def test_a_manual_page_gives_its_paragraphs_without_fonts_and_verbatim_text() -> None:
    found = [(block.kind, block.text, block.kept) for block in man_blocks(MANUAL)]
    assert found == [
        ("SH", "NAME", True),
        ("first", "ls - list directory contents", True),
        ("SH", "DESCRIPTION", True),
        ("PP", "List files. -a is known, too.", True),
        ("tag", "-a, --all", False),
        ("TP", "do not ignore entries", True),
        ("after nf", f"After it. “quoted” ä {HOLE}", True),
    ]


def test_a_page_in_other_macros_gives_nothing() -> None:
    assert man_blocks(".Dd today\n.Dt LS 1\n.Sh NAME\ntext\n") == []


@pytest.mark.parametrize(("text", "plain"), [(r"\-\-all\&", "--all"), (r"\f[B]x\fR\~y", "x y"), (r"a\eb", "a\\b")])
def test_escapes_become_the_characters_they_mean(text: str, plain: str) -> None:
    assert unescape(text) == plain


def test_pages_are_paired_however_their_paths_name_the_language(tmp_path: Path) -> None:
    paired = [
        ("usr/share/help/C/app/x.page", "usr/share/help/de/app/x.page"),
        ("usr/share/doc/HTML/en/app/index.docbook", "usr/share/doc/HTML/de/app/index.docbook"),
        ("usr/share/man/man1/ls.1.gz", "usr/share/man/de/man1/ls.1.gz"),
        ("usr/share/doc/book/html/en-US/a.html", "usr/share/doc/book/html/de-DE/a.html"),
        ("usr/share/doc/guide/html/b.en.html", "usr/share/doc/guide-de/html/b.de.html"),
        ("usr/share/doc/faq/c.en.html", "usr/share/doc/faq/de/c.de.html"),
        ("usr/share/ref/d.html", "usr/share/ref/de/d.html"),
    ]
    for ours, theirs in paired:
        write(tmp_path / "one", ours, "<p>x</p>")
        write(tmp_path / "two", theirs, "<p>x</p>")
    for alone in ("usr/share/help/fr/app/x.page", "usr/share/help/de/app/only.page", "usr/share/man/fr/man1/ls.1.gz"):
        write(tmp_path / "one", alone, "<p>x</p>")
    found = [
        (ours.relative_to(tmp_path / "one").as_posix(), theirs.relative_to(tmp_path / "two").as_posix())
        for ours, theirs in pair_pages([tmp_path / "one", tmp_path / "two"], LANGUAGES)
    ]
    assert sorted(found) == sorted(paired)


def test_pages_of_other_languages_are_not_even_unpacked() -> None:
    assert is_page("usr/share/help/de/app/x.page", LANGUAGES)
    assert is_page("usr/share/ref/d.html", LANGUAGES)
    assert not is_page("usr/share/help/fr/app/x.page", LANGUAGES)
    assert not is_page("usr/share/doc/guide/b.pt_BR.html", LANGUAGES)
    assert not is_page("usr/share/help/de/app/x.png", LANGUAGES)
    assert tags("de") == {"de", "de-DE", "de_DE"}


def section(*kinds: str, language: str = "English") -> list[Block]:
    title = Block("title", f"{language} title", heading=True)
    return [title, *(Block(kind, f"a text of some length in {language}") for kind in kinds)]


def german(*kinds: str) -> list[Block]:
    return section(*kinds, language="German")


def test_sections_of_equal_structure_are_aligned_and_others_left_out() -> None:
    ours = [*section("p", "p"), *section("p", "li"), *section("p")]
    theirs = [*german("p", "p"), *german("li", "p"), *german("p")]
    assert len(list(align(ours, theirs))) == 3 + 2


def test_a_section_out_of_step_is_left_out_as_a_whole() -> None:
    long = "a much longer text that says a great deal more than the other one does, and then goes on for a while"
    ours = [Block("p", text) for text in ("short", long, "short", long)]
    other = [Block("p", text) for text in (long, "kurz", long, "kurz")]
    alike = [Block("p", text) for text in ("kurz", long.upper(), "kurz", long.upper())]
    assert list(align(ours, other)) == []
    assert len(list(align(ours, alike))) == 4


def test_blocks_that_nobody_translated_and_numbers_of_sections_are_left_out() -> None:
    ours = [Block("p", text) for text in ("systemd.link(5)", "12.3.1. Files", "[7] A note", "1. One", "Version 2. Two")]
    theirs = [
        Block("p", text) for text in ("systemd.link(5)", "12.3.1. Dateien", "[7] Notiz", "2. Zwei", "Fassung 2. Zwei")
    ]
    assert list(align(ours, theirs)) == [
        ("Files", "Dateien"),
        ("A note", "Notiz"),
        ("Version 2. Two", "Fassung 2. Zwei"),
    ]


def test_blocks_with_other_numbers_tags_and_holes_are_no_pairs() -> None:
    ours = [
        Block("p", "in 1999 and 2001"),
        Block("tag", "-a", kept=False),
        Block("p", f"see {HOLE}"),
        Block("p", "fine"),
    ]
    theirs = [Block("p", "in 30 und 31"), Block("tag", "-a", kept=False), Block("p", "siehe"), Block("p", "gut")]
    assert list(align(ours, theirs)) == [("fine", "gut")]


def test_a_translation_may_go_on_longer_but_not_otherwise() -> None:
    ours, more = [*section("p"), *section("p")], [*german("p"), *german("p"), *german("p")]
    assert len(list(align(ours, more))) == 4
    other = [Block("h2", "title", heading=True), Block("p", "text")]
    assert list(align(ours, [*german("p"), *other])) == []


def test_two_files_give_pairs_with_their_origin(tmp_path: Path) -> None:
    ours = write(tmp_path, "man1/x.1.gz", ".TH X 1\n.SH NAME\nx \\- shows text\n")
    theirs = write(
        tmp_path, "de/man1/x.1.gz", ".TH X 1\n.SH BEZEICHNUNG\nx \\- zeigt Text\n.SH ÜBERSETZUNG\nvon jemandem\n"
    )
    found = [(pair.source, pair.target, pair.origin, pair.part) for pair in read_pages(ours, theirs, ("o", "p"), NONE)]
    assert found == [("NAME", "BEZEICHNUNG", "o", "p"), ("x - shows text", "x - zeigt Text", "o", "p")]

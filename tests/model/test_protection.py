"""What is no language is found whole, set aside, and put back; what is language is left alone."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.protection import Protector, carried, renumbered, restore
from model.protection_patterns import HINT, SPAN
from model.tokenizer import SENTINELS

LETTERS = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789äöüÄÖÜßé$%.,:;!?'\"()[]<>/=&#-_`*@{}"
)
EVERYTHING, LATIN = Protector(), Protector(LETTERS)
DENSE = st.text(
    st.sampled_from("ab3. ,\n%s$(){}<>/=\"'&;#@:_-`*~\\|+^🙈\u200dé谢▁" + SENTINELS[0] + SENTINELS[5] + "\uf123")
)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | DENSE


def spans(text: str, protector: Protector = LATIN) -> list[str]:
    return [text[span.start : span.end] for span in protector.spans(text)]


@given(ANY_TEXT, st.sampled_from([EVERYTHING, LATIN]))
def test_what_is_set_aside_comes_back(text: str, protector: Protector) -> None:
    protected = protector.protect(text)
    assert restore(*protected) == text
    assert carried(protected.text, len(protected.spans))


@given(ANY_TEXT)
def test_spans_are_in_order_and_never_touch(text: str) -> None:
    found = LATIN.spans(text)
    assert all(span.start < span.end for span in found)
    assert all(one.end < other.start for one, other in pairwise(found))


@given(ANY_TEXT)
def test_a_text_without_a_hint_has_no_span(text: str) -> None:
    assert HINT.search(text) or not SPAN.search(text)


@given(st.lists(st.sampled_from(["A4", "word", "<b>", "🙈"]), max_size=150).map(" ".join), st.integers(1, 32))
def test_chunks_are_the_text_and_have_few_enough_spans(text: str, most: int) -> None:
    chunks = LATIN.chunks(text, most)
    assert "".join(restore(*chunk) for chunk in chunks) == text
    assert all(len(chunk.spans) <= most and carried(chunk.text, len(chunk.spans)) for chunk in chunks)


def test_the_last_sentinel_stands_for_all_that_is_too_much() -> None:
    text = " x ".join(f"A{i}" for i in range(40)) + " end"
    protected = EVERYTHING.protect(text)
    assert len(protected.spans) == 32
    assert protected.spans[-1].startswith("A31 x A32")
    assert restore(*protected) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # URLs, addresses, paths
        ("See https://example.org/a_b/c-1?x=1&y=%20z#part-2.", ["https://example.org/a_b/c-1?x=1&y=%20z#part-2"]),
        ("(see http://example.org/wiki/X_(Y)).", ["http://example.org/wiki/X_(Y)"]),
        ("Go to www.example.de/a, or <http://a.b/c>!", ["www.example.de/a", "http://a.b/c"]),
        ("Write to info@example.org.", ["info@example.org"]),
        ("Edit /etc/fstab, ~/x or C:\\Users\\me.", ["/etc/fstab", "~/x", "C:\\Users\\me"]),
        ("Open img/a1.png and notes.txt.", ["img/a1.png", "notes.txt"]),
        # placeholders
        ("Hi %1$s, you have %d files in %(place)s.", ["%1$s", "%d", "%(place)s"]),
        ("Rows (100%%) of {0}, {name}, {{ name }} and ${x}", ["100%%", "{0}", "{name}", "{{ name }}", "${x}"]),
        ("Style %STYLE_NAME% of %EXTENSION, %Snow", ["%STYLE_NAME%", "%EXTENSION", "%S"]),
        ("Set $HOME and :name to %1 of %PRODUCTNAME.", ["$HOME", ":name", "%1", "%PRODUCTNAME"]),
        ("cannot open `%s': No such file `%s' here", ["%s", "%s"]),
        # markup, entities, code
        ('<b class="n">Sea</b><i>food</i> <br/>', ['<b class="n">', "</b><i>", "</i>", "<br/>"]),
        ("<a title='x. Y'>Go</a>", ["<a title='x. Y'>", "</a>"]),
        ("It&#39;s R&amp;D&nbsp;time", ["&#39;", "&amp;", "&nbsp;"]),
        ("See [the guide](img/a1.png) and run `x = 1`.", ["](img/a1.png)", "`x = 1`"]),
        ("## **Safety notice**", ["**", "**"]),
        # numbers and words with digits
        ("Pay 3.5 or 1,000 on 2026-11-30 at 10:30.", ["3.5", "1,000", "2026-11-30", "10:30"]),
        ("Use A4, v1.2.3, H2O, K-7 and COVID-19.", ["A4", "v1.2.3", "H2O", "K-7", "COVID-19"]),
        ("VAT no. XX0777700011, ref. 10-00-111.", ["XX0777700011", "10-00-111"]),
        ("Zn2+ rose to 5 mM at 20 Mbps, not 20 MBps.", ["Zn2+", "5", "mM", "20", "Mbps", "20", "MBps"]),
        ("A 50% discount, eine 100%ige Sache", ["50", "100"]),
        ("In the 20th century, the 1990s, at 3-year-olds", ["20", "1990", "3"]),
        # mentions, options, names in code
        ("@me fixed #12 with --help, -f, foo() and max_length", ["@me", "#12", "--help", "-f", "foo()", "max_length"]),
        # what the vocabulary lacks
        ("Our crew 👩‍🔧👨🏽‍🍳 sends 🇫🇮 👍🏿", ["👩‍🔧👨🏽‍🍳", "🇫🇮", "👍🏿"]),
        ("Pay 5 ₿ at 𐍈 or 谢谢, Señor", ["5", "₿", "𐍈", "谢谢", "Señor"]),
        ("a▁b \ue005 c", ["▁", "\ue005"]),
    ],
)
def test_what_is_no_language_is_found_whole(text: str, expected: list[str]) -> None:
    assert spans(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "if a <b and c> d",
        "<name of the file>",
        "and/or his well-known text -- here - and there",
        "e.g. this, i.e. that, z.B. dies, d.h. das",
        "Hello.This is. end.In fact",
        "Save _As O_pen Tom's",
        "Caf\u00e9 and Cafe\u0301, Sommer\u00adferien",
        "as follows: one; two",
        "C# and R&D",
    ],
)
def test_what_is_language_is_left_alone(text: str) -> None:
    assert spans(text) == []


def test_a_part_of_a_protected_text_stands_by_itself() -> None:
    text, held = EVERYTHING.protect("See A4 or B5 or C6.")
    part = renumbered(text[text.index(SENTINELS[1]) :], held)
    assert part == (f"{SENTINELS[0]} or {SENTINELS[1]}.", ("B5", "C6"))


def test_a_sentinel_that_stands_for_nothing_goes() -> None:
    assert restore(f"a {SENTINELS[7]}b {SENTINELS[0]}", ("X",)) == "a b X"
    assert not carried(f"{SENTINELS[0]}{SENTINELS[0]}", 1)


def test_outside_spans_text_can_be_changed() -> None:
    assert EVERYTHING.outside("open %s at <b>x</b>", str.upper) == "OPEN %s AT <b>X</b>"


@pytest.mark.parametrize("head", ["", '<b x="', "http://", "`"])
@pytest.mark.parametrize(
    "unit", ["! ", "a.", "/a", "<a ", "{", "%", "&a", "`a ", "a_", "1-", "a@", "\\", "((", "[x](", "a/"]
)
def test_no_text_takes_long(head: str, unit: str) -> None:
    started = time.process_time()
    LATIN.protect(head + unit * 20_000)
    assert time.process_time() - started < 2.0

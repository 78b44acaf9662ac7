from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.segments import SEAM, Piece, join, refine, split

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text(
    st.sampled_from('aB1.!?…。，、 \t\n\r\0-*#>)("“ é\u0301🙈\u200d\ufe0f\u2028')
)
"""Any Unicode, lone surrogates included, and texts dense in what the rules look at."""
LANGUAGES = st.sampled_from(["en", "de", "zh", "xx"])


def sentences(text: str, language: str = "en") -> list[str]:
    return [piece.text for piece in split(text, language) if piece.translate]


def kept(text: str, language: str = "en") -> list[str]:
    return [piece.text for piece in split(text, language) if not piece.translate]


@given(ANY_TEXT, LANGUAGES)
def test_the_pieces_of_a_text_are_the_text(text, language):
    assert join(split(text, language)) == text


@given(ANY_TEXT, LANGUAGES)
def test_what_is_translated_is_language_without_white_space_or_control_characters_around_it(text, language):
    for sentence in sentences(text, language):
        assert sentence == sentence.strip()
        assert any(map(str.isalpha, sentence))
        assert not any(c < " " or c in "\x7f\x85\u2028\u2029" for c in sentence)


@given(ANY_TEXT, LANGUAGES)
def test_no_letter_is_left_out_of_translation_but_a_list_marker(text, language):
    for piece in split(text, language):
        if not piece.translate and any(map(str.isalpha, piece.text)):
            assert piece.text.strip().lstrip("#>-*+•‣▪◦–—· [xX]()").lower().rstrip(") ").isalpha()


@given(ANY_TEXT, st.integers(1, 20))
def test_a_refined_piece_is_the_piece_and_fits(text, limit):
    for piece in split(text, "en"):
        parts = refine(piece, len, limit)
        assert join(parts) == piece.text
        assert all(len(part.text) <= limit for part in parts if part.translate)


@pytest.mark.parametrize(
    "end", ["\n", "\r\n", "\r", "\n\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\t", "\0", "\x1e"]
)
def test_line_ends_and_other_control_characters_are_walls(end):
    assert split(f"One fish{end}two fish", "en") == [
        Piece("One fish", True),
        Piece(end, False),
        Piece("two fish", True),
    ]


def test_blank_lines_and_outer_white_space_are_kept():
    assert split("\n  First line here.\n\n\u00a0Third.  \n", "en") == [
        Piece("\n", False),
        Piece("  ", False),
        Piece("First line here.", True),
        Piece("\n\n", False),
        Piece("\u00a0", False),
        Piece("Third.", True),
        Piece("  ", False),
        Piece("\n", False),
    ]


@pytest.mark.parametrize(
    "text", ["", " ", "-", "…", "\t", "\n", "?", "12345", "3.", "€ 3.50", "🙈", "-- 10:30 --", "! " * 4000, "9" * 4000]
)
def test_what_has_no_letters_is_not_for_the_model(text):
    assert sentences(text) == []


def test_a_number_or_sign_beside_letters_is_for_the_model():
    assert sentences("18.2 C") == ["18.2 C"]
    assert sentences("K-7") == ["K-7"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello Maria. Tom, call me at 15:40.", ["Hello Maria.", "Tom, call me at 15:40."]),
        ("Stop! Who is there? It is I.", ["Stop!", "Who is there?", "It is I."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("It ended (in rain.) We left.", ["It ended (in rain.)", "We left."]),
        ("**Bold.** Next.", ["**Bold.**", "Next."]),
        ("A fact.[12] Another fact.", ["A fact.[12]", "Another fact."]),
        ("Is it? (whispering) Answer me, please.", ["Is it?", "(whispering) Answer me, please."]),
        ('"Then what?" - asks Ann.', None),
        ('"Stop!" she said. "Why?" – "Because."', ['"Stop!" she said.', '"Why?"', '– "Because."']),
        ("It opens at 5 p.m. (see below).", None),
        ("Wait… What? Well... go on.", ["Wait…", "What?", "Well... go on."]),
        ("Prices rose by 3.5 percent. 40 shops closed.", ["Prices rose by 3.5 percent.", "40 shops closed."]),
        ("Dr. Smith and Mr. Jones, e.g. in St. Ives, met Prof. Lee.", None),
        ("J. R. R. Tolkien wrote it.", None),
        ("She joined the U.S. Army in May.", None),
        ("See No. 5, Fig. 3 and p. 7.", None),
        ("I said no. Then I left.", ["I said no.", "Then I left."]),
        ("It opens at 9 a.m. The bar is shut.", ["It opens at 9 a.m.", "The bar is shut."]),
        ("It opens at 9 a.m. on Sundays.", None),
        ("Open example.com. Then read main.py.", ["Open example.com.", "Then read main.py."]),
        ("It was built in 1990. Then came the war.", ["It was built in 1990.", "Then came the war."]),
        ("Yahoo! is a company.", None),
        ("No space.Here.", None),
        ("¿Qué? ¡Nada! Adiós.", ["¿Qué?", "¡Nada!", "Adiós."]),
    ],
)
def test_english_sentences(text, expected):
    assert sentences(text) == (expected or [text])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Das gilt z. B. Montags. Dann nicht.", ["Das gilt z. B. Montags.", "Dann nicht."]),
        ("Am 3. Oktober kam Dr. Weiß, d. h. Anna.", None),
        ("Im 19. Jahrhundert war das so.", None),
        ("3. Oktober ist Feiertag.", None),
        ("Siehe Nr. 5 und Abb. 3.", None),
        ("Das war 1990. Danach nicht.", ["Das war 1990.", "Danach nicht."]),
        ("„Was?“ Er lachte. »Nichts.« Ende.", ["„Was?“", "Er lachte.", "»Nichts.«", "Ende."]),
    ],
)
def test_german_sentences(text, expected):
    assert sentences(text, "de") == (expected or [text])


def test_chinese_sentences_need_no_white_space_and_leave_seams():
    text = "今天下雨了。我们明天再去！好吗？“可以。”他说"
    pieces = split(text, "zh")
    assert [p.text for p in pieces if p.translate] == ["今天下雨了。", "我们明天再去！", "好吗？", "“可以。”", "他说"]
    assert pieces.count(SEAM) == 4
    assert pieces[-1].text == "他说"


def test_a_full_stop_of_full_width_inside_a_number_is_no_end():
    assert sentences("它是３．５米。好", "zh") == ["它是３．５米。", "好"]


@pytest.mark.parametrize(
    "marker",
    ["1. ", "12) ", "(3) ", "a) ", "- ", "* ", "• ", "– ", "## ", "> ", "> > - ", "- [ ] ", "* [x] ", "  - ", "\t* "],
)
def test_a_marker_at_the_start_of_a_line_is_kept_exactly_once(marker):
    text = f"Reasons:\n{marker}Lower running cost\n{marker}Faster setup"
    assert sentences(text) == ["Reasons:", "Lower running cost", "Faster setup"]
    assert "".join(kept(text)).count(marker.strip()) == 2


def test_a_german_list_may_have_numbers_before_nouns():
    assert kept("1. Lager\n2. Küche", "de") == ["1. ", "\n", "2. "]


def test_a_minus_sign_is_no_marker():
    assert sentences("-5 degrees") == ["-5 degrees"]


def test_cells_of_a_table_stay_in_their_columns():
    text = "2031-05-02\t08:15:00\tAda\tThe door is open :)\n"
    assert sentences(text) == ["Ada", "The door is open :)"]
    assert kept(text) == ["2031-05-02", "\t", "08:15:00", "\t", "\t", "\n"]


@pytest.mark.parametrize("emoji", ["🙈", "👩‍🔧", "👨🏽‍🍳", "🇫🇮", "👍🏿", "❤️", "1️⃣", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "☎", "✅"])
def test_an_emoji_is_kept_whole_and_hides_nothing(emoji):
    text = f"The bus was late again. {emoji} We still got there."
    assert sentences(text) == ["The bus was late again.", "We still got there."]
    assert emoji in kept(text)


def test_a_long_sentence_is_cut_after_clauses_into_parts_of_like_length():
    text = "A holder with a base, a ring, a spring, a pin, a cap, a plug, a gasket and a label, with the code 9917."
    parts = [p.text for p in refine(Piece(text, True), len, 60) if p.translate]
    assert parts == [
        "A holder with a base, a ring, a spring, a pin, a cap,",
        "a plug, a gasket and a label, with the code 9917.",
    ]


def test_a_long_sentence_without_clauses_is_cut_between_words():
    parts = refine(Piece("ha " * 20 + "ha", True), len, 20)
    assert join(parts) == "ha " * 20 + "ha"
    assert all(set(p.text.split()) <= {"ha"} for p in parts)


def test_a_long_word_is_cut_but_not_between_a_letter_and_its_accents():
    text = "e\u0301" * 50
    parts = refine(Piece(text, True), len, 15)
    assert join(parts) == text
    assert all(p.text.startswith("e") and p.text.endswith("\u0301") for p in parts if p.translate)


def test_chinese_clauses_leave_seams_where_they_are_cut():
    parts = refine(Piece("我们去了学校，他们去了医院，你去了哪里", True), len, 8)
    assert [p.text for p in parts] == ["我们去了学校，", "", "他们去了医院，", "", "你去了哪里"]


def test_costs_that_do_not_add_up_are_respected():
    def costly(text: str) -> int:
        return len(text) ** 2

    text = "one, two, three, four, five"
    parts = refine(Piece(text, True), costly, 120)
    assert join(parts) == text
    assert all(costly(p.text) <= 120 for p in parts if p.translate)


@pytest.mark.parametrize(
    "unit",
    [
        "!",
        ".",
        ". ",
        "! ",
        "a",
        "ha ",
        "=-",
        "a.",
        "a. ",
        "(",
        ") ",
        '."',
        "\n",
        "🙈",
        "。",
        "a.a.",
        "1. ",
        "- ",
        "* ",
        "[1]",
        ". [1]",
    ],
)
def test_no_text_takes_long(unit):
    text = unit * (50_000 // len(unit))
    began = time.process_time()
    assert join(split(text, "en")) == text
    assert time.process_time() - began < 2

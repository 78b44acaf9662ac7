"""Held-out text is found again in every disguise, and by a fast way that finds what the slow way finds."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from training.corpus.holdout import NearDuplicates, draw
from training.corpus.pair import Pair
from training.corpus.recipe import HoldoutRecipe
from training.corpus.words import key, words

HELD = Pair("Could not open the file %s for writing.", "Datei %s konnte nicht zum Schreiben geöffnet werden.")
WATCH = NearDuplicates([HELD], 0.7)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("could not open the file “{name}” for writing", "same-source"),
        ("COULD NOT OPEN THE FILE 17 FOR WRITING!!", "same-source"),
        ("Could not open file %s for writing.", "similar-source"),
        ("For writing, the file %s could not open", "similar-source"),
        (
            "Sorry, but the program could not open the file %s for writing to the disk today.",
            "contained-source",
        ),
        ("not open the file", "contained-source"),
        ("open the file", None),
        ("The printer is on fire.", None),
        ("", None),
        ("12 %d", None),
    ],
)
def test_a_held_out_source_is_found_in_disguise(source: str, reason: str | None) -> None:
    assert WATCH.find(Pair(source, "anders")) == reason


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (HELD.target.upper(), "same-target"),
        ("Datei konnte nicht zum Schreiben geöffnet werden", "same-target"),
        ("Konnte Datei %s nicht zum Schreiben geöffnet sein werden?", "similar-target"),
        (
            "Leider: Datei %s konnte nicht zum Schreiben geöffnet werden, was uns sehr betrübt.",
            "contained-target",
        ),
        ("konnte nicht zum Schreiben", "contained-target"),
        ("nicht zum Schreiben", None),
        ("", None),
    ],
)
def test_a_held_out_translation_is_found_behind_another_source(target: str, reason: str | None) -> None:
    assert WATCH.find(Pair("The disk is full.", target)) == reason


def test_an_empty_held_out_translation_matches_nothing() -> None:
    assert NearDuplicates([Pair("One two three four", "12")], 0.7).find(Pair("Other", "34")) is None


def test_words_of_ideographs_count_one_by_one() -> None:
    assert words("打开 File 文件") == ("打", "开", "file", "文", "件")
    assert key("Öffne %s, <b>3</b> https://example.org &amp; mehr!") == "öffne mehr"


def slow(pair: Pair, held_out: list[Pair], threshold: float) -> str | None:
    """The same definition, said plainly: every held-out pair is looked at for every reason, on both sides."""

    def same(text: tuple[str, ...], other: tuple[str, ...]) -> bool:
        return text == other != ()

    def similar(text: tuple[str, ...], other: tuple[str, ...]) -> bool:
        both, union = set(text) & set(other), set(text) | set(other)
        return bool(union) and len(both) / len(union) >= threshold - 1e-9

    def contained(text: tuple[str, ...], other: tuple[str, ...]) -> bool:
        def within(inner: tuple[str, ...], outer: tuple[str, ...]) -> bool:
            return inner in [outer[i : i + len(inner)] for i in range(len(outer) - len(inner) + 1)]

        contains = len(other) >= 4 and within(other, text)
        return contains or (len(text) >= 4 and len(text) >= len(other) / 2 and within(text, other))

    for way in (same, similar, contained):
        for side in ("source", "target"):
            texts = [words(getattr(held, side)) for held in held_out]
            if any(way(words(getattr(pair, side)), text) for text in texts):
                return f"{way.__name__}-{side}"
    return None


TEXTS = st.lists(st.sampled_from("abcdefgh"), max_size=14).map(" ".join)
SOME = st.lists(st.builds(Pair, TEXTS, TEXTS | st.sampled_from("xyz")), max_size=4)


@given(SOME, SOME, st.sampled_from([0.3, 0.5, 0.7, 0.8, 1.0]))
@example([Pair("a b c d e f g", "x")], [Pair("a b c d e f g h i j", "y")], 0.7)
def test_the_index_finds_what_a_search_of_all_pairs_finds(
    held_out: list[Pair], others: list[Pair], threshold: float
) -> None:
    watch = NearDuplicates(held_out, threshold)
    for pair in [*held_out, *others]:
        assert watch.find(pair) == slow(pair, held_out, threshold)


CORPUS = [Pair(f"this is text number {a} and {b}", f"Text {a} {b}") for a in "abcdefghijk" for b in "lmnopqrstuv"]


def test_a_drawing_has_the_sizes_asked_for_and_no_short_texts() -> None:
    held = draw([*CORPUS, Pair("too short", "x")], HoldoutRecipe(test=5, dev=4, min_words=3), "s", 1.0)
    assert (len(held.test), len(held.dev)) == (5, 4)
    assert "too short" not in {pair.source for pair in (*held.test, *held.dev)}


def test_a_source_is_held_out_once_whatever_its_translations() -> None:
    doubled = [variant for pair in CORPUS for variant in (pair, Pair(pair.source.upper() + "!", "anders"))]
    held = draw(doubled, HoldoutRecipe(test=60, dev=60), "s", 1.0)
    keys = [key(pair.source) for pair in (*held.test, *held.dev)]
    assert len(set(keys)) == len(keys)


def test_no_dev_pair_resembles_a_test_pair() -> None:
    held = draw(CORPUS, HoldoutRecipe(test=3, dev=200), "s", 0.7)
    watch = NearDuplicates(held.test, 0.7)
    assert len(held.dev) < 200
    assert all(watch.find(pair) is None for pair in held.dev)


def test_a_drawing_is_the_same_whatever_the_order_and_other_texts_disturb_it_little() -> None:
    sizes = HoldoutRecipe(test=20)
    first = draw(CORPUS, sizes, "s", 1.0).test
    assert draw(CORPUS[::-1], sizes, "s", 1.0).test == first
    grown = draw([*CORPUS, Pair("one more text that is new", "neu")], sizes, "s", 1.0).test
    assert len(set(first) - set(grown)) <= 1
    assert draw(CORPUS, sizes, "another seed", 1.0).test != first


def test_a_drawing_from_too_little_gives_what_there_is() -> None:
    held = draw(CORPUS[:3], HoldoutRecipe(test=2, dev=9), "s", 1.0)
    assert (len(held.test), len(held.dev)) == (2, 1)
    assert {*held.test, *held.dev} == set(CORPUS[:3])

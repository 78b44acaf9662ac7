"""Each pair stays once, the most frequent translation wins, and chance is the same chance every time."""

from hypothesis import given
from hypothesis import strategies as st

from training.corpus.duplicates import cap, lottery, unique
from training.corpus.pair import Pair

LETTERS = st.sampled_from("abc")
PAIRS = st.lists(st.builds(Pair, LETTERS, LETTERS, st.just("o")), max_size=30)


def pairs(*texts: str, origin: str = "o") -> list[Pair]:
    return [Pair(*text.split("="), origin) for text in texts]


def test_the_most_frequent_translation_stays() -> None:
    assert unique(pairs("File=Feile", "File=Datei", "Open=Auf", "File=Datei"), {"o": 1}) == pairs(
        "File=Datei", "Open=Auf"
    )


def test_of_equal_votes_the_first_stays() -> None:
    assert unique(pairs("File=Datei", "File=Feile"), {"o": 1}) == pairs("File=Datei")


def test_an_origin_may_keep_several_translations() -> None:
    kept = unique(pairs("Hi=Hallo", "Hi=Tag", "Hi=Moin", "Hi=Moin"), {"o": 2})
    assert kept == pairs("Hi=Hallo", "Hi=Moin")


@given(PAIRS, st.integers(1, 3))
def test_no_pair_is_there_twice_and_every_source_is_still_there(raw: list[Pair], limit: int) -> None:
    kept = unique(raw, {"o": limit})
    both = [(pair.source, pair.target) for pair in kept]
    assert len(set(both)) == len(both)
    assert {pair.source for pair in kept} == {pair.source for pair in raw}
    assert all(sum(pair.source == one.source for pair in kept) <= limit for one in kept)
    assert unique(kept, {"o": limit}) == kept


@given(st.lists(st.builds(Pair, st.text(max_size=3), st.just("x")), max_size=20), st.integers(1, 20))
def test_a_cap_keeps_order_and_picks_the_same_again(raw: list[Pair], limit: int) -> None:
    kept = cap(raw, limit, "seed")
    assert len(kept) == min(limit, len(raw))
    assert kept == cap(raw, limit, "seed")
    positions = iter(raw)
    assert all(any(pair is one for one in positions) for pair in kept)


def test_a_cap_of_nothing_keeps_all() -> None:
    assert cap(pairs("a=b", "c=d"), 0, "s") == pairs("a=b", "c=d")


def test_the_lottery_depends_on_seed_and_text_alone() -> None:
    assert lottery("a", "x") == lottery("a", "x")
    assert len({lottery("a", "x"), lottery("b", "x"), lottery("a", "y")}) == 3
    assert lottery("dragoman", "open the file").hex() == "4b14e903d6504bf3"

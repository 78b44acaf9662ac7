"""Text to ids and back: one normal form, special ids in one place, and no input that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece as spm
from hypothesis import given
from hypothesis import strategies as st

from model.errors import TokenizerError
from model.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, normalize
from tests.model.networks import TEXTS, train_tokenizer

INVISIBLE = "\u00ad\u200b\u2060\ufeff"
TRICKY = st.text(st.sampled_from("aeE\u0301\u0308\u00e9 ﬁ…㎏\uac00\u1100\u1161" + INVISIBLE))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(train_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@given(st.text() | TRICKY)
def test_normalising_twice_changes_nothing_more(text: str) -> None:
    assert normalize(normalize(text)) == normalize(text)


@given(TRICKY)
def test_what_cannot_be_seen_makes_no_difference(text: str) -> None:
    assert normalize(text) == normalize("".join(c for c in text if c not in INVISIBLE))


def test_compatibility_characters_stay_what_they_are() -> None:
    text = "Ｎｏ．５ … ㎏ ﬁnal ︰ ŀ"
    assert normalize(text) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Cafe\u0301 Zu\u0308rich, nai\u0308ve ide\u0301e", "Café Zürich, naïve idée"),
        ("Sommer\u00adferien\u00adwoh\u00adnung", "Sommerferienwohnung"),
        ("\ufeffGood morning, team.", "Good morning, team."),
    ],
)
def test_two_spellings_of_one_text_have_the_same_ids(tokenizer: Tokenizer, one: str, other: str) -> None:
    assert tokenizer.encode(one) == tokenizer.encode(other)


def test_the_end_is_marked_and_nothing_else_is_added(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("") == [EOS_ID]
    ids = tokenizer.encode(TEXTS[0])
    assert ids[-1] == EOS_ID
    assert {PAD_ID, BOS_ID, EOS_ID, UNK_ID}.isdisjoint(ids[:-1])


def test_special_ids_are_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXTS[0])
    assert tokenizer.decode([BOS_ID, *ids, PAD_ID, UNK_ID]) == TEXTS[0]


def test_the_name_of_a_special_symbol_is_text_like_any_other(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("</s><pad><0x41>")
    assert ids.count(EOS_ID) == 1
    assert tokenizer.decode(ids) == "</s><pad><0x41>"


@given(ids=st.lists(st.integers(0, 383), max_size=12))
def test_whatever_ids_a_network_makes_are_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    tokenizer.decode(ids).encode("utf-8")  # raises for what is no Unicode text


def test_a_character_spelt_in_bytes_comes_back_and_a_part_of_one_is_a_sign_of_damage(tokenizer: Tokenizer) -> None:
    text = "5 ₿ 𐍈 𝄞"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    damaged = tokenizer.decode(ids[:-2])
    assert "\ufffd" in damaged
    assert "<0x" not in damaged


def test_a_missing_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="there is no file"):
        Tokenizer(tmp_path / "none.model")
    (tmp_path / "damaged.model").write_bytes(b"this is no tokenizer")
    with pytest.raises(TokenizerError, match="must be a SentencePiece model"):
        Tokenizer(tmp_path / "damaged.model")


def test_a_vocabulary_with_other_special_ids_is_refused(tmp_path: Path) -> None:
    prefix = tmp_path / "other"
    spm.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXTS), model_prefix=str(prefix), vocab_size=100, model_type="bpe", minloglevel=2
    )
    with pytest.raises(TokenizerError, match=r"must be 0, 1, 2, 3 in .*, but are \(-1, 1, 2, 0\)"):
        Tokenizer(prefix.with_suffix(".model"))

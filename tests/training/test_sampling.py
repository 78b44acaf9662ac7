"""Subword regularisation: other cuts every epoch, the same for everyone who asks, and always the same text."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import service
from model.tokenizer import EOS_ID, SENTINELS, Tokenizer
from training.batches import Pairs, encode_pairs, plan_epoch
from training.recipe import RecipeError
from training.sampling import SubwordSampler, unigram_cuts

VOCABULARY = Path(service.__file__).parent / "bundled/en-de/tokenizer.model"
TEXT = [
    ("The file could not be opened.", "Die Datei konnte nicht geöffnet werden."),
    ("Unbelievable conversations", "Unglaubliche Unterhaltungen, 12 Stück"),
    ("Save the document before closing", "Dokument vor dem Schließen speichern"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(VOCABULARY)


def sampled(tokenizer: Tokenizer, alpha: float, text: list[tuple[str, str]], max_length: int = 128) -> Pairs:
    sampler = SubwordSampler(unigram_cuts(tokenizer), alpha, max_length)
    return encode_pairs(text, tokenizer, max_length, None, sampler)


def ids(pairs: Pairs) -> list[list[int]]:
    return [side.tolist() for side in [*pairs.sources, *pairs.targets]]


def test_every_epoch_cuts_anew_but_spells_the_same_text(tokenizer: Tokenizer) -> None:
    pairs = sampled(tokenizer, 0.1, TEXT)
    epochs = [pairs.of_epoch(1, epoch) for epoch in range(4)]
    assert len({str(ids(epoch)) for epoch in epochs}) == 4
    for epoch in epochs:
        for sources, targets, (source, target) in zip(epoch.sources, epoch.targets, TEXT, strict=True):
            assert (sources[-1], targets[-1]) == (EOS_ID, EOS_ID)
            assert (tokenizer.decode(sources.tolist()), tokenizer.decode(targets.tolist())) == (source, target)


def test_the_cuts_of_an_epoch_depend_on_seed_and_epoch_alone(tokenizer: Tokenizer) -> None:
    pairs, others = sampled(tokenizer, 0.2, TEXT), sampled(tokenizer, 0.2, TEXT)
    others.of_epoch(1, 0)  # what was asked before does not matter
    assert ids(pairs.of_epoch(1, 3)) == ids(others.of_epoch(1, 3)) == ids(others.of_epoch(1, 2).of_epoch(1, 3))
    assert ids(pairs.of_epoch(2, 3)) != ids(pairs.of_epoch(1, 3))


def test_a_steep_alpha_is_the_tokenizer_itself(tokenizer: Tokenizer) -> None:
    pairs = sampled(tokenizer, 1000.0, TEXT)
    assert ids(pairs.of_epoch(1, 0)) == ids(pairs)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]) | st.sampled_from("  ▁eäß."))
        .map(str.strip)
        .filter(bool),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 3),
)
def test_whatever_the_text_the_usual_cuts_of_its_words_are_its_usual_cut(texts: list[str], epoch: int) -> None:
    tokenizer = Tokenizer(VOCABULARY)
    steep = sampled(tokenizer, 1e6, [(text, text) for text in texts], 400)
    assert ids(steep.of_epoch(1, epoch)) == ids(steep)


def test_sentinels_and_characters_spelt_in_bytes_are_never_cut_otherwise(tokenizer: Tokenizer) -> None:
    cuts = unigram_cuts(tokenizer)
    for word in ("日本", f"a{SENTINELS[0]}b", "€𝄞"):
        assert cuts(word) == [(tokenizer.encode(word)[:-1], 0.0)]


def test_a_text_that_a_draw_would_make_too_long_keeps_its_usual_cut(tokenizer: Tokenizer) -> None:
    longest = max(len(tokenizer.encode(text)) for pair in TEXT for text in pair)
    pairs = sampled(tokenizer, 0.01, TEXT, longest)
    drawn = [pairs.of_epoch(1, epoch) for epoch in range(10)]
    assert all(len(side) <= longest for epoch in drawn for side in [*epoch.sources, *epoch.targets])
    assert len({str(ids(epoch)) for epoch in drawn}) > 1


def test_cuts_are_drawn_as_often_as_their_probability_to_the_power_of_alpha(tokenizer: Tokenizer) -> None:
    def cuts(_word: str) -> list[tuple[list[int], float]]:
        return [([5], np.log(0.64)), ([6, 7], np.log(0.16)), ([8], np.log(0.04))]

    sampler = SubwordSampler(cuts, 0.5, 10)
    for _ in range(20_000):
        sampler.add(("word", "word"), ([5, EOS_ID], [5, EOS_ID]))
    sources, _ = sampler.sample(1, 0)
    shares = [sum(text[0] == first for text in sources) / len(sources) for first in (5, 6, 8)]
    assert shares == pytest.approx([0.8 / 1.4, 0.4 / 1.4, 0.2 / 1.4], abs=0.015)


def test_the_plan_is_made_of_the_lengths_of_its_epoch(tokenizer: Tokenizer) -> None:
    pairs = sampled(tokenizer, 0.1, TEXT * 30).of_epoch(1, 2)
    for batch in plan_epoch(pairs, 120, seed=1, epoch=2):
        assert len(batch) * pairs.lengths[batch].max() <= 120


def test_a_vocabulary_whose_pieces_cross_spaces_is_refused() -> None:
    sampler = SubwordSampler(lambda _word: [([5], 0.0)], 0.1, 10)
    with pytest.raises(RecipeError, match="cut across its spaces"):
        sampler.add(("two words", "zwei Wörter"), ([9, EOS_ID], [9, EOS_ID]))

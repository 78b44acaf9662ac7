"""Weights of sources: how often an epoch shows a pair, exactly, whoever asks."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.test_batches import pairs_of
from training.batches import Pairs, plan_epoch
from training.corpus.errors import CorpusError
from training.recipe import RecipeError
from training.weights import draw, line_weights, source_weights

WEIGHTS = st.lists(st.floats(0, 5), min_size=1, max_size=50)


def counted(weights: list[float], seed: int, epoch: int) -> np.ndarray:
    return np.bincount(draw(np.array(weights), seed, epoch), minlength=len(weights))


@given(WEIGHTS, st.integers(0, 9), st.integers(1, 12))
def test_after_any_number_of_epochs_a_pair_was_shown_as_often_as_its_weight_says_to_within_one(
    weights: list[float], seed: int, epochs: int
) -> None:
    shown = sum(counted(weights, seed, epoch) for epoch in range(epochs))
    assert np.all(np.abs(shown - epochs * np.array(weights)) < 1 + 1e-6)


@given(WEIGHTS, st.integers(0, 9), st.integers(0, 100))
def test_in_one_epoch_a_pair_is_shown_its_weight_rounded_down_or_up(
    weights: list[float], seed: int, epoch: int
) -> None:
    shown = counted(weights, seed, epoch)
    assert np.all(shown >= np.floor(weights))
    assert np.all(shown <= np.floor(weights) + 1)


def test_half_of_a_source_is_shown_in_one_epoch_and_the_other_half_in_the_next() -> None:
    first, second = (counted([0.5] * 1000, 1, epoch) for epoch in (0, 1))
    assert np.all(first + second == 1)
    assert 400 < first.sum() < 600


def test_a_plan_holds_pairs_as_often_as_drawn_and_still_keeps_its_budget() -> None:
    plain = pairs_of([(2 + i % 30, 2 + i % 17) for i in range(300)])
    weights = np.repeat([0.0, 0.25, 1.0, 3.0], 75)
    pairs = Pairs(plain.sources, plain.targets, weights=weights)
    plan = plan_epoch(pairs, 100, seed=1, epoch=4)
    assert np.array_equal(np.sort(np.concatenate(plan)), draw(weights, 1, 4))
    assert all(len(batch) * pairs.lengths[batch].max() <= 100 for batch in plan)
    assert [b.tolist() for b in plan] == [b.tolist() for b in plan_epoch(pairs, 100, seed=1, epoch=4)]


def test_weights_of_one_show_every_pair_once() -> None:
    plain = pairs_of([(2 + i % 30, 2 + i % 17) for i in range(300)])
    pairs = Pairs(plain.sources, plain.targets, weights=np.ones(300))
    assert sorted(np.concatenate(plan_epoch(pairs, 100, seed=1, epoch=0)).tolist()) == list(range(300))


def test_lines_get_the_weight_of_their_source(tmp_path: Path) -> None:
    origins = tmp_path / "train.origin"
    origins.write_text("help\ntalk\nhelp\n")
    assert line_weights(origins, {"talk": 2.5}, 3) == [1.0, 2.5, 1.0]
    assert line_weights(tmp_path / "not there", {}, 3) is None


def test_a_source_without_pairs_has_its_weight_in_vain(tmp_path: Path) -> None:
    """It was optional, or everything that it says stands elsewhere too."""
    origins = tmp_path / "train.origin"
    origins.write_text("help\ntalk\nhelp\n")
    assert line_weights(origins, {"talk": 2.5, "tatoeba": 3.0}, 3) == [1.0, 2.5, 1.0]


def test_weights_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    origins = tmp_path / "train.origin"
    origins.write_text("help\ntalk\nhelp\n")
    with pytest.raises(CorpusError, match="4 pairs, but has 3 lines"):
        line_weights(origins, {"talk": 2.0}, 4)
    with pytest.raises(CorpusError, match=r"the largest is 0\.5"):
        line_weights(origins, {"talk": 0.5, "help": 0.1}, 3)


def test_the_recipe_gives_weights_to_sources() -> None:
    sections = {"source": {name: {"kind": "tsv"} for name in ("help", "talk", "rare")}}
    sections["source"]["talk"]["weight"] = 2
    sections["source"]["rare"]["weight"] = 0.5
    assert source_weights(sections) == {"talk": 2.0, "rare": 0.5}
    assert source_weights({}) == {}


@pytest.mark.parametrize("weight", [-1, "much", True, float("nan"), float("inf")])
def test_a_weight_is_a_number_from_zero_up(weight: object) -> None:
    with pytest.raises(RecipeError, match=r"\[source.talk\] weight"):
        source_weights({"source": {"talk": {"kind": "tsv", "weight": weight}}})


@pytest.mark.parametrize("misspelt", [{"weight": 2}, 3])
def test_a_weight_of_no_source_is_refused(misspelt: object) -> None:
    with pytest.raises(RecipeError, match=r"\[source.tlak\] must be a source and say its kind"):
        source_weights({"source": {"talk": {"kind": "tsv"}, "tlak": misspelt}})

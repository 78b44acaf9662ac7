"""The whole engine against another one with the same weights: graphs, caches, batching and search, token for token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from model.decode.batcher import Batcher, BatcherLimits
from model.decode.options import DecodeOptions, SpecialIds
from model.decode.search import BeamSearch
from tests.model.networks import VARIANTS, exported, random_sources

if TYPE_CHECKING:
    from tests.benchmarks.ctranslate2_twin import Twin

pytest.importorskip("ctranslate2", reason="the extra `bench` is not installed")

Translation = tuple[tuple[int, ...], float]
"""Ids and log-probability."""

LIMIT = 40
COUNT = 100


def among_the_best(finish: Callable[..., None]) -> Callable[..., None]:
    """`BeamSearch._finish`, but only from among the best W candidates may a hypothesis finish, as in CTranslate2.

    Ours looks at 2W. It so finds every ending that theirs finds, and some more probable ones that theirs passes over.
    """

    def finish_some(self: BeamSearch, ends: np.ndarray, *rest: object) -> None:
        finish(self, ends & (np.arange(ends.shape[1]) < self.width), *rest)

    return finish_some


@pytest.fixture(params=VARIANTS)
def variant(request):
    return request.param


@pytest.fixture
def twin(variant, tmp_path):
    from tests.benchmarks.ctranslate2_twin import Twin, write_model

    made = exported(variant)
    return Twin(made.config, write_model(made.config, made.network.state_dict(), tmp_path / "twin"), "f32")


def sources(variant: str) -> list[list[int]]:
    """Random ids of mixed lengths. CTranslate2 does not translate a source of EOS alone."""
    config = exported(variant).config
    lengths = np.random.default_rng(0).integers(2, LIMIT, COUNT)
    return random_sources(config, tuple(map(int, lengths)), seed=1)


def ours(variant: str, beam_size: int, eos_id: int) -> list[Translation]:
    """Each sentence decoded in flight with 16 slots."""
    made = exported(variant)
    special = SpecialIds(bos_id=made.config.bos_id, eos_id=eos_id)
    batcher = Batcher(made.stepper(), BatcherLimits(max_slots=16), special=special)
    for row, source in enumerate(sources(variant)):
        batcher.add(row, source, DecodeOptions(beam_size=beam_size, length_penalty=0.0, max_length=LIMIT))
    found = {}
    while not batcher.idle:
        found |= {finished.key: finished.hypotheses[0] for finished in batcher.step()}
    return [(found[row].ids, found[row].log_prob) for row in range(COUNT)]


def paired(variant: str, twin: Twin, beam_size: int) -> list[tuple[Translation, Translation]]:
    """Ours and theirs, without the sentences whose beam reached the limit: of those we prefer what finished before,
    and they the more probable."""
    results = twin.translate(twin.words(sources(variant)), LIMIT, beam_size=beam_size, return_scores=True)
    theirs = [(ids, result.scores[0]) for ids, result in zip(twin.ids(results), results, strict=True)]
    both = zip(ours(variant, beam_size, exported(variant).config.eos_id), theirs, strict=True)
    kept = [(our, their) for our, their in both if beam_size == 1 or len(their[0]) < LIMIT]
    assert len(kept) > COUNT // 10
    return kept


@pytest.mark.parametrize("beam_size", [1, 4])
def test_ids_equal_those_of_ctranslate2(variant, twin, beam_size, monkeypatch):
    monkeypatch.setattr(BeamSearch, "_finish", among_the_best(BeamSearch._finish))
    pairs = paired(variant, twin, beam_size)
    assert [ids for (ids, _), _ in pairs] == [ids for _, (ids, _) in pairs]
    np.testing.assert_allclose(
        [log_prob for (_, log_prob), _ in pairs], [log_prob for _, (_, log_prob) in pairs], rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize("beam_size", [1, 4])
def test_ids_of_forced_length_equal_those_of_ctranslate2(variant, twin, beam_size):
    """What the benchmark times: PAD ends a sentence, and never comes."""
    theirs = twin.forced(twin.words(sources(variant)), LIMIT, beam_size)
    found = [ids for ids, _ in ours(variant, beam_size, exported(variant).config.pad_id)]
    assert found == twin.ids(theirs)
    assert {len(ids) for ids in found} == {LIMIT}


def test_where_our_beam_finds_another_translation_it_is_a_more_probable_one(variant, twin):
    for (ids, log_prob), (their_ids, their_log_prob) in paired(variant, twin, 4):
        assert ids == their_ids or log_prob > their_log_prob

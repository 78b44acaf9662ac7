"""The whole engine against another one with the same weights: graphs, caches, batching and search, token for token.

Both sides rank hypotheses by their log-probability alone (a length penalty of 0): the two penalties have different
forms, and this is where they agree. Random networks try every choice of a configuration, the bundled one real text.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from model.config import ModelConfig
from model.decode.batcher import Batcher, BatcherLimits
from model.decode.options import DecodeOptions, SpecialIds
from model.export.exporter import export_graphs
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from tests.english import sentences
from tests.model.networks import VARIANTS, exported, lively_network, random_sources, shipped, tiny_config

if TYPE_CHECKING:
    from tests.benchmarks.ctranslate2_twin import Twin

pytest.importorskip("ctranslate2", reason="the extra `bench` is not installed")
pytestmark = pytest.mark.usefixtures("each_set_of_operators")

Translation = tuple[tuple[int, ...], float]
"""Ids and log-probability."""
Sources = list[list[int]]

LIMIT = 40
COUNT = 100
SENTENCES = 500


def options(beam_size: int, limit: int | None) -> DecodeOptions:
    return DecodeOptions(beam_size=beam_size, length_penalty=0.0, max_length=limit)


def twin_of(config: ModelConfig, state_dict: dict, folder) -> Twin:
    from tests.benchmarks.ctranslate2_twin import Twin, write_model

    return Twin(config, write_model(config, state_dict, folder), "f32")


def ours(stepper: OnnxStepper, special: SpecialIds, sources: Sources, wanted: DecodeOptions) -> list[Translation]:
    """Each sentence decoded in flight with 16 slots."""
    batcher = Batcher(stepper, BatcherLimits(max_slots=16), special=special)
    for row, source in enumerate(sources):
        batcher.add(row, source, wanted)
    found = {}
    while not batcher.idle:
        found |= {finished.key: finished.hypotheses[0] for finished in batcher.step()}
    return [(found[row].ids, found[row].log_prob) for row in range(len(sources))]


def theirs(twin: Twin, sources: Sources, beam_size: int, limits: list[int]) -> list[Translation]:
    """A batch for each limit, since a batch has only one."""
    rows_of, found = defaultdict(list), {}
    for row, limit in enumerate(limits):
        rows_of[limit].append(row)
    for limit, rows in rows_of.items():
        words = twin.words([sources[row] for row in rows])
        results = twin.translate(words, limit, beam_size=beam_size, return_scores=True)
        scores = [result.scores[0] for result in results]
        found |= dict(zip(rows, zip(twin.ids(results), scores, strict=True), strict=True))
    return [found[row] for row in range(len(sources))]


def assert_equal(our: list[Translation], their: list[Translation]) -> None:
    different = [row for row, (one, other) in enumerate(zip(our, their, strict=True)) if one[0] != other[0]]
    assert not different, f"{len(different)} of {len(our)} differ, the first is {different[0]}"
    np.testing.assert_allclose([one for _, one in our], [one for _, one in their], rtol=1e-4, atol=1e-3)


@pytest.fixture(params=[name for name in VARIANTS if name != "rotary"])
def variant(request):
    return request.param


@pytest.fixture
def twin(variant, tmp_path):
    made = exported(variant)
    return twin_of(made.config, made.network.state_dict(), tmp_path / "twin")


def random_text(variant: str) -> Sources:
    """Random ids of mixed lengths. CTranslate2 does not translate a source of EOS alone."""
    lengths = np.random.default_rng(0).integers(2, LIMIT, COUNT)
    return random_sources(exported(variant).config, tuple(map(int, lengths)), seed=1)


def special_of(config: ModelConfig, eos_id: int) -> SpecialIds:
    return SpecialIds(bos_id=config.bos_id, eos_id=eos_id)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_ids_equal_those_of_ctranslate2(variant, twin, beam_size):
    made, sources = exported(variant), random_text(variant)
    special = special_of(made.config, made.config.eos_id)
    our = ours(made.stepper(), special, sources, options(beam_size, LIMIT))
    their = theirs(twin, sources, beam_size, [LIMIT] * COUNT)
    # Where a beam reached the limit we prefer what finished before, if anything did, and they the more probable.
    kept = [row for row in range(COUNT) if len(our[row][0]) == LIMIT or len(their[row][0]) < LIMIT]
    assert len(kept) > COUNT // 2
    assert_equal([our[row] for row in kept], [their[row] for row in kept])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_ids_of_forced_length_equal_those_of_ctranslate2(variant, twin, beam_size):
    """What the benchmark times: PAD ends a sentence, and never comes."""
    made, sources = exported(variant), random_text(variant)
    their = twin.forced(twin.words(sources), LIMIT, beam_size)
    special = special_of(made.config, made.config.pad_id)
    found = [ids for ids, _ in ours(made.stepper(), special, sources, options(beam_size, LIMIT))]
    assert found == twin.ids(their)
    assert {len(ids) for ids in found} == {LIMIT}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, each_set_of_operators):
    """The bundled weights in both engines, in float32; real sentences in ids; the configuration."""
    bundle, state_dict = shipped()
    config = bundle.config
    folder = tmp_path_factory.mktemp("trained")
    record = export_graphs(config, state_dict, folder / "onnx", ["f32"])
    stepper = open_graphs(config, record.graph_paths("f32"), RuntimeOptions(operators=each_set_of_operators))
    sources = [bundle.tokenizer().encode(text) for text in sentences(SENTENCES)]
    return stepper, twin_of(config, state_dict, folder / "ctranslate2"), sources, config


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 4])
def test_five_hundred_real_sentences_have_the_ids_of_ctranslate2(trained, beam_size):
    stepper, twin, sources, config = trained
    wanted = options(beam_size, None)
    limits = [wanted.limit(len(source), config.max_positions) for source in sources]
    our = ours(stepper, special_of(config, config.eos_id), sources, wanted)
    their = theirs(twin, sources, beam_size, limits)
    assert len(our) == SENTENCES
    assert_equal(our, their)


def test_a_network_with_rotary_positions_has_no_twin_and_is_refused_by_name(tmp_path):
    config = tiny_config(positions="rotary")
    with pytest.raises(ValueError, match="but these are rotary"):
        twin_of(config, lively_network(config).state_dict(), tmp_path / "twin")

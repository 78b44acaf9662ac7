"""200 real texts, the trained network: whoever comes and goes meanwhile, ids and scores are those of the text alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from model.decode.batcher import Batcher, BatcherLimits, decode_all
from model.decode.options import DecodeOptions, Hypothesis, Sampling
from model.export.exporter import ExportRecord, export_graphs
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from service.text.pipeline import Pipeline
from tests.english import texts
from tests.model.networks import shipped

pytestmark = pytest.mark.slow

LIMITS = BatcherLimits(max_slots=24, max_batch_tokens=1024)
USUAL = DecodeOptions(repetition_guard=True, token_scores=True)


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> ExportRecord:
    """Graphs of the shipped weights in both precisions, and with both sets of operators."""
    bundle, state_dict = shipped()
    texts_in_ids = [list(source) for source, _ in jobs()[:100]]
    pairs = [(source, source) for source in texts_in_ids]
    folder = tmp_path_factory.mktemp("graphs")
    return export_graphs(bundle.config, state_dict, folder, ["f32", "int8"], pairs)


@pytest.fixture(scope="module", params=["f32", "int8"])
def stepper(request, record, each_set_of_operators) -> OnnxStepper:
    config = shipped()[0].config
    return open_graphs(config, record.graph_paths(request.param), RuntimeOptions(operators=each_set_of_operators))


@cache
def jobs() -> list[tuple[tuple[int, ...], DecodeOptions]]:
    """Every sentence of the texts as the service sends it; two of three as usual, the others with options of theirs."""
    rng = random.Random(7)
    bundle, _ = shipped()
    pipeline = Pipeline(bundle.tokenizer(), 200, "en", "de")
    sources = dict.fromkeys(pipeline.prepare(texts()).segments)
    return [(source, random_options(rng) if number % 3 == 0 else USUAL) for number, source in enumerate(sources)]


def random_options(rng: random.Random) -> DecodeOptions:
    if rng.random() < 0.2:
        return replace(USUAL, beam_size=1, sampling=Sampling(top_k=rng.choice([0, 20]), seed=rng.randrange(9)))
    beam_size = rng.choice([1, 2, 5, 8])
    return replace(
        USUAL,
        beam_size=beam_size,
        n_best=rng.choice([1, beam_size]),
        length_penalty=rng.choice([0.0, 1.0]),
        no_repeat_ngram=rng.choice([0, 0, 3]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.3]),
        max_length=rng.choice([None, 12]),
    )


@pytest.fixture(scope="module")
def alone(stepper) -> list[Sequence[Hypothesis]]:
    found = [decode_all(stepper, [source], options)[0] for source, options in jobs()]
    assert not any(finished.error for finished in found)
    return [finished.hypotheses for finished in found]


def test_there_are_two_hundred_texts_of_many_lengths():
    lengths = sorted(len(source) for source, _ in jobs())
    assert len(set(texts())) >= 200
    assert (lengths[0], lengths[-1]) <= (3, 200)
    assert lengths[-1] > 60


def test_each_sentence_arrives_in_the_midst_of_others_and_gets_what_it_gets_alone(stepper, alone):
    """Hypotheses are compared whole: ids, log-probabilities and scores, bit for bit."""
    rng = random.Random(1)
    batcher, found = Batcher(stepper, LIMITS), {}
    line = rng.sample(range(len(jobs())), len(jobs()))
    leaving: list[str] = []
    names = itertools.count()
    while line or not batcher.idle:
        for _ in range(rng.choice([0, 0, 1, 1, 2, 6])):
            if line:
                number = line.pop()
                batcher.add(number, *jobs()[number])
        if rng.random() < 0.1:
            # A neighbour that will not stay.
            leaving.append(f"leaves {next(names)}")
            batcher.add(leaving[-1], *rng.choice(jobs()))
        if leaving and rng.random() < 0.2:
            batcher.cancel(leaving.pop(0))
        found |= {finished.key: finished for finished in batcher.step()}
    for number, hypotheses in enumerate(alone):
        assert found[number].hypotheses == hypotheses, f"sentence {number} differs: {jobs()[number]}"

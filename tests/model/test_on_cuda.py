"""What only a GPU can show. Skipped where there is none; `bench_cuda` measures, and says what batches change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest

from model.decode.batcher import BatcherLimits, decode_all
from model.decode.options import DecodeOptions
from model.export.compare import compare_attention, compare_values
from model.export.exporter import export_graphs
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from tests.model.networks import VARIANTS, Exported, exported, random_sources

pytestmark = pytest.mark.skipif(
    "CUDAExecutionProvider" not in ort.get_available_providers(), reason="needs CUDA and the extra `gpu`"
)


@pytest.fixture(scope="module", params=VARIANTS)
def made(request, tmp_path_factory) -> Exported:
    made = exported(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    record = export_graphs(made.config, made.network.state_dict(), folder, ["f32", "f16"], made.pairs, ["stock"])
    return replace(made, record=record)


def on_cuda(made: Exported, precision: str, **options: object) -> OnnxStepper:
    runtime = RuntimeOptions(provider="cuda", **options)
    return open_graphs(made.config, made.record.graph_paths(precision), runtime)


@pytest.mark.parametrize("operators", ["cuda", "stock"])
def test_f32_is_the_network(made, operators):
    stepper = on_cuda(made, "f32", operators=operators)
    assert (stepper.provider, stepper.operators) == ("cuda", operators)
    found = compare_values(made.network, stepper, made.pairs)
    assert max(found.cross, found.log_prob) < 1e-3
    assert compare_attention(made.network, stepper, made.pairs, made.record.alignment.layer).difference < 1e-3


def test_f16_is_near_the_network(made):
    stepper = on_cuda(made, "f16")
    found = compare_values(made.network, stepper, made.pairs)
    assert found.log_prob < 0.2
    assert found.top1 > 0.9


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_recorded_step_gives_what_the_step_gives(made, precision):
    recorded, plain = (on_cuda(made, precision, device_graphs=graphs) for graphs in (True, False))
    sources = random_sources(made.config, (3, 30, 12), seed=2)
    slots = [stepper.start(sources, 4) for stepper in (recorded, plain)]
    rng = np.random.default_rng(0)
    for _ in range(40):  # over two growths of the cache
        tokens, parents = rng.integers(4, made.config.vocab_size, (3, 4)), rng.integers(0, 4, (3, 4))
        found, wanted = (s.step(slot, tokens, 8) for s, slot in zip((recorded, plain), slots, strict=True))
        np.testing.assert_array_equal(found[1], wanted[1])
        np.testing.assert_array_equal(found[0], wanted[0])
        for stepper, slot in zip((recorded, plain), slots, strict=True):
            stepper.reorder(slot, parents)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_scores_do_not_depend_on_company_beyond_rounding(made, beam_size):
    """Rows come and go, caches grow and rows move: a fault in any of it is far larger than this."""
    stepper = on_cuda(made, "f32")
    sources = random_sources(made.config, tuple(range(1, 60)), seed=3)
    options = DecodeOptions(beam_size=beam_size, max_length=24)
    alone, together = (
        [result.hypotheses[0] for result in decode_all(stepper, sources, options, BatcherLimits(max_slots=slots))]
        for slots in (1, 48)
    )
    equal = [a.ids == b.ids for a, b in zip(alone, together, strict=True)]
    assert np.mean(equal) > 0.9
    for a, b in zip(alone, together, strict=True):
        assert a.score == pytest.approx(b.score, abs=1e-2)

"""A network of real width: whatever runs beside a sentence, before it or after it, not one bit of its result changes.

How many rows a product, an attention or a choice of the best has, and how long they are, decides how it is blocked,
chunked and vectorised. Here all of it occurs: from one row to hundreds, in every mixture.
"""

from __future__ import annotations

import numpy as np
import pytest

from model.decode.batcher import BatcherLimits, decode_all
from tests.model.company import company, jobs
from tests.model.networks import exported, random_sources

pytestmark = pytest.mark.usefixtures("each_set_of_operators")

MADE = exported("wide")
PRECISIONS = pytest.mark.parametrize("precision", ["f32", "int8"])


@PRECISIONS
def test_results_are_bit_equal_alone_and_in_companies_of_many_and_few(precision):
    stepper, todo = MADE.stepper(precision), jobs(MADE.config, 32, seed=3, longest=60)
    alone = [decode_all(stepper, [source], options)[0] for source, options in todo]
    assert len({str(one.hypotheses) for one in alone}) == len(todo)
    for seed, limits in enumerate((BatcherLimits(), BatcherLimits(max_slots=5, max_lanes=12))):
        ended = company(stepper, todo, seed, limits)
        for key, one in enumerate(alone):
            assert one.error is None
            assert (ended[key].hypotheses, ended[key].guarded) == (one.hypotheses, one.guarded)


@PRECISIONS
@pytest.mark.parametrize("width", [1, 4])
def test_a_step_gives_each_row_the_same_bits_among_any_number_of_rows(precision, width):
    """All candidates that can be asked for, in one step after some others, for 1 to 33 rows."""
    sources = random_sources(MADE.config, tuple(range(2, 35)), seed=1)
    tokens = np.random.default_rng(0).integers(4, MADE.config.vocab_size, (5, len(sources), width))

    def run(rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        stepper = MADE.stepper(precision)
        slots = stepper.start([sources[row] for row in rows], width)
        for fed in tokens[:, rows]:
            log_probs, ids = stepper.step(slots, fed, 500)
            if width > 1:
                stepper.reorder(slots, np.tile([1, 1, 0, 3], (len(rows), 1)))
        return log_probs, ids

    together = run(list(range(len(sources))))
    for rows in ([0], [32], [5, 4], [7, 20, 3], list(range(8)), list(range(3, 28))):
        for one, all_ in zip(run(rows), together, strict=True):
            np.testing.assert_array_equal(one, all_[rows])


@PRECISIONS
def test_a_source_is_encoded_to_the_same_bits_beside_any_others(precision):
    stepper = MADE.stepper(precision)
    sources = random_sources(MADE.config, (1, 7, 25, 40, 64, 100, 2, 33), seed=2)
    lengths, together = stepper.encode(sources)
    for row, source in enumerate(sources):
        _, alone = stepper.encode([source])
        for one, all_ in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], all_[row, :, : lengths[row]])

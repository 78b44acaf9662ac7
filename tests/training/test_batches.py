"""Laws of batching: every pair once, within budget, the same for everyone who asks."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config import ModelConfig
from training.batches import Pairs, collate, micro_batches, plan_epoch, read_pairs
from training.corpus.errors import CorpusError

LENGTHS = st.lists(st.tuples(st.integers(2, 40), st.integers(2, 40)), min_size=1, max_size=200)


def pairs_of(lengths: list[tuple[int, int]]) -> Pairs:
    def ids(length: int) -> np.ndarray:
        return np.append(np.arange(4, 3 + length), 2).astype(np.int32)

    return Pairs([ids(x) for x, _ in lengths], [ids(y) for _, y in lengths])


@given(LENGTHS, st.integers(40, 400), st.integers(0, 5))
def test_an_epoch_holds_every_pair_once_and_no_batch_passes_the_budget(
    lengths: list[tuple[int, int]], budget: int, epoch: int
) -> None:
    pairs = pairs_of(lengths)
    plan = plan_epoch(pairs, budget, seed=1, epoch=epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(pairs)))
    for batch in plan:
        assert len(batch) * max(max(lengths[i]) for i in batch) <= budget


def test_a_plan_depends_on_seed_and_epoch_alone() -> None:
    pairs = pairs_of([(2 + i % 30, 2 + i % 17) for i in range(500)])
    plans = {
        (seed, epoch): [batch.tolist() for batch in plan_epoch(pairs, 100, seed, epoch)]
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    assert plans[1, 1] == [batch.tolist() for batch in plan_epoch(pairs, 100, 1, 1)]
    assert len({str(plan) for plan in plans.values()}) == 4


def test_batches_of_similar_lengths_pad_little() -> None:
    random = np.random.default_rng(0)
    pairs = pairs_of([(int(n), int(n) + 2) for n in random.integers(3, 60, 5000)])
    plan = plan_epoch(pairs, 2000, seed=1, epoch=0)
    padded = sum(len(batch) * pairs.target_lengths[batch].max() for batch in plan)
    assert pairs.target_lengths.sum() / padded > 0.95


@given(LENGTHS, st.integers(40, 200))
def test_micro_batches_are_the_batch_in_pieces(lengths: list[tuple[int, int]], tokens: int) -> None:
    pairs = pairs_of(lengths)
    numbers = np.arange(len(pairs))
    parts = micro_batches(numbers, pairs, tokens)
    assert np.concatenate(parts).tolist() == numbers.tolist()
    assert all(len(part) * pairs.lengths[part].max() <= tokens for part in parts)


def test_micro_batches_can_be_shared_evenly() -> None:
    random = np.random.default_rng(0)
    pairs = pairs_of(sorted((int(n), int(n) + 2) for n in random.integers(3, 60, 2000)))
    for batch in plan_epoch(pairs, 4000, seed=1, epoch=0)[:-1]:
        costs = [len(part) * pairs.lengths[part].max() for part in micro_batches(batch, pairs, 1000)]
        assert len(costs) in (4, 8), "3 or 5 to 7 would do here"
        assert max(costs) < 1.25 * sum(costs) / len(costs)


def test_collate_shifts_the_target_by_bos_and_pads_with_pad() -> None:
    config = ModelConfig(vocab_size=100, d_model=8, heads=2)
    batch = collate(pairs_of([(3, 4), (2, 2)]), [0, 1], config)
    assert batch.source.tolist() == [[4, 5, 2], [4, 2, 0]]
    assert batch.source_lengths.tolist() == [3, 2]
    assert batch.target_out.tolist() == [[4, 5, 6, 2], [4, 2, 0, 0]]
    assert batch.target_in.tolist() == [[1, 4, 5, 6], [1, 4, 0, 0]]
    assert batch.target_tokens == 6


def test_files_of_unequal_length_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("eins\n")
    with pytest.raises(CorpusError, match="equally many lines"):
        read_pairs(tmp_path / "a", tmp_path / "b")


def test_pairs_are_read_line_for_line_whatever_ends_the_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("one\r\n\ntwo\u2028three\n".encode())
    (tmp_path / "b").write_bytes(b"eins\n\nzwei drei")
    assert read_pairs(tmp_path / "a", tmp_path / "b") == [("one", "eins"), ("two\u2028three", "zwei drei")]

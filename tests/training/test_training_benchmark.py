"""The benchmark of training: both loops do the same work, and its figures mean what they say."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.bench_training import Measured, everything, measure, page, table, take_turn
from tests.benchmarks.joeynmt_peer import Peer, PeerError, Plan, configuration, write_text, write_vocabulary
from tests.benchmarks.training_loops import Counted, loops
from tests.benchmarks.training_text import BUNDLED_TOKENIZER, Task, made_up, open_task
from tests.benchmarks.training_together import Together
from tests.benchmarks.wall_clock import shortened
from tests.benchmarks.wall_clock import table as wall_clock_table
from training.evaluate import TestSet
from training.scores import score

SMALL = [f"model.{name}" for name in ("d_model=16", "heads=2", "d_ff=16", "encoder_layers=1", "decoder_layers=1")]


@pytest.fixture(scope="module")
def task() -> Task:
    task = open_task(None, [*SMALL, "fit.batch_tokens=256", "fit.validate_sentences=1"], lines=120)
    return replace(task, dev_sets=[replace(task.dev_sets[0], pairs=task.pairs, text=task.dev_sets[0].text[:1])])


def test_every_loop_takes_the_same_batches(task: Task) -> None:
    counts = {name: [loop.update() for _ in range(2)] for name, loop in loops(task).items()}
    assert len({tuple(found) for found in counts.values()}) == 1
    assert all(0 < counted.real <= counted.padded <= 256 for counted in counts["ours, f32"])


def test_a_turn_divides_the_tokens_by_the_time_of_the_turn() -> None:
    class Steady:
        def update(self) -> Counted:
            return Counted(real=30, padded=40)

    measured = Measured()
    seconds = take_turn(Steady(), 3, measured)
    assert (measured.real, measured.padded) == ([90 / seconds], [120 / seconds])


def test_everything_included_costs_the_overhead_of_every_update() -> None:
    whole = everything(Measured(real=[100.0], padded=[120.0], update_seconds=[2.0]), overhead=0.5)
    assert (whole.real, whole.padded, whole.update_seconds) == ([80.0], [96.0], [2.5])


def test_the_table_compares_ours_with_every_side_per_real_and_per_padded_token() -> None:
    ours, peer = Measured([90.0, 100.0, 110.0], [110.0] * 3), Measured([20.0], [110.0])
    text = table({"ours, f32": ours, "peer": peer}, ours, "ours, f32")
    assert "| peer | 20 (20–20) | 110 | 18.2 % | 5.00 | 1.00 | 1 |" in text
    assert "| ours, f32 | 100 (90–110) |" in text


def test_without_the_peer_the_page_says_that_it_was_not_measured(task: Task, tmp_path: Path) -> None:
    options = Namespace(joeynmt=None, updates=1, rounds=1, limit=60.0, threads=1)
    found, overhead = measure(task, options, tmp_path)
    assert len(found) == 4
    assert overhead > 0
    assert "JoeyNMT was not measured" in page(task, options, found, overhead)


def plan(task: Task, folder: Path) -> Plan:
    return Plan(
        model=task.config,
        languages=task.languages,
        tokenizer=BUNDLED_TOKENIZER,
        vocabulary=write_vocabulary(folder, task.tokenizer),
        batch_tokens=256,
        label_smoothing=0.1,
        max_length=128,
        learning_rate=1e-3,
        warmup=10,
        updates=2,
        log_every=1,
    )


def test_the_peer_gets_our_shape_budget_and_vocabulary(task: Task, tmp_path: Path) -> None:
    asked = configuration(plan(task, tmp_path), tmp_path)
    assert asked["model"]["encoder"]["hidden_size"] == 16
    assert (asked["training"]["batch_size"], asked["training"]["batch_type"]) == (256, "token")
    pieces = (tmp_path / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
    assert len(pieces) == len(set(pieces)) == task.tokenizer.vocab_size - 4


def test_text_for_the_peer_has_no_blank_lines_and_stays_line_for_line(tmp_path: Path) -> None:
    write_text(tmp_path, "train", [("a\u2028b", "c"), (" ", "d"), ("e", "")], ("en", "de"))
    assert [(tmp_path / f"train.{side}").read_text(encoding="utf-8") for side in ("en", "de")] == ["a b\n", "c\n"]


def fake_python(folder: Path, body: str) -> Peer:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    python.chmod(0o755)
    return Peer(python, folder, 1)


def test_the_figures_of_the_peer_are_its_own_without_the_first_update(tmp_path: Path) -> None:
    says = "\n".join(f'echo "Step: {n}, Tokens per Sec: {rate:8d}, Lr: 1"' for n, rate in enumerate((5, 40, 60)))
    run = fake_python(tmp_path, f'printf "30 100\\n20 100\\n" > "$2"\n{says}').train({})
    assert (run.tokens_per_second, run.real_share, run.updates) == (50.0, 0.25, 2)
    assert json.loads((tmp_path / "config.yaml").read_text()) == {}


def test_a_peer_that_fails_is_refused_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no module called so"):
        fake_python(tmp_path, 'echo "no module called so"; exit 1').train({})


def test_a_peer_whose_time_is_up_is_interrupted_and_its_figures_count(tmp_path: Path) -> None:
    body = 'printf "9 10\\n" > "$2"; echo "Tokens per Sec: 7,"; trap "exit 130" INT; while true; do sleep 0.05; done'
    assert fake_python(tmp_path, body).train({}, seconds=0.5).tokens_per_second == 7.0


def test_made_up_text_has_words_on_both_sides_and_is_the_same_each_time(task: Task) -> None:
    text = made_up(task.tokenizer, 20)
    assert text == made_up(task.tokenizer, 20)
    assert all(source.split() and target.split() for source, target in text)


def test_the_table_of_a_wall_clock_has_a_row_for_each_test_set() -> None:
    good, bad = score(["eins zwei drei vier"], ["eins zwei drei vier"]), score(["null"], ["eins zwei drei vier"])
    text = wall_clock_table({"ours": {"help": good}, "peer": {"help": bad}})
    assert "| help | 100.00 (1.000) | 0.00 (0.050) |" in text


@pytest.mark.slow
def test_several_processes_take_the_batches_of_one(task: Task, tmp_path: Path) -> None:
    recipe = replace(task.recipe, micro_batch_tokens=128)
    together, alone = Together(replace(task, recipe=recipe), "f32", 2, tmp_path), loops(task)["ours, f32"]
    assert [together.update() for _ in range(2)] == [alone.update() for _ in range(2)]
    together.close()
    with pytest.raises(RuntimeError, match="every process must end its update"):
        together.update()


@pytest.mark.parametrize(("most", "kept"), [(0, 10), (20, 10), (10, 10), (4, 4), (3, 3)])
def test_a_test_set_is_shortened_to_pairs_from_all_of_it(most: int, kept: int) -> None:
    whole = TestSet("numbers", [(str(i), str(i)) for i in range(10)])
    pairs = shortened(whole, most).pairs
    assert len(pairs) == kept
    assert set(pairs) <= set(whole.pairs)
    assert int(pairs[-1][0]) >= 9 - 10 // kept


@pytest.mark.parametrize("size", [109, 112, 136, 218])
def test_a_test_set_is_shortened_to_exactly_as_many(size: int) -> None:
    assert len(shortened(TestSet("numbers", [(str(i), str(i)) for i in range(size)]), 100).pairs) == 100

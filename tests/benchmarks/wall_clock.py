"""BLEU after the same time from scratch: `dragoman-train fit` with the recipe en-de, and JoeyNMT, on one corpus.

Ours is given as many updates as should fill the time at the speed measured just before, the second half of them its
cool-down; the peer is then given the very seconds that ours took, from its start, with all that it does before its
first update. Ours is scored as it will be served, int8 graphs and all; both with beam 4 and the same length penalty.
The peer reads the corpus as it is: sentinels are our text work and not its.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.benchmarks.joeynmt_peer import Peer, Plan, configuration, write_text, write_vocabulary
from tests.benchmarks.report import machine
from tests.benchmarks.training_loops import Loop, Ours
from tests.benchmarks.training_text import RECIPE, Task, evenly, open_task
from tests.benchmarks.training_together import Together, most_processes
from training.batches import read_pairs
from training.evaluate import TestSet, corpus_test_sets
from training.publish import Run, publish
from training.recipe import PublishRecipe, read_recipe, section
from training.scores import Scores, score

_PROBE = 3
"""Updates timed for each way before the run."""
_MARGIN = 0.93
"""Share of the time that updates may fill: the rest is reading, validations and checkpoints."""


@dataclass(frozen=True)
class Contest:
    """One comparison: what is trained, for how long, and where."""

    corpus: Path
    task: Task
    folder: Path
    threads: int
    minutes: float
    recipe: PublishRecipe
    overrides: tuple[str, ...]


def compare(options: argparse.Namespace) -> None:
    """Train, score, print and write `wall_clock.md`."""
    if options.corpus is None:
        raise SystemExit("bench_training: --wall-clock must have a --corpus with test sets, but none is named.")
    folder = options.out / "wall_clock"
    folder.mkdir(parents=True, exist_ok=True)
    task = open_task(options.corpus, options.set, options.lines)
    recipe = section(PublishRecipe, "publish", read_recipe(RECIPE, options.set)["publish"])
    contest = Contest(
        options.corpus, task, folder.absolute(), options.threads, options.wall_clock, recipe, tuple(options.set)
    )
    tests = [shortened(test, options.test_sentences) for test in corpus_test_sets(options.corpus, task.languages)]
    seconds, ours, about = train_ours(contest, tests)
    sides = {f"ours ({about})": ours}
    if options.peer and options.joeynmt:
        theirs, about = train_peer(contest, options, seconds, tests)
        sides[f"JoeyNMT 2.3.0 ({about})"] = theirs
    sentences = f"{options.test_sentences} sentences of each test set" if options.test_sentences else "whole test sets"
    about = f"{machine(('torch',))}; {options.threads} threads, {seconds / 60:.1f} minutes each, beam 4, {sentences}."
    text = f"{about}\n\n{table(sides)}\n"
    if options.peer and not options.joeynmt:
        text += "\nJoeyNMT was not trained: `--joeynmt PYTHON` names no python that has it.\n"
    (options.out / "wall_clock.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")


def shortened(test: TestSet, most: int) -> TestSet:
    """At most so many pairs, evenly spaced; 0: all. The peer has no cache, and takes hours for thousands."""
    return replace(test, pairs=evenly(test.pairs, most))


def table(sides: dict[str, dict[str, Scores]]) -> str:
    """Markdown: a row for each test set, BLEU and brevity of each side."""
    names = list(sides)
    lines = [f"| test set | {' | '.join(names)} |", "|---|" + "--:|" * len(names)]
    for test in next(iter(sides.values())):
        cells = [f"{found[test].bleu:.2f} ({found[test].brevity_penalty:.3f})" for found in sides.values()]
        lines.append(f"| {test} | {' | '.join(cells)} |")
    signature = next(iter(next(iter(sides.values())).values())).bleu_signature
    return "\n".join([*lines, "", f"BLEU (brevity penalty); `{signature}`"])


@dataclass(frozen=True)
class Way:
    """How ours is trained on this machine."""

    precision: str
    processes: int
    """Of one thread each, or one with all threads."""

    def command(self, threads: int) -> tuple[list[str], dict[str, str]]:
        """What runs `dragoman-train`, and its environment."""
        many = ["torch.distributed.run", "--nproc-per-node", str(self.processes), "-m", "--"]
        words = ["-m", *(many if self.processes > 1 else []), "training.cli"]
        return [sys.executable, *words], {**os.environ, "OMP_NUM_THREADS": str(threads // self.processes)}


def probe(task: Task, threads: int) -> tuple[Way, float]:
    """The fastest way, and its seconds an update."""
    found = {}
    for precision in ("f32", "bf16"):
        found[Way(precision, 1)] = _seconds(Ours(task, precision))
        count = most_processes(task, threads)
        if count > 1:
            with TemporaryDirectory() as folder:
                together = Together(task, precision, count, Path(folder))
                found[Way(precision, count)] = _seconds(together)
                together.close()
    best = min(found, key=lambda way: found[way])
    return best, found[best]


def _seconds(loop: Loop) -> float:
    """What an update takes, after the first one."""
    loop.update()
    times = []
    for _ in range(_PROBE):
        started = time.perf_counter()
        loop.update()
        times.append(time.perf_counter() - started)
    return median(times)


def train_ours(contest: Contest, tests: list[TestSet]) -> tuple[float, dict[str, Scores], str]:
    """Seconds, scores, and a word on how it was trained."""
    way, each = probe(contest.task, contest.threads)
    updates = max(2, int(contest.minutes * 60 * _MARGIN / each))
    values = {
        "updates": updates,
        "cooldown": updates // 2,
        "precision": way.precision,
        "validate_every": max(1, updates // 4),
        "checkpoint_every": max(1, updates // 20),
        "device": "cpu",
    }
    asked = [*contest.overrides, *(f"fit.{name}={value}" for name, value in values.items())]
    flags = [word for override in asked for word in ("--set", override)]
    run = contest.folder / "run"
    shutil.rmtree(run, ignore_errors=True)  # from scratch, and not on from the last comparison
    step = ["fit", "--recipe", str(RECIPE), *flags, "--corpus", str(contest.corpus), "--run", str(run)]
    command, environment = way.command(contest.threads)
    started = time.perf_counter()
    subprocess.run([*command, *step], check=True, env=environment)
    seconds = time.perf_counter() - started
    published = publish(Run.open(run), replace(contest.recipe, samples=()), contest.folder / "bundle", tests)
    scores = {found.name: found.scores for found in published.evaluations}
    return seconds, scores, f"{updates:,} updates, {way.precision}, processes: {way.processes}"


def train_peer(
    contest: Contest, options: argparse.Namespace, seconds: float, tests: list[TestSet]
) -> tuple[dict[str, Scores], str]:
    """Scores of the peer after as many seconds, and a word on how it was trained."""
    task, folder = contest.task, contest.folder / "peer"
    folder.mkdir(exist_ok=True)
    source, target = task.languages
    text = read_pairs(contest.corpus / f"train.{source}", contest.corpus / f"train.{target}")
    write_text(folder, "train", text, task.languages)
    write_text(folder, "dev", text[:8], task.languages)
    plan = Plan(
        model=task.config,
        languages=task.languages,
        tokenizer=task.tokenizer_path.absolute(),
        vocabulary=write_vocabulary(folder, task.tokenizer),
        batch_tokens=task.recipe.batch_tokens,
        label_smoothing=task.recipe.label_smoothing,
        max_length=task.recipe.max_length,
        learning_rate=options.peer_learning_rate,
        warmup=task.recipe.warmup,
        updates=0,
        log_every=5,
        length_penalty=contest.recipe.length_penalty,
    )
    peer, config = Peer(options.joeynmt.absolute(), folder, options.threads), configuration(plan, folder)
    run = peer.train(config, seconds)
    found = {}
    for test in tests:
        outputs = peer.translate(config, [" ".join(line.split()) for line in test.sources])
        found[test.name] = score(outputs, [reference for _, reference in test.pairs], test.language)
    return found, f"{run.updates:,} updates, f32"

"""How fast a network trains here: ours, a plain loop of the same network, and JoeyNMT on the same text.

    python -m tests.benchmarks.bench_training
    python -m tests.benchmarks.bench_training --corpus corpora/en-de --joeynmt build/joeynmt/bin/python
    python -m tests.benchmarks.bench_training --corpus corpora/en-de --joeynmt … --wall-clock 30 --peer

The recipe is en-de with the shape `small`. Tokens are real target tokens, EOS counted and padding not; padded tokens
stand beside them. Every side has as many threads, ours also as processes of one thread. An update is forward, backward
and optimiser; "everything included" also has the validations and checkpoints as often as the recipe asks for them.
Sides take turns on the same batches, round after round; figures are medians of rounds, with the least and the most.
This processor may multiply bf16 in software: both precisions are shown, and the fastest is ours. How to install JoeyNMT
stands in `joeynmt_peer.py`. Nothing here is asserted. No turn begins that would end after `--limit` seconds. Writes
`training.json` and `training.md` into `--out`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from tests.benchmarks.joeynmt_peer import Peer, PeerError, Plan, configuration, write_text, write_vocabulary
from tests.benchmarks.report import machine
from tests.benchmarks.training_loops import Loop, Ours, loops
from tests.benchmarks.training_text import Task, open_task
from tests.benchmarks.training_together import Together, most_processes
from tests.benchmarks.wall_clock import compare

JOEYNMT = "JoeyNMT 2.3.0, f32"
TOGETHER = ", in "
"""What is between the name of a loop in one process and the number of processes in the table."""
PEER_LINES = 12_000
"""So many pairs are enough for the few updates of the peer, which reads all of them before the first."""


@dataclass
class Measured:
    """Target tokens a second of one side, round by round."""

    real: list[float] = field(default_factory=list)
    padded: list[float] = field(default_factory=list)
    update_seconds: list[float] = field(default_factory=list)

    def share(self) -> float:
        """Real tokens among the padded ones."""
        return median(real / padded for real, padded in zip(self.real, self.padded, strict=True))


def take_turn(loop: Loop, updates: int, into: Measured) -> float:
    """Time so many updates; seconds taken."""
    real = padded = 0
    started = time.perf_counter()
    for _ in range(updates):
        counted = loop.update()
        real, padded = real + counted.real, padded + counted.padded
    seconds = time.perf_counter() - started
    into.real.append(real / seconds)
    into.padded.append(padded / seconds)
    into.update_seconds.append(seconds / updates)
    return seconds


def peer_turn(task: Task, options: argparse.Namespace, folder: Path) -> Callable[[Measured], float]:
    """What trains the peer for a few updates; its figures are its own."""
    peer = Peer(options.joeynmt.absolute(), folder, options.threads)
    recipe = task.recipe
    write_text(folder, "train", task.text[:PEER_LINES], task.languages)
    write_text(folder, "dev", task.text[:8], task.languages)
    plan = Plan(
        model=task.config,
        languages=task.languages,
        tokenizer=task.tokenizer_path.absolute(),
        vocabulary=write_vocabulary(folder, task.tokenizer),
        batch_tokens=recipe.batch_tokens,
        label_smoothing=recipe.label_smoothing,
        max_length=recipe.max_length,
        learning_rate=options.peer_learning_rate,
        warmup=recipe.warmup,
        updates=options.peer_updates,
        log_every=1,
    )
    config = configuration(plan, folder)

    def turn(into: Measured) -> float:
        started = time.perf_counter()
        run = peer.train(config)
        into.real.append(run.tokens_per_second)
        into.padded.append(run.tokens_per_second / run.real_share)
        return time.perf_counter() - started

    return turn


def measure(task: Task, options: argparse.Namespace, folder: Path) -> tuple[dict[str, Measured], float]:
    """Rounds of turns until all are done or the time is up; and the overhead of our faster precision, in seconds."""
    started = time.perf_counter()
    sides = {**loops(task), **loops_together(task, options.threads, folder)}
    found = {name: Measured() for name in sides}
    costs = {name: take_turn(loop, 1, Measured()) for name, loop in sides.items()}  # warm-up, and what a turn will take
    turns = {name: _turn(loop, options.updates) for name, loop in sides.items()}
    costs = {name: seconds * options.updates for name, seconds in costs.items()}
    if options.joeynmt:
        found[JOEYNMT] = Measured()
        turns[JOEYNMT], costs[JOEYNMT] = peer_turn(task, options, folder), 0.0
    for number in range(options.rounds):
        for name, turn in turns.items():
            if number and time.perf_counter() - started + costs[name] > options.limit:
                print(f"round {number + 1} of {name} was left out: no time")
                continue
            costs[name] = turn(found[name])
            print(f"round {number + 1}, {name}: {found[name].real[-1]:,.0f} target tokens/s", flush=True)
    for loop in sides.values():
        if isinstance(loop, Together):
            loop.close()
    alone = sides[fastest(found, "ours").split(TOGETHER)[0]]
    return found, alone.overhead() if isinstance(alone, Ours) else 0.0


def loops_together(task: Task, count: int, folder: Path) -> dict[str, Loop]:
    """Ours in as many processes as the others have threads, or as have work, by the name in the table."""
    count = most_processes(task, count)
    precisions = ("f32", "bf16") if count > 1 else ()
    return {f"ours, {name}{TOGETHER}{count} processes": Together(task, name, count, folder) for name in precisions}


def _turn(loop: Loop, updates: int) -> Callable[[Measured], float]:
    return lambda into: take_turn(loop, updates, into)


def fastest(found: dict[str, Measured], prefix: str) -> str:
    """The name of the fastest side whose name begins so."""
    return max((name for name in found if name.startswith(prefix)), key=lambda name: median(found[name].real))


def everything(measured: Measured, overhead: float) -> Measured:
    """The same with `overhead` seconds on each update."""
    whole = Measured()
    for real, padded, seconds in zip(measured.real, measured.padded, measured.update_seconds, strict=True):
        slower = seconds / (seconds + overhead)
        whole.real.append(real * slower)
        whole.padded.append(padded * slower)
        whole.update_seconds.append(seconds + overhead)
    return whole


def table(found: dict[str, Measured], whole: Measured, best: str) -> str:
    """Markdown: a row for each side. Ratios are ours, everything included, over theirs."""
    rows = {f"**{best}, everything included**": whole, **found}
    lines = [
        "| loop | real target tokens/s (least–most) | padded target tokens/s | real among padded | ours ÷ this, real "
        "| padded | rounds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, measured in rows.items():
        real, padded = median(measured.real), median(measured.padded)
        lines.append(
            f"| {name} | {real:,.0f} ({min(measured.real):,.0f}–{max(measured.real):,.0f}) | {padded:,.0f} "
            f"| {100 * measured.share():.1f} % | {median(whole.real) / real:.2f} | {median(whole.padded) / padded:.2f} "
            f"| {len(measured.real)} |"
        )
    return "\n".join(lines)


def page(task: Task, options: argparse.Namespace, found: dict[str, Measured], overhead: float) -> str:
    """The table under the machine and what was trained."""
    best = fastest(found, "ours")
    whole = everything(found[best], overhead)
    missing = "" if options.joeynmt else "\n\nJoeyNMT was not measured: `--joeynmt PYTHON` names no python that has it."
    return (
        f"{machine(('torch',))}; {options.threads} threads a side. {task.config.encoder_layers} + "
        f"{task.config.decoder_layers} layers, d_model {task.config.d_model}, vocabulary {task.config.vocab_size:,}, "
        f"{task.recipe.batch_tokens:,} padded tokens an update, {task.recipe.optimizer} (plain and JoeyNMT: adam); "
        f"{task.origin}. Validations and checkpoints add {overhead:.3f} s to an update.\n\n"
        f"{table(found, whole, best)}{missing}\n"
    )


def throughput(options: argparse.Namespace) -> None:
    """The comparison of speed, printed and written."""
    task = open_task(options.corpus, options.set, options.lines)
    with TemporaryDirectory() as folder:
        found, overhead = measure(task, options, Path(folder))
    text = page(task, options, found, overhead)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "training.md").write_text(text, encoding="utf-8")
    records = {name: vars(measured) for name, measured in found.items()}
    (options.out / "training.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    print(f"\n{text}")


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument(
        "--corpus", type=Path, help="folder of a corpus with its tokenizer.model; made-up text otherwise"
    )
    found.add_argument("--joeynmt", type=Path, metavar="PYTHON", help="a python that has JoeyNMT 2.3.0")
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--updates", type=int, default=3, help="in each turn (default: %(default)s)")
    found.add_argument("--peer-updates", type=int, default=6, help="of JoeyNMT in each turn (default: %(default)s)")
    found.add_argument("--peer-learning-rate", type=float, default=7e-4, help="its peak (default: %(default)s)")
    found.add_argument("--lines", type=int, default=12_000, help="pairs of the corpus to read for speed; 0: all")
    found.add_argument("--threads", type=int, default=2, help="of each side (default: %(default)s)")
    found.add_argument("--limit", type=float, default=330.0, help="seconds after which no turn is begun")
    found.add_argument(
        "--wall-clock", type=float, metavar="MINUTES", help="train from scratch for so long, compare BLEU"
    )
    found.add_argument(
        "--test-sentences",
        type=int,
        default=100,
        help="with --wall-clock: of each test set (default: %(default)s); 0: all",
    )
    found.add_argument("--peer", action="store_true", help="with --wall-clock: train JoeyNMT too, for as long")
    found.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change the recipe")
    found.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    return found


def main() -> None:
    options = parser().parse_args()
    if options.joeynmt and not options.joeynmt.exists():
        print(f"JoeyNMT is left out: there is no {options.joeynmt}.")
        options.joeynmt = None
    torch.set_num_threads(options.threads)
    try:
        compare(options) if options.wall_clock else throughput(options)
    except PeerError as error:
        raise SystemExit(f"bench_training: {error}") from error


if __name__ == "__main__":
    main()

"""Dragoman's engine against CTranslate2 on the same weights, in the same process, turn by turn.

    python -m tests.benchmarks.bench_ctranslate2            a quarter of an hour
    python -m tests.benchmarks.bench_ctranslate2 --full     every point of the grid
    python -m tests.benchmarks.bench_ctranslate2 --run FOLDER    the weights of a training run

Both sides take turns (ours, theirs, ours, theirs, …), so that what else the machine does falls on both; a point is the
median of its turns, with the quartiles beside it. One worker has one thread; two workers have one thread each. Writes
`ctranslate2.json`, `ctranslate2.md` and `ctranslate2.png` into `--out`. Nothing here is asserted but that both sides
find the same ids in float32, which is counted and shown.

Pinning to a CPU, if at all, must come after the imports: ONNX Runtime chooses its kernels when it is loaded.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np

from model.config import ModelConfig
from model.runtime.sessions import OperatorChoice
from model.tokenizer import Tokenizer
from tests.benchmarks.contestants import SHAPES, Ids, Models, Task, Weights, random_weights, write_models
from tests.benchmarks.report import machine, write_report

SENTENCES = tuple((Path(__file__).parent / "sentences.en").read_text(encoding="utf-8").splitlines())
BYTES_A_TOKEN = 4
"""How long a piece of English is, about: gives random weights the lengths of the real sentences."""


@dataclass(frozen=True)
class Point:
    """One row of the table. `length` 0 is the mix of the real sentences."""

    shape: str
    precision: str
    beam: int
    batch: int
    length: int
    workers: int = 1
    line: str = ""
    """`arrival`, `sorted`: five times as many sentences stand in line as run at once; how their side batches them."""


@dataclass
class Measured:
    """Seconds of each turn, wall and CPU, and what was found."""

    wall: dict[str, list[float]] = field(default_factory=lambda: {"dragoman": [], "ctranslate2": []})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {"dragoman": [], "ctranslate2": []})
    tokens: dict[str, int] = field(default_factory=dict)
    same: int = 0
    sentences: int = 0

    def record(self, point: Point) -> dict[str, object]:
        """For the JSON: medians, quartiles, and the ratios theirs ÷ ours, in time for each token made."""
        ours, theirs = (median(self.wall[side]) / self.tokens[side] for side in ("dragoman", "ctranslate2"))
        cpu_ours, cpu_theirs = (median(self.cpu[side]) / self.tokens[side] for side in ("dragoman", "ctranslate2"))
        return {
            **point.__dict__,
            "turns": len(self.wall["dragoman"]),
            "ratio": theirs / ours,
            "cpu_ratio": cpu_theirs / cpu_ours,
            "ms": {side: _spread(seconds) for side, seconds in self.wall.items()},
            "cpu_ms": {side: 1e3 * median(seconds) for side, seconds in self.cpu.items()},
            "tokens_per_second": {side: self.tokens[side] / median(self.wall[side]) for side in self.wall},
            "sentences_per_second": {side: self.sentences / median(self.wall[side]) for side in self.wall},
            "same_ids": self.same / self.sentences,
        }


def _spread(seconds: list[float]) -> dict[str, float]:
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 19
    names = {"p25": cuts[4], "p50": median(seconds), "p75": cuts[14], "p95": cuts[18]}
    return {name: round(1e3 * value, 3) for name, value in names.items()}


def take_turns(sides: dict[str, Callable[[], list[Ids]]], seconds: float, least: int, most: int = 50) -> Measured:
    """Both sides in turn, once to warm up and then until `seconds` are over, at least `least` times."""
    measured = Measured()
    found = {side: run() for side, run in sides.items()}
    end = time.perf_counter() + seconds
    turns = 0
    while turns < least or (time.perf_counter() < end and turns < most):
        for side, run in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            measured.cpu[side].append(time.process_time() - cpu)
            measured.wall[side].append(time.perf_counter() - wall)
        turns += 1
    measured.tokens = {side: sum(map(len, rows)) for side, rows in found.items()}
    measured.same = sum(a == b for a, b in zip(*found.values(), strict=True))
    measured.sentences = len(found["dragoman"])
    return measured


def random_sources(config: ModelConfig, length: int, count: int = 128) -> list[list[int]]:
    """Random ids, EOS last, of one length."""
    rng = np.random.default_rng(length)
    return [[*map(int, rng.integers(4, config.vocab_size, length - 1)), config.eos_id] for _ in range(count)]


def mixed_sources(weights: Weights) -> list[list[int]]:
    """The real sentences of a trained network, or random ids of about their lengths."""
    if weights.trained:
        return [source for source, _ in weights.pairs]
    lengths = [2 + len(text.encode()) // BYTES_A_TOKEN for text in SENTENCES]
    return [random_sources(weights.config, length, 1 + row)[row] for row, length in enumerate(lengths)]


def task_of(point: Point, weights: Weights) -> Task:
    """The sentences of a point. Targets are as long as their sources, except for trained weights in the mix."""
    count = point.batch * point.workers * (5 if point.line else 1)
    if point.length:
        sources = random_sources(weights.config, point.length, count)
        return Task(sources, [point.length] * count, point.beam)
    mixed = mixed_sources(weights)
    sources = [mixed[row % len(mixed)] for row in range(count)]
    if weights.trained:
        limits, forced = [max(map(len, sources)) + 50] * count, False
    else:
        limits, forced = [len(source) for source in sources], True
    slots = point.batch if point.line else 64
    return Task(sources, limits, point.beam, forced, slots, by_length=point.line == "sorted")


def grid(shapes: Iterable[str], full: bool) -> Iterator[Point]:
    """The points, those with the same models together."""
    for shape in shapes:
        for precision in ("int8", "f32"):
            if precision == "f32" and not full and shape not in ("base-6+6", "small", "trained"):
                continue
            yield from _points(Point(shape, precision, 1, 1, 25), full)


def _points(like: Point, full: bool) -> Iterator[Point]:
    batches = (1, 8, 32, 64) if full or like.precision == "int8" else (1, 8, 32)
    lengths = (25, 10, 60) if full or (like.shape, like.precision) == ("base-6+6", "int8") else (25,)
    for length in lengths:
        for beam in (1, 4):
            for batch in batches:
                if full or ((batch < 64 or beam == 1) and (length == 25 or batch in (1, 32))):
                    yield replace(like, beam=beam, batch=batch, length=length)
    # With random weights their side can be stopped in time only if it is greedy.
    for beam in (1, 4) if like.shape == "trained" else (1,):
        yield from (replace(like, beam=beam, batch=32, length=0, line=line) for line in ("", "arrival", "sorted"))
    if full or like.precision == "int8":
        for beam, batch in ((1, 1), (1, 8), (1, 32), (4, 8), (4, 32)):
            yield replace(like, beam=beam, batch=batch, workers=2)


def trained_weights(folder: Path) -> Weights:
    """The averaged weights of a training run, and the sentences in its ids."""
    from training.publish import Run

    run = Run.open(folder)
    state_dict = run.result().weights
    tokenizer = Tokenizer(run.tokenizer)
    texts = [tokenizer.encode(text) for text in SENTENCES]
    return Weights("trained", run.config, dict(state_dict), [(text, text) for text in texts], trained=True)


def measure(models: Models, points: list[Point], options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Measure the points of one network."""
    opened: tuple[str, int] | None = None
    for point in points:
        if opened != (point.precision, point.workers):
            opened = (point.precision, point.workers)
            ours, theirs = models.open(*opened, options.operators)
        task = task_of(point, models.weights)
        sides = {side.name: side.prepare(task) for side in (ours, theirs)}
        record = {**take_turns(sides, options.seconds, options.turns).record(point), "operators": ours.operators}
        print(
            f"{point.shape} {point.precision} beam {point.beam} batch {point.batch} length {point.length or 'mix'} "
            f"workers {point.workers} {ours.operators} {point.line}: "
            f"{record['ratio']:.2f} (cpu {record['cpu_ratio']:.2f}), "
            f"same ids {record['same_ids']:.3f}",
            flush=True,
        )
        yield record


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="every batch, length and precision")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--run", type=Path, help="also measure the weights of this training run")
    parser.add_argument("--precisions", nargs="+", choices=("int8", "f32"), default=["int8", "f32"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--operators", choices=get_args(OperatorChoice), default="auto")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--lengths", nargs="+", type=int, default=[0, 10, 25, 60], help="0: the mix")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each point (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="at least, for each point (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    parser.add_argument("--keep", type=Path, help="keep the models here and find them again")
    options = parser.parse_args()
    records: list[dict[str, object]] = []
    for shape in [*options.shapes, *(["trained"] if options.run else [])]:
        points = [
            point
            for point in grid([shape], options.full)
            if point.precision in options.precisions
            and point.workers in options.workers
            and point.batch in options.batches
            and point.length in options.lengths
        ]
        weights = trained_weights(options.run) if shape == "trained" else random_weights(shape, random_sources)
        with TemporaryDirectory() as folder:
            models = write_models(weights, (options.keep or Path(folder)) / shape)
            records += measure(models, points, options)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "ctranslate2.json").write_text(json.dumps({"machine": machine(), "points": records}, indent=1))
    print("\n" + write_report(options.out, machine(), records))


if __name__ == "__main__":
    main()

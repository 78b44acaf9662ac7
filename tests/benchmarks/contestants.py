"""The two sides of the comparison behind one verb: translate these sources, and hand back ids.

Both sides get the same weights, the same ids, one thread for each worker, and, where weights are random, the same
target length for each sentence: what ends a sentence is PAD, which neither side ever predicts, so that both make the
same number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.config import PRESETS, ModelConfig
from model.decode.batcher import Batcher, BatcherLimits
from model.decode.options import DecodeOptions, SpecialIds
from model.export.exporter import ExportRecord, export_graphs
from model.ports import GraphPaths
from model.runtime.sessions import OperatorChoice, RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from tests.benchmarks.ctranslate2_twin import Twin, write_model
from tests.model.networks import lively_network

Ids = tuple[int, ...]
Sources = Sequence[Sequence[int]]

SHAPES: dict[str, dict[str, Any]] = {
    "base-6+6": {"vocab_size": 32000},
    "base-6+2": {"vocab_size": 32000, "decoder_layers": 2},
    "base-12+1": {"vocab_size": 32000, "encoder_layers": 12, "decoder_layers": 1},
    "small": {"vocab_size": 8064, **PRESETS["small"]},
}
"""Overrides of the paper's base model."""


@dataclass(frozen=True)
class Weights:
    """One network, and text in its ids for the calibration of int8."""

    name: str
    config: ModelConfig
    state_dict: dict[str, Any]
    pairs: list[tuple[list[int], list[int]]]
    trained: bool = False


def random_weights(name: str, sources: Callable[[ModelConfig, int], list[list[int]]]) -> Weights:
    """A shape with random weights of a fixed seed; `sources` makes random ids of a length."""
    config = ModelConfig(**SHAPES[name])
    network = lively_network(config)
    texts = sources(config, 25)[:8]
    return Weights(name, config, dict(network.state_dict()), [(text, text) for text in texts])


@dataclass(frozen=True)
class Task:
    """What both sides are asked for."""

    sources: Sources
    limits: Sequence[int]
    """Most target tokens of each sentence; exactly so many if `forced`."""
    beam_size: int = 1
    forced: bool = True
    slots: int = 64
    """How many run at once; the others wait in line."""
    by_length: bool = False
    """Whether their side may sort the whole line by length before it cuts batches from it, as a live server cannot."""


class Ours:
    """Dragoman's engine: the batcher over the graphs, one batcher for each worker, the sessions shared."""

    name = "dragoman"

    def __init__(self, weights: Weights, graphs: GraphPaths, operators: OperatorChoice, workers: int = 1) -> None:
        self._config = weights.config
        first = open_graphs(self._config, graphs, RuntimeOptions(operators=operators))
        self.operators = first.operators
        self._steppers = [first, *(OnnxStepper(self._config, first.sessions) for _ in range(workers - 1))]
        self._pool = ThreadPoolExecutor(workers)

    def prepare(self, task: Task) -> Callable[[], list[Ids]]:
        """What is to be timed. Workers take every second, every third, … sentence."""
        shares = [range(worker, len(task.sources), len(self._steppers)) for worker in range(len(self._steppers))]
        if len(shares) == 1:
            return lambda: self._run(self._steppers[0], task, shares[0])

        def run() -> list[Ids]:
            found = self._pool.map(self._run, self._steppers, [task] * len(shares), shares)
            by_row = dict(
                pair for share, ids in zip(shares, found, strict=True) for pair in zip(share, ids, strict=True)
            )
            return [by_row[row] for row in range(len(task.sources))]

        return run

    def _run(self, stepper: OnnxStepper, task: Task, rows: range) -> list[Ids]:
        config = self._config
        special = SpecialIds(bos_id=config.bos_id, eos_id=config.pad_id if task.forced else config.eos_id)
        batcher = Batcher(stepper, BatcherLimits(max_slots=task.slots), special=special)
        for row in rows:
            options = DecodeOptions(beam_size=task.beam_size, length_penalty=0.0, max_length=task.limits[row])
            batcher.add(row, task.sources[row], options)
        done: dict[Any, Ids] = {}
        while not batcher.idle:
            done |= {finished.key: finished.hypotheses[0].ids for finished in batcher.step()}
        return [done[row] for row in rows]


class Theirs:
    """CTranslate2. It takes one limit for a batch: greedy sentences that end earlier are stopped by its callback."""

    name = "ctranslate2"

    def __init__(self, weights: Weights, folder: Path, precision: str, workers: int = 1) -> None:
        self._twin = Twin(weights.config, folder, precision, workers)
        self._workers = workers

    def prepare(self, task: Task) -> Callable[[], list[Ids]]:
        """What is to be timed; ids become strings before, since that is no work of the engine."""
        order = list(range(len(task.sources)))
        if task.by_length:
            order.sort(key=lambda row: len(task.sources[row]))
        room = task.slots * self._workers
        calls = [self._call(task, order[i : i + room]) for i in range(0, len(order), room)]

        def run() -> list[Ids]:
            by_row = dict(zip(order, (ids for call in calls for ids in call()), strict=True))
            return [by_row[row] for row in range(len(order))]

        return run

    def _call(self, task: Task, rows: list[int]) -> Callable[[], list[Ids]]:
        """One batch; rows that end before the longest leave it, and it goes on smaller."""
        twin, words, limits = (
            self._twin,
            self._twin.words([task.sources[i] for i in rows]),
            [task.limits[i] for i in rows],
        )
        options: dict[str, Any] = {"beam_size": task.beam_size}
        if self._workers > 1:
            options["max_batch_size"] = -(-len(words) // self._workers)
        elif task.forced and len(set(limits)) > 1:
            options["callback"] = lambda step: step.step + 1 >= limits[step.batch_id]
        translate = twin.forced if task.forced else twin.translate
        return lambda: twin.ids(translate(words, max(limits), **options))


@dataclass(frozen=True)
class Models:
    """Both sides' files of one network."""

    weights: Weights
    record: ExportRecord
    twin: Path

    def open(self, precision: str, workers: int, operators: OperatorChoice) -> tuple[Ours, Theirs]:
        """Both sides, loaded."""
        return (
            Ours(self.weights, self.record.graph_paths(precision), operators, workers),
            Theirs(self.weights, self.twin, precision, workers),
        )


def write_models(weights: Weights, folder: Path) -> Models:
    """Write both sides' files."""
    record = export_graphs(
        weights.config, weights.state_dict, folder / "onnx", ["f32", "int8"], calibration=weights.pairs
    )
    return Models(weights, record, write_model(weights.config, weights.state_dict, folder / "ctranslate2"))

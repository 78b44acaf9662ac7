"""What one encoding and one decoder step cost, with random weights: a table for a preset and its precisions.

    python -m tests.benchmarks.bench_stepper --preset small --vocabulary 8064

Sources of 25 tokens, 25 steps, one thread; a step holds the reordering of a beam. Both sets of operators stand beside
each other, where the native one can run. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from model.config import PRESETS, preset
from model.export.exporter import export_graphs
from model.nn.transformer import Transformer
from model.ports import CPU_OPERATORS
from model.runtime.native.build import LIBRARY
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs

LENGTH = 25
STEPS = 25


def measure(stepper: OnnxStepper, sources: list[list[int]], width: int, repetitions: int) -> tuple[float, float]:
    """Milliseconds of one encoding of all sources and of one step of all their lanes: medians."""
    encodings, steps = [], []
    parents = np.tile(np.arange(width)[::-1], (len(sources), 1))
    for _ in range(repetitions):
        begun = time.perf_counter()
        slots = stepper.start(sources, width)
        encodings.append(time.perf_counter() - begun)
        tokens = np.ones((len(sources), width), dtype=np.int64)
        for _ in range(STEPS):
            begun = time.perf_counter()
            _, ids = stepper.step(slots, tokens, 2 * width if width > 1 else 1)
            if width > 1:
                stepper.reorder(slots, parents)
            steps.append(time.perf_counter() - begun)
            tokens = ids[:, :, 0]  # (R, W, k) -> (R, W)
        stepper.finish(slots)
    return 1e3 * median(encodings), 1e3 * median(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="small")
    parser.add_argument("--vocabulary", type=int, default=8064)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--operators", nargs="+", choices=CPU_OPERATORS, default=list(CPU_OPERATORS))
    parser.add_argument("--vectors", action="store_true", help="no matrix tiles, though the processor has them")
    options = parser.parse_args()
    if options.vectors:
        ctypes.CDLL(str(LIBRARY)).dragoman_tiles(0)
    torch.manual_seed(0)
    config = preset(options.preset, options.vocabulary)
    rng = np.random.default_rng(0)
    sources = [[*map(int, rng.integers(4, config.vocab_size, LENGTH - 1)), config.eos_id] for _ in range(32)]
    pairs = [(source, source) for source in sources[:8]]
    with TemporaryDirectory() as folder:
        record = export_graphs(config, Transformer(config).state_dict(), Path(folder), ["f32", "int8"], pairs)
        heads = [f"{what} ms, {name}" for what in ("encode", "step") for name in options.operators]
        print(f"| precision | beam | rows | {' | '.join(heads)} |\n|---|--:|--:|{'--:|' * len(heads)}")
        for precision in record.precisions:
            runtimes = [RuntimeOptions(operators=name) for name in options.operators]
            steppers = [open_graphs(config, record.graph_paths(precision), runtime) for runtime in runtimes]
            for width in (1, 4):
                for rows in (1, 8, 32):
                    found = [measure(stepper, sources[:rows], width, options.repetitions) for stepper in steppers]
                    cells = [f"{encode:.1f}" for encode, _ in found] + [f"{step:.2f}" for _, step in found]
                    print(f"| {precision} | {width} | {rows} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

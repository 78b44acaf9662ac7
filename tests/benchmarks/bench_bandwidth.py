"""A decoder step against the bytes that it cannot help reading: how near is it to the memory's own speed?

    python -m tests.benchmarks.bench_bandwidth
    python -m tests.benchmarks.bench_bandwidth --shapes small --repetitions 2

A step must read every weight of the decoder once, whatever the batch, and for each sentence the keys and values that
its lanes look at. No step can be faster than reading these takes. How fast this machine reads depends on how much is
read in turn, for that decides which cache holds it; so it is measured over sizes, with one thread, by a search for a
byte that is not there. The bound of a step is the time to read its bytes at the speed of that size. With many rows the
multiplications take longer than the reading, and the share falls; it is a bound, not a forecast. Nothing here is
asserted. Writes `bandwidth.json`, `bandwidth.md` and `bandwidth.png` into `--out`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from model.config import ModelConfig
from model.ports import TOP_K_BLOCK
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from tests.benchmarks.bench_arrivals import CLOCKS
from tests.benchmarks.bench_ctranslate2 import random_sources
from tests.benchmarks.contestants import SHAPES, random_weights, write_models
from tests.benchmarks.report import machine

LENGTH = 25
"""Source tokens, and target tokens."""
SIZES = tuple(2**power for power in range(18, 30))
"""From a part of L2 to far more than most L3: 256 KiB to 512 MiB."""
READ_BYTES = 2**30
"""Read for each size, again and again."""


def read_speed(size: int, timer: Any) -> float:
    """Bytes a second that one thread reads from `size` bytes, over and over."""
    haystack = bytearray(b"\x01") * size  # written, or all its pages would be one and the same
    haystack.find(b"\x00")
    times = []
    for _ in range(max(3, READ_BYTES // size)):
        began = timer()
        assert haystack.find(b"\x00") < 0
        times.append(timer() - began)
    return size / median(times)


def weight_bytes(config: ModelConfig, precision: str) -> int:
    """What a step reads of the decoder: four maps of self-attention, two of cross-attention, for its keys and values
    are the encoder's work, the feed-forward layers, and the output projection."""
    d_model, rows = config.d_model, -(-config.vocab_size // TOP_K_BLOCK) * TOP_K_BLOCK
    layer = 6 * d_model**2 + 2 * d_model * config.d_ff
    return (config.decoder_layers * layer + rows * d_model) * (1 if precision == "int8" else 4)


def cache_bytes(config: ModelConfig, rows: int, width: int) -> float:
    """Keys and values in float32, in the mean over the steps: what each lane has written, and each source once."""
    written = width * (LENGTH + 1) / 2
    return rows * (written + LENGTH) * 2 * config.d_model * 4 * config.decoder_layers


def step_seconds(stepper: OnnxStepper, sources: list[list[int]], width: int, timer: Any, repetitions: int) -> float:
    """The mean over a translation's steps: median of the repetitions."""
    means = []
    parents = np.tile(np.arange(width)[::-1], (len(sources), 1))
    for _ in range(1 + repetitions):
        slots = stepper.start(sources, width)
        tokens, seconds = np.ones((len(sources), width), dtype=np.int64), 0.0
        for _ in range(LENGTH):
            began = timer()
            _, ids = stepper.step(slots, tokens, 2 * width if width > 1 else 1)
            if width > 1:
                stepper.reorder(slots, parents)
            seconds += timer() - began
            tokens = ids[:, :, 0]  # (R, W, k) -> (R, W)
        stepper.finish(slots)
        means.append(seconds / LENGTH)
    return median(means[1:])


def measure(shape: str, speeds: dict[int, float], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each precision, width and batch."""
    weights = random_weights(shape, random_sources)
    config, timer = weights.config, CLOCKS[options.clock]
    with TemporaryDirectory() as folder:
        record = write_models(weights, Path(folder)).record
        for precision in options.precisions:
            runtime = RuntimeOptions(operators=options.operators)
            stepper = open_graphs(config, record.graph_paths(precision), runtime)
            for width in (1, 4):
                for rows in options.batches:
                    sources = random_sources(config, LENGTH, rows)
                    seconds = step_seconds(stepper, sources, width, timer, options.repetitions)
                    weighed, cached = weight_bytes(config, precision), cache_bytes(config, rows, width)
                    speed = float(np.interp(np.log2(weighed + cached), np.log2(SIZES), list(speeds.values())))
                    found = {
                        "shape": shape,
                        "precision": precision,
                        "operators": stepper.operators,
                        "beam": width,
                        "batch": rows,
                        "weight_bytes": weighed,
                        "cache_bytes": cached,
                        "read_bytes_per_second": speed,
                        "bound_ms": 1e3 * (weighed + cached) / speed,
                        "step_ms": 1e3 * seconds,
                    }
                    found["share"] = found["bound_ms"] / found["step_ms"]
                    print(row(found), flush=True)
                    yield found


HEAD = (
    "| shape | precision | operators | beam | batch | weights MB | keys and values MB | read GB/s | bound ms | step ms "
    "| share of the bound |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def row(record: dict[str, Any]) -> str:
    """One row of the table."""
    cells = (
        *(record[name] for name in ("shape", "precision", "operators", "beam", "batch")),
        f"{record['weight_bytes'] / 1e6:.1f}",
        f"{record['cache_bytes'] / 1e6:.1f}",
        f"{record['read_bytes_per_second'] / 1e9:.1f}",
        f"{record['bound_ms']:.2f}",
        f"{record['step_ms']:.2f}",
        f"**{record['share']:.0%}**",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def plot(path: Path, speeds: dict[int, float], records: list[dict[str, Any]]) -> None:
    """How fast this machine reads; and each step over its bytes, with the bound below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2))
    left.plot([size / 2**20 for size in speeds], [speed / 1e9 for speed in speeds.values()], marker="o")
    left.set(xscale="log", xlabel="MiB read in turn", ylabel="GB/s, one thread", ylim=(0, None))
    right.plot(
        [size / 1e6 for size in speeds], [1e3 * size / speed for size, speed in speeds.items()], "k-", label="bound"
    )
    for kind in dict.fromkeys((record["shape"], record["precision"], record["beam"]) for record in records):
        here = [record for record in records if (record["shape"], record["precision"], record["beam"]) == kind]
        size = [(record["weight_bytes"] + record["cache_bytes"]) / 1e6 for record in here]
        right.plot(size, [record["step_ms"] for record in here], marker="o", label="{}, {}, beam {}".format(*kind))
    right.set(xscale="log", yscale="log", xlabel="MB that a step must read", ylabel="ms a step")
    right.legend(fontsize="x-small")
    figure.text(0.01, 0.005, machine(), fontsize="xx-small")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["base-6+6", "small"])
    parser.add_argument("--precisions", nargs="+", choices=("int8", "f32"), default=["int8", "f32"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--operators", choices=("auto", "native", "stock"), default="auto")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    speeds = {size: read_speed(size, CLOCKS[options.clock]) for size in SIZES}
    reads = "\n".join(f"| {size / 2**20:g} | {speed / 1e9:.1f} |" for size, speed in speeds.items())
    reading = f"{machine()}. Clock: {options.clock}.\n\n| MiB read in turn | GB/s |\n|--:|--:|\n{reads}\n"
    print(f"{reading}\n{HEAD}", flush=True)
    records = [record for shape in options.shapes for record in measure(shape, speeds, options)]
    options.out.mkdir(parents=True, exist_ok=True)
    found = {"machine": machine(), "read_bytes_per_second": {str(s): v for s, v in speeds.items()}, "points": records}
    (options.out / "bandwidth.json").write_text(json.dumps(found, indent=1))
    (options.out / "bandwidth.md").write_text("\n".join([reading, HEAD, *map(row, records), ""]), encoding="utf-8")
    plot(options.out / "bandwidth.png", speeds, records)


if __name__ == "__main__":
    main()

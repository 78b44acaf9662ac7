"""Requests that arrive one by one, at random: in-flight batching against dynamic batching over CTranslate2.

    python -m tests.benchmarks.bench_arrivals
    python -m tests.benchmarks.bench_arrivals --shapes trained --requests 60 --seconds 3

One thread each, the same weights, sentences and lengths. Arrivals are a Poisson process with a fixed seed, the same for
both sides. The clock is virtual: it moves by the time that each side computes, and jumps over the time in which nobody
is there. By default computing is measured in processor time, which for one thread is what a machine of one's own would
take. Theirs takes all that wait, at most 32, translates them, and answers them when the whole batch is done, which is
when `translate_batch` returns; ours is the real batcher with as many slots. A stream must be long enough to show
whether a side keeps up with it: one that does not falls behind for as long as it lasts. Random weights end each
sentence after as many tokens as its source has, trained ones where they will. Nothing here is asserted. Writes
`arrivals.json`, `arrivals.md` and `arrivals.png` into `--out`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from model.decode.batcher import Batcher, BatcherLimits
from model.decode.options import EXTRA_TOKENS, DecodeOptions, SpecialIds
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import open_graphs
from tests.benchmarks.bench_ctranslate2 import random_sources
from tests.benchmarks.contestants import SHAPES, Ids, Models, Weights, random_weights, write_models
from tests.benchmarks.ctranslate2_twin import Twin
from tests.benchmarks.report import machine
from tests.english import sentences
from tests.model.networks import shipped

SLOTS = 32
MOST = 10_000
"""Requests of the longest stream."""
LOADS = (0.2, 0.4, 0.6, 0.8)
CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


@dataclass(frozen=True)
class Text:
    """What is asked for: ids and, for each, the most target tokens; exactly so many if `forced`."""

    sources: Sequence[Sequence[int]]
    limits: Sequence[int]
    forced: bool
    beam_size: int


@dataclass(frozen=True)
class Run:
    """What one side did with one stream of arrivals, by its own clock."""

    seconds: float
    tokens: int
    latencies: list[float]

    def record(self) -> dict[str, float]:
        p50, p95, p99 = (1000 * float(np.percentile(self.latencies, q)) for q in (50, 95, 99))
        return {"p50_ms": p50, "p95_ms": p95, "p99_ms": p99, "tokens_per_second": self.tokens / self.seconds}


Side = Callable[[Sequence[float]], Run]
"""Serves requests that arrive at these times, ascending, in seconds."""


def ours(weights: Weights, models: Models, text: Text, options: argparse.Namespace) -> Side:
    """In-flight batching."""
    config, timer = weights.config, CLOCKS[options.clock]
    runtime = RuntimeOptions(operators=options.operators)
    stepper = open_graphs(config, models.record.graph_paths(options.precision), runtime)
    special = SpecialIds(bos_id=config.bos_id, eos_id=config.pad_id if text.forced else config.eos_id)

    def serve(arrivals: Sequence[float]) -> Run:
        batcher = Batcher(stepper, BatcherLimits(max_slots=SLOTS), special=special)
        now, come, tokens, latencies = 0.0, 0, 0, []
        while come < len(arrivals) or not batcher.idle:
            if batcher.idle:
                now = max(now, arrivals[come])
            began = timer()
            while come < len(arrivals) and arrivals[come] <= now:
                wanted = DecodeOptions(beam_size=text.beam_size, length_penalty=0.0, max_length=text.limits[come])
                batcher.add(come, text.sources[come], wanted)
                come += 1
            done = batcher.step()
            now += timer() - began
            tokens += sum(len(one.hypotheses[0].ids) for one in done)
            latencies += [now - arrivals[one.key] for one in done]  # type: ignore[index]
        return Run(now, tokens, latencies)

    return serve


def theirs(weights: Weights, models: Models, text: Text, options: argparse.Namespace) -> Side:
    """Dynamic batching: all that wait, at most as many as we have slots, in the order they came."""
    twin, timer = Twin(weights.config, models.twin, options.precision), CLOCKS[options.clock]
    words = twin.words(text.sources)

    def serve(arrivals: Sequence[float]) -> Run:
        now, come, tokens, latencies = 0.0, 0, 0, []
        while come < len(arrivals):
            now = max(now, arrivals[come])
            end = come
            while end < min(len(arrivals), come + SLOTS) and arrivals[end] <= now:
                end += 1
            began = timer()
            found = _translate(twin, text, words, range(come, end))
            now += timer() - began
            tokens += sum(map(len, found))
            latencies += [now - arrivals[i] for i in range(come, end)]
            come = end
        return Run(now, tokens, latencies)

    return serve


def _translate(twin: Twin, text: Text, words: list[list[str]], rows: range) -> list[Ids]:
    limits = [text.limits[i] for i in rows]
    wanted: dict[str, Any] = {"beam_size": text.beam_size}
    if text.forced and len(set(limits)) > 1:
        # Rows that have their length leave the batch, which goes on smaller.
        wanted["callback"] = lambda step: step.step + 1 >= limits[step.batch_id]
    translate = twin.forced if text.forced else twin.translate
    return twin.ids(translate([words[i] for i in rows], max(limits), **wanted))


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Times at which `count` requests arrive, `rate` of them a second."""
    return np.random.default_rng(seed).exponential(1.0 / rate, count).cumsum().tolist()


def text_of(weights: Weights, count: int, beam_size: int) -> Text:
    """Real sentences, in random order; for random weights random ids of their lengths."""
    bundle, _ = shipped()
    known = [bundle.tokenizer().encode(sentence) for sentence in sentences(500)]
    order = np.random.default_rng(1).permutation(len(known))
    chosen = [known[order[i % len(known)]] for i in range(count)]
    if weights.trained:
        return Text(chosen, [len(source) + EXTRA_TOKENS for source in chosen], False, beam_size)
    sources = [random_sources(weights.config, len(source), 1)[0] for source in chosen]
    return Text(sources, [len(source) for source in sources], True, beam_size)


def measure(weights: Weights, models: Models, beam_size: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Saturated first, which gives our capacity; then parts of it."""
    text = text_of(weights, MOST, beam_size)
    sides = {"dragoman": ours(weights, models, text, options), "ctranslate2": theirs(weights, models, text, options)}
    for side in sides.values():
        side([0.0] * min(options.requests, SLOTS))  # warm-up
    capacity = 0.0
    for load in (None, *options.loads):
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        rate = capacity * load if load else 0.0
        count = min(MOST, max(options.requests, round(rate * options.seconds)))
        for turn in range(options.turns):
            arrivals = poisson(rate, count, turn) if load else [0.0] * count
            for name, side in sides.items():
                run = side(arrivals)
                runs[name].append({**run.record(), "requests_per_second": count / run.seconds})
        middle = {name: {key: median(run[key] for run in found) for key in found[0]} for name, found in runs.items()}
        capacity = capacity or middle["dragoman"]["requests_per_second"]
        record = {"shape": weights.name, "beam": beam_size, "precision": options.precision, "load": load, **middle}
        record |= {"rate": rate or None, "requests": count}
        print(row(record), flush=True)
        yield record


HEAD = (
    "| shape | beam | load | requests/s | ours tok/s | theirs tok/s | × tokens/s "
    "| ours p50 / p95 / p99 ms | theirs p50 / p95 / p99 ms | their p95 ÷ ours |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def row(record: dict[str, Any]) -> str:
    """One row of the table."""
    mine, other = record["dragoman"], record["ctranslate2"]

    def cuts(side: dict[str, float]) -> str:
        return " / ".join(f"{side[name]:.0f}" for name in ("p50_ms", "p95_ms", "p99_ms"))

    cells = (
        record["shape"],
        record["beam"],
        f"{record['load']:.0%}" if record["load"] else "saturated",
        f"{record['rate'] or mine['requests_per_second']:.1f}",
        f"{mine['tokens_per_second']:.0f}",
        f"{other['tokens_per_second']:.0f}",
        f"**{mine['tokens_per_second'] / other['tokens_per_second']:.2f}**",
        cuts(mine),
        cuts(other),
        f"**{other['p95_ms'] / mine['p95_ms']:.1f}**",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def plot(path: Path, records: list[dict[str, Any]]) -> None:
    """The 95th percentile over the load, one panel for each shape and beam."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    loaded = [record for record in records if record["load"]]
    kinds = list(dict.fromkeys((record["shape"], record["beam"]) for record in loaded))
    if not kinds:
        return
    figure, panels = pyplot.subplots(1, len(kinds), figsize=(4.6 * len(kinds), 3.6), squeeze=False)
    for panel, (shape, beam) in zip(panels[0], kinds, strict=True):
        here = [record for record in loaded if (record["shape"], record["beam"]) == (shape, beam)]
        for side, label in (("dragoman", "in flight"), ("ctranslate2", "CTranslate2, dynamic batches")):
            panel.plot([r["rate"] for r in here], [r[side]["p95_ms"] for r in here], marker="o", label=label)
        panel.set(title=f"{shape}, beam {beam}", xlabel="requests a second", ylabel="p95, ms", yscale="log")
        panel.legend(fontsize="small")
    figure.text(0.01, 0.005, machine(), fontsize="xx-small")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, "trained"], default=["base-6+6", "trained"])
    parser.add_argument("--requests", type=int, default=160, help="of a stream, at least (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a stream, at least (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="streams for each row (default: %(default)s)")
    parser.add_argument("--loads", type=float, nargs="*", default=LOADS, help="parts of our capacity")
    parser.add_argument("--precision", choices=("int8", "f32"), default="int8")
    parser.add_argument("--operators", choices=("auto", "native", "stock"), default="auto")
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    print(f"{machine()}\n\n{HEAD}", flush=True)
    for shape in options.shapes:
        weights = trained_weights() if shape == "trained" else random_weights(shape, random_sources)
        with TemporaryDirectory() as folder:
            models = write_models(weights, Path(folder))
            # With random weights their side can be stopped in time only if it is greedy.
            for beam_size in (1, 4) if weights.trained else (1,):
                records += measure(weights, models, beam_size, options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "arrivals.json").write_text(json.dumps({"machine": machine(), "points": records}, indent=1))
    text = "\n".join([f"{machine()}. Clock: {options.clock}.\n", HEAD, *map(row, records), ""])
    (options.out / "arrivals.md").write_text(text, encoding="utf-8")
    plot(options.out / "arrivals.png", records)


def trained_weights() -> Weights:
    """The network that ships, calibrated on its own input."""
    bundle, state_dict = shipped()
    ids = [bundle.tokenizer().encode(sentence) for sentence in sentences(128)]
    return Weights("trained", bundle.config, state_dict, [(source, source) for source in ids], trained=True)


if __name__ == "__main__":
    main()

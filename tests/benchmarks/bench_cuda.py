"""The CUDA backend on a GPU: first whether it is right, then how fast it is.

    pip install '.[gpu,train,dev]'        # in an environment of its own, without the wheel `onnxruntime`
    python -m tests.benchmarks.bench_cuda --bundle service/bundled/en-de --preset paper-base

Right: the bundle's weights are exported anew, and the ids of real sentences in f32 and f16 on CUDA are compared with
those of f32 on the CPU, with CUDA graphs and without. Then each sentence alone is compared with all of them together:
up to 32 rows are computed in the same shapes, but a cache that grows longer for a neighbour, and an encoder that pads
to the longest source, may make cuBLAS choose another kernel, so equality is measured here and not promised.

Fast: random weights of a preset, sources and targets of 25 tokens, milliseconds of an encoding and of a step, and
tokens a second for whole batches. Nothing here is asserted but that CUDA runs.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from model.bundle import Bundle
from model.config import PRESETS, ModelConfig, preset
from model.decode.batcher import BatcherLimits, decode_all
from model.decode.options import DecodeOptions, Hypothesis, SpecialIds
from model.export.exporter import ExportRecord, export_graphs
from model.export.recover import recover_state_dict
from model.nn.transformer import Transformer
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from tests.benchmarks.bench_stepper import LENGTH, measure

ROWS = (1, 8, 32, 64, 128)
WIDTHS = (1, 4)
SENTENCES = Path(__file__).with_name("sentences.en")


def export(config: ModelConfig, state: Mapping[str, Any], folder: str) -> ExportRecord:
    return export_graphs(config, state, Path(folder), ["f32", "f16"], (), ["stock"])


def on_cuda(config: ModelConfig, record: ExportRecord, precision: str, graphs: bool) -> OnnxStepper:
    return open_graphs(config, record.graph_paths(precision), RuntimeOptions(provider="cuda", device_graphs=graphs))


def check(path: Path) -> None:
    """A table: how far ids and scores on CUDA are from f32 on the CPU, and a sentence alone from one in company."""
    bundle = Bundle.open(path)
    config, tokenizer = bundle.config, bundle.tokenizer()
    special = SpecialIds(bos_id=config.bos_id, eos_id=config.eos_id)
    sources = [tokenizer.encode(line) for line in SENTENCES.read_text(encoding="utf-8").splitlines()]
    state = {name: torch.from_numpy(value) for name, value in recover_state_dict(bundle).items()}

    def best(stepper: OnnxStepper, width: int, slots: int) -> list[Hypothesis]:
        limits, options = BatcherLimits(max_slots=slots), DecodeOptions(beam_size=width)
        return [result.hypotheses[0] for result in decode_all(stepper, sources, options, limits, special=special)]

    print("| precision | graphs | beam | same ids as f32 on the CPU | largest difference of scores | same alone |")
    print("|---|---|--:|--:|--:|--:|")
    with TemporaryDirectory() as folder:
        record = export(config, state, folder)
        reference = open_graphs(config, record.graph_paths("f32"), RuntimeOptions(operators="stock"))
        for width in WIDTHS:
            wanted = best(reference, width, 64)
            for precision in ("f32", "f16"):
                for graphs in (True, False):
                    stepper = on_cuda(config, record, precision, graphs)
                    found, alone = best(stepper, width, 64), best(stepper, width, 1)
                    same = np.mean([a.ids == b.ids for a, b in zip(found, wanted, strict=True)])
                    far = max(abs(a.score - b.score) for a, b in zip(found, wanted, strict=True))
                    company = np.mean([(a.ids, a.score) == (b.ids, b.score) for a, b in zip(found, alone, strict=True)])
                    name = f"{precision} | {'on' if graphs else 'off'} | {width}"
                    print(f"| {name} | {same:.3f} | {far:.4f} | {company:.3f} |", flush=True)


def time_steps(options: argparse.Namespace) -> None:
    """A table for a preset: encoding, step and throughput, with CUDA graphs and without."""
    torch.manual_seed(0)
    config = preset(options.preset, options.vocabulary)
    rng = np.random.default_rng(0)
    sources = [[*map(int, rng.integers(4, config.vocab_size, LENGTH - 1)), config.eos_id] for _ in range(max(ROWS))]
    with TemporaryDirectory() as folder:
        record = export(config, Transformer(config).state_dict(), folder)
        print("| precision | beam | rows | encode ms | step ms, graphs | step ms, none | tokens/s, graphs | none |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        for precision in ("f16", "f32"):
            steppers = [on_cuda(config, record, precision, graphs) for graphs in (True, False)]
            for width in WIDTHS:
                for rows in ROWS:
                    for stepper in steppers:  # graphs are recorded and kernels loaded before it counts
                        measure(stepper, sources[:rows], width, 1)
                    found = [measure(stepper, sources[:rows], width, options.repetitions) for stepper in steppers]
                    rates = [1e3 * rows * LENGTH / (encode + LENGTH * step) for encode, step in found]
                    steps = " | ".join(f"{step:.2f}" for _, step in found)
                    tokens = " | ".join(f"{rate:,.0f}" for rate in rates)
                    print(f"| {precision} | {width} | {rows} | {found[0][0]:.1f} | {steps} | {tokens} |", flush=True)


def gpu() -> str:
    """What the driver calls the GPU, and its own version."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, default=Path("service/bundled/en-de"))
    parser.add_argument("--preset", choices=PRESETS, default="paper-base")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--repetitions", type=int, default=10)
    options = parser.parse_args()
    print(f"{gpu()}; onnxruntime-gpu {version('onnxruntime-gpu')}\n")
    check(options.bundle)
    print()
    time_steps(options)


if __name__ == "__main__":
    main()

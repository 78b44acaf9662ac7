"""The published command, whole: `torchrun` trains in two processes, and what comes out is published and decodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.bundle import Bundle
from model.decode.options import DecodeOptions
from model.runtime.stepper import open_stepper
from tests.model.networks import train_tokenizer
from training.checkpoint import Checkpoints, load
from training.cli import main
from training.evaluate import Translator

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
UPDATES = 8
RECIPE = f"""
[languages]
source = "en"
target = "de"
[model]
preset = "small"
d_model = 32
heads = 2
d_ff = 32
encoder_layers = 1
decoder_layers = 1
[fit]
updates = {UPDATES}
batch_tokens = 240
micro_batch_tokens = 60
max_length = 60
warmup = 4
precision = "f32"
threads = 1
device = "cpu"
validate_every = 4
validate_sentences = 2
checkpoint_every = 4
average = 2
[publish]
name = "numbers"
precisions = ["f32"]
parity_sentences = 4
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchrun")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    lines = [" ".join(str(i * k % 97) for k in range(1, 4 + i % 5)) for i in range(1, 160)]
    for name, rows in (("train", lines), ("dev.numbers", lines[:8]), ("test.numbers", lines[:6])):
        (folder / f"{name}.en").write_text("\n".join(rows) + "\n", encoding="utf-8")
        (folder / f"{name}.de").write_text("\n".join(row[::-1] for row in rows) + "\n", encoding="utf-8")
    train_tokenizer(folder)
    given = ["fit", "--recipe", str(folder / "recipe.toml"), "--corpus", str(folder), "--run"]
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Without the two dashes torchrun takes our --run for an abbreviation of its --run-path.
    published = [torchrun, "--nproc-per-node", "2", "-m", "--", "training.cli"]
    command = [published[0], "--standalone", *published[1:], *given, str(folder / "two")]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert main([*given, str(folder / "one")]) == 0
    return folder


def noted(run: Path, kind: str) -> list[dict[str, float]]:
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def test_two_processes_end_with_the_loss_of_one(folder: Path) -> None:
    (together,), (alone,) = noted(folder / "two", "train"), noted(folder / "one", "train")
    assert (together["update"], together["target_tokens"]) == (UPDATES, alone["target_tokens"])
    for measure in ("nll", "smoothed"):
        assert together[measure] == pytest.approx(alone[measure], rel=1e-6), measure


def test_two_processes_end_with_the_weights_of_one(folder: Path) -> None:
    two, one = (load(Checkpoints(folder / name / "checkpoints", 2).weights()[-1]) for name in ("two", "one"))
    for name, weights in one.items():
        if name.endswith("w_k.bias"):
            continue  # a constant on all keys changes no softmax: its gradient is rounding, which Adam blows up
        torch.testing.assert_close(two[name], weights, rtol=1e-4, atol=1e-5, msg=name)


def test_only_one_process_writes_the_log_and_validates(folder: Path) -> None:
    assert [event["update"] for event in noted(folder / "two", "dev.numbers")] == [4, 8]


def test_what_two_processes_trained_is_published_and_translates_like_that_of_one(folder: Path) -> None:
    found = []
    for name in ("two", "one"):
        out = folder / f"{name}-bundle"
        given = ["--recipe", str(folder / "recipe.toml"), "--run", str(folder / name), "--out", str(out)]
        assert main(["publish", *given]) == 0
        bundle = Bundle.open(out)
        translator = Translator(open_stepper(bundle, "f32"), bundle.tokenizer(), DecodeOptions(beam_size=4))
        found.append(translator.translate(["Keep to the marked path.", "Twelve.", "7 14 21"]).texts)
    assert found[0] == found[1]
    assert all(len(texts) == 3 for texts in found)

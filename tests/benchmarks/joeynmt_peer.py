"""JoeyNMT 2.3.0, the peer in training, in a python of its own.

    python -m venv build/joeynmt
    build/joeynmt/bin/pip install torch==2.13.0 joeynmt==2.3.0 importlib_metadata sentencepiece==0.2.0

Newer sentencepiece no longer has a call that it makes, and importlib_metadata is missing among its requirements. It
gets the same text, subword model, shape, budget of padded tokens, dropout, smoothing and threads. On the processor it
computes in float32. What it calls "Tokens per Sec" are real target tokens, EOS counted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from model.config import ModelConfig
from model.tokenizer import Tokenizer
from tests.benchmarks.training_text import TextPair

DRIVER = Path(__file__).with_name("joeynmt_driver.py")
_RATE = re.compile(r"Tokens per Sec: +(\d+)")
_SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")
_PATIENCE = 120.0
"""Seconds it may take to save and to end once it is told to."""


class PeerError(Exception):
    """The peer is not there, or ended with an error."""


@dataclass(frozen=True)
class PeerRun:
    """What it said of one training."""

    tokens_per_second: float
    """Median of its own figures, the first update left out."""
    real_share: float
    """Real target tokens, as a share of those with padding."""
    updates: int
    seconds: float
    """From its start to its end, with its imports and its reading of the text."""


@dataclass(frozen=True)
class Peer:
    """A python that has JoeyNMT, and a folder to work in."""

    python: Path
    folder: Path
    threads: int

    def train(self, config: dict[str, Any], seconds: float | None = None) -> PeerRun:
        """Train as `config` says; after `seconds` it is interrupted, which makes it save. Raises `PeerError`."""
        path, counts, log = (self.folder / name for name in ("config.yaml", "counts.txt", "train.txt"))
        path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        command = [str(self.python), str(DRIVER), str(counts), "train", str(path), "--skip-test"]
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self._environment(), stdout=file, stderr=subprocess.STDOUT
            )
            interrupted = not _ended(process, seconds)
        said = log.read_text(encoding="utf-8")
        rates = [float(rate) for rate in _RATE.findall(said)]
        if not rates or (process.returncode and not interrupted):
            raise PeerError(f"JoeyNMT must train a few updates, but ended with {process.returncode}:\n{said[-1500:]}")
        rows = [tuple(map(int, line.split())) for line in counts.read_text(encoding="utf-8").splitlines()]
        real, padded = (sum(column) for column in zip(*rows, strict=True))
        return PeerRun(median(rates[1:] or rates), real / padded, len(rows), seconds or 0.0)

    def translate(self, config: dict[str, Any], lines: Sequence[str]) -> list[str]:
        """The translations of `lines`; none of them may be blank. Raises `PeerError`."""
        path = self.folder / "translate.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")
        command = [str(self.python), "-m", "joeynmt", "translate", str(path)]
        run = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(),
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            check=False,
        )
        found = run.stdout.splitlines()[-len(lines) :]
        if run.returncode or len(found) != len(lines):
            raise PeerError(f"JoeyNMT must translate {len(lines)} lines, but: {run.stderr[-1500:]}")
        return found

    def _environment(self) -> dict[str, str]:
        threads = {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        return {**os.environ, **threads, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}


def _ended(process: subprocess.Popen[bytes], seconds: float | None) -> bool:
    """Wait for the end, or interrupt after `seconds`; whether it ended by itself."""
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return False


def write_text(folder: Path, name: str, pairs: Sequence[TextPair], languages: tuple[str, str]) -> None:
    """`NAME.SOURCE` and `NAME.TARGET`, without pairs that are blank on a side: JoeyNMT refuses them."""
    kept = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
    for side, language in enumerate(languages):
        text = "".join(f"{' '.join(pair[side].split())}\n" for pair in kept)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def write_vocabulary(folder: Path, tokenizer: Tokenizer) -> Path:
    """The pieces of the subword model, one a line, as JoeyNMT wants them."""
    pieces = [piece for piece in tokenizer.pieces(range(tokenizer.vocab_size)) if len(piece.splitlines()) == 1]
    path = folder / "vocabulary.txt"
    path.write_text("".join(f"{piece}\n" for piece in pieces if piece not in _SPECIALS), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Plan:
    """What one training of the peer is made of."""

    model: ModelConfig
    languages: tuple[str, str]
    tokenizer: Path
    vocabulary: Path
    batch_tokens: int
    label_smoothing: float
    max_length: int
    learning_rate: float
    warmup: int
    updates: int
    """0: until it is interrupted."""
    log_every: int
    length_penalty: float = 0.6


def configuration(plan: Plan, folder: Path) -> dict[str, Any]:
    """Its configuration file for `plan`, with the text `train` and `dev` in `folder`."""
    source, target = (_side(plan, language) for language in plan.languages)
    training: dict[str, Any] = {
        "optimizer": "adam",
        "adam_betas": [0.9, 0.98],
        "normalization": "tokens",
        "learning_rate": plan.learning_rate,
        "learning_rate_min": 0,
        "learning_rate_warmup": plan.warmup,
        "scheduling": "warmupinversesquareroot",
        "label_smoothing": plan.label_smoothing,
        "batch_size": plan.batch_tokens,
        "batch_type": "token",
        "early_stopping_metric": "loss",
        "epochs": 1000,
        "logging_freq": plan.log_every,
        "validation_freq": 1_000_000 * plan.log_every,
        "overwrite": True,
        **({"updates": plan.updates} if plan.updates else {}),
    }
    return {
        "name": "peer",
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "dev"),
            "dataset_type": "plain",
            "src": source,
            "trg": target,
        },
        "testing": {
            "load_model": str(folder / "model/latest.ckpt"),
            "beam_size": 4,
            "beam_alpha": plan.length_penalty,
            "batch_size": 2048,
            "batch_type": "token",
            "max_output_length": plan.max_length,
        },
        "training": training,
        "model": _shape(plan.model),
    }


def _side(plan: Plan, language: str) -> dict[str, Any]:
    return {
        "lang": language,
        "level": "bpe",
        "max_length": plan.max_length,
        "lowercase": False,
        "normalize": False,
        "voc_file": str(plan.vocabulary),
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": str(plan.tokenizer)},
    }


def _shape(model: ModelConfig) -> dict[str, Any]:
    def stack(layers: int) -> dict[str, Any]:
        return {
            "type": "transformer",
            "num_layers": layers,
            "num_heads": model.heads,
            "embeddings": {"embedding_dim": model.d_model, "scale": True, "dropout": model.dropout},
            "hidden_size": model.d_model,
            "ff_size": model.d_ff,
            "dropout": model.dropout,
            "layer_norm": model.norm_order,
        }

    return {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "tied_embeddings": model.tie_embeddings,
        "tied_softmax": model.tie_embeddings,
        "encoder": stack(model.encoder_layers),
        "decoder": stack(model.decoder_layers),
    }

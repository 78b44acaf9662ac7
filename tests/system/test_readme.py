"""The README's blocks do what it says. A comment above each block tells how it is tried:

<!-- test: make -->       each line is a verb of the Makefile
<!-- test: shell -->      it runs as it stands, in an empty folder
<!-- test: train -->      it runs beside the recipes, with a training of a few updates
<!-- test: own -->        the same, with a file of pairs there too; what it ends with serves the block that follows
<!-- test: fine-tune -->  the same, with a file of pairs and the bundled model there too
<!-- test: served -->     it runs while the service does; the service's address replaces the usual one
<!-- test: answer -->     the block before prints JSON of this shape: same keys, same types
<!-- test: none (why) --> it cannot run here
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.running_service import RunningService
from tests.system.test_whole_way import ENGLISH, GERMAN

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"(?:^<!-- test: (?P<way>.+?) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
WAYS = ("make", "shell", "train", "own", "fine-tune", "served", "answer", "none")
USUAL_ADDRESS = "http://127.0.0.1:8000"
SHORT = "--set fit.updates=60 --set fit.cooldown=20 --set fit.checkpoint_every=20"


@dataclass(frozen=True)
class Block:
    line: int
    way: str
    language: str
    body: str


def _blocks() -> list[Block]:
    return [
        Block(README.count("\n", 0, found.start()) + 1, found["way"] or "", found["language"], found["body"])
        for found in BLOCK.finditer(README)
    ]


def _each(way: str) -> pytest.MarkDecorator:
    chosen = [block for block in _blocks() if block.way == way]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: f"line {block.line}")


def _run(script: str, folder: Path) -> str:
    """What `script` prints in `folder`, with the console scripts of this environment on the path."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = ["bash", "-euo", "pipefail", "-c", script]
    run = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=1800
    )
    assert run.returncode == 0, f"{script}\nended with {run.returncode}:\n{run.stdout}\n{run.stderr}"
    return run.stdout


def _shape(value: Any) -> Any:
    """`value` with every leaf replaced by its type; an array by the shape of its items."""
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shape(item) for item in value]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def test_every_block_of_commands_says_how_it_is_tried() -> None:
    unmarked = [block.line for block in _blocks() if block.language in ("bash", "json") and not block.way]
    unknown = [block.way for block in _blocks() if block.way and block.way.split()[0] not in WAYS]
    assert (unmarked, unknown) == ([], [])


@_each("make")
def test_the_makefile_knows_every_verb(block: Block) -> None:
    for line in block.body.splitlines():
        verb = line.partition("#")[0].split()
        assert verb[0] == "make"
        _run(f"make --dry-run {' '.join(verb[1:])}", ROOT)


@_each("shell")
def test_a_command_without_a_server_runs(block: Block, tmp_path: Path) -> None:
    assert _run(block.body, tmp_path).strip()


@pytest.mark.slow
@_each("train")
def test_a_model_is_made_step_by_step(block: Block, tmp_path: Path) -> None:
    (tmp_path / "training").symlink_to(ROOT / "training")
    short = block.body.replace("dragoman-train fit ", f"dragoman-train fit {SHORT} ")
    assert short != block.body
    assert _run(short, tmp_path).splitlines()[-1].strip()
    assert (tmp_path / "runs/tiny/en-de/MODEL_CARD.md").is_file()


@pytest.mark.slow
@_each("own")
def test_a_file_of_pairs_becomes_a_model_that_answers(block: Block, tmp_path: Path) -> None:
    (tmp_path / "training").symlink_to(ROOT / "training")
    (tmp_path / "mine.tsv").write_text(_pairs_of_numbers(400), encoding="utf-8")
    *making, serving = block.body.splitlines()
    assert serving == "dragoman serve --bundles runs/own/bundle"
    body = "\n".join(making).replace("dragoman-train fit ", f"dragoman-train fit {SHORT} ")
    body = body.replace(" corpus  ", " corpus --set holdout.mine.test=20 --set holdout.mine.dev=10  ")
    _run(body, tmp_path)
    asking = _blocks()[_blocks().index(block) + 1]
    assert asking.way == "own (asked)"
    running = RunningService(bundles=tmp_path / "runs/own/bundle")
    try:
        answer = json.loads(_run(asking.body.replace(USUAL_ADDRESS, running.url), tmp_path))
    finally:
        running.kill()
    assert answer["model"] == "mine"
    assert len(answer["translations"]) == 1


def _pairs_of_numbers(count: int) -> str:
    """A TSV of lines so unlike each other that few look like the held-out ones."""
    dice = random.Random(0)
    chosen = [dice.sample(range(len(ENGLISH)), 5) for _ in range(count)]
    return "".join(f"{' '.join(ENGLISH[i] for i in row)}\t{' '.join(GERMAN[i] for i in row)}\n" for row in chosen)


@pytest.mark.slow
@_each("fine-tune")
def test_the_bundled_model_is_trained_further_on_a_file_of_pairs(block: Block, tmp_path: Path) -> None:
    for room in ("training", "service"):
        (tmp_path / room).symlink_to(ROOT / room)
    (tmp_path / "mine.tsv").write_text(_pairs_of_numbers(400), encoding="utf-8")
    few = "--set fit.updates=2 --set fit.cooldown=1 --set fit.checkpoint_every=1 --set fit.validate_sentences=1"
    body = block.body.replace("dragoman-train fit ", f"dragoman-train fit {few} ")
    body = body.replace(" corpus  ", " corpus --set holdout.mine.test=20 --set holdout.mine.dev=10  ")
    rows = [line for line in _run(body, tmp_path).splitlines() if line.startswith("| mine | 20 ")]
    before, after = rows[-2:]
    assert before != after
    card = (tmp_path / "runs/mine/en-de/MODEL_CARD.md").read_text(encoding="utf-8")
    assert "| begun with | the weights of en-de " in card
    assert after in card


@pytest.mark.slow
@_each("served")
def test_a_request_gets_the_answer_that_is_shown(block: Block, served: RunningService, tmp_path: Path) -> None:
    output = _run(block.body.replace(USUAL_ADDRESS, served.url), tmp_path)
    following = _blocks()[_blocks().index(block) + 1]
    if following.way == "answer":
        assert _shape(json.loads(output)) == _shape(json.loads(following.body))

"""JSON lines: one object a line, the texts under keys of one's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.corpus.pair import Pair


def read_jsonl(path: Path, origin: str, keys: tuple[str, str]) -> Iterator[Pair]:
    """Pairs of the texts under `keys`, source first; `translation.en` is the key `en` of the object `translation`.

    Empty lines are passed over. A line that is no object, lacks a key, or has no text there is a `CorpusError`.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise CorpusError(f"line {number} of {path} must be a JSON object, but is not: {error}.") from error
        source, target = (_text(value, key, f"line {number} of {path}") for key in keys)
        yield Pair(source, target, origin, path.name)


def _text(value: Any, key: str, where: str) -> str:
    for step in key.split("."):
        if not isinstance(value, dict) or step not in value:
            has = ", ".join(value) if isinstance(value, dict) else repr(value)[:60]
            raise CorpusError(f"{where} must have the key {key!r}, but {step!r} is not in: {has}; set keys.")
        value = value[step]
    if not isinstance(value, str):
        raise CorpusError(f"{where} must have a text under {key!r}, but has {value!r:.60}.")
    return value

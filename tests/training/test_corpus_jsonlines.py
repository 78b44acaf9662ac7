"""JSON lines: texts under keys of one's own, and errors that name the line."""

import gzip
import json
from pathlib import Path

import pytest

from training.corpus.errors import CorpusError
from training.corpus.jsonlines import read_jsonl

ROWS = [{"translation": {"en": "Yes", "de": "Ja"}}, {"translation": {"en": "No\nno", "de": "Nein"}, "score": 1}]


def written(path: Path, *lines: str) -> Path:
    path.write_bytes(gzip.compress("\n".join(lines).encode()) if path.suffix == ".gz" else "\n".join(lines).encode())
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_texts_are_found_under_keys_within_keys(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, json.dumps(ROWS[0]), "", json.dumps(ROWS[1]))
    found = [
        (pair.source, pair.target, pair.part) for pair in read_jsonl(path, "o", ("translation.en", "translation.de"))
    ]
    assert found == [("Yes", "Ja", name), ("No\nno", "Nein", name)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 of .* must be a JSON object"),
        ('"text"', "must have the key 'en'"),
        ('{"en": "Yes", "fr": "Oui"}', "'de' is not in: en, fr; set keys"),
        ('{"en": "Yes", "de": 3}', "must have a text under 'de', but has 3"),
    ],
)
def test_a_line_that_holds_no_pair_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path / "rows.jsonl", '{"en": "Yes", "de": "Ja"}', line)
    with pytest.raises(CorpusError, match=said):
        list(read_jsonl(path, "o", ("en", "de")))

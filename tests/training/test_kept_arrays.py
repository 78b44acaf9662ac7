"""What took minutes is kept, and never taken for something else."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training import kept_arrays
from training.kept_arrays import KeptArrays
from training.ragged import Ragged

ROWS = st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=9), max_size=20)


def ragged(rows: list[list[int]]) -> Ragged:
    ids = np.array([i for row in rows for i in row], dtype=np.int32)
    return Ragged(ids, np.cumsum([len(row) for row in rows], dtype=np.int64))


@given(ROWS)
def test_rows_in_one_array_are_the_rows(rows: list[list[int]]) -> None:
    found = ragged(rows)
    assert [row.tolist() for row in found] == rows
    assert [found[i].tolist() for i in range(-len(rows), 0)] == rows
    assert [row.tolist() for row in found[1:-1]] == rows[1:-1]
    assert found.lengths.tolist() == [len(row) for row in rows]


def test_arrays_come_back_as_they_were_and_cannot_be_written_to(tmp_path: Path) -> None:
    kept = KeptArrays(tmp_path / "kept", {"seed": 1})
    assert not kept.there
    kept.write({"one": np.arange(5), "none": np.empty(0, dtype=np.int32), "number": np.array(7)})
    again = KeptArrays(tmp_path / "kept", {"seed": 1})
    assert again.there
    found = again.read()
    assert {name: array.tolist() for name, array in found.items()} == {"one": [0, 1, 2, 3, 4], "none": [], "number": 7}
    with pytest.raises(ValueError, match="read-only"):
        found["one"][0] = 3


def test_arrays_of_another_key_or_of_other_code_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptArrays(tmp_path / "kept", {"seed": 1}).write({"one": np.arange(5)})
    assert not KeptArrays(tmp_path / "kept", {"seed": 2}).there
    monkeypatch.setattr(kept_arrays, "_code", lambda: "another version")
    assert not KeptArrays(tmp_path / "kept", {"seed": 1}).there


def test_any_change_of_the_code_makes_other_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_arrays, "training", Namespace(__path__=[str(tmp_path)]))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/files.py").write_text("one = 1\n")
    KeptArrays(tmp_path / "kept", {"seed": 1}).write({"one": np.arange(5)})
    assert KeptArrays(tmp_path / "kept", {"seed": 1}).there
    (tmp_path / "corpus/files.py").write_text("one = 2\n")
    assert not KeptArrays(tmp_path / "kept", {"seed": 1}).there


def test_what_was_interrupted_while_it_was_written_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptArrays(tmp_path / "kept", {"seed": 1})

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="no space"):
        kept.write({"one": np.arange(5)})
    assert not kept.there
    monkeypatch.undo()
    kept.write({"one": np.arange(3)})
    assert kept.read()["one"].tolist() == [0, 1, 2]

"""Text files are read line for line, whatever is inside a line and however they are packed."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training.corpus.errors import CorpusError
from training.corpus.files import read_lines, read_paired, read_tsv

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".txt": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_every_compression_gives_the_same_lines(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(PACKERS[suffix]("Grüße\nzwei\r\n\ndrei".encode()))
    assert list(read_lines(path)) == ["Grüße", "zwei", "", "drei"]


def test_lines_with_and_without_an_end_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"Guten Tag.\nBis bald.\r\nLetzte Zeile ohne Ende")
    assert list(read_lines(path)) == ["Guten Tag.", "Bis bald.", "Letzte Zeile ohne Ende"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\xef\xbb\xbfone\n")
    assert list(read_lines(path)) == ["one"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=5))
def test_nothing_within_a_line_ends_it(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "x"
    path.write_bytes("".join(line + "\n" for line in ["first", *lines]).encode())
    assert list(read_lines(path)) == ["first", *lines]


def test_a_zero_byte_does_not_swallow_a_line(tmp_path: Path) -> None:
    left, right = tmp_path / "en", tmp_path / "de"
    left.write_bytes(b"Alpha\x00Beta \x07gamma\x0b delta\nsecond\n")
    right.write_bytes(b"eins\nzwei\n")
    pairs = list(read_paired(left, right, "o"))
    assert [pair.source for pair in pairs] == ["Alpha\x00Beta \x07gamma\x0b delta", "second"]


def test_paired_files_of_different_length_are_refused(tmp_path: Path) -> None:
    left, right = tmp_path / "en", tmp_path / "de"
    left.write_text("1\n2\n")
    right.write_text("1\n")
    with pytest.raises(CorpusError, match="de ends before 2"):
        list(read_paired(left, right, "o"))


def test_of_a_table_the_first_two_columns_count_and_blank_lines_do_not(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("Go.\tGeh.\tCC BY\n\nHi.\tHallo!\n")
    assert [(pair.source, pair.target) for pair in read_tsv(path, "o")] == [("Go.", "Geh."), ("Hi.", "Hallo!")]


def test_a_line_without_a_tab_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("Go.\tGeh.\nHi.\n")
    with pytest.raises(CorpusError, match=r"line 2 of .*x\.tsv must be source, tab, target"):
        list(read_tsv(path, "o"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", b"\xff\xfe"),
        ("x.gz", b"no gzip"),
        ("x.gz", gzip.compress(b"text" * 1000, mtime=0)[:-20]),
        ("x.xz", b"no xz"),
        ("x.xz", lzma.compress(b"text" * 1000)[:-20]),
        ("x.zst", b"no zstandard"),
    ],
)
def test_a_damaged_file_is_an_error_of_ours(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="must be text in UTF-8"):
        list(read_lines(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="there is none"):
        list(read_lines(tmp_path / "none.txt"))

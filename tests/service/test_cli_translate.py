from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from io import BufferedReader, BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import DecodeError
from service.cli import main
from service.errors import InvalidText, UnsupportedLanguage, UnsupportedOption
from service.lines import chunks, decoded, open_translator
from service.settings import Settings
from tests.service.tiny_bundle import copying_bundle, heedless_bundle, tiny_bundle

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def bundle() -> Path:
    return tiny_bundle()


def dragoman(*arguments: str, **options) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "service.cli", *arguments]
    return subprocess.run(command, capture_output=True, env=ENVIRONMENT, check=False, timeout=60, **options)


def translate(bundle: Path, data: bytes, *more: str) -> subprocess.CompletedProcess[bytes]:
    flags = ("--source", "en", "--target", "de", "--bundle", str(bundle), "--threads", "1", *more)
    return dragoman("translate", *flags, input=data)


def test_every_line_in_is_a_line_out_and_what_is_no_language_comes_back(bundle):
    data = "Ask at the desk.\n\n  12345 \r\n\u2028\nTwo. Three.\tFour\n🙈\nno end".encode()
    run = translate(bundle, data)
    assert run.returncode == 0, run.stderr
    before, after = data.decode().split("\n"), run.stdout.decode().split("\n")
    assert len(before) == len(after)
    assert after[1:4] == ["", "  12345 \r", "\u2028"]
    assert after[4].count("\t") == 1
    assert after[5] == "🙈"
    assert b"Ask at the desk" not in run.stdout
    # A random network hardly ever ends a sentence by itself and often goes round in circles; nothing else is said.
    cut, guarded = run.stderr.decode().splitlines()
    assert re.fullmatch("dragoman: the length limit ended these lines, whose end may be missing: [157, ]+", cut)
    assert re.fullmatch(
        "dragoman: these lines went round in circles or on and on, and were translated again: [157, ]+", guarded
    )


def test_an_alignment_goes_to_a_file_a_line_for_each_line(tmp_path):
    path = tmp_path / "alignment.jsonl"
    data = b"The cat slept.  Thanks.\n\n12345\n"
    run = translate(copying_bundle(), data, "--alignment", str(path), "--coverage-penalty", "0.2")
    assert (run.returncode, run.stdout) == (0, data), run.stderr
    first, second, third = map(json.loads, path.read_text().splitlines())
    assert first == [[a, b, a, b] for a, b in [(0, 3), (4, 7), (8, 13), (13, 14), (16, 22), (22, 23)]]
    assert (second, third) == ([], [[0, 5, 0, 5]])
    nowhere = translate(copying_bundle(), data, "--alignment", str(tmp_path / "no" / "file"))
    assert (nowhere.returncode, nowhere.stdout) == (1, b"")
    assert b"--alignment must be a file that can be written" in nowhere.stderr


@pytest.mark.parametrize("options", [{"alignment": True}, {"coverage_penalty": 0.2}])
def test_what_the_bundle_cannot_do_is_refused_before_anything_is_read(options):
    with pytest.raises(UnsupportedOption, match=r"need an attending decoder, but .* has none; publish it again"):
        open_translator("en", "de", Settings(bundles=(heedless_bundle(),)), **options)


def test_options_of_the_search_are_flags(bundle):
    def words(*flags: str) -> bytes:
        run = translate(bundle, b"Ask at the desk.\nSeven boats left at dawn.\n", *flags)
        assert run.returncode == 0, run.stderr
        return run.stdout

    short = ("--max-length", "9")
    assert words(*short, "--seed", "1") == words(*short, "--seed", "1") != words(*short, "--seed", "2")
    assert words(*short, "--top-k", "1") == words(*short, "--beam-size", "1")
    assert len(words("--max-length", "3")) < len(words("--min-length", "30", "--no-repeat-ngram", "1"))


def test_nothing_in_is_nothing_out(bundle):
    run = translate(bundle, b"")
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")


def test_a_line_that_is_not_utf8_is_named_after_those_before_it_were_translated(bundle):
    run = translate(bundle, b"One.\nTwo.\nThr\xffee.\nFour.\n")
    assert run.returncode == 1
    assert run.stdout.count(b"\n") == 2
    assert run.stderr == b"dragoman: line 3 must be UTF-8, but its byte 4 is not; convert the input first.\n"


def test_a_reader_that_has_enough_ends_it_without_a_word(bundle, tmp_path):
    text = tmp_path / "in.txt"
    text.write_text("One fish.\n" * 20_000)
    flags = f"--source en --target de --beam-size 1 --bundle {bundle}"
    command = f"{sys.executable} -m service.cli translate {flags} < {text} | head -1"
    run = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, env=ENVIRONMENT, check=False, timeout=120
    )
    assert run.stderr == b""
    assert run.stdout.count(b"\n") == 1
    assert run.returncode == 0


def test_a_terminal_sees_progress_with_a_rate_and_an_estimate(bundle, tmp_path):
    text = tmp_path / "in.txt"
    text.write_text("".join(f"Boat {i} left at dawn.\n" for i in range(80)))
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    flags = ["--source", "en", "--target", "de", "--beam-size", "1", "--bundle", str(bundle)]
    with text.open("rb") as source:
        command = [sys.executable, "-m", "service.cli", "translate", *flags]
        run = subprocess.run(
            command, stdin=source, stdout=subprocess.PIPE, stderr=slave, env=ENVIRONMENT, check=True, timeout=60
        )
    os.close(slave)
    shown = os.read(master, 65536).decode()
    os.close(master)
    assert run.stdout.count(b"\n") == 80
    assert "100%" in shown
    assert "B/s]" in shown


def test_lines_are_answered_as_they_come(bundle):
    command = [
        sys.executable,
        "-m",
        "service.cli",
        "translate",
        "--source",
        "en",
        "--target",
        "de",
        "--bundle",
        str(bundle),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stdin
        assert process.stdout
        for line in (b"One fish.\n", b"12\n"):
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
        assert answer == b"12\n"
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--source", "fr"), "source must be one of en, but is 'fr'"),
        (("--target", "en"), "target must be one of de, but is 'en'"),
        (("--beam-size", "99"), "beam_size must be in 1..16, but is 99"),
        (("--max-length", "0"), "max_length must be at least 1"),
        (("--repetition-penalty", "0.5"), "repetition_penalty must be in 1..10, but is 0.5"),
        (("--top-p", "7"), "top_p must be in"),
        (("--bundle", "/nowhere"), "/nowhere"),
        (("--threads", "-1"), "threads"),
        (("--precision", "f16"), "precision"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(bundle, capsys, flags, words):
    given = {"--source": "en", "--target": "de", "--bundle": str(bundle), flags[0]: flags[1]}
    assert main(["translate", *(part for flag in given.items() for part in flag)]) == 1
    message = capsys.readouterr().err
    assert words in message
    assert message.startswith("dragoman: ")
    assert message.count("\n") == 1


def test_help_explains_itself_without_loading_a_runtime():
    code = """
import sys
from service.cli import main
try:
    main(["serve", "--help"])
finally:
    assert not {"onnxruntime", "ray"} & set(sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in run.stdout, field
    assert "Most texts in one request." in run.stdout


def test_models_lists_what_there_is(bundle, capsys):
    assert main(["models", "--bundles", str(bundle), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["name"] == "tiny-en-de"
    assert found["pairs"] == ["en-de"]
    assert found["precisions"] == ["f32", "int8"]
    assert main(["models", "--bundles", str(bundle)]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.startswith("name")
    assert row.startswith("tiny-en-de  7        en-de  f32 int8")


def test_models_says_which_bundle_is_broken_and_lists_the_others(bundle, tmp_path, capsys):
    assert main(["models", "--bundles", f"{tmp_path}:{bundle}"]) == 1
    said = capsys.readouterr()
    assert str(tmp_path) in said.err
    assert "tiny-en-de" in said.out


def test_the_bundles_own_options_are_used_unless_others_are_given(bundle):
    settings = Settings(bundles=(bundle,), threads=1)
    line = ["The cat slept on the warm stove."]
    own = open_translator("en", "de", settings).translate(line, lambda _: None)
    same = open_translator("EN", "de-AT", settings, beam_size=2, length_penalty=0.6).translate(line, lambda _: None)
    assert own == same
    with pytest.raises(DecodeError, match="beam_size"):
        open_translator("en", "de", settings, beam_size=0)
    with pytest.raises(UnsupportedLanguage):
        open_translator("xx", "de", settings)


def test_progress_ends_at_the_whole(bundle):
    parts: list[float] = []
    open_translator("en", "de", Settings(bundles=(bundle,), threads=1)).translate(["One.", "Two. Three."], parts.append)
    assert sum(parts) == pytest.approx(1)


@given(st.lists(st.binary(max_size=9)), st.integers(1, 7))
def test_chunks_are_the_lines_of_the_stream(parts, size):
    data = b"".join(parts)
    lines = [line for chunk in chunks(BufferedReader(BytesIO(data)), size) for line in chunk]
    assert b"".join(lines) == data
    assert all(line.endswith(b"\n") for line in lines[:-1])
    assert all(line.count(b"\n") <= 1 for line in lines)


def test_decoding_stops_at_the_first_line_that_is_no_utf8():
    texts, problem = decoded([b"a\n", b"\xc3\xa4", b"\xc3", b"b"], 5)
    assert texts == ["a\n", "ä"]
    assert isinstance(problem, InvalidText)
    assert "line 7" in problem.message

"""From a text file to an HTTP answer: a tiny model learns to say digits in German and in reverse, and is served."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.bundle import Bundle
from tests.system.running_service import RunningService
from training.cli import main as train

pytestmark = pytest.mark.slow

ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
RECIPE = """
[languages]
source = "en"
target = "de"
[source.digits]
kind = "tsv"
path = "digits.tsv"
[tokenizer]
vocab_size = 332
[model]
preset = "small"
d_model = 64
d_ff = 128
encoder_layers = 2
decoder_layers = 2
dropout = 0.0
[fit]
updates = 300
batch_tokens = 1000
optimizer = "muon"
warmup = 50
learning_rate_scale = 0.5
cooldown = 150
precision = "f32"
threads = 1
max_length = 32
validate_every = 300
checkpoint_every = 150
average = 1
[noise]
carried = 0.3
[publish]
name = "digits"
precisions = ["int8", "f32"]
samples = ["one two three"]
"""


def pair(numbers: list[int]) -> tuple[str, str]:
    return " ".join(ENGLISH[n] for n in numbers), " ".join(GERMAN[n] for n in reversed(numbers))


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    dice = random.Random(seed)
    return [pair([dice.randrange(10) for _ in range(dice.randint(2, 5))]) for _ in range(count)]


def write(folder: Path, name: str, rows: list[tuple[str, str]]) -> None:
    for language, column in (("en", 0), ("de", 1)):
        (folder / f"{name}.{language}").write_text("".join(f"{row[column]}\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("way")
    corpus, recipe, run = folder / "corpus", folder / "recipe.toml", folder / "run"
    recipe.write_text(RECIPE)
    unseen = set(pairs(40, seed=2))
    rows = [row for row in pairs(6000, seed=1) if row not in unseen]
    (folder / "digits.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    given = ["--recipe", str(recipe)]
    assert train(["corpus", *given, "--out", str(corpus)]) == 0
    # Ten words in all: whatever is held out looks like everything else, so the corpus step is not asked to.
    write(corpus, "dev.digits", pairs(40, seed=3))
    write(corpus, "test.digits", sorted(unseen))
    assert train(["tokenizer", *given, "--corpus", str(corpus)]) == 0
    assert train(["fit", *given, "--corpus", str(corpus), "--run", str(run)]) == 0
    assert train(["publish", *given, "--run", str(run), "--out", str(folder / "digits")]) == 0
    assert train(["evaluate", "--bundle", str(folder / "digits"), "--corpus", str(corpus)]) == 0
    return folder / "digits"


@pytest.fixture(scope="module")
def service(bundle: Path) -> Iterator[RunningService]:
    running = RunningService(bundles=bundle)
    yield running
    running.kill()


def test_the_model_card_tells_what_was_measured(bundle: Path) -> None:
    card = (bundle / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "| digits | 37 |" in card
    assert "300 updates" in card
    assert "| one two three | drei zwei eins |" in card
    assert Bundle.open(bundle).manifest.parity["f32"]["values"]["top1"] == 1.0


def test_what_was_learnt_comes_back_over_http(service: RunningService) -> None:
    asked = pairs(60, seed=5)
    found = service.translate([source for source, _ in asked])
    assert found.status == 200
    right = sum(text == target for text, (_, target) in zip(found.texts, asked, strict=True))
    assert right >= 57, f"{right} of 60 right"


def test_a_hundred_texts_come_back_complete_and_in_order(service: RunningService) -> None:
    asked = [pair([i // 10, i % 10]) for i in range(100)]
    found = service.translate([source for source, _ in asked])
    right = sum(text == target for text, (_, target) in zip(found.texts, asked, strict=True))
    assert len(found.texts) == 100
    assert right >= 95, f"{right} of 100 right"


def test_lines_blank_lines_and_outer_space_come_back_as_they_came(service: RunningService) -> None:
    lines = [*("one two\n\n" for _ in range(9)), "  three four \r\n", "\t\n", "five six"]
    found = service.translate("".join(lines)).texts[0]
    assert found == "".join([*("zwei eins\n\n" for _ in range(9)), "  vier drei \r\n", "\t\n", "sechs fünf"])


def test_what_is_no_language_comes_back_exactly(service: RunningService) -> None:
    carried = ["%s", "<b>", "https://example.org/a?b=c", "3.5", "🙈", "`x  y`", "{name}", "A4"]
    asked = [f"one two {span}" for span in carried] + [f"{span} three four, five" for span in carried]
    found = service.translate(asked).texts
    assert all(text.count(span) == 1 for text, span in zip(found, [*carried, *carried], strict=True))
    assert all({"zwei", "vier"} & set(text.split()) for text in found)

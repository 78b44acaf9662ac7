"""Publishing: whole or not at all, and described by what was measured."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece as spm

from model.bundle import Bundle
from model.decode.options import DecodeOptions, SpecialIds
from model.decode.reference import ReferenceStepper
from model.errors import BundleError, ParityError
from model.tokenizer import Tokenizer
from tests.model.networks import train_tokenizer
from training import publish as publishing
from training.card import CardFacts, model_card
from training.checkpoint import CheckpointError
from training.cli import main
from training.evaluate import Translator, corpus_test_sets, evaluate, folder_test_sets
from training.fit import RunFolder, fit
from training.publish import Run, publish
from training.recipe import FitRecipe, PublishRecipe
from training.scores import ScoreError, score

SHAPE = {"preset": "small", "d_model": 32, "heads": 2, "d_ff": 32, "encoder_layers": 1, "decoder_layers": 1}
RECIPE = PublishRecipe(name="numbers", precisions=("f32",), samples=("7 14 21",), beam_size=2, parity_sentences=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("publish")
    corpus = folder / "corpus"
    corpus.mkdir()
    lines = [" ".join(str(i * k % 97) for k in range(1, 4 + i % 5)) for i in range(1, 120)]
    for name, rows in (("train", lines), ("dev.numbers", lines[:8]), ("test.numbers", lines[:6])):
        (corpus / f"{name}.en").write_text("\n".join(rows) + "\n")
        (corpus / f"{name}.de").write_text("\n".join(row[::-1] for row in rows) + "\n")
    spm.SentencePieceTrainer.train(
        input=str(corpus / "train.en"),
        model_prefix=str(corpus / "tokenizer"),
        vocab_size=40,
        hard_vocab_limit=False,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    recipe = FitRecipe(
        updates=3, batch_tokens=200, max_length=64, precision="f32", threads=1, checkpoint_every=1, average=2
    )
    fit(SHAPE, recipe, RunFolder(corpus, corpus / "tokenizer.model", folder / "run", ("en", "de")))
    return Run.open(folder / "run")


def test_a_run_becomes_a_bundle_with_its_card(run: Run, tmp_path: Path) -> None:
    tests = corpus_test_sets(run.corpus, run.languages)
    published = publish(run, RECIPE, tmp_path / "numbers", tests)
    bundle, (found,) = published.bundle, published.evaluations
    assert published.parity.startswith("f32: largest difference")
    assert Bundle.open(tmp_path / "numbers").manifest == bundle.manifest
    assert (bundle.manifest.source_languages, bundle.manifest.target_languages) == (("en",), ("de",))
    assert (bundle.manifest.decoding.beam_size, list(bundle.manifest.precisions)) == (2, ["f32"])
    assert bundle.attends("f32")
    assert bundle.manifest.alignment["layer"] in range(run.config.decoder_layers)
    card = (tmp_path / "numbers" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"| numbers | 6 | {found.scores.bleu:.2f} | {found.scores.chrf:.2f} |" in card
    assert "average of the last 2 checkpoints" in card
    assert "3 updates of at most 200 tokens" in card
    assert "| 7 14 21 |" in card


def test_the_card_shows_the_curves_which_lie_beside_it_and_belong_to_the_bundle(run: Run, tmp_path: Path) -> None:
    shown = publish(run, RECIPE, tmp_path / "numbers", []).bundle
    card = (shown.path / "MODEL_CARD.md").read_text(encoding="utf-8")
    (name,) = re.findall(r"!\[.+\]\((.+)\)", card)
    assert (shown.path / name).read_bytes() == (run.folder / "curves.png").read_bytes()
    assert shown.manifest.files[name]["bytes"] < 200_000
    (shown.path / name).write_bytes(b"another picture")
    with pytest.raises(BundleError, match=r"curves\.png must have"):
        Bundle.open(shown.path)


def test_a_run_without_curves_has_a_card_without_a_picture(run: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / "curves.png").unlink()
    shown = publish(Run.open(folder), RECIPE, tmp_path / "numbers", []).bundle
    assert "![" not in (shown.path / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_graphs_for_cuda_are_published_with_the_proof_of_their_nodes(run: Run, tmp_path: Path) -> None:
    """f16 is made for CUDA: the float32 graphs of the same nodes are proved with it, and what is scored runs here."""
    recipe = replace(RECIPE, precisions=("f16",))
    published = publish(run, recipe, tmp_path / "numbers", corpus_test_sets(run.corpus, run.languages))
    manifest = published.bundle.manifest
    assert {name: list(graphs) for name, graphs in manifest.precisions.items()} == {"f16": ["cuda"]}
    assert {"f32", "f32 cuda", "f16 cuda"} <= set(manifest.parity)
    assert "The f32 graphs" in (tmp_path / "numbers" / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_evaluate_repeats_the_figures_of_the_card(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(run, RECIPE, tmp_path / "numbers", corpus_test_sets(run.corpus, run.languages))
    assert main(["evaluate", "--bundle", str(tmp_path / "numbers"), "--corpus", str(run.corpus)]) == 0
    card = (tmp_path / "numbers" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() in card


def test_a_failed_proof_writes_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ParityError("not equal")

    monkeypatch.setattr(publishing, "prove_parity", refuse)
    with pytest.raises(ParityError):
        publish(run, RECIPE, tmp_path / "numbers", [])
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_tokenizer_changed_is_refused(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "run"
    other.mkdir()
    description = {**run.description, "tokenizer": "0" * 64}
    (other / "run.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="missing or another one"):
        Run.open(other)


def test_a_run_without_checkpoints_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(run.description))
    with pytest.raises(CheckpointError, match="at least one checkpoint"):
        publish(Run.open(tmp_path), RECIPE, tmp_path / "numbers", [])


def test_test_sets_of_a_folder_are_its_pairs(tmp_path: Path) -> None:
    for name in ("news.en", "news.de", "alone.en"):
        (tmp_path / name).write_text("a b\n")
    assert [(found.name, list(found.pairs)) for found in folder_test_sets(tmp_path, ("en", "de"))] == [
        ("news", [("a b", "a b")])
    ]


def test_an_empty_test_set_is_refused(tmp_path: Path) -> None:
    for name in ("none.en", "none.de"):
        (tmp_path / name).write_text("\n")
    (empty,) = folder_test_sets(tmp_path, ("en", "de"))
    with pytest.raises(ScoreError, match="none must hold at least one pair"):
        evaluate(None, empty)  # type: ignore[arg-type]


def test_the_card_lists_every_part_with_its_licence(run: Run) -> None:
    def entry(source: str, part: str, pairs: int) -> dict[str, object]:
        return {
            "source": source,
            "part": part,
            "licence": "GPL | MIT",
            "attribution": f"of {part}",
            "training_pairs": pairs,
        }

    end = {
        "update": 1,
        "target_tokens": 2,
        "epochs": 0.5,
        "seconds": 61,
        "machine": "x",
        "averaged": 1,
        "parameters": 9e6,
    }
    card = model_card(
        CardFacts(
            recipe=RECIPE,
            run={**run.description, "end": end},
            sources=[entry("cat", "b", 1000), entry("cat", "a", 2000), entry("web", "c", 7), entry("web", "unused", 0)],
            precision="f32",
            operators="stock",
            evaluations=[],
            samples=[],
            parity="",
        )
    )
    assert "| cat | 3,000 | the authors and translators of 2 parts, see below |" in card
    assert "| web | 7 | of c |" in card
    assert "| a | 2,000 | GPL \\| MIT |\n| b | 1,000 |" in card
    assert "unused" not in card


def test_scores_are_those_of_sacrebleu_on_the_same_lines() -> None:
    assert score(["eins zwei drei vier fünf"], ["eins zwei drei vier sechs"]).bleu == pytest.approx(66.87, abs=0.01)


def test_a_line_that_the_engine_refuses_is_counted_and_stops_nobody(tmp_path: Path) -> None:
    tokenizer = Tokenizer(train_tokenizer(tmp_path))
    special = SpecialIds(bos_id=1, eos_id=2)
    (word,) = tokenizer.encode("the")[:-1]
    stepper = ReferenceStepper(lambda _source, history: np.eye(384)[2 if history else word] * 50 - 50, 384, 16, special)
    found = Translator(stepper, tokenizer, DecodeOptions(beam_size=1)).translate(["Yes.", "the " * 40, "Thanks."])
    assert (found.refused, found.truncated, found.texts) == (1, 0, ("the", "", "the"))

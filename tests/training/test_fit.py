"""The loop: exact accumulation, exact resume, no broken checkpoint."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sentencepiece as spm
import torch
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from model.config import ModelConfig, preset
from training.batches import Pairs
from training.checkpoint import CheckpointError, Checkpoints, average, load
from training.fit import RunFolder, fit
from training.recipe import FitRecipe, RecipeError
from training.sampling import SubwordSampler
from training.trainer import DivergenceError, Trainer
from training.validate import evaluating, mean_nll

CONFIG = preset("small", 40, d_model=16, heads=2, d_ff=32, encoder_layers=1, decoder_layers=1, dropout=0.1)


def pairs() -> Pairs:
    random = np.random.default_rng(0)
    sources = [np.append(random.integers(4, 40, n), 2).astype(np.int32) for n in random.integers(1, 12, 120)]
    return Pairs(sources, [np.append(source[-2::-1], 2).astype(np.int32) for source in sources])


def recipe(**fields: object) -> FitRecipe:
    given = {"updates": 12, "batch_tokens": 200, "warmup": 4, "precision": "f32", "max_length": 64, **fields}
    return FitRecipe(**given)


def without_dropout(config: ModelConfig = CONFIG) -> ModelConfig:
    return ModelConfig.from_dict({**config.to_dict(), "dropout": 0.0})


@pytest.mark.parametrize("parts", [40, 64, 100])
def test_an_accumulated_update_has_the_gradient_of_the_whole_batch(parts: int) -> None:
    gradients = []
    for micro in (0, parts):
        trainer = Trainer(without_dropout(), recipe(micro_batch_tokens=micro, max_length=12), pairs())
        seen: dict[str, torch.Tensor] = {}

        def keep(_rate: float, trainer: Trainer = trainer, seen: dict[str, torch.Tensor] = seen) -> float:
            seen.update({name: master.grad.clone() for name, master in trainer.optimizer.masters.items()})
            return 0.0

        trainer.optimizer.update = keep  # type: ignore[method-assign]
        trainer.update()
        gradients.append(seen)
    for name, whole in gradients[0].items():
        assert torch.allclose(whole, gradients[1][name], rtol=1e-6, atol=1e-7), name


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_resumed_run_is_the_uninterrupted_run_bit_for_bit(tmp_path: Path, optimizer: str, precision: str) -> None:
    asked = recipe(optimizer=optimizer, precision=precision)
    straight = Trainer(CONFIG, asked, pairs())
    expected = [straight.update() for _ in range(12)]

    first = Trainer(CONFIG, asked, pairs())
    found = [first.update() for _ in range(7)]
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(7, first.state_dict(), first.optimizer.state_dict()["masters"])
    torch.manual_seed(999)
    second = Trainer(CONFIG, asked, pairs())
    second.load_state_dict(load(checkpoints.last))
    assert first.at.batch > 0, "the interruption must fall inside an epoch"
    found += [second.update() for _ in range(5)]

    assert found == expected
    assert second.at == straight.at
    for name, master in straight.optimizer.masters.items():
        assert torch.equal(master, second.optimizer.masters[name]), name


def test_a_resumed_run_of_weighted_and_sampled_pairs_is_the_uninterrupted_run(tmp_path: Path) -> None:
    def cuts(word: str) -> list[tuple[list[int], float]]:
        return [([4 + len(word)], -1.0), ([5, 6 + len(word)], -1.5)]

    def made() -> Pairs:
        sampler = SubwordSampler(cuts, 0.3, 12)
        plain = Pairs([], [], weights=np.tile([0.5, 1.0, 2.0], 30), sampler=sampler)
        for number in range(90):
            text = " ".join("abcdefgh"[: 1 + (number + i) % 7] for i in range(2 + number % 4))
            usual = [i for word in text.split() for i in cuts(word)[0][0]] + [2]
            sampler.add((text, text), (usual, usual))
            plain.sources.append(np.array(usual, dtype=np.int32))
            plain.targets.append(np.array(usual, dtype=np.int32))
        return plain

    straight = Trainer(CONFIG, recipe(), made())
    expected = [straight.update() for _ in range(30)]
    first = Trainer(CONFIG, recipe(), made())
    found = [first.update() for _ in range(17)]
    assert first.at.epoch > 0
    Checkpoints(tmp_path, keep=2).save(17, first.state_dict(), first.optimizer.state_dict()["masters"])
    second = Trainer(CONFIG, recipe(), made())
    second.load_state_dict(load(tmp_path / "last.pt"))
    assert found + [second.update() for _ in range(13)] == expected
    assert len({report.tokens for report in expected}) > 3


def test_validation_before_and_after_a_resume_is_the_same_number(tmp_path: Path) -> None:
    first = Trainer(CONFIG, recipe(), pairs())
    for _ in range(3):
        first.update()
    before = mean_nll(first.network, pairs())
    Checkpoints(tmp_path, keep=1).save(3, first.state_dict(), first.optimizer.state_dict()["masters"])
    second = Trainer(CONFIG, recipe(), pairs())
    second.load_state_dict(load(tmp_path / "last.pt"))
    assert mean_nll(second.network, pairs()) == before


def test_validation_turns_dropout_off_and_back_on() -> None:
    trainer = Trainer(CONFIG, recipe(), pairs())
    assert mean_nll(trainer.network, pairs()) == mean_nll(trainer.network, pairs())
    assert trainer.network.training
    trainer.network.eval()
    with evaluating(trainer.network):
        pass
    assert not trainer.network.training


def test_the_loss_falls() -> None:
    trainer = Trainer(CONFIG, recipe(updates=60, learning_rate_scale=0.5), pairs())
    losses = [trainer.update().nll for _ in range(60)]
    assert losses[0] == pytest.approx(math.log(40), abs=1.2)
    assert np.mean(losses[-10:]) < 0.8 * losses[0]


def test_a_non_finite_update_changes_nothing_and_too_many_stop_the_run() -> None:
    trainer = Trainer(CONFIG, recipe(max_bad_updates=3), pairs())
    with torch.no_grad():
        trainer.network.decoder.norm.weight.fill_(math.inf)
    before = {name: master.detach().clone() for name, master in trainer.optimizer.masters.items()}
    trainer.update()
    trainer.update()
    assert trainer.at.skipped == 2
    assert all(torch.equal(master, before[name]) for name, master in trainer.optimizer.masters.items())
    with pytest.raises(DivergenceError, match="3 updates in a row"):
        trainer.update()


def test_broken_weights_never_replace_a_good_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, {"fine": True}, {"w": torch.ones(2)})
    with pytest.raises(CheckpointError, match="finite"):
        checkpoints.save(2, {"fine": False}, {"w": torch.tensor([1.0, math.nan])})
    assert load(checkpoints.last) == {"fine": True}


def test_training_ends_when_the_dev_sets_get_no_better() -> None:
    trainer = Trainer(CONFIG, recipe(patience=2), pairs())
    for nll, done in ((3.0, False), (3.5, False), (2.9, False), (2.9, False), (3.0, True)):
        trainer.judge(nll)
        assert trainer.done is done, nll
    again = Trainer(CONFIG, recipe(patience=2), pairs())
    again.load_state_dict(trainer.state_dict())
    assert again.done


def test_only_the_newest_weights_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for update in (100, 20, 3000):
        checkpoints.save(update, {}, {"w": torch.full((1,), float(update))})
    assert [path.name for path in checkpoints.weights()] == ["weights-00000100.pt", "weights-00003000.pt"]
    assert average([load(path) for path in checkpoints.weights()])["w"].tolist() == [1550.0]


def test_a_damaged_checkpoint_and_a_missing_one_say_so(tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(b"half a file")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match="no file"):
        load(tmp_path / "none.pt")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    state = Trainer(CONFIG, recipe(), pairs()).state_dict()
    other = preset("small", 44, d_model=16, heads=2, d_ff=32, encoder_layers=1, decoder_layers=1)
    with pytest.raises(CheckpointError, match="its own model"):
        Trainer(other, recipe(), pairs()).load_state_dict(state)


def test_fit_goes_on_from_its_checkpoint_and_refuses_another_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "run"
    corpus.mkdir()
    out.mkdir()
    lines = [" ".join(str(i * k % 97) for k in range(1, 4 + i % 5)) for i in range(1, 200)]
    for name, rows in (("train", lines), ("dev.numbers", lines[:5])):
        (corpus / f"{name}.en").write_text("\n".join(rows) + "\n")
        (corpus / f"{name}.de").write_text("\n".join(row[::-1] for row in rows) + "\n")
    folder = RunFolder(corpus, _tokenizer(corpus, 40), out, ("en", "de"))
    shape = {**CONFIG.to_dict(), "preset": "small"}
    del shape["vocab_size"]
    short = recipe(updates=4, validate_every=4, checkpoint_every=2, validate_sentences=2)
    assert fit(shape, short, folder).update == 4
    with monkeypatch.context() as again:
        again.setattr("training.fit.encode_pairs", None)  # what was encoded is kept
        longer = recipe(updates=6, validate_every=3, checkpoint_every=3, validate_sentences=2)
        assert fit(shape, longer, folder).update == 6
    kinds = [json.loads(line)["kind"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert kinds == ["train", "dev.numbers", "train", "dev.numbers"]
    assert json.loads((out / "run.json").read_text())["model"]["d_model"] == 16
    with pytest.raises(CheckpointError, match="own tokenizer and corpus"):
        fit(shape, short, RunFolder(corpus, _tokenizer(corpus, 38), out, ("en", "de")))
    kept = sorted((path, path.stat().st_mtime_ns) for path in (out / "pairs").iterdir())
    with pytest.raises(CheckpointError, match="seed, batch_tokens, max_length and"):
        fit(shape, recipe(updates=8, batch_tokens=300), folder)
    assert sorted((path, path.stat().st_mtime_ns) for path in (out / "pairs").iterdir()) == kept
    (corpus / "train.de").write_text((corpus / "train.de").read_text().replace("1", "2", 1))
    with pytest.raises(CheckpointError, match="own tokenizer and corpus"):
        fit(shape, recipe(updates=8), folder)


def test_a_run_begins_with_the_weights_of_another_and_its_vocabulary_may_grow(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for language in ("en", "de"):
        rows = [" ".join(str(i * k % 97) for k in range(1, 4 + i % 5)) for i in range(1, 100)]
        (corpus / f"train.{language}").write_text("\n".join(rows) + "\n")
    shape = {name: value for name, value in CONFIG.to_dict().items() if name != "vocab_size"} | {"preset": "small"}
    first = RunFolder(corpus, _tokenizer(corpus, 40), tmp_path / "first", ("en", "de"))
    fit(shape, recipe(updates=2, checkpoint_every=1, average=2), first)
    before = average([load(path) for path in Checkpoints(first.out / "checkpoints", 2).weights()])
    second = RunFolder(corpus, _extended(first.tokenizer, "\ue000"), tmp_path / "second", ("en", "de"), first.out)
    fit(shape, recipe(updates=1, learning_rate_scale=0.0, checkpoint_every=1), second)
    (after,) = [load(path) for path in Checkpoints(second.out / "checkpoints", 2).weights()]
    table = before.pop("embedding.weight")
    assert torch.equal(after["embedding.weight"][: len(table)], table)
    assert torch.allclose(after.pop("embedding.weight")[len(table)], table.mean(dim=0))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    with pytest.raises(CheckpointError, match="have the shape of"):
        fit(
            {**shape, "d_ff": 16}, recipe(), RunFolder(corpus, first.tokenizer, tmp_path / "x", ("en", "de"), first.out)
        )
    other = replace(first, tokenizer=_tokenizer(corpus, 38), out=tmp_path / "y", start=first.out)
    with pytest.raises(CheckpointError, match="tokenizer must be that of"):
        fit(shape, recipe(), other)


def _extended(tokenizer: Path, piece: str) -> Path:
    model = ModelProto.FromString(tokenizer.read_bytes())
    model.pieces.add(piece=piece, score=0.0, type=ModelProto.SentencePiece.USER_DEFINED)
    path = tokenizer.with_stem("extended")
    path.write_bytes(model.SerializeToString())
    return path


def _tokenizer(corpus: Path, size: int) -> Path:
    prefix = corpus / f"tokenizer{size}"
    spm.SentencePieceTrainer.train(
        input=str(corpus / "train.en"),
        model_prefix=str(prefix),
        vocab_size=size,
        hard_vocab_limit=False,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here there is a CUDA device")
def test_cuda_where_there_is_none_is_refused_and_not_replaced() -> None:
    with pytest.raises(RecipeError, match="torch finds none"):
        Trainer(CONFIG, recipe(device="cuda"), pairs())

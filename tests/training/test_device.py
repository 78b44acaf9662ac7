"""CUDA, as far as a processor can tell: which device and backend, what is compiled, computed and shown."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig, preset
from model.nn.attention import causal_mask, fused, padding_mask, written_out
from training.batches import Pairs, collate
from training.device import compiles, training_device
from training.flops import peak_flops, training_flops
from training.journal import Journal, last_speed
from training.processes import joined
from training.recipe import FitRecipe, RecipeError
from training.speed import Speed
from training.trainer import Trainer, UpdateReport

SHAPE = {"d_model": 16, "heads": 2, "d_ff": 24, "encoder_layers": 3, "decoder_layers": 2}
RECIPE = FitRecipe(updates=3, batch_tokens=240, warmup=4, precision="f32", max_length=24, device="cpu")


def pairs() -> Pairs:
    random = np.random.default_rng(0)
    sources = [np.append(random.integers(4, 40, n), 2).astype(np.int32) for n in random.integers(1, 12, 60)]
    return Pairs(sources, [np.append(source[-2::-1], 2).astype(np.int32) for source in sources])


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A machine that says it has two CUDA devices; what is asked of them."""
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", asked.append)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: asked.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return asked


def test_every_process_trains_on_the_device_of_its_own_number(
    two_devices: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert training_device("auto") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert training_device("auto") == training_device("cuda") == torch.device("cuda", 1)
    assert training_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(RecipeError, match="process 2 finds 2"):
        training_device("auto")


@pytest.mark.parametrize(
    ("device", "expected"), [("auto", [torch.device("cuda", 1), "nccl"]), ("cpu", ["gloo"])], ids=["auto", "cpu"]
)
def test_processes_meet_by_nccl_on_gpus_and_by_gloo_on_the_processor(
    two_devices: list[object], monkeypatch: pytest.MonkeyPatch, device: str, expected: list[object]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with joined(device) as processes:
        assert (processes.number, processes.count) == (1, 2)
    assert two_devices == expected


@pytest.mark.parametrize(
    ("asked", "device", "expected"),
    [("auto", "cpu", False), ("auto", "cuda", True), ("always", "cpu", True), ("never", "cuda", False)],
)
def test_the_network_is_compiled_on_cuda_unless_the_recipe_says_otherwise(
    asked: str, device: str, expected: bool
) -> None:
    recipe = FitRecipe(compile=asked)  # type: ignore[arg-type]
    assert compiles(recipe, torch.device(device)) is expected


@pytest.mark.slow
def test_a_compiled_network_takes_the_same_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by torch.compile; the code that is run then is torch's own, for a compiler would take minutes here."""
    config = preset("small", 40, **{**SHAPE, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0})
    plain = Trainer(config, RECIPE, pairs())
    expected = [plain.update() for _ in range(2)]
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    compiled = Trainer(config, FitRecipe(**{**vars(RECIPE), "compile": "always"}), pairs())
    assert compiled._forward != compiled._through
    found = [compiled.update() for _ in range(2)]
    assert [report.nll for report in found] == pytest.approx([report.nll for report in expected], rel=1e-6)
    assert set(compiled.state_dict()["optimizer"]["masters"]) == set(plain.state_dict()["optimizer"]["masters"])


@pytest.mark.parametrize("overrides", [{}, {"gated": True}, {"norm_order": "post", "tie_embeddings": False}])
def test_the_formula_counts_the_operations_that_torch_counts(overrides: dict[str, object]) -> None:
    config = ModelConfig.from_dict({**preset("small", 40, **SHAPE).to_dict(), **overrides})
    length = 7
    same = [np.full(length, 5, dtype=np.int32) for _ in range(6)]
    trainer = Trainer(config, RECIPE, Pairs(same, same))
    batch = collate(trainer.pairs, range(6), config)
    with FlopCounterMode(display=False) as counter:
        trainer.loss(batch).smoothed.backward()
    assert training_flops(config, [length] * 6, [length] * 6) == counter.get_total_flops()


def test_padding_needs_no_operations() -> None:
    config = preset("small", 40, **SHAPE)
    alone = training_flops(config, [3], [4]) + training_flops(config, [9], [8])
    assert training_flops(config, [3, 9], [4, 8]) == alone
    assert training_flops(config, [9, 9], [8, 8]) > alone


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A1000", 0.0),
    ],
)
def test_the_peak_of_a_device_is_known_by_its_name(name: str, peak: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    device = torch.device("cuda", 0)
    assert peak_flops(device, "bf16") == peak
    assert peak_flops(device, "bf16", 7.0) == 7.0
    assert peak_flops(device, "f32") == peak_flops(torch.device("cpu"), "bf16") == 0.0


def test_utilisation_is_shown_where_the_peak_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 1.0, 2.0))
    monkeypatch.setattr("training.speed.time", SimpleNamespace(monotonic=lambda: next(clock)))
    speed = Speed()
    for _ in range(2):
        speed.count(UpdateReport(nll=1.0, smoothed=1.0, gradient_norm=1.0, learning_rate=1.0, tokens=50, flops=3e9))
    assert speed.values(peak=6e9) == {"tokens_per_second": 50, "mfu": 0.5}
    assert speed.values(peak=0.0) == {"tokens_per_second": 50}


def test_the_last_speed_of_a_run_is_shown_with_its_utilisation(tmp_path: Path) -> None:
    assert last_speed(tmp_path) == ""
    journal = Journal(tmp_path, 2, 0)
    journal.note(1, "train", {"tokens_per_second": 9})
    journal.note(2, "train", {"tokens_per_second": 51_234, "mfu": 0.4321})
    journal.note(2, "dev.help", {"nll": 2.0})
    journal.close()
    assert last_speed(tmp_path) == "51,234 target tokens/s, MFU 43.2%"


def test_an_impossible_peak_is_refused() -> None:
    with pytest.raises(RecipeError, match="peak_flops must be at least 0, but is -1"):
        FitRecipe(peak_flops=-1.0)


@pytest.mark.parametrize("causal", [True, False])
def test_the_fused_kernel_of_attention_is_formula_1_with_its_gradients(causal: bool) -> None:
    torch.manual_seed(0)
    shape = (2, 3, 5, 8)
    mask = causal_mask(5) if causal else padding_mask(torch.tensor([3, 5]), 5)
    found = []
    for attention in (fused, written_out):
        torch.manual_seed(1)
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        output = attention(*inputs, mask)
        output.square().sum().backward()
        found.append([output, *(each.grad for each in inputs)])
    for ours, slow in zip(*found, strict=True):
        torch.testing.assert_close(ours, slow, rtol=1e-5, atol=1e-5)

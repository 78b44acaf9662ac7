"""Training in several processes: the same update as in one."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from model.config import preset
from training.batches import Pairs
from training.processes import Processes, joined
from training.recipe import FitRecipe, RecipeError
from training.trainer import Trainer

CONFIG = preset("small", 40, d_model=16, heads=2, d_ff=32, encoder_layers=1, decoder_layers=1, dropout=0.1)
RECIPE = FitRecipe(updates=3, batch_tokens=240, micro_batch_tokens=60, warmup=4, precision="f32", max_length=24)


def pairs() -> Pairs:
    random = np.random.default_rng(0)
    sources = [np.append(random.integers(4, 40, n), 2).astype(np.int32) for n in random.integers(1, 12, 120)]
    return Pairs(sources, [np.append(source[-2::-1], 2).astype(np.int32) for source in sources])


def three_updates(processes: Processes) -> dict[str, torch.Tensor]:
    """Gradients of the first update, and the losses and gradient norms of three."""
    torch.set_num_threads(1)
    trainer = Trainer(CONFIG, RECIPE, pairs(), processes)
    seen: dict[str, torch.Tensor] = {}
    real = trainer.optimizer.update

    def keep(rate: float) -> float:
        if not seen:
            seen.update({name: master.grad.clone() for name, master in trainer.optimizer.masters.items()})
        return real(rate)

    trainer.optimizer.update = keep  # type: ignore[method-assign]
    reports = [trainer.update() for _ in range(3)]
    seen["losses"] = torch.tensor([[report.nll, report.smoothed, report.gradient_norm] for report in reports])
    return seen


def work(number: int, count: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=count)
    torch.save(three_updates(Processes(number, count)), folder / f"{number}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("count", [2, 3])
def test_the_gradient_of_several_processes_is_that_of_one(tmp_path: Path, count: int) -> None:
    mp.spawn(work, (count, tmp_path), nprocs=count)
    alone = three_updates(Processes())
    for number in range(count):
        together = torch.load(tmp_path / f"{number}.pt")
        for name, wanted in alone.items():
            torch.testing.assert_close(together[name], wanted, rtol=1e-5, atol=1e-6, msg=name)


def test_sums_of_several_dtypes_meet_in_the_order_in_which_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in every process: a set of dtypes has an order of its own in each."""
    seen: list[torch.dtype] = []
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: seen.append(tensor.dtype))
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.float16, torch.int32]
    for order in (kinds, kinds[::-1]):
        seen.clear()
        Processes(0, 2).add([torch.zeros(2, dtype=kind) for kind in order])
        assert seen == order


def test_a_process_that_was_not_started_by_torchrun_is_alone() -> None:
    with joined() as processes:
        assert (processes.first, processes.count, list(processes.share(3))) == (True, 1, [0, 1, 2])


def test_micro_batches_that_leave_a_process_without_work_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"at most batch_tokens / 2 for 2 processes \(120\)"):
        Trainer(CONFIG, FitRecipe(batch_tokens=240, max_length=24), pairs(), Processes(1, 2))

"""Training in several processes: the same update as in one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from model.config import preset
from training.batches import Pairs, micro_batches
from training.checkpoint import Checkpoints, load
from training.processes import Processes, joined
from training.recipe import FitRecipe, Optimizer, RecipeError
from training.trainer import Trainer

CONFIG = preset("small", 40, d_model=16, heads=2, d_ff=32, encoder_layers=1, decoder_layers=1, dropout=0.1)
RECIPE = FitRecipe(updates=14, batch_tokens=240, micro_batch_tokens=60, warmup=4, precision="f32", max_length=24)


def pairs() -> Pairs:
    random = np.random.default_rng(0)
    sources = [np.append(random.integers(4, 40, n), 2).astype(np.int32) for n in random.integers(1, 12, 120)]
    return Pairs(sources, [np.append(source[-2::-1], 2).astype(np.int32) for source in sources])


def three_updates(processes: Processes, optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Gradients of the first update, and the losses and gradient norms of three."""
    torch.set_num_threads(1)
    trainer = Trainer(CONFIG, replace(RECIPE, optimizer=optimizer), pairs(), processes)
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


def work(number: int, count: int, folder: Path, optimizer: Optimizer) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=count)
    torch.save(three_updates(Processes(number, count), optimizer), folder / f"{number}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(("count", "optimizer"), [(2, "adam"), (3, "adam"), (2, "muon")])
def test_the_gradient_of_several_processes_is_that_of_one(tmp_path: Path, count: int, optimizer: Optimizer) -> None:
    mp.spawn(work, (count, tmp_path, optimizer), nprocs=count)
    alone = three_updates(Processes(), optimizer)
    for number in range(count):
        together = torch.load(tmp_path / f"{number}.pt")
        for name, wanted in alone.items():
            torch.testing.assert_close(together[name], wanted, rtol=1e-6, atol=1e-7, msg=name)


STOP, END = 7, 14
"""An epoch has more updates than the first and fewer than the second: the interruption falls inside one."""


def go_on(processes: Processes, folder: Path, until: int) -> None:
    """Train from the checkpoint in `folder`, if there is one, to the update `until`; note each update there."""
    torch.set_num_threads(1)
    trainer, checkpoints = Trainer(CONFIG, RECIPE, pairs(), processes), Checkpoints(folder, keep=1)
    if checkpoints.last.is_file():
        trainer.load_state_dict(load(checkpoints.last))
    processes.wait()  # all have read before the first one writes
    reports = [trainer.update() for _ in range(until - trainer.at.update)]
    if processes.first:
        state = {**trainer.state_dict(), "batch": trainer.at.batch, "epoch": trainer.at.epoch}
        checkpoints.save(until, state, trainer.optimizer.state_dict()["masters"])
        noted = [[report.tokens, report.nll, report.smoothed, report.gradient_norm] for report in reports]
        torch.save(torch.tensor(noted, dtype=torch.float64), folder / f"until-{until}.pt")


def go_on_together(number: int, count: int, folder: Path, until: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-{until}", rank=number, world_size=count)
    go_on(Processes(number, count), folder, until)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 1), (1, 2)])
def test_a_run_is_resumed_in_the_middle_of_an_epoch_by_another_number_of_processes(
    tmp_path: Path, counts: tuple[int, int]
) -> None:
    """The very same batches, and losses and weights that differ by the order of additions alone."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    for folder in (straight, broken):
        folder.mkdir()
    go_on(Processes(), straight, END)
    for count, until in zip(counts, (STOP, END), strict=True):
        if count == 1:
            go_on(Processes(), broken, until)
        else:
            mp.spawn(go_on_together, (count, broken, until), nprocs=count)
        if until == STOP:
            assert load(broken / "last.pt")["batch"] > 0, "the interruption must fall inside an epoch"
    wanted = torch.load(straight / f"until-{END}.pt")
    found = torch.cat([torch.load(broken / f"until-{until}.pt") for until in (STOP, END)])
    assert torch.equal(found[:, 0], wanted[:, 0]), "as many tokens in every batch"
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    one, other = (load(folder / "last.pt") for folder in (straight, broken))
    assert one["epoch"] > 0
    assert {**one["at"], "best_nll": 0} == {**other["at"], "best_nll": 0}
    for name, master in one["optimizer"]["masters"].items():
        # What is added to all keys changes no softmax: its gradient is rounding alone, which Adam makes large.
        if not name.endswith("w_k.bias"):
            torch.testing.assert_close(other["optimizer"]["masters"][name], master, rtol=1e-4, atol=1e-5, msg=name)


def test_batches_and_micro_batches_do_not_depend_on_the_number_of_processes() -> None:
    """There are no data workers: each process plans every batch itself, from the seed and the epoch alone."""
    trainers = {
        (number, count): Trainer(CONFIG, RECIPE, pairs(), Processes(number, count))
        for count in (1, 2, 3, 4)
        for number in range(count)
    }
    for _ in range(END):
        drawn = {who: trainer.next_batch() for who, trainer in trainers.items()}
        alone = drawn[0, 1]
        assert all(np.array_equal(batch, alone) for batch in drawn.values())
        parts = micro_batches(alone, trainers[0, 1].pairs, RECIPE.micro_batch_tokens)
        for count in (1, 2, 3, 4):
            shares = [part for number in range(count) for part in Processes(number, count).share(len(parts))]
            assert sorted(shares) == list(range(len(parts)))


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

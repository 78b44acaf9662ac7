"""Our loop in several processes of one thread each, as `torchrun` starts them, one update at a time when asked."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from tests.benchmarks.training_loops import Counted, Ours
from tests.benchmarks.training_text import Task
from training.processes import Processes

PATIENCE = 300.0
"""Seconds that the processes have for one update, the first one with their start."""


def most_processes(task: Task, threads: int) -> int:
    """At most `threads`, and so few that every update has a micro-batch for each."""
    recipe = task.recipe
    return min(threads, recipe.batch_tokens // (recipe.micro_batch_tokens or recipe.batch_tokens))


class Together:
    """The `Trainer` in `count` processes. While nothing is asked of them they wait without using a processor."""

    def __init__(self, task: Task, precision: str, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self._processes = []
        for number in range(count):
            ours, theirs = context.Pipe()
            arguments = (task, precision, (number, count), folder / f"meeting-{precision}", theirs)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def update(self) -> Counted:
        """One update, each process doing its share. Raises `RuntimeError` if one is gone or takes too long."""
        try:
            for end in self._ends:
                end.send(True)
            counted: list[Counted] = [end.recv() for end in self._ends if end.poll(PATIENCE)]
        except (EOFError, OSError) as error:
            raise RuntimeError("every process must end its update, but one is gone; see what it wrote.") from error
        if len(counted) < len(self._ends):
            raise RuntimeError(f"every process must end its update within {PATIENCE:.0f} s, but one does not.")
        return counted[0]

    def close(self) -> None:
        """End the processes."""
        for end in self._ends:
            end.send(False)
        for process in self._processes:
            process.join(PATIENCE)


def _work(task: Task, precision: str, place: tuple[int, int], meeting: Path, asked: Connection) -> None:
    torch.set_num_threads(1)
    number, count = place
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=number, world_size=count)
    ours = Ours(task, precision, Processes(number, count))
    while asked.recv():
        asked.send(ours.update())
    dist.destroy_process_group()

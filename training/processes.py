"""Several processes that train one network together (data parallelism), started by `torchrun`.

    torchrun --nproc-per-node 2 -m -- training.cli fit …

The two dashes are needed: without them torchrun takes our `--run` for an abbreviation of its own `--run-path`.
Every process holds the whole network, computes its share of each update's micro-batches, and adds up gradients with the
others, and so does Muon with its updates; so all take the same step. The first process alone writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from training.device import training_device

_PATIENCE = timedelta(hours=2)
"""How long processes wait for each other: all for the first one, while it encodes a corpus or validates."""


class Processes:
    """This process among `count`, numbered from 0. Alone unless said otherwise."""

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number = number
        self.count = count

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.number == 0

    def share(self, parts: int) -> range:
        """Which of `parts` pieces of work are done here."""
        return range(self.number, parts, self.count)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Let every tensor be the sum over all processes, in place. One message for each dtype."""
        if self.count == 1:
            return
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # a set has another order in each process
            like = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in like])
            dist.all_reduce(flat)
            for tensor, summed in zip(like, flat.split([tensor.numel() for tensor in like]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def wait(self) -> None:
        """Go on when all others are here too."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def joined(asked: str = "auto") -> Iterator[Processes]:
    """The processes that `torchrun` started, connected: by NCCL if `[fit] device` puts them on GPUs, else by Gloo."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes()
        return
    device = training_device(asked)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield Processes(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()

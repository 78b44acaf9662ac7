"""Which range each quantised input has on real text: the network runs over sentence pairs and is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from model.errors import ExportError
from model.export.quantisation import Range
from model.nn.transformer import Transformer

Pair = tuple[Sequence[int], Sequence[int]]
"""Source ids and target ids, both with EOS last."""


def sites(network: Transformer) -> dict[str, tuple[nn.Module, bool]]:
    """Name of every quantised input -> the module at which it is seen, and whether as that module's output."""
    found: dict[str, tuple[nn.Module, bool]] = {"decoder.output": (network.decoder, True)}
    for name, module in network.named_modules():
        kind = name.rpartition(".")[2]
        if kind in ("self_attention", "cross_attention"):
            found[f"{name}.input"] = (module.get_submodule("w_q"), False)
            found[f"{name}.joined"] = (module.get_submodule("w_o"), False)
        elif kind == "feed_forward":
            found[f"{name}.input"] = (module.get_submodule("w_1"), False)
            found[f"{name}.hidden"] = (module.get_submodule("w_2"), False)
    found["encoder.memory"] = (network.encoder, True)
    return found


@torch.no_grad()
def calibrate(network: Transformer, pairs: Sequence[Pair]) -> dict[str, Range]:
    """Lowest and highest value of every quantised input over `pairs`, with teacher forcing.

    Sentences run one by one, so that no padding is ever seen. Raises `ExportError` without pairs.
    """
    if not pairs:
        raise ExportError("int8 needs real sentence pairs for its calibration, but got none; give a few hundred.")
    ranges: dict[str, Range] = {}

    def watch(site: str, x: Tensor) -> None:
        low, high = float(x.min()), float(x.max())
        if site in ranges:
            low, high = min(low, ranges[site].low), max(high, ranges[site].high)
        ranges[site] = Range(low, high)

    training = network.training
    network.eval()
    with ExitStack() as hooks:
        for site, (module, is_output) in sites(network).items():
            hooks.enter_context(_hook(module, is_output, site, watch))
        for source, target in _within(pairs, network.config.max_positions):
            target_in = [network.config.bos_id, *target[:-1]]
            network(torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([target_in]))
    network.train(training)
    return ranges


def _hook(module: nn.Module, is_output: bool, site: str, watch: Callable[[str, Tensor], None]) -> Any:
    if is_output:
        return module.register_forward_hook(lambda _module, _inputs, output: watch(site, output))
    return module.register_forward_pre_hook(lambda _module, inputs: watch(site, inputs[0]))


def _within(pairs: Sequence[Pair], max_positions: int) -> Iterable[tuple[list[int], list[int]]]:
    return (
        (list(source), list(target))
        for source, target in pairs
        if 0 < len(source) <= max_positions and 0 < len(target) <= max_positions
    )

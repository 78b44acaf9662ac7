"""The portable reference: the network's whole pass as torch's own exporter writes it, in standard ONNX only.

It shares no line with the builder, so that the two graphs check each other; any ONNX runtime can run it. It has no
cache and is not served. Needs the package `onnxscript`.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from model.nn.transformer import Transformer


def export_reference(network: Transformer, path: Path) -> None:
    """Write source (B, S), source_lengths (B), target_in (B, T) -> logits (B, T, V), all int64, to `path`.

    Logits are raw: nothing is forbidden yet, and there is no softmax.
    """
    config = network.config
    rows = torch.export.Dim("rows")
    source, target = (torch.export.Dim(name, max=config.max_positions) for name in ("source", "target"))
    ids = torch.full((2, 5), config.unk_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, about its own ways
        program = torch.onnx.export(
            network.eval(),
            (ids, torch.tensor([5, 3]), ids[:, :4]),
            dynamo=True,
            dynamic_shapes=({0: rows, 1: source}, {0: rows}, {0: rows, 1: target}),
            input_names=["source", "source_lengths", "target_in"],
            output_names=["logits"],
            verbose=False,
        )
    assert program is not None  # with dynamo=True there is always one
    program.save(str(path))

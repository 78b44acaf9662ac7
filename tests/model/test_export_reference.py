"""The graphs built by hand against the graph that torch's own exporter writes."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
import torch

from model.export.compare import allowed_log_probs, padded
from model.export.reference import export_reference
from tests.model.networks import exported


@pytest.mark.slow
def test_the_cached_step_is_the_portable_graphs_whole_pass(tmp_path):
    pytest.importorskip("onnxscript", reason="torch's exporter needs it")
    made = exported("tied")
    export_reference(made.network, tmp_path / "reference.onnx")
    reference = ort.InferenceSession(str(tmp_path / "reference.onnx"), providers=["CPUExecutionProvider"])
    source, lengths = padded([pair[0] for pair in made.pairs], made.config.pad_id)
    target_in, _ = padded([[made.config.bos_id, *pair[1][:-1]] for pair in made.pairs], made.config.eos_id)
    feeds = {"source": source.numpy(), "source_lengths": lengths.numpy(), "target_in": target_in.numpy()}
    (logits,) = reference.run(None, feeds)
    expected = allowed_log_probs(made.config, torch.from_numpy(logits))
    stepper = made.stepper()
    slots = stepper.start([pair[0] for pair in made.pairs], 1)
    for position in range(target_in.shape[1]):
        tokens = target_in[:, position : position + 1].numpy()
        log_probs, ids = stepper.step(slots, tokens, made.config.vocab_size - 2)  # all but PAD and BOS
        wanted = np.take_along_axis(expected[:, position], ids[:, 0], axis=1)
        np.testing.assert_allclose(log_probs[:, 0], wanted, atol=1e-4)
        assert ids[:, 0, 0].tolist() == expected[:, position].argmax(-1).tolist()

"""Differences between graphs and network, in values and in texts. `parity` judges them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.config import ModelConfig
from model.decode.options import Hypothesis
from model.decode.reference import History, Language
from model.export.attending import cross_attention
from model.export.calibration import Pair
from model.nn.transformer import Transformer
from model.runtime.stepper import OnnxStepper

BATCH = 8
"""Samples that share a padded batch, so that a fault in a mask shows."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ValueDifferences:
    """Graphs against network, teacher-forced along the samples' targets."""

    positions: int
    """Target positions whose whole distributions were compared."""
    cross: float
    """Largest absolute difference of a cross-attention key or value."""
    log_prob: float
    """Largest absolute difference of a log-probability."""
    top1: float
    """Share of positions at which both rank the same token first."""


@dataclass(frozen=True, kw_only=True)
class AttentionDifferences:
    """What the attending graph says the samples' targets attend to, against the network."""

    difference: float
    """Largest absolute difference of a share."""
    top1: float
    """Share of target tokens that attend to the same source token most."""


@dataclass(frozen=True, kw_only=True)
class TextDifferences:
    """Decoded texts of graphs against those of the network."""

    texts: int
    equal: int
    similarity: float
    """Mean share of ids that two texts of one source have in common, in order."""
    score: float
    """Largest difference between the scores of two texts of one source."""
    echoes: float
    """Share of the graphs' texts that are equal to their source."""
    network_echoes: float


def full_pass_language(network: Transformer) -> Language:
    """The network as a plain function of source and history: every position computed anew, no cache, no batch."""

    @lru_cache(maxsize=256)
    def memory(source: History) -> Tensor:
        return network.encode(torch.tensor([source]), torch.tensor([len(source)]))

    @torch.no_grad()
    def language(source: History, history: History) -> Floats:
        target_in = torch.tensor([[network.config.bos_id, *history]])
        logits = network.decode(target_in, memory(source), torch.tensor([len(source)]))
        return allowed_log_probs(network.config, logits[0, -1])  # (1, T, V) -> (V)

    return language


def allowed_log_probs(config: ModelConfig, logits: Tensor) -> Floats:
    """Log-softmax over what may be predicted; PAD and BOS get -inf: (…, V) -> (…, V)."""
    logits = logits.clone()
    logits[..., [config.pad_id, config.bos_id]] = -torch.inf
    return logits.log_softmax(dim=-1).numpy()


@torch.no_grad()
def compare_values(network: Transformer, stepper: OnnxStepper, pairs: Sequence[Pair]) -> ValueDifferences:
    """Cross keys and values, then the distribution of each step against the network's pass over the whole target."""
    cross, log_prob, same, positions = 0.0, 0.0, 0, 0
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        source, lengths = padded([pair[0] for pair in batch], network.config.pad_id)
        memory = network.encode(source, lengths)
        _, found = stepper.encode([pair[0] for pair in batch])
        wanted = [x for cache in network.decoder.start(memory) for x in (cache.cross_keys, cache.cross_values)]
        for row, length in enumerate(lengths.tolist()):
            pieces = zip(wanted, found, strict=True)
            cross = max(
                cross, *(float(np.abs(w[row, :, :length].numpy() - f[row, :, :length]).max()) for w, f in pieces)
            )
        for expected, stepped in _forced(network, stepper, batch, memory, lengths):
            finite = np.isfinite(expected)
            if not np.array_equal(finite, np.isfinite(stepped)):
                log_prob = np.inf  # One may predict what the other must not.
            else:
                log_prob = max(log_prob, float(np.abs(expected[finite] - stepped[finite]).max()))
            same += int(expected.argmax() == stepped.argmax())
            positions += 1
    return ValueDifferences(positions=positions, cross=cross, log_prob=log_prob, top1=same / max(positions, 1))


def _forced(
    network: Transformer, stepper: OnnxStepper, batch: Sequence[Pair], memory: Tensor, lengths: Tensor
) -> Iterator[tuple[Floats, Floats]]:
    """(network's, graphs') distribution (V) at every real target position of the batch."""
    config = network.config
    targets = [[config.bos_id, *target[:-1]] for _, target in batch]
    target_in, target_lengths = padded(targets, config.eos_id)
    expected = allowed_log_probs(config, network.decode(target_in, memory, lengths))
    slots = stepper.start([pair[0] for pair in batch], 1)
    for position in range(target_in.shape[1]):
        log_probs, ids = stepper.step(slots, target_in[:, position : position + 1].numpy(), config.vocab_size)
        stepped = np.empty_like(log_probs[:, 0])  # (B, 1, V) -> (B, V)
        np.put_along_axis(stepped, ids[:, 0], log_probs[:, 0], axis=1)
        for row in np.flatnonzero(target_lengths.numpy() > position):
            yield expected[row, position], stepped[row]
    stepper.finish(slots)


def compare_attention(
    network: Transformer, stepper: OnnxStepper, pairs: Sequence[Pair], layer: int
) -> AttentionDifferences:
    """The attention of the decoder's `layer`, teacher-forced along the samples' targets, some of them side by side."""
    difference, same, tokens = 0.0, 0, 0
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        target_in, _ = padded([[network.config.bos_id, *target[:-1]] for _, target in batch], network.config.eos_id)
        slots = stepper.start([source for source, _ in batch], 1, attending=True)
        steps = []
        for position in range(target_in.shape[1]):
            stepper.step(slots, target_in[:, position : position + 1].numpy(), 1)
            steps.append(stepper.attention(slots)[:, 0])  # (B, 1, S) -> (B, S)
        stepper.finish(slots)
        for row, (source, target) in enumerate(batch):
            wanted = cross_attention(network, source, target)[layer].numpy()
            found = np.stack([step[row, : len(source)] for step in steps[: len(target)]])  # T of (S) -> (T, S)
            difference = max(difference, float(np.abs(wanted - found).max()))
            same += int((wanted.argmax(-1) == found.argmax(-1)).sum())
            tokens += len(target)
    return AttentionDifferences(difference=difference, top1=same / max(tokens, 1))


def compare_texts(
    sources: Sequence[History], wanted: Sequence[Hypothesis], found: Sequence[Hypothesis]
) -> TextDifferences:
    """Texts of the network (`wanted`) and of the graphs (`found`), source by source."""
    pairs = list(zip(wanted, found, strict=True))
    similar = [1.0 if a.ids == b.ids else SequenceMatcher(None, a.ids, b.ids, autojunk=False).ratio() for a, b in pairs]

    def echoes(texts: Sequence[Hypothesis]) -> float:
        return float(np.mean([text.ids == source[:-1] for text, source in zip(texts, sources, strict=True)]))

    return TextDifferences(
        texts=len(pairs),
        equal=sum(a.ids == b.ids for a, b in pairs),
        similarity=float(np.mean(similar)),
        score=max(abs(a.score - b.score) for a, b in pairs),
        echoes=echoes(found),
        network_echoes=echoes(wanted),
    )


def padded(rows: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    """Rows filled up on the right: (B, T) and their real lengths (B)."""
    longest = max(len(row) for row in rows)
    filled = [[*row, *[filler] * (longest - len(row))] for row in rows]
    return torch.tensor(filled), torch.tensor([len(row) for row in rows])

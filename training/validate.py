"""How a network in training does on the dev sets: true loss, BLEU and chrF. Dropout is off, and comes back on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from model.nn.transformer import Transformer, greedy
from model.protection import Protected, Protector, restore
from model.tokenizer import Tokenizer
from training.batches import Pairs, collate, encode_pairs, plan_epoch, read_pairs
from training.objective import projected_cross_entropy
from training.protect import preparation
from training.recipe import NoiseRecipe, ProtectRecipe
from training.scores import Scores, score

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class DevSet:
    """One held-out set: its text for the scores, its ids for the loss."""

    name: str
    text: list[tuple[str, str]]
    pairs: Pairs
    language: str = ""
    """Of the targets; it says what counts as a word."""


@dataclass(frozen=True)
class Validation:
    """What was measured on one dev set."""

    nll: float | None
    """Mean negative log-likelihood per target token, natural logarithm, without smoothing; None without a pair that is
    short enough to be trained on."""
    scores: Scores | None


def read_dev_sets(corpus: Path, tokenizer: Tokenizer, languages: tuple[str, str], max_length: int) -> list[DevSet]:
    """Every `dev.NAME` of a corpus, in ids as it will be served: without noise, and with sentinels if there are any."""
    source, target = languages
    prepare = preparation(tokenizer, ProtectRecipe(plain_numbers=0.0), NoiseRecipe(), seed=0)
    sets: list[DevSet] = []
    for path in sorted(corpus.glob(f"dev.*.{source}")):
        text = read_pairs(path, path.with_suffix(f".{target}"))
        pairs = encode_pairs(text, tokenizer, max_length, prepare)
        sets.append(DevSet(path.name.split(".")[1], text, pairs, target))
    return sets


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Dropout off inside, as it was before outside."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)


@torch.no_grad()
def mean_nll(network: Transformer, pairs: Pairs) -> float:
    """Negative log-likelihood per real target token of at least one pair, the same whatever the batching."""
    total, tokens = 0.0, 0
    with evaluating(network):
        for numbers in plan_epoch(pairs, BATCH_TOKENS, seed=0, epoch=0):
            batch = collate(pairs, numbers, network.config).to(network.embedding.weight.device)
            memory = network.encode(batch.source, batch.source_lengths)
            hidden = network.hidden(batch.target_in, memory, batch.source_lengths)
            sums = projected_cross_entropy(hidden, network.output_weight, batch.target_out, 0.0, network.config.pad_id)
            total += float(sums.nll)
            tokens += sums.tokens
    return total / tokens


def translate(network: Transformer, tokenizer: Tokenizer, texts: list[str]) -> list[str]:
    """Greedy translations, for a quick look while training; the served engine is measured by `evaluate`."""
    protector = Protector(tokenizer.characters)
    protected = [protector.protect(text) if tokenizer.sentinel_ids else Protected(text, ()) for text in texts]
    sources = [tokenizer.encode(text)[: network.config.max_positions] for text, _ in protected]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    outputs = [""] * len(sources)
    with evaluating(network):
        for start in range(0, len(order), 32):
            rows = order[start : start + 32]
            lengths = torch.tensor([len(sources[i]) for i in rows])
            padded = torch.full((len(rows), int(lengths.max())), network.config.pad_id)
            for row, i in enumerate(rows):
                padded[row, : len(sources[i])] = torch.tensor(sources[i])
            device = network.embedding.weight.device
            found = greedy(network, padded.to(device), lengths.to(device), max_length=int(lengths.max()) + 50)
            for i, ids in zip(rows, found, strict=True):
                outputs[i] = restore(tokenizer.decode(ids), protected[i].spans)
    return outputs


def validate(
    network: Transformer, tokenizer: Tokenizer, dev_sets: list[DevSet], sentences: int
) -> dict[str, Validation]:
    """Loss on every dev set, and scores on the first `sentences` of each (0: none)."""
    found: dict[str, Validation] = {}
    for dev in dev_sets:
        scores = None
        if sentences:
            sample = dev.text[:sentences]
            outputs = translate(network, tokenizer, [source for source, _ in sample])
            scores = score(outputs, [target for _, target in sample], dev.language)
        found[dev.name] = Validation(mean_nll(network, dev.pairs) if dev.pairs else None, scores)
    return found

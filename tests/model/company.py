"""Sentences with options of all kinds, and the company in which they are translated."""

from __future__ import annotations

import random
from collections.abc import Sequence

from model.config import ModelConfig
from model.decode.batcher import Batcher, BatcherLimits, Finished
from model.decode.options import DecodeOptions, Sampling
from model.decode.stepper import Stepper
from tests.model.networks import random_sources

Job = tuple[list[int], DecodeOptions]

FEW = BatcherLimits(max_slots=7, max_lanes=24)


def some_options(config: ModelConfig, rng: random.Random) -> DecodeOptions:
    sampling = rng.random() < 0.2
    beam_size = 1 if sampling else rng.choice([1, 1, 2, 4, 4])
    words = range(4, config.vocab_size)
    return DecodeOptions(
        beam_size=beam_size,
        n_best=rng.randint(1, beam_size),
        max_length=rng.choice([None, 12, 25]),
        min_length=rng.choice([0, 0, 8]),
        no_repeat_ngram=rng.choice([0, 0, 1, 2, 3]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.0, 1.5]),
        sampling=Sampling(top_k=rng.choice([0, 5, 40]), top_p=0.95, seed=rng.randrange(9)) if sampling else None,
        prefix=tuple(rng.sample(words, rng.choice([0, 0, 0, 1, 4]))),
        suppress=tuple((word,) for word in rng.sample(words, rng.choice([0, 0, 0, 3, 20]))),
        carry=tuple(rng.sample(words, rng.choice([0, 0, 32, 200]))),
        token_scores=rng.random() < 0.5,
        repetition_guard=rng.random() < 0.5,
        alignment=rng.random() < 0.2,
        coverage_penalty=0.2 if beam_size > 1 and rng.random() < 0.3 else 0.0,
    )


def jobs(config: ModelConfig, count: int, seed: int, longest: int = 20) -> list[Job]:
    """Sources of up to `longest` tokens, each with options of its own."""
    rng = random.Random(seed)
    sources = random_sources(config, tuple(rng.randint(1, longest) for _ in range(count)), seed)
    # Left to itself, the tiny network soon goes round in circles.
    watched = DecodeOptions(beam_size=1, repetition_guard=True)
    return [(source, watched if place < 6 else some_options(config, rng)) for place, source in enumerate(sources)]


def company(stepper: Stepper, todo: Sequence[Job], seed: int, limits: BatcherLimits = FEW) -> dict[int, Finished]:
    """All of `todo` in random order, arriving while others run, one of them cancelled; what ended, by place."""
    rng, batcher = random.Random(seed), Batcher(stepper, limits)
    ended: dict[int, Finished] = {}
    waiting = list(enumerate(todo))
    rng.shuffle(waiting)
    batcher.add("cancelled", *todo[0])
    while waiting or not batcher.idle:
        for _ in range(rng.randint(0, 3)):
            if waiting:
                key, (source, options) = waiting.pop()
                batcher.add(key, source, options)
        if rng.random() < 0.1:
            batcher.cancel("cancelled")
        ended.update({finished.key: finished for finished in batcher.step()})
    return ended

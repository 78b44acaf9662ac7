"""What the benchmarks of training train on: one text, one vocabulary and one recipe for all sides.

The text is that of a corpus folder, or else a made-up one: words drawn from the bundled vocabulary, the likelier ones
more often, in sentences about as long as those of a real corpus. How fast a network trains depends on lengths alone, so
for speed the made-up text is as good. `[protect]` and `[noise]` of the recipe are done to it beforehand: every side
reads the same lines, sentinels and all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model.config import ModelConfig
from model.tokenizer import Tokenizer
from service.settings import BUNDLED
from training.batches import Pairs, encode_pairs, read_pairs
from training.protect import preparation
from training.recipe import FitRecipe, NoiseRecipe, ProtectRecipe, languages, model_config, read_recipe, section
from training.sampling import SubwordSampler, unigram_cuts
from training.validate import DevSet, read_dev_sets

RECIPE = Path(__file__).parents[2] / "training/recipes/en-de.toml"
BUNDLED_TOKENIZER = BUNDLED / "en-de/tokenizer.model"
MADE_UP = 12_000
"""Made-up pairs, enough for a few dozen updates."""

TextPair = tuple[str, str]


@dataclass(frozen=True)
class Task:
    """What all sides do."""

    config: ModelConfig
    recipe: FitRecipe
    languages: tuple[str, str]
    tokenizer_path: Path
    text: list[TextPair]
    """As the networks read it."""
    pairs: Pairs
    dev_sets: list[DevSet]
    origin: str
    """Where the text is from, for the reader of a figure."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary of all sides."""
        return Tokenizer(self.tokenizer_path)


def open_task(corpus: Path | None, overrides: list[str], lines: int) -> Task:
    """The recipe en-de on `corpus`, or on made-up text; at most `lines` pairs of it, evenly spaced (0: all)."""
    values = read_recipe(RECIPE, overrides)
    recipe = section(FitRecipe, "fit", values["fit"])
    pair = languages(values)
    path = BUNDLED_TOKENIZER if corpus is None else corpus / "tokenizer.model"
    tokenizer = Tokenizer(path)
    raw = made_up(tokenizer) if corpus is None else read_pairs(corpus / f"train.{pair[0]}", corpus / f"train.{pair[1]}")
    raw = evenly(raw, lines)
    noise = section(NoiseRecipe, "noise", values.get("noise", {}))
    protect = section(ProtectRecipe, "protect", values.get("protect", {}))
    prepare = preparation(tokenizer, protect, noise, recipe.seed)
    text = [prepare(number, *rows) for number, rows in enumerate(raw)]
    sampler = None
    if recipe.subword_sampling:
        sampler = SubwordSampler(unigram_cuts(tokenizer), recipe.subword_sampling, recipe.max_length)
    return Task(
        config=model_config(values["model"], tokenizer.vocab_size),
        recipe=recipe,
        languages=pair,
        tokenizer_path=path,
        text=text,
        pairs=encode_pairs(text, tokenizer, recipe.max_length, sampler=sampler),
        dev_sets=_made_up_dev(tokenizer)
        if corpus is None
        else read_dev_sets(corpus, tokenizer, pair, recipe.max_length),
        origin="made-up text" if corpus is None else f"the corpus {corpus.name}",
    )


def evenly(pairs: Sequence[TextPair], most: int) -> list[TextPair]:
    """At most so many of the pairs, evenly spaced; 0: all."""
    count = min(most or len(pairs), len(pairs))
    return [pairs[i * len(pairs) // count] for i in range(count)]


def of_precision(task: Task, precision: str) -> FitRecipe:
    """The recipe with another precision, on the processor and with torch's own threads."""
    return dataclasses.replace(task.recipe, precision=precision, device="cpu", threads=0)  # type: ignore[arg-type]


def made_up(tokenizer: Tokenizer, count: int = MADE_UP, seed: int = 0) -> list[TextPair]:
    """Pairs of sentences without sense, of about 11 words, the two sides alike in length."""
    random = np.random.default_rng(seed)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    words = [piece[1:] for piece in pieces if piece.startswith("▁") and piece[1:].isalpha()]
    if not words:
        raise ValueError(f"a vocabulary must have whole words to make up text, but {len(pieces)} pieces hold none.")
    chances = 1.0 / np.arange(10, 10 + len(words))
    chances /= chances.sum()

    def sentence(length: int) -> str:
        return " ".join(words[i] for i in random.choice(len(words), size=length, p=chances))

    lengths = np.clip(random.lognormal(2.1, 0.8, size=count).astype(int), 1, 100)
    swings = np.clip(random.normal(1.05, 0.15, size=count), 0.6, 1.6)
    return [
        (sentence(length), sentence(max(1, round(length * swing))))
        for length, swing in zip(lengths.tolist(), swings.tolist(), strict=True)
    ]


def _made_up_dev(tokenizer: Tokenizer) -> list[DevSet]:
    text = made_up(tokenizer, 400, seed=1)
    return [DevSet("made-up", text, encode_pairs(text, tokenizer, 128))]

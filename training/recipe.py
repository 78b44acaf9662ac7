"""Recipes: TOML files whose sections become frozen, checked objects.

A recipe has `[languages]`, what the corpus is made of (`training.corpus.recipe`), and the sections `[tokenizer]`,
`[model]`, `[fit]`, `[protect]`, `[noise]`, `[publish]` and `[distil]`. Each room reads its own; a misspelt key is an
error, never ignored.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from model.config import ModelConfig, preset

Section = TypeVar("Section")


class RecipeError(Exception):
    """A recipe is missing, not TOML, or says something that cannot be meant."""


Precision = Literal["bf16", "f32"]
Optimizer = Literal["adam", "muon"]
Device = Literal["auto", "cpu", "cuda"]
Compile = Literal["auto", "always", "never"]


_LEAST = {
    0: "micro_batch_tokens warmup learning_rate_scale cooldown muon_scale clip_norm subword_sampling seed "
    "validate_sentences patience peak_flops threads",
    1: "updates batch_tokens max_length validate_every checkpoint_every average max_bad_updates",
}
"""Lower bound → the values of `[fit]` that have it and no other."""


@dataclass(frozen=True, kw_only=True)
class FitRecipe:
    """The section `[fit]`: how a network is trained. Defaults are the paper's where it gives them (section 5)."""

    updates: int = 100_000
    """Optimiser updates of the whole run."""
    batch_tokens: int = 25_000
    """Most source tokens, and most target tokens, of one update, padding counted."""
    micro_batch_tokens: int = 0
    """Most tokens at once; an update is accumulated from as many micro-batches as it needs, or up to the next power of
    two. 0: the whole update, which is best for a GPU that can hold it; a processor likes what its caches hold."""
    warmup: int = 4000
    learning_rate_scale: float = 1.0
    """Multiplies the paper's learning rate."""
    cooldown: int = 0
    """Last updates, over which the learning rate falls to zero; the paper has none."""
    optimizer: Optimizer = "adam"
    """`adam`: β 0.9 / 0.98, ε 1e-9 (section 5.3). `muon`: Muon for matrices, Adam for embeddings and norms."""
    muon_scale: float = 3.0
    """Muon's learning rate as a multiple of Adam's."""
    label_smoothing: float = 0.1
    clip_norm: float = 0.0
    """Longest gradient; longer ones are shortened to it. 0: never."""
    precision: Precision = "bf16"
    """Weights and activations of forward and backward; master weights and moments are always float32."""
    max_length: int = 128
    """Longer pairs (in tokens, either side) are left out of training."""
    subword_sampling: float = 0.0
    """α: every epoch cuts each word anew, with probability ∝ P(cut)^α; 0 always takes the most likely cut."""
    seed: int = 1
    validate_every: int = 1000
    """Updates between validations."""
    validate_sentences: int = 100
    """Sentences of each dev set that are also translated for BLEU and chrF."""
    patience: int = 0
    """Validations in a row without a smaller mean loss of the dev sets after which training ends early; what is
    published then are the weights of the validation with the smallest. 0: never."""
    checkpoint_every: int = 500
    average: int = 5
    """How many of the newest checkpoints are kept, and averaged by `publish` (section 6.1: 5 for base, 20 for big)."""
    ema: float = 0.0
    """Decay d of an exponential moving average of the weights, in place of the average of checkpoints (`average = 1`):
    after n updates Σ dⁿ⁻ᵏ θ_k / Σ dⁿ⁻ᵏ. It is what is validated and published. 0: none. 0.999 looks back some 1,000
    updates."""
    device: Device = "auto"
    """`auto`: CUDA where there is one."""
    compile: Compile = "auto"
    """torch.compile for the network. `auto`: on CUDA only; on two cores it was slower than none."""
    peak_flops: float = 0.0
    """Operations a second that the device could do at most, for the utilisation in the log. 0: by the device's name."""
    threads: int = 0
    """Threads of the processor; 0 leaves it to torch. A tiny network is faster with one."""
    max_bad_updates: int = 10
    """Updates in a row with a non-finite loss or gradient before training stops."""

    def __post_init__(self) -> None:
        for least, names in _LEAST.items():
            for name in names.split():
                if not least <= getattr(self, name) < math.inf:
                    raise RecipeError(f"[fit] {name} must be at least {least}, but is {getattr(self, name)}.")
        for name in ("label_smoothing", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise RecipeError(f"[fit] {name} must be in [0, 1), but is {getattr(self, name)}.")
        if self.cooldown > self.updates:
            raise RecipeError(f"[fit] cooldown must be in 0..updates ({self.updates}), but is {self.cooldown}.")
        if self.ema and self.average > 1:
            raise RecipeError(
                f"[fit] ema and average are two ways to average weights: with ema {self.ema} average must be 1, but is "
                f"{self.average}; drop one of them."
            )
        if min(self.micro_batch_tokens or self.batch_tokens, self.batch_tokens) < self.max_length:
            raise RecipeError(f"[fit] a (micro-)batch must hold one pair of max_length {self.max_length} tokens.")


@dataclass(frozen=True, kw_only=True)
class ProtectRecipe:
    """The section `[protect]`: what is no language becomes sentinels where the vocabulary has them."""

    enabled: bool = True
    """False: everything stays text, and nothing is carried through the network."""
    plain_numbers: float = 0.3
    """Share of the pairs whose numbers stay text all the same, so that digits are learnt too."""

    def __post_init__(self) -> None:
        _shares("protect", plain_numbers=self.plain_numbers)


@dataclass(frozen=True, kw_only=True)
class NoiseRecipe:
    """The section `[noise]`: the share of pairs that are changed in each way. Seeded; the same in every epoch."""

    lower: float = 0.0
    """The source in lower case."""
    upper: float = 0.0
    """Both sides in upper case."""
    no_stop: float = 0.0
    """Both sides without their final full stop."""
    spaces: float = 0.0
    """A stray space before a punctuation mark of the source."""
    carried: float = 0.0
    """One or two more sentinels on both sides, before, behind or between sentences: where emoji stand."""

    def __post_init__(self) -> None:
        _shares("noise", **dataclasses.asdict(self), lower_and_upper=self.lower + self.upper)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self != NoiseRecipe()


def _shares(name: str, **values: float) -> None:
    for key, value in values.items():
        if not 0 <= value <= 1:
            raise RecipeError(f"[{name}] {key.replace('_and_', ' + ')} must be in [0, 1], but is {value}.")


@dataclass(frozen=True, kw_only=True)
class PublishRecipe:
    """The section `[publish]`: what the bundle is called and how it decodes unless asked otherwise."""

    name: str
    version: str = "1"
    precisions: tuple[str, ...] = ("int8",)
    """`int8` (CPU), `f16` (CUDA) and `f32` (both)."""
    beam_size: int = 4
    length_penalty: float = 0.6
    calibration_sentences: int = 256
    """Dev pairs run through the network to find the ranges of the int8 activations."""
    parity_sentences: int = 50
    """Dev sentences on which the graphs must prove equal to the network."""
    samples: tuple[str, ...] = ()
    """Sentences whose translations the model card shows, as they come."""


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The sections of `path`, with `section.key=value` overrides (values in TOML; a bare word is a string).

    A section within a section is reached by more dots: `source.tatoeba.path=FILE`. A recipe that names another of its
    folder as its `base` says only what is different there.
    """
    sections = _read(path)
    for override in overrides:
        name, equals, value = override.partition("=")
        *tables, key = name.split(".")
        if not (equals and tables and all(tables) and key):
            raise RecipeError(f"an override must look like fit.updates=500, but is {override!r}.")
        table: Any = sections
        for step in tables:
            table = table.setdefault(step, {})
            if not isinstance(table, dict):
                raise RecipeError(f"{override!r} must name a section, but {step} is a single value.")
        table[key] = _value(value)
    return sections


def _read(path: Path, above: tuple[Path, ...] = ()) -> dict[str, dict[str, Any]]:
    """The sections of `path` over those of its base; `above` are the recipes that it is a base of."""
    try:
        sections: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"a recipe must be at {path}, but there is no file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} must be TOML, but is not: {error}.") from error
    base = sections.pop("base", None)
    if base is None:
        return sections
    if not isinstance(base, str) or Path(base).name != base:
        raise RecipeError(f"base in {path} must name a recipe of the same folder, but is {base!r}.")
    if path in above:
        raise RecipeError(f"a recipe must not be its own base, but {path} is.")
    return _over(_read(path.with_name(base), (*above, path)), sections)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Tables of tables, `above` where both have a value."""
    both = {
        name: _over(below[name], above[name]) for name in below.keys() & above.keys() if _tables(below, above, name)
    }
    return {**below, **above, **both}


def _tables(below: dict[str, Any], above: dict[str, Any], name: str) -> bool:
    return isinstance(below[name], dict) and isinstance(above[name], dict)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def section(kind: type[Section], name: str, values: Mapping[str, Any]) -> Section:
    """`values` as a `kind`, refusing unknown keys, missing keys and wrong types by name."""
    if not isinstance(values, Mapping):
        raise RecipeError(f"[{name}] must be a section of values, but is {values!r}.")
    hints = get_type_hints(kind)
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(known)):
        raise RecipeError(f"[{name}] has no {', '.join(unknown)}; it has {', '.join(known)}.")
    missing = [key for key, field in known.items() if field.default is dataclasses.MISSING and key not in values]
    if missing:
        raise RecipeError(f"[{name}] must say {', '.join(missing)}.")
    return kind(**{key: _checked(f"[{name}] {key}", value, hints[key]) for key, value in values.items()})


def _checked(where: str, value: Any, hint: Any) -> Any:
    if choices := get_args(hint) if not isinstance(hint, type) else ():
        if hint == tuple[str, ...]:
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                return tuple(value)
            raise RecipeError(f"{where} must be a list of strings, but is {value!r}.")
        if value not in choices:
            raise RecipeError(f"{where} must be one of {', '.join(map(str, choices))}, but is {value!r}.")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise RecipeError(f"{where} must be {hint.__name__}, but is {value!r}.")
    return value


def languages(sections: Mapping[str, Any]) -> tuple[str, str]:
    """Source and target of the section `[languages]`."""
    found = sections.get("languages", {})
    if set(found) != {"source", "target"} or not all(isinstance(code, str) for code in found.values()):
        raise RecipeError(f"[languages] must say source and target, and nothing else, but says {found}.")
    return found["source"], found["target"]


def model_config(values: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """The section `[model]`: a `preset` and the fields it changes."""
    fields = dict(values)
    return preset(fields.pop("preset", "paper-base"), vocab_size, **fields)

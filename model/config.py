"""The shape of a Transformer, frozen and checked at construction.

Letters follow "Attention Is All You Need" (Vaswani et al., 2017): d_model, d_ff, h heads, N layers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, get_args

from model.errors import ConfigError

NormOrder = Literal["post", "pre"]
Positions = Literal["interleaved", "halves", "learned", "rotary"]
Activation = Literal["relu", "gelu"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "norm_order": get_args(NormOrder),
    "positions": get_args(Positions),
    "activation": get_args(Activation),
}
_KINDS: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "true or false"),
}
_AT_LEAST_ONE = ("vocab_size", "d_model", "heads", "d_ff", "encoder_layers", "decoder_layers", "max_positions")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and choices of one encoder–decoder Transformer.

    Raises `ConfigError` when a field has another type or fields contradict each other.
    """

    vocab_size: int
    """Rows of the shared embedding, special symbols included."""
    d_model: int = 512
    """Width of every residual stream."""
    heads: int = 8
    """h; each head is d_model / heads wide."""
    d_ff: int = 2048
    """Inner width of the position-wise feed-forward."""
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float = 0.1
    """On each sub-layer's output and on the sum of embedding and position; nowhere else (section 5.4)."""
    norm_order: NormOrder = "post"
    """`post`: LayerNorm(x + Sublayer(x)), the paper. `pre`: x + Sublayer(LayerNorm(x)), and a final norm a stack."""
    positions: Positions = "interleaved"
    """Sinusoids: `interleaved` sin/cos pairs (section 3.5), or all sines then all cosines (`halves`, for imports).
    `learned`: an embedding of each position (Table 3, row E). `rotary`: none is added, but queries and keys of every
    self-attention are turned by their positions (Su et al., 2021); not in the paper."""
    activation: Activation = "relu"
    gated: bool = False
    """The feed-forward's inner layer is activation(x W_1 + b_1) ⊙ (x W_g + b_g) (Shazeer, 2020); not in the paper."""
    tie_embeddings: bool = True
    """One matrix for source embedding, target embedding and output projection (section 3.4)."""
    norm_epsilon: float = 1e-6
    max_positions: int = 1024
    """Longest sequence, source or target, in tokens."""
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    unk_id: int = 3

    def __post_init__(self) -> None:
        for field in fields(self):
            kind, words = _KINDS.get(str(field.type), (object, ""))
            value = getattr(self, field.name)
            if not isinstance(value, kind) or (isinstance(value, bool) and kind in (Integral, Real)):
                raise ConfigError(f"{field.name} must be {words}, but is {value!r}.")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, but is {getattr(self, name)}.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, but is {getattr(self, name)!r}.")
        if self.d_model % self.heads:
            raise ConfigError(f"d_model must be a multiple of heads, but {self.d_model} / {self.heads} is not whole.")
        if self.d_model % 2:
            raise ConfigError(f"d_model must be even (sinusoids come in pairs), but is {self.d_model}.")
        if self.positions == "rotary" and self.head_size % 2:
            raise ConfigError(
                f"rotary positions turn pairs of numbers, so d_model / heads must be even, but is {self.head_size}."
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout must be in [0, 1), but is {self.dropout}.")
        special = (self.pad_id, self.bos_id, self.eos_id, self.unk_id)
        if len(set(special)) != 4 or min(special) < 0 or max(special) >= self.vocab_size:
            raise ConfigError(
                f"pad, bos, eos, unk must be four different ids below vocab_size {self.vocab_size}, but are {special}."
            )

    @property
    def head_size(self) -> int:
        """d_k = d_v = d_model / h."""
        return self.d_model // self.heads

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`; an unknown or a missing field is a `ConfigError`."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"unknown model fields: {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
        if "vocab_size" not in values:
            raise ConfigError("vocab_size must be given; it has no default.")
        return cls(**values)


PRESETS: dict[str, dict[str, Any]] = {
    # Table 3 of the paper, rows "base" and "big".
    "paper-base": {},
    "paper-big": {"d_model": 1024, "heads": 16, "d_ff": 4096, "dropout": 0.3},
    # Deep encoder, shallow decoder: small enough to train on two cores and to ship.
    "small": {
        "d_model": 256,
        "heads": 4,
        "d_ff": 1024,
        "encoder_layers": 6,
        "decoder_layers": 2,
        "norm_order": "pre",
        "max_positions": 512,
    },
}


def preset(name: str, vocab_size: int, **overrides: Any) -> ModelConfig:
    """The configuration called `name`, with single fields replaced by `overrides`."""
    if name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, but is {name!r}.")
    return ModelConfig.from_dict({**PRESETS[name], **overrides, "vocab_size": vocab_size})

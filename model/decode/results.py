"""What a batcher tells its owner: the end of each sentence, and what each step did."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from model.decode.options import Hypothesis
from model.errors import DecodeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What became of one sentence."""

    key: Hashable
    hypotheses: tuple[Hypothesis, ...] = ()
    """Best first: finished ones, then truncated ones. At most n_best; none if there is an error."""
    error: DecodeError | None = None
    """Why there is no translation. Its `__cause__` is set when the network is to blame, not the source: what the
    network raised, or a FloatingPointError for a NaN or another impossible log-probability."""
    added_at: float
    """When it was added, by the batcher's clock, in seconds."""
    started_at: float
    """When its encoder first ran."""
    ended_at: float
    guarded: bool = False
    """True if the repetition guard had it decoded again."""

    @property
    def queue_seconds(self) -> float:
        """How long it waited before its encoder ran."""
        return self.started_at - self.added_at

    @property
    def decode_seconds(self) -> float:
        """From its encoder to its end."""
        return self.ended_at - self.started_at


@dataclass(slots=True)
class StepStats:
    """What one `Batcher.step` did."""

    admitted: list[Hashable] = field(default_factory=list)
    """Keys whose sentence left the queue: its encoder ran for the first time."""
    source_tokens: int = 0
    """Source tokens encoded."""
    padded_tokens: int = 0
    """The same with padding: longest × count, summed over the encoder's calls."""
    rows: int = 0
    """Sentences that took a decoder step: so many target tokens were made."""
    lanes: int = 0
    """Hypotheses that took a decoder step."""
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0
    """Decoder and search."""

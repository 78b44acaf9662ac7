"""The only types that cross a process: what an ingress sends to an engine, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from model.decode.options import DecodeOptions, Hypothesis


@dataclass(frozen=True, slots=True)
class Job:
    """One request's segments, in ids."""

    request_id: str
    segments: tuple[tuple[int, ...], ...]
    """Source ids of each segment, EOS included."""
    options: DecodeOptions
    deadline: float
    """Unix time in seconds after which an answer is of no use."""


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """What became of one segment: ids, or the code of a refusal."""

    ids: tuple[int, ...]
    """Target ids without BOS and EOS; empty when refused."""
    score: float
    truncated: bool
    """True if the length limit ended it, not EOS."""
    refusal: str | None = None
    """A stable code of `service.errors` when this segment alone failed."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """The n best, the first being what stands above; empty when refused."""
    guarded: bool = False
    """True if it went round in circles, or on and on, and was decoded again without repeats."""

    @property
    def best(self) -> Hypothesis:
        """The first hypothesis. Only of a segment that was not refused."""
        return self.hypotheses[0] if self.hypotheses else Hypothesis(self.ids, self.score, self.score, self.truncated)

    def ranked(self, rank: int) -> Hypothesis:
        """The hypothesis of `rank` (0 is the best), or the last there is."""
        return self.hypotheses[min(rank, len(self.hypotheses) - 1)] if self.hypotheses else self.best


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a `Job`, segments in its order."""

    segments: tuple[SegmentResult, ...]
    queue_seconds: float
    """Mean wait of the segments before their encoder ran."""
    inference_seconds: float
    """From the first segment's start to the last one's end."""

"""A job while the engine works on it: its segments come back one by one, the answer goes out once."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from statistics import fmean

from service.engine.loop import Segment
from service.errors import EngineFailed
from service.jobs import Result, SegmentResult


class PendingJob:
    """Collects the results of one job's segments into its answer. Times are monotonic, in seconds."""

    def __init__(self, request_id: str, segments: Sequence[Segment], answer: asyncio.Future[Result]) -> None:
        """`segments` are those of the job, at least one, in its order."""
        self.request_id = request_id
        self.answer = answer
        self.arrived = segments[0].arrived
        self.open: dict[Hashable, Segment] = {segment.key: segment for segment in segments}
        """The segments without a result yet, by key."""
        self.queued = set(self.open)
        """Keys of the segments whose encoder has not yet run."""
        self._order = tuple(self.open)
        self._results: dict[Hashable, SegmentResult] = {}
        self._spans: list[tuple[float, float]] = []

    def land(self, key: Hashable, result: SegmentResult, span: tuple[float, float] | None) -> None:
        """The segment has its result, and was in the batch over `span`. The last one completes the answer."""
        del self.open[key]
        self._results[key] = result
        if span is not None:
            self._spans.append(span)
        if not self.open and not self.answer.done():
            self._complete()

    def refuse(self, error: Exception) -> None:
        """End the job with `error`, unless it has ended."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _complete(self) -> None:
        results = tuple(self._results[key] for key in self._order)
        if all(result.refusal == EngineFailed.code for result in results):
            self.refuse(EngineFailed())
            return
        starts, ends = zip(*self._spans, strict=True) if self._spans else ((self.arrived,), (self.arrived,))
        self.answer.set_result(Result(results, fmean(starts) - self.arrived, max(ends) - min(starts)))

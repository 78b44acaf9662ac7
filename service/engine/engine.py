"""The engine of one replica: jobs in, results out, and no caller left waiting whatever happens in between."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from model.decode.batcher import Batcher, Finished
from service.engine.loop import DecodeLoop, LoopOptions, Segment, Turn, broke_network
from service.engine.pending import PendingJob
from service.engine.queue import WaitingRoom
from service.errors import DeadlineExceeded, EngineFailed, EngineUnavailable, Overloaded, TextTooLong
from service.jobs import Job, Result, SegmentResult
from service.metrics.families import EngineMetrics

_log = logging.getLogger("dragoman.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How much may wait, and how the decode loop behaves."""

    max_queued_tokens: int = 65_536
    """Source tokens that may wait for a place in the batch."""
    max_jobs: int = 256
    """Jobs that may be here at once, waiting or running."""
    loop: LoopOptions = field(default_factory=LoopOptions)


class Engine:
    """The async shell round the decode loop. All methods belong to one event loop."""

    def __init__(self, batcher: Batcher, metrics: EngineMetrics, options: EngineOptions | None = None) -> None:
        """Start the decode loop; from now on `batcher` belongs to its thread."""
        options = options or EngineOptions()
        self._metrics = metrics
        self._room = WaitingRoom(options.max_queued_tokens)
        self._max_jobs = options.max_jobs
        self._pending: set[PendingJob] = set()
        self._jobs: dict[Hashable, PendingJob] = {}  # by the keys of their open segments
        self._keys = itertools.count()
        self._events: asyncio.AbstractEventLoop | None = None
        self._loop = DecodeLoop(batcher, metrics, options.loop, self._deliver)

    async def translate(self, job: Job) -> Result:
        """Decode all segments of `job`.

        Raises `Overloaded` at once when too much waits already, `DeadlineExceeded` when the job's time runs out,
        `EngineFailed` when the job itself makes the engine raise, and `EngineUnavailable` when the loop is dead or
        hangs. Cancelling it, like the deadline, drops its segments before the next step.
        """
        remaining = job.deadline - time.time()
        if remaining <= 0:
            raise DeadlineExceeded()
        if not job.segments:
            return Result((), 0.0, 0.0)
        pending = self._accept(job)
        try:
            self.check()  # only now: a loop that dies from here on ends this job too
            async with asyncio.timeout(remaining):
                result = await pending.answer
        except TimeoutError:
            raise DeadlineExceeded() from None
        finally:
            self._pending.discard(pending)
            self._withdraw(pending)
        self._metrics.inference_seconds.observe(result.inference_seconds)
        return result

    def check(self) -> None:
        """Raise `EngineUnavailable` if the decode loop is dead or hangs."""
        if illness := self._loop.illness():
            raise EngineUnavailable(f"The engine must decode, but {illness}; try again in a moment.")

    def stop(self) -> None:
        """Refuse what is still here, and let the decode loop end after its step."""
        self._loop.stop()
        self._refuse_all()

    def _accept(self, job: Job) -> PendingJob:
        self._events = asyncio.get_running_loop()
        try:
            if len(self._pending) >= self._max_jobs:
                raise Overloaded(f"At most {self._max_jobs} requests may be here at once. Try again in a moment.")
            self._room.enter([len(source) for source in job.segments])
        except Overloaded:
            self._metrics.overloaded.inc()
            raise
        now = time.monotonic()
        segments = [Segment(next(self._keys), source, job.options, now) for source in job.segments]
        pending = PendingJob(job.request_id, segments, self._events.create_future())
        self._pending.add(pending)
        self._jobs.update(dict.fromkeys(pending.open, pending))
        self._report_queue()
        self._loop.submit(segments)
        return pending

    def _withdraw(self, pending: PendingJob) -> None:
        """Forget what is left of a job; nothing is left of one that was answered."""
        keys = [key for key in pending.open if self._jobs.pop(key, None)]
        for key in keys:
            self._leave_queue(pending, key)
        if keys:
            self._metrics.abandoned.inc(len(keys))
            self._report_queue()
            self._loop.withdraw(keys)

    def _deliver(self, turn: Turn | None) -> None:
        # In the decode loop's thread; without an event loop nothing was ever submitted.
        events = self._events
        if events is not None and not events.is_closed():
            events.call_soon_threadsafe(self._settle, turn)

    def _settle(self, turn: Turn | None) -> None:
        if turn is None:
            self._refuse_all()
            return
        for key in turn.admitted:
            # Some are gone: their caller left while the step ran.
            if (pending := self._jobs.get(key)) is not None and self._leave_queue(pending, key):
                self._metrics.queue_seconds.observe(turn.began - pending.arrived)
        for finished in turn.finished:
            self._land(finished.key, self._result(finished), (finished.started_at, finished.ended_at))
        for key in turn.refused:
            self._land(key, _refusal(TextTooLong.code), None)
        self._report_queue()

    def _leave_queue(self, pending: PendingJob, key: Hashable) -> bool:
        """True if the segment was waiting."""
        if key not in pending.queued:
            return False
        pending.queued.remove(key)
        self._room.leave(len(pending.open[key].source))
        return True

    def _land(self, key: Hashable, result: SegmentResult, span: tuple[float, float] | None) -> None:
        pending = self._jobs.pop(key, None)
        if pending is None:
            return
        self._leave_queue(pending, key)
        if span is not None:
            self._metrics.decode_seconds.observe(span[1] - span[0])
        if result.refusal is not None:
            fields = {"request_id": pending.request_id, "code": result.refusal}
            _log.error("segment refused", extra={"fields": fields})
        pending.land(key, result, span)

    def _result(self, finished: Finished) -> SegmentResult:
        if broke_network(finished):
            _log.error("the network raised", exc_info=finished.error)
            return _refusal(EngineFailed.code)
        if finished.error is not None:
            return _refusal(TextTooLong.code)
        best = finished.hypotheses[0]
        if best.truncated:
            self._metrics.truncated.inc()
        if finished.guarded:
            self._metrics.guarded.inc()
        return SegmentResult(
            best.ids, best.score, best.truncated, hypotheses=finished.hypotheses, guarded=finished.guarded
        )

    def _refuse_all(self) -> None:
        """Nobody waits for a loop that has ended."""
        for pending in self._pending:
            pending.refuse(EngineUnavailable())

    def _report_queue(self) -> None:
        self._metrics.queue_length.set(self._room.segments)
        self._metrics.queue_tokens.set(self._room.tokens)


def _refusal(code: str) -> SegmentResult:
    return SegmentResult((), 0.0, False, code)

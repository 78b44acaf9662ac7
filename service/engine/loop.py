"""The thread that owns the batcher: it takes orders, steps while there is work, and tells what became of each segment.

A thread of its own, rather than a call to an executor for each step, never waits for the event loop between two
steps, and does not keep the process from ending when a step hangs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from model.decode.batcher import Batcher, Finished
from model.decode.options import DecodeOptions
from model.errors import DecodeError
from service.metrics.families import EngineMetrics

_log = logging.getLogger("dragoman.engine")


@dataclass(frozen=True, slots=True)
class Segment:
    """One sentence on its way through the batcher."""

    key: int
    source: tuple[int, ...]
    options: DecodeOptions
    arrived: float
    """Monotonic time in seconds."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of the loop changed."""

    began: float
    """Monotonic time in seconds."""
    admitted: tuple[Hashable, ...] = ()
    """Keys whose encoder ran for the first time."""
    finished: tuple[Finished, ...] = ()
    refused: tuple[Hashable, ...] = ()
    """Keys that the batcher would not take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopOptions:
    """How the loop behaves."""

    stall_seconds: float = 30.0
    """A turn that takes longer counts as hung."""
    batch_wait_seconds: float = 0.0
    """How long an idle loop waits for company before it starts."""
    max_failures: int = 8
    """So many segments in a row may make the network raise; then the network is broken, not they."""


class NetworkBrokenError(RuntimeError):
    """One segment after the other makes the network raise."""


def broke_network(finished: Finished) -> bool:
    """True if the network raised on this segment, false if all is well or the segment was not fit to be decoded."""
    return finished.error is not None and finished.error.__cause__ is not None


class DecodeLoop:
    """Drives a `Batcher` from a thread of its own. Its public methods may be called from any thread."""

    def __init__(
        self, batcher: Batcher, metrics: EngineMetrics, options: LoopOptions, deliver: Callable[[Turn | None], None]
    ) -> None:
        """`deliver` is called in the loop's thread: with each turn that changed something, and with None at the end."""
        self._batcher = batcher
        self._metrics = metrics
        self._options = options
        self._deliver = deliver
        self._orders: deque[Segment | Hashable] = deque()  # a segment to add, or a key to cancel
        self._ordered = threading.Condition()
        self._stopping = False
        self._died: BaseException | None = None
        self._failures = 0
        self._working_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)
        self._thread.start()

    def submit(self, segments: Iterable[Segment]) -> None:
        """Give the loop more to do."""
        self._order(segments)

    def withdraw(self, keys: Iterable[Hashable]) -> None:
        """Drop these segments before the next step, wherever they are; unknown keys are ignored."""
        self._order(keys)

    def stop(self) -> None:
        """Let the loop end after its step; does not wait for it."""
        with self._ordered:
            self._stopping = True
            self._ordered.notify()

    def illness(self) -> str | None:
        """Why the loop does not work as it should, or None if it does."""
        if self._died is not None:
            return f"its loop ended with {type(self._died).__name__}"
        if self._stopping or not self._thread.is_alive():
            return "its loop has stopped"
        since = self._working_since
        if since is not None and (taken := time.monotonic() - since) > self._options.stall_seconds:
            return f"one step has taken {taken:.1f} s so far"
        return None

    def _order(self, orders: Iterable[Segment | Hashable]) -> None:
        with self._ordered:
            self._orders.extend(orders)
            self._ordered.notify()

    def _run(self) -> None:
        try:
            while (orders := self._next_orders()) is not None:
                self._working_since = time.monotonic()
                self._turn(orders, self._working_since)
                self._working_since = None
        except BaseException as error:  # noqa: BLE001  whatever ends the loop must be known, and nobody wait for it
            self._died = error
            _log.exception("decode loop died")
        finally:
            self._deliver(None)

    def _next_orders(self) -> Iterable[Segment | Hashable] | None:
        """What was ordered since the last turn; waits while there is nothing to do; None when the loop must stop."""
        with self._ordered:
            if self._batcher.idle:
                self._ordered.wait_for(lambda: self._orders or self._stopping)
                if self._options.batch_wait_seconds > 0.0:
                    self._ordered.wait_for(lambda: self._stopping, self._options.batch_wait_seconds)
            orders, self._orders = self._orders, deque()
            return None if self._stopping else orders

    def _turn(self, orders: Iterable[Segment | Hashable], began: float) -> None:
        refused = self._obey(orders)
        finished = tuple(self._batcher.step())
        stats = self._batcher.stats
        self._measure()
        if finished or stats.admitted or refused:
            self._deliver(Turn(began, tuple(stats.admitted), finished, refused))
        self._count_failures(finished)

    def _obey(self, orders: Iterable[Segment | Hashable]) -> tuple[Hashable, ...]:
        """Carry out orders; the keys of the segments that the batcher would not take."""
        refused = []
        for order in orders:
            if not isinstance(order, Segment):
                self._batcher.cancel(order)
                continue
            try:
                self._batcher.add(order.key, order.source, order.options)
            except DecodeError:
                refused.append(order.key)
        return tuple(refused)

    def _measure(self) -> None:
        stats = self._batcher.stats
        if stats.source_tokens:
            self._metrics.encode_seconds.observe(stats.encode_seconds)
            self._metrics.padding_ratio.observe(1.0 - stats.source_tokens / stats.padded_tokens)
        if stats.rows:
            self._metrics.step_seconds.observe(stats.decode_seconds)
            self._metrics.batch_rows.observe(stats.rows)
        self._metrics.batch_rows_active.set(self._batcher.running)

    def _count_failures(self, finished: Iterable[Finished]) -> None:
        for each in finished:
            if not broke_network(each):
                self._failures = 0
                continue
            self._failures += 1
            self._metrics.network_failures.inc()
            if self._failures >= self._options.max_failures:
                raise NetworkBrokenError(f"the network must decode, but raised on {self._failures} segments in a row.")

"""One job, one answer: the handle call to an engine deployment, tried again elsewhere when a replica dies under it."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.exceptions import OutOfMemoryError, RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError

from service.errors import DeadlineExceeded, EngineFailed, EngineUnavailable, Overloaded, Refusal
from service.jobs import Job, Result

_log = logging.getLogger("dragoman.ingress")


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """When to ask again."""

    attempts: int = 3
    """Calls for one job, the first one included."""
    pause: tuple[float, float] = (0.02, 0.08)
    """Shortest and longest pause before the next call, in seconds; drawn evenly, lest callers fall in step."""
    poison_limit: int = 2
    """A job is given up when this many replicas ran out of memory under it: it may be the cause."""


class EngineCalls:
    """Sends jobs to one engine deployment.

    A dead replica is nobody's answer: translation has no side effects, so the job goes to another one. What an engine
    says itself (a refusal) is the answer; only after "this replica is ill" another one is asked.
    """

    def __init__(self, handle: Any, options: RetryOptions, on_retry: Callable[[], None]) -> None:
        """`handle` is the deployment's; `on_retry` is told of each further call."""
        self._handle = handle
        self._options = options
        self._on_retry = on_retry

    async def translate(self, job: Job) -> Result:
        """The result of `job`, before its deadline. Raises a `Refusal`; cancelling it cancels the engine's work."""
        out_of_memory = 0
        for attempt in range(1, self._options.attempts + 1):
            try:
                return await self._attempt(job, attempt)
            except OutOfMemoryError as error:
                out_of_memory += 1
                if out_of_memory >= self._options.poison_limit:
                    raise EngineUnavailable() from error
                reason: Exception = error
            except (RayActorError, ReplicaUnavailableError, EngineUnavailable) as error:
                reason = error
            except TimeoutError as error:
                if time.time() >= job.deadline:
                    raise DeadlineExceeded() from error
                reason = error
            except BackPressureError as error:
                raise Overloaded() from error
            except DeploymentUnavailableError as error:
                raise EngineUnavailable() from error
            self._note(job, attempt, reason)
            if attempt < self._options.attempts:
                await asyncio.sleep(random.uniform(*self._options.pause))
        raise EngineUnavailable()

    async def _attempt(self, job: Job, attempt: int) -> Result:
        response = self._handle.translate.remote(job)
        try:
            async with asyncio.timeout(self._patience(job, attempt)):
                answer = await response
        except (TimeoutError, asyncio.CancelledError):
            response.cancel()
            raise
        if isinstance(answer, Refusal):
            raise answer
        if not isinstance(answer, Result):
            raise EngineFailed()
        return answer

    def _patience(self, job: Job, attempt: int) -> float:
        """Seconds to wait for this call.

        An engine keeps the deadline by itself, so the first call may take all the time there is: to ask twice because
        the engines are slow would only make them slower. After a death the router may still know the dead replica, and
        such a call can hang; then it is worth half of what is left.
        """
        left = max(0.0, job.deadline - time.time())
        return left if attempt in (1, self._options.attempts) else left / 2

    def _note(self, job: Job, attempt: int, reason: Exception) -> None:
        fields = {"request_id": job.request_id, "attempt": attempt, "reason": type(reason).__name__}
        _log.warning("engine replica went away", extra={"fields": fields})
        if attempt < self._options.attempts:
            self._on_retry()

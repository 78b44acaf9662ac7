"""The bounded queue's bookkeeping: how much waits, and whether one more job may."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import Overloaded


class WaitingRoom:
    """Counts the waiting segments and their source tokens against a limit. Not thread-safe."""

    def __init__(self, max_tokens: int) -> None:
        """Let at most `max_tokens` source tokens wait."""
        self._max_tokens = max_tokens
        self.segments = 0
        self.tokens = 0

    def enter(self, lengths: Sequence[int]) -> None:
        """Let a job with segments of these `lengths` (tokens) wait. Raises `Overloaded` if it does not fit.

        An empty room takes a job of any size: it would never fit otherwise.
        """
        tokens = sum(lengths)
        if self.segments and self.tokens + tokens > self._max_tokens:
            raise Overloaded(
                f"At most {self._max_tokens} source tokens may wait here; {self.tokens} do, and this request has "
                f"{tokens}. Try again in a moment."
            )
        self.segments += len(lengths)
        self.tokens += tokens

    def leave(self, length: int) -> None:
        """One segment of `length` tokens waits no longer."""
        self.segments -= 1
        self.tokens -= length

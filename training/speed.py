"""How fast a run is just now."""

from __future__ import annotations

import time
from collections import deque

from training.trainer import UpdateReport


class Speed:
    """Target tokens and operations a second over the last updates."""

    def __init__(self) -> None:
        self._rates = (0.0, 0.0)
        self.restart()

    def restart(self) -> None:
        """Forget what went before, such as a validation."""
        self._marks: deque[tuple[float, int, float]] = deque([(time.monotonic(), 0, 0.0)], maxlen=50)

    def count(self, report: UpdateReport) -> None:
        """One update more, just now."""
        self._marks.append((time.monotonic(), report.tokens, report.flops))
        seconds = self._marks[-1][0] - self._marks[0][0]
        if seconds > 0:
            _, tokens, flops = zip(*list(self._marks)[1:], strict=True)
            self._rates = sum(tokens) / seconds, sum(flops) / seconds

    def values(self, peak: float) -> dict[str, float]:
        """For the log; with the utilisation if the `peak` of all devices together is known."""
        tokens, flops = self._rates
        return {"tokens_per_second": round(tokens), **({"mfu": round(flops / peak, 4)} if peak else {})}

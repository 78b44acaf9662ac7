"""What several system tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.running_service import RunningService


@pytest.fixture(scope="module")
def served() -> Iterator[RunningService]:
    """The service as it ships, with the bundled model."""
    running = RunningService()
    yield running
    running.kill()

"""/docs in a real browser: it renders from our own address alone, with no other host to ask."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.system.running_service import RunningService

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=10000"
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")]


def test_the_page_shows_every_route_field_and_error(served: RunningService, tmp_path: Path) -> None:
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={tmp_path}", "--dump-dom", f"{served.url}/docs"]
    page = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    for route in ("/v1/translate", "/v1/languages", "/v1/models", "/healthz", "/readyz", "/metrics"):
        assert route in page
    assert "Loading" not in page
    for shown in (
        "length_penalty",
        "SamplingRequest",
        "top_p",
        "AlternativeText",
        "<option",
        ">Send<",
        "unsupported_language",
        "deadline_exceeded",
    ):
        assert shown in page

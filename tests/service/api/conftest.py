"""A backend that answers in capitals, and a caller that needs no server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from service.api.application import build_api
from service.api.ports import (
    Alternative,
    ModelInfo,
    ReadyReport,
    TextScores,
    TranslateAnswer,
    TranslateCommand,
    Translation,
)
from service.errors import Refusal
from service.languages import Pair
from service.settings import Settings


class CapitalsBackend:
    """Translates into capitals; its attributes say how it misbehaves."""

    def __init__(self) -> None:
        self.commands: list[TranslateCommand] = []
        self.error: BaseException | None = None
        self.delay = 0.0
        self.cancelled = 0
        self.report = ReadyReport({"en-de": None})

    async def translate(self, command: TranslateCommand) -> TranslateAnswer:
        self.commands.append(command)
        try:
            await asyncio.sleep(self.delay)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error:
            raise self.error
        return TranslateAnswer(
            model="en-de",
            translations=tuple(self._one(text, command) for text in command.texts),
            source_tokens=3,
            target_tokens=5,
            queue_seconds=0.001,
            inference_seconds=0.002,
        )

    def _one(self, text: str, command: TranslateCommand) -> Translation | Refusal:
        from service.errors import TextTooLong

        if text == "spoilt":
            return TextTooLong()
        ranks = range(command.n_best or 0)
        links = tuple((i, i + 1, i, i + 1) for i in range(len(text.strip()))) if command.alignment else None
        return Translation(
            text.upper(),
            truncated=text == "cut",
            repetition_guard=command.repetition_guard and text == "la la la",
            alternatives=tuple(Alternative(text.upper() + "!" * rank, -1.0 - rank, links) for rank in ranks),
            scores=TextScores(-0.5, -1.0, (("▁A", -0.75), ("</s>", -0.25))) if command.return_scores else None,
            alignment=links,
        )

    def pairs(self) -> tuple[Pair, ...]:
        return (Pair("en", "de"), Pair("fr", "de"), Pair("fr", "en"))

    def models(self) -> tuple[ModelInfo, ...]:
        return (
            ModelInfo(
                name="en-de",
                version="1",
                pairs=(Pair("en", "de"),),
                precision="int8",
                provider="CPUExecutionProvider",
                operators="stock",
                defaults={"beam_size": 4},
            ),
        )

    async def ready(self) -> ReadyReport:
        await asyncio.sleep(self.delay)
        return self.report

    async def render_metrics(self) -> str:
        return "# TYPE up gauge\nup 1\n"


class ListRecorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.in_flight: dict[str, int] = {}
        self.finished: list[dict[str, Any]] = []

    def http_started(self, endpoint: str) -> None:
        self.in_flight[endpoint] = self.in_flight.get(endpoint, 0) + 1

    def http_finished(self, **labels: Any) -> None:
        self.in_flight[labels["endpoint"]] -= 1
        self.finished.append(labels)


@pytest.fixture
def backend() -> CapitalsBackend:
    return CapitalsBackend()


@pytest.fixture
def recorder() -> ListRecorder:
    return ListRecorder()


@pytest.fixture
def settings() -> Settings:
    return Settings(max_texts=4, max_text_characters=100, max_body_bytes=2000, request_timeout_s=10)


Call = Callable[..., httpx.Response]


@pytest.fixture
def call(backend: CapitalsBackend, recorder: ListRecorder, settings: Settings) -> Call:
    """`call(method, path, **httpx options)`, answered by the application in this process."""
    api = build_api(backend, settings, recorder)

    async def send(method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=api)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    return lambda method, path, **options: asyncio.run(send(method, path, **options))


@pytest.fixture
def post(call: Call) -> Call:
    """`post(fields)`: a POST of a JSON object to /v1/translate, from English into German unless it says otherwise."""

    def send(fields: dict[str, Any]) -> httpx.Response:
        return call("POST", "/v1/translate", json={"source": "en", "target": "de", **fields})

    return send


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        from service.logs import JsonFormatter

        self.setFormatter(JsonFormatter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """Every line that our loggers write during the test, as JSON."""
    handler, logger = _Lines(), logging.getLogger("dragoman")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)

from __future__ import annotations

import io
import json
import logging

import pytest

from service.logs import JsonFormatter, configure


@pytest.fixture
def written() -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("dragoman.test")
    logger.addHandler(handler)
    return logger, stream


def test_a_line_is_one_json_object_with_its_fields(written):
    logger, stream = written
    logger.warning("queue\nfull", extra={"fields": {"request_id": "r1", "waiting": 7, "path": object}})
    line = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert line["time"].endswith("+00:00")
    assert (line["level"], line["logger"], line["message"]) == ("warning", "dragoman.test", "queue\nfull")
    assert (line["request_id"], line["waiting"]) == ("r1", 7)


def test_an_exception_leaves_its_type_and_place_but_never_its_message(written):
    logger, stream = written
    try:
        try:
            raise ValueError("a secret text")
        except ValueError as error:
            raise RuntimeError("about a secret text") from error
    except RuntimeError:
        logger.exception("failed")
    told = json.loads(stream.getvalue())["exception"]
    first, second = told.split("\n\n")
    assert first.endswith("builtins.ValueError")
    assert second.endswith("builtins.RuntimeError")
    assert "test_logs.py" in first
    assert "secret" not in stream.getvalue()


@pytest.mark.parametrize(
    ("name", "speaks"), [("dragoman.engine", True), ("model.runtime.sessions", True), ("dragoman.engineer", False)]
)
def test_where_no_text_enters_an_exception_may_speak(name, speaks):
    record = logging.LogRecord(
        name, logging.ERROR, "", 0, "failed", None, (ValueError, ValueError("id 7 is odd"), None)
    )
    assert ("id 7 is odd" in JsonFormatter().format(record)) == speaks


def test_configuring_again_replaces_and_does_not_add():
    logger = logging.getLogger("dragoman")
    before = logger.handlers[:], logger.level, logger.propagate
    try:
        configure("info")
        configure("error")
        assert len(logger.handlers) == 1
        assert logger.level == logging.ERROR
    finally:
        logger.handlers, logger.level, logger.propagate = before[0], before[1], before[2]

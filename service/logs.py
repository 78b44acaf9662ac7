"""Log lines as JSON, one object a line. Facts go into `extra={"fields": {…}}`; no line ever holds a text to translate.

Of an exception, a line tells the types and the places in the code, but the messages only where they cannot quote a
text: the engine and the runtime see nothing but ids.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime

_OURS = ("dragoman", "model")
"""Loggers whose lines are written; other libraries keep their own ways."""

_TEXTLESS = ("dragoman.engine", "model")
"""Loggers of rooms that no text enters."""


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, then the fields of `extra`, then what an exception was and where."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1]:
            textless = any(record.name == name or record.name.startswith(f"{name}.") for name in _TEXTLESS)
            line["exception"] = describe(record.exc_info[1], with_messages=textless)
        return json.dumps(line, ensure_ascii=False, default=str)


def describe(error: BaseException, with_messages: bool) -> str:
    """`error` and what led to it, the first cause first: the places in the code, and under them the type."""
    told = []
    for link in reversed(list(_chain(error))):
        places = [f"{place.filename}:{place.lineno} {place.name}" for place in traceback.extract_tb(link.__traceback__)]
        message = f": {link}" if with_messages else ""
        told.append("\n".join([*places, f"{type(link).__module__}.{type(link).__qualname__}{message}"]))
    return "\n\n".join(told)


def configure(level: str) -> None:
    """Send our log lines to standard error as JSON. Calling it again replaces what it did before."""
    for name in _OURS:
        logger = logging.getLogger(name)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

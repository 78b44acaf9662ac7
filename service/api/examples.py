"""What /docs shows beside the schemas: an example of each request, answer and error."""

from __future__ import annotations

from typing import Any

from service.api.errors import STATUS
from service.api.schemas import ErrorBody, TranslateRequest
from service.errors import REFUSALS

_REQUESTS = {
    "one text": {"text": "The file could not be opened.", "source": "en", "target": "de"},
    "many texts": {"text": ["Good morning.", "See you soon!"], "source": "en", "target": "de"},
    "lines": {"text": "Dear all,\n\nthe meeting starts at 10.\n", "source": "en", "target": "de"},
    "greedy search": {"text": "Good morning.", "source": "en", "target": "de", "beam_size": 1},
    "alternatives with scores": {
        "text": "Good morning.",
        "source": "en",
        "target": "de",
        "n_best": 3,
        "return_scores": True,
    },
    "carry on": {"text": "The file could not be opened.", "source": "en", "target": "de", "prefix": "Leider"},
    "alignment": {"text": "The file could not be opened.", "source": "en", "target": "de", "alignment": True},
    "samples": {
        "text": "Good morning.",
        "source": "en",
        "target": "de",
        "sampling": {"temperature": 0.8, "top_p": 0.9, "seed": 7},
    },
}


def _in_place(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with its definitions where they are used: inside a larger document its own references lead nowhere."""
    parts = schema.pop("$defs", {})

    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return placed(parts[value["$ref"].rsplit("/", maxsplit=1)[-1]])
        return {name: placed(item) for name, item in value.items()}

    inlined: dict[str, Any] = placed(schema)
    return inlined


REQUEST_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": _in_place(TranslateRequest.model_json_schema()),
                "examples": {name: {"value": value} for name, value in _REQUESTS.items()},
            }
        },
    }
}
"""The body of POST /v1/translate."""


_ANSWER = {
    "model": "en-de",
    "translations": [
        {"text": "Guten Morgen.", "source": "en", "target": "de", "truncated": False},
        {"error": {"code": "text_too_long", "message": REFUSALS["text_too_long"].usual, "field": "text[1]"}},
    ],
    "usage": {"characters": 13, "source_tokens": 4, "target_tokens": 4},
    "timing_ms": {"queue": 0.4, "inference": 21.7, "total": 24.3},
}


def _example(code: str) -> dict[str, Any]:
    error = {"code": code, "message": REFUSALS[code].usual, "field": None, "request_id": "4f1c9a0d"}
    return {"summary": code, "value": {"error": error}}


def _responses() -> dict[int | str, dict[str, Any]]:
    ours: dict[int, list[str]] = {}
    for code, status in STATUS.items():
        if code not in ("refused", "unavailable", "not_found", "method_not_allowed", "cancelled"):
            ours.setdefault(status, []).append(code)
    errors: dict[int | str, dict[str, Any]] = {
        status: {
            "model": ErrorBody,
            "description": ", ".join(codes),
            "content": {"application/json": {"examples": {code: _example(code) for code in codes}}},
        }
        for status, codes in sorted(ours.items())
    }
    return {200: {"description": "In the order of the texts.", "content": _json(_ANSWER)}, **errors}


def _json(example: Any) -> dict[str, Any]:
    return {"application/json": {"example": example}}


RESPONSES = _responses()
"""The answer and every error of POST /v1/translate, by status."""

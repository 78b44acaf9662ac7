"""The one table from refusals to HTTP, and the one JSON shape in which they travel."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from service.errors import InternalFault, InvalidRequest, MethodNotAllowed, Refusal, UnknownPath

STATUS: Mapping[str, int] = {
    "refused": 400,
    "invalid_request": 422,
    "invalid_json": 400,
    "unsupported_media_type": 415,
    "body_too_large": 413,
    "body_too_slow": 408,
    "headers_too_large": 431,
    "headers_too_slow": 408,
    "invalid_http": 400,
    "not_found": 404,
    "method_not_allowed": 405,
    "unsupported_language": 422,
    "unsupported_pair": 422,
    "too_many_texts": 422,
    "unsupported_option": 422,
    "text_too_long": 422,
    "invalid_text": 422,
    "unavailable": 503,
    "overloaded": 429,
    "not_ready": 503,
    "engine_unavailable": 503,
    "deadline_exceeded": 504,
    "cancelled": 499,
    "internal_error": 500,
    "engine_failed": 500,
}
"""The HTTP status of each code in `service.errors`."""

_RETRY_LATER = {429, 503}


class Json(JSONResponse):
    """A JSON response in UTF-8. A lone surrogate that a caller sent us leaves as `?`, for UTF-8 has none."""

    def render(self, content: Any) -> bytes:
        """The bytes of `content`."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")


def error_object(refusal: Refusal, request_id: str | None = None) -> dict[str, Any]:
    """`{"code", "message", "field"}`, with `details` where there are some and `request_id` where one is given."""
    body: dict[str, Any] = {"code": refusal.code, "message": refusal.message, "field": refusal.field}
    if refusal.details:
        body["details"] = refusal.details
    if request_id is not None:
        body["request_id"] = request_id
    return body


def error_response(refusal: Refusal, request_id: str, retry_after_s: float = 1.0) -> Json:
    """The response that says `refusal`; 429 and 503 carry `Retry-After` in whole seconds."""
    status = STATUS[refusal.code]
    headers = {"Retry-After": str(max(1, math.ceil(retry_after_s)))} if status in _RETRY_LATER else {}
    return Json({"error": error_object(refusal, request_id)}, status, headers)


def from_http(error: HTTPException) -> Refusal:
    """What the framework's own exceptions mean in our codes."""
    if error.status_code == 404:
        return UnknownPath()
    if error.status_code == 405:
        return MethodNotAllowed(details={"allowed": (error.headers or {}).get("Allow", "").split(", ")})
    return InvalidRequest() if error.status_code < 500 else InternalFault()

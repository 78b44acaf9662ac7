"""The errors of the service: settings that cannot work, and refusals with stable codes. No HTTP here.

    ServiceError
    ├── SettingsError                     the service cannot start as configured
    └── Refusal                           a request, or one text of it, is not answered
        ├── InvalidRequest                invalid_request: the caller must change it
        │   ├── MalformedJson             invalid_json
        │   ├── UnsupportedMediaType      unsupported_media_type
        │   ├── BodyTooLarge              body_too_large
        │   ├── BodyTooSlow               body_too_slow: it was still on its way when the request's time ran out
        │   ├── HeadersTooLarge           headers_too_large
        │   ├── HeadersTooSlow            headers_too_slow: they were not complete in time
        │   ├── MalformedHttp             invalid_http
        │   ├── UnknownPath               not_found
        │   ├── MethodNotAllowed          method_not_allowed
        │   ├── UnsupportedLanguage       unsupported_language: `details` lists what there is
        │   ├── UnsupportedPair           unsupported_pair: `details` lists what there is
        │   ├── TooManyTexts              too_many_texts
        │   ├── UnsupportedOption         unsupported_option: the model cannot do what is asked
        │   ├── TextTooLong               text_too_long
        │   └── InvalidText               invalid_text: not Unicode text (a lone surrogate)
        ├── Unavailable                   unavailable: the same request may work later
        │   ├── Overloaded                overloaded: the queue is full
        │   ├── NotReady                  not_ready: starting, stopping, or unhealthy
        │   ├── EngineUnavailable         engine_unavailable: the engine went away, and so did the retries
        │   ├── DeadlineExceeded          deadline_exceeded
        │   └── Cancelled                 cancelled: the caller left
        └── InternalFault                 internal_error: our side broke
            └── EngineFailed              engine_failed: the engine raised on this request

A refusal travels between processes by pickle, and as its code alone inside a `SegmentResult`; `refusal_of` turns a
code back into its class. Messages are written for the caller and never hold the text to translate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class ServiceError(Exception):
    """Base of every error this package raises on purpose."""


class SettingsError(ServiceError):
    """The service cannot start as configured."""


class Refusal(ServiceError):  # noqa: N818  (it is an answer, not a fault)
    """A request, or one text of it, is not answered. Subclasses give the code and a usual message."""

    code: ClassVar[str] = "refused"
    usual: ClassVar[str] = "The request was refused."

    def __init__(self, message: str = "", field: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        """Hold `message` for the caller, the `field` at fault, and `details` that help to mend it (JSON values)."""
        super().__init__(message, field, details)  # all of them in args: this is what pickle calls the class with
        self.message = message or self.usual
        self.field = field
        self.details = dict(details or {})

    def __str__(self) -> str:
        return self.message


class InvalidRequest(Refusal):
    """The caller must change the request."""

    code = "invalid_request"
    usual = "The request is not valid."


class MalformedJson(InvalidRequest):
    """The body is not JSON."""

    code = "invalid_json"
    usual = "The body must be one JSON object in UTF-8."


class UnsupportedMediaType(InvalidRequest):
    """The body is of another type than JSON."""

    code = "unsupported_media_type"
    usual = "The body must be JSON; send Content-Type: application/json."


class BodyTooLarge(InvalidRequest):
    """The body has more bytes than are accepted."""

    code = "body_too_large"
    usual = "The body is too large; send fewer texts at a time."


class BodyTooSlow(InvalidRequest):
    """The body had not arrived when the request's time ran out."""

    code = "body_too_slow"
    usual = "The body did not arrive in time; send less at a time, or all of it at once."


class HeadersTooLarge(InvalidRequest):
    """The header fields have more bytes than are accepted."""

    code = "headers_too_large"
    usual = "The header fields are too large; send fewer or shorter ones."


class HeadersTooSlow(InvalidRequest):
    """The header fields were not complete in time."""

    code = "headers_too_slow"
    usual = "The header fields did not arrive in time; send all of them at once."


class MalformedHttp(InvalidRequest):
    """What came is no HTTP."""

    code = "invalid_http"
    usual = "The request must be HTTP/1.1, but is not."


class UnknownPath(InvalidRequest):
    """There is nothing at this path."""

    code = "not_found"
    usual = "There is nothing at this path; /docs lists what there is."


class MethodNotAllowed(InvalidRequest):
    """The path exists, but not for this method."""

    code = "method_not_allowed"
    usual = "This path does not take this method."


class UnsupportedLanguage(InvalidRequest):
    """No model reads, or none writes, this language."""

    code = "unsupported_language"
    usual = "This language is not supported."


class UnsupportedPair(InvalidRequest):
    """Both languages exist, but no model goes from the one to the other."""

    code = "unsupported_pair"
    usual = "This language pair is not supported."


class TooManyTexts(InvalidRequest):
    """The array holds more texts than are accepted."""

    code = "too_many_texts"
    usual = "There are too many texts; send fewer at a time."


class UnsupportedOption(InvalidRequest):
    """The model that would translate cannot do what an option asks."""

    code = "unsupported_option"
    usual = "The model cannot do what this option asks."


class TextTooLong(InvalidRequest):
    """One text has more characters than are accepted, or a segment cannot be cut small enough."""

    code = "text_too_long"
    usual = "The text is too long; send it in parts."


class InvalidText(InvalidRequest):
    """One text is not Unicode text."""

    code = "invalid_text"
    usual = "The text must be valid Unicode, without lone surrogates."


class Unavailable(Refusal):
    """The same request may work later."""

    code = "unavailable"
    usual = "The service cannot answer now; try again later."


class Overloaded(Unavailable):
    """The queue is full."""

    code = "overloaded"
    usual = "The service is busy; try again in a moment."


class NotReady(Unavailable):
    """The service is starting, stopping, or unhealthy."""

    code = "not_ready"
    usual = "The service is not ready; try again in a moment."


class EngineUnavailable(Unavailable):
    """The engine went away during the request, and so did those that were asked instead."""

    code = "engine_unavailable"
    usual = "The translation engine went away; try again in a moment."


class DeadlineExceeded(Unavailable):
    """The request's time ran out."""

    code = "deadline_exceeded"
    usual = "The translation took longer than a request may; send less text, or try again later."


class Cancelled(Unavailable):
    """The caller left before the answer was there."""

    code = "cancelled"
    usual = "The request was cancelled."


class InternalFault(Refusal):
    """Something broke on our side; the log has the rest under the request id."""

    code = "internal_error"
    usual = "The service failed on this request; its log holds the reason under this request id."


class EngineFailed(InternalFault):
    """The engine raised on this request."""

    code = "engine_failed"
    usual = "The translation engine failed on this request; its log holds the reason under this request id."


def _family(kind: type[Refusal]) -> Iterator[type[Refusal]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _family(child)


REFUSALS: Mapping[str, type[Refusal]] = {kind.code: kind for kind in _family(Refusal)}
"""Every refusal by its code."""


def refusal_of(code: str, field: str | None = None) -> Refusal:
    """The refusal with this code and its usual message; an unknown code is an `InternalFault`."""
    return REFUSALS.get(code, InternalFault)(field=field)

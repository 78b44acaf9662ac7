"""The JSON of the native API: requests, answers, errors; what /openapi.json shows is made of these.

Messages name the field, what must hold and the type that was found, never a value of `text`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from model.decode.options import MAX_BEAM_SIZE, DecodeOptions
from model.errors import DecodeError
from service.api.body import json_type
from service.errors import InvalidRequest

_TEXT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class TranslateRequest(_Schema):
    """What to translate, and between which languages."""

    text: Annotated[Any, WithJsonSchema(_TEXT)]
    """One text, or an array of texts; each may hold many sentences and lines."""
    source: str
    """Language of the text: a code of /v1/languages. `EN`, `en-US` and `en_GB` fall back to `en`."""
    target: str
    """Language to translate into."""
    beam_size: Annotated[int | None, Field(json_schema_extra={"minimum": 1, "maximum": MAX_BEAM_SIZE})] = None
    """Hypotheses kept by the search; 1 is greedy. Left out: what the model recommends."""
    length_penalty: Annotated[float | None, Field(json_schema_extra={"minimum": 0, "maximum": 10})] = None
    """α of ((5 + length) / 6)^α; higher favours longer translations. Left out: what the model recommends."""


_FIELDS = ", ".join(TranslateRequest.model_fields)


class ErrorObject(_Schema):
    """What was wrong, in words for people and a code for programs."""

    code: str
    """Stable: invalid_json, unsupported_language, overloaded, …"""
    message: str
    field: str | None
    """The field at fault, such as `target` or `text[2]`."""
    details: dict[str, Any] | None = None
    """What helps to mend it, such as the supported languages."""
    request_id: str | None = None
    """The same as in the X-Request-ID header; the log knows it."""


class ErrorBody(_Schema):
    """Every answer that is not a 2xx."""

    error: ErrorObject


class TranslatedText(_Schema):
    """One text's translation."""

    text: str
    source: str
    target: str
    truncated: bool
    """True if the model's length limit cut it: its end may be missing."""


class Usage(_Schema):
    """What the request amounted to."""

    characters: int
    """Unicode code points of all texts."""
    source_tokens: int
    target_tokens: int


class Timing(_Schema):
    """Milliseconds."""

    queue: float
    """Mean wait before the engine began."""
    inference: float
    """In the engine, from the first piece's start to the last one's end."""
    total: float
    """In the service, from the request's first byte to the answer."""


class TranslateResponse(_Schema):
    """Translations in the order of the texts; a text that was refused has an error in its slot."""

    model: str
    translations: list[TranslatedText | ErrorBody]
    usage: Usage
    timing_ms: Timing


class LanguageInfo(_Schema):
    """A source language and what it can be translated into."""

    source: str
    targets: list[str]


class LanguagesResponse(_Schema):
    """The supported languages."""

    languages: list[LanguageInfo]


class PairInfo(_Schema):
    """A direction of translation."""

    source: str
    target: str


class ModelDescription(_Schema):
    """A loaded model and how it runs."""

    name: str
    version: str
    pairs: list[PairInfo]
    precision: str
    provider: str
    """What really runs it, as read back from the runtime."""
    defaults: dict[str, Any]
    """Options used where a request names none."""


class ModelsResponse(_Schema):
    """The loaded models."""

    models: list[ModelDescription]


class HealthResponse(_Schema):
    """The process is up."""

    status: Literal["ok"]


class ReadyResponse(_Schema):
    """A real translation just worked, for every model."""

    status: Literal["ready"]
    models: dict[str, str]


def parse_request(fields: dict[str, Any]) -> TranslateRequest:
    """The checked request. Raises `InvalidRequest`, which names the first field that is wrong."""
    for name in fields:
        if name not in TranslateRequest.model_fields:
            raise InvalidRequest(f"{name[:40]} is not a field of this request; the fields are {_FIELDS}.", name[:40])
    try:
        request = TranslateRequest.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from error
    if not isinstance(request.text, str | list):
        raise InvalidRequest(f"text must be a string or an array of strings, but is {json_type(request.text)}.", "text")
    for name in ("beam_size", "length_penalty"):
        if (value := getattr(request, name)) is not None:
            _check_option(name, value)
    return request


def _check_option(name: str, value: float) -> None:
    try:
        DecodeOptions(**{name: value})  # type: ignore[arg-type]  # it holds the bounds and words them
    except DecodeError as error:
        raise InvalidRequest(str(error), name) from error


def _refusal(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        return InvalidRequest(f"{name} must be given; the fields are {_FIELDS}.", name)
    wanted = {"string_type": "a string", "int_type": "a whole number", "float_type": "a number"}.get(first["type"])
    if wanted is None:
        return InvalidRequest(f"{name} is not valid: {first['msg'][0].lower()}{first['msg'][1:]}.", name)
    return InvalidRequest(f"{name} must be {wanted}, but is {json_type(first['input'])}.", name)

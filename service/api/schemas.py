"""The JSON of the native API: requests, answers, errors; what /openapi.json shows is made of these.

Messages name the field, what must hold and the type that was found, never a value of `text`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from model.decode.options import MAX_SUPPRESSED, RANGES, check_range
from model.errors import DecodeError
from service.api.body import json_type
from service.errors import InvalidRequest

MAX_WORD_CHARACTERS = 200
"""Of a word that is suppressed: every sentence of a request looks for it."""
_TEXT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


def _ranged(name: str) -> Any:
    """A field whose bounds stand in the schema; `check_range` holds and words them."""
    least, greatest = RANGES[name]
    return Field(json_schema_extra={"minimum": least, "maximum": greatest})


class SamplingRequest(_Schema):
    """Draw tokens instead of searching for the best. The same text with the same seed gives the same answer."""

    temperature: Annotated[float, _ranged("temperature")] = 1.0
    """Below 1 the likely becomes likelier, above 1 less so."""
    top_k: Annotated[int, _ranged("top_k")] = 0
    """Draw among so many of the likeliest tokens; 0: among all."""
    top_p: Annotated[float, _ranged("top_p")] = 1.0
    """Draw among the fewest tokens that hold this share of the probability."""
    seed: Annotated[int, _ranged("seed")] = 0
    """Another seed, another answer."""


class TranslateRequest(_Schema):
    """What to translate, and between which languages."""

    text: Annotated[Any, WithJsonSchema(_TEXT)]
    """One text, or an array of texts; each may hold many sentences and lines."""
    source: str
    """Language of the text: a code of /v1/languages. `EN`, `en-US` and `en_GB` fall back to `en`."""
    target: str
    """Language to translate into."""
    beam_size: Annotated[int | None, _ranged("beam_size")] = None
    """Hypotheses kept by the search; 1 is greedy. Left out: what the model recommends."""
    length_penalty: Annotated[float | None, _ranged("length_penalty")] = None
    """α of ((5 + length) / 6)^α; higher favours longer translations. Left out: what the model recommends."""
    coverage_penalty: Annotated[float | None, _ranged("coverage_penalty")] = None
    """β of Wu et al. (2016): how much a translation loses that leaves parts of its source unattended, by
    β Σ log(min(attention, 1)) over the source tokens; 0: nothing. Needs a beam_size above 1."""
    n_best: Annotated[int | None, _ranged("n_best")] = None
    """Answer with up to so many `alternatives`, the best first; at most beam_size. The i-th of a text with several
    sentences is made of each sentence's i-th."""
    max_length: Annotated[int | None, _ranged("max_length")] = None
    """Most tokens of one sentence's translation, the end included; never more than its source's and 50."""
    min_length: Annotated[int | None, _ranged("min_length")] = None
    """Fewest tokens of one sentence's translation, the end included."""
    no_repeat_ngram: Annotated[int | None, _ranged("no_repeat_ngram")] = None
    """No sequence of so many tokens comes twice in a sentence; 0: any may."""
    repetition_penalty: Annotated[float | None, _ranged("repetition_penalty")] = None
    """What the log-probability of a token is multiplied by once the sentence holds it."""
    sampling: SamplingRequest | None = None
    """Draw tokens instead of searching; beam_size and n_best must then be 1 or left out."""
    prefix: str | None = None
    """What the translation begins with, to be carried on. Each text must then be one sentence."""
    suppress: list[str] | None = None
    """Words that the translation must not hold, spelt as they would stand there; at most 200 characters each."""
    repetition_guard: bool = True
    """Translate again, without repeats, a sentence whose translation goes round in circles or comes to no end."""
    return_scores: bool = False
    """Answer with `scores`: how likely the model holds the translation to be, as a whole and token by token."""
    alignment: bool = False
    """Answer with `alignment`: which words of the text became which words of the translation."""


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


class AlternativeText(_Schema):
    """One of the n best translations."""

    text: str
    score: float
    """Log-probability over length penalty, plus coverage penalty, by which they are ranked; summed over the
    sentences."""
    alignment: list[list[int]] | None = None
    """With alignment: that of this translation."""


class TokenScore(_Schema):
    """One token of the translation."""

    token: str
    """As the model's vocabulary spells it: ▁ stands for a space, </s> for the end of a sentence."""
    log_probability: float
    """0 for what was given as the prefix."""


class ScoresOfText(_Schema):
    """How likely the model holds a translation to be."""

    score: float
    """That of the first alternative."""
    log_probability: float
    """The sum over all tokens."""
    tokens: list[TokenScore]


class TranslatedText(_Schema):
    """One text's translation."""

    text: str
    source: str
    target: str
    truncated: bool
    """True if the model's length limit cut it: its end may be missing."""
    repetition_guard: bool = False
    """True if a sentence went round in circles, or on and on, and was translated again; left out otherwise."""
    fragmented: bool = False
    """True if a sentence was translated in fragments, lest a number, a tag or the like be lost; left out otherwise."""
    alternatives: list[AlternativeText] | None = None
    """With n_best: the best translations, the first of which is `text`."""
    scores: ScoresOfText | None = None
    """With return_scores."""
    alignment: list[list[int]] | None = None
    """With alignment: `[source_start, source_end, target_start, target_end]` for each pair of words, in the order of
    the translation. Places count Unicode code points from 0, and an end is one behind the last. A word may have several
    partners or none; what is not language is its own."""


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
    operators: str
    """`native` where our own operators run, else `stock`."""
    defaults: dict[str, Any]
    """Options used where a request names none."""
    alignment: bool
    """True if `alignment` and `coverage_penalty` can be asked for."""


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
    _check_ranges(request, "")
    if request.sampling is not None:
        _check_ranges(request.sampling, "sampling.")
    if request.suppress is not None and not 1 <= len(request.suppress) <= MAX_SUPPRESSED:
        message = f"suppress must hold 1 to {MAX_SUPPRESSED} strings, but holds {len(request.suppress)}."
        raise InvalidRequest(message, "suppress")
    for index, word in enumerate(request.suppress or ()):
        if len(word) > MAX_WORD_CHARACTERS:
            message = f"suppress[{index}] must have at most {MAX_WORD_CHARACTERS} characters, but has {len(word)}."
            raise InvalidRequest(message, f"suppress[{index}]")
    return request


def _check_ranges(request: _Schema, path: str) -> None:
    for name in RANGES:
        if (value := getattr(request, name, None)) is not None:
            try:
                check_range(name, value)
            except DecodeError as error:
                raise InvalidRequest(f"{path}{error}", f"{path}{name}") from error


_WANTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "an array of strings",
    "model_type": "an object",
}


def _refusal(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False)[0]
    name = _path(first["loc"])
    if first["type"] == "missing":
        return InvalidRequest(f"{name} must be given; the fields are {_FIELDS}.", name)
    if first["type"] == "extra_forbidden":
        known = ", ".join(SamplingRequest.model_fields)
        return InvalidRequest(f"{name} is not an option; those of sampling are {known}.", name)
    wanted = _WANTED.get(first["type"])
    if wanted is None:
        return InvalidRequest(f"{name} is not valid: {first['msg'][0].lower()}{first['msg'][1:]}.", name)
    return InvalidRequest(f"{name} must be {wanted}, but is {json_type(first['input'])}.", name)


def _path(location: tuple[int | str, ...]) -> str:
    """`sampling.top_k`, `suppress[1]`; what a caller made up is cut short."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part[:40]}" for part in location]
    return "".join(parts).removeprefix(".")

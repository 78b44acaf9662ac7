"""The native API: POST /v1/translate, GET /v1/languages, GET /v1/models."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request

from model.decode.options import Sampling
from service.api.body import json_type, read_json, unless_disconnected
from service.api.errors import Json, error_object
from service.api.examples import REQUEST_BODY, RESPONSES
from service.api.ports import Alternative, TranslateAnswer, TranslateCommand, Translation, TranslationBackend
from service.api.schemas import LanguagesResponse, ModelsResponse, TranslateRequest, TranslateResponse, parse_request
from service.errors import (
    BodyTooSlow,
    DeadlineExceeded,
    InvalidRequest,
    InvalidText,
    Refusal,
    TextTooLong,
    TooManyTexts,
)
from service.languages import resolve_pair
from service.settings import Settings

_SURROGATE = re.compile("[\ud800-\udfff]")


def native_router(backend: TranslationBackend, settings: Settings) -> APIRouter:
    """The routes under /v1."""
    router = APIRouter(prefix="/v1", tags=["translation"])

    @router.post(
        "/translate",
        summary="Translate texts",
        response_model=TranslateResponse,
        responses=RESPONSES,
        openapi_extra=REQUEST_BODY,
    )
    async def translate(request: Request) -> Json:
        """Translate one text or many.

        Texts keep their order, their lines and their white space. A text of an array that cannot be translated has an
        `error` in its slot; the others are not touched by it.
        """
        left = settings.request_timeout_s - (time.perf_counter() - request.state.started)
        end, deadline = asyncio.get_running_loop().time() + left, time.time() + left
        try:
            async with asyncio.timeout_at(end):
                fields = await read_json(request, settings.max_body_bytes)
        except TimeoutError as error:
            raise BodyTooSlow from error
        try:
            async with asyncio.timeout_at(end):
                return await _translate(request, fields, backend, settings, deadline)
        except TimeoutError as error:
            raise DeadlineExceeded from error

    @router.get("/languages", summary="List languages", response_model=LanguagesResponse)
    async def languages() -> Json:
        """List the languages that can be translated, and into which."""
        targets: dict[str, list[str]] = {}
        for pair in backend.pairs():
            if pair.target not in targets.setdefault(pair.source, []):
                targets[pair.source].append(pair.target)
        return Json({"languages": [{"source": source, "targets": found} for source, found in targets.items()]})

    @router.get("/models", summary="List models", response_model=ModelsResponse)
    async def models() -> Json:
        """List the loaded models and how they run."""
        return Json({"models": [asdict(model) for model in backend.models()]})

    return router


async def _translate(
    request: Request, fields: dict[str, Any], backend: TranslationBackend, settings: Settings, deadline: float
) -> Json:
    asked = parse_request(fields)
    pair = resolve_pair(asked.source, asked.target, backend.pairs())
    texts = _texts(asked, settings)
    refused = {i: refusal for i, text in enumerate(texts) if (refusal := _unfit(text, i, asked, settings))}
    if isinstance(asked.text, str) and refused:
        raise refused[0]
    fit = tuple(text for i, text in enumerate(texts) if i not in refused)
    command = TranslateCommand(
        request_id=request.state.request_id, texts=fit, pair=pair, deadline=deadline, **_options(asked, settings)
    )
    answer = await unless_disconnected(request, backend.translate(command))
    if isinstance(asked.text, str) and isinstance(only := answer.translations[0], Refusal):
        raise only
    return Json(_response(command, answer, refused, request.state.started))


def _texts(asked: TranslateRequest, settings: Settings) -> list[Any]:
    texts = asked.text if isinstance(asked.text, list) else [asked.text]
    if not texts:
        raise InvalidRequest("text must hold at least one text, but is an empty array.", "text")
    if len(texts) > settings.max_texts:
        raise TooManyTexts(f"text must hold at most {settings.max_texts} texts, but holds {len(texts)}.", "text")
    return texts


def _options(asked: TranslateRequest, settings: Settings) -> dict[str, Any]:
    """What is asked of the search, as fields of a command. Raises `InvalidRequest` for words that are none."""
    for name, words in (("prefix", asked.prefix), *((f"suppress[{i}]", w) for i, w in enumerate(asked.suppress or ()))):
        if words is not None and (refusal := _unfit_words(words, name, settings)):
            raise refusal
    sampling = asked.sampling
    return {
        "beam_size": asked.beam_size,
        "length_penalty": asked.length_penalty,
        "coverage_penalty": asked.coverage_penalty,
        "n_best": asked.n_best,
        "max_length": asked.max_length,
        "min_length": asked.min_length,
        "no_repeat_ngram": asked.no_repeat_ngram,
        "repetition_penalty": asked.repetition_penalty,
        "sampling": None if sampling is None else Sampling(**sampling.model_dump()),
        "prefix": asked.prefix,
        "suppress": tuple(asked.suppress or ()),
        "repetition_guard": asked.repetition_guard,
        "return_scores": asked.return_scores,
        "alignment": asked.alignment,
    }


def _unfit_words(words: str, field: str, settings: Settings) -> Refusal | None:
    """Why this piece of a translation cannot be asked for, if so."""
    if not words.split():
        return InvalidRequest(f"{field} must hold a word, but is blank.", field)
    return _unfit_text(words, field, settings)


def _unfit(text: Any, index: int, asked: TranslateRequest, settings: Settings) -> Refusal | None:
    """Why this text cannot be translated, if so."""
    field = "text" if isinstance(asked.text, str) else f"text[{index}]"
    if not isinstance(text, str):
        return InvalidRequest(f"{field} must be a string, but is {json_type(text)}.", field)
    return _unfit_text(text, field, settings)


def _unfit_text(text: str, field: str, settings: Settings) -> Refusal | None:
    if len(text) > settings.max_text_characters:
        message = f"{field} must have at most {settings.max_text_characters} characters, but has {len(text)}."
        return TextTooLong(message, field)
    if found := _SURROGATE.search(text):
        message = f"{field} must be valid Unicode, but character {found.start()} is a lone surrogate."
        return InvalidText(message, field)
    return None


def _response(
    command: TranslateCommand, answer: TranslateAnswer, refused: dict[int, Refusal], started: float
) -> dict[str, Any]:
    done: Iterator[Translation | Refusal] = iter(answer.translations)
    total = len(answer.translations) + len(refused)
    slots = [refused[i] if i in refused else next(done) for i in range(total)]
    return {
        "model": answer.model,
        "translations": [_slot(slot, index, command) for index, slot in enumerate(slots)],
        "usage": {
            "characters": sum(map(len, command.texts)),
            "source_tokens": answer.source_tokens,
            "target_tokens": answer.target_tokens,
        },
        "timing_ms": {
            "queue": round(answer.queue_seconds * 1000, 3),
            "inference": round(answer.inference_seconds * 1000, 3),
            "total": round((time.perf_counter() - started) * 1000, 3),
        },
    }


def _slot(slot: Translation | Refusal, index: int, command: TranslateCommand) -> dict[str, Any]:
    if isinstance(slot, Refusal):
        return {"error": {**error_object(slot), "field": slot.field or f"text[{index}]"}}
    found: dict[str, Any] = {
        "text": slot.text,
        "source": command.pair.source,
        "target": command.pair.target,
        "truncated": slot.truncated,
    }
    if slot.repetition_guard:
        found["repetition_guard"] = True
    if slot.fragmented:
        found["fragmented"] = True
    if slot.alternatives:
        found["alternatives"] = [_alternative(one) for one in slot.alternatives]
    if slot.scores is not None:
        tokens = [{"token": token, "log_probability": value} for token, value in slot.scores.tokens]
        found["scores"] = {
            "score": slot.scores.score,
            "log_probability": slot.scores.log_probability,
            "tokens": tokens,
        }
    if slot.alignment is not None:
        found["alignment"] = slot.alignment
    return found


def _alternative(one: Alternative) -> dict[str, Any]:
    found: dict[str, Any] = {"text": one.text, "score": one.score}
    return found if one.alignment is None else {**found, "alignment": one.alignment}

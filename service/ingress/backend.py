"""What the API asks for, done with text pipelines and engines. No Ray and no HTTP here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, Protocol, TypeVar

from model.decode.options import DecodeOptions
from service.api.ports import ModelInfo, ReadyReport, TranslateAnswer, TranslateCommand
from service.errors import Cancelled, DeadlineExceeded, InternalFault, Refusal, UnsupportedPair
from service.ingress.answers import build_slots, with_refusals
from service.ingress.options import check_supported, decode_options, unfit_for_prefix
from service.ingress.readiness import Readiness
from service.jobs import Job, Result
from service.languages import Pair
from service.metrics.families import ModelLabels, RequestMetrics, Volume
from service.text.pipeline import Pipeline, Prepared

_LARGE = 5_000
"""Characters from which on text work goes to a thread, so that other requests need not wait for it."""
_PROBE_LENGTH = 8
_CLOCKS_APART = 0.01
"""Seconds by which a timer may be early."""

_log = logging.getLogger("dragoman.ingress")
P = ParamSpec("P")
T = TypeVar("T")


class Engines(Protocol):
    """What `EngineCalls` does."""

    async def translate(self, job: Job) -> Result:
        """The result of a job, or a `Refusal`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One bundle as the ingress sees it."""

    info: ModelInfo
    defaults: DecodeOptions
    pipelines: Mapping[Pair, Pipeline]
    engines: Engines
    probe: tuple[int, ...]
    """Source ids of something short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Times in seconds."""

    ready_timeout: float = 5.0
    ready_fresh: float = 1.0


class Backend:
    """Implements `service.api.ports.TranslationBackend` over any number of served models."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        metrics: RequestMetrics,
        scrape: Callable[[], Awaitable[str]],
        options: BackendOptions | None = None,
    ) -> None:
        """Serve `models`; of two that share a pair the first one answers. `scrape` renders the metrics."""
        self._models = {model.info.name: model for model in models}
        self._infos = {model.info.name: model.info for model in models}
        self._by_pair: dict[Pair, ServedModel] = {}
        self._metrics = metrics
        self._scrape = scrape
        self._options = options or BackendOptions()
        self._readiness = {
            name: Readiness(lambda model=model: self._probe(model), self._options.ready_fresh)  # type: ignore[misc]
            for name, model in self._models.items()
        }
        for model in models:
            for pair in model.info.pairs:
                self._by_pair.setdefault(pair, model)
                metrics.declare(model.info.name, pair)

    def introduce(self, labels: ModelLabels) -> None:
        """An engine of a model has said what it really runs."""
        self._infos[labels.model] = replace(
            self._infos[labels.model],
            precision=labels.precision,
            provider=labels.provider,
            operators=labels.operators,
        )

    def pairs(self) -> Sequence[Pair]:
        """The supported pairs, in the order of the bundles."""
        return tuple(self._by_pair)

    def models(self) -> Sequence[ModelInfo]:
        """The served bundles."""
        return tuple(self._infos.values())

    async def translate(self, command: TranslateCommand) -> TranslateAnswer:
        """Translate, or raise a `Refusal`; cancelling it cancels the engine's work."""
        model = self._by_pair.get(command.pair)
        if model is None:
            raise UnsupportedPair()
        name = model.info.name
        try:
            return await self._translate(model, command)
        except Refusal as refusal:
            self._metrics.refused(name, refusal.code)
            raise
        except asyncio.CancelledError:  # its caller has gone, or the API has seen the end of its time first
            late = time.time() >= command.deadline - _CLOCKS_APART
            self._metrics.refused(name, (DeadlineExceeded if late else Cancelled).code)
            raise
        except Exception:
            self._metrics.refused(name, InternalFault.code)
            raise

    async def ready(self) -> ReadyReport:
        """Whether each model has just translated something. Never raises."""
        names = list(self._readiness)
        reasons = await asyncio.gather(*(self._readiness[name].ask() for name in names))
        return ReadyReport(dict(zip(names, reasons, strict=True)))

    async def render_metrics(self) -> str:
        """The exposition over all replicas. Raises `NotReady` when they cannot be counted: half a sum would mislead."""
        return await self._scrape()

    async def _translate(self, model: ServedModel, command: TranslateCommand) -> TranslateAnswer:
        name, pipeline = model.info.name, model.pipelines[command.pair]
        check_supported(model.info, command)
        options = decode_options(model.defaults, command, pipeline)
        began = time.perf_counter()
        prepared, refused = await _prepare(pipeline, command)
        self._metrics.tokenized(name, time.perf_counter() - began)
        job = Job(command.request_id, prepared.segments, options, command.deadline)
        # What holds no language needs no engine.
        result = await model.engines.translate(job) if job.segments else Result((), 0.0, 0.0)
        if pipeline.carries_beside(command.prefix):
            prepared, result = await self._carried(model, command, job, (prepared, result))
        if any(segment.ids for segment in result.segments):
            self._readiness[name].worked()
        characters = sum(map(len, command.texts))
        slots, target_tokens = await _text_work(characters, build_slots, pipeline, prepared, result.segments, command)
        volume = Volume(
            texts=len(command.texts),
            source_characters=characters,
            segments=len(job.segments),
            source_tokens=prepared.source_tokens,
            target_tokens=target_tokens,
        )
        self._metrics.answered(name, command.pair, volume)
        return TranslateAnswer(
            model=name,
            translations=tuple(with_refusals(slots, refused)),
            source_tokens=volume.source_tokens,
            target_tokens=volume.target_tokens,
            queue_seconds=result.queue_seconds,
            inference_seconds=result.inference_seconds,
        )

    async def _carried(
        self, model: ServedModel, command: TranslateCommand, job: Job, first: tuple[Prepared, Result]
    ) -> tuple[Prepared, Result]:
        """What was prepared and what came of it, with those sentences in fragments that lost what must be carried."""
        prepared, result = first
        characters = sum(map(len, command.texts))
        again = await _text_work(characters, model.pipelines[command.pair].again, prepared, result.segments)
        if again is None:
            return prepared, result
        self._metrics.fragmented(model.info.name, again.given_up)
        # A fragment may be shorter than what was asked of the sentence, and only the first begins with a prefix.
        usual = replace(job.options, min_length=0, prefix=())
        first_ones = again.beginnings if job.options.prefix else frozenset()
        found, seconds = dict(enumerate(result.segments)), result.inference_seconds
        new = range(len(job.segments), len(again.segments))
        for beginning, options in ((False, usual), (True, replace(usual, prefix=job.options.prefix))):
            chosen = [index for index in new if (index in first_ones) is beginning]
            if chosen:
                more = Job(job.request_id, tuple(again.segments[index] for index in chosen), options, job.deadline)
                second = await model.engines.translate(more)
                found |= dict(zip(chosen, second.segments, strict=True))
                seconds += second.inference_seconds
        return again, Result(tuple(found[index] for index in sorted(found)), result.queue_seconds, seconds)

    async def _probe(self, model: ServedModel) -> str | None:
        """Translate something short on the way that every request takes; None if that worked."""
        deadline = time.time() + self._options.ready_timeout
        job = Job("ready", (model.probe,), DecodeOptions(beam_size=1, max_length=_PROBE_LENGTH), deadline)
        try:
            (segment,) = (await model.engines.translate(job)).segments
        except Refusal as refusal:
            return refusal.code
        except Exception as error:  # noqa: BLE001  a probe never raises; the log has the rest
            _log.exception("readiness probe failed", extra={"fields": {"model": model.info.name}})
            return type(error).__name__
        if segment.refusal is not None:
            return segment.refusal
        return None if segment.ids else "the translation is empty"


async def _prepare(pipeline: Pipeline, command: TranslateCommand) -> tuple[Prepared, dict[int, Refusal]]:
    """The texts, taken apart; and those that cannot be asked what the command asks, by index."""
    characters = sum(map(len, command.texts))
    prepared = await _text_work(characters, pipeline.prepare, command.texts, command.prefix)
    refused = {} if command.prefix is None else unfit_for_prefix(prepared)
    if refused:
        fit = tuple(text for index, text in enumerate(command.texts) if index not in refused)
        prepared = await _text_work(characters, pipeline.prepare, fit, command.prefix)
    return prepared, refused


async def _text_work(characters: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` here if its texts are short, else in a thread."""
    if characters < _LARGE:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)

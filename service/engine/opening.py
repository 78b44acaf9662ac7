"""From a bundle and the settings to a running engine."""

from __future__ import annotations

import logging
import time

from model.bundle import Bundle
from model.decode.admission import BatcherLimits
from model.decode.batcher import Batcher, decode_all
from model.decode.options import DecodeOptions, SpecialIds
from model.errors import BundleError
from model.runtime.operators import choose_operators
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_stepper
from service.engine.cpus import usable_cpus
from service.engine.engine import Engine, EngineOptions
from service.engine.loop import LoopOptions
from service.metrics.families import EngineMetrics, ModelLabels, Registry
from service.settings import Settings

_log = logging.getLogger("dragoman.engine")


def choose_precision(bundle: Bundle, settings: Settings) -> str:
    """The precision to run: the one asked for, or the fastest of the bundle that the provider is made for."""
    if settings.precision != "auto":
        return settings.precision
    wanted = ("f16", "f32") if settings.provider == "cuda" else ("int8", "f32")
    for precision in wanted:
        if precision in bundle.manifest.precisions:
            return precision
    there = ", ".join(bundle.manifest.precisions)
    raise BundleError(f"{bundle.path} must hold one of {', '.join(wanted)} for {settings.provider}, but holds {there}.")


def check_graphs(bundle: Bundle, settings: Settings) -> None:
    """Raise `BundleError` or `ProviderError` if `bundle` has no graphs that can run here as the settings ask for."""
    choose_operators(bundle.graph_paths(choose_precision(bundle, settings)), runtime_for(settings, threads=1))


def runtime_for(settings: Settings, threads: int) -> RuntimeOptions:
    """How the graphs run, with so many threads."""
    return RuntimeOptions(provider=settings.provider, threads=threads, operators=settings.operators)


def limits_for(settings: Settings) -> BatcherLimits:
    """What may run at once: as many beams as searches of one hypothesis, if they are no wider than usual."""
    lanes = max(BatcherLimits().max_lanes, DecodeOptions().beam_size * settings.max_slots)
    return BatcherLimits(max_slots=settings.max_slots, max_lanes=lanes, max_batch_tokens=settings.max_batch_tokens)


def threads_for(settings: Settings) -> int:
    """Threads of one replica: as set, or its share of the machine (laptop) or of what Ray reserves for it (cluster).

    On a laptop one CPU is left to the ingress and to Ray. Threads of one operator wait for each other: on two busy
    cores a replica with two of them takes three times as long as with one.
    """
    if settings.threads:
        return settings.threads
    if settings.profile == "cluster":
        return max(1, min(usable_cpus(), round(settings.engine_cpus)))
    return max(1, (usable_cpus() - 1) // (settings.max_replicas * len(settings.bundles)))


def max_jobs_for(settings: Settings) -> int:
    """Requests that one replica holds: never so few that the batch could run dry while callers wait."""
    return max(settings.max_ongoing, 8 * settings.max_slots)


def open_engine(bundle: Bundle, settings: Settings, registry: Registry) -> tuple[Engine, ModelLabels]:
    """Load `bundle`, translate something to prove that it works, and start an engine on it.

    Raises `BundleError` or `ProviderError` when it cannot be loaded, and `DecodeError` when it does not translate.
    """
    began = time.monotonic()
    precision = choose_precision(bundle, settings)
    threads = threads_for(settings)
    stepper = open_stepper(bundle, precision, runtime_for(settings, threads))
    _warm_up(bundle, stepper)
    labels = ModelLabels(
        model=bundle.manifest.name,
        version=bundle.manifest.version,
        precision=precision,
        provider=stepper.provider,
        operators=stepper.operators,
    )
    metrics = EngineMetrics(registry, labels)
    special = SpecialIds(bos_id=bundle.config.bos_id, eos_id=bundle.config.eos_id)
    loop = LoopOptions(stall_seconds=settings.engine_stall_s, batch_wait_seconds=settings.batch_wait_s)
    options = EngineOptions(max_queued_tokens=settings.max_queued_tokens, max_jobs=max_jobs_for(settings), loop=loop)
    engine = Engine(Batcher(stepper, limits_for(settings), special=special), metrics, options)
    seconds = time.monotonic() - began
    metrics.loaded(seconds)
    fields = {
        "model": labels.model,
        "version": labels.version,
        "precision": precision,
        "provider": labels.provider,
        "operators": labels.operators,
        "threads": threads,
        "cpus": usable_cpus(),
        "seconds": round(seconds, 3),
    }
    _log.info("model loaded", extra={"fields": fields})
    return engine, labels


def _warm_up(bundle: Bundle, stepper: OnnxStepper) -> None:
    """The first translation pays for what is set up lazily, and finds a model that cannot translate."""
    probe = bundle.tokenizer().encode("Test. " * 16)  # as many rows as the products of a batch have
    for beam_size in {1, bundle.manifest.decoding.beam_size}:
        (finished,) = decode_all(stepper, [probe], DecodeOptions(beam_size=beam_size, max_length=8))
        if finished.error is not None:
            raise finished.error

"""Lines of text through the engine, in this process: what `dragoman translate` does, without a server.

The same bundle, runtime, batcher and text pipeline as in the service, and so the same translations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from model.bundle import Bundle
from model.decode.admission import BatcherLimits
from model.decode.batcher import Finished, decode_all
from model.decode.options import DecodeOptions, SpecialIds, chosen
from model.decode.stepper import Stepper
from model.errors import BundleError
from model.runtime.stepper import open_stepper
from service.engine.cpus import usable_cpus
from service.engine.opening import choose_precision, limits_for, runtime_for
from service.errors import InvalidText, UnsupportedOption
from service.jobs import SegmentResult
from service.languages import Pair, resolve_pair
from service.settings import Settings
from service.text.pipeline import Pipeline, Restored

CHUNK_BYTES = 64 * 1024
"""Input that is translated together: enough to fill every batch, little enough for a pipe and for memory."""

Progress = Callable[[float], None]
"""Told which part of the chunk at hand, between 0 and 1, has just been done."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What decodes, and within which limits."""

    stepper: Stepper
    options: DecodeOptions
    limits: BatcherLimits
    special: SpecialIds


class LineTranslator:
    """Translates lines from one language into another."""

    def __init__(self, pipeline: Pipeline, engine: Engine) -> None:
        self._pipeline = pipeline
        self._engine = engine

    def translate(self, lines: Sequence[str], progress: Progress) -> list[Restored]:
        """The translations of `lines`, in their order; a line that failed has a refusal."""
        prepared = self._pipeline.prepare(lines)
        results = self._decoded(prepared.segments, lambda count: progress(count / len(prepared.segments)))
        again = self._pipeline.again(prepared, results)
        if again is not None:
            fragments = again.segments[len(prepared.segments) :]
            results += self._decoded(fragments, lambda _: None, min_length=0)
            prepared = again
        restored = self._pipeline.restore(prepared, results)
        if not self._engine.options.alignment:
            return restored
        return [
            one if one.refusal else replace(one, alignment=tuple(self._pipeline.alignment(prepared, results, line)))
            for line, one in enumerate(restored)
        ]

    def _decoded(
        self, segments: Sequence[Sequence[int]], progress: Callable[[int], None], **changed: Any
    ) -> list[SegmentResult]:
        engine = self._engine
        options = replace(engine.options, **changed)
        finished = decode_all(
            engine.stepper, segments, options, engine.limits, special=engine.special, progress=progress
        )
        return [_result(one) for one in finished]


def open_translator(source: str, target: str, settings: Settings, **options: Any) -> LineTranslator:
    """A translator with the first bundle of `settings` that goes from `source` to `target`.

    `options` are fields of `DecodeOptions`; those left out or None are the bundle's own. Raises `BundleError`,
    `ProviderError`, `DecodeError` for an option out of range, or a `Refusal` for what no bundle can do.
    """
    bundles = [Bundle.open(path) for path in settings.bundles]
    pair = resolve_pair(source, target, [pair for bundle in bundles for pair in pairs_of(bundle)])
    bundle = next(bundle for bundle in bundles if pair in pairs_of(bundle))
    config, defaults = bundle.config, bundle.manifest.decoding
    usual = DecodeOptions(beam_size=defaults.beam_size, length_penalty=defaults.length_penalty, repetition_guard=True)
    decode_options = chosen(usual, **options)
    runtime = runtime_for(settings, threads=settings.threads or usable_cpus())
    limits = limits_for(settings)
    special = SpecialIds(bos_id=config.bos_id, eos_id=config.eos_id)
    longest = settings.segment_tokens(config.max_positions)
    precision = choose_precision(bundle, settings)
    if (decode_options.coverage_penalty or decode_options.alignment) and not bundle.attends(precision):
        message = (
            f"alignment and coverage_penalty need an attending decoder, but {bundle.path} has none; publish it again."
        )
        raise UnsupportedOption(message)
    stepper = open_stepper(bundle, precision, runtime)
    pipeline = Pipeline(bundle.tokenizer(), longest, pair.source, pair.target)
    return LineTranslator(pipeline, Engine(stepper, replace(decode_options, carry=pipeline.carry), limits, special))


def pairs_of(bundle: Bundle) -> list[Pair]:
    """The directions that a bundle translates. Raises `BundleError` if there are none."""
    manifest = bundle.manifest
    pairs = [Pair(s, t) for s in manifest.source_languages for t in manifest.target_languages if s != t]
    if not pairs:
        raise BundleError(f"the manifest of {bundle.path} must name two different languages, but does not.")
    return pairs


def chunks(stream: BinaryIO, size: int = CHUNK_BYTES) -> Iterator[list[bytes]]:
    """The lines of `stream` with their ends, as soon as they are there, some of them at a time."""
    unfinished: list[bytes] = []
    while data := stream.read1(size):  # type: ignore[attr-defined]  # buffered streams all have it
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*unfinished, whole[0]])
            unfinished = []
            yield [line + b"\n" for line in whole]
        if rest:
            unfinished.append(rest)
    if unfinished:
        yield [b"".join(unfinished)]


def decoded(lines: Sequence[bytes], first_number: int) -> tuple[list[str], InvalidText | None]:
    """`lines` as text, up to the first that is not UTF-8; and then what is wrong with it, by its number."""
    texts: list[str] = []
    for line in lines:
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            number = first_number + len(texts)
            message = f"line {number} must be UTF-8, but its byte {error.start + 1} is not; convert the input first."
            return texts, InvalidText(message)
    return texts, None


def _result(finished: Finished) -> SegmentResult:
    if finished.error is not None:
        return SegmentResult((), 0.0, False, refusal="engine_failed")
    best = finished.hypotheses[0]
    return SegmentResult(best.ids, best.score, best.truncated, hypotheses=(best,), guarded=finished.guarded)

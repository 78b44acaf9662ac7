"""An engine over the toy language, whose steps a test can slow down, hold, or break."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from model.decode.admission import BatcherLimits
from model.decode.batcher import Batcher
from model.decode.options import DecodeOptions
from model.decode.reference import ReferenceStepper, reference_search
from service.engine.engine import Engine, EngineOptions
from service.jobs import Job
from service.metrics.families import EngineMetrics, ModelLabels, Registry, open_registry
from tests.model.toy_language import EOS, ToyLanguage

POISON = 8
"""A source word on which the network raises."""
LANGUAGE = ToyLanguage(vocab_size=9)
POSITIONS = 24
GREEDY = DecodeOptions(beam_size=1)


class ToyStepper(ReferenceStepper):
    """Waits at each step until `open_gate` is set; raises on poison, or on everything when `broken`."""

    def __init__(self) -> None:
        super().__init__(LANGUAGE, LANGUAGE.vocab_size, max_positions=POSITIONS)
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.broken = False
        self.encoded: list[tuple[int, ...]] = []

    def start(self, sources, width, *rest):
        if self.broken or any(POISON in source for source in sources):
            raise RuntimeError("the network raises")
        self.encoded += [tuple(source) for source in sources]
        return super().start(sources, width, *rest)

    def step(self, slots, tokens, k):
        self.in_step.set()
        self.gate.wait()
        return super().step(slots, tokens, k)


class BrokenBatcher(Batcher):
    """Raises where a batcher never should."""

    def step(self):
        raise AssertionError("a bug")


@dataclass
class ToyEngine:
    engine: Engine
    stepper: ToyStepper
    metrics: EngineMetrics
    registry: Registry
    made: int = field(default=0)

    def job(self, *segments, seconds=30.0, options=GREEDY) -> Job:
        self.made += 1
        return Job(f"request-{self.made}", tuple(tuple(s) for s in segments), options, time.time() + seconds)

    def value(self, name: str, **labels: str) -> float:
        found = self.registry.get_sample_value(f"translation_{name}", {"model": "toy", **labels})
        assert found is not None, name
        return found

    async def until(self, condition) -> None:
        import asyncio

        deadline = time.monotonic() + 5.0
        while not condition():
            assert time.monotonic() < deadline, "it did not happen within five seconds"
            await asyncio.sleep(0.002)


@contextmanager
def toy_engine(
    options: EngineOptions | None = None, limits: BatcherLimits | None = None, kind: type[Batcher] = Batcher
) -> Iterator[ToyEngine]:
    stepper = ToyStepper()
    registry = open_registry("engine")
    metrics = EngineMetrics(
        registry, ModelLabels(model="toy", version="1", precision="f32", provider="cpu", operators="stock")
    )
    engine = Engine(kind(stepper, limits), metrics, options)
    try:
        yield ToyEngine(engine, stepper, metrics, registry)
    finally:
        stepper.gate.set()
        engine.stop()


def alone(source, options=GREEDY):
    """What a source gives by itself, by the slow twin of the search."""
    return reference_search(LANGUAGE, tuple(source), options, options.limit(len(source), POSITIONS))[0]


def source(*words: int) -> tuple[int, ...]:
    return (*words, EOS)

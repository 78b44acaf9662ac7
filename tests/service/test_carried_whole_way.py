"""Over HTTP, what is no language comes back exactly, with the bundle that ships and with networks with sentinels."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from model.bundle import Bundle
from model.decode.batcher import Batcher
from model.decode.reference import ReferenceStepper
from service.api.application import build_api
from service.cli import main
from service.engine.engine import Engine
from service.engine.opening import open_engine
from service.ingress.backend import Backend
from service.ingress.deployment import serve_model
from service.metrics.families import EngineMetrics, HttpMetrics, ModelLabels, RequestMetrics, open_registry
from service.settings import Settings
from tests.service.tiny_bundle import tiny_bundle

SHIPPED = Path(__file__).resolve().parents[2] / "service" / "bundled" / "en-de"
TEXTS = {
    "See https://example.org/a_b/c-1?x=1&y=%20z#part-2 or write to info@example.org.": (
        "https://example.org/a_b/c-1?x=1&y=%20z#part-2",
        "info@example.org",
    ),
    'Hi %1$s, you have %d new files in <b class="n">%2$s</b>.': ("%1$s", "%d", '<b class="n">%2$s</b>'),
    "VAT no. XX0777700011, order 2000000420, ref. 10-00-111.": ("XX0777700011", "2000000420", "10-00-111"),
    "Open the file `a  b.txt` in v1.2.3 at 10:30, 🙈 please.": ("`a  b.txt`", "v1.2.3", "10:30", "🙈"),
    "It&#39;s 744,49 € for {name}, {{count}} or ${x}.": ("&#39;", "744,49", "{name}", "{{count}}", "${x}"),
}


FIRST_SENTINEL = 384 - 32


def forgetful(source: tuple[int, ...], history: tuple[int, ...]) -> np.ndarray:
    """A network that would say the words of the source and end, and holds its sentinels for unlikely."""
    words = [token for token in source if token < FIRST_SENTINEL]  # EOS last
    said = [token for token in history if token < FIRST_SENTINEL]
    scores = np.full(384, -20.0, np.float32)
    scores[FIRST_SENTINEL:] = -15.0
    scores[[token for token in source if token >= FIRST_SENTINEL and token not in history]] = -4.0
    scores[words[min(len(said), len(words) - 1)]] = 0.0
    return (scores - np.log(np.exp(scores).sum())).astype(np.float32)


class Client:
    def __init__(self, http: httpx.AsyncClient, registry) -> None:
        self.http, self.registry = http, registry

    async def slots(self, *texts: str, **options) -> list[dict]:
        body = {"text": list(texts), "source": "en", "target": "de", **options}
        reply = await self.http.post("/v1/translate", json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()["translations"]

    def fragmented(self) -> float:
        name = "translation_fragmented_segments_total"
        return sum(s.value for m in self.registry.collect() for s in m.samples if s.name == name)


@asynccontextmanager
async def client(path: Path, engine: Engine | None = None):
    bundle, settings = Bundle.open(path), Settings(bundles=(path,), max_slots=6)
    if engine is None:
        engine, _ = open_engine(bundle, settings, open_registry("engine"))
    registry = open_registry("ingress")
    metrics = RequestMetrics(registry)
    model = serve_model(bundle, settings, engine)
    backend = Backend([model], metrics, lambda: asyncio.sleep(0, ""))
    api = build_api(backend, settings, HttpMetrics(open_registry("ingress")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as http:
        yield Client(http, registry)
    engine.stop()


def assert_carried(slots: list[dict]) -> None:
    for slot, (text, spans) in zip(slots, TEXTS.items(), strict=True):
        for span in spans:
            assert slot["text"].count(span) == text.count(span), (span, slot["text"])


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"sampling": {"seed": 3}, "max_length": 40}])
async def test_the_bundle_that_ships_loses_nothing(options):
    async with client(SHIPPED) as service:
        assert_carried(await service.slots(*TEXTS, **options))


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"n_best": 2, "return_scores": True}])
async def test_a_random_network_with_sentinels_loses_nothing_and_says_what_was_fragmented(options):
    async with client(tiny_bundle(sentinels=True)) as service:
        slots = await service.slots(*TEXTS, max_length=25, **options)
        assert_carried(slots)
        assert service.fragmented() >= sum(slot.get("fragmented", False) for slot in slots) > 0


@pytest.mark.parametrize("beam_size", [1, 3])
async def test_a_network_that_would_forget_is_made_to_carry(beam_size):
    labels = ModelLabels(model="toy", version="1", precision="f32", provider="cpu", operators="stock")
    stepper = ReferenceStepper(forgetful, 384, 224)
    engine = Engine(Batcher(stepper), EngineMetrics(open_registry("engine"), labels))
    async with client(tiny_bundle(sentinels=True), engine) as service:
        slots = await service.slots(*TEXTS, "Nothing here.", beam_size=beam_size, repetition_guard=False)
        assert_carried(slots[:-1])
        assert not any(slot.get("fragmented") for slot in slots)
        assert service.fragmented() == 0
        assert "you have" in slots[1]["text"]


async def test_a_token_of_what_is_carried_is_shown_as_what_it_stands_for():
    labels = ModelLabels(model="toy", version="1", precision="f32", provider="cpu", operators="stock")
    engine = Engine(Batcher(ReferenceStepper(forgetful, 384, 224)), EngineMetrics(open_registry("engine"), labels))
    async with client(tiny_bundle(sentinels=True), engine) as service:
        (slot,) = await service.slots("See A4 now.", return_scores=True)
        assert "A4" in [token["token"] for token in slot["scores"]["tokens"]]


async def test_a_prefix_goes_on_beside_what_is_carried():
    async with client(SHIPPED) as service:
        (slot,) = await service.slots("Open the file.", prefix="Die 3")
        assert slot["text"].startswith("Die 3")


async def test_beside_a_prefix_nothing_is_lost_either():
    address = "https://example.org/a_b/c-1?x=1&y=%20z#part-2"
    async with client(SHIPPED) as service:
        slots = await service.slots(
            f"See {address} for 37 details in <b>this</b> file.", "Call 0171-55512 now.", prefix="Bitte", beam_size=2
        )
        for slot, spans in zip(slots, ((address, "37", "<b>", "</b>"), ("0171-55512",)), strict=True):
            assert [slot["text"].count(span) for span in spans] == [1] * len(spans), slot
            assert slot["text"].startswith("Bitte")


def test_the_command_line_loses_nothing_either(tmp_path, monkeypatch, capsysbinary):
    lines = tmp_path / "in.txt"
    lines.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    with lines.open() as source:
        monkeypatch.setattr("sys.stdin", source)
        assert main(["translate", "--source", "en", "--target", "de", "--threads", "1"]) == 0
    found = capsysbinary.readouterr().out.decode().splitlines()
    assert_carried([{"text": line} for line in found])

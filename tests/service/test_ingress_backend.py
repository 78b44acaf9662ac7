"""The backend: texts in, texts out, with real pipelines, a real engine and a tiny model, but without Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace

import httpx
import pytest

from model.bundle import Bundle
from service.api.application import build_api
from service.api.ports import TranslateCommand, Translation
from service.engine.opening import open_engine
from service.errors import EngineFailed, EngineUnavailable, InvalidRequest, Overloaded, UnsupportedPair
from service.ingress.backend import Backend, BackendOptions
from service.ingress.deployment import UNKNOWN, serve_model
from service.ingress.readiness import Readiness
from service.jobs import Job, Result, SegmentResult
from service.languages import Pair
from service.logs import JsonFormatter
from service.metrics.families import HttpMetrics, ModelLabels, RequestMetrics, open_registry
from service.metrics.snapshots import exposition, take
from service.settings import Settings
from tests.service.tiny_bundle import tiny_bundle

EN_DE = Pair("en", "de")


class Engines:
    """Counts what it is asked, and answers through `reply`."""

    def __init__(self, reply) -> None:
        self.reply, self.jobs = reply, []

    async def translate(self, job: Job) -> Result:
        self.jobs.append(job)
        reply = self.reply(job)
        return await reply if asyncio.iscoroutine(reply) else reply


def echo(job: Job) -> Result:
    """Each segment's own ids, as if they were its translation."""
    return Result(tuple(SegmentResult(ids[:-1], -1.0, False) for ids in job.segments), 0.25, 0.5)


def refuse(job: Job) -> Result:
    raise EngineUnavailable()


def make_backend(reply=echo, **options):
    """A backend over the tiny bundle; its engines and its registry."""
    settings = Settings(bundles=(tiny_bundle(),))
    registry = open_registry("ingress")
    metrics = RequestMetrics(registry)
    engines = Engines(reply)
    model = serve_model(Bundle.open(tiny_bundle()), settings, engines)

    async def scrape() -> str:
        return exposition(take(registry))

    return Backend([model], metrics, scrape, BackendOptions(**options)), engines, registry


def command(*texts: str, **options) -> TranslateCommand:
    return TranslateCommand(request_id="an-id", texts=texts, pair=EN_DE, deadline=time.time() + 10, **options)


async def test_texts_come_back_in_order_with_what_is_not_language_in_its_place():
    backend, engines, _ = make_backend()
    texts = ("  Yes.  ", "", "Twelve.\n\nThanks.\n", "→")
    answer = await backend.translate(command(*texts))
    assert [translation.text for translation in answer.translations] == list(texts)
    assert answer.model == "tiny-en-de"
    assert (answer.queue_seconds, answer.inference_seconds) == (0.25, 0.5)
    (job,) = engines.jobs
    assert job.request_id == "an-id"
    assert answer.source_tokens == sum(map(len, job.segments))
    assert answer.target_tokens == answer.source_tokens - len(job.segments)


async def test_what_holds_no_language_needs_no_engine():
    backend, engines, _ = make_backend(refuse)
    answer = await backend.translate(command(" ", "\n", "…"))
    assert [translation.text for translation in answer.translations] == [" ", "\n", "…"]
    assert engines.jobs == []


async def test_large_texts_take_the_same_way():
    backend, engines, _ = make_backend()
    text = "Keep to the marked path. " * 400
    (translation,) = (await backend.translate(command(text))).translations
    assert translation.text == text
    assert len(engines.jobs[0].segments) == 1, "equal segments are sent once"


async def test_a_refused_segment_is_a_refusal_in_the_slot_of_its_text():
    def reply(job):
        results = list(echo(job).segments)
        results[1] = SegmentResult((), 0.0, False, "engine_failed")
        return Result(tuple(results), 0.0, 0.0)

    backend, _, _ = make_backend(reply)
    one, two, three = (await backend.translate(command("Yes.", "Twelve.", "Thanks."))).translations
    assert isinstance(two, EngineFailed)
    assert (one, three) == (Translation("Yes.", False), Translation("Thanks.", False))


async def test_a_request_gets_the_models_defaults_where_it_names_none():
    backend, engines, _ = make_backend()
    await backend.translate(command("Yes."))
    await backend.translate(command("Yes.", beam_size=5, length_penalty=1.0))
    assert [(job.options.beam_size, job.options.length_penalty) for job in engines.jobs] == [(2, 0.6), (5, 1.0)]
    with pytest.raises(InvalidRequest):
        await backend.translate(command("Yes.", beam_size=99))


async def test_a_pair_that_is_not_served_is_refused():
    backend, _, _ = make_backend()
    assert backend.pairs() == (EN_DE,)
    with pytest.raises(UnsupportedPair):
        await backend.translate(replace(command("Yes."), pair=Pair("de", "en")))


async def test_every_request_is_counted_once_answered_or_not():
    backend, engines, registry = make_backend()
    await backend.translate(command("Yes.", "Twelve."))
    engines.reply = refuse
    with pytest.raises(EngineUnavailable):
        await backend.translate(command("Yes."))
    value = registry.get_sample_value
    model = {"model": "tiny-en-de"}
    assert value("translation_requests_total", model) == 2
    assert value("translation_request_failures_total", {**model, "reason": "engine_unavailable"}) == 1
    assert value("translation_texts_total", {**model, "source_lang": "en", "target_lang": "de"}) == 2
    assert value("translation_tokenize_seconds_count", model) == 2


async def test_a_caller_that_leaves_is_counted_and_the_engine_hears_of_it():
    cancelled = asyncio.Event()

    async def hang() -> Result:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    backend, _, registry = make_backend(lambda job: hang())
    call = asyncio.create_task(backend.translate(command("Yes.")))
    await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cancelled.is_set()
    labels = {"model": "tiny-en-de", "reason": "cancelled"}
    assert registry.get_sample_value("translation_request_failures_total", labels) == 1


async def test_time_that_ran_out_is_no_caller_that_left():
    """The API sees the deadline first, and cancels."""
    backend, _, registry = make_backend(lambda job: asyncio.sleep(60))
    late = replace(command("Yes."), deadline=time.time() + 0.05)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await backend.translate(late)
    labels = {"model": "tiny-en-de", "reason": "deadline_exceeded"}
    assert registry.get_sample_value("translation_request_failures_total", labels) == 1


async def test_a_prefix_is_for_the_beginning_of_a_text_even_if_the_same_words_stand_elsewhere():
    def forgetful(job: Job) -> Result:
        asked.append(job)
        return Result(tuple(SegmentResult((5,), -1.0, False) for _ in job.segments), 0.0, 0.0)

    asked: list[Job] = []
    backend, _, _ = make_backend(forgetful)
    await backend.translate(command("open %s and %s copy it", "and %s is copied", prefix="the"))
    encode = Bundle.open(tiny_bundle()).tokenizer().encode
    whole, inner, first = asked
    assert len(whole.segments) == 2
    assert set(first.segments) == {tuple(encode("open")), tuple(encode("and"))}
    assert first.options.prefix == whole.options.prefix
    assert set(inner.segments) == {tuple(encode(text)) for text in ("and", "copy it", "is copied")}
    assert inner.options.prefix == ()


async def test_sentences_are_cut_to_what_the_network_has_positions_for():
    bundle = Bundle.open(tiny_bundle())
    most = bundle.config.max_positions
    settings = Settings(bundles=(tiny_bundle(),), max_source_tokens=10 * most)
    pipeline = serve_model(bundle, settings, Engines(echo)).pipelines[EN_DE]
    prepared = pipeline.prepare(["open the file and " * 200])
    assert len(prepared.segments) >= 2
    assert max(map(len, prepared.segments)) <= most


async def test_a_model_says_what_really_runs_once_an_engine_has_said_so():
    backend, _, _ = make_backend()
    (info,) = backend.models()
    assert (info.name, info.version) == ("tiny-en-de", "7")
    assert {info.provider, info.precision, info.operators} == {UNKNOWN}
    backend.introduce(
        ModelLabels(model="tiny-en-de", version="7", precision="int8", provider="cpu", operators="native")
    )
    (info,) = backend.models()
    assert (info.provider, info.precision, info.operators) == ("cpu", "int8", "native")


async def test_ready_means_that_a_translation_just_worked():
    backend, engines, _ = make_backend()
    assert (await backend.ready()).ready
    (job,) = engines.jobs
    assert job.options.beam_size == 1
    assert job.deadline < time.time() + 6


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (refuse, "engine_unavailable"),
        (lambda job: Result((SegmentResult((), 0.0, False, "engine_failed"),), 0.0, 0.0), "engine_failed"),
        (lambda job: Result((SegmentResult((), 0.0, False),), 0.0, 0.0), "the translation is empty"),
        (lambda job: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_it_is_not_ready_when_the_trial_does_not_work(reply, reason):
    backend, _, _ = make_backend(reply)
    report = await backend.ready()
    assert not report.ready
    assert report.models == {"tiny-en-de": reason}


async def test_many_probes_at_once_cost_one_translation():
    backend, engines, _ = make_backend(ready_fresh=0.2)
    await asyncio.gather(*(backend.ready() for _ in range(50)))
    assert len(engines.jobs) == 1
    await asyncio.sleep(0.25)
    await backend.ready()
    assert len(engines.jobs) == 2


async def test_under_load_the_requests_themselves_are_the_proof_that_it_is_ready():
    backend, engines, _ = make_backend()
    await backend.translate(command("Yes."))
    engines.reply = refuse
    assert (await backend.ready()).ready
    assert len(engines.jobs) == 1


async def test_a_full_queue_of_a_model_that_works_is_no_reason_to_send_callers_elsewhere():
    def full(job: Job) -> Result:
        raise Overloaded()

    backend, engines, _ = make_backend(full, ready_fresh=0.02)
    assert (await backend.ready()).models == {"tiny-en-de": "overloaded"}  # nothing has ever worked
    engines.reply = echo
    await backend.translate(command("Yes."))
    engines.reply = full
    await asyncio.sleep(0.03)
    assert (await backend.ready()).ready
    busy = Readiness(lambda: asyncio.sleep(0, "overloaded"), fresh_seconds=0.0, busy_seconds=0.05)
    busy.worked()
    assert await busy.ask() is None
    await asyncio.sleep(0.06)
    assert await busy.ask() == "overloaded"


async def test_it_turns_red_soon_after_the_last_translation_that_worked_and_green_again():
    backend, engines, _ = make_backend(ready_fresh=0.05)
    assert (await backend.ready()).ready
    engines.reply = refuse
    await asyncio.sleep(0.06)
    assert not (await backend.ready()).ready
    engines.reply = echo
    await asyncio.sleep(0.06)
    assert (await backend.ready()).ready


@pytest.fixture
async def whole():
    """HTTP to network and back in one process: the real engine on the tiny model, behind the real API."""
    settings = Settings(bundles=(tiny_bundle(),))
    registry = open_registry("engine")
    engine, labels = open_engine(Bundle.open(tiny_bundle()), settings, registry)
    assert labels.provider == "cpu"
    backend, _, _ = make_backend(engine.translate)
    api = build_api(backend, settings, HttpMetrics(open_registry("ingress")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as client:
        yield client, engine
    engine.stop()


async def test_the_whole_way_in_one_process(whole):
    client, _ = whole
    body = {"text": ["Yes.", "Seven boats left at dawn.\n"], "source": "en", "target": "de"}
    reply = await client.post("/v1/translate", json=body)
    assert reply.status_code == 200
    one, two = reply.json()["translations"]
    assert one["text"]
    assert two["text"].endswith("\n")
    assert (await client.post("/v1/translate", json=body)).json()["translations"] == [one, two]


async def test_a_crash_in_the_engine_is_a_5xx_with_an_id_that_is_in_the_log(whole, monkeypatch, caplog):
    client, engine = whole

    def crash(*_):
        raise RuntimeError("no memory for this batch")

    monkeypatch.setattr(engine._loop._batcher._stepper, "start", crash)
    with caplog.at_level(logging.INFO):
        body = {"text": "Seven boats left at dawn.", "source": "en", "target": "de"}
        reply = await client.post("/v1/translate", json=body)
    assert reply.status_code == 500
    error = reply.json()["error"]
    assert error["code"] == "engine_failed"
    request_id = reply.headers["x-request-id"]
    lines = [JsonFormatter().format(record) for record in caplog.records]
    ours = [json.loads(line) for line in lines if json.loads(line).get("request_id") == request_id]
    assert {"dragoman.engine", "dragoman.api"} <= {line["logger"] for line in ours}
    assert "no memory for this batch" in "".join(lines)
    assert "no memory" not in reply.text
    assert "boats" not in "".join(lines)

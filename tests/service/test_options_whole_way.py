"""Options over HTTP, through the real engine on a tiny model: what each does, and that nobody else notices."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx
import pytest

from model.bundle import Bundle
from model.decode.options import DecodeOptions
from service.api.application import build_api
from service.engine.opening import open_engine
from service.errors import DeadlineExceeded
from service.ingress.backend import Backend
from service.ingress.deployment import serve_model
from service.jobs import Job
from service.metrics.families import HttpMetrics, RequestMetrics, open_registry
from service.settings import Settings
from tests.model.networks import TEXTS
from tests.service.tiny_bundle import copying_bundle, heedless_bundle, tiny_bundle

SENTENCE = "Seven boats left at dawn."
SHORT = {"max_length": 12}
"""A random network hardly ever ends by itself."""


class Client:
    """Posts texts to a service in this process."""

    def __init__(self, http: httpx.AsyncClient, engine, registry) -> None:
        self.http, self.engine, self.registry = http, engine, registry

    async def post(self, text, **options) -> httpx.Response:
        return await self.http.post("/v1/translate", json={"text": text, "source": "en", "target": "de", **options})

    async def slot(self, text, **options) -> dict:
        reply = await self.post(text, **options)
        assert reply.status_code == 200, reply.text
        (slot,) = reply.json()["translations"]
        return slot

    def counted(self, name: str) -> float:
        return self.registry.get_sample_value(f"translation_{name}_total", {"model": "tiny-en-de"})


@asynccontextmanager
async def serving(path, **changes):
    bundle, settings = Bundle.open(path), Settings(bundles=(path,), max_slots=6, **changes)
    registry = open_registry("engine")
    engine, _ = open_engine(bundle, settings, registry)
    metrics = RequestMetrics(open_registry("ingress"))
    model = serve_model(bundle, settings, engine)
    backend = Backend([model], metrics, lambda: asyncio.sleep(0, ""))
    api = build_api(backend, settings, HttpMetrics(open_registry("ingress")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://test") as http:
        yield Client(http, engine, registry)
    engine.stop()


@pytest.fixture(params=["f32", "int8"])
async def client(request, each_set_of_operators):
    async with serving(tiny_bundle(), precision=request.param, operators=each_set_of_operators) as client:
        yield client


async def test_a_wider_beam_scores_at_least_as_well(client):
    options = {"return_scores": True, "length_penalty": 0, "repetition_guard": False, **SHORT}
    scores = [(await client.slot(SENTENCE, beam_size=size, **options))["scores"]["score"] for size in (1, 8)]
    assert scores[0] <= scores[1]


async def test_n_best_answers_with_different_alternatives_best_first(client):
    slot = await client.slot(SENTENCE, n_best=4, **SHORT)
    found = slot["alternatives"]
    assert 1 < len(found) <= 4
    assert found[0]["text"] == slot["text"]
    assert len({one["text"] for one in found}) == len(found)


async def test_scores_add_up_and_name_the_tokens(client):
    slot = await client.slot(SENTENCE, return_scores=True, length_penalty=0, **SHORT)
    scores = slot["scores"]
    assert sum(token["log_probability"] for token in scores["tokens"]) == pytest.approx(scores["log_probability"])
    assert scores["score"] == pytest.approx(scores["log_probability"])
    assert slot["truncated"] == (scores["tokens"][-1]["token"] != "</s>")
    assert len(scores["tokens"]) <= 12


async def test_a_prefix_is_carried_on_and_costs_nothing(client):
    slot = await client.slot(SENTENCE, prefix="Keep to the", return_scores=True)
    assert slot["text"].startswith("Keep to the")
    assert len(slot["text"]) > len("Keep to the")
    assert slot["scores"]["tokens"][0]["log_probability"] == 0.0


async def test_a_prefix_needs_texts_of_one_sentence_and_others_are_refused_in_their_slots(client):
    reply = await client.post([SENTENCE, "One here. Two there.", "→", "Thanks."], prefix="Keep", **SHORT)
    slots = reply.json()["translations"]
    assert [slot.get("error", {}).get("field") for slot in slots] == [None, "prefix", "prefix", None]
    assert slots[0]["text"].startswith("Keep")
    assert slots[3]["text"].startswith("Keep")
    assert "this one has 2" in slots[1]["error"]["message"]
    alone = await client.post("One here. Two there.", prefix="Keep")
    assert (alone.status_code, alone.json()["error"]["field"]) == (422, "prefix")


async def test_a_prefix_that_fills_the_models_positions_is_refused_as_too_long(client):
    reply = await client.post(SENTENCE, prefix="the boat " * 200)
    assert reply.json()["error"]["code"] == "text_too_long"


async def test_a_word_that_is_suppressed_does_not_come(client):
    tokenizer = Bundle.open(tiny_bundle()).tokenizer()

    async def tokens(**options) -> list[str]:
        slot = await client.slot(SENTENCE, return_scores=True, **options, **SHORT)
        return [token["token"] for token in slot["scores"]["tokens"]]

    def is_word(token: str) -> bool:
        return token.startswith("▁") and tokenizer.pieces(tokenizer.encode(token[1:])[:-1]) == [token]

    for seed in range(30):
        sampling = {"sampling": {"seed": seed}}
        words = sorted({token[1:] for token in await tokens(**sampling) if is_word(token)})
        if words:
            break
    assert words
    after = await tokens(**sampling, suppress=words)
    assert not {f"▁{word}" for word in words} & set(after)


async def test_lengths_are_kept(client):
    for shortest, longest in ((5, 5), (9, 30)):
        slot = await client.slot(SENTENCE, min_length=shortest, max_length=longest, return_scores=True)
        assert shortest <= len(slot["scores"]["tokens"]) <= longest


async def test_no_ngram_comes_twice_where_that_is_asked(client):
    slot = await client.slot(SENTENCE, no_repeat_ngram=2, return_scores=True, beam_size=1)
    tokens = [token["token"] for token in slot["scores"]["tokens"]]
    assert max(Counter(pairwise(tokens)).values()) == 1


async def test_samples_differ_by_seed_and_are_the_same_for_the_same_one(client):
    texts = [(await client.slot(SENTENCE, sampling={"seed": seed}, **SHORT))["text"] for seed in (1, 2, 3, 1)]
    assert texts[0] == texts[3]
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"beam_size": 2, "n_best": 3}, "n_best"),
        ({"beam_size": 2, "sampling": {}}, "beam_size"),
        ({"n_best": 2, "sampling": {}}, "n_best"),
        ({"min_length": 9, "max_length": 8}, "max_length"),
        ({"prefix": "Keep to the marked path", "max_length": 2}, "max_length"),
        ({"coverage_penalty": 0.2, "beam_size": 1}, "coverage_penalty"),
        ({"coverage_penalty": 0.2, "sampling": {}}, "coverage_penalty"),
    ],
)
async def test_options_that_contradict_are_a_422_that_names_one(client, options, field):
    reply = await client.post(SENTENCE, **options)
    assert (reply.status_code, reply.json()["error"]["field"]) == (422, field)


async def test_a_loop_is_translated_again_counted_and_said(client):
    loops = []
    for text in (text for text in TEXTS if text.isascii() and not any(map(str.isdigit, text))):
        slot = await client.slot(text, beam_size=1)
        if slot.get("repetition_guard"):
            loops.append(text)
            left = await client.slot(text, beam_size=1, repetition_guard=False)
            assert left["text"] != slot["text"]
            assert "repetition_guard" not in left
    assert loops, "the tiny network must loop on one of the texts"
    assert client.counted("repetition_guards") == len(loops)


async def test_to_ask_for_an_alignment_changes_nothing_else(client):
    for text in (SENTENCE, "  One here.\n\n- Two there. \tThree 😀\n", " → "):
        options = {"n_best": 2, "return_scores": True, **SHORT}
        plain, aligned = await client.slot(text, **options), await client.slot(text, alignment=True, **options)
        for slot in (aligned, *aligned["alternatives"]):
            made, links = slot["text"], slot.pop("alignment")
            assert links == sorted(links, key=lambda link: (link[2:], link[:2]))
            for start, end, there, until in links:
                assert 0 <= start < end <= len(text)
                assert 0 <= there < until <= len(made)
                assert not set(text[start:end] + made[there:until]) & set(" \t\n")
        assert aligned == plain


@pytest.mark.parametrize(
    "options", [{}, {"beam_size": 1}, {"coverage_penalty": 0.3, "n_best": 2}, {"prefix": "Please sign"}]
)
@pytest.mark.parametrize("precision", ["f32", "int8"])
async def test_a_copy_is_aligned_word_for_word(precision, options):
    text = "Please sign here and keep the blue copy."
    async with serving(copying_bundle(), precision=precision) as client:
        slot = await client.slot(text, alignment=True, **options)
    words = [(text[start:end], slot["text"][there:until]) for start, end, there, until in slot["alignment"]]
    assert words == [(word, word) for word in [*text.rstrip(".").split(), "."]]


async def test_lines_and_sentences_are_aligned_where_they_stand():
    text = "  The cat slept.\tGood evening.\r\n\r\n- Thanks.\n"
    async with serving(copying_bundle()) as client:
        slot = await client.slot(text, alignment=True)
        several = (await client.post([text, "", "Yes."], alignment=True)).json()["translations"]
    assert slot["text"] == text
    assert [text[start:end] for start, end, *_ in slot["alignment"]] == [
        "The",
        "cat",
        "slept",
        ".",
        "Good",
        "evening",
        ".",
        "-",
        "Thanks",
        ".",
    ]
    assert all(link[:2] == link[2:] for link in slot["alignment"])
    assert several[0] == slot
    assert [len(one["alignment"]) for one in several[1:]] == [0, 2]


async def test_coverage_has_a_price(client):
    plain, covered = [
        (await client.slot(SENTENCE, n_best=2, coverage_penalty=beta, **SHORT))["alternatives"] for beta in (0, 10)
    ]
    assert covered[0]["score"] < plain[-1]["score"]
    assert plain == (await client.slot(SENTENCE, n_best=2, **SHORT))["alternatives"]


@pytest.mark.parametrize(("field", "value"), [("alignment", True), ("coverage_penalty", 0.2)])
async def test_a_bundle_without_attending_decoders_refuses_by_name_and_does_all_else(field, value):
    async with serving(heedless_bundle()) as client, serving(tiny_bundle()) as other:
        reply = await client.post(SENTENCE, **{field: value})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"], error["field"]) == (422, "unsupported_option", field)
        assert f"{field} needs a model with an attending decoder, but heedless 7 has none" in error["message"]
        nothing = {field: type(value)(0)}
        assert await client.slot(SENTENCE, **nothing, **SHORT) == await other.slot(SENTENCE, **SHORT)
        models = [(await each.http.get("/v1/models")).json()["models"][0] for each in (client, other)]
        assert [model["alignment"] for model in models] == [False, True]


def random_options(rng: random.Random) -> dict:
    options: dict = {"max_length": rng.choice([6, 12, 20]), "return_scores": True}
    if rng.random() < 0.25:
        return {**options, "sampling": {"top_k": rng.choice([0, 5]), "seed": rng.randrange(5)}}
    for name, values in {
        "beam_size": [1, 2, 4],
        "no_repeat_ngram": [1, 2, 3],
        "repetition_penalty": [1.5],
        "min_length": [5],
        "prefix": ["Keep to"],
        "suppress": [["the", "boat"]],
        "alignment": [True],
    }.items():
        if rng.random() < 0.4:
            options[name] = rng.choice(values)
    if options.get("beam_size", 2) > 1 and rng.random() < 0.4:
        options["coverage_penalty"] = rng.choice([0.2, 2.0])
    return {**options, "n_best": options.get("beam_size", 2)}


POISON = "He lost his left glove."


async def overdue(engine) -> None:
    """A job whose time runs out while it runs: far more work than fits into it on any machine."""
    sources = tuple(tuple(range(4, 20 + row)) for row in range(24))
    job = Job("overdue", sources, DecodeOptions(beam_size=16, repetition_penalty=1.5), time.time() + 0.04)
    with pytest.raises(DeadlineExceeded):
        await engine.translate(job)


async def test_callers_with_random_options_get_what_they_get_alone_bit_for_bit(client, monkeypatch):
    """Among callers that leave, that run out of time, that break the network, and whose options are refused."""
    rng, tokenizer = random.Random(3), Bundle.open(tiny_bundle()).tokenizer()
    asked = [(text, random_options(rng)) for text in rng.sample([text for text in TEXTS if text != POISON], 12)]
    alone = [(await client.post(text, **options)).json()["translations"] for text, options in asked]
    stepper = client.engine._loop._batcher._stepper
    start = stepper.start

    def breaking(sources, *rest):
        if tuple(tokenizer.encode(POISON)) in map(tuple, sources):
            raise MemoryError("no room")
        return start(sources, *rest)

    monkeypatch.setattr(stepper, "start", breaking)

    async def later(text, options):
        await asyncio.sleep(rng.random() * 0.05)
        return (await client.post(text, **options)).json()["translations"]

    leaving = asyncio.create_task(client.post([*TEXTS[:4]], beam_size=8, sampling=None))
    others = asyncio.gather(
        overdue(client.engine), client.post(POISON, n_best=2), client.post(TEXTS[0], prefix="the boat " * 200)
    )
    order = rng.sample(range(len(asked)), len(asked))
    together = asyncio.gather(*(later(*asked[i]) for i in order))
    await asyncio.sleep(0.03)
    leaving.cancel()
    assert await together == [alone[i] for i in order]
    _, broken, refused = await others
    assert broken.json()["error"]["code"] == "engine_failed"
    assert refused.json()["error"]["code"] == "text_too_long"

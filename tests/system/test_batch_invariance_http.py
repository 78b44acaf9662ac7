"""200 real texts through HTTP, Ray Serve and the shipped model: the same translation and score for every text, whoever
is translated with it, in whatever order, however many ask at once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.english import texts
from tests.service.test_options_whole_way import random_options
from tests.system.running_service import RunningService, say

pytestmark = pytest.mark.slow

CALLERS = 16
ROUNDS = 2
SCORED = {"return_scores": True}


def ask(service: RunningService, wanted: list[str], **options: object) -> list[dict]:
    body = {"text": wanted, "source": "en", "target": "de", **options}
    answer = service.call("/v1/translate", body, timeout=120.0)
    assert answer.status == 200, answer.body
    return answer.body["translations"]


@pytest.fixture(scope="module")
def alone(served) -> dict[str, dict]:
    """The slot of each text that was asked for when nobody else was there."""
    return {text: ask(served, [text], **SCORED)[0] for text in texts()}


@pytest.fixture(scope="module")
def others(served) -> list[tuple[str, dict, dict]]:
    """Texts with options of their own, and their slots when they were alone."""
    rng = random.Random(5)
    asked = [(text, random_options(rng)) for text in rng.sample([text for text in texts() if len(text) < 200], 40)]
    found = []
    for text, options in asked:
        body = {"text": [text], "source": "en", "target": "de", **options}
        (slot,) = served.call("/v1/translate", body).body["translations"]
        found.append((text, options, slot))
    return found


def batches(rng: random.Random) -> list[list[str]]:
    """Every text once, in random order, with as many others as chance will have it."""
    line, made = rng.sample(texts(), len(texts())), []
    while line:
        size = rng.choice([1, 1, 2, 5, 20])
        made.append(line[:size])
        line = line[size:]
    return made


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_text_gets_the_same_translation_and_score_in_any_company(served, alone, others, seed):
    rng = random.Random(seed)
    calls = [(batch, SCORED, [alone[text] for text in batch]) for batch in batches(rng)]
    calls += [([text], options, [slot]) for text, options, slot in others]
    rng.shuffle(calls)
    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(lambda call: ask(served, call[0], **call[1]), calls))
    for (batch, options, expected), slots in zip(calls, found, strict=True):
        assert slots == expected, f"differs in company: {batch}, {options}"
    say(f"{sum(len(batch) for batch, _, _ in calls)} texts in {len(calls)} requests by {CALLERS} callers")


def test_texts_differ_and_most_have_scores(alone):
    assert len(alone) >= 200
    scored = [slot for slot in alone.values() if slot["scores"]["tokens"]]
    assert len(scored) > 150

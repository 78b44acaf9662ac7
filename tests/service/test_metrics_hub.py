"""One exposition over all replicas: exact at the scrape, and no counter ever falls."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from service.metrics.families import open_registry
from service.metrics.hub import HubOptions, MetricsHub
from service.metrics.snapshots import exposition, lasting, merge, take


class Replica:
    """A source as `service.replica` drives it, without Ray."""

    def __init__(self, hub: MetricsHub, name: str) -> None:
        self.hub, self.name = hub, name
        self.registry = open_registry("engine")
        self.jobs = Counter("jobs", "Jobs.", ("model",), registry=self.registry).labels("en-de")
        self.rows = Gauge("rows", "Rows.", registry=self.registry)
        self.times = Histogram("times_seconds", "Times.", buckets=(0.1, 1.0), registry=self.registry)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> Replica:
        self.task = asyncio.create_task(self._inform())
        return self

    async def _inform(self) -> None:
        generation = 0
        while True:
            generation = await self.hub.exchange(self.name, take(self.registry), generation)

    async def kill(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def scrape(self) -> dict[str, float]:
        return values(await self.hub.scrape(self.name, take(self.registry)))


def values(text: str) -> dict[str, float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name + "".join(f" {v}" for v in sample.labels.values()): sample.value for sample in samples}


@pytest.fixture
async def cluster():
    """An ingress that scrapes and two engines, with a hub of little patience."""
    hub = MetricsHub(HubOptions(period=30.0, patience=0.2, silence=0.3))
    replicas = [Replica(hub, name) for name in ("ingress", "one", "two")]
    for replica in replicas[1:]:
        replica.start()
    await asyncio.sleep(0)
    yield replicas
    for replica in replicas:
        if replica.task is not None:
            replica.task.cancel()
    await asyncio.gather(*(r.task for r in replicas if r.task), return_exceptions=True)


async def test_a_scrape_holds_all_that_was_counted_anywhere_before_it(cluster):
    ingress, one, two = cluster
    for count in range(1, 6):
        one.jobs.inc()
        two.jobs.inc(2)
        ingress.jobs.inc(3)
        assert (await ingress.scrape())["jobs_total en-de"] == 6 * count


async def test_histograms_add_up_bucket_by_bucket_and_their_sums_are_exact(cluster):
    ingress, one, two = cluster
    one.times.observe(0.05)
    two.times.observe(0.5)
    two.times.observe(7.25)
    found = await ingress.scrape()
    assert [found[f"times_seconds_bucket {le}"] for le in ("0.1", "1.0", "+Inf")] == [1, 2, 3]
    assert found["times_seconds_sum"] == 7.8
    assert found["times_seconds_count"] == 3


async def test_gauges_add_up_over_the_living_only(cluster):
    ingress, one, two = cluster
    one.rows.set(3)
    two.rows.set(4)
    found = await ingress.scrape()
    assert found["rows"] == 7
    assert found["translation_replica_up engine"] == 3
    await two.kill()
    await asyncio.sleep(0.35)
    one.rows.set(5)
    await ingress.scrape()
    found = await ingress.scrape()
    assert found["rows"] == 5
    assert found["translation_replica_up engine"] == 2


async def test_counts_of_a_killed_replica_stay_and_never_fall(cluster):
    ingress, one, two = cluster
    two.jobs.inc(10)
    assert (await ingress.scrape())["jobs_total en-de"] == 10
    await two.kill()
    last = 10.0
    for _ in range(4):
        one.jobs.inc()
        found = (await ingress.scrape())["jobs_total en-de"]
        assert found == last + 1
        last = found
        await asyncio.sleep(0.1)


async def test_a_replica_that_leaves_brings_its_last_counts(cluster):
    ingress, _one, two = cluster
    await two.kill()
    two.jobs.inc(5)
    two.rows.set(9)
    await two.hub.leave("two", take(two.registry))
    found = await ingress.scrape()
    assert found["jobs_total en-de"] == 5
    assert found["rows"] == 0


async def test_a_replica_that_was_only_slow_is_counted_once_when_it_speaks_again(cluster):
    ingress, _one, two = cluster
    two.jobs.inc(10)
    await ingress.scrape()
    await two.kill()
    await asyncio.sleep(0.35)
    assert (await ingress.scrape())["jobs_total en-de"] == 10
    two.start()
    two.jobs.inc()
    await asyncio.sleep(0)
    assert (await ingress.scrape())["jobs_total en-de"] == 11


async def test_a_scrape_does_not_wait_long_for_a_replica_that_hangs(cluster):
    ingress, _one, two = cluster
    await two.kill()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await ingress.scrape()
    assert loop.time() - began < 1.0


async def test_scrapes_at_once_are_all_exact(cluster):
    ingress, one, _two = cluster
    one.jobs.inc(4)
    found = await asyncio.gather(*(ingress.scrape() for _ in range(10)))
    assert {each["jobs_total en-de"] for each in found} == {4}


async def test_many_deaths_are_remembered_in_little_space():
    hub = MetricsHub(HubOptions(remembered=3))
    ingress = Replica(hub, "ingress")
    for number in range(20):
        short_lived = Replica(hub, f"short-{number}")
        short_lived.jobs.inc()
        await hub.leave(short_lived.name, take(short_lived.registry))
    assert len(hub._retired) == 3
    assert (await ingress.scrape())["jobs_total en-de"] == 20


@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_merging_is_addition_in_any_order_and_any_grouping(counts, random):
    snapshots = []
    for count in counts:
        replica = Replica(MetricsHub(), "x")
        replica.jobs.inc(count)
        replica.times.observe(count)
        snapshots.append(lasting(take(replica.registry)))
    whole = merge(snapshots)
    random.shuffle(snapshots)
    cut = random.randrange(len(snapshots) + 1)
    assert merge([merge(snapshots[:cut]), merge(snapshots[cut:])]) == whole
    assert values(exposition(whole))["jobs_total en-de"] == sum(counts)


def test_a_snapshot_is_a_copy_that_later_counts_do_not_change():
    replica = Replica(MetricsHub(), "x")
    replica.jobs.inc()
    before = take(replica.registry)
    merge([before, before])
    replica.jobs.inc()
    assert values(exposition(before))["jobs_total en-de"] == 1

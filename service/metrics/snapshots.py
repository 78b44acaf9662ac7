"""Metrics of many processes as one exposition: take a snapshot of a registry, merge snapshots, write them as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.samples import Sample

from service.metrics.families import GREATEST

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and its labels, in the order in which they were declared."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its samples, ready to travel."""

    kind: str
    """counter, gauge or histogram."""
    help: str
    samples: dict[Series, float]


Snapshot = dict[str, Family]
"""Every metric of a process by name (a counter's name stands without `_total`)."""


def take(registry: CollectorRegistry) -> Snapshot:
    """The values of `registry` now."""
    return {
        metric.name: Family(
            metric.type,
            metric.documentation,
            {
                (sample.name, tuple(sample.labels.items())): float(sample.value)
                for sample in metric.samples
                if not sample.name.endswith("_created")
            },
        )
        for metric in registry.collect()
    }


def lasting(snapshot: Snapshot) -> Snapshot:
    """What is left of a process that ended: its counts stay true, its gauges do not."""
    return {name: family for name, family in snapshot.items() if family.kind != "gauge"}


def merge(snapshots: Iterable[Snapshot]) -> Snapshot:
    """One snapshot over all: values of the same series are added, or the greatest is taken (`metrics.GREATEST`)."""
    merged: Snapshot = {}
    for snapshot in snapshots:
        for name, family in snapshot.items():
            into = merged.setdefault(name, Family(family.kind, family.help, {})).samples
            for series, value in family.samples.items():
                before = into.get(series)
                if before is None:
                    into[series] = value
                else:
                    into[series] = max(before, value) if name in GREATEST else before + value
    return merged


class _Merged:
    """A snapshot as a collector, so that the client library escapes and formats it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for name, family in sorted(self._snapshot.items()):
            metric = Metric(name, family.help, family.kind)
            metric.samples = [Sample(sample, dict(labels), value) for (sample, labels), value in family.samples.items()]
            yield metric


def exposition(snapshot: Snapshot) -> str:
    """`snapshot` in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(snapshot))
    return generate_latest(registry).decode()

"""From settings to a running engine: which graphs, how many threads, how many CPUs there really are."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from model.bundle import Bundle
from model.decode.options import DecodeOptions
from model.errors import BundleError, ProviderError
from service.engine import opening
from service.engine.cpus import usable_cpus
from service.engine.opening import choose_precision, max_jobs_for, open_engine, threads_for
from service.jobs import Job
from service.metrics.families import open_registry
from service.settings import Settings
from tests.service.tiny_bundle import tiny_bundle


def holding(*precisions):
    return SimpleNamespace(path="/some/bundle", manifest=SimpleNamespace(precisions=dict.fromkeys(precisions)))


@pytest.mark.parametrize(
    ("precisions", "flags", "chosen"),
    [
        (["int8", "f32"], {}, "int8"),
        (["f32", "f16"], {}, "f32"),
        (["int8", "f32", "f16"], {"provider": "cuda", "engine_gpus": 1}, "f16"),
        (["int8", "f32"], {"provider": "cuda", "engine_gpus": 1}, "f32"),
        (["int8", "f32"], {"precision": "f32"}, "f32"),
    ],
)
def test_the_fastest_precision_that_the_provider_is_made_for_runs(precisions, flags, chosen):
    assert choose_precision(holding(*precisions), Settings(**flags)) == chosen


def test_a_bundle_without_a_fit_precision_is_refused():
    with pytest.raises(BundleError, match="must hold one of int8, f32 for cpu, but holds f16"):
        choose_precision(holding("f16"), Settings())


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ({"threads": 3}, 3),
        ({"bundles": "/a"}, 7),
        ({"bundles": "/a", "max_replicas": 2}, 3),
        ({"bundles": "/a", "max_replicas": 3}, 2),
        ({"bundles": "/a", "max_replicas": 20}, 1),
        ({"bundles": "/a:/b"}, 3),
        ({"profile": "cluster", "engine_cpus": 4}, 4),
        ({"profile": "cluster", "engine_cpus": 0.5}, 1),
        ({"profile": "cluster", "engine_cpus": 64}, 8),
    ],
)
def test_replicas_share_the_cpus_and_leave_one_to_the_rest(monkeypatch, flags, threads):
    monkeypatch.setattr(opening, "usable_cpus", lambda: 8)
    assert threads_for(Settings(**flags)) == threads


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "10000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 32),
        ({"cpu.max": "nonsense"}, 32),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 32),
        ({}, 32),
    ],
)
def test_a_containers_quota_counts_and_not_the_hosts_cores(monkeypatch, tmp_path, files, cpus):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(32)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cpus(tmp_path) == cpus


def test_the_engine_holds_enough_jobs_to_keep_its_batch_full():
    assert max_jobs_for(Settings(max_slots=4, max_ongoing=100)) == 100
    assert max_jobs_for(Settings(max_slots=64, max_ongoing=100)) == 512


async def test_an_opened_engine_translates_and_says_what_it_runs():
    bundle = Bundle.open(tiny_bundle())
    registry = open_registry("engine")
    engine, labels = open_engine(bundle, Settings(), registry)
    try:
        ids = tuple(bundle.tokenizer().encode("Seven boats left at dawn."))
        result = await engine.translate(Job("an-id", (ids,), DecodeOptions(), 4e9))
    finally:
        engine.stop()
    assert result.segments[0].ids
    info = {
        "model": "tiny-en-de",
        "version": "7",
        "precision": labels.precision,
        "provider": "cpu",
        "operators": labels.operators,
    }
    assert registry.get_sample_value("translation_model_info", info) == 1
    assert registry.get_sample_value("translation_model_load_seconds", {"model": "tiny-en-de"}) > 0


def test_an_engine_for_a_provider_that_is_not_there_does_not_open():
    settings = Settings(provider="cuda", engine_gpus=1)
    with pytest.raises(ProviderError, match="CUDAExecutionProvider"):
        open_engine(Bundle.open(tiny_bundle()), settings, open_registry("engine"))


def test_a_model_that_does_not_translate_does_not_start(monkeypatch):
    def silent(*_):
        raise RuntimeError("no weights")

    monkeypatch.setattr("model.runtime.stepper.OnnxStepper.step", silent)
    with pytest.raises(Exception, match="no weights"):
        open_engine(Bundle.open(tiny_bundle()), Settings(), open_registry("engine"))

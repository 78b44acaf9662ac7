from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.errors import SettingsError
from service.settings import BUNDLED, Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("DRAGOMAN_"):
            monkeypatch.delenv(name)


def test_the_defaults_stand_on_loopback_and_serve_the_bundles_that_ship():
    settings = Settings.load()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.bundles == (BUNDLED / "en-de", BUNDLED / "de-en")
    assert {path.name for path in settings.bundles} == {path.name for path in BUNDLED.iterdir()}
    assert settings.max_texts == 128


def test_every_setting_explains_itself():
    assert all(field.description for field in Settings.model_fields.values())


def test_flags_win_over_the_environment_and_that_over_the_profile(monkeypatch):
    assert Settings.load().max_replicas == 1
    monkeypatch.setenv("DRAGOMAN_PROFILE", "cluster")
    assert (Settings.load().max_replicas, Settings.load().host) == (8, "0.0.0.0")
    monkeypatch.setenv("DRAGOMAN_MAX_REPLICAS", "3")
    assert Settings.load().max_replicas == 3
    assert Settings.load({"max_replicas": "5"}).max_replicas == 5


def test_bundles_are_paths_with_colons_between_them(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_BUNDLES", "/a/one:two")
    assert Settings.load().bundles == (Path("/a/one"), tmp_path / "two")


def test_a_bundle_that_ships_is_known_by_its_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert Settings.load({"bundles": "en-de:/a/de-en"}).bundles == (BUNDLED / "en-de", Path("/a/de-en"))


def test_a_folder_that_is_there_comes_before_a_bundle_that_ships(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en-de").mkdir()
    assert Settings.load({"bundles": "en-de"}).bundles == (tmp_path / "en-de",)


def test_an_empty_variable_is_no_variable(monkeypatch):
    monkeypatch.setenv("DRAGOMAN_PORT", "")
    assert Settings.load().port == 8000


def test_settings_cannot_change_and_can_travel():
    settings = Settings.load({"port": 1})
    with pytest.raises(ValidationError):
        settings.port = 2
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_cuda_reserves_a_gpu_unless_told_otherwise():
    assert Settings.load({"provider": "cuda"}).engine_gpus == 1.0
    assert Settings.load({"provider": "cuda", "engine_gpus": "0.5"}).engine_gpus == 0.5


def test_a_misspelt_variable_is_named(monkeypatch):
    monkeypatch.setenv("DRAGOMAN_PROT", "80")
    with pytest.raises(SettingsError, match="DRAGOMAN_PROT"):
        Settings.load()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"prot": 1}, "prot"),
        ({"port": 70000}, "port: .*65535, but is 70000"),
        ({"port": "eighty"}, "port: .*'eighty'"),
        ({"max_texts": 0}, "max_texts"),
        ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"request_timeout_s": "nan"}, "request_timeout_s"),
        ({"profile": "moon"}, "profile: .*'laptop' or 'cluster'"),
        ({"bundles": ""}, "bundles must name at least one folder"),
        ({"bundles": "/a:/a"}, "bundles must be different folders"),
        ({"min_replicas": 2}, r"min_replicas must be at most max_replicas \(1\), but is 2"),
        ({"target_ongoing": 500}, "target_ongoing must be at most max_ongoing"),
        ({"max_source_tokens": 9999}, "max_batch_tokens must be at least max_source_tokens"),
        ({"max_queued_tokens": 10}, "max_queued_tokens must be at least max_batch_tokens"),
        ({"max_body_bytes": 10}, "max_body_bytes must be at least max_text_characters"),
        ({"ready_timeout_s": 60}, "ready_timeout_s must be at most request_timeout_s"),
        ({"engine_gpus": 1}, "engine_gpus must be 0 when provider is cpu"),
        ({"provider": "cuda", "engine_gpus": 0}, "engine_gpus must be above 0"),
        ({"provider": "cuda", "precision": "int8"}, "int8 graphs are made for the CPU"),
        ({"provider": "cuda", "operators": "native"}, "native ones are made for the CPU"),
        ({"precision": "f16"}, "f16 graphs are made for CUDA"),
        ({"engines": "within", "max_replicas": 2}, "engines must be auto or apart with max_replicas 2"),
        ({"engines": "within", "listener": "proxy"}, "engines must be auto or apart with listener proxy"),
    ],
)
def test_a_wrong_or_contradictory_setting_says_what_must_hold(flags, words):
    with pytest.raises(SettingsError, match=words):
        Settings.load(flags)


@pytest.mark.parametrize(
    ("flags", "within"),
    [
        ({}, True),
        ({"engines": "apart"}, False),
        ({"listener": "proxy"}, False),
        ({"min_replicas": 0}, False),
        ({"profile": "cluster"}, False),
        ({"bundles": "one:two"}, True),
        ({"bundles": "one:two", "max_replicas": 2}, False),
        ({"bundles": "one", "provider": "cuda"}, True),
        ({"bundles": "one:two", "provider": "cuda"}, False),
    ],
)
def test_engines_are_held_by_an_ingress_that_needs_one_for_each_bundle(flags, within):
    assert Settings.load(flags).holds_engines is within


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(SettingsError) as caught:
        Settings.load({"port": -1, "max_texts": "many"})
    assert len(str(caught.value).splitlines()) == 2

"""A whole bundle of a tiny random network, for tests that need a real engine but no real translation."""

from __future__ import annotations

import atexit
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from model.bundle import BundleContents, DecodingDefaults, write_bundle
from model.ports import ROLES
from model.tokenizer import SENTINELS
from tests.model.networks import Exported, exported, exported_copying, train_tokenizer
from training.subwords import with_sentinels


@cache
def tiny_bundle(*, sentinels: bool = False) -> Path:
    """Its folder; it translates English into German, in a way. Made once for the whole run of the tests.

    With `sentinels` these are the last pieces of its vocabulary, which is no larger for that.
    """
    return _written(exported("tied"), "tiny-en-de", sentinels=sentinels)


@cache
def copying_bundle() -> Path:
    """The folder of one that says its source again."""
    return _written(exported_copying(), "copying")


@cache
def heedless_bundle() -> Path:
    """The folder of the tiny one without attending decoders, as they were before there were any."""
    made = exported("tied")
    precisions = {
        precision: {name: {role: roles[role] for role in ROLES} for name, roles in graphs.items()}
        for precision, graphs in made.record.precisions.items()
    }
    return _written(replace(made, record=replace(made.record, precisions=precisions)), "heedless")


def _written(made: Exported, name: str, *, sentinels: bool = False) -> Path:
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    size = made.config.vocab_size
    tokenizer = train_tokenizer(folder, size - len(SENTINELS) if sentinels else size)
    if sentinels:
        tokenizer.write_bytes(with_sentinels(tokenizer.read_bytes()))
    contents = BundleContents(
        name=name,
        version="7",
        source_languages=("en",),
        target_languages=("de",),
        config=made.config,
        precisions=made.record.precisions,
        weights=made.record.weights,
        graph_files=made.record.files,
        tokenizer=tokenizer,
        model_card="# tiny\n",
        decoding=DecodingDefaults(beam_size=2, length_penalty=0.6),
        calibration=made.record.calibration,
    )
    return write_bundle(folder / name, contents).path

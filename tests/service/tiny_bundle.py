"""A whole bundle of a tiny random network, for tests that need a real engine but no real translation."""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from model.bundle import BundleContents, DecodingDefaults, write_bundle
from tests.model.networks import exported, train_tokenizer


@cache
def tiny_bundle() -> Path:
    """Its folder; it translates English into German, in a way. Made once for the whole run of the tests."""
    made = exported("tied")
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    contents = BundleContents(
        name="tiny-en-de",
        version="7",
        source_languages=("en",),
        target_languages=("de",),
        config=made.config,
        precisions=made.record.precisions,
        weights=made.record.weights,
        graph_files=made.record.files,
        tokenizer=train_tokenizer(folder, made.config.vocab_size),
        model_card="# tiny\n",
        decoding=DecodingDefaults(beam_size=2, length_penalty=0.6),
        calibration=made.record.calibration,
    )
    return write_bundle(folder / "tiny-en-de", contents).path

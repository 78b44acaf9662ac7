"""A bundle whose network never ends a sentence: each translation takes as long as the length limit lets it.

So a test of load knows that work stays work: source tokens + 50 steps for every sentence.
"""

from __future__ import annotations

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from model.bundle import BundleContents, DecodingDefaults, write_bundle
from model.export.exporter import export_graphs
from tests.model.networks import lively_network, tiny_config, train_tokenizer

NAME = "endless-en-de"


@cache
def endless_bundle(target: str = "de") -> Path:
    """The folder of one from English into `target`; made once for the whole run of the tests."""
    config = tiny_config(tie_embeddings=False, decoder_layers=1)
    network = lively_network(config)
    with torch.no_grad():
        # EOS always gets the logit 0, and of hundreds of random ones some are greater.
        network.output_weight[config.eos_id].zero_()
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    record = export_graphs(config, network.state_dict(), folder / "graphs", ["f32"])
    contents = BundleContents(
        name=f"endless-en-{target}",
        version="1",
        source_languages=("en",),
        target_languages=(target,),
        config=config,
        precisions=record.precisions,
        weights=record.weights,
        graph_files=record.files,
        tokenizer=train_tokenizer(folder, config.vocab_size),
        model_card="# endless\n",
        decoding=DecodingDefaults(beam_size=2, length_penalty=0.6),
    )
    return write_bundle(folder / contents.name, contents).path

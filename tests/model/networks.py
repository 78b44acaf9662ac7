"""Tiny random networks with something to say, their graphs, and a tokenizer for bundles."""

from __future__ import annotations

import atexit
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import sentencepiece as spm
import torch

from model.bundle import Bundle
from model.config import ModelConfig
from model.export.exporter import ExportRecord, export_graphs
from model.export.recover import recover_state_dict
from model.nn.transformer import Transformer
from model.ports import Operators
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import OnnxStepper, open_graphs
from service.settings import BUNDLED

TEXTS = (
    "Yes.",
    "The river rose again during the night, … and … nobody had closed the lower gate.",
    "Twelve.",
    "Thanks.",
    "The board will publish its view on the tariff before the end of the third quarter.",
    "zhe ge dongxi bu hao",
    "Good evening to all of you.",
    "Hand me the small spanner.",
    "Seven boats left at dawn.",
    "Please sign here and keep the blue copy.",
    "Using a small radio and paper maps, the rangers marked every spring in the valley.",
    "It cost 40 crowns.",
    "Keep to the marked path.",
    "The cat slept on the warm stove.",
    "Tickets are sold at the gate.",
    "He lost his left glove.",
)

VARIANTS = {
    "tied": {},
    "post": {"norm_order": "post", "positions": "halves", "tie_embeddings": False},
    "odd": {
        "tie_embeddings": False,
        "activation": "gelu",
        "d_model": 64,
        "heads": 2,
        "vocab_size": 300,
        "decoder_layers": 1,
    },
    "gated": {"gated": True, "positions": "learned"},
    "rotary": {"positions": "rotary", "d_ff": 96},
}
"""Overrides of `tiny_config` that between them take every choice of a configuration, and an odd vocabulary."""

WIDE = {"d_model": 256, "heads": 4, "d_ff": 1024, "vocab_size": 4000}
"""As wide as a real network, for what happens only where there is much to compute: products in blocks and chunks."""


def tiny_config(**overrides: object) -> ModelConfig:
    return ModelConfig.from_dict(
        {
            "vocab_size": 384,
            "d_model": 48,
            "heads": 3,
            "d_ff": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "norm_order": "pre",
            "max_positions": 224,
            **overrides,
        }
    )


def lively_network(config: ModelConfig, seed: int = 0) -> Transformer:
    """Random, but far from the near-uniform outputs of a fresh initialisation: sub-layers outweigh the residual (or a
    tied network would repeat its last token), biases and norms are not trivial, and EOS is likely enough to occur."""
    generator = torch.Generator().manual_seed(seed)
    network = Transformer(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.add_(0.2 * noise)
            else:
                spread = 1.0 if "embedding" in name or "projection" in name else 2.5
                parameter.copy_(spread * noise * parameter.shape[1] ** -0.5)
        network.output_weight[config.eos_id].mul_(1.6)
    return network.eval()


def copying_network(config: ModelConfig) -> Transformer:
    """Built by hand to say its source again: the last decoder layer looks at the source token of its own position and
    adds what it finds there; no other layer does anything, but the others look about at random.

    The first 16 dimensions are the positions' alone, the others the tokens'. Wants a head size of 16 and `pre` norms.
    """
    assert (config.head_size, config.norm_order) == (16, "pre")
    network = lively_network(config)
    tokens = torch.arange(config.d_model) >= 16
    rows = torch.randn(config.vocab_size, config.d_model - 16, generator=torch.Generator().manual_seed(0))
    rows = torch.nn.functional.layer_norm(rows, rows.shape[1:])  # all of a length, or some would draw all the looks
    # A norm takes the mean of all dimensions away; of the tokens it is nought, and of the positions about this:
    means, spreads = network.positions.mean(dim=1), (network.positions.var(dim=1) + 6.75).sqrt()
    shift = torch.full((16,), float((means / spreads).mean()))
    last = network.decoder.layers[config.decoder_layers - 1].cross_attention
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith(("w_o.weight", "w_2.weight", "bias")):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
        network.embedding.weight.zero_()[:, 16:] = 3.0 * config.d_model**-0.5 * rows
        for linear in (last.w_q, last.w_k):
            linear.weight.copy_(20.0 * torch.eye(16, config.d_model).repeat(config.heads, 1))  # (16, D) -> (D, D)
            linear.bias.copy_(20.0 * shift.repeat(config.heads))
        last.w_v.weight.copy_(torch.diag(tokens.float()))
        last.w_o.weight.copy_(10.0 * torch.eye(config.d_model))
    return network


def random_sources(config: ModelConfig, lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    """Ids of the given lengths, EOS included."""
    rng = np.random.default_rng(seed)
    return [[*map(int, rng.integers(4, config.vocab_size, length - 1)), config.eos_id] for length in lengths]


OPERATORS: Operators = "stock"
"""What steppers of these networks run with; a module's fixture `each_set_of_operators` changes it."""


@dataclass(frozen=True)
class Exported:
    config: ModelConfig
    network: Transformer
    pairs: list[tuple[list[int], list[int]]]
    record: ExportRecord

    def stepper(self, precision: str = "f32") -> OnnxStepper:
        return open_graphs(self.config, self.record.graph_paths(precision), RuntimeOptions(operators=OPERATORS))


@cache
def exported(variant: str = "odd") -> Exported:
    """One network of a variant and its graphs; made once for the whole run of the tests."""
    config = tiny_config(**{**VARIANTS, "wide": WIDE}[variant])
    sources = random_sources(config, (4, 1, 11, 25, 7, 16))
    return _export(config, lively_network(config), [(source, [*source[-2::-1], config.eos_id]) for source in sources])


@cache
def exported_copying() -> Exported:
    """The network that says its source again, and its graphs."""
    config = tiny_config(d_model=64, heads=4, encoder_layers=1)
    sources = random_sources(config, (5, 12, 40, 30))
    return _export(config, copying_network(config), [(source, source) for source in sources])


def _export(config: ModelConfig, network: Transformer, pairs: list[tuple[list[int], list[int]]]) -> Exported:
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    record = export_graphs(config, network.state_dict(), folder, ["f32", "int8"], pairs)
    return Exported(config, network, pairs, record)


def train_tokenizer(folder: Path, vocab_size: int = 384) -> Path:
    """A SentencePiece model with the house's special ids and exactly `vocab_size` ids."""
    spm.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=vocab_size,
        model_type="bpe",
        byte_fallback=True,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    return folder / "tokenizer.model"


@cache
def shipped() -> tuple[Bundle, dict[str, torch.Tensor]]:
    """The bundle that ships, and its weights as a state dict."""
    bundle = Bundle.open(BUNDLED / "en-de")
    return bundle, {name: torch.from_numpy(array) for name, array in recover_state_dict(bundle).items()}

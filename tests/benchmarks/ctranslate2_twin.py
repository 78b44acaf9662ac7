"""The same network in CTranslate2: our state dict as a model folder of its own, and ids in, ids out.

What is made equal, so that the two searches may be compared token for token:

- positions are given explicitly, starting at 0; embeddings are scaled by √d; layer norm has our epsilon;
- PAD and BOS can never be predicted: their bias in the output projection is -inf, before log-softmax, as in our graphs;
- source sentences carry their EOS, and the decoder starts with BOS.

What cannot be made equal is the ranking of hypotheses of different lengths: CTranslate2 divides by |y|^p, we by
((5 + |y|) / 6)^α. Only p = α = 0 ranks alike, so this is the setting of every comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation

from model.config import ModelConfig
from model.export.weights import Array, Weights
from model.nn.positions import sinusoids

ACTIVATIONS = {"relu": Activation.RELU, "gelu": Activation.GELU}

SETTINGS = {
    "beam_size": 1,
    "length_penalty": 0,
    # Its defaults would forbid an empty translation and cut long sources.
    "min_decoding_length": 0,
    "max_input_length": 0,
}


class _Filler:
    """Copies arrays of our names into the places of a specification."""

    def __init__(self, config: ModelConfig, state_dict: Mapping[str, Any]) -> None:
        self._weights = Weights(config, state_dict)
        self._config = config

    def embedding(self, spec: Any, rows: Array) -> None:
        spec.embeddings.weight = rows
        spec.position_encodings.encodings = self._positions()

    def _positions(self) -> Array:
        config = self._config
        if config.positions == "rotary":
            raise ValueError(
                "a twin in CTranslate2 must have positions that are added to embeddings, but these are rotary; compare "
                "with the network itself (model.export.parity)."
            )
        if config.positions == "learned":
            return self._weights["positions"]
        return np.ascontiguousarray(sinusoids(config.max_positions, config.d_model, config.positions).numpy())

    def linear(self, spec: Any, *prefixes: str) -> None:
        """One linear map, or several that read the same input stacked into one."""
        spec.weight = np.concatenate([self._weights[f"{prefix}.weight"] for prefix in prefixes])
        spec.bias = np.concatenate([self._weights[f"{prefix}.bias"] for prefix in prefixes])

    def norm(self, spec: Any, prefix: str) -> None:
        spec.gamma, spec.beta = self._weights[f"{prefix}.weight"], self._weights[f"{prefix}.bias"]

    def self_attention(self, spec: Any, layer: str) -> None:
        prefix = f"{layer}.self_attention"
        self.linear(spec.linear[0], *(f"{prefix}.{matrix}" for matrix in ("w_q", "w_k", "w_v")))
        self.linear(spec.linear[1], f"{prefix}.w_o")
        self.norm(spec.layer_norm, f"{layer}.norm_self")

    def cross_attention(self, spec: Any, layer: str) -> None:
        prefix = f"{layer}.cross_attention"
        self.linear(spec.linear[0], f"{prefix}.w_q")
        self.linear(spec.linear[1], f"{prefix}.w_k", f"{prefix}.w_v")
        self.linear(spec.linear[2], f"{prefix}.w_o")
        self.norm(spec.layer_norm, f"{layer}.norm_cross")

    def feed_forward(self, spec: Any, layer: str) -> None:
        self.linear(spec.linear_0, f"{layer}.feed_forward.w_1")
        if self._config.gated:
            self.linear(spec.linear_0_noact, f"{layer}.feed_forward.w_g")
        self.linear(spec.linear_1, f"{layer}.feed_forward.w_2")
        self.norm(spec.layer_norm, f"{layer}.norm_feed_forward")

    def stacks(self, spec: TransformerSpec) -> None:
        for i, layer in enumerate(spec.encoder.layer):
            self.self_attention(layer.self_attention, f"encoder.layers.{i}")
            self.feed_forward(layer.ffn, f"encoder.layers.{i}")
        for i, layer in enumerate(spec.decoder.layer):
            self.self_attention(layer.self_attention, f"decoder.layers.{i}")
            self.cross_attention(layer.attention, f"decoder.layers.{i}")
            self.feed_forward(layer.ffn, f"decoder.layers.{i}")
        if self._config.norm_order == "pre":
            self.norm(spec.encoder.layer_norm, "encoder.norm")
            self.norm(spec.decoder.layer_norm, "decoder.norm")

    def ends(self, spec: TransformerSpec) -> None:
        self.embedding(_Sole(spec.encoder), self._weights.source_embedding)
        self.embedding(spec.decoder, self._weights.target_embedding)
        spec.decoder.projection.weight = self._weights.projection
        bias = np.zeros(self._config.vocab_size, np.float32)
        bias[[self._config.pad_id, self._config.bos_id]] = -np.inf
        spec.decoder.projection.bias = bias


class _Sole:
    """An encoder, which may have several embeddings, seen as one that has one."""

    def __init__(self, spec: Any) -> None:
        (self.embeddings,) = spec.embeddings
        self.position_encodings = spec.position_encodings


def vocabulary(config: ModelConfig) -> list[str]:
    """CTranslate2 speaks in strings: the token of id i is its number, but for the special ones."""
    tokens = [str(i) for i in range(config.vocab_size)]
    names = {config.pad_id: "<pad>", config.bos_id: "<s>", config.eos_id: "</s>", config.unk_id: "<unk>"}
    for i, name in names.items():
        tokens[i] = name
    return tokens


def write_model(config: ModelConfig, state_dict: Mapping[str, Any], folder: Path) -> Path:
    """A CTranslate2 model folder in float32; it quantises when it loads."""
    spec = TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm_order == "pre",
        activation=ACTIVATIONS[config.activation],
        ffn_glu=config.gated,
    )
    filler = _Filler(config, state_dict)
    filler.stacks(spec)
    filler.ends(spec)
    spec.register_source_vocabulary(vocabulary(config))
    spec.register_target_vocabulary(vocabulary(config))
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    return folder


class Twin:
    """A CTranslate2 translator that takes and gives ids."""

    def __init__(self, config: ModelConfig, folder: Path, precision: str, workers: int = 1) -> None:
        """`precision` as we call it; `workers` translate side by side with one thread each."""
        kind = {"f32": "float32", "int8": "int8"}[precision]
        self.translator = ctranslate2.Translator(
            str(folder), "cpu", compute_type=kind, inter_threads=workers, intra_threads=1
        )
        self._tokens = vocabulary(config)
        self._ids = {token: i for i, token in enumerate(self._tokens)}
        self._pad = self._tokens[config.pad_id]

    def words(self, sources: Sequence[Sequence[int]]) -> list[list[str]]:
        """Ids (EOS included) as the strings that CTranslate2 wants."""
        return [[self._tokens[i] for i in source] for source in sources]

    def translate(self, words: list[list[str]], limit: int, **options: Any) -> list[Any]:
        """Greedy or beam search up to `limit` target tokens, hypotheses not penalised for their length."""
        settings = {**SETTINGS, **options}
        return list(self.translator.translate_batch(words, max_decoding_length=limit, **settings))

    def forced(self, words: list[list[str]], limit: int, beam_size: int, **options: Any) -> list[Any]:
        """Exactly `limit` tokens: what ends a sentence is PAD, which never comes."""
        return self.translate(words, limit, beam_size=beam_size, end_token=self._pad, **options)

    def ids(self, results: Sequence[Any]) -> list[tuple[int, ...]]:
        """Ids of the best hypotheses."""
        return [tuple(self._ids[token] for token in result.hypotheses[0]) for result in results]

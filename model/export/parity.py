"""The proof that the graphs compute what the network computes: ports, values, then whole decoded texts.

float32 must agree to rounding and give the same texts. int8 is another, coarser arithmetic: it must stay near in values
and in texts, and must not have begun to echo its input. So must float16; its nodes are those of a float32 graph, which
is proved with it.

All graphs are proved on the CPU, those for CUDA too: what CUDA's own kernels make of them only a GPU can say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from model.config import ModelConfig
from model.decode.batcher import decode_all
from model.decode.options import DecodeOptions, Hypothesis, SpecialIds
from model.decode.reference import History, ReferenceStepper
from model.decode.stepper import Stepper
from model.errors import ExportError, ParityError
from model.export.calibration import Pair
from model.export.compare import (
    AttentionDifferences,
    TextDifferences,
    ValueDifferences,
    compare_attention,
    compare_texts,
    compare_values,
    full_pass_language,
)
from model.export.exporter import ExportRecord, load_network
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import open_graphs


@dataclass(frozen=True, kw_only=True)
class ParityLimits:
    """How far graphs may be from the network, and on how many samples that is looked at."""

    f32_difference: float = 1e-3
    """Largest absolute difference of a log-probability, of a cross key or value, of a share of attention, and of the
    score of a text."""
    int8_top1: float = 0.85
    """Least share of positions at which int8 and the network rank the same token first, and attend to the same one."""
    int8_similarity: float = 0.85
    """Least mean similarity of the texts of int8 and of the network."""
    f16_top1: float = 0.95
    """The same for f16."""
    f16_similarity: float = 0.95
    """The same for f16."""
    echo_excess: float = 0.05
    """Most by which the share of texts equal to their source may exceed the network's."""
    greedy_texts: int = 32
    """Samples decoded greedily by both."""
    beam_texts: int = 4
    """Samples decoded by beam search by both. The network does it without a cache, so these take the longest."""
    beam_size: int = 4


@dataclass(frozen=True)
class Parity:
    """How the graphs of one precision and set of operators compare with the network."""

    values: ValueDifferences
    attention: AttentionDifferences
    texts: TextDifferences


@dataclass(frozen=True)
class ParityReport:
    """All graphs that were proved."""

    graphs: dict[str, Parity] = field(default_factory=dict)
    """By precision, or by precision and operators: `int8`, `int8 native`."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for the manifest."""
        return {name: asdict(parity) for name, parity in self.graphs.items()}

    def summary(self) -> str:
        """A line for each pair of graphs, for people."""
        return "\n".join(
            f"{name}: largest difference {parity.values.log_prob:.2e} in log-probabilities over "
            f"{parity.values.positions} positions, {parity.values.cross:.2e} in cross keys and values, "
            f"{parity.attention.difference:.2e} in attention; "
            f"top-1 agreement {parity.values.top1:.4f}; {parity.texts.equal} of {parity.texts.texts} texts equal, "
            f"similarity {parity.texts.similarity:.4f}"
            for name, parity in self.graphs.items()
        )


def prove_parity(
    config: ModelConfig,
    state_dict: Mapping[str, Any],
    record: ExportRecord,
    samples: Sequence[Pair],
    limits: ParityLimits | None = None,
) -> ParityReport:
    """Compare all graphs of `record` with the network on `samples` (source and target ids, EOS last).

    Raises `ParityError` when some are further away than `limits` allow; the caller then publishes nothing. Raises
    `ProviderError` for native graphs where these cannot run.
    """
    if not samples:
        raise ExportError("a proof of parity needs samples of real text, but got none; give a few dozen.")
    limits = limits or ParityLimits()
    network = load_network(config, state_dict)
    special = SpecialIds(bos_id=config.bos_id, eos_id=config.eos_id)
    twin = ReferenceStepper(full_pass_language(network), config.vocab_size, config.max_positions, special)
    sources = [tuple(source) for source, _ in samples]
    wanted = _texts(twin, sources, limits, special)
    report = ParityReport()
    for precision, operators in ((name, one) for name in record.precisions for one in record.graph_paths(name)):
        stepper = open_graphs(config, record.graph_paths(precision), RuntimeOptions(operators=operators))
        values = compare_values(network, stepper, samples)
        attention = compare_attention(network, stepper, samples, record.alignment.layer)
        found = _texts(stepper, sources, limits, special)
        decoded = [*sources[: limits.greedy_texts], *sources[: limits.beam_texts]]
        name = precision if operators == "stock" else f"{precision} {operators}"
        report.graphs[name] = Parity(values, attention, compare_texts(decoded, wanted, found))
        _judge(name, report.graphs[name], limits)
    return report


def _texts(stepper: Stepper, sources: Sequence[History], limits: ParityLimits, special: SpecialIds) -> list[Hypothesis]:
    """The best text of each of the first sources, by greedy search and then by beam search."""
    texts = []
    for count, beam_size in ((limits.greedy_texts, 1), (limits.beam_texts, limits.beam_size)):
        for finished in decode_all(stepper, sources[:count], DecodeOptions(beam_size=beam_size), special=special):
            if finished.error is not None:
                raise ParityError(f"every sample must be decoded, but one was refused: {finished.error}")
            texts.append(finished.hypotheses[0])
    return texts


def _judge(name: str, parity: Parity, limits: ParityLimits) -> None:
    values, attention, texts = parity.values, parity.attention, parity.texts
    if name.startswith("f32"):
        bounds = [
            ("difference of log-probabilities", values.log_prob, "at most", limits.f32_difference),
            ("difference of cross keys and values", values.cross, "at most", limits.f32_difference),
            ("difference of attention", attention.difference, "at most", limits.f32_difference),
            # Two texts may differ where the network itself is undecided; their scores may not.
            ("difference of the scores of texts", texts.score, "at most", limits.f32_difference),
        ]
    else:
        half = name.startswith("f16")
        top1 = limits.f16_top1 if half else limits.int8_top1
        similarity = limits.f16_similarity if half else limits.int8_similarity
        bounds = [
            ("top-1 agreement", values.top1, "at least", top1),
            ("top-1 agreement of attention", attention.top1, "at least", top1),
            ("similarity of texts", texts.similarity, "at least", similarity),
        ]
    bounds.append(("excess of echoed sources", texts.echoes - texts.network_echoes, "at most", limits.echo_excess))
    for what, found, sense, bound in bounds:
        if not (found <= bound if sense == "at most" else found >= bound):
            raise ParityError(
                f"{name}: the {what} must be {sense} {bound:g}, but is {found:g}; nothing may be published. "
                "Look at the calibration text for int8, at the builder for f32."
            )

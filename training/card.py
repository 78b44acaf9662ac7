"""The model card: what a person must know before they trust a bundle."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.evaluate import Evaluation, table
from training.recipe import PublishRecipe


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What the card is written from. Nothing in it is typed by hand."""

    recipe: PublishRecipe
    run: Mapping[str, Any]
    """`run.json` and where the run ended."""
    sources: Sequence[Mapping[str, Any]]
    """`sources.json` of the corpus; empty when there is none."""
    precision: str
    operators: str
    """Those that ran for the scores and the samples."""
    evaluations: Sequence[Evaluation]
    samples: Sequence[tuple[str, str]]
    parity: str
    picture: str = ""
    """Name of the picture of the run's curves, which lies beside the card; empty when there is none."""


def machine() -> str:
    """Processor, cores and system, for the reader of a figure."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{os.cpu_count()} × {model}, {platform.system()}"


def model_card(facts: CardFacts) -> str:
    """The whole card as Markdown."""
    recipe = facts.recipe
    parts = [
        f"# {recipe.name}: {' → '.join(facts.run['languages'])}, version {recipe.version}",
        _model(facts),
        *_scores(facts),
        f"## Curves\n\n![loss, learning rate and BLEU over updates]({facts.picture})" if facts.picture else "",
        "## Translations, as they come",
        _samples(facts.samples),
        "## Graphs against network",
        f"```\n{facts.parity}\n```",
        "## Training data",
        _data(facts.sources),
        f"It began with the weights of {start}, which have learnt from what the card of {start} names."
        if (start := facts.run.get("start"))
        else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _model(facts: CardFacts) -> str:
    run = facts.run
    model, fit, end = run["model"], run["fit"], run["end"]
    left_out = f" ({run['left_out']:,} left out, over {fit['max_length']} tokens)" if run.get("left_out") else ""
    rows = {
        "architecture": f"Transformer, {model['encoder_layers']} + {model['decoder_layers']} layers, "
        f"d_model {model['d_model']}, d_ff {model['d_ff']}, {model['heads']} heads, {model['norm_order']}-norm, "
        f"vocabulary {model['vocab_size']:,}",
        "parameters": f"{end['parameters'] / 1e6:.2f} M",
        "training": f"{end['update']:,} updates of at most {fit['batch_tokens']:,} tokens, "
        f"{end['target_tokens'] / 1e6:.1f} M target tokens, {end['epochs']:.2f} epochs of {run['pairs']:,} "
        f"pairs{left_out}, "
        f"{fit['optimizer']}, {fit['precision']}, seed {fit['seed']}",
        "time": f"{end['seconds'] / 60:.0f} minutes on {end['machine']}",
        **({"begun with": f"the weights of {run['start']}"} if run.get("start") else {}),
        "weights": _weights(fit, end),
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _weights(fit: Mapping[str, Any], end: Mapping[str, Any]) -> str:
    averaged = "moving average, decay {ema}" if fit.get("ema") else "average of the last {averaged} checkpoints"
    best = " up to update {best_update:,}, where the loss of the dev sets was least" if end.get("best_update") else ""
    return (averaged + best).format(ema=fit.get("ema"), **end)


def _scores(facts: CardFacts) -> list[str]:
    if not facts.evaluations:
        return []
    recipe = facts.recipe
    about = (
        f"The {facts.precision} graphs of this bundle with {facts.operators} operators, one line at a time as a "
        f"segment, beam {recipe.beam_size}, length penalty {recipe.length_penalty}. `dragoman-train evaluate` repeats "
        "them."
    )
    held_out = (
        "`reserved` holds strings of packages that were kept out of training altogether; the other sets of the corpus "
        "come from the sources it was trained on, held out by source text with nothing near-identical left in."
    )
    carried = (
        "`carried` is the share of the lines with numbers, URLs, placeholders, tags or the like whose translations "
        "hold every one of these, exactly as often."
    )
    reserved = any(found.name == "reserved" for found in facts.evaluations)
    return ["## Scores", about, table(facts.evaluations), carried, held_out if reserved else ""]


def _samples(samples: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["| source | translation |", "|---|---|", *(f"| {_cell(s)} | {_cell(t)} |" for s, t in samples)])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _data(sources: Sequence[Mapping[str, Any]]) -> str:
    """A row for each source, then every part of it with its licence."""
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in sources:
        if entry.get("training_pairs"):
            grouped[str(entry["source"])].append(entry)
    if not grouped:
        return "No description of the sources came with the corpus."
    rows = ["| source | pairs | by |", "|---|--:|---|"]
    for source, entries in grouped.items():
        authors = {str(entry["attribution"]) for entry in entries}
        by = authors.pop() if len(authors) == 1 else f"the authors and translators of {len(entries)} parts, see below"
        rows.append(f"| {source} | {_pairs(entries):,} | {_cell(by)} |")
    parts = ["| part | pairs | licence |", "|---|--:|---|"]
    for entries in grouped.values():
        for entry in sorted(entries, key=lambda entry: -entry["training_pairs"]):
            name = f"{entry['part']} {entry.get('version', '')}".strip()
            parts.append(f"| {_cell(name)} | {entry['training_pairs']:,} | {_cell(str(entry['licence']))} |")
    return "\n".join([*rows, "", "### Licences of the parts", "", *parts])


def _pairs(entries: Sequence[Mapping[str, Any]]) -> int:
    return sum(entry["training_pairs"] for entry in entries)

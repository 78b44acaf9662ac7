"""The curves of a run as a picture: loss, learning rate, and BLEU of the dev sets over updates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.journal import LOG, read_events

PICTURE = "curves.png"

Curves = dict[str, dict[str, list[tuple[int, float]]]]
"""Measure (`nll`, `bleu`, …) → kind (`train`, `dev.NAME`) → points (update, value)."""


def read_curves(log: Path) -> Curves:
    """The numbers of a run's log. Of an update that was done twice, before and after a resume, the last counts."""
    points: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for event in read_events(log):
        for name, value in event.items():
            if isinstance(value, int | float) and name not in ("update", "time"):
                points[name, event["kind"]][event["update"]] = float(value)
    curves: Curves = defaultdict(dict)
    for (name, kind), values in points.items():
        curves[name][kind] = sorted(values.items())
    return curves


def draw_curves(run: Path) -> Path:
    """Draw the log of the folder `run` into `curves.png` beside it; returns the picture."""
    curves = read_curves(run / LOG)
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, 3)
    titles = {"nll": "loss, nats a target token", "learning_rate": "learning rate", "bleu": "BLEU, greedy"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for kind, values in sorted(curves.get(name, {}).items()):
            axes.plot(*zip(*values, strict=True), label=kind, linewidth=1 if kind == "train" else 2)
        axes.set(title=title, xlabel="update")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    figure.savefig(run / PICTURE, dpi=110)
    return run / PICTURE

"""What a comparison leaves behind: a Markdown table and a plot, both with the machine's name."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

Record = dict[str, Any]

INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")
"""What decides how fast matrices are multiplied on x86."""


def machine(sides: Sequence[str] = ("onnxruntime", "ctranslate2")) -> str:
    """Processor, cores, the instructions that matter, and the versions of the packages `sides`."""
    info = Path("/proc/cpuinfo")
    fields = {}
    for line in info.read_text(encoding="utf-8").splitlines() if info.exists() else ():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
        if name.startswith("processor"):
            fields["count"] = str(1 + int(value))
    flags = [flag for flag in INSTRUCTIONS if flag in fields.get("flags", "").split()]
    name = fields.get("model name", platform.processor() or platform.machine())
    return (
        f"{name}, {fields.get('count', '?')} cores, {' '.join(flags) or 'no vector instructions known'}; "
        f"{', '.join(f'{side} {version(side)}' for side in sides)}"
    )


def table(records: list[Record]) -> str:
    """One row a point."""
    head = (
        "| shape | precision | operators | beam | batch | tokens | workers | × time | × CPU "
        "| ours ms (p25–p75) | theirs ms (p25–p75) | ours tok/s | theirs tok/s | ours sent/s | same ids | turns |\n"
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    return head + "\n".join(map(_row, records)) + "\n"


def _row(record: Record) -> str:
    def spread(side: str) -> str:
        cuts = record["ms"][side]
        return f"{cuts['p50']:.1f} ({cuts['p25']:.1f}–{cuts['p75']:.1f})"

    rate = record["tokens_per_second"]
    cells = (
        record["shape"],
        record["precision"],
        record["operators"],
        record["beam"],
        record["batch"],
        record["length"] or f"mix {record['line']}".strip(),
        record["workers"],
        f"**{record['ratio']:.2f}**",
        f"{record['cpu_ratio']:.2f}",
        spread("dragoman"),
        spread("ctranslate2"),
        f"{rate['dragoman']:.0f}",
        f"{rate['ctranslate2']:.0f}",
        f"{record['sentences_per_second']['dragoman']:.1f}",
        f"{record['same_ids']:.3f}",
        record["turns"],
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def plot(path: Path, machine_name: str, records: list[Record]) -> None:
    """Bars of the ratio for 25 tokens and one worker, one panel a precision."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    chosen = [record for record in records if record["length"] == 25 and record["workers"] == 1]
    shapes = list(dict.fromkeys(record["shape"] for record in chosen))
    precisions = list(dict.fromkeys(record["precision"] for record in chosen))
    if not chosen:
        return
    figure, panels = pyplot.subplots(len(precisions), 1, figsize=(10, 3.4 * len(precisions)), squeeze=False)
    for panel, precision in zip(panels[:, 0], precisions, strict=True):
        here = [record for record in chosen if record["precision"] == precision]
        labels = list(dict.fromkeys((record["beam"], record["batch"]) for record in here))
        width = 0.8 / len(shapes)
        for i, shape in enumerate(shapes):
            ratios = {(r["beam"], r["batch"]): r["ratio"] for r in here if r["shape"] == shape}
            places = [x + (i - (len(shapes) - 1) / 2) * width for x in range(len(labels))]
            panel.bar(places, [ratios.get(label, 0.0) for label in labels], width, label=shape)
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(labels)), [f"beam {beam}\nbatch {batch}" for beam, batch in labels])
        panel.set_ylabel("CTranslate2's time ÷ ours")
        panel.set_title(f"{precision}, 25 tokens, one thread each")
        panel.legend(ncols=len(shapes), fontsize="small")
    figure.text(0.01, 0.005, machine_name, fontsize="xx-small")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_report(folder: Path, machine_name: str, records: list[Record]) -> str:
    """Write table and plot into `folder`; returns the table with its heading."""
    text = (
        f"{machine_name}. Ratios are CTranslate2's time for each token ÷ ours; one thread a worker; "
        f"medians of turns.\n\n{table(records)}"
    )
    (folder / "ctranslate2.md").write_text(text, encoding="utf-8")
    plot(folder / "ctranslate2.png", machine_name, records)
    return text

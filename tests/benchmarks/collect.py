"""One page of all that the benchmarks have left in a folder: `report.md`, beside the tables and plots it is made of.

python -m tests.benchmarks.collect build/benchmarks
"""

from __future__ import annotations

import sys
from pathlib import Path

TITLES = {
    "ctranslate2": "The engine beside CTranslate2",
    "arrivals": "Requests that arrive at random",
    "bandwidth": "A step against the memory's speed",
    "service": "The service beside the bare engine",
    "training": "Training: target tokens a second",
    "wall_clock": "Training: BLEU after the same time",
}


def collect(folder: Path) -> str:
    """The page; benchmarks that were not run are left out."""
    parts = ["# Benchmarks"]
    for name, title in TITLES.items():
        table, picture = folder / f"{name}.md", folder / f"{name}.png"
        if table.is_file():
            parts += [f"## {title}", table.read_text(encoding="utf-8").strip()]
            parts += [f"![{title}]({picture.name})"] if picture.is_file() else []
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page into the folder that is named."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/benchmarks")
    (folder / "report.md").write_text(collect(folder), encoding="utf-8")
    print(f"{folder / 'report.md'} holds all tables")


if __name__ == "__main__":
    main()

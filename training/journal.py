"""What a run says about itself: a progress bar, lines of JSON, and TensorBoard."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from training.progress import progress

LOG = "log.jsonl"


class Journal:
    """The log of one run: `log.jsonl` to read, TensorBoard events to look at."""

    def __init__(self, folder: Path, updates: int, start: int) -> None:
        self.folder = folder
        torn = not _ends_its_last_line(folder / LOG)
        self._lines = (folder / LOG).open("a", encoding="utf-8")
        if torn:
            self._lines.write("\n")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
        self._bar = progress(updates, "fit", "update", start)

    def note(self, update: int, kind: str, values: Mapping[str, Any]) -> None:
        """One event of `update`: `values` under the heading `kind`."""
        line = {"update": update, "time": round(time.time(), 1), "kind": kind, **values}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        for name, value in values.items():
            if isinstance(value, int | float):
                self._board.add_scalar(f"{kind}/{name}", value, update)

    def say(self, text: str) -> None:
        """Tell the one who watches."""
        self._bar.write(f"dragoman-train: {text}", file=sys.stderr)

    def advance(self, nll: float, speed: Mapping[str, float]) -> None:
        """One update more on the bar."""
        self._bar.update()
        self._bar.set_postfix_str(f"nll {nll:.3f}, {_shown(speed)}", refresh=False)

    def close(self) -> None:
        """Flush everything."""
        self._bar.close()
        self._board.close()
        self._lines.close()


def read_events(log: Path) -> Iterator[dict[str, Any]]:
    """What a log says, in its order; nothing if there is none. A line that a crash has torn is passed over."""
    if not log.is_file():
        return
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


def last_speed(folder: Path) -> str:
    """How fast the run in `folder` was when it last said so; empty if it never did."""
    shown = [_shown(event) for event in read_events(folder / LOG) if event["kind"] == "train"]
    return shown[-1] if shown else ""


def _ends_its_last_line(path: Path) -> bool:
    """False if something ended in the middle of a line. Nothing has no lines."""
    return not path.is_file() or path.read_bytes()[-1:] in (b"", b"\n")


def _shown(speed: Mapping[str, Any]) -> str:
    utilisation = f", MFU {speed['mfu']:.1%}" if "mfu" in speed else ""
    return f"{speed['tokens_per_second']:,.0f} target tokens/s{utilisation}"

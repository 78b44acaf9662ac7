"""Runs in the python of JoeyNMT, without ours: its own command line, and beside it a count of what its batches hold.

    PYTHON joeynmt_driver.py COUNTS train CONFIG --skip-test

Writes one line for each training batch into the file COUNTS: real target tokens, target tokens with padding.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from joeynmt.__main__ import main
from joeynmt.training import TrainManager

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which it saves at; a background shell has it ignored
    counts = Path(sys.argv.pop(1)).open("w", encoding="utf-8")  # noqa: SIM115  # until the end of the process
    train_step = TrainManager._train_step

    def counting(manager, batch):  # type: ignore[no-untyped-def]
        counts.write(f"{batch.ntokens} {batch.trg.numel()}\n")
        counts.flush()
        return train_step(manager, batch)

    TrainManager._train_step = counting
    main()

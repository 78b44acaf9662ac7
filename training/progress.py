"""Progress bars with a rate and an estimate; silent when nobody watches."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm


def progress(total: int | None, what: str, unit: str, start: int = 0) -> tqdm[Any]:
    """A bar on standard error, shown only on a terminal."""
    return tqdm(total=total, desc=what, unit=unit, initial=start, disable=not sys.stderr.isatty(), smoothing=0.05)

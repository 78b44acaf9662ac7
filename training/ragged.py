"""Rows of ids of different lengths in one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class Ragged(Sequence[Ids]):
    """Rows, one behind the other: millions of small arrays would take gigabytes."""

    def __init__(self, ids: Ids, ends: NDArray[np.int64]) -> None:
        """`ends[i]` is where row i ends in `ids`."""
        self.ids, self.ends = ids, ends
        self.lengths: NDArray[np.int64] = np.diff(ends, prepend=0)
        """Ids of each row."""

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> Ids: ...
    @overload
    def __getitem__(self, index: slice) -> list[Ids]: ...
    def __getitem__(self, index: int | slice) -> Ids | list[Ids]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        end = self.ends[index]
        return self.ids[end - self.lengths[index] : end]

"""The file that holds the large constants of all graphs of one precision, each of them once (ONNX external data)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

LEAST_BYTES = 1024
"""A smaller constant stays in its graph."""

ALIGNMENT = 64
"""Each constant begins at a multiple of this, a cache line: it is used where the file is mapped into memory."""


class WeightFile:
    """Takes constants in the order in which graphs ask for them, so that the same graphs give the same bytes.

    Two constants of the same bytes, such as a tied embedding in encoder and decoder, are one.
    """

    def __init__(self, path: Path) -> None:
        """Begin the file anew."""
        self.path = path
        self._file = path.open("wb")
        self._places: dict[bytes, int] = {}

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def tensor(self, name: str, value: NDArray[Any]) -> TensorProto:
        """The initializer called `name`, which points into the file; the bytes are there when this returns."""
        data = np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        digest = hashlib.sha256(data).digest()
        if digest not in self._places:
            self._file.write(bytes(-self._file.tell() % ALIGNMENT))
            self._places[digest] = self._file.tell()
            self._file.write(data)
            self._file.flush()
        tensor = TensorProto(
            name=name,
            dims=value.shape,
            data_type=helper.np_dtype_to_tensor_dtype(value.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        where = {"location": self.path.name, "offset": self._places[digest], "length": len(data)}
        tensor.external_data.extend(onnx.StringStringEntryProto(key=key, value=str(v)) for key, v in where.items())
        return tensor

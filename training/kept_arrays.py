"""Arrays that take minutes to make, kept on disk: read without a copy by all processes of a machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import unicodedata
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import model
import training

_KEY = "key.json"


class KeptArrays:
    """A folder of named arrays, good for one key and this version of the code alone."""

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        """`key`: all that the arrays depend on, as JSON can write it."""
        self.folder = folder
        self._key = json.dumps({**key, "code": _code()}, sort_keys=True)

    @property
    def there(self) -> bool:
        """Whether the folder holds what the key asks for, whole."""
        path = self.folder / _KEY
        return path.is_file() and path.read_text(encoding="utf-8") == self._key

    def write(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep these in place of what was there; whole or not at all."""
        part = self.folder.with_name(f"{self.folder.name}.part")
        for old in (part, self.folder):
            shutil.rmtree(old, ignore_errors=True)
        part.mkdir(parents=True)
        for name, array in arrays.items():
            with (part / f"{name}.npy").open("wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        (part / _KEY).write_text(self._key, encoding="utf-8")
        part.rename(self.folder)

    def read(self) -> dict[str, NDArray[Any]]:
        """The arrays, mapped from the disk and not to be written to."""
        # Slices of a memmap are slow to make, those of an array over the same pages are not.
        return {path.stem: np.asarray(np.load(path, mmap_mode="r")) for path in self.folder.glob("*.npy")}


def _code() -> str:
    """A digest of all code that may have a part in the arrays: another version of it may make others."""
    digest = hashlib.sha256(f"{version('sentencepiece')} {unicodedata.unidata_version}".encode())
    for package in (model, training):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()

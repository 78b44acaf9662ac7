"""Compiles our own operators when the package is installed or a wheel is made of it.

A wheel with the library is one for this platform, a wheel without it one for all. Neither fails for want of a compiler:
the package is complete without the library, and slower.
"""

from __future__ import annotations

import sys
import sysconfig
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class OperatorsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before hatchling collects the files of a wheel, editable ones too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library beside its sources, and let the wheel hold it."""
        sys.path.insert(0, self.root)
        try:
            from model.errors import ProviderError  # noqa: PLC0415
            from model.runtime.native.build import build  # noqa: PLC0415
        finally:
            sys.path.remove(self.root)
        try:
            library = build()
        except (ProviderError, OSError) as error:
            self.app.display_warning(f"The native operators are left out, and the stock ones will run: {error}")
            return
        self.app.display_info(f"The native operators are built: {library}")
        if version != "editable":  # that one reads the tree itself
            build_data["artifacts"].append("/model/runtime/native/operators.so")
            build_data["pure_python"] = False
            # The library speaks ONNX Runtime's C interface and not Python's: any Python will do.
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

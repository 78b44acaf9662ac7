"""The CUDA provider: its settings, and what is missing where it does not run."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import onnxruntime as ort

from model.errors import ProviderError

WHEELS = ("onnxruntime", "onnxruntime-gpu")
"""Two distributions of one module: whichever was installed last has overwritten files of the other."""


def provider_options(device_graphs: bool) -> Mapping[str, str]:
    """Settings of `CUDAExecutionProvider`; `device_graphs` lets a session record and replay its runs."""
    return {
        "device_id": "0",
        "enable_cuda_graph": str(int(device_graphs)),
        "use_tf32": "0",  # float32 is multiplied as float32
        # A cache that grows is no reason to take twice as much.
        "arena_extend_strategy": "kSameAsRequested",
    }


def check_wheels() -> None:
    """Raise `ProviderError` when both wheels of ONNX Runtime are installed."""
    found = [f"{name} {there}" for name in WHEELS if (there := _version(name))]
    if len(found) > 1:
        raise ProviderError(
            f"exactly one wheel of ONNX Runtime must be installed for CUDA, but there are {' and '.join(found)}, which "
            "overwrite each other's files. Uninstall both, then install the extra `gpu`."
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def load_libraries() -> None:
    """Load CUDA and cuDNN from the wheels that the extra `gpu` brings, which are on no search path."""
    preload = getattr(ort, "preload_dlls", None)
    if preload is not None:
        preload()


def missing() -> str:
    """Why the CUDA provider could not be loaded, in the words of the dynamic loader; empty if it can be."""
    folder = Path(ort.__file__).parent / "capi"
    for path in (*folder.glob("libonnxruntime_providers_cuda.so"), *folder.glob("onnxruntime_providers_cuda.dll")):
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            # What a loaded process would bring along is no fault.
            return "" if "undefined symbol" in str(error) else str(error)
    return ""

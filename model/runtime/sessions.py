"""ONNX Runtime sessions: the provider is asked for by name, checked, and said; ports are checked against the sheet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import onnxruntime as ort

from model.errors import BundleError, ProviderError
from model.ports import DType, Operators, Port, PortSheet, check_ports
from model.runtime.cuda import check_wheels, load_libraries, missing, provider_options

log = logging.getLogger(__name__)

Provider = Literal["cpu", "cuda"]
OperatorChoice = Literal["auto", "native", "stock", "cuda"]

_PROVIDERS: dict[str, str] = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_DTYPES: dict[str, DType] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Where and with how many threads the graphs run."""

    provider: Provider = "cpu"
    threads: int = 1
    """Threads inside one operator, of ONNX Runtime or of our own, as far as it has enough to do; they change no bit of
    what our own compute. Several workers of one thread each do more than one worker of several.

    A process that sees a single CPU when onnxruntime is imported gets slower kernels for its whole life: pin later.
    """
    operators: OperatorChoice = "auto"
    """`native` graphs, `stock` ones, those for `cuda`, or the best that can run; see `operators`."""
    device_graphs: bool = True
    """Record a step on CUDA once for each shape and replay it, which saves the launch of every kernel."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """The loaded graphs of one model. Any number of steppers may share them."""

    encoder: ort.InferenceSession
    decoder: ort.InferenceSession
    operators: Operators
    """What the graphs are written with."""
    open_attending: Callable[[], ort.InferenceSession] | None = None
    """Opens the attending decoder, which a stepper does when it is first needed; None where there is none."""


def open_session(
    path: Path, sheet: PortSheet, options: RuntimeOptions, library: Path | None = None
) -> ort.InferenceSession:
    """Load the graph at `path` on exactly the provider asked for, with the operators of `library` if it needs them.

    Raises `ProviderError` when that provider is not there or did not take the graph, and `BundleError` when the file is
    missing or damaged or its ports are not those of `sheet`.
    """
    if not path.is_file():
        raise BundleError(f"a graph must be at {path}, but there is no file; publish or fetch the bundle again.")
    provider, settings = _check_provider(options.provider), _settings(options)
    entry: Any = provider
    if options.provider == "cuda":
        load_libraries()
        entry = (provider, provider_options(options.device_graphs))
    try:
        if library is not None:
            settings.register_custom_ops_library(str(library))
        optimisers = _OPTIMISERS if options.provider == "cpu" else {}
        session = ort.InferenceSession(str(path), sess_options=settings, providers=[entry], **optimisers)
    except Exception as error:  # onnxruntime's exceptions share no base of their own
        raise BundleError(f"{path} must be a graph that ONNX Runtime can load, but it says: {error}") from error
    running = session.get_providers()
    if running[0] != provider:
        reason = missing() if options.provider == "cuda" else ""
        raise ProviderError(
            f"{provider} was asked for, but {path.name} runs on {', '.join(running)}"
            + (f": {reason}. Install the extra `gpu` and a driver that fits." if reason else ".")
        )
    check_ports(sheet, _ports(session), str(path))
    log.info("%s runs on %s with %d threads", path.name, running[0], options.threads)
    return session


# The fused form of Add + LayerNormalization is several times slower on CPU than the two nodes.
_OPTIMISERS: dict[str, list[str]] = {"disabled_optimizers": ["SkipLayerNormFusion"]}


def _settings(options: RuntimeOptions) -> ort.SessionOptions:
    if options.threads < 1:
        raise ProviderError(f"threads must be at least 1, but is {options.threads}.")
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3  # errors; a warning for each node of a graph says nothing to an operator
    return settings


def _check_provider(name: str) -> str:
    if name not in get_args(Provider):
        raise ProviderError(f"provider must be one of {', '.join(get_args(Provider))}, but is {name!r}.")
    if name == "cuda":
        check_wheels()
    wanted, available = _PROVIDERS[name], ort.get_available_providers()
    if wanted not in available:
        raise ProviderError(
            f"{wanted} was asked for, but this onnxruntime has only {', '.join(available)}. "
            "Install the extra `gpu` in place of `cpu`, or ask for the provider `cpu`."
        )
    return wanted


def provider_of(session: ort.InferenceSession) -> Provider:
    """The provider read back from the session, in our words."""
    running = session.get_providers()[0]
    return "cuda" if running == _PROVIDERS["cuda"] else "cpu"


def _ports(session: ort.InferenceSession) -> PortSheet:
    def read(arguments: list[ort.NodeArg]) -> tuple[Port, ...]:
        # A type we have no name for is shown as it is, and differs from every port of the sheet.
        return tuple(Port(arg.name, _DTYPES.get(arg.type, arg.type), tuple(arg.shape)) for arg in arguments)

    return PortSheet(read(session.get_inputs()), read(session.get_outputs()))

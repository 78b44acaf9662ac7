"""Our own library of operators: whether it can run here, and so which graphs of a precision are taken.

The library is compiled when the package is installed, see `native/build.py`. Where that was not possible, on a CPU that
lacks what it needs, or for a bundle without graphs for it, the stock graphs run; the log says so and why.
"""

from __future__ import annotations

import logging
from typing import get_args

from model.errors import ProviderError
from model.ports import GraphPaths, Operators
from model.runtime.native.build import obstacle
from model.runtime.sessions import OperatorChoice, RuntimeOptions

log = logging.getLogger(__name__)


def choose_operators(graphs: GraphPaths, runtime: RuntimeOptions) -> Operators:
    """The operators of the graphs to run, as `runtime` asks for.

    Raises `ProviderError` when native ones are asked for and cannot run here, or there are no graphs of that kind.
    """
    wanted = runtime.operators
    if wanted not in get_args(OperatorChoice):
        raise ProviderError(f"operators must be one of {', '.join(get_args(OperatorChoice))}, but is {wanted!r}.")
    if wanted == "auto" and runtime.provider == "cuda":
        wanted = "cuda" if "cuda" in graphs else "stock"
    if wanted in ("stock", "cuda"):
        return _there(graphs, wanted)
    reason = _obstacle(graphs, runtime)
    if reason is None:
        return "native"
    if wanted == "native":
        raise ProviderError(f"native operators were asked for, but {reason}; ask for `auto` or `stock`.")
    log.info("native operators do not run, the stock ones do: %s", reason)
    return _there(graphs, "stock")


def _there(graphs: GraphPaths, operators: Operators) -> Operators:
    if operators not in graphs:
        raise ProviderError(
            f"graphs with {operators} operators must be there, but this precision has only {', '.join(graphs)}: f16 is "
            "made for CUDA, int8 for the CPU, f32 for both. Ask for another precision."
        )
    return operators


def _obstacle(graphs: GraphPaths, runtime: RuntimeOptions) -> str | None:
    if runtime.provider != "cpu":
        return "they are made for the CPU"
    if "native" not in graphs:
        return "there are no graphs for them (publishing the bundle again adds them)"
    return obstacle()

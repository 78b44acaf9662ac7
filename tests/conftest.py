"""What tests of all rooms share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.ports import CPU_OPERATORS, Operators
from model.runtime.native.build import obstacle

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch, of which there are as many now as there are processes

SYSTEM = Path(__file__).parent / "system"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where several processes share the suite, a file stays in one, and all that starts a service in the same one.

    That one begins with it, for it takes longest.
    """
    items.sort(key=_is_of_the_system, reverse=True)
    for item in items:
        item.add_marker(pytest.mark.xdist_group("system" if _is_of_the_system(item) else str(item.path)))


def _is_of_the_system(item: pytest.Item) -> bool:
    return item.path.is_relative_to(SYSTEM)


@pytest.fixture(scope="module", params=CPU_OPERATORS)
def each_set_of_operators(request: pytest.FixtureRequest) -> Iterator[Operators]:
    """A module that uses this runs once with the stock operators and once with the native ones, where these can run."""
    if request.param == "native" and (reason := obstacle()):
        pytest.skip(f"native operators cannot run: {reason}")
    from tests.model import networks  # torch and onnx, which not every test needs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "OPERATORS", request.param)
        yield request.param

"""What tests of all rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from model.ports import CPU_OPERATORS, Operators
from model.runtime.native.build import obstacle


@pytest.fixture(scope="module", params=CPU_OPERATORS)
def each_set_of_operators(request: pytest.FixtureRequest) -> Iterator[Operators]:
    """A module that uses this runs once with the stock operators and once with the native ones, where these can run."""
    if request.param == "native" and (reason := obstacle()):
        pytest.skip(f"native operators cannot run: {reason}")
    from tests.model import networks  # torch and onnx, which not every test needs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "OPERATORS", request.param)
        yield request.param

"""The fixture by which a test of this folder feeds a decoder."""

from __future__ import annotations

import pytest

from fix_mutation import Fuzz


@pytest.fixture
def fuzz(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Fuzz:
    """Mutated input by the thousand: a hundred cases for each of `--examples`."""
    return Fuzz(test=request.node.nodeid, examples=int(pytestconfig.getoption("--examples")))

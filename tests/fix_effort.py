"""How much of a test that explores is run: a little in `make unit`, more in `make test`, most of it in `make soak`.

A test that asks for `effort` or `fuzz`, and each of Hypothesis's, runs in `make unit` (`--few`). Every other run marks
it `long`, so that `make test` runs it once more, with more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

FEW_EXAMPLES = 10
"""Examples per Hypothesis test in `make unit`."""
EXAMPLES = 100
"""The same in the rest of `make test`."""


class Effort:
    """Chooses between three sizes of a test."""

    def __init__(self, config: pytest.Config) -> None:
        self._level = 2 if config.getoption("--soak") else 0 if config.getoption("--few") else 1

    def __call__(self, few: T, more: T, most: T) -> T:
        """Return the size for `make unit`, for the rest of `make test`, or for `make soak`."""
        return (few, more, most)[self._level]


def few_of(values: Sequence[Any], few: int = 1) -> list[Any]:
    """Return the cases of a parameter, or of several as tuples, those after the first `few` marked `long`."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values[few:]]
    return [*values[:few], *(pytest.param(*row, marks=pytest.mark.long) for row in rows)]


def explores(item: pytest.Item) -> bool:
    """Whether the options of the run say how much of this test is run."""
    asked = {"effort", "fuzz"} & set(getattr(item, "fixturenames", ()))
    return bool(asked) or getattr(getattr(item, "obj", None), "is_hypothesis_test", False)

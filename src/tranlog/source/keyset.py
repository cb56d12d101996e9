"""The condition that finds the rows after a key, in a form that a database's index on the key serves. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def beyond(names: Sequence[str], values: Sequence[str]) -> str:
    """Return the condition that the columns `names` are after `values` in the key's order; both as SQL spells them."""
    name, value = names[0], values[0]
    if len(names) == 1:
        return f"{name} > {value}"
    return f"{name} >= {value} AND ({name} > {value} OR ({beyond(names[1:], values[1:])}))"

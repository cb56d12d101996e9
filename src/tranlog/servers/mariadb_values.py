"""What a MariaDB's ENUM and SET hold, for a source and a target alike: their labels, and values by number. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tranlog.types import ENUM_ERROR, EnumLabel, Other, SetLabels, Value

_LABEL: Final = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED: Final = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES: Final = {None: "'", "0": "\0", "n": "\n", "r": "\r"}


def catalog_labels(column_type: str) -> tuple[str, ...]:
    """Return the labels of `enum('a','b''c')` as information_schema spells it; none for any other type."""
    if not column_type.startswith(("enum(", "set(")):
        return ()
    return tuple(
        [_ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), label) for label in _LABEL.findall(column_type)]
    )


def enum_values(labels: Sequence[str]) -> tuple[Value, ...]:
    """Return an ENUM's values by their numbers. 0 is the server's error value, which it shows as an empty label."""
    error = Other(ENUM_ERROR, "0") if "" in labels else EnumLabel("")
    return (error, *map(EnumLabel, labels))


def set_value(labels: Sequence[str], bits: int) -> SetLabels:
    """Return the labels of a SET's bits. Raises IndexError for a bit without a label."""
    return SetLabels(tuple([labels[at] for at in range(bits.bit_length()) if bits >> at & 1]))

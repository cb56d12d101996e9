"""SQLite's affinities: what a column's declared type makes of the values that are stored in it.

Pure. Source: SQLite, "Datatypes In SQLite", section 3.1.
"""

from __future__ import annotations

import enum
import string
from typing import Final

_SMALL: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


class Affinity(enum.StrEnum):
    """What SQLite converts values to before it stores them; BLOB: to nothing."""

    INTEGER = "integer"
    TEXT = "text"
    BLOB = "none"
    REAL = "real"
    NUMERIC = "numeric"


def affinity(declared: str) -> Affinity:
    """Return the affinity that a declared type gives, by SQLite's rules in their order."""
    name = declared.translate(_SMALL)
    if "int" in name:
        return Affinity.INTEGER
    if any(part in name for part in ("char", "clob", "text")):
        return Affinity.TEXT
    if "blob" in name or not name.strip():
        return Affinity.BLOB
    if any(part in name for part in ("real", "floa", "doub")):
        return Affinity.REAL
    return Affinity.NUMERIC

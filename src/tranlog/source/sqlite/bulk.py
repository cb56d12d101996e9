"""Which rows of an `executemany` SQLite stores as they are bound, so that nobody has to see them one by one. Pure.

Owns that judgement, and the bytes of such rows. The preupdate hook costs a call of Python's for each row, more than
SQLite takes to store it; but for an INSERT of bare placeholders the bindings say all that the hook would. The hard idea
is what could make a stored row another one than the bound: a default, a conversion between text and number, a rowid
that SQLite chooses, a trigger, a conflict clause, an object that msgspec and SQLite read differently. Each is excluded
here, or is such that capture can do it afterwards (`raw`); what is not certain goes the way of the hook.

Source: docs/decisions/0008-the-outbox-of-a-sqlite-source.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from tranlog.affinity import Affinity, affinity
from tranlog.change import TableMap
from tranlog.source.sqlite.raw import encode_value
from tranlog.source.sqlite.statement import PlainInsert, fold

ROWS_LEAST: Final = 16
"""From so many rows on an `executemany` is looked at here; fewer are cheaper by the hook."""
_ROWS_MOST: Final = 4096

_NUMBER: Final = bool | int | float | None
_TEXT: Final = str | None
_BYTES: Final = bytes | None
_OF_VALUE: Final[dict[type, Any]] = {
    bool: _NUMBER,
    int: _NUMBER,
    float: _NUMBER,
    str: _TEXT,
    bytes: _BYTES,
    bytearray: _BYTES,
    memoryview: _BYTES,
}
_NATIVE: Final = (bytes, bytearray, memoryview)  # else msgspec would read a text as the base64 of bytes

_LIKE_A_NUMBER: Final = re.compile(
    r"^[ \t\v\f\r\0+-]*(?:\.?\d[\d._]*(?:e[+-]?\d*)?|inf(?:inity)?|nan)[ \t\v\f\r\0]*$",
    re.ASCII | re.IGNORECASE | re.MULTILINE,
)
"""More than what SQLite makes a number of, line by line."""
_INTEGER_LITERAL: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_DECIMAL_LITERAL: Final = re.compile(r"[+-]?(?=[\d.]{2,16}$)\d+\.\d*", re.ASCII)
_TEXT_LITERAL: Final = re.compile(r"'(?:[^']|'')*'", re.DOTALL)
_WORD_LITERALS: Final[dict[str, int | None]] = {"null": None, "true": 1, "false": 0}
_CONFLICT: Final = re.compile(r"conflict", re.IGNORECASE)
_CALLS: Final = re.compile(r"\b(?:check|collate|as|where)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertFacts:
    """What an INSERT into a table may do besides storing what it was given.

    `table` and `indexes` are their SQL; `triggers`: whether there is any but our guards; `defaults`: the SQL of each
    carried column's; `utf8`: whether the database holds text in UTF-8; `rowid`: which carried column is the rowid.
    """

    table: tuple[str, ...]
    indexes: tuple[str, ...]
    triggers: bool
    defaults: tuple[str | None, ...]
    utf8: bool
    rowid: int | None


class BoundRows(NamedTuple):
    """Leading rows of those that were given, which SQLite stores as they are bound.

    `encoded` is their MessagePack, an array of arrays; `counted`: SQLite chooses their rowids, one above the largest.
    """

    rows: Sequence[Any]
    encoded: bytes
    counted: bool


class BulkInsert:
    """An INSERT of bare placeholders into one table. Not for threads."""

    def __init__(
        self,
        table: TableMap,
        rowid: int | None,
        columns: Sequence[int],
        fill: tuple[object, ...],
        filled: Sequence[int],
    ) -> None:
        self.table = table
        self.order = encode_value((*columns, *filled))
        """Which column each value of a row belongs to, as `raw.encode_rows` takes it."""
        self._affinities = [affinity(table.columns[at].source_type) for at in columns]
        self._rowid_at = columns.index(rowid) if rowid in columns else None
        self._counts = rowid is not None and self._rowid_at is None
        self._fill = fill

    def take(self, given: Sequence[Any], at: int, limit: int) -> BoundRows | int:
        """Return rows of `given` from `at` on that are stored as they are bound, at most `limit` bytes but for one row.

        Else how many rows from there on must be seen one by one; there may be fewer.
        """
        many = _ROWS_MOST
        if not isinstance(given[at], tuple | list):
            return many
        try:
            many = max(1, min(many, limit // (len(self._encoded(given[at : at + 1])) + 1)))
        except Exception:
            return many
        while True:
            rows = given[at : at + many]
            try:
                counted = self._judge(rows)
                encoded = b"" if counted is None else self._encoded(rows)
            except Exception:  # whatever it is, the statement will say it, at the row that it belongs to
                return many
            if counted is None:
                return many
            if len(encoded) <= limit or len(rows) == 1:
                return BoundRows(rows, encoded, counted)
            many = max(1, min(many - 1, many * limit // len(encoded)))

    def head(self, bound: BoundRows, count: int) -> bytes:
        """Return `encoded` for the first `count` of the rows."""
        return bound.encoded if count == len(bound.rows) else self._encoded(bound.rows[:count])

    def _encoded(self, rows: Sequence[Any]) -> bytes:
        return encode_value([(*row, *self._fill) for row in rows] if self._fill else rows)

    def _judge(self, rows: Sequence[Any]) -> bool | None:
        """Return whether SQLite chooses the rowids; None where the rows may be stored other than they are bound."""
        counted = self._counts
        kinds: list[Any] = []
        texts: list[int] = []
        for at, kept in enumerate(self._affinities):
            sample = rows[0][at]
            if at == self._rowid_at:
                counted = sample is None
                kinds.append(None if counted else int)
                continue
            if sample is None:
                sample = next((row[at] for row in rows if row[at] is not None), None)
            kind = _NUMBER if sample is None else _OF_VALUE.get(type(sample))
            if kind is None or (kind is _NUMBER and kept is Affinity.TEXT and sample is not None):
                return None
            if kind is _TEXT and kept not in (Affinity.TEXT, Affinity.BLOB):
                texts.append(at)
            kinds.append(kind)
        msgspec.convert(rows, _rows_of(tuple(kinds)), builtin_types=_NATIVE)
        for at in texts:
            if _LIKE_A_NUMBER.search("\n".join([row[at] for row in rows if row[at] is not None])):
                return None
        return counted


@lru_cache(maxsize=1024)
def _rows_of(kinds: tuple[Any, ...]) -> Any:
    return list[tuple[kinds]]  # type: ignore[valid-type]


def bulk_insert(insert: PlainInsert, table: TableMap, facts: InsertFacts, *, own_functions: bool) -> BulkInsert | None:
    """Return the judge of an INSERT's rows, None where they have to be seen one by one.

    `own_functions`: the connection has functions or collations of its user's, which might write when they are called.
    """
    if facts.triggers or not facts.utf8 or any(map(_CONFLICT.search, facts.table)):
        return None
    if own_functions:
        words = any(_CALLS.search(text) for text in facts.table + facts.indexes)
        if words or any(text.count("(") > 1 for text in facts.indexes):
            return None
    columns = range(len(table.columns))
    if insert.columns is not None:
        places = {fold(column.name): at for at, column in enumerate(table.columns)}
        found = [places.get(fold(name)) for name in insert.columns]
        given = [at for at in found if at is not None]
        if len(given) != len(found) or len(set(given)) != len(given):
            return None
    else:
        given = list(columns)
    if len(given) != insert.values:
        return None
    filled = [at for at in columns if at not in given and at != facts.rowid]
    fill: list[object] = []
    for at in filled:
        known, value = _literal(facts.defaults[at])
        if not known or not _stays(value, affinity(table.columns[at].source_type)):
            return None
        fill.append(value)
    return BulkInsert(table, facts.rowid, given, tuple(fill), filled)


def _literal(default: str | None) -> tuple[bool, object]:
    """Return whether a default is a literal whose value is certain, and the value."""
    text = (default or "null").strip()
    if fold(text) in _WORD_LITERALS:
        return True, _WORD_LITERALS[fold(text)]
    if _INTEGER_LITERAL.fullmatch(text):
        return True, int(text)
    if _DECIMAL_LITERAL.fullmatch(text):  # so few digits are the same float for everybody
        return True, float(text)
    if _TEXT_LITERAL.fullmatch(text):
        return True, text[1:-1].replace("''", "'")
    return False, None


def _stays(value: object, kept: Affinity) -> bool:
    """Whether no text becomes a number, or a number text, in a column of an affinity."""
    if isinstance(value, str):
        return kept in (Affinity.TEXT, Affinity.BLOB) or not _LIKE_A_NUMBER.search(value)
    return value is None or kept is not Affinity.TEXT

"""SQLite as a target: its names, types and statements.

Owns what a value is stored as, and how rows are changed. The hard idea is affinity: a column's declared type may
convert what is stored in it. Values of SQLite's own sources go in as they are, so that the same declaration stores the
same bits. Values of typed sources go in as the storage class that keeps them exactly, text where none does, and a
column whose affinity would change them is refused. Pure.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from math import copysign
from operator import itemgetter
from typing import Any, Final, TypeAlias

from tranlog.affinity import Affinity, affinity
from tranlog.change import Column, Op, TableMap
from tranlog.target.binding import BoundColumn, Form, Image, MismatchError, Row, TargetColumn, UnfitError
from tranlog.target.dialect import Dialect, table_parts
from tranlog.text_forms import TEXT_OF, round_f32, text_reader
from tranlog.types import F32, CharsetBytes, LogicalType, Other, Value

_KEEPS_TEXT: Final = (Affinity.TEXT, Affinity.BLOB)
_LOOKS_NUMERIC: Final = (
    LogicalType.DECIMAL,
    LogicalType.TEXT,
    LogicalType.BIT,
    LogicalType.ENUM,
    LogicalType.SET,
    LogicalType.JSON,
    LogicalType.OTHER,
)
_I64_MIN: Final = -(1 << 63)
_I64_MAX: Final = (1 << 63) - 1
_PLAIN_TYPE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_ ]*(\([0-9+\-, .]*\))?[A-Za-z0-9_ ]*")
_GENERATED: Final = re.compile(r"\s*generated\s+always\s*$", re.IGNORECASE)
_GAP: Final = r"(?>\s+|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*+"
_TRIGGER: Final = re.compile(
    rf"{_GAP}(?:create\b{_GAP}(?:temp(?:orary)?\b{_GAP})?|drop\b{_GAP})trigger\b", re.IGNORECASE | re.DOTALL
)
_CONDITIONS: Final = 100
"""So many are joined at a time: SQLite's limit for the depth of an expression is 1,000."""


_ASCII_SMALL: Final = {ord(letter): letter.lower() for letter in string.ascii_uppercase}
"""SQLite takes names for equal that differ in the case of these letters, and of no others."""


def quote(name: str) -> str:
    """Quote a name."""
    return '"' + name.replace('"', '""') + '"'


def plain_name(table: TableMap) -> str:
    """Return a table's name here, unquoted: without schema for `main`, else both in one name."""
    return table.table if table.schema in ("", "main") else f"{table.schema}.{table.table}"


def _column_type(column: Column) -> str:
    match column.logical:
        case LogicalType.ANY:
            declared = _GENERATED.sub("", column.source_type).strip()
            return declared if not declared or _PLAIN_TYPE.fullmatch(declared) else quote(declared)
        case LogicalType.INTEGER if column.unsigned and "big" in column.source_type.lower():
            return _untyped(column)  # beyond 63 bits a number is text, which INTEGER would make a float of
        case LogicalType.BOOL | LogicalType.INTEGER:
            return "INTEGER"
        case LogicalType.F32 | LogicalType.F64:
            return _untyped(column)  # REAL would drop the sign of -0.0
        case LogicalType.BYTES:
            return "BLOB"
        case _:
            return "TEXT"


def _untyped(column: Column) -> str:
    return "/* " + re.sub(r"[^A-Za-z0-9_ (),]", "", column.source_type) + " */"


def create_table(table: TableMap) -> tuple[str, ...]:
    """Return the statement that makes a table with the source's types, or with those that keep its values."""

    def defined(index: int, column: Column) -> str:
        kind = _column_type(column)
        if column.nullable and table.primary_key == (index,) and kind.upper() == "INTEGER":
            kind = "INT"  # an INTEGER PRIMARY KEY is the rowid, which makes a number of NULL
        return kind + ("" if column.nullable else " NOT NULL")

    return (f"CREATE TABLE IF NOT EXISTS {quote(plain_name(table))} ({table_parts(table, quote, defined)})",)


def add_column(table: TableMap, index: int) -> str:
    """Return the statement that adds a column. SQLite adds none that is NOT NULL and has no default."""
    column = table.columns[index]
    return f"ALTER TABLE {quote(plain_name(table))} ADD COLUMN {quote(column.name)} {_column_type(column)}".rstrip()


def rename_table(table: TableMap, to: TableMap) -> str:
    """Return the statement that renames a table."""
    return f"ALTER TABLE {quote(plain_name(table))} RENAME TO {quote(plain_name(to))}"


def skip_triggers(statement: str) -> str:
    """Say why a trigger is neither made nor dropped here."""
    if _TRIGGER.match(statement):
        return "the rows that a trigger writes at the source arrive as rows; at the target it would write them twice"
    return ""


# --- values in ------------------------------------------------------------------------------------------------------


def accepts(column: Column, target: TargetColumn) -> None:
    """Refuse an affinity that would change the source's values. Raises MismatchError."""
    logical = column.logical
    if logical == LogicalType.ANY:
        own = affinity(_GENERATED.sub("", column.source_type))
        if target.category not in (Affinity.BLOB, own) and {target.category, own} != {
            Affinity.INTEGER,
            Affinity.NUMERIC,
        }:
            raise MismatchError(
                f"column {column.name} is declared {target.declared} here, which converts values that the source's "
                f"{column.source_type or 'column without a type'} keeps; declare it the same, or without a type"
            )
        return
    if logical in _LOOKS_NUMERIC and target.category not in _KEEPS_TEXT:
        raise MismatchError(
            f"column {column.name} is declared {target.declared} here, which turns text that looks like a number "
            f"into one; the source's {column.source_type} needs TEXT"
        )
    if logical in (LogicalType.BOOL, LogicalType.INTEGER) and target.category == Affinity.REAL:
        raise MismatchError(
            f"column {column.name} is declared {target.declared} here, which turns an integer into a float and rounds "
            f"large ones; the source's {column.source_type} needs INTEGER or no type"
        )
    if logical in (LogicalType.F32, LogicalType.F64) and target.category == Affinity.TEXT:
        raise MismatchError(
            f"column {column.name} is declared {target.declared} here, which turns a float into text and rounds it; "
            f"the source's {column.source_type} needs REAL or no type"
        )


def _store_typed(column: BoundColumn) -> Callable[[Value], Any]:
    name, category = column.source.name, column.target.category
    declared = column.target.declared

    def store(value: Value) -> Any:
        if value is None:
            return None
        kind = type(value)
        if kind is str or kind is bytes:
            return value
        if isinstance(value, int):
            if _I64_MIN <= value <= _I64_MAX:
                return int(value)
            if category in _KEEPS_TEXT:
                return str(value)
            raise UnfitError(
                f"column {name}: {value} is beyond 64 bits, and {declared} would make a float of it; "
                "declare the column without a type"
            )
        if isinstance(value, F32):
            value = value.value
        if isinstance(value, float):
            if value != value:
                return "NaN"  # SQLite stores NaN as NULL
            if value == 0.0 and copysign(1.0, value) < 0 and category != Affinity.BLOB:
                raise UnfitError(
                    f"column {name}: -0.0 loses its sign in a column declared {declared}; declare it without a type"
                )
            return value
        if isinstance(value, CharsetBytes):
            return value.raw
        text = TEXT_OF.get(type(value))
        if text is None:
            raise UnfitError(f"column {name}: the source did not send its value")
        return text(value)

    return store


# --- values out -----------------------------------------------------------------------------------------------------


def reader(column: Column, target: TargetColumn) -> Callable[[Any], Value]:
    """Return what makes a value again out of what SQLite gives back."""
    logical = column.logical
    if logical == LogicalType.ANY:
        return _read_any
    read_text = text_reader(column)
    if logical in (LogicalType.F32, LogicalType.F64):
        return lambda stored: _read_float(stored, single=logical == LogicalType.F32)
    if logical == LogicalType.BOOL:
        return lambda stored: bool(stored) if isinstance(stored, int) and stored in (0, 1) else stored
    if logical == LogicalType.TEXT:
        charset = column.charset or ""
        return lambda stored: CharsetBytes(charset, stored) if isinstance(stored, bytes) else stored
    if logical in (LogicalType.INTEGER, LogicalType.BYTES):
        return lambda stored: read_text(stored) if isinstance(stored, str) else stored
    source_type = column.source_type
    return lambda stored: read_text(stored) if isinstance(stored, str) else Other(source_type, str(stored))


def selected(column: Column, target: TargetColumn, name: str) -> str:
    """Return what to select of a column. Of a column without a logical type text comes as its bytes, since it need not
    be UTF-8, and bytes come as hexadecimal text, to be told apart.
    """
    if column.logical != LogicalType.ANY:
        return name
    return f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) WHEN 'blob' THEN hex({name}) ELSE {name} END"


def _read_any(stored: Any) -> Value:
    if isinstance(stored, bytes):
        try:
            return stored.decode()
        except UnicodeDecodeError:
            return CharsetBytes("utf8", stored)
    return bytes.fromhex(stored) if isinstance(stored, str) else _same(stored)


def _same(stored: Any) -> Value:
    value: Value = stored
    return value


def _read_float(stored: Any, *, single: bool) -> Value:
    try:
        number = float(stored)
    except (TypeError, ValueError):
        return _same(stored)
    return round_f32(number) if single else number


# --- statements -----------------------------------------------------------------------------------------------------

_Picked: TypeAlias = Sequence[tuple[int, BoundColumn]]
"""For each parameter its place in a row, and its column."""


class SqliteForms:
    """One statement, run once for each row: parameters are `?1`, `?2`, in the order of the picked columns."""

    def insert(self, table: str, columns: Sequence[BoundColumn]) -> Form:
        names = ", ".join([c.name for c in columns])
        return _form(
            Op.INSERT,
            [(c.index, c) for c in columns],
            lambda marks: f"INSERT INTO {table} ({names}) VALUES ({', '.join(marks)})",
        )

    def update(
        self, table: str, changed: Sequence[BoundColumn], key: Sequence[BoundColumn], *, width: int, alone: bool
    ) -> Form:
        return _form(
            Op.UPDATE,
            [(width + c.index, c) for c in changed] + [(c.index, c) for c in key],
            lambda marks: (
                f"UPDATE {table} SET {_set(changed, marks)} WHERE {_equal(table, key, marks[len(changed) :])}"
            ),
        )

    def delete(self, table: str, key: Sequence[BoundColumn]) -> Form:
        return _form(
            Op.DELETE,
            [(c.index, c) for c in key],
            lambda marks: f"DELETE FROM {table} WHERE {_equal(table, key, marks)}",
        )

    def update_image(self, table: str, changed: Sequence[BoundColumn], image: Image, *, width: int) -> Form:
        def sql(marks: Sequence[str]) -> str:
            one = _one_of(table, image, marks[len(changed) :])
            return f"UPDATE {table} SET {_set(changed, marks)} WHERE {one}"

        return _form(Op.UPDATE, [(width + c.index, c) for c in changed] + [(c.index, c) for c in image.columns], sql)

    def delete_image(self, table: str, image: Image) -> Form:
        return _form(
            Op.DELETE,
            [(c.index, c) for c in image.columns],
            lambda marks: f"DELETE FROM {table} WHERE {_one_of(table, image, marks)}",
        )


def _set(columns: Sequence[BoundColumn], marks: Sequence[str]) -> str:
    return ", ".join([f"{c.name} = {mark}" for c, mark in zip(columns, marks, strict=False)])


def _equal(table: str, columns: Sequence[BoundColumn], marks: Sequence[str]) -> str:
    # With the table's name in front: SQLite takes a quoted name that is no column for a text, and goes on.
    return _all([f"{table}.{c.name} = {mark}" for c, mark in zip(columns, marks, strict=True)])


def _all(conditions: Sequence[str]) -> str:
    """Return what holds where all of them do."""
    while len(conditions) > _CONDITIONS:
        groups = range(0, len(conditions), _CONDITIONS)
        conditions = [f"({' AND '.join(conditions[at : at + _CONDITIONS])})" for at in groups]
    return " AND ".join(conditions)


def _one_of(table: str, image: Image, marks: Sequence[str]) -> str:
    place = image.place
    conditions = []
    for column, mark in zip(image.columns, marks, strict=True):
        # A collation of the column's own must not find another text; 1 and 1.0 are equal, and not the same value.
        name = f"{table}.{column.name}"
        conditions.append(f"{name} COLLATE BINARY IS {mark}")
        if column.source.logical == LogicalType.ANY:
            conditions.append(f"typeof({name}) = typeof({mark})")
    same = _all(conditions)
    return f"{place} = (SELECT {place} FROM {table} WHERE {same} LIMIT 1)" if place else same


def _form(op: Op, picked: _Picked, sql: Callable[[Sequence[str]], str]) -> Form:
    def for_row(row: Row) -> Form | None:
        """Text that is not UTF-8, of a SQLite source: its bytes go in as a BLOB, and SQLite calls them text."""
        cast = [c.source.logical == LogicalType.ANY and isinstance(row[i], CharsetBytes) for i, c in picked]
        if not any(cast):
            return None
        marks = [f"CAST(?{n} AS TEXT)" if is_cast else f"?{n}" for n, is_cast in enumerate(cast, start=1)]
        return Form(op=op, sql=sql(marks), bind=_bind_raw(picked))

    marks = [f"?{n}" for n in range(1, len(picked) + 1)]
    return Form(op=op, sql=sql(marks), bind=_binder(picked), for_row=for_row)


def _bind_raw(picked: _Picked) -> Callable[[Sequence[Row]], Sequence[Any]]:
    bind = _binder(picked)

    def raw(rows: Sequence[Row]) -> Sequence[Any]:
        return bind([tuple([v.raw if isinstance(v, CharsetBytes) else v for v in row]) for row in rows])

    return raw


def _binder(picked: _Picked) -> Callable[[Sequence[Row]], Sequence[Any]]:
    if all(column.source.logical == LogicalType.ANY for _, column in picked):
        indexes = [index for index, _ in picked]
        if len(indexes) == 1:
            (only,) = indexes
            return lambda rows: [(row[only],) for row in rows]
        pick = itemgetter(*indexes)
        return lambda rows: list(map(pick, rows))
    stores = [
        (index, _same if column.source.logical == LogicalType.ANY else _store_typed(column)) for index, column in picked
    ]

    def bind(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        return [tuple([store(row[index]) for index, store in stores]) for row in rows]

    return bind


SQLITE: Final = Dialect(
    kind="sqlite",
    mark="?",
    integer_type="INTEGER",
    text_type="TEXT",
    key_text_type="TEXT",
    table_suffix="",
    now_ms="CAST(unixepoch('now', 'subsec') * 1000 AS INTEGER)",
    insert_or_keep="INSERT INTO {into} ON CONFLICT ({key}) DO NOTHING",
    insert_or_set="INSERT INTO {into} ON CONFLICT ({key}) DO UPDATE SET {set}",
    lock_rows="",
    share_rows="",
    check_deferred="",
    runs_ddl_of=frozenset({"sqlite"}),
    ddl_to_skip=skip_triggers,
    has_sequences=False,
    keys_at_end=False,
    unchecked="",
    statements_commit=False,
    without_transactions="",
    quote=quote,
    table_name=lambda table: quote(plain_name(table)),
    one_name=lambda table: plain_name(table).translate(_ASCII_SMALL),
    one_column=lambda name: name.translate(_ASCII_SMALL),
    create_table=create_table,
    add_column=add_column,
    column_type=lambda table, index: _column_type(table.columns[index]),
    rename_table=rename_table,
    accepts=accepts,
    forms=SqliteForms(),
    selected=selected,
    reader=reader,
)
"""SQLite. A write transaction holds the whole database, so rows need no locks of their own."""

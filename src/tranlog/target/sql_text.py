"""A transaction as a script of SQL that commits it again, by a database's own program.

Owns how each kind of database spells a value in a script, and what has no such form. Appliers send parameters instead.
The hard idea: a transaction is one; where a change of it has no form, none of it is in the script. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from math import isinf, isnan
from typing import Final

import msgspec

from tranlog.change import Change, Op, RowChange, TableMap
from tranlog.target import mariadb_dialect, postgres_dialect, sqlite_dialect
from tranlog.text_forms import TEXT_OF, bits_text
from tranlog.types import F32, UNCHANGED, Bit, Instant, Value

_I64: Final = range(-(1 << 63), 1 << 63)


class SqlKind(enum.StrEnum):
    """Whose SQL it is."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"
    MARIADB = "mariadb"


class NoSqlForm(msgspec.Struct, frozen=True):
    """Why a transaction has no form in that SQL."""

    why: str


class _Spelling(msgspec.Struct, frozen=True):
    head: str
    """What a script begins with."""
    table: Callable[[TableMap], str]
    quote: Callable[[str], str]
    same: str
    """An operator that takes NULL for equal to NULL."""
    text: Callable[[str], str]
    blob: str
    """Of `{hex}`."""
    bits: str
    """Of `{bits}`."""
    infinity: str
    """Of `{sign}`; empty where there is none."""
    in_schema: str
    """A statement before one that ran in `{schema}`; empty where there is none."""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sqlite_text(text: str) -> str:
    return f"CAST(X'{text.encode().hex()}' AS TEXT)" if "\0" in text else _quoted(text)


def _postgres_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL has no text with a zero byte")
    return _quoted(text)


def _mariadb_text(text: str) -> str:
    """A backslash means one thing or another there, as sql_mode says."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if "\\" in text or "\0" in text else _quoted(text)


_SPELLINGS: Final[Mapping[SqlKind, _Spelling]] = {
    SqlKind.SQLITE: _Spelling(
        head="",
        table=lambda table: sqlite_dialect.quote(sqlite_dialect.plain_name(table)),
        quote=sqlite_dialect.quote,
        same="IS",
        text=_sqlite_text,
        blob="X'{hex}'",
        bits="'{bits}'",
        infinity="{sign}9e999",
        in_schema="",
    ),
    SqlKind.POSTGRES: _Spelling(
        head="SET client_encoding = 'UTF8';\nSET standard_conforming_strings = on;",
        table=postgres_dialect.table_name,
        quote=postgres_dialect.quote_column,
        same="IS NOT DISTINCT FROM",
        text=_postgres_text,
        blob="'\\x{hex}'",
        bits="B'{bits}'",
        infinity="'{sign}Infinity'",
        in_schema="SET LOCAL search_path TO {schema};",
    ),
    SqlKind.MARIADB: _Spelling(
        head="SET NAMES utf8mb4;\nSET time_zone = '+00:00';",
        table=mariadb_dialect.table_name,
        quote=mariadb_dialect.quote,
        same="<=>",
        text=_mariadb_text,
        blob="X'{hex}'",
        bits="b'{bits}'",
        infinity="",
        in_schema="USE {schema};",
    ),
}


def script_head(kind: SqlKind) -> str:
    """Return what stands before the first transaction of a script; empty where nothing has to."""
    return _SPELLINGS[kind].head


def transaction_script(changes: Sequence[Change], kind: SqlKind) -> str | NoSqlForm:
    """Return a transaction from BEGIN to COMMIT, a statement a change.

    Rows are found by their primary key. What has no form: a change of a row without one, a value that the source did
    not send, or that this kind of database does not know, text in bytes.
    """
    try:
        return "\n".join(["BEGIN;", *_statements(changes, kind), "COMMIT;"])
    except ValueError as exc:
        return NoSqlForm(str(exc))


def _statements(changes: Sequence[Change], kind: SqlKind) -> Iterator[str]:
    spelling = _SPELLINGS[kind]
    for change in changes:
        if isinstance(change, RowChange):
            yield _row_sql(change, kind)
            continue
        if isinstance(change.sql, bytes):
            raise ValueError("a statement that is no UTF-8")
        if change.schema and spelling.in_schema:
            yield spelling.in_schema.format(schema=spelling.quote(change.schema))
        yield f"{change.sql.strip()}\n;"  # it may end in a comment


def _row_sql(change: RowChange, kind: SqlKind) -> str:
    table, spelling = change.table, _SPELLINGS[kind]
    name, columns = spelling.table(table), [spelling.quote(one.name) for one in table.columns]

    def told(row: Sequence[Value], at: int) -> str:
        try:
            return literal(row[at], kind)
        except ValueError as exc:
            raise ValueError(f"column {table.columns[at].name} of {table.schema}.{table.table}: {exc}") from exc

    after = change.after or ()
    if change.op is Op.INSERT:
        values = ", ".join([told(after, at) for at in range(len(columns))])
        return f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({values});"
    before = change.before or ()
    if not table.primary_key:
        raise ValueError(f"{table.schema}.{table.table} has no primary key, by which a row would be found")
    key = " AND ".join([f"{columns[at]} {spelling.same} {told(before, at)}" for at in table.primary_key])
    if change.op is Op.DELETE:
        return f"DELETE FROM {name} WHERE {key};"
    sent = [at for at in range(len(columns)) if after[at] is not UNCHANGED]
    return f"UPDATE {name} SET {', '.join([f'{columns[at]} = {told(after, at)}' for at in sent])} WHERE {key};"


def literal(value: Value, kind: SqlKind) -> str:
    """Return how that kind of database spells a value in SQL. Raises ValueError for one that it does not know."""
    spelling = _SPELLINGS[kind]
    match value:
        case None:
            return "NULL"
        case bool():
            return str(int(value)) if kind is SqlKind.SQLITE else str(value).upper()
        case int() if kind is not SqlKind.SQLITE or value in _I64:
            return str(value)
        case float() | F32():
            return _number(value.value if isinstance(value, F32) else value, kind)
        case Decimal() if kind is not SqlKind.SQLITE and value.is_finite():
            return format(value, "f")
        case bytes():
            return spelling.blob.format(hex=value.hex())
        case Bit():
            return spelling.bits.format(bits=bits_text(value))
    text = TEXT_OF.get(type(value))
    if text is None:
        raise ValueError("a value that the source did not send, or in a character set of its own")
    told = text(value)
    if isinstance(value, Instant) and kind is SqlKind.MARIADB:
        told = told.replace("+00", "")  # its script sets the zone
    return spelling.text(told)


def _number(value: float, kind: SqlKind) -> str:
    if isnan(value) and kind is SqlKind.POSTGRES:
        return "'NaN'"
    if isnan(value) or (isinf(value) and not _SPELLINGS[kind].infinity):
        raise ValueError(f"{value} is no number there")
    return _SPELLINGS[kind].infinity.format(sign="-" if value < 0 else "") if isinf(value) else repr(value)

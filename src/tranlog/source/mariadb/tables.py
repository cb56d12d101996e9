"""A MariaDB's tables as they are now: for `tranlog verify` and `tranlog tables create`.

Owns reading the catalog into table maps and the rows of a SELECT into values, both as the binlog would give them. The
hard idea: the server's text of a value is not always the value (a FLOAT is shown with six digits), so some columns are
asked for in another form, and text comes in the column's own charset, to be decoded by the same code as the binlog's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pymysql
import pymysql.cursors

from tranlog.change import TableMap, TableName
from tranlog.charsets import is_utf8, text_decoder
from tranlog.errors import UnsupportedTypeError
from tranlog.row_blocks import RowBlock, decoded
from tranlog.row_bytes import encode_value
from tranlog.servers.mariadb import close
from tranlog.servers.mariadb_values import enum_values, set_value
from tranlog.source.mariadb.catalog import Catalog
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions, connect, translated
from tranlog.source.mariadb.query_rows import query_rows
from tranlog.source.mariadb.types import Family, MariadbType, table_map, type_in_catalog
from tranlog.source.mariadb.values import date_value, datetime_value, instant_value
from tranlog.text_rows import (
    AS_BARE_INSTANT,
    AS_BYTES,
    AS_DATETIME,
    AS_DECIMAL,
    AS_INTEGER,
    AS_REAL,
    AS_TEXT,
    ValueEncoder,
)
from tranlog.types import F32, Bit, Datetime, Other, Time, Value

_READ_TIMEOUT_S: Final = 600
_PERIOD: Final = MariadbType(family=Family.TIMESTAMP, name="timestamp", decimals=6)

FromServer = Callable[[Any], Value]


class MariadbTables:
    """The tables of a MariaDB source, read over connections of its own.

    Threads: one.
    """

    def __init__(self, options: MariadbSourceOptions) -> None:
        options.check()
        self._options = options
        self._control = Control(options)
        self._catalog = Catalog(options, self._control)
        self._types: dict[TableMap, tuple[MariadbType, ...]] = {}
        self._versioned: dict[TableMap, bool] = {}

    def tables(self, only: TableName | None = None) -> list[TableMap]:
        """Return the captured tables by (schema, table), or `only` one; sequences and views are none.

        Raises: SourceUnavailableError, SourceSetupError; UnsupportedTypeError for a column that cannot be carried.
        """
        self._catalog.forget_tables()
        self._types.clear()
        found = self._catalog.captured_tables(only)
        return [self._table(*one) for one in found if only in (None, one[:2])]

    def _table(self, schema: str, table: str, versioned: bool) -> TableMap:
        catalog = self._catalog
        known = catalog.table(schema, table)
        generated = frozenset() if known is None else known.generated
        every = catalog.columns(schema, table)
        listed = [column for column in every if column.name not in generated] or every
        types = [type_in_catalog(f"{schema}.{table}", column) for column in listed]
        columns = [
            kind.column(column.name, nullable=column.nullable) for kind, column in zip(types, listed, strict=True)
        ]
        key = list(catalog.primary_key(schema, table))
        if versioned and catalog.hides_its_period(schema, table):
            types += [_PERIOD, _PERIOD]
            columns += [_PERIOD.column(name, nullable=False) for name in ("row_start", "row_end")]
            if key:
                key.append("row_end")
        place = {column.name: at for at, column in enumerate(columns)}
        found = table_map(
            schema,
            table,
            columns,
            primary_key=[place[name] for name in key],
            known=known,
        )
        self._types[found] = tuple(types)
        self._versioned[found] = versioned
        return found

    def rows(self, table: TableMap, limit: int | None = None) -> Iterator[tuple[Value, ...]]:
        """Yield a table's rows as the capture would carry them, in no order, streaming; `table` is one of `tables`.

        Raises: SourceUnavailableError, SourceSetupError.
        """
        connection = connect_to_read(self._options)
        try:
            yield from decoded(self.select(table, connection, "" if limit is None else f"LIMIT {limit}"), table)
        finally:
            close(connection)

    def select(self, table: TableMap, connection: pymysql.Connection[Any], clause: str = "") -> Iterator[RowBlock]:
        """Yield the rows of a SELECT over a connection of `connect_to_read`; `clause` is what follows FROM.

        Raises as `rows`.
        """
        types = self._types.get(table)
        if types is None:
            raise UnsupportedTypeError(table=table.name, column="*", type_name="a table that `tables` did not return")
        asked, encoders = [], []
        for column, kind in zip(table.columns, types, strict=True):
            expression, reader = _reading(kind)
            asked.append(expression.format(quoted_name(column.name)))
            encoders.append(_encoder(reader))
        forms = bytes(map(_form, types))
        source = f"{quoted_name(table.schema)}.{quoted_name(table.table)}"
        if self._versioned[table]:
            source += " FOR SYSTEM_TIME ALL"
        try:
            sql = f"SELECT {', '.join(asked)} FROM {source} {clause}"
            yield from query_rows(connection, sql, forms, encoders)
        except (pymysql.err.MySQLError, OSError) as exc:
            raise translated(exc, self._options, table=table.name) from exc

    def has_integers_or_bytes(self, table: TableMap) -> bool:
        """Whether every column of the table's key has one order, at the server and here, and no period is in it."""
        types = self._types[table]
        return not self._versioned[table] and all(
            types[at].family in (Family.INTEGER, Family.BYTES) for at in table.primary_key
        )

    def estimate(self, table: TableMap) -> int:
        """Return what the engine takes for their number; see `TableReader.estimate`."""
        return self._catalog.rows_estimated(table.schema, table.table)

    def beside(self) -> dict[str, str]:
        """Return the captured tables whose engine has no transactions; see `TableReader.beside`."""
        found = self._catalog.without_transactions()
        return {name: f"its engine {engine} has no snapshots" for name, engine in sorted(found.items())}

    def close(self) -> None:
        """Free the connection; closing twice is harmless."""
        self._control.close()


def connect_to_read(options: MariadbSourceOptions) -> pymysql.Connection[Any]:
    """Open a session for `MariadbTables.select`. Raises SourceUnavailableError, SourceSetupError."""
    # Without a charset of the connection, text comes as it is stored.
    return connect(
        options,
        use_unicode=False,
        conv={},
        init_command="SET SESSION character_set_results = NULL, sql_mode = ''",
        cursorclass=pymysql.cursors.SSCursor,
        read_timeout=_READ_TIMEOUT_S,
    )


def quoted_name(name: str) -> str:
    """Return a name as SQL spells it."""
    return "`" + name.replace("`", "``") + "`"


def _text(raw: str | bytes) -> str:
    return raw if isinstance(raw, str) else raw.decode("ascii")


def _bytes(raw: str | bytes) -> bytes:
    return raw if isinstance(raw, bytes) else raw.encode()


def _encoder(reader: FromServer) -> ValueEncoder:
    return lambda raw: encode_value(reader(raw))


_FORMS: Final = {
    Family.INTEGER: AS_INTEGER,
    Family.DECIMAL: AS_DECIMAL,
    Family.DOUBLE: AS_REAL,
    Family.DATETIME: AS_DATETIME,
    Family.TIMESTAMP: AS_BARE_INSTANT,
    Family.BYTES: AS_BYTES,
    Family.GEOMETRY: AS_BYTES,
}
_AS_ASCII: Final = ("ascii", "latin1")
"""Charsets beside UTF-8 in which ASCII is ASCII."""


def _form(kind: MariadbType) -> int:
    """Return how a column's texts are written; see `text_rows.put_text`."""
    if kind.family is Family.TEXT and (is_utf8(kind.charset or "") or kind.charset in _AS_ASCII):
        return AS_TEXT
    return _FORMS.get(kind.family, 0)


def _reading(kind: MariadbType) -> tuple[str, FromServer]:
    """Return the expression that asks for a column, and what makes a value of the answer."""
    match kind.family:
        case Family.FLOAT | Family.DOUBLE:
            return "CAST({} AS DOUBLE)", _PLAIN[kind.family]
        case Family.BIT:
            width = kind.length
            return "{}", lambda raw: Bit(width, int.from_bytes(raw, "big"))
        case Family.DATETIME:
            return "{}", _datetime_reader(kind.decimals)
        case Family.TIMESTAMP:
            return "{}", _timestamp_reader(kind.decimals)
        case Family.TEXT:
            decode = text_decoder(kind.charset or "")
            return "{}", lambda raw: decode(_bytes(raw))
        case Family.ENUM:
            labels = enum_values(kind.labels)
            return "{} + 0", lambda raw: labels[int(float(raw))]
        case Family.SET:
            # As a number, but not by `+ 0`: that is a double, and a set has up to 64 members.
            members = kind.labels
            return "CAST({} AS UNSIGNED)", lambda raw: set_value(members, int(raw))
        case Family.INET:
            name = kind.name
            return "{}", lambda raw: Other(name, _text(raw))
        case family:
            return "{}", _PLAIN[family]


def _year(raw: str | bytes) -> Value:
    text = _text(raw)
    year = int(text)
    if len(text) == 2:  # YEAR(2)
        year += 2000 if year < 70 else 1900
    return year


_DATE: Final = re.compile(r"(\d+)-(\d+)-(\d+)")
_CLOCK: Final = re.compile(r"(-?)(\d+):(\d+):(\d+)(?:\.(\d+))?")


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise UnsupportedTypeError(table="(read by SELECT)", column="?", type_name=f"a time that reads {text!r}")
    return match


def _date(raw: str | bytes) -> Value:
    match = _matched(_DATE, _text(raw))
    return date_value(int(match[1]), int(match[2]), int(match[3]))


def _clock_micros(text: str) -> int:
    match = _matched(_CLOCK, text)
    seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4])
    micros = seconds * 1_000_000 + int((match[5] or "").ljust(6, "0"))
    return -micros if match[1] else micros


def _datetime_reader(decimals: int) -> FromServer:
    def read(raw: str | bytes) -> Value:
        date, _, clock = _text(raw).partition(" ")
        match = _matched(_DATE, date)
        return datetime_value(int(match[1]), int(match[2]), int(match[3]), _clock_micros(clock), decimals)

    return read


def _timestamp_reader(decimals: int) -> FromServer:
    as_datetime = _datetime_reader(decimals)

    def read(raw: str | bytes) -> Value:
        value = as_datetime(raw)
        if not isinstance(value, Datetime):
            return instant_value(0, 0, decimals)
        return instant_value(*divmod(value.micros, 1_000_000), decimals)

    return read


_PLAIN: Final[dict[Family, FromServer]] = {
    Family.INTEGER: int,
    Family.YEAR: _year,
    Family.FLOAT: lambda raw: F32(float(raw)),
    Family.DOUBLE: float,
    Family.DECIMAL: lambda raw: Decimal(_text(raw)),
    Family.DATE: _date,
    Family.TIME: lambda raw: Time(_clock_micros(_text(raw))),
    Family.BYTES: _bytes,
    Family.GEOMETRY: _bytes,
    Family.UUID: lambda raw: UUID(_text(raw)),
}
"""What makes a value of each family whose other attributes do not matter."""

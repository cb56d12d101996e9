"""Every column type of every source, with its extremes, through every target: `docs/types.md` is what came of it.

Proves: "any source's value survives the log and reaches any target unchanged or is
refused by name". Each value is inserted at the source, captured into a log and applied by a target's own code; then
three readings must agree: the log's, a SELECT at the source, and the target's. The page is written from what was seen:
`TRANLOG_WRITE_DOCS=1 .venv/bin/pytest tests/integration/test_type_matrix.py` writes it anew.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, cast

import apsw
import psycopg
import pymysql
import pytest

from fix_mariadb_source import options_for
from fix_postgres_source import options_for as postgres_options_for
from fix_target import content
from fix_type_cases import ANY_DATE_MODE, MARIADB, POSTGRES, POSTGRES_SETUP, SQLITE, TypeCase
from tranlog import errors
from tranlog.capture.capture import Capture
from tranlog.change import Change, Column, Op, RowChange, TableMap
from tranlog.errors import ConflictError
from tranlog.ids import NO_SEQNO
from tranlog.log.reading.cursor import StoredTransaction
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.options import ApplyOptions
from tranlog.service.frame.exits import EXIT_CODES
from tranlog.source.mariadb import MariadbSource
from tranlog.source.mariadb.tables import MariadbTables
from tranlog.source.postgres import PostgresSource, PostgresTables
from tranlog.source.source import Source, TableReader
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, SqliteTables, connect
from tranlog.target.database import SqlRows
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Advance, ApplyUnit, ChannelRow, Target
from tranlog.testing.servers import MariaDbAddress, MariaDbServer, PostgresAddress, PostgresServer
from tranlog.types import F32, CharsetBytes, LogicalType, Value, canonical

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "types.md"
WRITE = "TRANLOG_WRITE_DOCS"
PIPELINE = "types"
TYPES_OF_A_TABLE = 16
WIDE = 2000
Row = tuple[Value, ...]


# --- what is seen ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A value that arrived: whether as a value of its own kind; the type, and the text, that the target gives it."""

    natural: bool
    stored: str
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A value that did not arrive: the error's type, and its reason without the names of this run."""

    error: str
    why: str


Outcome = Carried | Refused


@dataclass(slots=True)
class Seen:
    """What came of one declared type: at the source, and at each kind of target."""

    case: TypeCase
    column: str
    refused_at_source: dict[str, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    """The name of the value by the key of its row."""
    values: dict[str, Value] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    """The column's type at a kind of target, as it declares it."""
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)


@dataclass(slots=True)
class Table:
    """Types that share a table, a column each. Each row holds one value, in the column of its type."""

    name: str
    seen: list[Seen]
    map: TableMap | None = None

    def place(self, one: Seen) -> int:
        """The index of a type's column in a row."""
        return self.seen.index(one) + 1

    def of(self, row: Row) -> tuple[Seen, str, Value]:
        """What a row holds: the type, the value's name, and the value; all other columns are NULL."""
        key = row[0]
        for one in self.seen:
            if key in one.keys:
                assert isinstance(key, int)
                others = [value for at, value in enumerate(row) if at not in (0, self.place(one))]
                assert others == [None] * (len(self.seen) - 1), f"{self.name}, key {key!r}: {row}"
                return one, one.keys[key], row[self.place(one)]
        raise AssertionError(f"{self.name} has a row with the key {key!r}, which was not inserted")


@dataclass(frozen=True, slots=True)
class Matrix:
    """All that was seen, by source."""

    sources: dict[str, list[Seen]]


def tables_of(cases: Sequence[TypeCase]) -> Iterator[Table]:
    """Divide the types among tables: what is long has one of its own, and so has what is written behind a bracket."""
    groups: dict[tuple[str, bool], list[TypeCase]] = {}
    for case in cases:
        groups.setdefault((case.suffix, is_wide(case)), []).append(case)
    number = 0
    for (_, wide), group in groups.items():
        most = 1 if wide else TYPES_OF_A_TABLE
        for start in range(0, len(group), most):
            yield Table(f"t{number}", [Seen(case, f"c{at}") for at, case in enumerate(group[start : start + most])])
            number += 1


def is_wide(case: TypeCase) -> bool:
    """Whether a declared length nearly fills a row of MariaDB's, which ends at 65,535 bytes."""
    return any(int(digits) > WIDE for digits in re.findall(r"\((\d+)\)", case.declared))


def fill(tables: Sequence[Table], key: str, run: Callable[[str, tuple[object, ...]], None]) -> None:
    """Make the tables and insert each value in a transaction of its own; the source may refuse some."""
    for table in tables:
        columns = ", ".join(f"{one.column} {one.case.declared}" for one in table.seen)
        run(f"CREATE TABLE {table.name} (id {key} PRIMARY KEY, {columns}){table.seen[0].case.suffix}", ())
        number = 0
        for one in table.seen:
            for label, expression in one.case.extremes:
                number += 1
                insert = f"INSERT INTO {table.name} (id, {one.column}) VALUES ({number}, {expression})"
                try:
                    run(insert, one.case.bound(label))
                except (pymysql.err.MySQLError, apsw.Error, psycopg.Error) as exc:
                    one.refused_at_source[label] = str(exc)
                else:
                    one.keys[number] = label


def fill_mariadb(server: MariaDbAddress, database: str) -> list[Table]:
    tables = list(tables_of(MARIADB))
    with contextlib.closing(server.connect(database, read_timeout=60)) as session, session.cursor() as cursor:
        cursor.execute(f"{ANY_DATE_MODE}, time_zone = '+00:00'")

        def run(sql: str, values: tuple[object, ...]) -> None:
            assert not values
            cursor.execute(sql)

        fill(tables, "INT", run)
    return tables


def fill_postgres(server: PostgresServer, database: str) -> list[Table]:
    tables = list(tables_of(POSTGRES))
    with server.connect(database) as session:
        session.execute("SET TimeZone = 'UTC'")

        def run(sql: str, values: tuple[object, ...]) -> None:
            assert not values
            session.execute(sql)  # type: ignore[call-overload]

        fill(tables, "INT", run)
    return tables


def fill_sqlite(path: Path) -> list[Table]:
    tables = list(tables_of(SQLITE))
    with contextlib.closing(connect(path)) as session:

        def run(sql: str, values: tuple[object, ...]) -> None:
            session.execute(sql, values)

        fill(tables, "INTEGER", run)
    return tables


def capture(source: Source, folder: Path, wait_s: float) -> LogReader:
    """Capture all that the source has into a new log."""
    with Log.open(folder, source_id=source.source_id) as log:
        try:
            Capture(source, log).catch_up(wait_s=wait_s)
        finally:
            source.close()
    return LogReader.open(folder)


def read_values(tables: Sequence[Table], log: LogReader, reader: TableReader) -> None:
    """Take the values from the log, and hold each against what a SELECT at the source says."""
    by_name = {table.name: table for table in tables}
    with log.cursor() as cursor:
        while (transaction := cursor.next()) is not None:
            for change in transaction.changes():
                if isinstance(change, RowChange):
                    assert change.op is Op.INSERT and change.after is not None
                    table = by_name[change.table.table]
                    table.map = change.table
                    one, label, value = table.of(change.after)
                    one.values[label] = value
    maps = {table.table: table for table in reader.tables()}
    for table in tables:
        assert table.map is not None
        assert table.map == maps[table.name], "the log describes the table in another way than the catalog"
        selected = 0
        for row in reader.rows(table.map):
            one, label, value = table.of(row)
            selected += 1
            assert canonical(one.values[label]) == canonical(value), (
                f"{one.case.declared}, {label}: the log has {shortened(repr(one.values[label]))}, "
                f"a SELECT at the source {shortened(repr(value))}"
            )
        assert selected == sum(len(one.values) for one in table.seen) == sum(len(one.keys) for one in table.seen)


class Applier:
    """The one channel of a pipeline at a target, moved on without Spark."""

    def __init__(self, target: Target) -> None:
        self.target = target
        target.positions.ensure_tables()
        driver = target.positions.take(
            pipeline=PIPELINE,
            expected_token=0,
            holder="the test",
            channels=1,
            shard_rule="all",
            rows=[ChannelRow(channel=0)],
            keep_assignment=False,
        )
        self.token = target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=driver).token
        self.at = NO_SEQNO

    def apply(self, units: Sequence[ApplyUnit]) -> None:
        """Apply source transactions in one target transaction; none at all when this raises."""
        self._move(units[-1], lambda advance: self.target.apply(units, advance))

    def pass_over(self, unit: ApplyUnit) -> None:
        """Move the position past a transaction that the target refuses."""
        self._move(unit, self.target.positions.publish)

    def _move(self, last: ApplyUnit, move: Callable[[Advance], object]) -> None:
        move(
            Advance(
                pipeline=PIPELINE,
                channel=0,
                token=self.token,
                old_seqno=self.at,
                new_seqno=last.seqno,
                epoch=last.epoch,
                source_id=last.source_id,
                event_id=last.event_id,
                tstamp=last.tstamp,
                stats="{}",
            )
        )
        self.at = last.seqno


def units_by_table(log: LogReader) -> Iterator[tuple[str, list[ApplyUnit]]]:
    """Yield the transactions that insert into each table, which follow each other; with "" those of another kind."""
    with log.cursor(committed_only=True) as cursor:
        for table, run in groupby(iter(cursor.next, None), key=table_of):
            units = []
            for transaction in run:
                header, payload = transaction.header, transaction.payload()
                units.append(
                    ApplyUnit(
                        seqno=header.seqno,
                        epoch=header.epoch,
                        source_id=header.source_id,
                        event_id=header.event_id,
                        tstamp=header.tstamp,
                        metadata=payload.metadata,
                        changes=payload.changes.__iter__,
                    )
                )
            yield table, units


def table_of(transaction: StoredTransaction) -> str:
    tables = transaction.header.tables
    return tables[0][1] if tables else ""


def apply_all(tables: Sequence[Table], log: LogReader, target: Target) -> None:
    """Make the tables as `tranlog tables create` does, and apply the log as a channel does: singly where it must."""
    by_name = {table.name: table for table in tables}
    refused: dict[tuple[str, str], ConflictError] = {}
    for table in tables:
        assert table.map is not None
        target.rows.create_table(table.map)
    applier = Applier(target)
    for name, units in units_by_table(log):
        try:
            applier.apply(units)
        except ConflictError:
            for unit in units:
                try:
                    applier.apply([unit])
                except ConflictError as exc:
                    (change,) = unit.changes()
                    one, label = refused_value(by_name[name], change, exc)
                    refused[one.case.declared + one.case.suffix, label] = exc
                    applier.pass_over(unit)
    for table in tables:
        read_outcomes(table, target, refused)


def refused_value(table: Table, change: Change, error: ConflictError) -> tuple[Seen, str]:
    """Return which value it was; the error must name its table and key."""
    assert isinstance(change, RowChange) and change.after is not None
    one, label, _ = table.of(change.after)
    assert (error.table, error.key) == (change.table.name, f"(id={change.after[0]!r})"), repr(error)
    return one, label


def read_outcomes(table: Table, target: Target, refused: dict[tuple[str, str], ConflictError]) -> None:
    """See what the target holds of each type: what was refused is not there, what is there is what was sent."""
    assert table.map is not None
    here: dict[tuple[str, str], Value] = {}
    for row in target.rows.read(table.map):
        one, label, value = table.of(row)
        here[one.column, label] = value
    for one in table.seen:
        column = table.map.columns[table.place(one)]
        one.made[target.kind], shown = show(target, table.map, one.column)
        outcomes: dict[str, Outcome] = {}
        for key, label in one.keys.items():
            value = one.values[label]
            error = refused.get((one.case.declared + one.case.suffix, label))
            if error is not None:
                assert (one.column, label) not in here, f"{one.case.declared}, {label}: refused, and yet there"
                outcomes[label] = Refused(error=type(error).__name__, why=plain_reason(error.why, one.column))
                continue
            found = here[one.column, label]
            assert canonical(found) == canonical(value), (
                f"{one.case.declared}, {label}: {shortened(repr(value))} became {shortened(repr(found))} "
                f"in {target.kind}, without an error"
            )
            stored, text = shown[key]
            natural = value is None or is_natural(target.kind, column, value, stored)
            outcomes[label] = Carried(natural=natural, stored=stored, shown=text)
        one.outcomes[target.kind] = outcomes


def show(target: Target, table: TableMap, column: str) -> tuple[str, dict[int, tuple[str, str]]]:
    """Ask the database itself for a column's declared type, and for each row its value's type and text."""
    assert isinstance(target.rows, SqlRows)
    name, session = target.rows.dialect.table_name(table), target.rows.session
    if target.kind == "sqlite":
        bits = f"hex(substr(CAST({column} AS BLOB), 1, 99))"
        text = f"CASE WHEN typeof({column}) IN ('blob', 'text') THEN {bits} ELSE {column} END"
        sql = f"SELECT id, typeof({column}), {text} FROM {name}"
        plain = name.strip('"').replace("'", "''")
        ((declared,),) = session.fetch(f"SELECT type FROM pragma_table_info('{plain}') WHERE name = '{column}'")
    elif target.kind == "mariadb":
        here = session.table(table).columns[column]
        declared = here.declared
        is_text = here.category not in ("bytes", "binary", "geometry", "bit")
        text = f"CAST({column} AS CHAR)" if is_text else f"CONCAT('0x', HEX({column}))"
        sql = f"SELECT id, '{here.type_name}', LEFT({text}, 99) FROM {name}"
    else:
        sql = f"SELECT id, pg_typeof({column})::text, left({column}::text, 99) FROM {name}"
        declared = session.table(table).columns[column].declared
    shown = {}
    for key, stored, text in session.fetch(sql):
        if stored == "text" and target.kind == "sqlite":  # by its bytes, since it need not be UTF-8
            text = bytes.fromhex(text).decode(errors="replace")
        shown[key] = (stored, str(text))
    return declared, shown


_OF_SQLITE: dict[type, str] = {bool: "integer", int: "integer", float: "real", F32: "real", str: "text", bytes: "blob"}
_OF_POSTGRES: dict[LogicalType, tuple[str, ...]] = {
    LogicalType.BOOL: ("boolean",),
    LogicalType.INTEGER: ("smallint", "integer", "bigint"),
    LogicalType.F32: ("real",),
    LogicalType.F64: ("double precision",),
    LogicalType.DECIMAL: ("numeric",),
    LogicalType.TEXT: ("text",),
    LogicalType.BYTES: ("bytea",),
    LogicalType.DATE: ("date",),
    LogicalType.DATETIME: ("timestamp without time zone",),
    LogicalType.INSTANT: ("timestamp with time zone",),
    LogicalType.TIME: ("time without time zone",),
    LogicalType.BIT: ("bit", "bit varying"),
    LogicalType.JSON: ("json",),
    LogicalType.UUID: ("uuid",),
}
_OF_MARIADB: dict[LogicalType, tuple[str, ...]] = {
    LogicalType.INTEGER: ("tinyint", "smallint", "mediumint", "int", "bigint", "year"),
    LogicalType.F32: ("float",),
    LogicalType.F64: ("double",),
    LogicalType.DECIMAL: ("decimal",),
    LogicalType.TEXT: ("varchar", "longtext"),
    LogicalType.BYTES: ("varbinary", "longblob"),
    LogicalType.DATE: ("date",),
    LogicalType.TIME: ("time",),
    LogicalType.DATETIME: ("datetime",),
    LogicalType.INSTANT: ("timestamp",),
    LogicalType.BIT: ("bit",),
    LogicalType.ENUM: ("enum",),
    LogicalType.SET: ("set",),
    LogicalType.UUID: ("uuid",),
}
_OF_MARIADB_BY_VALUE: dict[type, str] = {int: "bigint", float: "double", str: "longtext", bytes: "longblob"}
_OF_POSTGRES_BY_VALUE: dict[type, str] = {int: "bigint", float: "double precision", str: "text", bytes: "bytea"}
_OF = {"postgres": (_OF_POSTGRES_BY_VALUE, _OF_POSTGRES), "mariadb": (_OF_MARIADB_BY_VALUE, _OF_MARIADB)}
_GEOMETRIES = re.compile(r"(multi)?(point|linestring|polygon)|geometry(collection)?")


def is_natural(kind: str, column: Column, value: Value, stored: str) -> bool:
    """Whether a target's type for a value is of the value's own kind, so that a reader there sees nothing unusual."""
    if _GEOMETRIES.fullmatch(column.source_type):
        return stored == column.source_type
    if kind == "sqlite":
        if isinstance(value, CharsetBytes):
            return column.logical is LogicalType.ANY and stored == "text"
        return _OF_SQLITE.get(type(value)) == stored
    by_value, by_type = _OF[kind]
    if column.logical is LogicalType.ANY:
        return by_value.get(type(value)) == stored
    return stored in by_type.get(column.logical, ())


def plain_reason(why: str, column: str) -> str:
    """A reason without what is this value's or this run's."""
    why = re.sub(rf"^column {column}( is|: )", lambda found: "the column is" if "is" in found[1] else "", why)
    why = re.sub(r"'[^']*' is a date", "it is a date", why)
    return re.sub(r"which does not take (\w+) .*", r"which does not take \1", why, flags=re.DOTALL)


def shortened(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# --- the page --------------------------------------------------------------------------------------------

HEAD = """\
# Types: what becomes of each value

Written by `tests/integration/test_type_matrix.py` from what it saw; `TRANLOG_WRITE_DOCS=1` in front of pytest writes it
anew. Each value below was inserted at a real source, captured into a log, and applied by the target's own code into a
table that `tranlog tables create` made. Three readings were compared, value by value, type included: the log's, a
SELECT at the source, and the target's. A value that arrived as another one without an error would fail the test.

- **exactly**: the target holds a value of the same kind, equal to the last bit, sign, digit and space.
- **as something else**: the target has no such type. What it holds instead is named, with an example of its text.
  Nothing is lost by it: `tranlog verify` reads it back as the source's value and compares that.
- **refused**: the error's type and exit code; the reason stands below the table. Apply stops before that transaction
  and names seqno, table and key. A column that you make yourself of another type, `text` mostly, may take what the one
  made here refuses.

SQLite converts many values when it stores them, by the column's affinity: `1.0` in an INTEGER column is the integer 1,
and NaN is NULL. What it stored is what is carried. NULL is carried exactly everywhere and not listed. "all" means all
the values that the section on the source lists for the type.

Larger values: one of up to 535,822,336 bytes is carried to PostgreSQL, one of 999,995,904 bytes to SQLite; what is
larger is refused with its size. `tests/e2e/test_large.py` does that. `tranlog verify` cannot read a value of more than
500,000,000 bytes back that came from SQLite into SQLite, and says so.

To MariaDB a row goes in a packet of at most the server's `max_allowed_packet`, which is 16 MiB where nobody raised it
and 1 GiB at most; a larger one is refused with both numbers. Its keys hold 3,072 bytes: text in one is made a VARCHAR,
and what is longer is refused.

What differs by the version of a server; everything else on this page is the same on both:

| value | MariaDB 10.11, PostgreSQL 15 (Debian 12) | MariaDB 11.8, PostgreSQL 17 (Debian 13) |
|---|---|---|
| `-0.0` in `FLOAT`, `DOUBLE` from MariaDB | stored as `0.0` | exactly; a MariaDB target: `ConflictError` |
"""
NEGATIVE_ZERO = ("mariadb", "mariadb", "-0.0")
"""Source, target, and the name of the value that differs by the server's version: the page's second table."""
NAMES = {"mariadb": "MariaDB", "sqlite": "SQLite", "postgres": "PostgreSQL"}


def page(matrix: Matrix) -> str:
    parts = [HEAD]
    for source, seen in matrix.sources.items():
        parts.append(source_section(NAMES[source], seen))
        for target in ("postgres", "mariadb", "sqlite"):
            parts.append(target_section(source, target, seen))
    return "\n".join(parts)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def declared(one: Seen) -> str:
    if one.case.declared.startswith("SET('m00'"):
        return "SET of 64"
    return f"{one.case.declared}{one.case.suffix}" or "(none)"


_CHARSET = re.compile(r"(.* CHARACTER SET )(.*)")
_DIGITS = re.compile(r"(TIME|DATETIME|TIMESTAMP)(\(\d\))?( NULL)?")


def types_text(types: Sequence[str]) -> str:
    """Name the types of a line: what differs by its charset or its digits only, once."""
    found: dict[str, list[str]] = {}
    for text in types:
        charset, digits = _CHARSET.fullmatch(text), _DIGITS.fullmatch(text)
        if charset:
            found.setdefault(charset[1].strip(), []).append(charset[2])
        elif digits:
            found.setdefault(digits[1], []).append(digits[2] or "(0)")
        else:
            found.setdefault(text, [])
    return ", ".join(
        f"`{name}`" if parts in ([], ["(0)"]) else f"`{name}` {' '.join(parts)}" for name, parts in found.items()
    )


def made_text(one: Seen, target: str) -> str:
    """The type at the target, or that it is the source's own."""
    made = one.made[target]
    plain = re.sub(r"^(\w*int|year)\(\d+\)", r"\1", made)
    return (
        "the same"
        if target == "mariadb" and plain == one.case.declared.lower().removesuffix(" null")
        else f"`{made or '(none)'}`"
    )


def source_section(name: str, seen: Sequence[Seen]) -> str:
    """List each type's values, and those that the source itself does not take."""
    lines = [f"\n## {name}: the values", "", "| type | values | the source itself has no |", "|---|---|---|"]
    rows: dict[tuple[str, str], list[str]] = {}
    for one in seen:
        taken = ", ".join(label for label in one.keys.values() if label != "NULL")
        refused = ", ".join(one.refused_at_source)
        rows.setdefault((taken, refused), []).append(declared(one))
    lines += [
        f"| {cell(types_text(types))} | {cell(taken)} | {cell(refused)} |" for (taken, refused), types in rows.items()
    ]
    return "\n".join(lines)


def target_section(source: str, target: str, seen: Sequence[Seen]) -> str:
    """Show what came of each type at one kind of target; types of which the same is to be said share a line."""
    reasons: dict[str, int] = {}
    rows: dict[tuple[str, ...], list[str]] = {}
    examples: dict[tuple[str, ...], str] = {}
    for one in seen:
        outcomes = {
            label: outcome
            for label, outcome in one.outcomes[target].items()
            if label != "NULL" and (source, target, label) != NEGATIVE_ZERO
        }
        exactly: list[str] = []
        instead: dict[str, list[str]] = {}
        refused: dict[tuple[str, int], list[str]] = {}
        for label, outcome in outcomes.items():
            match outcome:
                case Carried(natural=True):
                    exactly.append(label)
                case Carried():
                    instead.setdefault(outcome.stored, []).append(label)
                case Refused():
                    number = reasons.setdefault(outcome.why, len(reasons) + 1)
                    refused.setdefault((outcome.error, number), []).append(label)
        key = (
            made_text(one, target),
            listed(exactly, outcomes),
            "; ".join(f"{stored}: {listed(labels, outcomes)}" for stored, labels in instead.items()),
            "; ".join(
                f"`{error}`, {EXIT_CODES[getattr(errors, error)]:d} ({n}): {listed(labels, outcomes)}"
                for (error, n), labels in refused.items()
            ),
        )
        rows.setdefault(key, []).append(declared(one))
        if instead and key not in examples:
            for labels in instead.values():
                for label in labels:
                    outcome = outcomes[label]
                    if isinstance(outcome, Carried) and outcome.shown:
                        examples[key] = f", e.g. {label} `{shortened(outcome.shown)}`"
    lines = [
        f"\n## From {NAMES[source]} to {NAMES[target]}",
        "",
        "| type | made there | exactly | as something else | refused |",
        "|---|---|---|---|---|",
    ]
    for line, types in rows.items():
        made, *texts = line
        texts[1] += examples.get(line, "")
        lines.append(f"| {cell(types_text(types))} | {cell(made)} | {' | '.join(map(cell, texts))} |")
    if reasons:
        lines += ["", "Why:", ""]
        lines += [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join(lines)


def listed(labels: Sequence[str], outcomes: dict[str, Outcome]) -> str:
    return "all" if len(labels) == len(outcomes) else ", ".join(labels)


# --- the tests -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres_databases(postgres: PostgresAddress) -> Iterator[Callable[[], TargetOptions]]:
    """Make an empty database on the shared PostgreSQL; all are dropped when the module is done."""
    names: list[str] = []

    def make() -> TargetOptions:
        names.append(f"test_{uuid.uuid4().hex[:12]}")
        postgres.execute(f"CREATE DATABASE {names[-1]}")
        return TargetOptions(kind="postgres", dsn=postgres.dsn(names[-1]))

    yield make
    for name in names:
        postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="module")
def mariadb_targets(mariadb_target: MariaDbServer) -> Iterator[Callable[[], TargetOptions]]:
    """Make an empty database on the MariaDB to apply into; it and the sources' namesakes are dropped at the end."""
    names: list[str] = ["tranlog_types", "main", "public"]

    def make() -> TargetOptions:
        names.append(f"test_{uuid.uuid4().hex[:12]}")
        mariadb_target.execute(f"CREATE DATABASE {names[-1]}")
        return TargetOptions(kind="mariadb", dsn=mariadb_target.dsn(names[-1]))

    yield make
    for name in names:
        mariadb_target.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture(scope="module")
def types_database(mariadb: MariaDbAddress) -> Iterator[str]:
    mariadb.execute("CREATE DATABASE tranlog_types")
    yield "tranlog_types"
    mariadb.execute("DROP DATABASE tranlog_types")


@pytest.fixture(scope="module")
def postgres_types_database(postgres_source: PostgresServer) -> Iterator[str]:
    postgres_source.execute("CREATE DATABASE tranlog_types")
    for statement in POSTGRES_SETUP:
        postgres_source.execute(statement, database="tranlog_types")
    yield "tranlog_types"
    postgres_source.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = 'tranlog_types'"
    )
    postgres_source.execute("DROP DATABASE tranlog_types WITH (FORCE)")


@pytest.fixture(scope="module")
def matrix(
    mariadb: MariaDbAddress,
    types_database: str,
    postgres_source: PostgresServer,
    postgres_types_database: str,
    postgres_databases: Callable[[], TargetOptions],
    mariadb_targets: Callable[[], TargetOptions],
    tmp_path_factory: pytest.TempPathFactory,
) -> Matrix:
    folder = tmp_path_factory.mktemp("types")
    found: dict[str, list[Seen]] = {}
    source: Source = MariadbSource(options_for(mariadb, databases=(types_database,)))
    with Log.open(folder / "mariadb", source_id=source.source_id) as log:
        Capture(source, log).catch_up()  # from here on
    tables = fill_mariadb(mariadb, types_database)
    found["mariadb"] = in_order(MARIADB, tables)
    reader: TableReader = MariadbTables(options_for(mariadb, databases=(types_database,)))
    servers = postgres_databases(), mariadb_targets()
    see(tables, capture(source, folder / "mariadb", 1.0), reader, folder / "from_mariadb.db", servers)
    tables = fill_sqlite(folder / "source.db")
    found["sqlite"] = in_order(SQLITE, tables)
    source = SqliteSource(SqliteSourceOptions(path=str(folder / "source.db"), source_id="types"))
    reader = SqliteTables(str(folder / "source.db"))
    servers = postgres_databases(), mariadb_targets()
    see(tables, capture(source, folder / "sqlite", 0.0), reader, folder / "from_sqlite.db", servers)
    postgres_options = postgres_options_for(postgres_source, postgres_types_database, identity="set")
    source = PostgresSource(postgres_options)
    with Log.open(folder / "postgres", source_id=source.source_id) as log:
        Capture(source, log).catch_up()  # from here on
    source.close()
    tables = fill_postgres(postgres_source, postgres_types_database)
    found["postgres"] = in_order(POSTGRES, tables)
    reader = PostgresTables(postgres_options)
    servers = postgres_databases(), mariadb_targets()
    see(tables, capture(source, folder / "postgres", 2.0), reader, folder / "from_postgres.db", servers)
    return Matrix(found)


def in_order(cases: Sequence[TypeCase], tables: Sequence[Table]) -> list[Seen]:
    by_case = {id(one.case): one for table in tables for one in table.seen}
    return [by_case[id(case)] for case in cases]


def see(
    tables: Sequence[Table], log: LogReader, reader: TableReader, path: Path, servers: Sequence[TargetOptions]
) -> None:
    with contextlib.closing(log), contextlib.closing(reader):
        read_values(tables, log, reader)
        for options in (TargetOptions(kind="sqlite", path=str(path)), *servers):
            with contextlib.closing(open_target(replace(options, ddl="ignore"))) as target:
                apply_all(tables, log, target)


def test_a_negative_zero_is_carried_or_refused_by_the_servers_version(matrix: Matrix) -> None:
    """docs/types.md, "What differs by the version of a server"."""
    source, target, label = NEGATIVE_ZERO
    seen = 0
    for one in matrix.sources[source]:
        value = one.values.get(label)
        if value is None:
            continue
        held = math.copysign(1.0, value.value if isinstance(value, F32) else cast(float, value)) < 0
        outcome = one.outcomes[target][label]
        assert isinstance(outcome, Refused) is held, (one.case.declared, outcome)
        assert not isinstance(outcome, Refused) or outcome.error == "ConflictError"
        seen += 1
    assert seen >= 2


def test_docs_types_says_what_was_seen(matrix: Matrix) -> None:
    """Every type and extreme of every source, through every target: exactly, as something else, or refused."""
    seen = page(matrix)
    if os.environ.get(WRITE):
        PAGE.write_text(seen)
    stored = PAGE.read_text() if PAGE.exists() else ""
    changed = "\n".join(difflib.unified_diff(stored.splitlines(), seen.splitlines(), "docs/types.md", "seen", n=0))
    assert stored == seen, (
        f"docs/types.md does not say what becomes of the values. If that is meant, write it anew:\n"
        f"{WRITE}=1 .venv/bin/pytest tests/integration/test_type_matrix.py\n{changed}"
    )


VALUE_BYTES_MAX = 100_000


@pytest.mark.spark
def test_all_types_in_one_table_through_spark(
    mariadb: MariaDbAddress,
    mariadb_database: str,
    postgres_databases: Callable[[], TargetOptions],
    spark: SparkSession,
    matrix: Matrix,
    tmp_path: Path,
) -> None:
    """A column of every type but the two that fill a row, and in its rows every extreme that PostgreSQL takes."""
    columns = [one for one in matrix.sources["mariadb"] if not is_wide(one.case) and carried(one)]
    assert len(columns) > 120
    rows = max(len(carried(one)) for one in columns)
    source = MariadbSource(options_for(mariadb, databases=(mariadb_database,)))
    with Log.open(tmp_path / "log", source_id=source.source_id) as log:
        Capture(source, log).catch_up()
    names = [f"c{number}" for number in range(len(columns))]
    listed_columns = ", ".join(f"{name} {one.case.declared}" for name, one in zip(names, columns, strict=True))
    with contextlib.closing(mariadb.connect(mariadb_database)) as session, session.cursor() as cursor:
        cursor.execute(f"{ANY_DATE_MODE}, time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE everything (id INT PRIMARY KEY, {listed_columns})")
        for key in range(rows):
            values = ", ".join(carried(one)[key % len(carried(one))] for one in columns)
            cursor.execute(f"INSERT INTO everything VALUES ({key}, {values})")
        cursor.execute("UPDATE everything SET id = id + 1000 WHERE id % 2")
        cursor.execute("DELETE FROM everything WHERE id % 5 = 4")
    log_reader = capture(source, tmp_path / "log", 1.0)
    reader = MariadbTables(options_for(mariadb, databases=(mariadb_database,)))
    options = replace(postgres_databases(), ddl="ignore")
    with contextlib.closing(log_reader), contextlib.closing(reader), contextlib.closing(open_target(options)) as target:
        (table,) = reader.tables()
        target.rows.create_table(table)
        given = ApplyOptions(pipeline=PIPELINE, log_dir=str(tmp_path / "log"), target=options, until_seqno="now")
        run_apply(given, spark=spark.sparkContext)
        at_source, at_target = content(reader.rows(table)), content(target.rows.read(table))
        assert sum(at_source.values()) > rows // 2
        assert at_target == at_source


def carried(one: Seen) -> list[str]:
    """The expressions of those extremes that PostgreSQL takes."""
    outcomes = one.outcomes["postgres"]
    return [
        expression
        for label, expression in one.case.extremes
        if isinstance(outcomes.get(label), Carried) and not is_long(one.values[label])
    ]


def is_long(value: Value) -> bool:
    return isinstance(value, str | bytes) and len(value) > VALUE_BYTES_MAX

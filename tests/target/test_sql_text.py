"""target/sql_text.py: the script of a transaction makes a real database hold what the transaction says."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal

import pytest

from tranlog.change import Change, Column, Op, RowChange, Statement, TableMap
from tranlog.target.sql_text import NoSqlForm, SqlKind, literal, script_head, transaction_script
from tranlog.testing.servers import MariaDbAddress, PostgresAddress
from tranlog.types import F32, UNCHANGED, Bit, Date, Instant, LogicalType, Value

ODD = """it's a "name" `here`, \\ and\na new line; -- é"""
COLUMNS = {
    "id": LogicalType.INTEGER,
    'od"d `name': LogicalType.TEXT,
    "raw": LogicalType.BYTES,
    "amount": LogicalType.DECIMAL,
    "ratio": LogicalType.F64,
    "day": LogicalType.DATE,
}
ROWS: tuple[tuple[Value, ...], ...] = (
    (1, ODD, b"\0\xff'", Decimal("12.50"), 0.1, Date(19_000)),
    (2, "", b"", Decimal("-3.00"), -1e16, Date(0)),
    (3, None, None, None, None, None),
    (4, "goes", b"x", None, 2.5, None),
)
AFTER = (1, "now", b"\0\xff'", None, 0.5, Date(1))


def table(schema: str = "") -> TableMap:
    columns = [Column(name=name, source_type="", logical=logical) for name, logical in COLUMNS.items()]
    return TableMap(schema=schema, table="odd ta'ble", columns=tuple(columns), primary_key=(0,))


def script(kind: SqlKind, created: str) -> str:
    """Return a script of two transactions: rows come, one is changed, one goes; UNCHANGED stays as it is."""
    odd = table()
    first: list[Change] = [Statement(schema="", sql=f"{created} -- a comment", ddl=True)]
    first += [RowChange(odd, Op.INSERT, None, row) for row in ROWS]
    kept = (AFTER[0], AFTER[1], UNCHANGED, *AFTER[3:])
    second = [RowChange(odd, Op.UPDATE, ROWS[0], kept), RowChange(odd, Op.DELETE, ROWS[3], None)]
    parts: list[str] = [script_head(kind)]
    for changes in (first, second):
        found = transaction_script(changes, kind)
        assert isinstance(found, str), found
        parts.append(found)
    return "\n".join(parts)


def same(rows: Sequence[Sequence[object]]) -> None:
    """The rows, dates as text, are what the script says."""
    want = [
        (1, "now", b"\0\xff'", None, 0.5, "1970-01-02"),
        (2, "", b"", Decimal("-3.00"), -1e16, "1970-01-01"),
        (3, None, None, None, None, None),
    ]
    assert [tuple(row) for row in rows] == want


def test_sqlite_holds_what_it_says() -> None:
    created = """CREATE TABLE "odd ta'ble" (id INTEGER PRIMARY KEY, "od""d `name" TEXT, raw BLOB, amount TEXT,
        ratio REAL, day TEXT)"""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(script(SqlKind.SQLITE, created))
        rows = database.execute("""SELECT * FROM "odd ta'ble" ORDER BY id""").fetchall()
        (plain,) = database.execute(f"SELECT {literal(ODD, SqlKind.SQLITE)}").fetchone()
    assert plain == ODD
    same([(*row[:3], None if row[3] is None else Decimal(row[3]), *row[4:]) for row in rows])


@pytest.mark.integration
def test_postgres_holds_what_it_says(postgres: PostgresAddress, postgres_database: str) -> None:
    created = """CREATE TABLE "odd ta'ble" (id int PRIMARY KEY, "od""d `name" text, raw bytea, amount numeric(9, 2),
        ratio float8, day date)"""
    command = ["psql", "-q", "-v", "ON_ERROR_STOP=1", postgres.dsn(postgres_database)]
    subprocess.run(command, input=script(SqlKind.POSTGRES, created), check=True, text=True, timeout=60)

    def execute(sql: str) -> list[tuple[object, ...]]:
        return postgres.execute(sql, database=postgres_database)

    wanted = 'id, "od""d `name", raw, amount, ratio, day::text'
    same(execute(f"""SELECT {wanted} FROM "odd ta'ble" ORDER BY id"""))
    kind = SqlKind.POSTGRES
    plain, bits, moment = literal(ODD, kind), literal(Bit(3, 5), kind), literal(Instant(0), kind)
    found = execute(f"SELECT {plain}, {bits}::text, extract(epoch from timestamptz {moment})::int")
    assert found == [(ODD, "101", 0)]


@pytest.mark.integration
def test_mariadb_holds_what_it_says(mariadb: MariaDbAddress, mariadb_database: str) -> None:
    created = """CREATE TABLE `odd ta'ble` (id int PRIMARY KEY, `od"d ``name` text CHARACTER SET utf8mb4, raw blob,
        amount decimal(9, 2), ratio double, day date)"""
    command = ["mariadb", f"--host={mariadb.host}", f"--port={mariadb.port}", f"--user={mariadb.user}"]
    env = {**os.environ, "MYSQL_PWD": mariadb.password}
    text = script(SqlKind.MARIADB, created)
    subprocess.run([*command, mariadb_database], input=text, check=True, text=True, timeout=60, env=env)

    def execute(sql: str) -> list[tuple[object, ...]]:
        return mariadb.execute(sql, database=mariadb_database)

    wanted = 'id, `od"d ``name`, raw, amount, ratio, CAST(day AS CHAR)'
    same(execute(f"SELECT {wanted} FROM `odd ta'ble` ORDER BY id"))
    kind = SqlKind.MARIADB
    plain, bits, moment = literal(ODD, kind), literal(Bit(3, 5), kind), literal(Instant(1_500_000), kind)
    found = execute(f"SELECT {plain}, {bits} + 0, CAST(CAST({moment} AS DATETIME(6)) AS CHAR)")
    assert found == [(ODD, 5, "1970-01-01 00:00:01.500000")]


@pytest.mark.parametrize("kind", SqlKind)
def test_what_has_no_form_is_said(kind: SqlKind) -> None:
    free = TableMap(schema="s", table="free", columns=table().columns[:1], primary_key=())
    for change, why in (
        (RowChange(free, Op.DELETE, (1,), None), "s.free has no primary key"),
        (RowChange(table("s"), Op.INSERT, None, (UNCHANGED, *ROWS[0][1:])), "column id of s.odd ta'ble: a value that"),
        (Statement(schema="", sql=b"\xff", ddl=False), "no UTF-8"),
    ):
        found = transaction_script([change], kind)
        assert isinstance(found, NoSqlForm) and why in found.why


def test_a_value_that_one_kind_alone_knows() -> None:
    nan, endless = float("nan"), F32(float("-inf"))
    assert literal(nan, SqlKind.POSTGRES) == "'NaN'" and literal(endless, SqlKind.POSTGRES) == "'-Infinity'"
    assert literal(endless, SqlKind.SQLITE) == "-9e999" and literal(1 << 63, SqlKind.SQLITE) == f"'{1 << 63}'"
    assert literal(True, SqlKind.SQLITE) == "1" and literal(True, SqlKind.MARIADB) == "TRUE"
    for value, kind in ((nan, SqlKind.SQLITE), (endless, SqlKind.MARIADB), ("a\0b", SqlKind.POSTGRES)):
        with pytest.raises(ValueError):
            literal(value, kind)
    assert literal("a\0b", SqlKind.SQLITE) == "CAST(X'610062' AS TEXT)"

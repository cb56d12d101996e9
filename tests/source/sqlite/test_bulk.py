"""Many rows by one `executemany`, noted as they are bound: the outbox says what the hook would have said of each.

Each test writes the same to two databases, once with the rows in a list and once one by one, from an iterator, which is
the way of the hook. Proves: decision 0008, "Many rows at once".
"""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import enum
import itertools
import math
import random
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fix_effort import Effort, few_of
from fix_sqlite import content
from fix_sqlite_pair import Pair, Side
from fix_type_cases import SQLITE, TypeCase
from tranlog.affinity import Affinity, affinity
from tranlog.change import Statement
from tranlog.errors import DiskFailedError, SourceError
from tranlog.payload import decode
from tranlog.source.sqlite import SqliteConnection, bulk, connect, raw
from tranlog.source.sqlite.bulk import ROWS_LEAST
from tranlog.source.sqlite.statement import PlainInsert

SCHEMA = (
    "CREATE TABLE plain(id INTEGER PRIMARY KEY, a INT, b TEXT, c REAL, d NUMERIC, e BLOB, f)",
    "CREATE TABLE keyless(a DECIMAL(10,2), b VARCHAR(10), c DATETIME, d BOOLEAN, e DOUBLE, f CLOB)",
    "CREATE TABLE lone(k TEXT, n INTEGER, v FLOAT, PRIMARY KEY(n, k)) WITHOUT ROWID",
    "CREATE TABLE strict(id INTEGER PRIMARY KEY, i INT, r REAL, t TEXT, b BLOB, x ANY) STRICT",
    "CREATE TABLE counted(id INTEGER PRIMARY KEY AUTOINCREMENT, v, w REAL DEFAULT 1, x TEXT DEFAULT 'it''s', "
    "y DEFAULT -3)",
    "CREATE TABLE made(a INT, twice AS (a * 2) VIRTUAL, b, thrice AS (a * 3) STORED, id INTEGER PRIMARY KEY)",
    "CREATE TABLE tree(id INTEGER PRIMARY KEY, up REFERENCES tree DEFERRABLE INITIALLY DEFERRED, v UNIQUE)",
    "CREATE TABLE loose(k TEXT PRIMARY KEY, n INTEGER UNIQUE, v NOT NULL CHECK(v <> 13))",
    "CREATE TABLE \"odd \"\"name\"(\"select\" INT, [b ] TEXT, `from` REAL)",
)  # fmt: skip
COLUMNS = {
    "plain": ("id", "a", "b", "c", "d", "e", "f"),
    "keyless": ("a", "b", "c", "d", "e", "f"),
    "lone": ("k", "n", "v"),
    "strict": ("id", "i", "r", "t", "b", "x"),
    "counted": ("id", "v", "w", "x", "y"),
    "made": ("a", "b", "id"),
    "tree": ("id", "up", "v"),
    "loose": ("k", "n", "v"),
    'odd "name': ("select", "b ", "from"),
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def insert_into(table: str, columns: Sequence[str] | None = None, marks: int = 0) -> str:
    marks = marks or len(COLUMNS[table] if columns is None else columns)
    named = "" if columns is None else f"({', '.join(map(quoted, columns))})"
    return f"INSERT INTO {quoted(table)}{named} VALUES ({', '.join('?' * marks)})"


# --- anything --------------------------------------------------------------------------------------------

integers = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-20, 20)
floats = st.floats() | st.integers(-5, 5).map(float) | st.sampled_from([-0.0, 2.0**63, -(2.0**63), 2.0**62, 1e15, 0.1])
dates = st.datetimes().map(str) | st.dates().map(str)
numbers_as_text = st.sampled_from(
    ["5", " 5", "5 ", "\n7\n", "1e3", "1.50", ".5", "5.", "+0", "-0", "0x10", "1_000", "9" * 20]
)
odd_texts = st.sampled_from(
    ["", " ", "inf", "nan", "1e", "e5", ".", "+", "1\0", "\0", "5a", "1 2", "2026-11-21", "\ufeff1"]
)
texts = st.text(max_size=8)
kinds_of_column = (
    integers,
    integers,
    st.integers(-9, 9),
    floats,
    integers | floats,
    st.booleans(),
    texts,
    texts,
    dates,
    numbers_as_text,
    odd_texts,
    st.binary(max_size=6),
    st.binary(max_size=6).map(bytearray),
    st.none(),
    texts | integers | floats | st.binary(max_size=3),
)
"""What a column of one `executemany` holds."""
keys = st.integers(1, 400)
far_keys = st.integers(-(1 << 63), (1 << 63) - (1 << 40))
"""Not up to the largest: after that one SQLite draws rowids at random, and the two databases differ."""


@st.composite
def bulks(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """Draw an INSERT and its rows: of one kind in most columns, some with NULLs, here and there a row that fails."""
    table = draw(st.sampled_from(list(COLUMNS)))
    columns = list(COLUMNS[table])
    if draw(st.booleans()):
        columns = draw(st.permutations(columns))
        columns = columns[: draw(st.integers(1, len(columns)))]
        sql = insert_into(table, columns)
    else:
        sql = insert_into(table)
    strategies: list[st.SearchStrategy[Any]] = []
    for column in columns:
        if column in ("id", "n", "up"):
            one: st.SearchStrategy[Any] = draw(st.sampled_from([keys, keys, st.none(), keys | st.none(), far_keys]))
        elif table == "strict":
            one = draw(
                st.sampled_from(
                    [{"i": integers, "r": floats, "t": texts, "b": st.binary()}.get(column, texts), *kinds_of_column]
                )
            )
        else:
            one = draw(st.sampled_from(kinds_of_column))
        strategies.append(one | st.none() if draw(st.integers(0, 3)) == 0 else one)
    size = draw(st.integers(ROWS_LEAST, ROWS_LEAST + 12))
    rows: list[Any] = draw(st.lists(st.tuples(*strategies), min_size=size, max_size=size))
    if draw(st.integers(0, 2)) > 0 and "id" in columns:  # mostly keys that are free and rise
        at, first = columns.index("id"), draw(st.integers(0, 1000))
        rows = [(*row[:at], first + n, *row[at + 1 :]) for n, row in enumerate(rows)]
    if draw(st.integers(0, 5)) == 0:
        wrong = draw(
            st.sampled_from([(), (1,) * 9, {"a": 1}, (object(),) * len(columns), ("\ud800",) * len(columns), 5])
        )
        rows[draw(st.integers(0, size - 1))] = wrong
    if draw(st.booleans()):
        rows = [list(row) if type(row) is tuple else row for row in rows]
    return sql, rows


statements = st.sampled_from([
    "BEGIN", "BEGIN", "BEGIN IMMEDIATE", "COMMIT", "COMMIT", "ROLLBACK", "SAVEPOINT a", "SAVEPOINT b",
    "ROLLBACK TO a", "ROLLBACK TO b", "RELEASE a", "RELEASE b",
    "UPDATE plain SET a = a + 1, id = id + 1000 WHERE id % 3 = 0", "DELETE FROM plain WHERE id % 5 = 1",
    "DELETE FROM plain",
    "INSERT OR REPLACE INTO plain(id, f) SELECT id, 'again' FROM plain WHERE id % 4 = 0",
    "UPDATE keyless SET c = b WHERE rowid % 2", "DELETE FROM keyless WHERE rowid % 3 = 0",
    "UPDATE OR REPLACE tree SET v = 1", "DELETE FROM tree WHERE up IS NOT NULL", "UPDATE counted SET id = id + 50",
    "DELETE FROM counted WHERE id > 5", "UPDATE loose SET v = 5", "DELETE FROM made WHERE twice > 4",
    "ALTER TABLE keyless ADD COLUMN g REAL DEFAULT 3", "ALTER TABLE keyless DROP COLUMN g",
    "CREATE INDEX more ON plain(a, b)", "DROP INDEX more", "DROP TABLE tree", SCHEMA[6], "VACUUM",
    "CREATE TRIGGER seen AFTER INSERT ON keyless BEGIN UPDATE lone SET v = v + 1; END", "DROP TRIGGER seen",
    "CREATE TEMP TABLE plain(id INTEGER PRIMARY KEY, a, b, c, d, e, f)", "DROP TABLE temp.plain",
])  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both databases, which have the tables."""
    folder = tmp_path_factory.mktemp("prepared")
    pair = Pair(folder)
    for sql in SCHEMA:
        pair.run(sql)
    pair.close()
    return folder


@pytest.mark.long
@pytest.mark.timeout(600)
@given(
    steps=st.lists(bulks() | bulks() | statements, min_size=1, max_size=14),
    fragment_bytes=st.sampled_from([1 << 20, 2000, 200]),
)
def test_whatever_is_bound_is_noted_as_it_is_stored(
    prepared: Path, steps: list[str | tuple[str, list[Any]]], fragment_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for one in prepared.iterdir():
            shutil.copy(one, folder)
        write_at_both(Pair(Path(folder), fragment_bytes=fragment_bytes), steps)


def write_at_both(pair: Pair, steps: list[str | tuple[str, list[Any]]]) -> None:
    try:
        pair.run("BEGIN")
        for step in steps:
            if isinstance(step, str):
                pair.run(step)
            else:
                if not pair.fast.db.in_transaction:
                    pair.run("BEGIN")
                pair.run(*step)
            if not pair.fast.db.in_transaction:
                pair.check()
        if pair.fast.db.in_transaction and pair.run("COMMIT") is not None:
            pair.run("ROLLBACK")
        pair.check()
        assert changes_in(pair.fast.payloads()) == changes_in(pair.slow.payloads())
    finally:
        pair.close()


def changes_in(payloads: list[bytes]) -> list[str]:
    found = []
    for payload in payloads:
        for change in decode(payload).changes:
            found.append(str(change.sql) if isinstance(change, Statement) else repr(change))
    return found


def test_most_of_it_is_noted_together(pair: Pair, effort: Effort) -> None:
    """What the ordinary program writes; and capture makes the same bytes of it."""
    for sql in SCHEMA:
        pair.run(sql)
    pair.check()
    many = range(effort(100, 1000, 1000))
    bulks_of_tables: list[tuple[str, list[tuple[Any, ...]]]] = [
        (insert_into("plain"), [(n, n * 7, f"text {n}", n * 0.5, n * 1.5, b"%d" % n, n) for n in many]),
        (insert_into("plain", ("b", "a")), [(f"text {n}", None if n % 3 else n) for n in many]),
        (insert_into("keyless"), [(n * 0.25, "x" * (n % 9), f"2026-11-21 12:{n}", n % 2 == 0, n, None) for n in many]),
        (insert_into("lone"), [(f"k{n % 7}", -n, n / 3) for n in many]),
        (insert_into("strict", COLUMNS["strict"][1:]), [(n, n, str(n), b"", "5") for n in many]),
        (insert_into("counted", ("v",)), [(f"v{n}",) for n in many]),
        (insert_into("counted"), [(None, n, None, None, float(n)) for n in many]),
        (insert_into("made", ("id", "b", "a")), [(5 - n, "b", n) for n in many]),
        (insert_into("tree"), [(n + 1, (n + 1) // 2 or None, f"{n}") for n in many]),
        (insert_into("loose"), [(f"{n}", n, 1.5) for n in many]),
        (insert_into('odd "name'), [(n, "", 0.0) for n in many]),
    ]
    for sql, rows in bulks_of_tables:
        assert pair.many(sql, rows) is None
        assert pair.check() == len(rows), sql
    assert pair.fast.payloads()[1:] != [] and changes_in(pair.fast.payloads()) == changes_in(pair.slow.payloads())


@pytest.mark.long
@pytest.mark.parametrize(
    "case", few_of(SQLITE, 6), ids=lambda case: (case.declared + case.suffix).replace(" ", "_") or "none"
)
def test_the_extremes_of_each_type(pair: Pair, case: TypeCase) -> None:
    """Every value of docs/types.md, as a bulk of its own and beside NULLs."""
    pair.run(f"CREATE TABLE t(id INTEGER PRIMARY KEY, v {case.declared}){case.suffix}")
    pair.run("BEGIN")
    for label, expression in case.extremes:
        if expression.startswith("CAST("):
            continue  # no binding of Python's is such a text
        value = (
            case.bound(label)[0]
            if case.bound(label)
            else pair.slow.raw.execute(f"SELECT {expression}").fetchall()[0][0]
        )
        wide = isinstance(value, str | bytes) and len(value) > 1000
        pair.run("INSERT INTO t(v) VALUES(?)", [(None if wide and n else value,) for n in range(ROWS_LEAST)])
        if not wide:
            pair.run("INSERT INTO t(v) VALUES(?)", [(value if n % 2 else None,) for n in range(ROWS_LEAST)])
    pair.run("COMMIT")
    assert pair.check() > len(case.extremes)


@given(st.text(alphabet="INTinCHARchLOBTXEtextblobREALFDUfaodu ()", max_size=14))
def test_affinities_are_sqlites(declared: str) -> None:
    db = apsw.Connection(":memory:")
    try:
        db.execute(f"CREATE TABLE t(a {declared})")
        ((stored,),) = db.execute("SELECT type FROM pragma_table_info('t')").fetchall()
    except apsw.SQLError:
        return
    db.execute("INSERT INTO t VALUES('5'), (5), (5.5)")
    kinds = tuple(kind for (kind,) in db.execute("SELECT typeof(a) FROM t ORDER BY rowid"))
    assert isinstance(stored, str)
    assert (
        kinds
        == {
            Affinity.INTEGER: ("integer", "integer", "real"),
            Affinity.NUMERIC: ("integer", "integer", "real"),
            Affinity.REAL: ("real", "real", "real"),
            Affinity.TEXT: ("text", "text", "text"),
            Affinity.BLOB: ("text", "integer", "real"),
        }[affinity(stored)]
    )
    db.close()


class Point(int, enum.Enum):
    """Its value is not the integer that it is."""

    label: str

    def __new__(cls, number: int, label: str) -> Point:
        point = int.__new__(cls, number)
        point._value_ = label  # type: ignore[assignment]
        return point

    A = (7, "seven")


class Word(str, enum.Enum):  # noqa: UP042 - its value is not the text that it is
    def __new__(cls, text: str, number: int) -> Word:
        word = str.__new__(cls, text)
        word._value_ = number  # type: ignore[assignment]
        return word

    A = ("word", 5)


class Fraction(float, enum.Enum):
    def __new__(cls, number: float, label: int) -> Fraction:
        fraction = float.__new__(cls, number)
        fraction._value_ = label
        return fraction

    A = (1.5, 9)


class Integer(int):
    pass


class Text(str):
    __slots__ = ()


class Real(float):
    pass


class Bytes(bytes):
    pass


class Row(tuple[object, ...]):
    def __iter__(self) -> Iterator[object]:
        return iter(("what", "it", "is", "not"))


Named = collections.namedtuple("Named", "a b")
ODD_VALUES: list[Any] = [
    *(
        Point.A,
        Word.A,
        Fraction.A,
        Integer(4),
        Text("t"),
        Real(2.0),
        Bytes(b"b"),
        True,
        1 << 63,
        -(1 << 63) - 1,
        1 << 70,
    ),
    *(bytearray(b"x"), memoryview(b"abc"), memoryview(b"abcdef")[::2], array.array("i", [1, 2]), apsw.zeroblob(3)),
    *(decimal.Decimal("1.5"), datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2), object(), [1], (1,), {"a": 1}),
    *(math.nan, -0.0, "\ud800", msgspec.Raw(b"\x01"), msgspec.msgpack.Ext(1, b"x"), 2**53 + 1, float(2**63)),
]


@pytest.mark.long
@pytest.mark.parametrize("declared", ["INT", "TEXT", "REAL", "NUMERIC", "BLOB"])
def test_objects_that_are_read_in_more_than_one_way(pair: Pair, declared: str) -> None:
    """Alone, first, in the middle of usual ones; what SQLite refuses is refused at the same row."""
    pair.run(f"CREATE TABLE t(a {declared}, b)")
    pair.run("BEGIN")
    usual = "text" if declared in ("TEXT", "BLOB") else 5
    for value in ODD_VALUES:
        for rows in (
            [(value, n) for n in range(20)],
            [(value if n == 0 else usual, n) for n in range(20)],
            [(value if n == 13 else usual, n) for n in range(20)],
            [(value if n == 13 else 2.5, n) for n in range(20)],
            [(value if n == 13 else None, n) for n in range(20)],
        ):
            pair.run("INSERT INTO t VALUES(?, ?)", rows)
    pair.run("COMMIT")
    assert pair.check() > 50


ODD_ROWS: list[Any] = [
    *(Named(1, 2), Row((1, 2)), [1, 2], (1,), (1, 2, 3), "ab", b"ab", {1, 2}, frozenset((1, 2)), {"a": 1, "b": 2}),
    *(
        None,
        5,
        range(2),
        collections.deque((1, 2)),
        collections.ChainMap({"a": 1, "b": 2}),
        array.array("i", [1, 2]),
    ),
]


def test_rows_that_are_no_tuples(pair: Pair) -> None:
    pair.run("CREATE TABLE t(a, b, c DEFAULT 5)")
    pair.run("BEGIN")
    sqls = ("INSERT INTO t(a, b) VALUES(?, ?)", "INSERT INTO t(b, a) VALUES(?, ?)")
    for odd, at, sql in itertools.product(ODD_ROWS, (0, 1, 19), sqls):
        rows: list[Any] = [odd if n == at else (n, n) for n in range(20)]
        pair.run(sql, rows)
    pair.run("COMMIT")
    assert pair.check() > 50


# --- rows that fail, and what a program does then --------------------------------------------------------


def test_a_row_that_fails_leaves_those_before_it(pair: Pair) -> None:
    pair.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v UNIQUE, w NOT NULL)")
    pair.run("CREATE TABLE other(a)")
    for wrong in ((5, "double", 1), (50, "x 3", 1), (50, "null", None), (50, 1 << 64, 1), ("no rowid", 1, 1)):
        pair.run("BEGIN")
        pair.run("INSERT INTO other VALUES('before')")
        rows: list[Any] = [(n, f"x {n}", n) for n in range(40)]
        rows[30] = wrong
        assert pair.run("INSERT INTO t VALUES(?, ?, ?)", rows) is not None
        assert pair.fast.raw.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        pair.run("INSERT INTO other VALUES('behind')")
        pair.run("DELETE FROM t WHERE id % 2")
        assert pair.run("INSERT INTO t VALUES(?, ?, ?)", [(100 + n, f"y {n}", n) for n in range(40)]) is None
        pair.run("COMMIT")
        assert pair.check() >= 40
        pair.run("DELETE FROM t")
    pair.check()


def test_a_first_row_that_fails_leaves_nothing(pair: Pair) -> None:
    pair.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    pair.run("INSERT INTO t VALUES(3, 'there')")
    pair.many("INSERT INTO t VALUES(?, ?)", [(3, "again")] * 20)
    pair.many("INSERT INTO nowhere VALUES(?, ?)", [(3, "again")] * 20)
    pair.many("INSERT INTO t VALUES(?, ?, ?)", [(3, "again", 4)] * 20)
    assert pair.check() == 0


def test_savepoints_take_them_back(pair: Pair) -> None:
    pair.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v)")
    sql = "INSERT INTO t(v) VALUES(?)"
    pair.run("BEGIN")
    pair.run(sql, [(n,) for n in range(20)])
    pair.run("SAVEPOINT a")
    pair.run(sql, [(n,) for n in range(20, 40)])
    pair.run("SAVEPOINT b")
    pair.run(sql, [(n,) for n in range(40, 60)])
    pair.run("ROLLBACK TO b")
    pair.run(sql, [(n,) for n in range(60, 80)])
    pair.run("ROLLBACK TO a")
    pair.run(sql, [(n,) for n in range(80, 100)])
    pair.run("COMMIT")
    assert pair.check() == 40
    pair.run("BEGIN")
    pair.run(sql, [(n,) for n in range(20)])
    pair.run("ROLLBACK")
    assert pair.check() == 0


def test_rowids_that_sqlite_chooses(pair: Pair) -> None:
    """One above the largest; at the end of all rowids any that is free; AUTOINCREMENT above all that ever were."""
    pair.run("CREATE TABLE t(v, id INTEGER PRIMARY KEY)")
    pair.run("CREATE TABLE a(id INTEGER PRIMARY KEY AUTOINCREMENT, v)")
    rows = [(n, None) for n in range(20)]
    for start in (-9223372036854775808, -1000, -5, 0, 7, 9223372036854775000):
        pair.run(f"INSERT INTO t(id) VALUES({start})")
        assert pair.many("INSERT INTO t VALUES(?, ?)", rows) is None
        assert pair.many("INSERT INTO t(v) VALUES(?)", [(n,) for n in range(20)]) is None
        assert pair.check() == 40
        if start != 7:
            pair.run("DELETE FROM t")
    for number in (1000, 500):
        pair.run(f"INSERT INTO a(id) VALUES({number})")
        pair.run(f"DELETE FROM a WHERE id >= {number}")
        pair.many("INSERT INTO a(v) VALUES(?)", [(n,) for n in range(20)])
        assert pair.check() == 20
    pair.run("INSERT INTO a(id) VALUES(9223372036854775800)")
    assert pair.many("INSERT INTO a(v) VALUES(?)", [(n,) for n in range(20)]) is not None  # no rowid is left
    pair.check()
    # Where SQLite takes any free rowid the two databases differ, and the log says what was taken.
    side = pair.fast
    with side.db:
        side.db.execute("INSERT INTO t(id) VALUES(9223372036854775800)")
        side.db.executemany("INSERT INTO t(v) VALUES(?)", [(n,) for n in range(20)])
    assert side.transactions() and side.noted_together > 0
    assert content(side.replica.db) == content(side.raw)


# --- what goes the way of the hook -----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "sql"),
    [
        ("CREATE TRIGGER x AFTER INSERT ON t BEGIN UPDATE u SET a = a + 1; END", "INSERT INTO t VALUES(?, ?)"),
        (
            "CREATE TRIGGER x BEFORE INSERT ON t BEGIN INSERT INTO u VALUES(new.a, 1); END",
            "INSERT INTO main.t VALUES(?, ?)",
        ),
        ("CREATE TEMP TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM u; END", "INSERT INTO main.t VALUES(?, ?)"),
        ("CREATE TEMP TABLE t(a, b)", "INSERT INTO t VALUES(?, ?)"),
        ("CREATE TEMP VIEW t AS SELECT 1 AS a", "INSERT INTO t VALUES(?, ?)"),
        ("CREATE TABLE c(a UNIQUE ON CONFLICT REPLACE, b)", "INSERT INTO c VALUES(?, ?)"),
        ("CREATE TABLE c(a UNIQUE ON CONFLICT IGNORE, b)", "INSERT INTO c VALUES(?, ?)"),
        ("CREATE TABLE c(a INTEGER PRIMARY KEY ON CONFLICT FAIL, b)", "INSERT INTO c VALUES(?, ?)"),
        ("CREATE TABLE c(a, b, c DEFAULT CURRENT_TIMESTAMP)", "INSERT INTO c(a, b) VALUES(?, ?)"),
        ("CREATE TABLE c(a, b, c DEFAULT (1 + 1))", "INSERT INTO c(a, b) VALUES(?, ?)"),
        ("CREATE TABLE c(a, b, c INT DEFAULT '12')", "INSERT INTO c(a, b) VALUES(?, ?)"),
        ("CREATE TABLE c(a, b, c TEXT DEFAULT 12)", "INSERT INTO c(a, b) VALUES(?, ?)"),
        ("CREATE VIEW c AS SELECT * FROM t", "INSERT INTO c VALUES(?, ?)"),
        ("SELECT 1", "INSERT OR REPLACE INTO t VALUES(?, ?)"),
        ("SELECT 1", "INSERT INTO t VALUES(?1, ?2)"),
        ("SELECT 1", "INSERT INTO t VALUES(?, abs(?))"),
        ("SELECT 1", "INSERT INTO t VALUES(?, ?) ON CONFLICT DO NOTHING"),
        ("SELECT 1", "INSERT INTO t VALUES(?, ?) RETURNING a"),
        ("SELECT 1", "INSERT INTO t SELECT ?, ?"),
        ("SELECT 1", "INSERT INTO t(a, a) VALUES(?, ?)"),
        ("SELECT 1", "INSERT INTO t(rowid, a) VALUES(?, ?)"),
        ("SELECT 1", "INSERT INTO t VALUES(?, ?), (1, 2)"),
        ("SELECT 1", "REPLACE INTO t VALUES(?, ?)"),
        ("SELECT 1", "WITH w AS (SELECT 1) INSERT INTO t VALUES(?, ?)"),
    ],
)
def test_what_is_not_certain_is_seen_row_by_row(pair: Pair, before: str, sql: str) -> None:
    pair.run("CREATE TABLE t(a, b)")
    pair.run("CREATE TABLE u(a, b)")
    pair.run("INSERT INTO u VALUES(1, 1)")
    pair.run(before)
    pair.many(sql, [(n % 7 + 1, n) for n in range(30)])
    assert pair.check() == 0


def test_a_database_in_utf16_is_seen_row_by_row(pair: Pair, tmp_path: Path) -> None:
    """It has no U+FFFF, which UTF-8 has."""
    path = tmp_path / "wide.db"
    made = apsw.Connection(str(path))
    made.execute("PRAGMA encoding = 'UTF-16'").fetchall()
    made.execute("CREATE TABLE t(a)")
    made.close()
    side = Side(path, whole=True, fragment_bytes=1 << 20)
    side.replica.db.execute("CREATE TABLE t(a)")
    with side.db:
        side.db.executemany("INSERT INTO t VALUES(?)", [("a\uffff",)] * 20)
    side.transactions()
    assert side.noted_together == 0
    assert side.replica.db.execute("SELECT a FROM t").fetchall() == side.raw.execute("SELECT a FROM t").fetchall()
    side.close()


def test_functions_of_the_user_may_write(pair: Pair) -> None:
    """A CHECK, an index or a collation may call one, which runs SQL; tables that call nothing go on together."""
    pair.run("CREATE TABLE u(a)")
    for side in (pair.fast, pair.slow):

        def noisy(value: object, side: Side = side) -> object:
            side.db.execute("INSERT INTO u VALUES(?)", (value,))
            return 1

        def order(one: str, two: str, side: Side = side) -> int:
            side.db.execute("INSERT INTO u VALUES(?)", (one + two,))
            return (one > two) - (one < two)

        side.db.create_scalar_function("noisy", noisy, 1, deterministic=True)
        side.db.create_collation("mine", order)
        side.replica.db.create_scalar_function("noisy", lambda *_: 1, 1, deterministic=True)
        for db in (side.replica.db, side.raw):
            db.create_collation("mine", lambda one, two: (one > two) - (one < two))
    pair.run("CREATE TABLE checked(a CHECK(noisy(a)))")
    pair.run("CREATE TABLE indexed(a)")
    pair.run("CREATE INDEX i ON indexed(noisy(a))")
    pair.run("CREATE TABLE ordered(a COLLATE mine PRIMARY KEY)")
    pair.run("CREATE TABLE made(a, b AS (noisy(a)) STORED)")
    for table in ("checked", "indexed", "ordered", "made(a)"):
        assert pair.many(f"INSERT INTO {table} VALUES(?)", [(f"{n * 7 % 30}",) for n in range(30)]) is None
        assert pair.check() == 0
        assert pair.slow.raw.execute("SELECT count(*) > 0 FROM u").fetchall() == [(1,)]
        pair.run("DELETE FROM u")
    assert pair.many("INSERT INTO u VALUES(?)", [(n,) for n in range(30)]) is None
    assert pair.check() == 30


def test_inside_an_sql_function(pair: Pair) -> None:
    """The statement that calls it may still fail, and take the rows back."""
    pair.run("CREATE TABLE t(a UNIQUE)")
    pair.run("CREATE TABLE u(a)")
    for side in (pair.fast, pair.slow):

        def fill(value: object, side: Side = side) -> object:
            rows = [(n,) for n in range(20)]
            side.db.executemany("INSERT INTO u VALUES(?)", rows if side.whole else iter(rows))
            return value

        side.db.create_scalar_function("fill", fill, 1)
    pair.run("BEGIN")
    pair.run("INSERT INTO t SELECT fill(1)")
    assert pair.run("INSERT INTO t SELECT fill(1)") is not None
    pair.run("COMMIT")
    pair.check()


def test_outside_a_transaction_each_row_commits_by_itself(pair: Pair) -> None:
    pair.run("CREATE TABLE t(a UNIQUE)")
    pair.run("INSERT INTO t VALUES(?)", [(n % 18,) for n in range(20)])
    assert pair.check() == 0
    assert pair.fast.raw.execute("SELECT count(*) FROM t").fetchall() == [(18,)]


def test_another_connections_schema_counts_at_once(pair: Pair) -> None:
    """A trigger that comes between two bulks of a connection."""
    pair.run("CREATE TABLE t(a)")
    pair.run("CREATE TABLE u(a)")
    rows = [(n,) for n in range(20)]
    pair.many("INSERT INTO t VALUES(?)", rows)
    assert pair.check() == 20
    for side in (pair.fast, pair.slow):
        other = connect(side.db.path)
        other.execute("CREATE TRIGGER x AFTER INSERT ON t BEGIN INSERT INTO u VALUES(new.a); END")
        other.close()
    pair.many("INSERT INTO t VALUES(?)", rows)
    assert pair.check() == 0
    for side in (pair.fast, pair.slow):
        other = connect(side.db.path)
        other.execute("DROP TRIGGER x")
        other.execute("ALTER TABLE t ADD COLUMN b DEFAULT 'b'")
        other.close()
    pair.many("INSERT INTO t(a) VALUES(?)", rows)
    assert pair.check() == 20


# --- size, and what may come between ---------------------------------------------------------------------


@pytest.mark.long
def test_a_large_bulk_comes_in_pieces(tmp_path: Path) -> None:
    """Also with rows of very different sizes, beside one that is larger than a piece."""
    pair = Pair(tmp_path, fragment_bytes=4000)
    pair.run("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)")
    rng = random.Random(5)
    rows = [(n, "x" * (9000 if n == 700 else rng.choice([0, 5, 40, 300]))) for n in range(5000)]
    assert pair.many("INSERT INTO t VALUES(?, ?)", rows) is None
    pair.run("BEGIN")
    pair.run("SAVEPOINT s")  # nothing can go to the outbox before its end
    pair.run("INSERT INTO t(v) VALUES(?)", [(value,) for _, value in rows])
    pair.run("RELEASE s")
    pair.run("COMMIT")
    assert pair.check() == 10_000
    sizes = [size for (size,) in pair.fast.raw.execute("SELECT length(changes) FROM _tranlog_outbox")]
    assert sum(size > 5000 for size in sizes) == 2 and len(sizes) > 200
    assert pair.fast.db.recorder.hook.bytes == 0
    pair.close()


def test_memory_of_a_bulk_is_bounded(tmp_path: Path) -> None:
    db = connect(tmp_path / "s.db", fragment_bytes=10_000)
    db.execute("CREATE TABLE t(a TEXT)")
    most = 0

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(db.recorder, name)

        def add_rows(self, *noted: Any) -> None:
            nonlocal most
            db.recorder.add_rows(*noted)
            most = max(most, db.recorder.hook.bytes)

    db._inserts._recorder = Watched()  # type: ignore[assignment]
    with db:
        db.executemany("INSERT INTO t VALUES(?)", [("x" * 100,)] * 10_000)
    assert 20_000 < most < 60_000
    db.close()


def test_a_cursor_that_reads_goes_on_reading(pair: Pair) -> None:
    pair.run("CREATE TABLE t(a)")
    pair.many("INSERT INTO t VALUES(?)", [(n,) for n in range(300)])
    for side in (pair.fast, pair.slow):
        cursor = side.db.execute("SELECT a FROM t ORDER BY rowid")
        assert cursor.fetchone() == (0,)
        with side.db:
            rows = [(n,) for n in range(300, 600)]
            side.db.executemany("INSERT INTO t VALUES(?)", rows if side.whole else iter(rows))
        assert cursor.fetchmany(299)[-1] == (299,)
        cursor.close()
    pair.check()


def test_triggers_run_and_rows_are_seen_behind_a_bulk(pair: Pair) -> None:
    """A large one has neither hook nor triggers while it runs; also when a row fails."""
    pair.run("CREATE TABLE t(a UNIQUE)")
    pair.run("CREATE TABLE u(a)")
    pair.run("CREATE TRIGGER x AFTER INSERT ON u BEGIN UPDATE t SET a = a + 1000 WHERE a = new.a; END")
    for last in (500, 7):
        pair.run("BEGIN")
        pair.run("INSERT INTO t VALUES(?)", [*((n,) for n in range(500)), (last,)])
        pair.run("INSERT INTO u VALUES(3)")
        pair.run("COMMIT")
        assert pair.check() >= 500
        pair.run("DELETE FROM t")
    pair.check()


def insert_for_ever(db: SqliteConnection) -> None:
    rows = [("x" * 100,)] * 20_000
    while True:
        db.executemany("INSERT INTO t VALUES(?)", rows)


@pytest.mark.long
def test_a_bulk_that_is_interrupted_leaves_nothing(pair: Pair) -> None:
    side = pair.fast
    side.db.execute("CREATE TABLE t(a)")
    side.db.execute("BEGIN")
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.01):
            side.db.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(apsw.InterruptError):
            insert_for_ever(side.db)
    finally:
        over.set()
        thread.join()
    assert not side.db.in_transaction
    with side.db:
        side.db.execute("INSERT INTO t VALUES('seen')")
    side.transactions()
    assert content(side.replica.db) == content(side.raw)


STEPS = {"_insert_bound", "_see_rows", "add_rows", "_add", "head"}


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_at_any_line_loses_nothing(pair: Pair, fails: bool) -> None:
    """What was inserted and could not be noted is rolled back; a hook that was left off is put back."""
    side = pair.fast
    side.db.execute("CREATE TABLE t(a UNIQUE)")
    rows = [(n,) for n in range(150)]
    if fails:
        rows[120] = (3,)
    lines = 0

    def ring(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_name not in STEPS:
            return None
        if event == "line":
            lines -= 1
            if lines == 0:
                raise KeyboardInterrupt
        return ring

    tracer = sys.gettrace()
    hit = 0
    for line in itertools.count(1):
        lines = line
        side.db.execute("BEGIN")
        try:
            sys.settrace(ring)
            side.db.executemany("INSERT INTO t VALUES(?)", rows)
        except apsw.ConstraintError:
            assert fails
        except (KeyboardInterrupt, SourceError):
            hit += 1
        finally:
            sys.settrace(tracer)
        side.db.commit()  # the worst that a program can do
        side.db.execute("DELETE FROM t WHERE a > 10 OR a < 5")
        side.db.execute("DELETE FROM t")
        side.transactions()
        assert content(side.replica.db) == content(side.raw)
        if lines > 0:
            break
    assert hit > 15
    assert side.noted_together > 100


def test_rows_that_cannot_be_noted_are_rolled_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the spill file is gone."""
    side = pair.fast
    side.db.execute("CREATE TABLE t(a)")
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    side.db.execute("BEGIN")
    side.db.execute("SAVEPOINT s")
    with pytest.raises(DiskFailedError, match="nowhere") as caught:
        side.db.executemany("INSERT INTO t VALUES(?)", [("x" * 1000,)] * 20_000)
    assert caught.value.__notes__ == ["tranlog: the transaction was rolled back"]
    assert not side.db.in_transaction
    monkeypatch.undo()
    with side.db:
        side.db.executemany("INSERT INTO t VALUES(?)", [("y",)] * 20)
    side.transactions()
    assert content(side.replica.db) == content(side.raw)


# --- each judgement is needed ----------------------------------------------------------------------------


def nothing_like_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_LIKE_A_NUMBER", re.compile(r"(?!)"))


def nothing_made_of_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "_store", lambda row, integers, reals: None)


def no_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = bulk.bulk_insert

    def blind(insert: PlainInsert, table: Any, facts: bulk.InsertFacts, *, own_functions: bool) -> Any:
        facts = bulk.InsertFacts(
            table=(), indexes=(), triggers=False, defaults=facts.defaults, utf8=True, rowid=facts.rowid
        )
        return judge(insert, table, facts, own_functions=own_functions)

    monkeypatch.setattr("tranlog.source.sqlite.inserting.bulk_insert", blind)


def texts_take_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "affinity", lambda declared: Affinity.BLOB)


def no_rowid_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    write = raw.encode_rows
    monkeypatch.setattr(
        "tranlog.source.sqlite.recorder.encode_rows",
        lambda number, rows, order, first: write(number, rows, order, first if first is None else first + 1),
    )


def all_rows_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk.BulkInsert, "head", lambda self, bound, count: bound.encoded)


@pytest.mark.long
@pytest.mark.parametrize(
    "mutant",
    [nothing_like_a_number, nothing_made_of_floats, no_facts, texts_take_numbers, no_rowid_is_counted, all_rows_stay],
)
def test_each_judgement_is_needed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    def differs() -> bool:
        try:
            for sql in SCHEMA[:-1]:
                pair.run(sql)
            pair.run("CREATE TRIGGER x AFTER INSERT ON keyless BEGIN UPDATE lone SET v = v + 1; END")
            pair.many(insert_into("lone"), [(f"{n}", n, n) for n in range(20)])
            pair.many(insert_into("plain", ("a", "b", "c")), [(f"{n}", "b", n) for n in range(20)])
            pair.many(insert_into("plain", ("a", "b", "c")), [(float(n), "b", -0.0) for n in range(20)])
            pair.many(insert_into("plain", ("b",)), [(n,) for n in range(20)])
            pair.many(insert_into("keyless"), [(n, "b", None, None, None, None) for n in range(20)])
            pair.many(insert_into("loose"), [(f"{n}", n % 15, 5) for n in range(20)])
            pair.check()
        except Exception:
            return True
        except AssertionError:
            return True
        return False

    assert not differs()
    pair.fast.db.execute("DROP TABLE keyless")  # and what both have in their caches
    for side in (pair.fast, pair.slow):
        for (name,) in side.raw.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT GLOB '[_s]*'"
        ).fetchall():
            side.db.execute(f"DROP TABLE IF EXISTS {quoted(str(name))}")
        side.db.execute("DROP TABLE IF EXISTS strict")
        side.transactions()
    mutant(monkeypatch)
    assert differs()


def test_the_hook_that_stays_off_is_put_back(pair: Pair) -> None:
    """As a signal between two lines would leave it."""
    side = pair.fast
    side.db.execute("CREATE TABLE t(a)")
    side.db.execute("CREATE TRIGGER also AFTER INSERT ON t WHEN new.a = 2 BEGIN INSERT INTO t VALUES(3); END")
    side.db.recorder.look_away(guards=False)
    side.db.execute("INSERT INTO t VALUES(1)")
    side.db.recorder.look_away(guards=False)
    side.db.execute("INSERT INTO t VALUES(2)")
    assert side.db.execute("SELECT a FROM t").fetchall() == [(1,), (2,), (3,)]
    side.transactions()
    assert content(side.replica.db) == content(side.raw)

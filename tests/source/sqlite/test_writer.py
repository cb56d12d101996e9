"""The writers' connection: whatever commits through it stands in the outbox, and nothing else does."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from fix_sqlite import Replica, changes_of, content
from tranlog.change import Change, Op, RowChange, Statement, TableName
from tranlog.errors import ForeignWriterError, SourceError, SourceSetupError, UnsupportedTypeError
from tranlog.shard import UNKNOWN_SHARD
from tranlog.source.sqlite import SqliteConnection, SqliteSource, SqliteSourceOptions, connect, install
from tranlog.types import CharsetBytes


class Captured:
    """A captured database: its writer, and what the outbox has got since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.db = connect(self.path)
        self.raw = apsw.Connection(self.path)
        self.seen = 0

    def transactions(self) -> list[list[tuple[Any, ...]]]:
        """Return what committed since the last call, change by change, in few words."""
        found: list[list[tuple[Any, ...]]] = []
        current: list[tuple[Any, ...]] = []
        for changes, last in self.pieces():
            current += [in_few_words(change) for change in changes]
            if last:
                found.append(current)
                current = []
        assert not current
        return found

    def pieces(self) -> Iterator[tuple[tuple[Change, ...], bool]]:
        asked = "SELECT id, last, changes FROM _tranlog_outbox WHERE id > ? ORDER BY id"
        rows: list[Any] = self.raw.execute(asked, (self.seen,)).fetchall()
        for number, last, raw in rows:
            self.seen = number
            yield changes_of(raw), bool(last)

    def rows(self, sql: str) -> list[Any]:
        return self.raw.execute(sql).fetchall()

    def close(self) -> None:
        self.db.close()
        self.raw.close()


def headers(path: str) -> list[tuple[str, tuple[TableName, ...] | None]]:
    """Return shard and tables of every transaction in the outbox, as capture finds them."""
    source = SqliteSource(SqliteSourceOptions(path=path, source_id="s"))
    source.start(None)
    found = [(fragment.shard_id, fragment.tables) for fragment in source.read(0) if fragment.last]
    source.close()
    return found


def in_few_words(change: Change) -> tuple[Any, ...]:
    if isinstance(change, Statement):
        return ("ddl" if change.ddl else "statement", change.sql)
    name = change.table.table
    match change.op:
        case Op.INSERT:
            return ("+", name, change.after)
        case Op.DELETE:
            return ("-", name, change.before)
        case Op.UPDATE:
            return ("~", name, change.before, change.after)


@pytest.fixture
def captured(tmp_path: Path) -> Iterator[Captured]:
    captured = Captured(tmp_path / "source.db")
    captured.db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b UNIQUE)")
    captured.db.execute("CREATE TABLE u(x, y)")
    captured.transactions()
    yield captured
    captured.close()


# --- transactions and savepoints -------------------------------------------------------------------------


def test_each_statement_outside_a_transaction_is_one(captured: Captured) -> None:
    db = captured.db
    db.execute("INSERT INTO t VALUES(1, 'x', NULL), (2, 'y', NULL)")
    db.execute("UPDATE t SET a = 'z' WHERE id = 2")
    db.execute("DELETE FROM t WHERE id = 1")
    db.execute("DELETE FROM t WHERE id = 77")
    assert captured.transactions() == [
        [("+", "t", (1, "x", None)), ("+", "t", (2, "y", None))],
        [("~", "t", (2, "y", None), (2, "z", None))],
        [("-", "t", (1, "x", None))],
    ]


def test_a_transaction_is_one_and_a_rollback_none(captured: Captured) -> None:
    db = captured.db
    db.execute("BEGIN")
    db.execute("INSERT INTO u VALUES(1, 2)")
    db.execute("INSERT INTO t VALUES(1, 2, 3)")
    assert captured.transactions() == []
    db.commit()
    assert captured.transactions() == [[("+", "u", (1, 2)), ("+", "t", (1, 2, 3))]]
    db.execute("BEGIN IMMEDIATE")
    db.execute("DELETE FROM t")
    db.rollback()
    db.execute("BEGIN")
    db.execute("SELECT 1").fetchall()
    db.execute("COMMIT")
    db.commit()
    db.rollback()
    assert captured.transactions() == []


def test_savepoints_nest_with_equal_names(captured: Captured) -> None:
    db = captured.db
    db.execute("BEGIN")
    for number, sql in enumerate(["SAVEPOINT a", "SAVEPOINT A", 'savepoint "b"', "SAVEPOINT a"]):
        db.execute(sql)
        db.execute("INSERT INTO u VALUES(?, 0)", (number,))
    db.execute("ROLLBACK TO a")  # the fourth
    db.execute("RELEASE a")
    db.execute("INSERT INTO u VALUES('in b', 0)")
    db.execute("ROLLBACK TRANSACTION TO SAVEPOINT [B]")
    db.execute("INSERT INTO u VALUES('again in b', 0)")
    db.execute("RELEASE a")  # the second, and b in it
    db.execute("SAVEPOINT c")
    db.execute("INSERT INTO u VALUES('c', 0)")
    db.execute("ROLLBACK TO c")
    db.execute("COMMIT")
    kept = [("+", "u", (0, 0)), ("+", "u", (1, 0)), ("+", "u", ("again in b", 0))]
    assert captured.transactions() == [kept]
    assert captured.rows("SELECT x FROM u") == [(0,), (1,), ("again in b",)]


def test_a_savepoint_outside_a_transaction_opens_one(captured: Captured) -> None:
    db = captured.db
    db.execute("SAVEPOINT s")
    db.execute("INSERT INTO u VALUES(1, 1)")
    db.execute("SAVEPOINT s")
    db.execute("INSERT INTO u VALUES(2, 2)")
    db.execute("RELEASE s")
    assert captured.transactions() == []
    db.execute("RELEASE s")
    assert not db.in_transaction
    assert captured.transactions() == [[("+", "u", (1, 1)), ("+", "u", (2, 2))]]
    db.execute("SAVEPOINT s")
    db.execute("INSERT INTO u VALUES(3, 3)")
    db.execute("ROLLBACK TO s")
    db.execute("RELEASE s")
    assert captured.transactions() == []


def test_rollback_to_after_a_failed_statement(captured: Captured) -> None:
    db = captured.db
    db.execute("INSERT INTO t VALUES(1, 1, 1)")
    db.execute("BEGIN")
    db.execute("INSERT INTO t VALUES(2, 2, 2)")
    db.execute("SAVEPOINT s")
    db.execute("INSERT INTO t VALUES(3, 3, 3)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT OR FAIL INTO t VALUES(4, 4, 4), (5, 5, 1)")
    with pytest.raises(apsw.SQLError, match="no such savepoint"):
        db.execute("ROLLBACK TO nowhere")
    db.execute("ROLLBACK TO s")
    db.execute("INSERT INTO t VALUES(6, 6, 6)")
    db.execute("COMMIT")
    assert captured.transactions()[1:] == [[("+", "t", (2, 2, 2)), ("+", "t", (6, 6, 6))]]


def test_with_is_a_transaction_or_a_savepoint(captured: Captured) -> None:
    db = captured.db

    def fails(value: int) -> None:
        with db:
            db.execute("INSERT INTO u VALUES(?, 0)", (value,))
            raise ZeroDivisionError

    with db:
        db.execute("INSERT INTO u VALUES(1, 1)")
        with pytest.raises(ZeroDivisionError):
            fails(2)
        with db:
            db.execute("INSERT INTO u VALUES(3, 3)")
    with pytest.raises(ZeroDivisionError):
        fails(4)
    with db:
        db.execute("INSERT INTO u VALUES(5, 5)")
        db.rollback()
    assert captured.transactions() == [[("+", "u", (1, 1)), ("+", "u", (3, 3))]]


def test_a_refused_commit_leaves_the_transaction_as_it_was(captured: Captured) -> None:
    """A deferred foreign key: COMMIT fails, the program mends and commits again."""
    db = captured.db
    db.execute("CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
    db.execute("PRAGMA foreign_keys = ON")
    captured.transactions()
    db.execute("BEGIN")
    db.execute("INSERT INTO c VALUES(1, 9)")
    for _ in range(2):
        with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
            db.execute("COMMIT")
        assert db.changes() == 1 and db.last_insert_rowid() == 1
        assert captured.db.execute("SELECT count(*) FROM _tranlog_outbox").fetchall() == [(3,)]
    db.execute("INSERT INTO t VALUES(9, 9, 9)")
    db.execute("COMMIT")
    assert captured.transactions() == [[("+", "c", (1, 9)), ("+", "t", (9, 9, 9))]]
    with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
        db.execute("INSERT INTO c VALUES(2, 10)")  # by itself: rolled back whole
    assert not db.in_transaction and captured.transactions() == []


def test_a_refused_commit_of_a_flushed_transaction(tmp_path: Path) -> None:
    """The same, when the first fragments are in the outbox already."""
    with_small = connect(tmp_path / "s.db", fragment_bytes=300)
    with_small.executescript(
        "CREATE TABLE p(id INTEGER PRIMARY KEY);"
        "CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES p DEFERRABLE INITIALLY DEFERRED, x)"
    )
    with_small.execute("PRAGMA foreign_keys = ON")
    with_small.execute("BEGIN")
    for number in range(200):
        with_small.execute("INSERT INTO c VALUES(?, 1, 'some text to fill a fragment')", (number,))
    with pytest.raises(apsw.ConstraintError):
        with_small.execute("COMMIT")
    with_small.execute("INSERT INTO p VALUES(1)")
    with_small.execute("COMMIT")
    replica = Replica()
    raw = apsw.Connection(str(tmp_path / "s.db"))
    assert replica.follow(raw) == 3
    assert content(replica.db) == content(raw)
    assert raw.execute("SELECT count(*) > 20, sum(last) FROM _tranlog_outbox").fetchall() == [(1, 3)]
    with_small.close()
    raw.close()


# --- failing statements ----------------------------------------------------------------------------------


def test_a_constraint_in_the_middle_of_a_statement(captured: Captured) -> None:
    db = captured.db
    db.execute("INSERT INTO t VALUES(1, 1, 1)")
    captured.transactions()
    db.execute("BEGIN")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO t VALUES(2, 2, 2), (3, 3, 1)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT OR ABORT INTO t VALUES(4, 4, 4), (5, 5, 1)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT OR FAIL INTO t VALUES(6, 6, 6), (7, 7, 1), (8, 8, 8)")
    db.execute("INSERT OR IGNORE INTO t VALUES(9, 9, 9), (10, 10, 1), (11, 11, 11)")
    db.execute("COMMIT")
    assert captured.transactions() == [[("+", "t", (6, 6, 6)), ("+", "t", (9, 9, 9)), ("+", "t", (11, 11, 11))]]
    with pytest.raises(apsw.ConstraintError):  # by itself, FAIL commits what it did
        db.execute("INSERT OR FAIL INTO t VALUES(20, 20, 20), (21, 21, 1)")
    assert captured.transactions() == [[("+", "t", (20, 20, 20))]]
    db.execute("BEGIN")
    db.execute("INSERT INTO u VALUES(1, 1)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT OR ROLLBACK INTO t VALUES(30, 30, 30), (31, 31, 1)")
    assert not db.in_transaction
    db.execute("INSERT INTO u VALUES(2, 2)")
    assert captured.transactions() == [[("+", "u", (2, 2))]]


def test_replace_with_triggers(captured: Captured) -> None:
    db = captured.db
    db.execute("CREATE TRIGGER out AFTER DELETE ON t BEGIN INSERT INTO u VALUES('gone', old.id); END")
    db.execute("INSERT INTO t VALUES(1, 1, 1), (2, 2, 2)")
    captured.transactions()
    db.execute("INSERT OR REPLACE INTO t VALUES(1, 'new', 2)")
    rows = {("-", "t", (1, 1, 1)), ("-", "t", (2, 2, 2)), ("+", "t", (1, "new", 2))}
    ((*changes,),) = captured.transactions()
    assert set(changes) == rows and len(changes) == 3
    db.execute("PRAGMA recursive_triggers = ON")  # only then do REPLACE's deletions fire triggers
    db.execute("INSERT OR REPLACE INTO t VALUES(1, 'newer', 3)")
    assert captured.transactions() == [
        [("-", "t", (1, "new", 2)), ("+", "u", ("gone", 1)), ("+", "t", (1, "newer", 3))]
    ]


def test_fail_in_a_trigger_keeps_what_it_did(captured: Captured) -> None:
    """No row of the statement itself was changed, so that SQLite's own count says nothing."""
    db = captured.db
    db.execute(
        "CREATE TRIGGER no BEFORE INSERT ON t BEGIN INSERT INTO u VALUES('tried', new.id);"
        "SELECT CASE new.a WHEN 'fail' THEN RAISE(FAIL, 'f') WHEN 'abort' THEN RAISE(ABORT, 'a')"
        " WHEN 'ignore' THEN RAISE(IGNORE) WHEN 'rollback' THEN RAISE(ROLLBACK, 'r') END; END"
    )
    captured.transactions()
    db.execute("BEGIN")
    for number, what in enumerate(["fail", "abort"]):
        with pytest.raises(apsw.ConstraintError):
            db.execute("INSERT INTO t VALUES(?, ?, NULL)", (number, what))
    db.execute("INSERT INTO t VALUES(2, 'ignore', NULL)")
    db.execute("COMMIT")
    assert captured.transactions() == [[("+", "u", ("tried", 0)), ("+", "u", ("tried", 2))]]
    assert captured.rows("SELECT y FROM u") == [(0,), (2,)]
    db.execute("BEGIN")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO t VALUES(5, 'rollback', NULL)")
    assert not db.in_transaction and captured.transactions() == []


def test_a_function_that_raises_in_the_middle(captured: Captured) -> None:
    db = captured.db

    def picky(value: object) -> object:
        if value == 3:
            raise LookupError("three")
        return value

    db.create_scalar_function("picky", picky, 1)
    db.execute("INSERT INTO t(id) VALUES(1), (2), (3), (4)")
    captured.transactions()
    with db:
        with pytest.raises(LookupError):
            db.execute("UPDATE t SET a = picky(id)")
        with pytest.raises(LookupError):
            db.executemany("UPDATE t SET a = picky(?) WHERE id = 1", [(1,), (2,), (3,), (4,)])
    assert captured.transactions() == [
        [("~", "t", (1, None, None), (1, 1, None)), ("~", "t", (1, 1, None), (1, 2, None))]
    ]


def test_sql_inside_an_sql_function(captured: Captured) -> None:
    """A statement within a statement: each is cut back to its own start."""
    db = captured.db

    def nested(value: object) -> object:
        with pytest.raises(apsw.ConstraintError):
            db.execute("INSERT INTO t VALUES(100, 1, 1), (101, 1, 1)")
        db.execute("INSERT INTO u VALUES('nested', ?)", (value,))
        return value

    db.create_scalar_function("nested", nested, 1)
    db.execute("SELECT nested(1)").fetchall()
    db.execute("INSERT INTO t VALUES(1, nested(2), 7)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO t VALUES(2, nested(3), 7)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO t VALUES(3, nested(4), 8), (4, nested(5), 7)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT OR FAIL INTO t VALUES(5, nested(6), 9), (6, nested(7), 7)")
    replica = Replica()
    assert replica.follow(captured.raw) >= 5
    assert content(replica.db) == content(captured.raw)
    assert captured.transactions()[:2] == [
        [("+", "u", ("nested", 1))],
        [("+", "u", ("nested", 2)), ("+", "t", (1, 2, 7))],
    ]


def test_an_interrupt_rolls_back(captured: Captured) -> None:
    db = captured.db
    seen = []

    def stop(value: object) -> object:
        seen.append(value)
        if len(seen) == 3:
            db.interrupt()
        return value

    db.create_scalar_function("stop", stop, 1)
    db.execute("INSERT INTO t(id) VALUES(1), (2), (3), (4), (5)")
    captured.transactions()
    db.execute("BEGIN")
    db.execute("INSERT INTO u VALUES(1, 1)")
    with pytest.raises(apsw.InterruptError):
        db.execute("UPDATE t SET a = stop(id)")
    assert not db.in_transaction
    db.execute("INSERT INTO u VALUES(2, 2)")
    assert captured.transactions() == [[("+", "u", (2, 2))]]


def test_a_full_disk_refuses_the_transaction(captured: Captured) -> None:
    db = captured.db
    (pages,) = db.execute("PRAGMA page_count").fetchall()[0]
    db.execute(f"PRAGMA max_page_count = {pages + 3}")
    db.execute("INSERT INTO u VALUES(0, 0)")
    with pytest.raises(apsw.FullError):
        db.execute("INSERT INTO u VALUES(1, zeroblob(100000))")
    with pytest.raises(apsw.FullError):
        # room for the row, none for the outbox
        db.execute("INSERT INTO u VALUES(1, zeroblob(11000))")
    db.rollback()
    db.execute("PRAGMA max_page_count = 100000")
    db.execute("INSERT INTO u VALUES(2, 2)")
    assert captured.transactions() == [[("+", "u", (0, 0))], [("+", "u", (2, 2))]]
    assert captured.rows("SELECT x FROM u") == [(0,), (2,)]


# --- rows of every kind ----------------------------------------------------------------------------------


def test_triggers_and_cascades_in_their_order(captured: Captured) -> None:
    db = captured.db
    db.executescript("""
        CREATE TABLE p(id INTEGER PRIMARY KEY);
        CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES p ON DELETE CASCADE ON UPDATE CASCADE);
        CREATE TABLE n(id INTEGER PRIMARY KEY, p REFERENCES p ON DELETE SET NULL);
        CREATE TRIGGER gone AFTER DELETE ON c BEGIN INSERT INTO u VALUES('c', old.id); END;
        PRAGMA foreign_keys = ON;
        INSERT INTO p VALUES(1), (2);
        INSERT INTO c VALUES(10, 1);
        INSERT INTO n VALUES(20, 1);
    """)
    captured.transactions()
    db.execute("UPDATE p SET id = 3 WHERE id = 2")
    db.execute("DELETE FROM p WHERE id = 1")
    first, second = captured.transactions()
    assert first == [("~", "p", (2,), (3,))]
    assert second[0] == ("-", "p", (1,))
    assert set(second[1:]) == {("-", "c", (10, 1)), ("+", "u", ("c", 10)), ("~", "n", (20, 1), (20, None))}
    shards = [shard for shard, _ in headers(captured.path)[-2:]]
    assert shards == ["main.c", UNKNOWN_SHARD]  # u is outside the group that foreign keys make of p, c and n


def test_keyless_tables_and_equal_rows(captured: Captured) -> None:
    db = captured.db
    db.execute("INSERT INTO u VALUES(1, 1), (1, 1), (NULL, NULL)")
    db.execute("DELETE FROM u WHERE rowid = 2")
    db.execute("UPDATE u SET rowid = 50 WHERE rowid = 1")
    db.execute("UPDATE u SET y = 5 WHERE x IS NULL")
    replica = Replica()
    replica.db.execute("CREATE TABLE u(x, y)")
    for changes, _ in captured.pieces():
        assert all(isinstance(c, RowChange) and c.table.primary_key == () for c in changes)
        replica.apply(changes)
    assert content(replica.db)["u"] == content(captured.raw)["u"]


def test_without_rowid_and_composite_keys(captured: Captured) -> None:
    db = captured.db
    db.execute("CREATE TABLE w(a TEXT, b INT, c REAL, PRIMARY KEY(b, a)) WITHOUT ROWID")
    db.execute("INSERT INTO w VALUES('x', 1, 1), ('y', 1, 2)")
    db.execute("BEGIN")
    with pytest.raises(apsw.ConstraintError):
        db.execute("UPDATE w SET a = 'y', c = 9 WHERE c > 0")
    with pytest.raises(apsw.ConstraintError):
        db.execute("UPDATE OR FAIL w SET b = 5, a = 'z'")
    db.execute("COMMIT")
    change = next(changes[0] for changes, _ in captured.pieces() if isinstance(changes[0], RowChange))
    assert isinstance(change, RowChange)
    assert change.table.primary_key == (1, 0)
    assert [c.nullable for c in change.table.columns] == [False, False, True]
    replica = Replica()
    replica.follow(captured.raw)
    assert content(replica.db) == content(captured.raw)


def test_values_keep_what_is_stored(captured: Captured) -> None:
    db = captured.db
    values = [
        *(None, 0, -1, 2**63 - 1, -(2**63), 1.5, -0.0, math.inf, -math.inf, 5e-324),
        *("", "\0in\0side\0", "ü雪😀", b"", b"\x00\xff", "1", 1.0),
    ]
    for value in [*values, math.nan]:
        db.execute("INSERT INTO u VALUES(?, 1)", (value,))
    stored = [change[0][2][0] for change in captured.transactions()]
    assert [repr(v) for v in stored] == [repr(v) for v in [*values, None]]  # SQLite stores NaN as NULL


def test_text_that_is_not_utf8_travels_as_bytes(captured: Captured) -> None:
    db = captured.db
    bad = CharsetBytes("utf8", b"\xff\x00A")
    db.execute("INSERT INTO t VALUES(1, CAST(x'ff0041' AS TEXT), 1), (2, 'ok', 2)")
    db.execute("UPDATE t SET b = 3 WHERE id = 1")
    db.execute("UPDATE t SET id = id + 10 WHERE id = 1")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT INTO t VALUES(3, CAST(x'fe' AS TEXT), 4), (4, CAST(x'fe' AS TEXT), 3)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("INSERT OR FAIL INTO t VALUES(3, CAST(x'ff0041' AS TEXT), 4), (4, CAST(x'fe' AS TEXT), 3)")
    db.execute("DELETE FROM t WHERE id = 11")
    assert captured.transactions() == [
        [("+", "t", (1, bad, 1)), ("+", "t", (2, "ok", 2))],
        [("~", "t", (1, bad, 1), (1, bad, 3))],
        [("~", "t", (1, bad, 3), (11, bad, 3))],
        [("+", "t", (3, bad, 4))],
        [("-", "t", (11, bad, 3))],
    ]


def test_text_that_is_not_utf8_is_refused_without_a_rowid(captured: Captured) -> None:
    db = captured.db
    db.execute("CREATE TABLE w(a PRIMARY KEY, b) WITHOUT ROWID")
    captured.transactions()
    db.execute("BEGIN")
    db.execute("INSERT INTO u VALUES(1, 1)")
    with pytest.raises(UnsupportedTypeError, match=r"main\.w"):
        db.execute("INSERT INTO w VALUES(1, CAST(x'ff' AS TEXT))")
    assert not db.in_transaction
    db.execute("INSERT INTO w VALUES(2, 2)")
    assert captured.transactions() == [[("+", "w", (2, 2))]]
    assert captured.rows("SELECT count(*) FROM u") == [(0,)]


def test_generated_columns_are_left_out(captured: Captured) -> None:
    db = captured.db
    db.execute(
        "CREATE TABLE g(v AS (a + 1) VIRTUAL, a INTEGER, s AS (a * 2) STORED UNIQUE, id INTEGER PRIMARY KEY, "
        "UNIQUE(a, id))"
    )
    db.execute("CREATE TABLE s(a, s AS (a * 2) STORED, b)")
    captured.transactions()
    db.execute("INSERT INTO g(a, id) VALUES(1, 10), (2, 20)")
    db.execute("UPDATE g SET a = 5 WHERE id = 10")
    db.execute("DELETE FROM g WHERE v = 6")
    db.execute("INSERT INTO s(a, b) VALUES(1, 2)")
    db.execute("UPDATE s SET b = 3")
    change = [changes for changes, _ in captured.pieces()][-5][0]
    assert isinstance(change, RowChange)
    assert [c.name for c in change.table.columns] == ["a", "id"]
    assert (change.table.primary_key, change.table.unique_keys) == ((1,), ((0, 1),))
    captured.seen = 0
    assert captured.transactions()[-5:] == [
        [("+", "g", (1, 10)), ("+", "g", (2, 20))],
        [("~", "g", (1, 10), (5, 10))],
        [("-", "g", (5, 10))],
        [("+", "s", (1, 2))],
        [("~", "s", (1, 2), (1, 3))],
    ]


def test_a_null_in_a_key_makes_that_row_keyless(captured: Captured) -> None:
    """SQLite lets a declared key be NULL, any number of times: then the key names no row."""
    db = captured.db
    db.execute("CREATE TABLE k(id TEXT PRIMARY KEY, v)")
    db.execute("INSERT INTO k VALUES(NULL, 1), (NULL, 1), ('a', 1)")
    db.execute("UPDATE k SET v = 2 WHERE rowid = 1")
    db.execute("UPDATE k SET id = NULL WHERE id = 'a'")
    keys = [c.table.primary_key for p, _ in captured.pieces() for c in p if isinstance(c, RowChange)]
    assert keys == [(), (), (0,), (), ()]
    replica = Replica()
    replica.follow(captured.raw)
    assert content(replica.db) == content(captured.raw)


def test_rowids_under_other_names(captured: Captured) -> None:
    """A failed statement's rows are looked for by rowid, whatever the columns are called."""
    db = captured.db
    db.execute("CREATE TABLE a(rowid TEXT, _rowid_, oid INTEGER PRIMARY KEY, v UNIQUE)")
    db.execute("CREATE TABLE b(rowid TEXT UNIQUE, v CHECK(v < 3))")
    db.execute("CREATE TABLE d(id INTEGER PRIMARY KEY DESC, v UNIQUE)")
    for sql in (
        "INSERT OR FAIL INTO a VALUES('x', 'y', 5, 1), ('x', 'y', 6, 1)",
        "INSERT INTO a VALUES('x', 'y', 7, 3), ('x', 'y', 8, 3)",
        "INSERT OR FAIL INTO b VALUES('x', 1), ('y', 2), ('x', 1)",
        "INSERT INTO b VALUES('z', 1), ('zz', 7)",
        "INSERT OR FAIL INTO d VALUES(NULL, 1), (5, 2), (6, 2)",
    ):
        with pytest.raises(apsw.ConstraintError):
            db.execute(sql)
    assert captured.transactions()[3:] == [
        [("+", "a", ("x", "y", 5, 1))],
        [("+", "b", ("x", 1)), ("+", "b", ("y", 2))],
        [("+", "d", (None, 1)), ("+", "d", (5, 2))],
    ]


def test_a_row_that_cannot_be_looked_for_rolls_back(captured: Captured) -> None:
    """Every name of the rowid is taken: after a failed statement nobody can tell, and so nothing commits."""
    db = captured.db
    db.execute("CREATE TABLE a(rowid, _rowid_, oid, v UNIQUE)")
    captured.transactions()
    db.execute("INSERT INTO a VALUES(1, 2, 3, 4)")
    db.execute("BEGIN")
    db.execute("INSERT INTO u VALUES(1, 1)")
    with pytest.raises(SourceError, match="cannot tell") as caught:
        db.execute("INSERT INTO a VALUES(1, 2, 3, 5), (1, 2, 3, 4)")
    assert isinstance(caught.value.__cause__, apsw.ConstraintError)
    assert not db.in_transaction
    assert captured.transactions() == [[("+", "a", (1, 2, 3, 4))]]


def test_defaults_of_a_column_added_later(captured: Captured) -> None:
    """SQLite reports the REAL default of a row that is older than its column as an integer."""
    db = captured.db
    db.execute("INSERT INTO u VALUES(1, 1), (2, 2)")
    db.execute("ALTER TABLE u ADD COLUMN r REAL DEFAULT 3")
    db.execute("ALTER TABLE u ADD COLUMN t TEXT DEFAULT 5")
    captured.transactions()
    db.execute("DELETE FROM u WHERE x = 1")
    db.execute("UPDATE u SET y = 7")
    assert [repr(change) for (change,) in captured.transactions()] == [
        "('-', 'u', (1, 1, 3.0, '5'))",
        "('~', 'u', (2, 2, 3.0, '5'), (2, 7, 3.0, '5'))",
    ]


# --- DDL -------------------------------------------------------------------------------------------------


def test_ddl_is_recorded_at_its_place(captured: Captured) -> None:
    db = captured.db
    with db:
        db.execute("INSERT INTO u VALUES(1, 1)")
        db.execute("ALTER TABLE u RENAME COLUMN y TO z")
        db.execute("INSERT INTO u(z) VALUES(2)")
        db.execute("CREATE TABLE IF NOT EXISTS fresh (id INTEGER PRIMARY KEY) ;")
        db.execute("CREATE TABLE IF NOT EXISTS fresh(id)")
        db.execute("INSERT INTO fresh VALUES(1)")
        db.execute("CREATE TEMP TABLE temporary(a)")
        db.execute("INSERT INTO temporary VALUES(1)")
        db.execute("DROP TABLE IF EXISTS nowhere")
    assert captured.transactions() == [
        [
            ("+", "u", (1, 1)),
            ("ddl", "ALTER TABLE u RENAME COLUMN y TO z"),
            ("+", "u", (None, 2)),
            ("ddl", "CREATE TABLE fresh (id INTEGER PRIMARY KEY)"),
            ("+", "fresh", (1,)),
        ]
    ]
    assert headers(captured.path)[-1] == (UNKNOWN_SHARD, (("main", "u"), ("main", "fresh")))


def test_ddl_taken_back_is_not_recorded(captured: Captured) -> None:
    db = captured.db
    db.execute("BEGIN")
    db.execute("SAVEPOINT s")
    db.execute("ALTER TABLE u ADD COLUMN more")
    db.execute("INSERT INTO u VALUES(1, 2, 3)")
    db.execute("ROLLBACK TO s")
    db.execute("INSERT INTO u VALUES(1, 2)")
    db.execute("COMMIT")
    assert captured.transactions() == [[("+", "u", (1, 2))]]


def test_a_rolled_back_schema_does_not_pass_for_the_next(captured: Captured) -> None:
    """SQLite gives the number of a schema that was rolled back to the next one, of whichever connection."""
    db, other = captured.db, connect(captured.path)
    db.execute("BEGIN")
    db.execute("CREATE TABLE mine(a)")
    db.execute("ROLLBACK")
    other.execute("CREATE TABLE theirs(a)")
    db.execute("INSERT INTO theirs VALUES(1)")
    assert captured.transactions() == [[("ddl", "CREATE TABLE theirs(a)")], [("+", "theirs", (1,))]]
    other.close()


def test_create_table_as_select_brings_its_rows(captured: Captured) -> None:
    db = captured.db
    db.execute("INSERT INTO u VALUES(1, 'a'), (2, CAST(x'ff' AS TEXT))")
    captured.transactions()
    db.execute("CREATE TABLE copy AS SELECT x, y, random() AS r FROM u WHERE x < ?", (9,))
    ((ddl, one, two),) = captured.transactions()
    assert ddl[0] == "ddl" and ddl[1].startswith("CREATE TABLE copy(") and "SELECT" not in ddl[1]
    assert one[2][:2] == (1, "a") and two[2][:2] == (2, CharsetBytes("utf8", b"\xff"))
    assert [row[2] for row in captured.rows("SELECT * FROM copy WHERE x = 1")] == [one[2][2]]


def test_drop_table_with_foreign_keys_records_what_it_deletes(captured: Captured) -> None:
    db = captured.db
    db.executescript("""
        PRAGMA foreign_keys = ON;
        CREATE TABLE p(id INTEGER PRIMARY KEY);
        CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES p ON DELETE SET NULL);
        INSERT INTO p VALUES(1);
        INSERT INTO c VALUES(1, 1);
    """)
    captured.transactions()
    db.execute("DROP TABLE p")
    assert captured.transactions() == [[("-", "p", (1,)), ("~", "c", (1, 1), (1, None)), ("ddl", "DROP TABLE p")]]


def test_another_connections_ddl_is_known_at_once(captured: Captured) -> None:
    other = connect(captured.path)
    other.execute("INSERT INTO u VALUES(0, 0)")
    captured.db.execute("ALTER TABLE u ADD COLUMN z DEFAULT 'd'")
    other.execute("BEGIN")
    other.execute("INSERT INTO u(x, y, z) VALUES(1, 2, 3)")
    other.execute("COMMIT")
    other.close()
    assert captured.transactions()[-1] == [("+", "u", (1, 2, 3))]


def test_our_tables_cannot_be_dropped(captured: Captured) -> None:
    db = captured.db
    for sql in ("DROP TABLE _tranlog_outbox", "ALTER TABLE _tranlog_source RENAME TO mine"):
        with pytest.raises(SourceSetupError, match="tables of capture"):
            db.execute(sql)
    db.execute("INSERT INTO u VALUES(1, 1)")
    assert captured.transactions() == [[("+", "u", (1, 1))]]


def test_virtual_tables_are_not_captured(captured: Captured) -> None:
    db = captured.db
    db.execute("CREATE VIRTUAL TABLE words USING fts5(w)")
    captured.transactions()
    db.execute("INSERT INTO words VALUES('hello world')")
    assert captured.transactions() == []
    assert db.execute("SELECT * FROM words WHERE words MATCH 'hello'").fetchall() == [("hello world",)]


@pytest.mark.parametrize("other", ["CREATE TEMP TABLE u(x, y)", "ATTACH ':memory:' AS o; CREATE TABLE o.u(x, y)"])
def test_a_table_of_the_same_name_elsewhere_is_not_captured(captured: Captured, other: str) -> None:
    db = captured.db
    db.executescript(other)
    name = "temp.u" if "TEMP" in other else "o.u"
    with db:
        db.execute(f"INSERT INTO {name} VALUES(1, 1), (2, 2)")
        db.execute("INSERT INTO main.u VALUES(3, 3)")
        db.execute(f"UPDATE {name} SET y = 0")
        db.execute(f"DELETE FROM {name} WHERE x = 1")
    db.execute(f"INSERT INTO {name} VALUES(4, 4)")
    assert captured.transactions() == [[("+", "u", (3, 3))]]


def test_vacuum_is_no_change(captured: Captured) -> None:
    db = captured.db
    db.execute("CREATE TABLE w(a PRIMARY KEY, g AS (a + 1) STORED) WITHOUT ROWID")
    for sql in ("INSERT INTO t VALUES(1, 2, 3)", "INSERT INTO u VALUES(1, 2)", "INSERT INTO w VALUES(1)"):
        db.execute(sql)
    captured.transactions()
    captured.raw.close()  # else SQLite cannot have the file for itself
    db.execute("VACUUM")
    db.execute("INSERT INTO u VALUES(5, 5)")
    captured.raw = apsw.Connection(captured.path)
    assert captured.transactions() == [[("+", "u", (5, 5))]]


def test_a_statement_that_comes_again_is_what_it_was(captured: Captured) -> None:
    """By its text alone: also when the schema has changed, when it fails, and when it runs in another transaction."""
    db = captured.db
    insert = "INSERT INTO u VALUES(?, ?)"
    db.execute(insert, (1, 1))
    db.execute(insert, (2, 2))
    for bindings in [(), (1,)]:
        with pytest.raises(apsw.BindingsError):
            db.execute(insert, bindings)
        assert not db.in_transaction
    db.execute("BEGIN")
    db.execute(insert, (3, 3))
    with pytest.raises(apsw.BindingsError):
        db.execute(insert, ())
    db.execute("COMMIT")
    with pytest.raises(apsw.SQLError, match="no transaction"):
        db.execute("COMMIT")
    db.execute("ALTER TABLE u ADD COLUMN z")
    with pytest.raises(apsw.SQLError, match="3 columns"):
        db.execute(insert, (4, 4))
    assert not db.in_transaction
    db.execute("BEGIN")
    with pytest.raises(apsw.SQLError, match="within a transaction"):
        db.execute("BEGIN")
    db.execute("ROLLBACK")
    assert captured.transactions() == [
        [("+", "u", (1, 1))],
        [("+", "u", (2, 2))],
        [("+", "u", (3, 3))],
        [("ddl", "ALTER TABLE u ADD COLUMN z")],
    ]


# --- guards ----------------------------------------------------------------------------------------------

GUARDED = "no such function: tranlog_write_through_source_sqlite_connect"


@pytest.mark.parametrize("sql", ["INSERT INTO t VALUES(9, 9, 9)", "UPDATE t SET a = 2", "DELETE FROM t"])
def test_a_foreign_writer_is_refused(captured: Captured, sql: str) -> None:
    captured.db.execute("INSERT INTO t VALUES(1, 1, 1)")
    before = captured.rows("SELECT * FROM t")
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute(sys.argv[2])"
    told = subprocess.run([sys.executable, "-c", code, captured.path, sql], capture_output=True, text=True)
    assert GUARDED in told.stderr
    with pytest.raises(apsw.SQLError, match=GUARDED):
        captured.raw.execute(sql)
    assert captured.rows("SELECT * FROM t") == before


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE fresh(a)",
        "CREATE TABLE fresh AS SELECT * FROM u",
        "ALTER TABLE u RENAME TO fresh",
        "DROP TABLE u; CREATE TABLE fresh(a)",
        "DROP TRIGGER _tranlog_guard_2_insert; ALTER TABLE u RENAME TO fresh",
    ],
)
def test_guards_follow_ddl(captured: Captured, change: str) -> None:
    captured.db.executescript(change)
    with pytest.raises(apsw.SQLError, match=GUARDED):
        captured.raw.execute("INSERT INTO fresh DEFAULT VALUES")
    captured.db.execute("INSERT INTO fresh DEFAULT VALUES")
    assert captured.transactions()[-1][0][:2] == ("+", "fresh")


def test_guards_do_not_adopt_what_a_foreign_program_made(captured: Captured) -> None:
    captured.raw.execute("CREATE TABLE foreign_made(a)")
    captured.db.execute("CREATE TABLE ours(a)")
    captured.raw.execute("INSERT INTO foreign_made VALUES(1)")
    with pytest.raises(apsw.SQLError, match=GUARDED):
        captured.raw.execute("INSERT INTO ours VALUES(1)")
    uuid = install(captured.path)
    assert uuid == captured.db.uuid
    with pytest.raises(apsw.SQLError, match=GUARDED):
        captured.raw.execute("INSERT INTO foreign_made VALUES(1)")


def test_rows_from_before_the_first_connect_stay(tmp_path: Path) -> None:
    path = str(tmp_path / "old.db")
    old = sqlite3.connect(path)
    old.executescript("CREATE TABLE o(id INTEGER PRIMARY KEY, v); INSERT INTO o VALUES(1, 'old')")
    old.close()
    captured = Captured(tmp_path / "old.db")
    captured.db.execute("UPDATE o SET v = 'new'")
    assert captured.transactions() == [[("~", "o", (1, "old"), (1, "new"))]]
    captured.close()


def test_attaching_a_captured_database_is_refused(captured: Captured, tmp_path: Path) -> None:
    other = connect(tmp_path / "other.db")
    with pytest.raises(SourceSetupError, match="attached"):
        other.execute("ATTACH ? AS a", (captured.path,))
    assert other.execute("SELECT name FROM pragma_database_list").fetchall() == [("main",)]
    other.execute("ATTACH ? AS plain", (str(tmp_path / "plain.db"),))
    other.execute("CREATE TABLE plain.x(a)")
    other.execute("INSERT INTO plain.x VALUES(1)")
    assert other.execute("SELECT count(*) FROM _tranlog_outbox").fetchall() == [(0,)]
    other.close()


@pytest.mark.parametrize("opened", ["BEGIN", "SAVEPOINT s"])
def test_a_captured_database_attached_in_a_transaction_is_not_committed_to(
    captured: Captured, tmp_path: Path, opened: str
) -> None:
    """There SQLite cannot detach it again."""
    other = connect(tmp_path / "other.db")
    other.execute("CREATE TABLE own(a)")
    other.execute(opened)
    with pytest.raises(SourceSetupError, match="captured itself"):
        other.execute("ATTACH ? AS a", (captured.path,))
    other.execute("INSERT INTO a.u VALUES(1, 1)")
    with pytest.raises(SourceSetupError, match="captured itself"):
        other.execute("COMMIT" if opened == "BEGIN" else "RELEASE s")
    other.rollback()
    with pytest.raises(SourceSetupError, match="captured itself"):
        other.execute("INSERT INTO a.u VALUES(1, 1)")
    assert captured.rows("SELECT * FROM u") == []
    other.execute("DETACH a")
    other.execute("INSERT INTO own VALUES(1)")
    other.close()


def test_a_database_that_is_captured_after_it_was_attached_is_not_committed_to(
    captured: Captured, tmp_path: Path
) -> None:
    plain = str(tmp_path / "plain.db")
    captured.db.execute("ATTACH ? AS plain", (plain,))
    captured.db.execute("CREATE TABLE plain.x(a)")
    captured.db.execute("INSERT INTO plain.x VALUES(1)")
    connect(plain).close()
    with pytest.raises(SourceSetupError, match="captured itself"):
        captured.db.execute("INSERT INTO plain.x VALUES(2)")
    assert captured.db.execute("SELECT * FROM plain.x").fetchall() == [(1,)]


# --- foreign DDL -----------------------------------------------------------------------------------------

FOREIGN_DDL = {
    "ALTER TABLE t ADD COLUMN more": "main.t bypassed capture: a foreign program has altered it",
    "ALTER TABLE t RENAME TO z": "main.t bypassed capture: a foreign program has dropped or renamed it",
    "ALTER TABLE t RENAME COLUMN a TO z": "main.t bypassed capture: a foreign program has altered it",
    "DROP TABLE t": "main.t bypassed capture: a foreign program has dropped or renamed it",
    "CREATE TABLE a_new_one(a)": "main.a_new_one bypassed capture: a foreign program made it",
}


@pytest.mark.parametrize("sql", FOREIGN_DDL)
@pytest.mark.parametrize("running", [True, False])
def test_foreign_ddl_stops_capture_until_it_is_adopted(captured: Captured, sql: str, running: bool) -> None:
    """Whatever our writers do meanwhile, DDL of their own too: they go on."""
    captured.db.execute("INSERT INTO u VALUES(1, 1)")
    source = SqliteSource(SqliteSourceOptions(path=captured.path, source_id="s"))
    if running:
        source.start(None)
    captured.raw.execute(sql)
    captured.db.execute("INSERT INTO u VALUES(2, 2)")
    captured.db.execute("CREATE TABLE own(a)")
    with contextlib.suppress(apsw.SQLError):
        captured.db.execute("ALTER TABLE t ADD COLUMN of_ours")
    with pytest.raises(ForeignWriterError, match=FOREIGN_DDL[sql]):
        list(source.read(0)) if running else source.start(None)
    source.close()
    install(captured.path)
    connect(captured.path).close()
    source.start(None)
    assert sum(1 for _ in source.read(0)) >= 3
    captured.db.execute("INSERT INTO u VALUES(3, 3)")
    assert sum(1 for _ in source.read(0)) == 1
    source.close()


def test_what_is_no_change_of_a_table_is_not_foreign_ddl(captured: Captured) -> None:
    source = SqliteSource(SqliteSourceOptions(path=captured.path, source_id="s"))
    source.start(None)
    for sql in ("VACUUM", "CREATE INDEX i ON u(x)", "CREATE VIEW v AS SELECT 1", "ANALYZE", "DROP INDEX i"):
        captured.raw.execute(sql)
        captured.db.execute("INSERT INTO u VALUES(1, 1)")
        assert list(source.read(0))
    source.close()


def test_ddl_of_several_of_our_connections_is_none(captured: Captured) -> None:
    other = connect(captured.path)
    source = SqliteSource(SqliteSourceOptions(path=captured.path, source_id="s"))
    source.start(None)
    assert sum(1 for _ in source.read(0)) == 2
    for number in range(4):
        for db in (captured.db, other):
            table = f"n{number}_{db is other}"
            db.execute(f"CREATE TABLE {table}(a)")
            db.execute("SAVEPOINT s")
            db.execute(f"ALTER TABLE {table} ADD COLUMN b")
            db.execute("ROLLBACK TO s")
            db.execute(f"ALTER TABLE {table} ADD COLUMN c")
            db.execute("RELEASE s")
            db.execute("BEGIN")
            db.execute(f"DROP TABLE {table}")
            db.execute("ROLLBACK")
            db.execute("INSERT INTO u VALUES(1, 1)")
            assert sum(1 for _ in source.read(0)) == 3
    other.execute("DROP TABLE n0_True")
    captured.db.execute("INSERT INTO u VALUES(1, 1)")
    assert sum(1 for _ in source.read(0)) == 2
    source.close()
    other.close()


@pytest.mark.parametrize("sql", ["ALTER TABLE docs_content ADD COLUMN more", "DROP TABLE docs_content"])
def test_foreign_ddl_on_a_table_called_like_a_shadow_stops_capture(captured: Captured, sql: str) -> None:
    """What is captured is watched, whatever SQLite takes its name for; a virtual table's own shadows are not."""
    captured.db.execute("CREATE TABLE docs_content(id INTEGER PRIMARY KEY, body)")
    captured.db.execute("CREATE VIRTUAL TABLE docs USING fts5(body, content='docs_content', content_rowid='id')")
    source = SqliteSource(SqliteSourceOptions(path=captured.path, source_id="s"))
    source.start(None)
    captured.raw.execute("CREATE VIRTUAL TABLE own USING fts5(body)")
    assert list(source.read(0))
    captured.raw.execute(sql)
    captured.db.execute("INSERT INTO u VALUES(1, 1)")
    with pytest.raises(ForeignWriterError, match=r"main\.docs_content"):
        list(source.read(0))
    source.close()
    install(captured.path)
    source.start(None)
    source.close()


@pytest.mark.parametrize("back", [False, True])
def test_ddl_behind_a_commit_that_was_refused_is_ours(captured: Captured, back: bool) -> None:
    """The COMMIT that fails at a deferred constraint notes the tables; the next one notes them as they are then."""
    db = captured.db
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("CREATE TABLE child(p REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
    source = SqliteSource(SqliteSourceOptions(path=captured.path, source_id="s"))
    source.start(None)
    db.execute("BEGIN")
    db.execute("INSERT INTO child VALUES(99)")
    db.execute("SAVEPOINT s")
    db.execute("ALTER TABLE u ADD COLUMN first")
    db.execute("CREATE TABLE made(a)")
    with pytest.raises(apsw.ConstraintError):
        db.execute("COMMIT")
    if back:
        db.execute("ROLLBACK TO s")
    db.execute("ALTER TABLE u ADD COLUMN second")
    db.execute("DELETE FROM child")
    db.execute("COMMIT")
    assert list(source.read(0))
    source.close()


# --- settings, and the surface ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pragma", ["synchronous = OFF", "main.synchronous = 0", "journal_mode = DELETE", "locking_mode = EXCLUSIVE"]
)
def test_what_durability_rests_on_cannot_be_lowered(captured: Captured, pragma: str) -> None:
    captured.raw.close()  # else SQLite itself refuses to leave WAL
    with pytest.raises(SourceSetupError, match="PRAGMA"):
        captured.db.execute(f"PRAGMA {pragma}")
    rows = [
        captured.db.execute(f"PRAGMA {name}").fetchall() for name in ("synchronous", "journal_mode", "locking_mode")
    ]
    assert rows == [[(2,)], [("wal",)], [("normal",)]]
    other = connect(captured.path)
    other.execute("INSERT INTO u VALUES(1, 1)")
    other.close()
    captured.db.execute("PRAGMA synchronous = EXTRA")


@pytest.mark.parametrize("path", [":memory:", "", "file:x?mode=memory"])
def test_only_a_file_can_be_captured(path: str) -> None:
    with pytest.raises(SourceSetupError):
        connect(path)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("no database, but a text of some length\n" * 50)
    with pytest.raises(SourceSetupError, match="no SQLite database"):
        connect(path)
    with pytest.raises(SourceSetupError, match="cannot be opened"):
        connect(tmp_path / "nowhere" / "x.db")


def test_the_surface_that_people_know(captured: Captured) -> None:
    db = captured.db
    cursor = db.cursor()
    cursor.executemany(
        "INSERT INTO t VALUES(:id, :a, NULL)", [{"id": 1, "a": "x"}, {"id": 2, "a": "y"}, {"id": 3, "a": "z"}]
    )
    assert (cursor.rowcount, cursor.lastrowid, db.last_insert_rowid()) == (3, None, 3)
    assert len(captured.transactions()) == 3
    with db:
        db.executemany("INSERT INTO u VALUES(?, ?)", ((n, n) for n in range(4)))
    assert len(captured.transactions()) == 1
    assert db.execute("UPDATE t SET a = 'w' WHERE id > 1").rowcount == 2
    assert db.changes() == 2
    assert db.execute("SELECT changes()").fetchone() == (2,)
    assert db.total_changes() == 9
    rows = db.execute("SELECT id, a FROM t ORDER BY id")
    assert [column[0] for column in rows.description or ()] == ["id", "a"]
    assert (rows.fetchone(), rows.fetchmany(1), rows.fetchall(), rows.fetchone()) == (
        (1, "x"),
        [(2, "w")],
        [(3, "w")],
        None,
    )
    returned = db.execute("DELETE FROM t WHERE id > 1 RETURNING id")
    assert not db.in_transaction  # it is done and committed, whether somebody reads the rows or not
    assert sorted(returned) == [(2,), (3,)]
    assert next(db.execute("SELECT count(*) FROM t")) == (1,)
    assert db.execute("EXPLAIN DELETE FROM t").fetchall()
    assert db.execute("").fetchall() == [] and db.execute("-- nothing").fetchall() == []
    assert not db.in_transaction
    with pytest.raises(apsw.MisuseError, match="one statement"):
        db.execute("DELETE FROM t; DELETE FROM u")
    with pytest.raises(apsw.SQLError, match="syntax error"):
        db.execute("DELETE FRM t")
    with pytest.raises(apsw.BindingsError):
        db.execute("DELETE FROM t WHERE id = ?", ())
    assert next(db.execute("SELECT count(*) FROM t")) == (1,)
    db.executescript("""
        CREATE TRIGGER ti AFTER INSERT ON t BEGIN INSERT INTO u VALUES('a;b', 1); DELETE FROM u WHERE x = 1; END;
        INSERT INTO t VALUES(70, ';', '--'); /* done; */
    """)
    assert next(db.execute("SELECT count(*) FROM u")) == (4,)
    db.close()
    db.close()


def test_a_cursor_left_alone_holds_nothing(captured: Captured) -> None:
    """No cycle keeps a half-read statement alive: its snapshot ends with its last reference."""
    captured.db.execute("INSERT INTO u VALUES(1, 1), (2, 2)")
    other = connect(captured.path)
    gc.collect()
    gc.disable()
    try:
        other.execute("SELECT * FROM u").fetchone()
        captured.db.execute("INSERT INTO u VALUES(3, 3)")
        other.execute("INSERT INTO u VALUES(4, 4)")  # on an old snapshot this would be refused
    finally:
        gc.enable()
    other.close()


def test_ids_have_no_gap_and_tokens_are_random_by_connection(captured: Captured) -> None:
    others = [connect(captured.path) for _ in range(20)]
    for number, db in enumerate([captured.db, captured.db, *others]):
        db.execute("BEGIN")
        db.execute("INSERT INTO u VALUES(?, 1)", (number,))
        db.execute("ROLLBACK")
        db.execute("INSERT INTO u VALUES(?, 1)", (number,))
    for db in others:
        db.close()
    rows = captured.rows("SELECT id, token FROM _tranlog_outbox ORDER BY id")
    ids = [number for number, _ in rows]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    own, tokens = [token for _, token in rows[:-20]], [token for _, token in rows[-20:]]
    assert own == list(range(own[0], own[0] + len(own))), "a connection counts on"
    assert any(token < 0 for token in tokens) and any(token > 1 << 60 for token in tokens)
    tokens.sort()
    assert all(later - sooner > 1 << 20 for sooner, later in itertools.pairwise(tokens)), "each begins elsewhere"


def test_a_large_transaction_comes_in_fragments(tmp_path: Path) -> None:
    db = connect(tmp_path / "large.db", fragment_bytes=1000)
    db.execute("CREATE TABLE a(id INTEGER PRIMARY KEY, v)")
    db.execute("CREATE TABLE b(id INTEGER PRIMARY KEY, v)")
    with db:
        db.execute("INSERT INTO b VALUES(0, 'first')")
        for number in range(300):
            db.execute("INSERT INTO a VALUES(?, ?)", (number, "x" * 40))
            if number == 150:
                assert db.recorder.hook.bytes < 8000  # most of it is in the outbox by now
    with db:
        db.executemany("INSERT INTO a VALUES(?, ?)", ((number, "y" * 40) for number in range(1000, 1300)))
        assert db.recorder.hook.bytes < 8000
    db.execute("BEGIN")
    db.executemany("INSERT INTO a VALUES(?, ?)", ((number, "z" * 40) for number in range(2000, 2300)))
    db.execute("ROLLBACK")
    db.execute("UPDATE a SET v = 'one statement'")
    raw = apsw.Connection(str(tmp_path / "large.db"))
    sizes = [size for (size,) in raw.execute("SELECT length(changes) FROM _tranlog_outbox")]
    replica = Replica()
    assert replica.follow(raw) == 5
    assert content(replica.db) == content(raw)
    assert len(sizes) > 30 and max(sizes) < 1300
    assert headers(db.path)[2:] == [
        (UNKNOWN_SHARD, (("main", "b"), ("main", "a"))),
        ("main.a", (("main", "a"),)),
        ("main.a", (("main", "a"),)),
    ]
    db.close()
    raw.close()


WRITER = """
import sys
from tranlog.source.sqlite import connect
db = connect(sys.argv[1])
for number in range(int(sys.argv[3])):
    with db:
        db.execute("INSERT INTO t(a, b) VALUES(?, ?)", (sys.argv[2], f"{sys.argv[2]}{number}"))
        db.execute("UPDATE u SET y = y + 1")
db.close()
"""


def test_two_writer_processes(captured: Captured) -> None:
    captured.db.execute("INSERT INTO u VALUES(0, 0)")
    captured.transactions()
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, captured.path, name, "60"]) for name in ("p", "q")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    transactions = captured.transactions()
    assert len(transactions) == 120
    # in commit order: each update goes on from the one before
    assert [t[1] for t in transactions] == [("~", "u", (0, n), (0, n + 1)) for n in range(120)]


def test_a_busy_writer_leaves_others_their_turn(captured: Captured) -> None:
    """SQLite's own way of waiting sleeps through the moments in which the lock is free."""
    busy = subprocess.Popen([sys.executable, "-c", WRITER, captured.path, "busy", "1000000"])
    try:
        while captured.rows("SELECT count(*) FROM t") == [(0,)]:
            assert busy.poll() is None
        captured.db.set_busy_timeout(30_000)
        for number in range(20):
            captured.db.execute("INSERT INTO t(a, b) VALUES('mine', ?)", (number,))
        assert busy.poll() is None
    finally:
        busy.kill()
        busy.wait()


def test_the_busy_timeout_ends_waiting(captured: Captured) -> None:
    other = connect(captured.path, busy_timeout_s=0.01)
    captured.db.execute("BEGIN IMMEDIATE")
    with pytest.raises(apsw.BusyError):
        other.execute("INSERT INTO u VALUES(1, 1)")
    other.set_busy_timeout(0)
    with pytest.raises(apsw.BusyError):
        other.execute("BEGIN IMMEDIATE")
    captured.db.rollback()
    other.execute("INSERT INTO u VALUES(1, 1)")
    other.close()


@pytest.mark.long
def test_connections_that_prepare_the_same_database_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "fresh.db")
    code = "import sys; from tranlog.source.sqlite import connect; print(connect(sys.argv[1]).uuid)"
    first = [subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) for _ in range(4)]
    names = {process.communicate(timeout=60)[0] for process in first}
    assert len(names) == 1 and names.pop().strip()


def test_a_connection_is_a_connection(captured: Captured) -> None:
    assert isinstance(captured.db, SqliteConnection)

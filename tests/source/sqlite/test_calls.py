"""Who may call a connection, what it counts as SQLite does, and what a call leaves that an exception ended.

Proves: docs/decisions/0024-after-an-exception-in-the-writer.md. What an exception at any line leaves is shown by
tests/crash/test_sqlite_writer_crash.py.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from fix_effort import Effort
from fix_sqlite import Replica, content
from tranlog.compiled import why_plain
from tranlog.errors import SourceError
from tranlog.source.sqlite import SqliteConnection, connect
from tranlog.source.sqlite.calls import CallBrokenOffError, ConnectionOwnerError
from tranlog.source.sqlite.hook import RowHook
from tranlog.source.sqlite.transaction import WriterTransaction


class Place:
    """A captured database, and a replica of what its outbox says."""

    def __init__(self, path: Path) -> None:
        self.db: SqliteConnection = connect(path)
        self.raw = apsw.Connection(str(path))
        self.replica = Replica()
        self.db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b UNIQUE)")
        self.db.execute("CREATE TABLE u(x, y)")

    def is_followed(self) -> bool:
        """Whether the replica, having followed the outbox, is equal."""
        self.replica.follow(self.raw)
        return content(self.replica.db) == content(self.raw)

    def close(self) -> None:
        self.db.close()
        self.raw.close()
        self.replica.db.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "source.db")
    yield place
    place.close()


# --- exceptions ------------------------------------------------------------------------------------------


class _Once:
    """Raises at the `at`th event of a kind in one function."""

    def __init__(self, function: Callable[..., object], event: str, at: int, error: BaseException) -> None:
        self.code = function.__code__
        self.event, self.at, self.error = event, at, error

    def __call__(self, frame: FrameType, event: str, _: object) -> _Once | None:
        if frame.f_code is not self.code:
            return None
        if event == self.event:
            self.at -= 1
            if self.at == 0:
                raise self.error
        return self


@pytest.mark.skipif(why_plain is None, reason="compiled code has no lines; `make plain` runs this")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError(), RecursionError()])
@pytest.mark.parametrize("event", ["call", "line"])
@pytest.mark.parametrize("inside", [False, True])
def test_an_exception_in_the_hook_of_an_update_of_many_rows(
    place: Place, error: BaseException, event: str, inside: bool
) -> None:
    """SQLite does not hear of it: the row is changed, and would be missing in the log."""
    db = place.db
    db.execute("INSERT INTO t(id) VALUES(1), (2), (3), (4), (5)")
    if inside:
        db.execute("BEGIN")
    sys.settrace(_Once(RowHook.on_row, event, 3, error))
    try:
        with pytest.raises(type(error)):
            db.execute("UPDATE t SET a = id")
    finally:
        sys.settrace(None)
    assert not db.in_transaction
    assert db.execute("SELECT count(*) FROM t WHERE a IS NOT NULL").fetchone() == (0,)
    db.execute("UPDATE t SET a = 'again'")
    assert place.is_followed()


def test_an_exception_right_behind_a_commit(place: Place) -> None:
    """COMMIT took effect; the buffer must not be written with the next transaction again."""
    db = place.db
    db.execute("BEGIN")
    db.execute("INSERT INTO u VALUES(1, 1)")
    sys.settrace(_Once(WriterTransaction.reset, "line", 2, KeyboardInterrupt()))
    try:
        with pytest.raises(KeyboardInterrupt):
            db.execute("COMMIT")
    finally:
        sys.settrace(None)
    assert not db.in_transaction
    db.execute("INSERT INTO u VALUES(2, 2)")
    assert place.is_followed() and place.replica.transactions == 4


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a weak reference's callback
def test_real_signals_at_any_moment(place: Place, effort: Effort) -> None:
    """A timer's handler raises; a program that tries again has all rows once."""
    db = place.db
    db.executemany("INSERT INTO t(id, a) VALUES(?, 0)", [(n,) for n in range(300)])

    class Alarm(Exception):
        pass

    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    rung = done = 0
    try:
        begun = time.process_time()
        while time.process_time() - begun < effort(0.1, 0.7, 20.0) or rung < effort(5, 20, 500):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 * (rung % 23 + 1))
                    with db:
                        db.execute("UPDATE t SET a = a + 1")
                        db.execute("INSERT INTO u VALUES(?, 1)", (done,))
                    done += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except (Alarm, CallBrokenOffError):
                rung += 1
            if db.in_transaction:
                db.rollback()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert place.is_followed()
    ((counted,),) = db.execute("SELECT count(*) FROM u").fetchall()
    assert isinstance(counted, int) and counted >= done > 0
    assert db.execute("SELECT min(a), max(a) FROM t").fetchall() == [(counted, counted)]


def test_the_next_call_says_that_the_last_was_broken_off(place: Place) -> None:
    """An exception within what mends after another: only then does the next call have to."""
    db = place.db
    db.execute("BEGIN")
    db.execute("INSERT INTO u VALUES(1, 1)")

    def broken_off() -> None:
        sys.settrace(_Once(WriterTransaction.failed, "call", 1, KeyboardInterrupt()))
        try:
            with pytest.raises(KeyboardInterrupt):
                db.execute("INSERT INTO t VALUES(1, 1, 1), (1, 1, 1)")
        finally:
            sys.settrace(None)

    broken_off()
    with pytest.raises(CallBrokenOffError, match="rolled back"):
        db.execute("COMMIT")
    assert not db.in_transaction
    db.execute("BEGIN")
    broken_off()
    db.rollback()  # as it was going to
    db.execute("INSERT INTO u VALUES(2, 2)")
    assert place.is_followed()
    assert db.execute("SELECT x FROM u").fetchall() == [(2,)]


# --- one statement ---------------------------------------------------------------------------------------


def test_a_comment_behind_a_statement_is_none(place: Place) -> None:
    db = place.db
    db.execute("BEGIN; -- so")
    db.execute("INSERT INTO u VALUES(';', 1); -- one; two")
    db.execute("SAVEPOINT s; /* here */")
    db.executemany("INSERT INTO u VALUES(?, '/*'); -- many", [(1,), (2,)])
    db.execute("ROLLBACK TO s; -- back")
    db.execute("UPDATE u SET y = 2 /* ; */ ; ; ")
    with pytest.raises(apsw.MisuseError, match="one statement"):
        db.execute("DELETE FROM u; DELETE FROM t -- both")
    db.execute("COMMIT; -- done")
    assert db.execute("SELECT * FROM u; -- all").fetchall() == [(";", 2)]
    db.execute("CREATE TRIGGER tr AFTER INSERT ON u BEGIN SELECT ';'; SELECT 2; END; -- a trigger")
    assert place.is_followed()


@pytest.mark.parametrize("rows", [16, 40, 99, 100, 130])
@pytest.mark.parametrize("counts", ["INTEGER PRIMARY KEY", "INTEGER PRIMARY KEY AUTOINCREMENT"])
def test_rows_before_one_that_violates_a_foreign_key_keep_their_ids(place: Place, rows: int, counts: str) -> None:
    """The row that failed had a rowid already."""
    db = place.db
    db.execute("PRAGMA foreign_keys = ON")
    db.execute(f"CREATE TABLE c(id {counts}, p REFERENCES t)")
    db.execute("CREATE TRIGGER any AFTER INSERT ON u BEGIN SELECT 1; END")
    db.execute("INSERT INTO t(id) VALUES(1)")
    for first in ((), (5000,)):
        with db:
            for number in first:
                db.execute("INSERT INTO c(id) VALUES(?)", (number,))
            with pytest.raises(apsw.ConstraintError):
                db.executemany("INSERT INTO c(p) VALUES(?)", [(1,)] * (rows - 5) + [(2,)] + [(1,)] * 4)
        assert place.is_followed()


# --- what is counted -------------------------------------------------------------------------------------

COUNTED = """
SELECT 1
INSERT INTO t VALUES(7, 1, 1), (8, 2, 2), (9, 3, 3)
UPDATE t SET a = a + 10 WHERE id > 7
INSERT INTO u SELECT changes(), total_changes() WHERE changes() = 2
UPDATE t SET a = 1 WHERE id = 99
INSERT INTO u SELECT 5, 5 WHERE changes() = 0
BEGIN
UPDATE t SET a = a + 100
INSERT INTO u VALUES(changes(), total_changes())
UPDATE t SET a = 0 WHERE id = -1
INSERT INTO u VALUES(changes(), 0)
COMMIT
DELETE FROM u WHERE x = 77
INSERT INTO u VALUES(changes(), total_changes())
BEGIN
SELECT * FROM t
DELETE FROM u WHERE x = changes()
ROLLBACK
REPLACE INTO t VALUES(7, 111, 3)
CREATE TRIGGER tr AFTER UPDATE ON t BEGIN DELETE FROM u WHERE x = 12345;
 INSERT INTO u SELECT changes(), 1 WHERE changes() = 0; UPDATE u SET x = x; INSERT INTO u VALUES(changes(), 2); END
UPDATE t SET a = a + 1000
INSERT INTO u VALUES(changes(), total_changes())
INSERT INTO t VALUES(50, 1, 4), (51, 1, 4)
INSERT INTO u VALUES(changes(), total_changes())
INSERT OR FAIL INTO t VALUES(60, 1, 6), (61, 1, 6)
INSERT INTO u VALUES(changes(), total_changes())
CREATE TABLE c AS SELECT * FROM t
ALTER TABLE c ADD COLUMN more
DROP TABLE c
INSERT INTO u VALUES(changes(), total_changes())
DELETE FROM t
SAVEPOINT s
INSERT INTO t VALUES(1, 1, 1)
ROLLBACK TO s
RELEASE s
INSERT INTO u SELECT x, changes() FROM u
"""


def test_counts_are_those_of_sqlite(place: Place, tmp_path: Path) -> None:
    """`changes()`, `total_changes()`, `last_insert_rowid()`, in SQL and beside it; a cursor's lastrowid is its own."""
    plain = sqlite3.connect(tmp_path / "plain.db", isolation_level=None)
    db = place.db
    plain.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a, b UNIQUE)")
    plain.execute("CREATE TABLE u(x, y)")
    mine, other, theirs, others = db.cursor(), db.cursor(), plain.cursor(), plain.cursor()
    assert mine.lastrowid is None
    for number, sql in enumerate(COUNTED.strip().replace("\n ", " ").split("\n")):
        failed = []
        pair = (mine, theirs) if number % 3 else (other, others)
        for one in pair:
            try:
                one.execute(sql).fetchall()
                failed.append(False)
            except (apsw.ConstraintError, sqlite3.IntegrityError):
                failed.append(True)
        assert failed[0] == failed[1]
        asked = "SELECT changes(), total_changes(), last_insert_rowid()"
        ((changes, total, rowid),) = plain.execute(asked).fetchall()
        assert db.execute(asked).fetchall() == [(changes, total, rowid)], sql
        assert (db.changes(), db.total_changes(), db.last_insert_rowid()) == (changes, total, rowid), sql
        if sql.startswith(("INSERT", "REPLACE", "UPDATE", "DELETE")) and not failed[0]:
            assert pair[0].rowcount == pair[1].rowcount, sql
        if sql.startswith(("INSERT", "REPLACE")):
            assert pair[0].lastrowid == pair[1].lastrowid, sql
    assert db.execute("SELECT * FROM u").fetchall() == plain.execute("SELECT * FROM u").fetchall()
    plain.close()
    assert place.is_followed()


# --- threads and processes -------------------------------------------------------------------------------


def test_another_thread_is_refused(place: Place) -> None:
    """As by sqlite3, which has the same words for it: made in another thread."""
    db = place.db
    db.execute("BEGIN")
    rows = db.execute("SELECT 1")
    refused: list[str] = []

    def use() -> None:
        calls: list[Callable[[], Any]] = [
            *(db.cursor, db.close, rows.fetchone, rows.fetchall, rows.close, lambda: list(rows), db.__enter__),
            *(lambda: db.execute("INSERT INTO u VALUES(1, 1)"), lambda: db.execute("COMMIT"), db.commit, db.rollback),
            *(lambda: rows.executemany("INSERT INTO u VALUES(?, 1)", [(1,)]), lambda: db.executescript("SELECT 1")),
        ]
        for call in calls:
            try:
                call()
            except ConnectionOwnerError as exc:
                refused.append(str(exc))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert len(refused) == 13 and all("another thread" in why for why in refused)
    db.execute("INSERT INTO u VALUES(2, 2)")
    db.commit()
    assert place.is_followed()


def test_a_forked_child_is_refused_and_harms_nothing(place: Place) -> None:
    db = place.db
    with db:
        db.execute("INSERT INTO u VALUES(1, 1)")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(ConnectionOwnerError, match="another process"):
                    db.execute("INSERT INTO u VALUES('child', 1)")
                with pytest.raises(SourceError, match="Open one of its own"):
                    db.commit()
                db.__exit__(SystemExit, SystemExit(), None)
                db.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        db.execute("INSERT INTO u VALUES(2, 2)")
    assert place.is_followed()
    assert db.execute("SELECT x FROM u").fetchall() == [(1,), (2,)]

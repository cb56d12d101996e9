"""An exception, or a fork, at every line of SQLite's writer: what commits is in the outbox, once, and nothing else is.

A tracer counts the lines that a workload runs in `source/sqlite`, and in a life of its own for each raises there: in
the midst of a statement, a commit, the hook, and of what mends after an exception. The program goes on as a careless
or a careful one would. Then a replica that follows the outbox is equal to the database, what was acknowledged is there,
and the connection works.

Proves: docs/decisions/0024-after-an-exception-in-the-writer.md.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from fix_effort import Effort, few_of
from fix_sqlite import Replica, content
from tranlog.compiled import why_plain
from tranlog.errors import SourceError
from tranlog.source.sqlite import SqliteConnection, connect, cursor, recorder
from tranlog.source.sqlite.calls import CallBrokenOffError, ConnectionOwnerError

# Compiled code has no lines, so `make long` interrupts what is not compiled; `make plain` all of it.
pytestmark = [pytest.mark.long] if why_plain is None else []

SOURCES = str(Path(cursor.__file__).parent)  # of a module that is not compiled
MODULES = (
    "writer",
    "transaction",
    "writer_schema",
    "inserting",
    "settings",
    "calls",
    "cursor",
    "recorder",
    "hook",
    "outbox",
    "buffer",
    "bulk",
    "schema",
    "statement",
    "raw",
)
TABLES = """
CREATE TABLE mark(id INTEGER PRIMARY KEY);
CREATE TABLE t(id INTEGER PRIMARY KEY, a, b UNIQUE);
CREATE TABLE u(x, y);
CREATE TABLE w(k TEXT PRIMARY KEY, v) WITHOUT ROWID;
CREATE TABLE g(id INTEGER PRIMARY KEY, a, twice AS (a * 2) VIRTUAL);
CREATE TABLE c(id INTEGER PRIMARY KEY, p REFERENCES t DEFERRABLE INITIALLY DEFERRED, q REFERENCES t);
INSERT INTO t VALUES(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 5, 5);
INSERT INTO u VALUES(1, 1), (1, 1), (2, 2);
INSERT INTO g(id, a) VALUES(1, 1), (2, 2), (3, CAST(x'ff' AS TEXT));
"""


class Interrupted(Exception):
    """What a handler of a signal raises."""


RAISED: tuple[type[BaseException], ...] = (KeyboardInterrupt, Interrupted, MemoryError, RecursionError, LookupError)
MET: tuple[type[BaseException], ...] = (apsw.Error, SourceError, *RAISED)


class Life:
    """A program that writes through one connection; each step leaves a mark in its transaction."""

    def __init__(self, path: str, seed: int, fragment_bytes: int) -> None:
        self.db: SqliteConnection = connect(path, fragment_bytes=fragment_bytes, busy_timeout_s=0.1)
        self.random = random.Random(seed)
        self.acknowledged: list[int] = []
        self.number = 0
        self.broken_off = 0
        self.db.create_scalar_function("nested", self._nested, 1)
        self.db.execute("PRAGMA foreign_keys = ON")
        self.db.execute("PRAGMA synchronous = NORMAL")  # the power stays on here, and lives are many

    def _nested(self, value: object) -> object:
        self.db.execute("INSERT INTO u VALUES('nested', ?)", (value,))  # type: ignore[arg-type]
        return value

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction by BEGIN and COMMIT."""
        self.db.execute("BEGIN")
        yield
        self.db.execute("COMMIT")

    def refused(self, sql: str, rows: list[tuple[Any, ...]] | None = None) -> None:
        """Run a statement that SQLite refuses."""
        with suppress(apsw.ConstraintError):
            self.db.execute(sql) if rows is None else self.db.executemany(sql, rows)

    def one(self) -> None:
        self.db.execute("UPDATE t SET a = a + 1")
        self.db.execute("DELETE FROM u WHERE rowid = (SELECT max(rowid) FROM u)")

    def several(self) -> None:
        with self.transaction():
            self.db.execute("SELECT count(*) FROM t").fetchall()
            self.db.execute("UPDATE t SET a = a + 1 WHERE id > 1")
            self.refused("INSERT INTO t VALUES(50, 1, 50), (51, 1, 1)")
            self.refused("INSERT OR FAIL INTO t VALUES(60 + (SELECT count(*) FROM t), 1, NULL), (1, 1, 1)")
            self.db.execute("INSERT INTO w VALUES('k' || (SELECT count(*) FROM w), 1) RETURNING k").fetchall()
            self.db.execute("UPDATE w SET v = v + 1; -- a comment")

    def blocks(self) -> None:
        with self.db:
            self.db.execute("INSERT INTO u VALUES(3, 3)")
            with suppress(ZeroDivisionError), self.db:
                self.db.execute("UPDATE u SET y = 9")
                raise ZeroDivisionError
            with self.db:
                self.db.execute("INSERT INTO u VALUES(4, nested(4))")

    def many(self) -> None:
        with self.db:
            self.db.executemany("INSERT INTO t(a) VALUES(?)", [(n,) for n in range(20)])
            self.db.executemany("INSERT INTO u VALUES(?, ?)", ((n, "x" * 50) for n in range(8)))
            self.refused("INSERT INTO c(q) VALUES(?)", [(1,)] * 16 + [(99,)] + [(1,)])
            self.db.executemany("INSERT INTO u VALUES(?, 'y')", [(n,) for n in range(120)])

    def savepoints(self) -> None:
        self.db.execute("SAVEPOINT outer")
        self.db.execute("UPDATE g SET a = 7")
        self.db.execute("SAVEPOINT inner")
        self.db.execute("DELETE FROM g WHERE id = 2")
        self.db.execute("ROLLBACK TO inner")
        self.db.execute("INSERT INTO g(a) VALUES(5)")
        self.db.execute("RELEASE outer")

    def tables(self) -> None:
        name = f"made{self.number}"
        self.db.execute(f"CREATE TABLE {name} AS SELECT x, y FROM u LIMIT 2")
        with self.transaction():
            self.db.execute(f"ALTER TABLE {name} ADD COLUMN z DEFAULT 5")
            self.db.execute(f"INSERT INTO {name} VALUES(1, 2, 3)")
            self.db.execute("SAVEPOINT s")
            self.db.execute(f"CREATE TRIGGER gone AFTER INSERT ON {name} BEGIN DELETE FROM u WHERE x = 2; END")
            self.db.execute(f"INSERT INTO {name} VALUES(2, 2, 2)")
            self.db.execute("ROLLBACK TO s")
            self.db.execute(f"INSERT INTO {name} VALUES(4, 4, 4)")
            self.db.execute("CREATE TEMP TABLE u(x, y)")
            self.db.execute("INSERT INTO temp.u VALUES('temporary', 1)")
            self.db.execute("DROP TABLE temp.u")

    def refused_commit(self) -> None:
        self.db.execute("BEGIN")
        for number in range(12):
            self.db.execute("INSERT INTO c(p) VALUES(?)", (1000,))
            self.db.execute("INSERT INTO u VALUES(?, ?)", (number, "z" * 200))
        with suppress(apsw.ConstraintError):
            self.db.execute("COMMIT")
        self.db.execute("INSERT OR IGNORE INTO t(id) VALUES(1000)")
        self.db.execute("COMMIT")

    def large(self) -> None:
        self.db.execute("UPDATE u SET y = 'a text that takes some room' || rowid")

    def step(self, work: Callable[[], None]) -> None:
        """Do one step; what it acknowledges, being the whole, is noted."""
        self.number += 1
        with self.db:
            self.db.execute("INSERT INTO mark VALUES(?)", (self.number,))
        if not self.db.in_transaction:
            self.acknowledged.append(self.number)
        work()

    def live(self) -> None:
        """Do every step, whatever becomes of one; a careful program rolls back then, a careless one commits."""
        for work in (
            *(self.one, self.several, self.blocks, self.many, self.savepoints, self.tables, self.refused_commit),
            *(self.large, self.one),
        ):
            try:
                self.step(work)
            except BaseException as exc:
                if not isinstance(exc, MET):
                    raise
                self.broken_off += isinstance(exc, CallBrokenOffError)
                self.recover()

    def recover(self) -> None:
        """Go on after an exception."""
        with suppress(CallBrokenOffError):
            match self.random.randrange(3):
                case 0:
                    self.db.rollback()
                case 1:
                    self.commit()
                case _:
                    self.db.execute("INSERT INTO u VALUES('on', 'on')")

    def commit(self) -> None:
        """Commit what there is, or roll it back where a deferred constraint forbids that."""
        try:
            self.db.commit()
        except apsw.ConstraintError:
            self.db.rollback()


class Tracer:
    """Calls `act` at the `at`th line, call or return in our modules; counts them. A frame is traced from its call."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at = at
        self.act = act
        self.seen: list[tuple[str, int, str]] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> Tracer | None:
        place = frame.f_code.co_filename
        if not place.startswith(SOURCES) or Path(place).stem not in MODULES:
            return None
        if event != "exception":
            self.seen.append((place, frame.f_lineno, event))
            if len(self.seen) - 1 == self.at:
                sys.settrace(None)
                self.act()
        return self


class Lives:
    """Lives from the same beginning, each cut at another line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fragment_bytes = 300  # an entry of the buffer is one change, nearly always
        self.template = folder / "template.db"
        db = connect(self.template)
        db.executescript(TABLES)
        db.close()

    def live(self, at: int, act: Callable[[Life], None], seed: int = 0) -> Tracer:
        """Live once, with `act` at that line, and check what has become of it."""
        path = str(self.folder / "life.db")
        shutil.copy(self.template, path)
        life = Life(path, seed, self.fragment_bytes)
        tracer = Tracer(at, lambda: act(life))
        sys.settrace(tracer)
        try:
            life.live()
        finally:
            sys.settrace(None)
        check(life, path)
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(path + suffix)
        return tracer

    def places(self, seed: int) -> list[int]:
        """Return one line of each place that a life passes, at random where it passes it more than once."""
        seen = self.live(-1, lambda _: None).seen
        order = list(range(len(seen)))
        random.Random(seed).shuffle(order)
        return sorted({seen[at]: at for at in order}.values())


def check(life: Life, path: str) -> None:
    db = life.db
    if db.in_transaction:
        with suppress(CallBrokenOffError):
            life.commit()
    db.execute("INSERT INTO u VALUES('last', 'last')")
    db.close()
    assert life.broken_off <= 1
    raw = apsw.Connection(path)
    replica = Replica()
    replica.follow(raw)
    ours, theirs = content(raw), content(replica.db)
    assert ours == theirs, {
        name: (ours.get(name), theirs.get(name)) for name in ours | theirs if ours.get(name) != theirs.get(name)
    }
    marks = {number for (number,) in raw.execute("SELECT id FROM mark")}
    assert marks.issuperset(life.acknowledged)
    raw.close()
    replica.db.close()


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lives:
    monkeypatch.setattr(recorder, "SPILL_BYTES", 2000)
    return Lives(tmp_path)


def interrupt(lives: Lives, at: int, seed: int) -> bool:
    """Live with an exception at that line; return whether the life came to it: a few lines depend on the clock."""
    raised = RAISED[(at + seed) % len(RAISED)]

    def act(_: Life) -> None:
        raise raised("between two lines")

    try:
        return len(lives.live(at, act, seed=at + seed).seen) > at
    except BaseException as exc:
        exc.add_note(f"replay: interrupt(lives, {at}, {seed}), {raised.__name__}")
        raise


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("part", few_of([0, 1]))
def test_an_exception_at_a_sample_of_lines(lives: Lives, part: int, effort: Effort) -> None:
    """One occurrence of each, a quarter of all in `make test`; the slow form takes every line, as often as it runs."""
    lives.fragment_bytes = (300, 3000)[part]
    places = lives.places(seed=1)
    assert len(places) > 700
    reached = [interrupt(lives, at, part) for at in places[part :: effort(160 if why_plain is None else 8, 8, 8)]]
    assert sum(reached) > 0.8 * len(reached)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(1, 4))
def test_an_exception_at_every_line_whenever_it_runs(lives: Lives, seed: int) -> None:
    lives.fragment_bytes = (300, 3000)[seed % 2]
    for at in range(len(lives.live(-1, lambda _: None).seen)):
        interrupt(lives, at, seed)


def fork(life: Life) -> None:
    """Use the connection in a child in each way; leave nothing that its end would have done undone."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            calls: list[Callable[[], object]] = [
                *(lambda: life.db.execute("DELETE FROM t"), lambda: life.db.execute("COMMIT")),
                *(lambda: life.db.executemany("INSERT INTO u VALUES(?, 1)", [(1,)] * 20), life.db.cursor),
            ]
            for call in calls:
                with pytest.raises(ConnectionOwnerError, match="another process"):
                    call()
            life.db.close()
            vars(life.db).clear()
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def forks(lives: Lives, places: list[int]) -> None:
    for at in places:
        lives.live(at, fork)


@pytest.mark.timeout(600)
def test_a_fork_between_two_lines(lives: Lives, effort: Effort) -> None:
    """At a sample of them; the slow form forks at each."""
    forks(lives, lives.places(seed=2)[:: effort(400, 20, 20)])


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_fork_at_every_line(lives: Lives) -> None:
    forks(lives, lives.places(seed=3))


FORKING = """
import os, sys
from tranlog.source.sqlite import connect
db = connect(sys.argv[1], fragment_bytes=1000)
db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")
with db:
    db.executemany("INSERT INTO t(a) VALUES(?)", ((f"{n}" * 20,) for n in range(500)))
    rows = db.execute("SELECT * FROM t")
    next(rows)
    child = os.fork()
    if child == 0:
        sys.exit(3)  # leaves the block and ends the interpreter
    assert os.waitpid(child, 0)[1] == 3 << 8
    db.executemany("INSERT INTO t(a) VALUES(?)", ((f"{n}" * 20,) for n in range(500)))
db.execute("INSERT INTO t(a) VALUES('behind')")
db.close()
"""


def test_a_child_that_ends_inside_a_transaction_takes_nothing_back(tmp_path: Path) -> None:
    path = str(tmp_path / "forked.db")
    subprocess.run([sys.executable, "-c", FORKING, path], check=True, timeout=60)
    raw = apsw.Connection(path)
    replica = Replica()
    assert replica.follow(raw) == 3
    assert content(replica.db) == content(raw) and len(content(raw)["t"]) == 1001
    raw.close()

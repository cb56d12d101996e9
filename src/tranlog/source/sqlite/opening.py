"""Opening a captured SQLite database: WAL, durable, allowed past the guards, and patient with other writers.

Owns what every connection of ours has in common, `install`, and `strip_copy`, its contrary. The hard idea is patience:
SQLite's own busy handler soon sleeps a tenth of a second between two tries, while a busy writer leaves the lock free
for some microseconds at a time; so one of two writers can wait for ever. A try each millisecond gets its turn.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import apsw

from tranlog.clock import Clock, SystemClock
from tranlog.errors import SourceSetupError
from tranlog.source.sqlite.claim import PROGRESS_SUFFIX
from tranlog.source.sqlite.libraries import check_alone, watch
from tranlog.source.sqlite.raw import OUTBOX_TABLE, SCHEMA
from tranlog.source.sqlite.schema import (
    GUARD_PREFIX,
    SOURCE_TABLE,
    has_table,
    install_in,
    noted_marks,
    read_installed,
    read_schema,
    register_guard,
    table_marks,
)
from tranlog.source.sqlite.statement import quote
from tranlog.source.sqlite.triggers import CAPTURE_PREFIX, TABLES_TABLE

logger = logging.getLogger(__name__)

_RETRY_S = 0.001
_WAL_BYTES = 64 << 20
"""A WAL that one large transaction, or a reader that took long, has made larger is cut to this when it begins anew."""


def looking(path: str) -> apsw.Connection:
    """Open a database that is only read.

    It may write where its user may, so that its close takes away -wal and -shm, which it has made beside a database in
    WAL mode; a connection that may only read leaves them. Raises apsw's errors.
    """
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    db.execute("PRAGMA query_only = ON")
    return db


class Patience:
    """SQLite's busy handler: tries again each millisecond until `timeout_s` is over. Threads: as its connection."""

    __slots__ = ("_clock", "_since", "timeout_s")

    def __init__(self, timeout_s: float, clock: Clock) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        """Wait a moment; False when it was long enough."""
        now = self._clock.monotonic()
        if tries == 0:
            self._since = now
        if now - self._since >= self.timeout_s:
            return False
        self._clock.sleep(_RETRY_S)
        return True


def open_database(
    path: str, *, busy_timeout_s: float, clock: Clock, create: bool = True
) -> tuple[apsw.Connection, Patience]:
    """Open a plain connection in WAL mode with synchronous FULL, allowed to write guarded tables.

    Raises SourceSetupError for what is no database file of its own, and apsw's errors.
    """
    if path in ("", ":memory:") or path.startswith("file:"):
        raise SourceSetupError(why=f"{path!r} is no file of its own", remedy="Name a database file by its path")
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    check_alone(path)
    try:
        db = apsw.Connection(path, flags=flags)
    except apsw.CantOpenError as exc:
        raise SourceSetupError(why=f"{path} cannot be opened: {exc}", remedy="Check path and permissions") from exc
    watch(db)
    patience = Patience(busy_timeout_s, clock)
    try:
        db.set_busy_handler(patience)
        mode = _enter_wal(db, patience)
        if mode != "wal":
            raise SourceSetupError(
                why=f"{path} is in journal mode {mode} and cannot be put into WAL",
                remedy="Keep the database on a local disk and run `PRAGMA journal_mode=WAL` on it",
            )
        db.execute("PRAGMA main.synchronous=FULL")
        db.execute(f"PRAGMA main.journal_size_limit={_WAL_BYTES}").fetchall()
        register_guard(db)
    except apsw.NotADBError as exc:
        db.close()
        raise SourceSetupError(why=f"{path} is no SQLite database", remedy="Check the path") from exc
    except BaseException:
        db.close()
        raise
    return db, patience


def _enter_wal(db: apsw.Connection, patience: Patience) -> object:
    """Return the journal mode after asking for WAL. The change to it does not always ask the busy handler."""
    tries = 0
    while True:
        try:
            ((mode,),) = db.execute("PRAGMA main.journal_mode=WAL").fetchall()
            return mode
        except apsw.BusyError:
            if not patience(tries):
                raise
            tries += 1


@contextmanager
def db_transaction(db: apsw.Connection, *, write: bool) -> Iterator[None]:
    """A transaction of a plain connection, for reading or for writing: committed, or rolled back by what is raised."""
    db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def install(path: str | os.PathLike[str], *, by_trigger: bool | None = None) -> str:
    """Prepare a database for capture and return its uuid; adopt tables that a foreign program has made.

    Rows that such a table holds by now are taken for known to the target: copy them there first, or load the tables,
    which a warning names, afterwards. `by_trigger`: whether triggers capture what foreign programs write; None leaves
    it as it is, at first so that they are refused.
    """
    db, _ = open_database(os.fspath(path), busy_timeout_s=10.0, clock=SystemClock())
    try:
        adopted: list[str] = []
        with db_transaction(db, write=True):
            if has_table(db, SCHEMA, SOURCE_TABLE):
                noted, left = noted_marks(db), read_schema(db).unguarded
                marks = table_marks(db)
                adopted = sorted(left.union([name for name in marks if marks[name] != noted.get(name)]))
            install_in(db, by_trigger=by_trigger)
        if adopted:
            names = ",".join([f"{SCHEMA}.{name}" for name in adopted])
            said = "the log lacks what foreign programs did to tables: tranlog load --replace --tables %s path=%s"
            logger.warning(said, names, path)
        installed = read_installed(db, os.fspath(path))
        assert installed is not None
        return installed.uuid
    finally:
        db.close()


def strip_copy(path: str | os.PathLike[str]) -> list[str]:
    """Make a target of a copy of a captured database, and return the names of the triggers that went.

    Guards, claim and outbox go, since they are the source's; triggers, since what they write at the source arrives as
    rows. Raises SourceSetupError for a file that somebody has open: that may be the source itself.
    """
    found = _strip(os.fspath(path), ours_only=False, remedy="Give the copy's path, not the source's")
    return [trigger for trigger in found if not trigger.startswith(_OURS)]


def uninstall(path: str | os.PathLike[str]) -> list[str]:
    """Take capture's triggers, tables and progress file away; return the triggers' names.

    Raises SourceSetupError for a file that somebody has open: capture, or a writer whose changes would be missed.
    """
    name = os.fspath(path)
    found = _strip(name, ours_only=True, remedy="Stop capture and all writers, then run this command again")
    with suppress(FileNotFoundError):
        os.unlink(name + PROGRESS_SUFFIX)
    return found


_OURS = (GUARD_PREFIX, CAPTURE_PREFIX)


def _strip(name: str, *, ours_only: bool, remedy: str) -> list[str]:
    """Drop triggers and our tables; return the triggers' names."""
    check_alone(name)
    db = apsw.Connection(name, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        try:
            db.execute("PRAGMA journal_mode=DELETE").fetchall()  # SQLite leaves WAL for the only connection
        except apsw.BusyError as exc:
            raise SourceSetupError(why=f"{name} is open elsewhere", remedy=remedy) from exc
        listed: list[Any] = db.execute(
            "SELECT name FROM main.sqlite_schema WHERE type = 'trigger' ORDER BY name"
        ).fetchall()
        found = [trigger for (trigger,) in listed if trigger.startswith(_OURS) or not ours_only]
        with db_transaction(db, write=True):
            for trigger in found:
                db.execute(f"DROP TRIGGER main.{quote(trigger)}")
            for table in (OUTBOX_TABLE, SOURCE_TABLE, TABLES_TABLE):
                db.execute(f"DROP TABLE IF EXISTS main.{table}")
        return found
    finally:
        db.close()

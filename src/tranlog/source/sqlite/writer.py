"""The connection through which a captured SQLite database is written.

Owns `connect`, and with it the promise that whatever commits through it stands in `_tranlog_outbox`, written in the
same SQLite transaction. What a statement does to that transaction is `transaction`'s; reading the outbox is `source`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import apsw

from tranlog.clock import Clock, SystemClock, check_seconds
from tranlog.source.packer import FRAGMENT_BYTES
from tranlog.source.sqlite.calls import Calls
from tranlog.source.sqlite.cursor import CALLS, Bindings, SqliteCursor, split_script
from tranlog.source.sqlite.inserting import BulkInserts
from tranlog.source.sqlite.opening import open_database
from tranlog.source.sqlite.outbox import OutboxWriter
from tranlog.source.sqlite.recorder import RowRecorder
from tranlog.source.sqlite.schema import install_in, read_installed, read_schema
from tranlog.source.sqlite.transaction import WriterTransaction
from tranlog.source.sqlite.writer_schema import WriterSchema

FLUSH_FRAGMENTS = 4
"""From so many fragments' bytes on, outside any savepoint, a transaction's changes go to the outbox before COMMIT."""


def connect(
    path: str | os.PathLike[str],
    *,
    busy_timeout_s: float = 10.0,
    fragment_bytes: int = FRAGMENT_BYTES,
    clock: Clock | None = None,
) -> SqliteConnection:
    """Open a SQLite database for writing under capture, creating and preparing it where that was not done yet.

    Preparing means: WAL mode, our two tables, a guard on every table. Rows that are there by then belong to the
    state from which a target starts; they are not captured.

    Units: `busy_timeout_s` is how long a statement waits for another writer. `fragment_bytes` bounds one record.
    Raises: SourceSetupError, ValueError; and apsw's errors, as its own connection would.
    Threads: one at a time.
    """
    return SqliteConnection(os.fspath(path), busy_timeout_s=busy_timeout_s, fragment_bytes=fragment_bytes, clock=clock)


class SqliteConnection:
    """A connection to a captured database, with the surface of the usual ones.

    Outside a transaction each statement commits by itself; BEGIN, COMMIT, ROLLBACK, SAVEPOINT and their kin work as
    in SQLite. `with connection:` is a transaction (BEGIN IMMEDIATE), or a savepoint inside one: it commits, or rolls
    back when the block raises. One statement per `execute`; `executescript` takes many. A statement that writes has
    run to its end when `execute` returns, its RETURNING rows wait in the cursor.

    The changes of an open transaction are held in their raw form: up to about 4 MiB in memory, then in the outbox;
    inside savepoints and for one statement they wait in a temporary file instead, since they may still be taken back.

    Shape: every committed transaction that changed rows of the main database's tables, or its schema, is one
    transaction of the log. PRAGMAs, temporary, virtual and attached tables are not captured.
    Raises: apsw's errors as SQLite gives them; SourceSetupError for what capture cannot allow; UnsupportedTypeError
    for a row that cannot be carried, and then the transaction is rolled back. CallBrokenOffError when an exception of
    another kind, a signal's, ended the call before in its midst.
    Threads: the one that opened it, as in `sqlite3`, and no process forked from it; any other gets
    ConnectionOwnerError.
    """

    def __init__(
        self,
        path: str,
        *,
        busy_timeout_s: float = 10.0,
        fragment_bytes: int = FRAGMENT_BYTES,
        clock: Clock | None = None,
    ) -> None:
        check_seconds("busy_timeout_s", busy_timeout_s)
        self.path = path
        clock = clock if clock is not None else SystemClock()
        self._db, self._patience = open_database(path, clock=clock, busy_timeout_s=busy_timeout_s)
        try:
            installed = read_installed(self._db, path)
            if installed is None:
                self._db.execute("BEGIN IMMEDIATE")
                install_in(self._db)
                self._db.execute("COMMIT")
                installed = read_installed(self._db, path)
                assert installed is not None
            self.uuid = installed.uuid
            with self._db:
                schema = read_schema(self._db)
            self._db.set_last_insert_rowid(0)
        except BaseException:
            self._db.close()
            raise
        self._calls = Calls(path)
        self.recorder = RowRecorder(self._db, schema)
        """The changes of the open transaction that are not in the outbox yet."""
        self.schema = WriterSchema(self._db, self.recorder, schema, clock)
        """The schema as the last statement that wrote has seen it."""
        outbox = OutboxWriter(self._db, self.recorder, uuid=self.uuid, piece_bytes=fragment_bytes, clock=clock)
        self._transaction = WriterTransaction(
            self._db, self._calls, self.recorder, self.schema, outbox, flush_bytes=FLUSH_FRAGMENTS * fragment_bytes
        )
        self._inserts = BulkInserts(self._db, self.recorder, self.schema, self._transaction, piece_bytes=fragment_bytes)
        self._withs: list[str | None] = []
        for name, count in (("changes", self.changes), ("total_changes", self.total_changes)):
            self._db.create_scalar_function(name, lambda *_, count=count: count(), 0, flags=apsw.SQLITE_INNOCUOUS)

    def cursor(self) -> SqliteCursor:
        """Return a new cursor."""
        self._calls.check_owner()
        return SqliteCursor(self, self._transaction, self._inserts)

    def execute(self, sql: str, bindings: Bindings | None = None) -> SqliteCursor:
        """Run one statement in a new cursor and return it."""
        return SqliteCursor(self, self._transaction, self._inserts).execute(sql, bindings)

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> SqliteCursor:
        """Run one statement once for each of the bindings.

        Inside a transaction an INSERT of bare placeholders with its rows in a list costs least: see decision 0008.
        """
        return SqliteCursor(self, self._transaction, self._inserts).executemany(sql, bindings)

    def executescript(self, script: str) -> SqliteCursor:
        """Run statements one after the other, dropping their rows; the first that fails ends it."""
        cursor = self.cursor()
        for statement in split_script(script):
            cursor.execute(statement).fetchall()
        return cursor

    def commit(self) -> None:
        """Commit the open transaction; without one nothing happens."""
        if self._db.in_transaction:
            self.execute("COMMIT")

    def rollback(self) -> None:
        """Roll back the open transaction; without one nothing happens."""
        if self._db.in_transaction:
            self.execute("ROLLBACK")

    def __enter__(self) -> SqliteConnection:
        depth = len(self._withs)
        name = f"_tranlog_with_{depth}" if self._db.in_transaction else None
        try:
            self._withs.append(name)
            self.execute("BEGIN IMMEDIATE" if name is None else f"SAVEPOINT {name}")
            return self
        except BaseException:
            del self._withs[depth:]
            self._undo_with(name)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        name = None
        try:
            name = self._withs.pop()
            if kind is None:
                self._transaction.mend(CALLS)
            if kind is None and self._is_in(name):
                self.execute("COMMIT" if name is None else f"RELEASE {name}")
        except BaseException:
            self._undo_with(name)
            raise
        if kind is not None:
            self._undo_with(name)

    def _is_in(self, name: str | None) -> bool:
        """Whether the block's transaction or savepoint is there; else the block, or SQLite, ended it already."""
        return self._db.in_transaction and (name is None or self.recorder.buffer.holds(name))

    def _undo_with(self, name: str | None) -> None:
        if self._calls.disowned:
            return  # it is another process's
        if name is None:
            self.rollback()
        elif self._is_in(name):
            self.execute(f"ROLLBACK TO {name}")
            self.execute(f"RELEASE {name}")

    def close(self) -> None:
        """Close; an open transaction is rolled back. Closing twice is harmless, and so is closing in a forked process.

        The file and the transaction are the parent process's: there nothing is touched.
        """
        if not self._calls.disowned:
            self._calls.check_owner()
            self._db.close(True)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._db.in_transaction

    def changes(self) -> int:
        """Return how many rows the last INSERT, UPDATE or DELETE changed, as SQLite counts."""
        return self._transaction.changes()

    def total_changes(self) -> int:
        """Return how many rows were changed since the connection was opened, without our own."""
        return self._transaction.total_changes()

    def last_insert_rowid(self) -> int:
        """Return the rowid of the last row inserted."""
        return self._db.last_insert_rowid()

    def interrupt(self) -> None:
        """Make a running statement fail. Callable from another thread."""
        self._db.interrupt()

    def set_busy_timeout(self, milliseconds: int) -> None:
        """Set how long a statement waits for another writer."""
        self._patience.timeout_s = milliseconds / 1000

    def create_scalar_function(
        self, name: str, callback: Callable[..., Any] | None, numargs: int = -1, *, deterministic: bool = False
    ) -> None:
        """Register an SQL function, or remove it with None."""
        self._inserts.know_own_functions()
        self._db.create_scalar_function(name, callback, numargs, deterministic=deterministic)

    def create_aggregate_function(self, name: str, factory: Callable[[], Any] | None, numargs: int = -1) -> None:
        """Register an aggregate function, or remove it with None; see apsw for what the factory returns."""
        self._inserts.know_own_functions()
        self._db.create_aggregate_function(name, factory, numargs)

    def create_collation(self, name: str, callback: Callable[[str, str], int] | None) -> None:
        """Register a collation, or remove it with None."""
        self._inserts.know_own_functions()
        self._db.create_collation(name, callback)

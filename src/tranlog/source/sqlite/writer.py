"""The connection through which a captured SQLite database is written.

Owns `connect`, and with it the promise that whatever commits through it stands in `_tranlog_outbox`, written in the
same SQLite transaction. Leaves reading the outbox to `sqlite`. The hard idea: SQL may not run in SQLite's commit
hook, so COMMIT is seen coming: every statement passes a tracer before its first step, and a statement outside a
transaction is put into one of its own. What a failing statement leaves behind is never guessed from its text.

The rule for exceptions, which may come between any two lines (a signal's): SQLite is asked what there is. A statement
that raised is cut from the buffer, or stands in it whole, where SQLite's word says which; in any other case the
transaction is rolled back. A call that ended before it could do that is known by `Connection._call`, and the next one
does it.

Source: design/sources.md, "SQLite, the embedded default".
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import get_ident
from types import TracebackType
from typing import Any, cast

import apsw

from tranlog.change import TableMap
from tranlog.clock import Clock, SystemClock
from tranlog.errors import SourceError, SourceSetupError
from tranlog.source.packer import FRAGMENT_BYTES
from tranlog.source.sqlite.bulk import BoundRows, BulkInsert, bulk_insert
from tranlog.source.sqlite.cursor import CALLS, Bindings, SqliteCursor, split_script
from tranlog.source.sqlite.hook import RowHook
from tranlog.source.sqlite.opening import open_database
from tranlog.source.sqlite.outbox import OutboxWriter
from tranlog.source.sqlite.raw import SCHEMA, raw_row
from tranlog.source.sqlite.recorder import RowRecorder, SourceUncertainError
from tranlog.source.sqlite.schema import (
    OUTBOX_TABLE,
    SOURCE_TABLE,
    SqliteSchema,
    TableStates,
    guard_tables,
    has_table,
    install_in,
    note_tables,
    quote,
    read_insert_facts,
    read_installed,
    read_schema,
    schema_version,
    table_states,
)
from tranlog.source.sqlite.statement import (
    PlainInsert,
    SqliteStatementKind,
    fold,
)

logger = logging.getLogger(__name__)

FLUSH_FRAGMENTS = 4
"""From so many fragments' bytes on, outside any savepoint, a transaction's changes go to the outbox before COMMIT."""

_OTHER = SqliteStatementKind.OTHER
_BEGIN = (
    SqliteStatementKind.BEGIN
)  # names of this module: looking a member up in its class costs more than the comparison
_COMMIT = SqliteStatementKind.COMMIT
_ROLLBACK = SqliteStatementKind.ROLLBACK
_BULKS_MOST = 1000
_PARTS_OF_PIECE = 8  # rows that are noted together take this part of a piece at most
_ROWS_WITHOUT_GUARDS = 100  # a row costs half as much again with them; to change it, all statements are prepared anew
_ROWID_MOST = (1 << 63) - 1
_NO_THREAD = 0
_LEFT_ALONE = "Open one of its own there, with connect(path)"


@dataclass(eq=False, kw_only=True)
class ConnectionOwnerError(SourceError):
    """A connection was used where it was not opened: in another thread, or in a forked process."""

    path: str
    where: str

    def __str__(self) -> str:
        return f"this connection to {self.path} was opened in another {self.where}. {_LEFT_ALONE}"


@dataclass(eq=False, kw_only=True)
class CallBrokenOffError(SourceError):
    """The call before was broken off in its midst by an exception, and its transaction was rolled back."""

    path: str

    def __str__(self) -> str:
        return (
            f"an exception broke off the last call on the connection to {self.path}, in the midst of its work: the "
            "open transaction was rolled back. Begin it again"
        )


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
    Raises: SourceSetupError; and apsw's errors, as its own connection would.
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
        self.path = path
        self._clock = clock if clock is not None else SystemClock()
        self._db, self._patience = open_database(path, clock=self._clock, busy_timeout_s=busy_timeout_s)
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
                self._schema = read_schema(self._db)
            self._db.set_last_insert_rowid(0)
        except BaseException:
            self._db.close()
            raise
        self._recorder = RowRecorder(self._db, self._schema)
        self._hook = self._recorder.hook
        self._buffer = self._recorder.buffer
        self._outbox = OutboxWriter(
            self._db, self._recorder, uuid=self.uuid, piece_bytes=fragment_bytes, clock=self._clock
        )
        self._flush_bytes = FLUSH_FRAGMENTS * fragment_bytes
        self._thread = get_ident()
        self._call: SqliteCursor | None = None  # whose call is in progress; one that was broken off stays here
        self._running = 0  # writing statements in progress; more than one when an SQL function runs SQL
        self._checked = False  # the write lock is held and the schema known
        self._ddl_seen = False
        self._tables_before = TableStates({}, {})  # before the first DDL of the transaction
        self._schema_stale = False
        self._by_savepoint = False  # the transaction was opened by SAVEPOINT: the last RELEASE commits it
        self._changes_of_setup = self._db.total_changes()
        self._changes_before: int | None = 0  # what changes() would say without our own statements
        self._withs: list[str | None] = []
        self._familiar: dict[str, SqliteStatementKind] = {}
        self._part_bytes = self._hook.entry_bytes = fragment_bytes // _PARTS_OF_PIECE
        self._bulks: dict[PlainInsert, BulkInsert | None] = {}  # under this schema
        self._own_functions = False  # functions or collations of the user's, which may run SQL
        self._see_rows()
        self._db.set_rollback_hook(self._reset_transaction)
        for name, count in (("changes", self.changes), ("total_changes", self.total_changes)):
            self._db.create_scalar_function(name, lambda *_, count=count: count(), 0, flags=apsw.SQLITE_INNOCUOUS)
        _connections.add(self)

    # --- the surface that people know ---

    def cursor(self) -> SqliteCursor:
        """Return a new cursor."""
        return SqliteCursor(self)

    def execute(self, sql: str, bindings: Bindings | None = None) -> SqliteCursor:
        """Run one statement in a new cursor and return it."""
        return SqliteCursor(self).execute(sql, bindings)

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> SqliteCursor:
        """Run one statement once for each of the bindings.

        Inside a transaction an INSERT of bare placeholders with its rows in a list costs least: see decision 0008.
        """
        return SqliteCursor(self).executemany(sql, bindings)

    def executescript(self, script: str) -> SqliteCursor:
        """Run statements one after the other, dropping their rows; the first that fails ends it."""
        cursor = SqliteCursor(self)
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
                self._mend()
            if kind is None and self._is_in(name):
                self.execute("COMMIT" if name is None else f"RELEASE {name}")
        except BaseException:
            self._undo_with(name)
            raise
        if kind is not None:
            self._undo_with(name)

    def _is_in(self, name: str | None) -> bool:
        """Whether the block's transaction or savepoint is there; else the block, or SQLite, ended it already."""
        return self._db.in_transaction and (name is None or self._buffer.holds(name))

    def _undo_with(self, name: str | None) -> None:
        if self._thread == _NO_THREAD:
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
        if self._thread != _NO_THREAD:
            self._check_owner()
            self._db.close(True)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._db.in_transaction

    def changes(self) -> int:
        """Return how many rows the last INSERT, UPDATE or DELETE changed, as SQLite counts."""
        run = self._call
        if self._changes_before is None or (run is not None and self._has_counted(run)):
            return self._db.changes()  # perhaps asked inside a statement, in a trigger that has changed something
        return self._changes_before

    def _has_counted(self, run: SqliteCursor) -> bool:
        """Whether SQLite has counted changes since a statement began."""
        return run.writes and (self._db.total_changes(), self._db.changes()) != (run.total, run.changes)

    def total_changes(self) -> int:
        """Return how many rows were changed since the connection was opened, without our own."""
        return self._db.total_changes() - self._changes_of_setup - self._outbox.rows_written

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
        self._has_own_functions()
        self._db.create_scalar_function(name, callback, numargs, deterministic=deterministic)

    def create_aggregate_function(self, name: str, factory: Callable[[], Any] | None, numargs: int = -1) -> None:
        """Register an aggregate function, or remove it with None; see apsw for what the factory returns."""
        self._has_own_functions()
        self._db.create_aggregate_function(name, factory, numargs)

    def create_collation(self, name: str, callback: Callable[[str, str], int] | None) -> None:
        """Register a collation, or remove it with None."""
        self._has_own_functions()
        self._db.create_collation(name, callback)

    def _has_own_functions(self) -> None:
        self._own_functions = True
        self._bulks.clear()

    # --- who may call, and what a call that was broken off has left ---

    def _check_owner(self) -> None:
        if get_ident() != self._thread:
            raise ConnectionOwnerError(path=self.path, where="process" if self._thread == _NO_THREAD else "thread")

    def _is_calling(self, cursor: SqliteCursor) -> bool:
        """Whether the call on a cursor is still going on, below this one: SQL that runs in an SQL function."""
        frame = sys._getframe(2).f_back  # that one may be a new call on the same cursor
        while frame is not None and not (frame.f_code in CALLS and frame.f_locals["self"] is cursor):
            frame = frame.f_back
        return frame is not None

    def _mend(self, *, rolls_back: bool = False) -> bool:
        """Roll back what a call that was broken off has left, if one was; return whether there was a transaction.

        Raises CallBrokenOffError for it, unless the caller rolls back anyway.
        """
        if self._call is None or self._is_calling(self._call):
            return False
        lost = self._db.in_transaction
        self._see_rows()
        if lost:
            self._db.execute("ROLLBACK")
        self._running = 0
        self._reset_transaction()
        self._after_pragma()
        self._after_attach()
        self._call = None
        if lost and not rolls_back:
            raise CallBrokenOffError(path=self.path)
        return lost

    # --- a statement's life; called by Cursor ---

    def _before_special(self, run: SqliteCursor, inner: apsw.Cursor) -> None:
        """Get ready for a statement of a kind of its own; what it raises keeps the statement from running."""
        kind = run.kind
        if kind is _COMMIT:
            if self._db.in_transaction:
                self._before_commit()
        elif kind is _BEGIN or kind is _ROLLBACK:
            pass
        elif kind is SqliteStatementKind.CREATE or kind is SqliteStatementKind.DDL:
            if inner.is_readonly or inner.is_explain:
                run.lazy = True
            elif not run.writes:
                self._before_write(run)
                if not self._ddl_seen:
                    self._tables_before = table_states(self._db)
                run.versions = self._versions()
        elif kind is SqliteStatementKind.RELEASE:
            if self._by_savepoint and self._buffer.outermost(run.savepoint):
                self._before_commit()
        elif kind is SqliteStatementKind.SAVEPOINT:
            run.opens = not self._db.in_transaction
        elif kind is SqliteStatementKind.ATTACH or kind is SqliteStatementKind.VACUUM:
            self._hook.others = True

    def _before_write(self, run: SqliteCursor) -> None:
        db = self._db
        if self._unseen:
            self._see_rows()
        if not db.in_transaction:
            run.own_transaction = True
            db.execute("BEGIN IMMEDIATE")
        if not self._checked:
            # The write lock first: from then on nobody else changes the schema under this transaction.
            if db.txn_state(SCHEMA) != apsw.SQLITE_TXN_WRITE:
                db.blob_open(SCHEMA, SOURCE_TABLE, "uuid", 1, True).close()  # unlike a statement it counts no changes
            if self._schema_stale or schema_version(db) != self._schema.version:
                self._use_schema(read_schema(db, self._schema))
                self._schema_stale = False
            self._checked = True
        if self._running:
            self._hook.pack()
        elif self._hook.bytes > self._flush_bytes and not self._buffer.savepoints:
            self._flush()
        buffer = self._buffer
        run.mark = buffer.spilled + len(buffer.entries)
        run.total = db.total_changes()
        run.changes = db.changes()
        run.running = self._running
        run.writes = True
        self._running += 1

    def _each(self, run: SqliteCursor, bindings: Iterable[Bindings]) -> Iterator[Bindings]:
        """Yield the bindings of an `executemany` in a transaction.

        Asking for the next one says that those before are done. So the tracer has to see only the first statement, and
        need not be asked for each.
        """
        first = traced = True
        for values in bindings:
            if first:
                first = False
            elif run.writes:
                if traced:
                    run._inner.exec_trace = None
                    traced = False
                self._between_rows(run)
            yield values

    def _between_rows(self, run: SqliteCursor) -> None:
        """Note that the last statement of an `executemany` ran to its end, and that another one comes."""
        recorder, buffer = self._recorder, self._buffer
        if not self._db.in_transaction:
            raise apsw.SQLError("the transaction ended while executemany ran in it")
        if recorder.unread is not None:
            recorder.read_unread()
        held = self._hook.settle()
        self._changes_before = None
        run.rows_changed += self._db.changes()
        if held > self._flush_bytes and self._running == 1 and not buffer.savepoints:
            self._flush()
        run.mark = buffer.spilled + len(buffer.entries)
        run.total = self._db.total_changes()

    # --- many rows at once ---

    def _insert_many(
        self, run: SqliteCursor, inner: apsw.Cursor, insert: PlainInsert, given: Sequence[Bindings]
    ) -> None:
        """Run an INSERT for each of the bindings, in a transaction; what it can without the hook goes without it."""
        self._before_write(run)
        bulk = self._bulk_of(insert)
        at = 0
        while at < len(given):
            if at:
                self._between_rows(run)
            taken = len(given) if bulk is None else bulk.take(given, at, self._part_bytes)
            if bulk is not None and not isinstance(taken, int):
                self._insert_bound(run, inner, bulk, taken)
                at += len(taken.rows)
                continue
            assert isinstance(taken, int)
            inner.executemany(run.sql, self._each(run, given[at : at + taken]))
            inner.fetchall()
            at += taken

    def _bulk_of(self, insert: PlainInsert) -> BulkInsert | None:
        """Return the judge of an INSERT's rows under the schema of now; None where they must be seen one by one."""
        if self._running > 1:
            return None
        if self._hook.others:  # a temporary table of that name, a temporary trigger: no schema version tells
            shades = "SELECT 1 FROM temp.sqlite_schema WHERE type = 'trigger' OR name = ? COLLATE NOCASE LIMIT 1"
            if self._db.execute(shades, (insert.table,)).fetchall():
                return None
        if insert not in self._bulks:
            if len(self._bulks) >= _BULKS_MOST:
                self._bulks.clear()
            name = fold(insert.table)
            plan = next((plan for table, plan in self._schema.plans.items() if fold(table) == name), None)
            bulk = None
            if plan is not None and plan.captured:
                facts = read_insert_facts(self._db, plan)
                bulk = bulk_insert(insert, plan.map, facts, own_functions=self._own_functions)
            self._bulks[insert] = bulk
        return self._bulks[insert]

    def _insert_bound(self, run: SqliteCursor, inner: apsw.Cursor, bulk: BulkInsert, bound: BoundRows) -> None:
        """Insert rows that are stored as they are bound: unseen by the hook, noted together."""
        db, hook, table = self._db, self._hook, bulk.table
        highest: int | None = None
        if bound.counted:
            highest = self._highest(table)
            if highest is not None and highest > _ROWID_MOST - len(bound.rows):  # then SQLite takes any that is free
                inner.executemany(run.sql, self._each(run, bound.rows))
                inner.fetchall()
                return
        before = db.total_changes()
        # Whatever ends what follows before the rows are noted, be it a signal: the transaction must not commit.
        hook.poison = uncertain = SourceUncertainError(table=table.name)
        failed = True
        try:
            self._unseen = True
            db.preupdate_hook(None)
            if self._schema.triggers and len(bound.rows) >= _ROWS_WITHOUT_GUARDS:
                db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            inner.executemany(run.sql, bound.rows)
            inner.fetchall()
            failed = False
        finally:
            self._see_rows()
            if db.in_transaction:
                # What stands is what came before the row that failed; each row is a statement of its own.
                done = db.total_changes() - before
                first: int | None = None
                if bound.counted and done:  # a row that failed has left its rowid as the last one
                    first = cast("int", self._highest(table) if failed else db.last_insert_rowid()) - done + 1
                certain = done == len(bound.rows) or (failed and done < len(bound.rows))
                if certain and (first is None or first > (0 if highest is None else highest)):
                    if done:
                        try:
                            self._recorder.add_rows(table.table, bulk.head(bound, done), bulk.order, first)
                        except BaseException as exc:
                            hook.poison = exc
                            raise
                        run.rows_changed += done - 1  # the last one is counted like that of any statement
                    run.mark, run.total = len(self._buffer), before + done
                    hook.poison = None
        if hook.poison is uncertain:
            raise uncertain

    def _highest(self, table: TableMap) -> int | None:
        """Return the largest rowid in a table whose key is the rowid."""
        key = quote(table.columns[table.primary_key[0]].name)
        ((found,),) = self._db.execute(f"SELECT max({key}) FROM main.{quote(table.table)}").fetchall()
        assert found is None or isinstance(found, int)
        return found

    def _see_rows(self) -> None:
        """Have the hook called for each row again, and triggers run if there are any.

        The guards are none: they are for others, and each row would pay for them.
        """
        self._db.preupdate_hook(self._hook.on_row)
        self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, int(self._schema.triggers))
        self._unseen = False

    def _use_schema(self, schema: SqliteSchema) -> None:
        triggers = self._schema.triggers
        self._schema = schema
        self._bulks.clear()
        self._recorder.use(schema)
        if schema.triggers != triggers:
            self._see_rows()

    def _after_statement(self, run: SqliteCursor) -> None:
        """Note that a statement ran to its end."""
        if run.writes:
            recorder = self._recorder
            if recorder.unread is not None:
                recorder.read_unread()
            self._hook.settle()
            if self._call is not run:
                raise CallBrokenOffError(path=self.path)  # one inside it was, and nobody has said so
            self._running = run.running
            if run.kind is _OTHER:
                self._changes_before = None
                run.rows_changed += self._db.changes()
        if run.kind is not _OTHER:
            self._after_special(run)
        if run.own_transaction:
            self._commit_own()

    def _after_special(self, run: SqliteCursor) -> None:
        kind = run.kind
        if kind is _BEGIN:
            return
        if kind is _COMMIT or kind is _ROLLBACK:
            self._reset_transaction()
            return
        match kind:
            case SqliteStatementKind.CREATE | SqliteStatementKind.DDL:
                if run.writes:
                    self._after_ddl(run)
            case SqliteStatementKind.SAVEPOINT:
                self._by_savepoint = self._by_savepoint or run.opens
                self._buffer.savepoint(run.savepoint)
            case SqliteStatementKind.RELEASE:
                if self._db.in_transaction:
                    self._buffer.release(run.savepoint)
                else:
                    self._reset_transaction()
            case SqliteStatementKind.ROLLBACK_TO:
                self._buffer.rollback_to(run.savepoint)
                self._schema_may_be_back()
            case SqliteStatementKind.PRAGMA:
                self._after_pragma()
            case SqliteStatementKind.ATTACH:
                self._after_attach()
            case _:
                pass

    def _statement_failed(self, run: SqliteCursor, error: BaseException) -> None:
        """Bring the buffer to what a statement that raised has left in the database, or roll back."""
        db, recorder, hook, buffer = self._db, self._recorder, self._hook, self._buffer
        if run.writes:
            self._running = run.running
            if self._has_counted(run):
                self._changes_before = None
        if not db.in_transaction:
            self._reset_transaction()
            return
        kind = run.kind
        if hook.poison is None and run.writes:
            recorder.read_unread(failed=True)
            hook.pack()
        if self._outbox.finishing and not run.own_transaction:
            if self._outbox.exact:  # a COMMIT that did not: a deferred constraint, a statement in progress
                self._outbox.take_back()
            else:
                hook.poison = error
        elif run.writes and hook.poison is None:
            if not _is_certain(error) or (run.versions and run.versions != self._versions()):
                if db.total_changes() == run.total and not run.versions:
                    buffer.cut(run.mark)
                else:
                    hook.poison = error
            elif len(buffer) > run.mark and recorder.kept(run.mark) is False:
                buffer.cut(run.mark)
            self._schema_may_be_back()
        elif kind is SqliteStatementKind.PRAGMA or kind is SqliteStatementKind.ATTACH:
            if not isinstance(error, SourceSetupError):
                self._after_pragma()
                self._after_attach()
        elif kind is not _OTHER and kind is not _ROLLBACK and not isinstance(error, _REFUSALS):
            hook.poison = error  # BEGIN, SAVEPOINT, RELEASE, ROLLBACK TO: refused they change nothing
        if hook.poison is not None:
            self._abandon(error)
        elif run.own_transaction:
            if len(buffer):
                self._commit_own()
            else:
                db.execute("ROLLBACK")

    def _schema_may_be_back(self) -> None:
        """Look at the schema again: a change of it may have been undone.

        Its number does not tell: a rollback puts it back, and the next change, of whomever, takes the same again.
        """
        if self._ddl_seen:
            self._checked = False
            self._schema_stale = True

    def _abandon(self, error: BaseException) -> None:
        """Roll back what can no longer be captured rightly, and raise why, if that is not what the caller raises."""
        poison = self._hook.poison
        assert poison is not None
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._reset_transaction()
        if isinstance(error, SourceError) or not isinstance(error, Exception):
            poison = error  # what says more by itself; and KeyboardInterrupt and its like stay what they are
        poison.add_note("tranlog: the transaction was rolled back")
        if poison is not error:
            raise poison from error

    def _reset_transaction(self) -> None:
        """Forget the open transaction, which has ended. Also SQLite's rollback hook: no SQL here."""
        self._schema_may_be_back()
        self._recorder.reset()
        self._outbox.reset()
        self._checked = False
        self._ddl_seen = False
        self._by_savepoint = False

    # --- schema, settings ---

    def _after_ddl(self, run: SqliteCursor) -> None:
        """Record a statement that changed the schema, and guard what it made."""
        db, known, recorder, hook = self._db, self._schema, self._recorder, self._hook
        assert run.versions is not None
        (main, temporary), (main_before, temporary_before) = self._versions(), run.versions
        if temporary != temporary_before:
            hook.others = True  # a temporary object
        if main == main_before:
            return  # or IF NOT EXISTS, or another database's
        # Whatever ends what follows: the schema has changed, and the log must say so.
        hook.poison = uncertain = SourceUncertainError(table="the schema")
        created = run.kind is SqliteStatementKind.CREATE and known.version == main_before
        schema = read_schema(db, known, created=created)
        for name in (SOURCE_TABLE, OUTBOX_TABLE):
            if name not in schema.texts:
                raise SourceSetupError(
                    why=f"a statement would remove {name}", remedy="Leave the tables of capture alone"
                )
        for name, plan in schema.plans.items():
            if not plan.captured and known.plans.get(name) is not plan:
                raise SourceSetupError(
                    why=f"table {plan.map.name} would be WITHOUT ROWID and have a virtual generated column: SQLite "
                    "does not tell its changes",
                    remedy="Make the column STORED, or the table an ordinary one",
                )
        made = schema.plans.keys() - known.plans.keys() if run.kind is SqliteStatementKind.CREATE else set()
        adopted = [t for t in schema.unguarded if t in made or t in known.plans.keys() - known.unguarded]
        if adopted:
            schema = guard_tables(db, schema, adopted)
        text = run.sql.strip().rstrip(";").rstrip()
        for name in made:  # the stored text: without IF NOT EXISTS, and for AS SELECT the columns that came out
            text = next(str(sql) for kind, _, sql in schema.texts[fold(name)] if kind == "table")
        self._ddl_seen = True
        self._use_schema(schema)
        recorder.add_statement(text, self._clock.now_ms())
        for name in made:  # rows of CREATE TABLE ... AS SELECT, which the hook does not report
            for row in schema.plans[name].read(db):
                recorder.add_row(name, raw_row(row))
        if hook.poison is uncertain:
            hook.poison = None

    def _versions(self) -> tuple[int, int]:
        """Return the numbers of the main schema and of the temporary one, which every change raises."""
        return schema_version(self._db), schema_version(self._db, "temp")

    def _after_pragma(self) -> None:
        """Hold what durability and capture rest on, whatever a PRAGMA has changed."""
        db = self._db
        wanted = (
            *(("main.journal_mode", "wal"), ("main.synchronous", 2), ("locking_mode", "normal")),
            ("legacy_alter_table", 0),
        )
        for name, value in wanted:
            ((now,),) = db.execute(f"PRAGMA {name}").fetchall()
            if name == "main.synchronous" and now in (1, 2, 3):
                if now == 1 and self._outbox.synced:
                    logger.warning(
                        "synchronous=NORMAL: a loss of power may take the last commits of this connection path=%s",
                        self.path,
                    )
                self._outbox.synced = now != 1  # else capture syncs the WAL first, so that no log gets ahead
            if now == value or (name == "main.synchronous" and now in (1, 3)):
                continue
            db.execute(f"PRAGMA {name} = {value}").fetchall()
            db.execute("SELECT 1 FROM main.sqlite_schema LIMIT 1").fetchall()  # with the next use a lock is let go
            if name == "legacy_alter_table":
                why = "a RENAME would leave other tables' references as they are, and at the target change them"
            else:
                why = "the log would get ahead of the database, or capture be kept out"
            raise SourceSetupError(
                why=f"with PRAGMA {name} = {now} {why}",
                remedy=f"It was put back to {value}",
            )

    def _after_attach(self) -> None:
        """Refuse to attach a captured database; in a transaction, which keeps it attached, each COMMIT does."""
        try:
            self._check_attached()
        except SourceSetupError:
            if not self._db.in_transaction:
                for name in self._attached_captured():
                    self._db.execute(f"DETACH {quote(name)}")
            raise

    def _check_attached(self) -> None:
        """Refuse a captured database beside the main one: what is written there through this connection is missed."""
        for name in self._attached_captured():
            raise SourceSetupError(
                why=f"the attached database {name!r} is captured itself, and writes to it would be missed",
                remedy="Detach it, outside a transaction, and open it by a connection of its own",
            )

    def _attached_captured(self) -> list[str]:
        names = [name for name in self._db.db_names() if name not in (SCHEMA, "temp")]
        return [name for name in names if has_table(self._db, name, SOURCE_TABLE)]

    # --- the outbox ---

    def _flush(self) -> None:
        """Move the changes of a growing transaction to the outbox, where ROLLBACK undoes them like the rest."""
        hook = self._hook
        if self._changes_before is None:
            self._changes_before = self._db.changes()
        tables = ", ".join(self._recorder.table_names())
        hook.poison = SourceUncertainError(table=tables)  # until all of it is written
        try:
            self._outbox.flush()
        except Exception as exc:
            hook.poison = exc
            raise
        hook.poison = None

    def _before_commit(self) -> None:
        """Write what the transaction changed into the outbox, in the transaction itself."""
        if self._hook.others:
            self._check_attached()
        if self._outbox.open or len(self._buffer):
            if self._changes_before is None:
                self._changes_before = self._db.changes()
            if self._ddl_seen:
                note_tables(self._db, self._tables_before)
                self._outbox.rows_written += 1
            self._outbox.finish()

    def _commit_own(self) -> None:
        """Commit the transaction that one statement outside any has got."""
        try:
            self._before_commit()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._reset_transaction()
            raise
        self._reset_transaction()


def _is_certain(error: BaseException) -> bool:
    """Whether a statement that raised this has told the hook of each row that it has changed.

    SQLite's own errors say so, and so does what a function of the user's has raised: SQLite called it, and undid the
    statement. Anything else, a signal's exception, may have come between any two lines of ours, also of the hook.
    """
    if isinstance(error, apsw.Error):
        return True
    trace = error.__traceback__
    module = __name__
    while trace is not None:
        if trace.tb_frame.f_code in _HOOK:
            return False
        module = trace.tb_frame.f_globals.get("__name__", "")
        trace = trace.tb_next
    return not module.startswith("tranlog.")


_HOOK = [getattr(method, "__code__", None) for method in (RowHook.on_row, RowHook.pack)]  # compiled they have no lines
_REFUSALS = (apsw.SQLError, apsw.BusyError, apsw.ConstraintError, apsw.BindingsError, SourceSetupError)
_connections: weakref.WeakSet[SqliteConnection] = weakref.WeakSet()


def _after_fork() -> None:
    """Let go of the parent's connections in a forked process, without closing what is shared with the parent.

    A rollback here would change the parent's wal-index. So they are never destroyed, not even when the process ends.
    """
    for connection in _connections:
        connection._thread = _NO_THREAD
        for kept in (connection._db, connection._buffer.file):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


os.register_at_fork(after_in_child=_after_fork)

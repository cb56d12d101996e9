"""The connection through which a captured SQLite database is written.

Owns `connect`, and with it the promise that whatever commits through it stands in `_tranlog_outbox`, written in the
same SQLite transaction. Leaves reading the outbox to `sqlite`. The hard idea: SQL may not run in SQLite's commit
hook, so COMMIT is seen coming: every statement passes a tracer before its first step, and a statement outside a
transaction is put into one of its own. What a failing statement leaves behind is never guessed from its text.

Source: design/sources.md, "SQLite, the embedded default".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias, cast

import apsw

from tranlog.clock import Clock, SystemClock
from tranlog.errors import SourceSetupError
from tranlog.source.packer import FRAGMENT_BYTES
from tranlog.source.sqlite.bulk import ROWS_LEAST, BoundRows, BulkInsert, bulk_insert
from tranlog.source.sqlite.opening import open_database
from tranlog.source.sqlite.outbox import OutboxWriter
from tranlog.source.sqlite.raw import SCHEMA, raw_row
from tranlog.source.sqlite.recorder import RowRecorder, SourceUncertainError
from tranlog.source.sqlite.schema import (
    OUTBOX_TABLE,
    SOURCE_TABLE,
    SqliteSchema,
    guard_tables,
    has_table,
    install_in,
    note_tables,
    quote,
    read_insert_facts,
    read_installed,
    read_schema,
    schema_version,
    table_marks,
    typed_row,
)
from tranlog.source.sqlite.statement import PlainInsert, StatementKind, classify, fold, is_blank, plain_insert

logger = logging.getLogger(__name__)

Bindings: TypeAlias = Sequence[Any] | Mapping[str, Any]

FLUSH_FRAGMENTS = 4
"""From so many fragments' bytes on, outside any savepoint, a transaction's changes go to the outbox before COMMIT."""

_OTHER = StatementKind.OTHER
_BEGIN = StatementKind.BEGIN  # names of this module: looking a member up in its class costs more than the comparison
_COMMIT = StatementKind.COMMIT
_ROLLBACK = StatementKind.ROLLBACK
_FAMILIAR_KINDS = frozenset((_OTHER, _BEGIN, _COMMIT, _ROLLBACK))
_FAMILIAR_MOST = 1000
_FAMILIAR_LENGTH = 1000  # of a text in characters: a program makes longer ones anew each time
_BULKS_MOST = 1000
_PARTS_OF_PIECE = 8  # rows that are noted together take this part of a piece at most
_ROWS_WITHOUT_GUARDS = 100  # a row costs half as much again with them; to change it, all statements are prepared anew
_ROWID_MOST = (1 << 63) - 1
_NO_ROWS: Iterator[tuple[Any, ...]] = iter(())
_TAKE_WRITE_LOCK = f"DELETE FROM main.{OUTBOX_TABLE} WHERE 0"


def connect(
    path: str | os.PathLike[str],
    *,
    busy_timeout_s: float = 10.0,
    fragment_bytes: int = FRAGMENT_BYTES,
    clock: Clock | None = None,
) -> Connection:
    """Open a SQLite database for writing under capture, creating and preparing it where that was not done yet.

    Preparing means: WAL mode, our two tables, a guard on every table. Rows that are there by then belong to the
    state from which a target starts; they are not captured.

    Units: `busy_timeout_s` is how long a statement waits for another writer. `fragment_bytes` bounds one record.
    Raises: SourceSetupError; and apsw's errors, as its own connection would.
    Threads: one at a time.
    """
    return Connection(os.fspath(path), busy_timeout_s=busy_timeout_s, fragment_bytes=fragment_bytes, clock=clock)


class Connection:
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
    for a row that cannot be carried, and then the transaction is rolled back.
    Threads: one at a time.
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
        except BaseException:
            self._db.close()
            raise
        self._recorder = RowRecorder(self._db, self._schema)
        self._buffer = self._recorder.buffer
        self._outbox = OutboxWriter(
            self._db, self._recorder, uuid=self.uuid, piece_bytes=fragment_bytes, clock=self._clock
        )
        self._flush_bytes = FLUSH_FRAGMENTS * fragment_bytes
        self._running = 0  # writing statements in progress; more than one when an SQL function runs SQL
        self._checked = False  # the write lock is held and the schema known
        self._ddl_seen = False
        self._tables_before: dict[str, int] = {}  # before the first DDL of the transaction
        self._schema_stale = False
        self._by_savepoint = False  # the transaction was opened by SAVEPOINT: the last RELEASE commits it
        self._changes_of_setup = self._db.total_changes()
        self._changes_before: int | None = None  # what changes() would say without our own statements
        self._withs: list[str | None] = []
        self._familiar: dict[str, StatementKind] = {}
        self._part_bytes = fragment_bytes // _PARTS_OF_PIECE
        self._bulks: dict[PlainInsert, BulkInsert | None] = {}  # under this schema
        self._own_functions = False  # functions or collations of the user's, which may run SQL
        self._see_rows()
        self._db.set_rollback_hook(self._reset_transaction)
        self._db.create_scalar_function("changes", lambda *_: self.changes(), 0, flags=apsw.SQLITE_INNOCUOUS)

    # --- the surface that people know ---

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        return Cursor(self)

    def execute(self, sql: str, bindings: Bindings | None = None) -> Cursor:
        """Run one statement in a new cursor and return it."""
        return Cursor(self).execute(sql, bindings)

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> Cursor:
        """Run one statement once for each of the bindings.

        Inside a transaction an INSERT of bare placeholders with its rows in a list costs least: see decision 0008.
        """
        return Cursor(self).executemany(sql, bindings)

    def executescript(self, script: str) -> Cursor:
        """Run statements one after the other, dropping their rows; the first that fails ends it."""
        cursor = Cursor(self)
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

    def __enter__(self) -> Connection:
        name = f"_tranlog_with_{len(self._withs)}" if self._db.in_transaction else None
        self.execute("BEGIN IMMEDIATE" if name is None else f"SAVEPOINT {name}")
        self._withs.append(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        name = self._withs.pop()
        if not self._db.in_transaction or (name is not None and not self._buffer.holds(name)):
            return  # the block, or SQLite, ended it already
        if kind is None:
            try:
                self.execute("COMMIT" if name is None else f"RELEASE {name}")
                return
            except BaseException:
                self._undo_with(name)
                raise
        self._undo_with(name)

    def _undo_with(self, name: str | None) -> None:
        if not self._db.in_transaction:
            return
        if name is None:
            self.execute("ROLLBACK")
        elif self._buffer.holds(name):
            self.execute(f"ROLLBACK TO {name}")
            self.execute(f"RELEASE {name}")

    def close(self) -> None:
        """Close; an open transaction is rolled back. Closing twice is harmless."""
        self._db.close(True)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._db.in_transaction

    def changes(self) -> int:
        """Return how many rows the last INSERT, UPDATE or DELETE changed, as SQLite counts."""
        return self._db.changes() if self._changes_before is None else self._changes_before

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

    # --- a statement's life; called by Cursor ---

    def _before_special(self, run: Cursor, inner: apsw.Cursor) -> None:
        """Get ready for a statement of a kind of its own; what it raises keeps the statement from running."""
        kind = run.kind
        if kind is _COMMIT:
            if self._db.in_transaction:
                self._before_commit()
        elif kind is _BEGIN or kind is _ROLLBACK:
            pass
        elif kind is StatementKind.CREATE or kind is StatementKind.DDL:
            if inner.is_readonly or inner.is_explain:
                run.lazy = True
            elif not run.writes:
                self._before_write(run)
                if not self._ddl_seen:
                    self._tables_before = table_marks(self._db)
        elif kind is StatementKind.RELEASE:
            if self._by_savepoint and self._buffer.outermost(run.savepoint):
                self._before_commit()
        elif kind is StatementKind.SAVEPOINT:
            run.opens = not self._db.in_transaction
        elif kind is StatementKind.ATTACH or kind is StatementKind.VACUUM:
            self._recorder.others = True

    def _before_write(self, run: Cursor) -> None:
        db = self._db
        if self._unseen:
            self._see_rows()
        if not db.in_transaction:
            db.execute("BEGIN IMMEDIATE")
            run.own_transaction = True
        if not self._checked:
            # The write lock first: from then on nobody else changes the schema under this transaction.
            if db.txn_state(SCHEMA) != apsw.SQLITE_TXN_WRITE:
                db.execute(_TAKE_WRITE_LOCK)
            if self._schema_stale or schema_version(db) != self._schema.version:
                self._use_schema(read_schema(db))
                self._schema_stale = False
            self._checked = True
        if self._recorder.bytes > self._flush_bytes and not self._running and not self._buffer.savepoints:
            self._flush()
        buffer = self._buffer
        run.mark = buffer.spilled + len(buffer.entries)
        run.writes = True
        self._running += 1
        self._changes_before = None

    def _each(self, run: Cursor, bindings: Iterable[Bindings]) -> Iterator[Bindings]:
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

    def _between_rows(self, run: Cursor) -> None:
        """Note that the last statement of an `executemany` ran to its end, and that another one comes."""
        recorder, buffer = self._recorder, self._buffer
        if not self._db.in_transaction:
            raise apsw.SQLError("the transaction ended while executemany ran in it")
        if recorder.unread is not None:
            recorder.read_unread()
        if recorder.poison is not None:
            raise recorder.poison
        before = self._changes_before
        run.rows_changed += self._db.changes() if before is None else before
        self._changes_before = None
        if recorder.bytes > self._flush_bytes and self._running == 1 and not buffer.savepoints:
            self._flush()
        run.mark = buffer.spilled + len(buffer.entries)

    # --- many rows at once ---

    def _insert_many(self, run: Cursor, inner: apsw.Cursor, insert: PlainInsert, given: Sequence[Bindings]) -> None:
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
        if self._recorder.others:  # a temporary table of that name, a temporary trigger: no schema version tells
            shades = "SELECT 1 FROM temp.sqlite_schema WHERE type = 'trigger' OR name = ? COLLATE NOCASE LIMIT 1"
            if self._db.execute(shades, (insert.table,)).fetchall():
                return None
        if insert not in self._bulks:
            if len(self._bulks) >= _BULKS_MOST:
                self._bulks.clear()
            name = fold(insert.table)
            plan = next((plan for table, plan in self._schema.plans.items() if fold(table) == name), None)
            bulk = None
            if plan is not None and not (plan.by_select and plan.place_key is not None):
                facts = read_insert_facts(self._db, plan)
                bulk = bulk_insert(insert, plan.map, facts, own_functions=self._own_functions)
            self._bulks[insert] = bulk
        return self._bulks[insert]

    def _insert_bound(self, run: Cursor, inner: apsw.Cursor, bulk: BulkInsert, bound: BoundRows) -> None:
        """Insert rows that are stored as they are bound: unseen by the hook, noted together."""
        db, recorder, table = self._db, self._recorder, bulk.table
        highest: int | None = None
        if bound.counted:
            key = quote(table.columns[table.primary_key[0]].name)
            ((found,),) = db.execute(f"SELECT max({key}) FROM main.{quote(table.table)}").fetchall()
            assert found is None or isinstance(found, int)
            highest = found
            if highest is not None and highest > _ROWID_MOST - len(bound.rows):  # then SQLite takes any that is free
                inner.executemany(run.sql, self._each(run, bound.rows))
                inner.fetchall()
                return
        before = db.total_changes()
        # Whatever ends what follows before the rows are noted, be it a signal: the transaction must not commit.
        recorder.poison = uncertain = SourceUncertainError(table=table.name)
        failed = True
        try:
            self._unseen = True
            db.preupdate_hook(None)
            if len(bound.rows) >= _ROWS_WITHOUT_GUARDS:
                db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            inner.executemany(run.sql, bound.rows)
            inner.fetchall()
            failed = False
        finally:
            self._see_rows()
            if db.in_transaction:
                # What stands is what came before the row that failed; each row is a statement of its own.
                done = db.total_changes() - before
                first = db.last_insert_rowid() - done + 1 if bound.counted and done else None
                certain = done == len(bound.rows) or (failed and done < len(bound.rows))
                if certain and (first is None or first > (0 if highest is None else highest)):
                    if done:
                        try:
                            recorder.add_rows(table.table, bulk.head(bound, done), bulk.order, first)
                        except BaseException as exc:
                            recorder.poison = exc
                            raise
                        run.rows_changed += done - 1  # the last one is counted like that of any statement
                    run.mark = len(self._buffer)
                    recorder.poison = None
        if recorder.poison is uncertain:
            raise uncertain

    def _see_rows(self) -> None:
        """Have the hook called for each row again, and triggers run."""
        self._db.preupdate_hook(self._recorder.on_row)
        self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
        self._unseen = False

    def _use_schema(self, schema: SqliteSchema) -> None:
        self._schema = schema
        self._bulks.clear()
        self._recorder.use(schema)

    def _after_statement(self, run: Cursor) -> None:
        """Note that a statement ran to its end."""
        if run.writes:
            self._running -= 1
            recorder = self._recorder
            if recorder.unread is not None:
                recorder.read_unread()
            if recorder.poison is not None:
                self._abandon(None)
            run.rows_changed += self._db.changes()
        if run.kind is not _OTHER:
            self._after_special(run)
        if run.own_transaction:
            self._commit_own()

    def _after_special(self, run: Cursor) -> None:
        kind = run.kind
        if kind is _BEGIN:
            return
        if kind is _COMMIT or kind is _ROLLBACK:
            self._reset_transaction()
            return
        match kind:
            case StatementKind.CREATE | StatementKind.DDL:
                if run.writes:
                    self._after_ddl(run)
            case StatementKind.SAVEPOINT:
                self._by_savepoint = self._by_savepoint or run.opens
                self._buffer.savepoint(run.savepoint)
            case StatementKind.RELEASE:
                if self._db.in_transaction:
                    self._buffer.release(run.savepoint)
                else:
                    self._reset_transaction()
            case StatementKind.ROLLBACK_TO:
                self._buffer.rollback_to(run.savepoint)
                self._schema_may_be_back()
            case StatementKind.PRAGMA:
                self._after_pragma()
            case StatementKind.ATTACH:
                self._after_attach()
            case _:
                pass

    def _statement_failed(self, run: Cursor, error: BaseException) -> None:
        """Bring the buffer to what a statement that raised has left in the database."""
        if run.writes:
            self._running -= 1
        if not self._db.in_transaction:
            self._reset_transaction()
            return
        if self._recorder.poison is None and run.writes:
            self._recorder.read_unread(failed=True)
        if self._recorder.poison is not None:
            self._abandon(error)
        if self._outbox.take_back():
            pass  # a COMMIT that did not: a deferred constraint, a statement in progress
        elif run.writes:
            if len(self._buffer) > run.mark:
                kept = self._recorder.kept(run.mark)
                if kept is None:
                    self._abandon(error)
                elif not kept:
                    self._buffer.cut(run.mark)
            self._schema_may_be_back()
            if run.own_transaction:
                if len(self._buffer):
                    self._commit_own()
                else:
                    self._db.execute("ROLLBACK")
        elif run.own_transaction:
            self._db.execute("ROLLBACK")
        elif run.kind in (StatementKind.SAVEPOINT, StatementKind.RELEASE, StatementKind.ROLLBACK_TO):
            # Refused statements change nothing; after anything else the stack of savepoints is unknown.
            if not isinstance(error, apsw.SQLError | apsw.BusyError | apsw.ConstraintError):
                self._recorder.poison = error
                self._abandon(error)

    def _schema_may_be_back(self) -> None:
        """Look at the schema again: a change of it may have been undone.

        Its number does not tell: a rollback puts it back, and the next change, of whomever, takes the same again.
        """
        if self._ddl_seen:
            self._checked = False
            self._schema_stale = True

    def _abandon(self, error: BaseException | None) -> None:
        """Roll back what can no longer be captured rightly, and raise why."""
        poison = self._recorder.poison
        assert poison is not None
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        self._reset_transaction()
        poison.add_note("tranlog: the transaction was rolled back")
        if poison is error:
            return  # the caller raises it
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

    def _after_ddl(self, run: Cursor) -> None:
        """Record a statement that changed the schema, and guard what it made."""
        db = self._db
        known = self._schema
        if schema_version(db) == known.version:
            self._recorder.others = True
            return  # IF NOT EXISTS, or a temporary table
        try:
            schema = read_schema(db)
            for name in (SOURCE_TABLE, OUTBOX_TABLE):
                if not has_table(db, SCHEMA, name):
                    raise SourceSetupError(
                        why=f"a statement would remove {name}", remedy="Leave the tables of capture alone"
                    )
            made = schema.plans.keys() - known.plans.keys() if run.kind is StatementKind.CREATE else set()
            adopted = sorted(t for t in schema.unguarded if t in made or t in known.plans.keys() - known.unguarded)
            if adopted:
                guard_tables(db, adopted)
                schema = read_schema(db)
            self._use_schema(schema)
            self._ddl_seen = True
            text = run.sql.strip().rstrip(";").rstrip()
            for name in made:  # the stored text: without IF NOT EXISTS, and for AS SELECT the columns that came out
                for (stored,) in db.execute("SELECT sql FROM main.sqlite_schema WHERE name = ?", (name,)):
                    text = str(stored)
            recorder = self._recorder
            recorder.add_statement(text, self._clock.now_ms())
            for name in made:  # rows of CREATE TABLE ... AS SELECT, which the hook does not report
                for row in db.execute(schema.plans[name].select_typed):
                    recorder.add_row(name, raw_row(typed_row(row)))
        except BaseException as exc:
            self._recorder.poison = exc
            self._abandon(None)

    def _after_pragma(self) -> None:
        """Hold what durability and capture rest on, whatever a PRAGMA has changed."""
        db = self._db
        wanted = (("main.journal_mode", "wal"), ("main.synchronous", 2), ("locking_mode", "normal"))
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
            raise SourceSetupError(
                why=f"PRAGMA {name} = {now} would let the log get ahead of the database, or keep capture out",
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
        try:
            self._outbox.flush()
        except BaseException as exc:
            self._recorder.poison = exc
            raise

    def _before_commit(self) -> None:
        """Write what the transaction changed into the outbox, in the transaction itself."""
        if self._recorder.others:
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


def split_script(script: str) -> Iterator[str]:
    """Yield the statements of a script; a trigger's body is one with its head."""
    start = at = 0
    while True:
        at = script.find(";", at)
        if at < 0:
            break
        at += 1
        if apsw.complete(script[start:at]):
            if not is_blank(script[start:at]):
                yield script[start:at]
            start = at
    if not is_blank(script[start:]):
        yield script[start:]


class Cursor:
    """Runs statements and holds their rows. Threads: as its connection.

    A statement is known by its text when it comes again: SQLite need not be asked what it is, by a tracer that sees it
    before its first step. The tracer is taken off after each statement, since it makes a cycle: a cursor whose rows
    nobody fetched must end with its last reference, not hold its snapshot until the garbage is collected.
    """

    __slots__ = (
        *("_inner", "_rows", "connection", "description", "kind", "lazy", "mark", "opens", "own_transaction"),
        *("rowcount", "rows_changed", "savepoint", "sql", "writes"),
    )

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rowcount = -1
        self.description: tuple[tuple[Any, ...], ...] | None = None
        """Name and declared type of each column that the last statement returns; None where it returns none."""
        self._inner = connection._db.cursor()
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def _begin(self, sql: str) -> None:
        """Forget the last statement."""
        self.sql = sql
        self.description = None
        self.lazy = False  # reads only: its rows are fetched as they are asked for
        self.writes = False
        self.own_transaction = False
        self.opens = False  # a SAVEPOINT that opens a transaction
        self.mark = 0
        self.rows_changed = 0

    def _trace(self) -> None:
        """Have `_before_step` called for the statement."""
        verdict = classify(self.sql)
        self.kind = verdict.kind
        self.savepoint = verdict.savepoint
        self._inner.exec_trace = self._before_step

    def _before_step(self, inner: apsw.Cursor, sql: str, bindings: object) -> bool:
        if len(sql) < len(self.sql) and not is_blank(self.sql[len(sql) :]):
            raise apsw.SQLError("one statement at a time: use executescript for more")
        self.description = inner.get_description() or None
        if self.kind is not _OTHER:
            self.connection._before_special(self, inner)
        elif inner.is_readonly or inner.is_explain:
            self.lazy = True
        elif not self.writes:
            self.connection._before_write(self)
        return True

    def execute(self, sql: str, bindings: Bindings | None = None) -> Cursor:
        """Run one statement."""
        connection, inner = self.connection, self._inner
        familiar = connection._familiar
        kind = familiar.get(sql)
        self._begin(sql)
        try:
            if kind is None:
                self._trace()
                inner.execute(sql, bindings)
                inner.exec_trace = None
                if self.lazy:
                    self._rows = None
                    self.rowcount = -1
                    return self
                if self.description is not None:
                    self._rows = iter(inner.fetchall())
                else:
                    self._rows = _NO_ROWS
                    kind = self.kind
                    if kind in _FAMILIAR_KINDS and len(sql) <= _FAMILIAR_LENGTH:
                        if len(familiar) >= _FAMILIAR_MOST:
                            familiar.clear()
                        familiar[sql] = kind
            else:
                self.kind = kind
                if kind is _OTHER:
                    connection._before_write(self)
                else:
                    connection._before_special(self, inner)
                inner.execute(sql, bindings)
                self._rows = _NO_ROWS
        except BaseException as exc:
            self._failed(exc)
            raise
        connection._after_statement(self)
        self.rowcount = self.rows_changed if self.kind is _OTHER else -1
        return self

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> Cursor:
        """Run one statement once for each of the bindings; outside a transaction each commits by itself."""
        rows: list[tuple[Any, ...]] = []
        count = 0
        if not self.connection.in_transaction:
            for values in bindings:
                rows += self.execute(sql, values).fetchall()
                count += max(self.rowcount, 0)
        else:
            self._begin(sql)
            insert = None
            if (type(bindings) is list or type(bindings) is tuple) and len(bindings) >= ROWS_LEAST:
                insert = plain_insert(sql)
            try:
                if insert is not None:
                    self.kind = _OTHER
                    self.connection._insert_many(self, self._inner, insert, cast("Sequence[Bindings]", bindings))
                else:
                    self._trace()
                    self._inner.executemany(sql, self.connection._each(self, bindings))
                    rows = self._inner.fetchall()
            except BaseException as exc:
                self._failed(exc)
                raise
            self._inner.exec_trace = None
            if not self.lazy:
                self.connection._after_statement(self)
            count = self.rows_changed
        self._rows = iter(rows)
        self.rowcount = count
        return self

    def _failed(self, error: BaseException) -> None:
        self._inner.exec_trace = None
        self._inner.close(True)  # the statement is over, also when it was a row that could not be read
        self._rows = _NO_ROWS
        self.rowcount = -1
        self._inner = self.connection._db.cursor()
        if not self.lazy:
            self.connection._statement_failed(self, error)

    @property
    def lastrowid(self) -> int:
        """The rowid of the last row inserted."""
        return self.connection.last_insert_rowid()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._inner if self._rows is None else self._rows

    def __next__(self) -> tuple[Any, ...]:
        return next(self._inner if self._rows is None else self._rows)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None when there is none."""
        return next(self._inner if self._rows is None else self._rows, None)

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """Return up to `size` rows."""
        rows = []
        for row in self:
            rows.append(row)
            if len(rows) == size:
                break
        return rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        return list(self)

    def close(self) -> None:
        """Drop the rows that are left."""
        self._inner.close(True)
        self._rows = _NO_ROWS

"""The open transaction of a captured connection: what each statement leaves in its record, and its COMMIT.

The hard idea: SQL may not run in SQLite's commit hook, so COMMIT is seen coming: every statement passes here before its
first step, and a statement outside a transaction is put into one of its own. What a failing statement leaves behind is
never guessed from its text.

The rule for exceptions, which may come between any two lines (a signal's): SQLite is asked what there is. A statement
that raised is cut from the buffer, or stands in it whole, where SQLite's word says which; in any other case the
transaction is rolled back. A call that ended before it could do that is known by `Calls.current`, and the next one does
it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Final

import apsw

from tranlog.errors import SourceError, SourceSetupError
from tranlog.source.sqlite.calls import CallBrokenOffError, Calls
from tranlog.source.sqlite.hook import RowHook
from tranlog.source.sqlite.lost_changes import SourceUncertainError
from tranlog.source.sqlite.outbox import OutboxWriter
from tranlog.source.sqlite.recorder import RowRecorder
from tranlog.source.sqlite.settings import check_attached, hold_attached, hold_settings
from tranlog.source.sqlite.statement import SqliteStatementKind
from tranlog.source.sqlite.writer_schema import WriterSchema

if TYPE_CHECKING:
    from tranlog.source.sqlite.cursor import Bindings, SqliteCursor

# Names of this module: looking a member up in its class costs more than the comparison.
_OTHER: Final = SqliteStatementKind.OTHER
_BEGIN: Final = SqliteStatementKind.BEGIN
_COMMIT: Final = SqliteStatementKind.COMMIT
_ROLLBACK: Final = SqliteStatementKind.ROLLBACK


class WriterTransaction:
    """Records one connection's transactions, one after the other. Not for threads."""

    def __init__(
        self,
        db: apsw.Connection,
        calls: Calls,
        recorder: RowRecorder,
        schema: WriterSchema,
        outbox: OutboxWriter,
        *,
        flush_bytes: int,
    ) -> None:
        self.db = db
        self.cursor = db.cursor()
        """What runs statements without rows, one after the other."""
        self.calls = calls
        self.familiar: dict[str, SqliteStatementKind] = {}
        """Texts that were run, with their kinds."""
        self._recorder = recorder
        self._hook = recorder.hook
        self._buffer = recorder.buffer
        self._schema = schema
        self._outbox = outbox
        self._flush_bytes = flush_bytes
        self.running = 0
        """Writing statements in progress; more than one when an SQL function runs SQL."""
        self._opens = False  # the SAVEPOINT in progress opens it
        self._by_savepoint = False  # opened by SAVEPOINT: the last RELEASE commits it
        self._changes_of_setup = db.total_changes()
        self._changes_before: int | None = 0  # what changes() would say without our own statements
        db.set_rollback_hook(self.reset)
        _transactions.add(self)

    def let_go(self) -> None:
        """Leave to the parent process what this one, which was forked, shares with it.

        A rollback here would change the parent's wal-index. So it is never destroyed, not even when the process ends.
        """
        self.calls.disown()
        for kept in (self.db, self._buffer.file):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    # --- what SQLite counts ---

    def changes(self) -> int:
        """Return how many rows the last INSERT, UPDATE or DELETE changed, as SQLite counts."""
        run = self.calls.current
        if self._changes_before is None or (run is not None and self._has_counted(run)):
            return self.db.changes()  # perhaps asked inside a statement, in a trigger that has changed something
        return self._changes_before

    def _has_counted(self, run: SqliteCursor) -> bool:
        """Whether SQLite has counted changes since a statement began."""
        return run.writes and (self.db.total_changes(), self.db.changes()) != (run.total, run.changes)

    def total_changes(self) -> int:
        """Return how many rows were changed since the connection was opened, without our own."""
        return self.db.total_changes() - self._changes_of_setup - self._outbox.rows_written

    # --- what a call that was broken off has left ---

    def mend(self, entries: tuple[CodeType, ...], *, rolls_back: bool = False) -> bool:
        """Roll back what a call that was broken off has left, if one was; return whether there was a transaction.

        Raises CallBrokenOffError for it, unless the caller rolls back anyway.
        """
        if not self.calls.is_broken_off(entries):
            return False
        lost = self.db.in_transaction
        self._recorder.watch()
        if lost:
            self.db.execute("ROLLBACK")
        self.running = 0
        self.reset()
        self._hold_settings()
        self.calls.current = None
        if lost and not rolls_back:
            raise CallBrokenOffError(path=self.calls.path)
        return lost

    def _hold_settings(self) -> None:
        hold_settings(self.db, self._outbox, self.calls.path)
        hold_attached(self.db)

    # --- a statement's life ---

    def before_special(self, run: SqliteCursor, inner: apsw.Cursor) -> None:
        """Get ready for a statement of a kind of its own; what it raises keeps the statement from running."""
        kind = run.kind
        if kind is _COMMIT:
            if self.db.in_transaction:
                self._before_commit()
        elif kind is _BEGIN or kind is _ROLLBACK:
            pass
        elif kind is SqliteStatementKind.CREATE or kind is SqliteStatementKind.DDL:
            if inner.is_readonly or inner.is_explain:
                run.lazy = True
            elif not run.writes:
                self.before_write(run)
                run.versions = self._schema.before_ddl(run.sql, creates=kind is SqliteStatementKind.CREATE)
        elif kind is SqliteStatementKind.UPKEEP:
            if inner.is_readonly or inner.is_explain:
                run.lazy = True
            elif not run.writes:
                self.before_write(run)
        elif kind is SqliteStatementKind.RELEASE:
            if self._by_savepoint and self._buffer.outermost(run.savepoint):
                self._before_commit()
        elif kind is SqliteStatementKind.SAVEPOINT:
            self._opens = not self.db.in_transaction
        elif kind is SqliteStatementKind.ATTACH or kind is SqliteStatementKind.VACUUM:
            self._hook.others = True

    def before_write(self, run: SqliteCursor) -> None:
        db = self.db
        if self._recorder.unseen:
            self._recorder.watch()
        if not db.in_transaction:
            run.own_transaction = True
            self.cursor.execute("BEGIN IMMEDIATE")
        if not self._schema.checked:
            changes = db.changes()
            if written := self._schema.check(locked=run.own_transaction):
                self._outbox.rows_written += written
                self._changes_before = changes if self._changes_before is None else self._changes_before
        if self.running:
            self._hook.pack()
        elif self._hook.bytes > self._flush_bytes and not self._buffer.savepoints:
            self._flush()
        buffer = self._buffer
        run.mark = buffer.spilled + len(buffer.entries)
        run.total = db.total_changes()
        run.changes = db.changes()
        run.running = self.running
        run.writes = True
        self.running += 1

    def each(self, run: SqliteCursor, inner: apsw.Cursor, bindings: Iterable[Bindings]) -> Iterator[Bindings]:
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
                    inner.exec_trace = None
                    traced = False
                self.between_rows(run)
            yield values

    def between_rows(self, run: SqliteCursor) -> None:
        """Note that the last statement of an `executemany` ran to its end, and that another one comes."""
        recorder, buffer = self._recorder, self._buffer
        if not self.db.in_transaction:
            raise apsw.SQLError("the transaction ended while executemany ran in it")
        if recorder.unread is not None:
            recorder.read_unread()
        held = self._hook.settle()
        self._changes_before = None
        run.rows_changed += self.db.changes()
        if held > self._flush_bytes and self.running == 1 and not buffer.savepoints:
            self._flush()
        run.mark = buffer.spilled + len(buffer.entries)
        run.total = self.db.total_changes()

    def after_statement(self, run: SqliteCursor) -> None:
        """Note that a statement ran to its end."""
        if run.writes:
            recorder = self._recorder
            if recorder.unread is not None:
                recorder.read_unread()
            self._hook.settle()
            if self.calls.current is not run:
                raise CallBrokenOffError(path=self.calls.path)  # one inside it was, and nobody has said so
            self.running = run.running
            if run.kind is _OTHER:
                self._changes_before = changes = self.db.changes()
                run.rows_changed += changes
        if run.kind is not _OTHER:
            self._after_special(run)
        if run.own_transaction:
            self._commit_own()

    def _after_special(self, run: SqliteCursor) -> None:
        kind = run.kind
        if kind is _BEGIN:
            return
        if kind is _COMMIT or kind is _ROLLBACK:
            if kind is _COMMIT:
                self._schema.committed()
            self.reset()
            return
        match kind:
            case SqliteStatementKind.CREATE | SqliteStatementKind.DDL:
                if run.writes and run.versions is not None:
                    self._schema.after_ddl(run.sql, run.versions, creates=kind is SqliteStatementKind.CREATE)
            case SqliteStatementKind.UPKEEP:
                self._schema.may_differ()
            case SqliteStatementKind.SAVEPOINT:
                self._by_savepoint = self._by_savepoint or self._opens
                self._buffer.savepoint(run.savepoint)
            case SqliteStatementKind.RELEASE:
                if self.db.in_transaction:
                    self._buffer.release(run.savepoint)
                else:
                    self.reset()
            case SqliteStatementKind.ROLLBACK_TO:
                self._buffer.rollback_to(run.savepoint)
                self._schema.may_be_back()
            case SqliteStatementKind.PRAGMA:
                hold_settings(self.db, self._outbox, self.calls.path)
            case SqliteStatementKind.ATTACH:
                hold_attached(self.db)
            case _:
                pass

    def failed(self, run: SqliteCursor, error: BaseException) -> None:
        """Bring the buffer to what a statement that raised has left in the database, or roll back."""
        db, recorder, hook, buffer = self.db, self._recorder, self._hook, self._buffer
        if run.writes:
            self.running = run.running
            if self._has_counted(run):
                self._changes_before = None
        if not db.in_transaction:
            self.reset()
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
            if not _is_certain(error) or (run.versions and run.versions != self._schema.versions()):
                if db.total_changes() == run.total and not run.versions:
                    buffer.cut(run.mark)
                else:
                    hook.poison = error
            elif len(buffer) > run.mark and recorder.kept(run.mark) is False:
                buffer.cut(run.mark)
            self._schema.may_be_back()
        elif kind is SqliteStatementKind.PRAGMA or kind is SqliteStatementKind.ATTACH:
            if not isinstance(error, SourceSetupError):
                self._hold_settings()
        elif kind is not _OTHER and kind is not _ROLLBACK and not isinstance(error, _REFUSALS):
            hook.poison = error  # BEGIN, SAVEPOINT, RELEASE, ROLLBACK TO: refused they change nothing
        if hook.poison is not None:
            self._abandon(error)
        elif run.own_transaction:
            if len(buffer):
                self._commit_own()
            else:
                db.execute("ROLLBACK")

    def _abandon(self, error: BaseException) -> None:
        """Roll back what can no longer be captured rightly, and raise why, if that is not what the caller raises."""
        poison = self._hook.poison
        assert poison is not None
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self.reset()
        if isinstance(error, SourceError) or not isinstance(error, Exception):
            poison = error  # what says more by itself; and KeyboardInterrupt and its like stay what they are
        poison.add_note("tranlog: the transaction was rolled back")
        if poison is not error:
            raise poison from error

    def reset(self) -> None:
        """Forget the open transaction, which has ended. Also SQLite's rollback hook: no SQL here."""
        self._schema.reset()
        self._recorder.reset()
        self._outbox.reset()
        self._by_savepoint = False

    # --- the outbox ---

    def _flush(self) -> None:
        """Move the changes of a growing transaction to the outbox, where ROLLBACK undoes them like the rest."""
        hook = self._hook
        if self._changes_before is None:
            self._changes_before = self.db.changes()
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
            check_attached(self.db)
        if self._outbox.open or self._buffer.entries or self._buffer.spilled:
            if self._changes_before is None:
                self._changes_before = self.db.changes()
            if self._schema.changed:
                self._schema.note_changed()
                self._outbox.rows_written += 1
            self._outbox.finish()

    def _commit_own(self) -> None:
        """Commit the transaction that one statement outside any has got."""
        try:
            self._before_commit()
            self.cursor.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            self.reset()
            raise
        self._schema.committed()
        self.reset()


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
_transactions: weakref.WeakSet[WriterTransaction] = weakref.WeakSet()


def _after_fork() -> None:
    for transaction in _transactions:
        transaction.let_go()


os.register_at_fork(after_in_child=_after_fork)

"""What runs a statement on a captured connection, and tells its transaction what becomes of it.

Owns `SqliteCursor`, and the parting of a script into statements. What a statement does to the transaction's record is
`transaction`'s; who may call, `calls`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import apsw

from tranlog.source.sqlite.bulk import ROWS_LEAST
from tranlog.source.sqlite.statement import SqliteStatementKind, classify, is_blank, plain_insert, semicolons

if TYPE_CHECKING:
    from tranlog.source.sqlite.inserting import BulkInserts
    from tranlog.source.sqlite.transaction import WriterTransaction
    from tranlog.source.sqlite.writer import SqliteConnection

Bindings: TypeAlias = Sequence[Any] | Mapping[str, Any]

_OTHER = SqliteStatementKind.OTHER
_ROLLBACK = SqliteStatementKind.ROLLBACK
_FAMILIAR_KINDS = frozenset((_OTHER, SqliteStatementKind.BEGIN, SqliteStatementKind.COMMIT, _ROLLBACK))
_FAMILIAR_MOST = 1000
_FAMILIAR_LENGTH = 1000  # of a text in characters: a program makes longer ones anew each time
_NO_ROWS: Iterator[tuple[Any, ...]] = iter(())


def split_script(script: str) -> Iterator[str]:
    """Yield the statements of a script; a trigger's body is one with its head."""
    start = 0
    for at in semicolons(script):
        if apsw.complete(script[start:at]):
            if not is_blank(script[start:at]):
                yield script[start:at]
            start = at
    if not is_blank(script[start:]):
        yield script[start:]


def only_statement(sql: str) -> str:
    """Return a text without what follows its statement, which may be white space and comments."""
    if ";" not in sql:
        return sql
    first, *others = [*split_script(sql)] or [sql]
    if others:
        raise apsw.MisuseError("one statement at a time: use executescript for more")
    return first


class SqliteCursor:
    """Runs statements and holds their rows. Threads: as its connection.

    A statement is known by its text when it comes again: SQLite need not be asked what it is, by a tracer that sees it
    before its first step. The tracer is taken off after each statement, since it makes a cycle: a cursor whose rows
    nobody fetched must end with its last reference, not hold its snapshot until the garbage is collected.
    """

    __slots__ = (
        *("_inner", "_inserts", "_rows", "_transaction", "changes", "connection", "description", "kind", "lastrowid"),
        *("lazy", "mark", "own_transaction", "rowcount", "rows_changed", "running", "savepoint", "sql", "total"),
        *("versions", "writes"),
    )

    def __init__(self, connection: SqliteConnection, transaction: WriterTransaction, inserts: BulkInserts) -> None:
        self.connection = connection
        self._transaction = transaction
        self._inserts = inserts
        self.rowcount = -1
        self.lastrowid: int | None = None
        """The rowid of the row that the last INSERT by `execute` has inserted; before the first None."""
        self.description: tuple[tuple[Any, ...], ...] | None = None
        """Name and declared type of each column that the last statement returns; None where it returns none."""
        self._inner: apsw.Cursor | None = None  # its own, once it needs one
        self._rows: Iterator[tuple[Any, ...]] | None = _NO_ROWS

    def _begin(self, sql: str) -> None:
        """Forget the last statement."""
        self.sql = sql
        self.kind = _OTHER
        self.description = None
        self.lazy = False  # reads only: its rows are fetched as they are asked for
        self.writes = False
        self.own_transaction = False
        self.mark = 0
        self.running = 0
        self.total = self.changes = 0  # SQLite's counts, before
        self.versions: tuple[int, int] | None = None  # of the schemas, before DDL
        self.rows_changed = 0

    def _own(self) -> apsw.Cursor:
        """Return SQLite's cursor that is this one's alone."""
        if self._inner is None:
            self._inner = self._transaction.db.cursor()
        return self._inner

    def _traced(self) -> apsw.Cursor:
        """Return that, calling `_before_step` for the statement."""
        verdict = classify(self.sql)
        self.kind = verdict.kind
        self.savepoint = verdict.savepoint
        inner = self._own()
        inner.exec_trace = self._before_step
        return inner

    def _before_step(self, inner: apsw.Cursor, sql: str, bindings: object) -> bool:
        self.description = inner.get_description() or None
        if self.kind is not _OTHER:
            self._transaction.before_special(self, inner)
        elif inner.is_readonly or inner.is_explain:
            self.lazy = True
        elif not self.writes:
            self._transaction.before_write(self)
        return True

    def execute(self, sql: str, bindings: Bindings | None = None) -> SqliteCursor:
        """Run one statement."""
        transaction = self._transaction
        calls = transaction.calls
        outer = calls.current
        if outer is not None or get_ident() != calls.thread:
            calls.check_owner()
            if transaction.mend(CALLS, rolls_back=classify(sql).kind is _ROLLBACK):
                return self
            outer = calls.current
        familiar = transaction.familiar
        kind = familiar.get(sql)
        self._begin(sql)
        try:
            calls.current = self
            if kind is None:
                self.sql = only_statement(sql)
                inner = self._traced()
                inner.execute(self.sql, bindings)
                inner.exec_trace = None
                if self.lazy:
                    self._rows = None
                    self.rowcount = -1
                    calls.current = outer
                    return self
                if self.description is not None:
                    self._rows = iter(inner.fetchall())
                else:
                    self._rows = _NO_ROWS
                    kind = self.kind
                    if kind in _FAMILIAR_KINDS and len(sql) <= _FAMILIAR_LENGTH and self.sql == sql:
                        if len(familiar) >= _FAMILIAR_MOST:
                            familiar.clear()
                        familiar[sql] = kind
            else:
                self.kind = kind
                # A statement without rows leaves nothing in a cursor, so one serves all, unless a call around uses it.
                inner = transaction.cursor if outer is None and self._inner is None else self._own()
                if kind is _OTHER:
                    transaction.before_write(self)
                else:
                    transaction.before_special(self, inner)
                inner.execute(sql, bindings)
                self._rows = _NO_ROWS
            transaction.after_statement(self)
            if self.kind is _OTHER:
                self.rowcount = self.rows_changed
                self.lastrowid = self._transaction.db.last_insert_rowid()
            else:
                self.rowcount = -1
            calls.current = outer
        except BaseException as exc:
            self._failed(exc, outer)
            raise
        return self

    def executemany(self, sql: str, bindings: Iterable[Bindings]) -> SqliteCursor:
        """Run one statement once for each of the bindings; outside a transaction each commits by itself."""
        transaction = self._transaction
        calls = transaction.calls
        outer = calls.current
        if outer is not None or get_ident() != calls.thread:
            calls.check_owner()
            transaction.mend(CALLS)
            outer = calls.current
        rows: list[tuple[Any, ...]] = []
        count, last = 0, self.lastrowid
        if not self._transaction.db.in_transaction:
            for values in bindings:
                rows += self.execute(sql, values).fetchall()
                count += max(self.rowcount, 0)
            self.lastrowid = last
        else:
            self._begin(sql)
            insert = None
            if (type(bindings) is list or type(bindings) is tuple) and len(bindings) >= ROWS_LEAST:
                insert = plain_insert(sql)
            try:
                calls.current = self
                if insert is not None:
                    self.kind = _OTHER
                    self._inserts.insert(self, self._own(), insert, cast("Sequence[Bindings]", bindings))
                else:
                    self.sql = only_statement(sql)
                    inner = self._traced()
                    inner.executemany(self.sql, transaction.each(self, inner, bindings))
                    rows = inner.fetchall()
                    inner.exec_trace = None
                if not self.lazy:
                    transaction.after_statement(self)
                count = self.rows_changed
                calls.current = outer
            except BaseException as exc:
                self._failed(exc, outer)
                raise
        self._rows = iter(rows)
        self.rowcount = count
        return self

    def _failed(self, error: BaseException, outer: SqliteCursor | None) -> None:
        self._rows = _NO_ROWS
        self.rowcount = -1
        self.description = None
        if self._inner is not None:
            self._inner.exec_trace = None
            self._inner.close(True)  # the statement is over, also when it was a row that could not be read
            self._inner = None
        if not self.lazy:
            self._transaction.failed(self, error)
        self._transaction.calls.current = outer

    def _left(self) -> Iterator[tuple[Any, ...]]:
        self._transaction.calls.check_owner()
        return self._own() if self._rows is None else self._rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._left()

    def __next__(self) -> tuple[Any, ...]:
        return next(self._left())

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None when there is none."""
        return next(self._left(), None)

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
        self._transaction.calls.check_owner()
        self._own().close(True)
        self._rows = _NO_ROWS


CALLS: Final = (SqliteCursor.execute.__code__, SqliteCursor.executemany.__code__)
"""What runs while a call is in progress."""

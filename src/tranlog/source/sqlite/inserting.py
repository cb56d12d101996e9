"""Many rows by one call: an INSERT whose rows are stored as they are bound runs without the hook.

Which rows those are is judged by `bulk`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import apsw

from tranlog.change import TableMap
from tranlog.source.sqlite.bulk import BoundRows, BulkInsert, bulk_insert
from tranlog.source.sqlite.lost_changes import SourceUncertainError
from tranlog.source.sqlite.recorder import RowRecorder
from tranlog.source.sqlite.schema import SqliteSchema, read_insert_facts
from tranlog.source.sqlite.statement import PlainInsert, fold, quote
from tranlog.source.sqlite.transaction import WriterTransaction
from tranlog.source.sqlite.writer_schema import WriterSchema

if TYPE_CHECKING:
    from tranlog.source.sqlite.cursor import Bindings, SqliteCursor

_BULKS_MOST = 1000
_PARTS_OF_PIECE = 8  # rows that are noted together take this part of a piece at most
_ROWS_WITHOUT_GUARDS = 100  # a row costs half as much again with them; to change it, all statements are prepared anew
_ROWID_MOST = (1 << 63) - 1


class BulkInserts:
    """Inserts the rows of one connection's `executemany`. Not for threads."""

    def __init__(
        self,
        db: apsw.Connection,
        recorder: RowRecorder,
        schema: WriterSchema,
        transaction: WriterTransaction,
        *,
        piece_bytes: int,
    ) -> None:
        self._db = db
        self._recorder = recorder
        self._schema = schema
        self._transaction = transaction
        self._part_bytes = recorder.hook.entry_bytes = piece_bytes // _PARTS_OF_PIECE
        self._bulks: dict[PlainInsert, BulkInsert | None] = {}
        self._bulks_of: SqliteSchema | None = None  # the schema under which they were judged
        self._own_functions = False

    def know_own_functions(self) -> None:
        """Note that there are functions or collations of the user's, which may run SQL."""
        self._own_functions = True
        self._bulks.clear()

    def insert(self, run: SqliteCursor, inner: apsw.Cursor, insert: PlainInsert, given: Sequence[Bindings]) -> None:
        """Run an INSERT for each of the bindings, in a transaction; what it can without the hook goes without it."""
        self._transaction.before_write(run)
        bulk = self._bulk_of(insert)
        at = 0
        while at < len(given):
            if at:
                self._transaction.between_rows(run)
            taken = len(given) if bulk is None else bulk.take(given, at, self._part_bytes)
            if bulk is not None and not isinstance(taken, int):
                self._insert_bound(run, inner, bulk, taken)
                at += len(taken.rows)
                continue
            assert isinstance(taken, int)
            inner.executemany(run.sql, self._transaction.each(run, inner, given[at : at + taken]))
            inner.fetchall()
            at += taken

    def _bulk_of(self, insert: PlainInsert) -> BulkInsert | None:
        """Return the judge of an INSERT's rows under the schema of now; None where they must be seen one by one."""
        if self._transaction.running > 1:
            return None
        if self._recorder.hook.others:  # a temporary table of that name, a temporary trigger: no schema version tells
            shades = "SELECT 1 FROM temp.sqlite_schema WHERE type = 'trigger' OR name = ? COLLATE NOCASE LIMIT 1"
            if self._db.execute(shades, (insert.table,)).fetchall():
                return None
        schema = self._schema.now
        if self._bulks_of is not schema or len(self._bulks) >= _BULKS_MOST:
            self._bulks.clear()
            self._bulks_of = schema
        if insert not in self._bulks:
            name = fold(insert.table)
            plan = next((plan for table, plan in schema.plans.items() if fold(table) == name), None)
            bulk = None
            if plan is not None and plan.captured:
                facts = read_insert_facts(self._db, plan)
                bulk = bulk_insert(insert, plan.map, facts, own_functions=self._own_functions)
            self._bulks[insert] = bulk
        return self._bulks[insert]

    def _insert_bound(self, run: SqliteCursor, inner: apsw.Cursor, bulk: BulkInsert, bound: BoundRows) -> None:
        """Insert rows that are stored as they are bound: unseen by the hook, noted together."""
        db, hook, table = self._db, self._recorder.hook, bulk.table
        highest: int | None = None
        if bound.counted:
            highest = self._highest(table)
            if highest is not None and highest > _ROWID_MOST - len(bound.rows):  # then SQLite takes any that is free
                inner.executemany(run.sql, self._transaction.each(run, inner, bound.rows))
                inner.fetchall()
                return
        before = db.total_changes()
        # Whatever ends what follows before the rows are noted, be it a signal: the transaction must not commit.
        hook.poison = uncertain = SourceUncertainError(table=table.name)
        failed = True
        try:
            self._recorder.look_away(guards=len(bound.rows) < _ROWS_WITHOUT_GUARDS)
            inner.executemany(run.sql, bound.rows)
            inner.fetchall()
            failed = False
        finally:
            self._recorder.watch()
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
                    run.mark, run.total = len(self._recorder.buffer), before + done
                    hook.poison = None
        if hook.poison is uncertain:
            raise uncertain

    def _highest(self, table: TableMap) -> int | None:
        """Return the largest rowid in a table whose key is the rowid."""
        key = quote(table.columns[table.primary_key[0]].name)
        ((found,),) = self._db.execute(f"SELECT max({key}) FROM main.{quote(table.table)}").fetchall()
        assert found is None or isinstance(found, int)
        return found

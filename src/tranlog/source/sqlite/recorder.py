"""What the preupdate hook tells, turned into the entries of a transaction's buffer.

Owns the two places where the hook is not enough. A row with text that is not UTF-8, or in a table with
virtual generated columns, cannot be read from it: its old image is read by SELECT inside the hook, where the row
still stands as it was, and its new one before the next change. And a statement that failed may have kept its
changes: `kept` asks the database.
"""

from __future__ import annotations

import errno
import tempfile
from typing import IO

import apsw

from tranlog.errors import DiskFailedError, DiskFullError, UnsupportedTypeError
from tranlog.payload import encode_table_map
from tranlog.shard import ShardRule
from tranlog.source.sqlite.buffer import SPILL_BYTES, TransactionBuffer, net_change
from tranlog.source.sqlite.hook import ONE, RowHook
from tranlog.source.sqlite.lost_changes import SourceUncertainError
from tranlog.source.sqlite.raw import (
    OUTBOX_TABLE,
    Place,
    RawRow,
    RawTable,
    encode_change,
    encode_head,
    encode_rows,
    encode_statement,
    image_of,
    raw_row,
)
from tranlog.source.sqlite.schema import SqliteSchema, TablePlan

_HEADS_MOST = 1000
_INSERT, _DELETE = apsw.SQLITE_INSERT, apsw.SQLITE_DELETE


class RowRecorder:
    """Records one connection's row changes. Not for threads."""

    def __init__(self, db: apsw.Connection, schema: SqliteSchema) -> None:
        self._db = db
        self.unread: tuple[int, RawRow | None, Place | None, int] | None = None
        """The newest entry, if its new image must be read: its table's number, before, old place, new place."""
        self._tables: list[tuple[TablePlan, ShardRule]] = []
        self._numbers: dict[str, int] = {}
        self._plain: dict[str, int] = {}
        self._heads: dict[frozenset[int], bytes] = {}
        self._head_of = -2  # the one table that was asked for last
        self._head = b""  # and the answer
        self.buffer = TransactionBuffer(_open_spill)
        self.hook = RowHook(self.buffer.entries, self._on_other_row, self._spill)
        self.hook.spill_at = SPILL_BYTES
        self.unseen = False
        """Whether the hook may be off."""
        self._triggers: bool | None = None
        self.use(schema)

    def use(self, schema: SqliteSchema) -> None:
        """Go on with the tables as they are now; those of changes in the buffer keep their numbers."""
        if not self.hook.touched:
            self._tables.clear()
        self._heads.clear()
        self._head_of = -2
        first = len(self._tables)
        self._tables += [(plan, schema.rule) for plan in schema.plans.values()]
        self._numbers = {name: number for number, name in enumerate(schema.plans, first)}
        self._plain = {name: number for name, number in self._numbers.items() if schema.plans[name].plain}
        self._plain[OUTBOX_TABLE] = -1  # our own, for each transaction
        self.hook.numbers = self._plain
        if schema.triggers != self._triggers:
            self._triggers = schema.triggers
            self.watch()

    def watch(self) -> None:
        """Have the hook called for each row again, and triggers run if there are any.

        The guards are none: they are for others, and each row would pay for them.
        """
        self._db.preupdate_hook(self.hook.on_row)
        self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, int(bool(self._triggers)))
        self.unseen = False

    def look_away(self, *, guards: bool) -> None:
        """Until `watch`, have no row seen; without `guards`, which are triggers, no trigger runs."""
        self.unseen = True
        self._db.preupdate_hook(None)
        if self._triggers and not guards:
            self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)

    def head(self) -> bytes:
        """Return what a piece of the buffer's changes says of its tables."""
        hook = self.hook
        if len(hook.touched) == 1 and hook.last == self._head_of:
            return self._head
        touched = frozenset(hook.touched)
        head = self._heads.get(touched)
        if head is None:
            tables: list[RawTable] = []
            for number in sorted(touched):
                plan, rule = self._tables[number]
                table = plan.map
                tables.append((number, encode_table_map(table), rule.shard_of(table.schema, table.table)))
            if len(self._heads) >= _HEADS_MOST:
                self._heads.clear()
            head = self._heads[touched] = encode_head(tables)
        if len(touched) == 1:
            (self._head_of,) = touched
            self._head = head
        return head

    def table_names(self) -> tuple[str, ...]:
        """Return the names of those tables."""
        return tuple([self._tables[number][0].map.name for number in sorted(self.hook.touched)])

    def reset(self) -> None:
        """Forget the transaction, which has ended. Runs no SQL."""
        self.hook.pending.clear()
        buffer = self.buffer
        buffer.entries.clear()
        if buffer.file is not None or buffer.savepoints:
            buffer.clear()
        self._forget_tables()
        self.hook.poison = None
        if self.unread is not None:
            self._set_unread(None)

    def _set_unread(self, unread: tuple[int, RawRow | None, Place | None, int] | None) -> None:
        self.unread = unread
        self.hook.numbers = self._plain if unread is None else {}  # the next row is none of the hook's alone

    def _forget_tables(self) -> None:
        hook = self.hook
        hook.touched.clear()
        hook.last = -1
        hook.bytes = 0
        hook.spill_at = SPILL_BYTES

    def add_row(self, name: str, row: RawRow) -> None:
        """Note a new row of a table, which the hook did not report. Raises our disk errors."""
        number = self._numbers[name]
        self.hook.touched.add(number)
        self._add(encode_change((number, None, row, None, 0)))

    def add_rows(self, name: str, rows: bytes, order: bytes, first_rowid: int | None) -> None:
        """Note many new rows of a table, for which the hook was off; see `raw.encode_rows`. Raises our disk errors."""
        number = self._numbers[name]
        self.hook.touched.add(number)
        self._add(encode_rows(number, rows, order, first_rowid))

    def add_statement(self, sql: str, timestamp: int) -> None:
        """Note a statement at its place. Raises our disk errors."""
        self._add(encode_statement(sql, timestamp))

    def _add(self, entry: bytes) -> None:
        hook = self.hook
        hook.pack()
        if hook.bytes >= hook.spill_at:
            self._spill()
        hook.entries.append(ONE + entry)
        hook.bytes += len(entry)

    def _spill(self) -> None:
        """Move the changes in memory to a temporary file."""
        try:
            self.buffer.spill()
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(path=tempfile.gettempdir()) from exc
            raise DiskFailedError(path=tempfile.gettempdir(), why=str(exc)) from exc
        self.hook.spill_at = self.hook.bytes + SPILL_BYTES

    def forget_flushed(self) -> None:
        """Forget the changes that the outbox has taken."""
        self.buffer.forget_changes()
        self._forget_tables()

    def _on_other_row(self, update: apsw.PreUpdate) -> None:
        """Note a change of a row that the hook does not give as it is, or not at all."""
        number = self._numbers.get(update.table_name)
        if number is None:
            return
        if self.unread is not None:
            self.read_unread()
        plan, _ = self._tables[number]
        inserts, deletes = update.opcode == _INSERT, update.opcode == _DELETE
        old: RawRow | None = None
        new: RawRow | None = None
        by_select = plan.by_select
        if not by_select:
            try:
                old = None if inserts else _carried(plan, update.old)
                new = None if deletes else _carried(plan, update.new)
            except UnicodeDecodeError:
                by_select = True
        rowid_new = update.rowid if inserts else update.rowid_new
        old_place: Place | None = None if inserts else update.rowid
        new_place: Place | None = None if deletes else rowid_new
        unread = None
        if by_select:
            if not plan.where or plan.place_key is not None:
                raise UnsupportedTypeError(
                    table=plan.map.name,
                    column="(any)",
                    type_name="text that is not UTF-8, or a virtual generated column, in a table without a rowid",
                )
            new = None
            if not inserts:
                old = self.row_at(plan, update.rowid)
                assert old is not None, "SQLite reports a row that is not there"
            if not deletes:
                unread = (number, old, old_place, rowid_new)
        elif plan.place_key is not None:
            key = plan.place_key
            old_place = None if old is None else tuple([old[i] for i in key])  # type: ignore[misc]
            new_place = None if new is None else tuple([new[i] for i in key])  # type: ignore[misc]
        self.hook.touched.add(number)
        self._add(encode_change((number, old, new, old_place, new_place)))
        self._set_unread(unread)

    def row_at(self, plan: TablePlan, place: Place) -> RawRow | None:
        """Return a row as it stands now; inside the hook that is the row before its change."""
        places = place if isinstance(place, tuple) else (place,)
        for row in plan.read(self._db, f"WHERE {plan.where}", places):
            return raw_row(row)
        return None

    def read_unread(self, *, failed: bool = False) -> None:
        """Get the new image of a change that the hook could not give, now that SQLite has carried it out.

        After a statement that failed and was undone the image is that of before, which makes the change none.
        """
        if self.unread is None:
            return
        number, old, old_place, rowid = self.unread
        try:
            row = self.row_at(self._tables[number][0], rowid)
            if row is None:
                assert failed, "SQLite carried out a change and the row is not there"
            else:
                entry = encode_change((number, old, row, old_place, rowid))
                entries = self.buffer.entries  # no spill comes between a change and its reading
                self.hook.bytes += len(entry) - len(entries[-1])
                entries[-1] = ONE + entry
        except BaseException as exc:
            self.hook.poison = exc
        self._set_unread(None)  # last: until then it is to be read, whatever came between

    def kept(self, mark: int) -> bool | None:
        """Whether a failed statement's changes stand in the database; None where the database does not tell.

        Conflict resolution FAIL keeps all of them, ABORT undoes all of them.
        """
        change = net_change(self.buffer.since(mark), self._image)
        if change is None:
            return False
        plan, _ = self._tables[change.table]
        if plan.where:
            row = self.row_at(plan, change.place)
            image = None if row is None else self._image(change.table, row)
            if image == change.after:
                return True
            if image == change.before:
                return False
        self.hook.poison = SourceUncertainError(table=plan.map.name)
        return None

    def _image(self, number: int, row: RawRow) -> bytes:
        return image_of(row, self._tables[number][0].reals)


def _open_spill() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tranlog-")


def _carried(plan: TablePlan, row: RawRow | None) -> RawRow:
    """Return a row of the hook as it is carried: without generated columns."""
    assert row is not None
    return row if plan.kept is None else tuple([row[i] for i in plan.kept])

"""What the preupdate hook tells, turned into the entries of a transaction's buffer.

Owns the hook, and the two places where it is not enough. A row with text that is not UTF-8, or in a table with
virtual generated columns, cannot be read from it: its old image is read by SELECT inside the hook, where the row
still stands as it was, and its new one before the next change. And a statement that failed may have kept its
changes: `kept` asks the database. SQLite ignores whatever the hook raises, so the first error becomes `poison`,
with which no transaction commits.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO, TypeAlias

import apsw

from tranlog.change import Op, TableMap
from tranlog.errors import DiskFailedError, DiskFullError, SourceError, UnsupportedTypeError
from tranlog.payload import encode_row
from tranlog.source.sqlite.buffer import SPILL_BYTES, SPILL_ENTRIES, BufferedRow, Place, TransactionBuffer, net_change
from tranlog.source.sqlite.schema import SCHEMA, TablePlan, typed_row
from tranlog.types import Value

Row: TypeAlias = tuple[Value, ...]

_INSERT, _DELETE = apsw.SQLITE_INSERT, apsw.SQLITE_DELETE
# A BufferedRow without its class's own __new__, which is Python and costs as much as reading the row.
_row: Callable[[tuple[TableMap, Op, bytes | None, bytes | None, Place, Place]], BufferedRow] = partial(
    tuple.__new__, BufferedRow
)
_OP_INSERT, _OP_DELETE, _OP_UPDATE = Op.INSERT, Op.DELETE, Op.UPDATE


@dataclass(eq=False, kw_only=True)
class SourceUncertainError(SourceError):
    """Nobody can tell what a failed statement left of its changes: the transaction was rolled back."""

    table: str

    def __str__(self) -> str:
        return f"cannot tell what a failed statement has left in {self.table}: the transaction was rolled back"


class RowRecorder:
    """Records one connection's row changes. Not for threads."""

    def __init__(self, db: apsw.Connection, plans: dict[str, TablePlan]) -> None:
        self._db = db
        self._unread: tuple[int, TablePlan, int] | None = None  # entry whose new image must be read by SELECT
        self.plans = plans
        """The tables that are captured, as the open transaction sees them."""
        self.buffer = TransactionBuffer(_open_spill)
        self._spill_at = SPILL_BYTES
        self.bytes = 0
        """About how many bytes of images the buffer holds."""
        self.poison: BaseException | None = None
        """Why the open transaction must not commit."""

    def reset(self) -> None:
        """Forget the transaction, which has ended. Runs no SQL."""
        self.buffer.clear()
        self.bytes = 0
        self._spill_at = SPILL_BYTES
        self.poison = None
        self._unread = None

    def on_row(self, update: apsw.PreUpdate) -> None:
        """Note a row change that SQLite is about to carry out: the preupdate hook."""
        try:
            if update.database_name != SCHEMA:
                return
            plan = self.plans.get(update.table_name)
            if plan is None:
                return
            if self._unread is not None:
                self.read_unread()
            if len(self.buffer.entries) >= SPILL_ENTRIES or self.bytes >= self._spill_at:
                self.make_room()
            if plan.plain:
                opcode = update.opcode
                table = plan.map
                try:
                    old = None if opcode == _INSERT else update.old
                    new = None if opcode == _DELETE else update.new
                except UnicodeDecodeError:
                    self._on_other_row(plan, update)
                    return
                reals = plan.reals
                if reals:
                    if old is not None:
                        old = as_real(old, reals)
                    if new is not None:
                        new = as_real(new, reals)
                if plan.null_key is not None and (_lacks_key(old, table) or _lacks_key(new, table)):
                    table = plan.null_key
                place = update.rowid
                if old is None:
                    after = encode_row(new)  # type: ignore[arg-type]
                    row = _row((table, _OP_INSERT, None, after, place, place))
                    self.bytes += len(after)
                elif new is None:
                    before = encode_row(old)
                    row = _row((table, _OP_DELETE, before, None, place, place))
                    self.bytes += len(before)
                else:
                    before = encode_row(old)
                    after = encode_row(new)
                    row = _row((table, _OP_UPDATE, before, after, place, update.rowid_new))
                    self.bytes += len(before) + len(after)
                self.buffer.entries.append(row)
                return
            self._on_other_row(plan, update)
        except BaseException as exc:
            if self.poison is None:
                self.poison = exc

    def make_room(self) -> None:
        """Move the changes in memory to a temporary file where they have grown large. Raises our disk errors."""
        buffer = self.buffer
        if len(buffer.entries) >= SPILL_ENTRIES or self.bytes >= self._spill_at:
            try:
                buffer.spill()
            except OSError as exc:
                if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise DiskFullError(path=tempfile.gettempdir()) from exc
                raise DiskFailedError(path=tempfile.gettempdir(), why=str(exc)) from exc
            self._spill_at = self.bytes + SPILL_BYTES

    def forget_flushed(self) -> None:
        """Forget the changes that the outbox has taken."""
        self.buffer.forget_changes()
        self.bytes = 0
        self._spill_at = SPILL_BYTES

    def _on_other_row(self, plan: TablePlan, update: apsw.PreUpdate) -> None:
        """Note a change of a row that the hook does not give as it is, or not at all."""
        op = {_INSERT: Op.INSERT, _DELETE: Op.DELETE}.get(update.opcode, Op.UPDATE)
        old: Row | None = None
        new: Row | None = None
        by_select = plan.by_select
        if not by_select:
            try:
                old = None if op is Op.INSERT else _carried(plan, update.old)
                new = None if op is Op.DELETE else _carried(plan, update.new)
            except UnicodeDecodeError:
                by_select = True
        rowid_new = update.rowid_new if op is Op.UPDATE else update.rowid
        old_place: Place = update.rowid
        new_place: Place = rowid_new
        if by_select:
            if plan.place_key is not None or not plan.where:
                raise UnsupportedTypeError(
                    table=plan.map.name,
                    column="(any)",
                    type_name="text that is not UTF-8, or a virtual generated column, in a table without a rowid",
                )
            if op is not Op.INSERT:
                old = self.row_at(plan, old_place)
                assert old is not None, "SQLite reports a row that is not there"
            if op is not Op.DELETE:
                self._unread = (len(self.buffer), plan, rowid_new)
        elif plan.place_key is not None:
            key = plan.place_key
            old_place = tuple([old[i] for i in key]) if old is not None else ()
            new_place = tuple([new[i] for i in key]) if new is not None else ()
        before = None if old is None else encode_row(old)
        after = None if new is None else encode_row(new)
        self.bytes += (0 if before is None else len(before)) + (0 if after is None else len(after))
        table = plan.map
        if plan.null_key is not None and (_lacks_key(old, table) or _lacks_key(new, table)):
            table = plan.null_key
        self.buffer.entries.append(BufferedRow(table, op, before, after, old_place, new_place))

    def row_at(self, plan: TablePlan, place: Place) -> Row | None:
        """Return a row as it stands now; inside the hook that is the row before its change."""
        places = place if isinstance(place, tuple) else (place,)
        for row in self._db.execute(f"{plan.select_typed} WHERE {plan.where}", places):
            return typed_row(row)
        return None

    def read_unread(self, *, failed: bool = False) -> None:
        """Get the new image of a change that the hook could not give, now that SQLite has carried it out.

        Behind a statement that failed and was undone the image is that of before, which makes the change none.
        """
        if self._unread is None:
            return
        at, plan, rowid = self._unread
        self._unread = None
        try:
            row = self.row_at(plan, rowid)
            at -= self.buffer.spilled  # the newest entry: no spill comes between a change and its reading
            entry = self.buffer.entries[at]
            assert isinstance(entry, BufferedRow)
            if row is None:
                assert failed, "SQLite carried out a change and the row is not there"
                self.buffer.entries[at] = entry._replace(after=None)
                return
            table = entry.table
            if plan.null_key is not None and _lacks_key(row, plan.map):
                table = plan.null_key
            after = encode_row(row)
            self.bytes += len(after)
            self.buffer.entries[at] = entry._replace(table=table, after=after)
        except BaseException as exc:
            self.poison = exc

    def kept(self, mark: int) -> bool | None:
        """Whether a failed statement's changes stand in the database; None where the database does not tell.

        Conflict resolution FAIL keeps all of them, ABORT undoes all of them.
        """
        change = net_change(self.buffer.since(mark))
        if change is None:
            return False
        plan = self.plans[change.table]
        if plan.where:
            row = self.row_at(plan, change.place)
            image = None if row is None else encode_row(row)
            if image == change.after:
                return True
            if image == change.before:
                return False
        self.poison = SourceUncertainError(table=plan.map.name)
        return None


def _open_spill() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="tranlog-")


def as_real(row: Row | None, reals: tuple[int, ...]) -> Row | None:
    """Return a row with REAL columns' integers as floats: SQLite reports the default of a column added later so."""
    if row is not None:
        for index in reals:
            if type(row[index]) is int:
                values = list(row)
                for at in reals:
                    if type(values[at]) is int:
                        values[at] = float(values[at])  # type: ignore[arg-type]
                return tuple(values)
    return row


def _carried(plan: TablePlan, row: Row | None) -> Row:
    """Return a row of the hook as it is carried: without generated columns, REAL as REAL."""
    assert row is not None
    carried = as_real(row if plan.kept is None else tuple([row[i] for i in plan.kept]), plan.reals)
    assert carried is not None
    return carried


def _lacks_key(row: Row | None, table: TableMap) -> bool:
    if row is not None:
        for index in table.primary_key:
            if row[index] is None:
                return True
    return False

"""The outbox as its writers see it: the fragments of the open transaction, inserted in that same transaction.

Owns `_tranlog_outbox`'s rows until COMMIT; `sqlite` reads and frees them afterwards. The hard idea: a COMMIT may be
refused (a deferred constraint) and the transaction goes on, so what was written for it can be taken back, packer
and all.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import apsw

from tranlog.change import Fragment, Op, Statement, TableMap, TableName
from tranlog.clock import Clock
from tranlog.errors import SourceError
from tranlog.shard import ShardRule
from tranlog.source.packer import TransactionPacker
from tranlog.source.sqlite.buffer import Entry
from tranlog.source.sqlite.schema import OUTBOX_TABLE

DBMS_METADATA = (("dbms_type", "sqlite"),)
_ROWS_AT_ONCE = 1000
ID_STEP = 0xFFFF
"""Outbox ids rise by a random step up to this, less one: a database restored from an older copy does not hand out
again the ids that a log already has, and so is found out."""

_INSERT = f"""
INSERT INTO main.{OUTBOX_TABLE}(id, last, tstamp, serial, shard, tables, payload) VALUES(
    COALESCE((SELECT seq FROM main.sqlite_sequence WHERE name = '{OUTBOX_TABLE}'), 0) + 1 + (random() & {ID_STEP}),
    ?, ?, ?, ?, ?, ?)"""


@dataclass(eq=False, kw_only=True)
class RowTooLargeError(SourceError):
    """A row whose change SQLite cannot store in the outbox beside it: the transaction cannot commit.

    `size` is that of the fragment that was refused, in bytes; `limit` what SQLite stores in one row.
    """

    tables: tuple[str, ...]
    size: int
    limit: int

    def __str__(self) -> str:
        return (
            f"a change of {', '.join(self.tables) or 'a table'} takes {self.size} bytes with both of its images, and "
            f"SQLite stores {self.limit} in one row: the transaction was not committed. Store smaller values"
        )


class OutboxWriter:
    """Writes one connection's transactions into the outbox, one at a time. Not for threads."""

    def __init__(self, db: apsw.Connection, *, fragment_bytes: int, rule: ShardRule, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._packer = TransactionPacker(source_id="", rule=rule, fragment_bytes=fragment_bytes)
        self._packer_before: TransactionPacker | None = None
        self._finishing = False
        self._first_written: int | None = None
        self.rows_written = 0
        """How many rows SQLite has counted as changed for the outbox, ever."""
        self.reset()

    def reset(self) -> None:
        """Forget the transaction, which has ended. Runs no SQL."""
        self._open = False
        self._serial = False
        self._packer_before = None
        self._finishing = False

    @property
    def open(self) -> bool:
        """Whether changes of the transaction have been taken already."""
        return self._open

    def flush(self, entries: Iterable[Entry], rule: ShardRule) -> None:
        """Take changes of a transaction that goes on, and write the fragments that get full.

        When this raises, the transaction must be rolled back: part of them may be written.
        """
        now = self._clock.now_ms()
        packer = self._packer
        if not self._open:
            packer.begin(rule)
            self._open = True
        rows: list[bytes] = []  # of one table and operation, one behind the other
        rows_of: TableMap | None = None
        rows_op = Op.INSERT
        for entry in entries:
            if isinstance(entry, Statement):
                self._take(rows_of, rows_op, rows, now)
                self._serial = True
                fragment = packer.add(entry, event_id="", tstamp=now)
                if fragment is not None:
                    self._insert(fragment)
                continue
            table, op, before, after, _, _ = entry
            images = after if before is None else before if after is None else before + after
            assert images is not None
            if table is not rows_of or op is not rows_op or len(rows) == _ROWS_AT_ONCE:
                self._take(rows_of, rows_op, rows, now)
                rows_of, rows_op = table, op
            rows.append(images)
        self._take(rows_of, rows_op, rows, now)

    def _take(self, table: TableMap | None, op: Op, rows: list[bytes], now: int) -> None:
        """Give rows to the packer, and write the fragments that get full."""
        if rows:
            assert table is not None
            for fragment in self._packer.add_encoded_rows(table, op, rows, event_id="", tstamp=now):
                self._insert(fragment)
            rows.clear()

    def finish(self, entries: Iterable[Entry], rule: ShardRule) -> None:
        """Write the last changes of a transaction that is about to commit. Until `reset`, `take_back` undoes it."""
        self._packer_before = copy.deepcopy(self._packer) if self._open else None
        self._finishing = True
        self._first_written = None
        self.flush(entries, rule)
        now = self._clock.now_ms()
        self._insert(self._packer.finish(event_id="", tstamp=now, metadata=DBMS_METADATA))

    def take_back(self) -> bool:
        """Undo a `finish`, whole or not, since the transaction goes on; return whether there was one."""
        if not self._finishing:
            return False
        db = self._db
        if self._first_written is not None:
            before = db.total_changes()
            db.execute(f"DELETE FROM main.{OUTBOX_TABLE} WHERE id >= ?", (self._first_written,))
            self.rows_written += db.total_changes() - before
        self._finishing = False
        if self._packer_before is None:
            self._open = False
        else:
            self._packer, self._packer_before = self._packer_before, None
        return True

    def _insert(self, fragment: Fragment) -> None:
        db = self._db
        rowid = db.last_insert_rowid()
        tables = None if fragment.tables is None else tables_text(fragment.tables)
        row = (fragment.last, fragment.tstamp, self._serial, fragment.shard_id, tables, fragment.payload)
        try:
            db.execute(_INSERT, row)
        except apsw.TooBigError as exc:
            raise RowTooLargeError(
                tables=tuple([f"{schema}.{table}" for schema, table in fragment.tables or ()]),
                size=len(fragment.payload),
                limit=db.limit(apsw.SQLITE_LIMIT_LENGTH),
            ) from exc
        self.rows_written += 1
        if self._first_written is None:
            self._first_written = db.last_insert_rowid()
        db.set_last_insert_rowid(rowid)


@lru_cache(maxsize=1024)
def tables_text(tables: tuple[TableName, ...]) -> str:
    """Return the names of tables as the outbox holds them: JSON."""
    return json.dumps(tables, ensure_ascii=False)

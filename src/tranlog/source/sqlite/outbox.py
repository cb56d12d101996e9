"""The outbox as its writers see it: the pieces of the open transaction, inserted in that same transaction.

Owns `_tranlog_outbox`'s rows until COMMIT; `source` reads and frees them afterwards, `raw` is what stands in them. The
hard idea: a COMMIT may be refused (a deferred constraint) and the transaction goes on, so what was written for it can
be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from tranlog.clock import Clock
from tranlog.errors import SourceError
from tranlog.source.sqlite.raw import encode_piece
from tranlog.source.sqlite.recorder import RowRecorder
from tranlog.source.sqlite.schema import OUTBOX_TABLE, SOURCE_TABLE

ID_STEP = 0xFFFF
"""Outbox ids rise by a random step up to this, less one: a database restored from an older copy does not hand out
again the ids that a log already has, and so is found out."""

# Above every id there ever was: one that is not in the outbox any more was freed, and `captured` is not below it.
_INSERT = f"""
INSERT INTO main.{OUTBOX_TABLE}(id, last, tstamp, changes) VALUES(
    max((SELECT captured FROM main.{SOURCE_TABLE}), COALESCE((SELECT max(id) FROM main.{OUTBOX_TABLE}), 0))
    + 1 + (random() & {ID_STEP}), ?, ?, ?)"""


@dataclass(eq=False, kw_only=True)
class RowTooLargeError(SourceError):
    """A row whose change SQLite cannot store in the outbox beside it: the transaction cannot commit.

    `size` is that of the piece that was refused, in bytes; `limit` what SQLite stores in one row.
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

    def __init__(self, db: apsw.Connection, recorder: RowRecorder, *, piece_bytes: int, clock: Clock) -> None:
        self._db = db
        self._recorder = recorder
        self._piece_bytes = piece_bytes
        self._clock = clock
        self._finishing = False
        self._first_written: int | None = None
        self.open = False
        """Whether changes of the transaction have been taken already."""
        self.rows_written = 0
        """How many rows SQLite has counted as changed for the outbox, ever."""

    def reset(self) -> None:
        """Forget the transaction, which has ended. Runs no SQL."""
        self.open = False
        self._finishing = False

    def flush(self) -> None:
        """Write the recorder's changes, those of a transaction that goes on, and let the recorder forget them.

        When this raises, the transaction must be rolled back: part of them may be written.
        """
        self._write(last=False)
        self.open = True
        self._recorder.forget_flushed()

    def finish(self) -> None:
        """Write the last changes of a transaction that is about to commit. Until `reset`, `take_back` undoes it."""
        self._finishing = True
        self._first_written = None
        self._write(last=True)

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
        return True

    def _write(self, *, last: bool) -> None:
        """Write the changes in pieces; the transaction's last one may be without any."""
        recorder = self._recorder
        head, now = recorder.head(), self._clock.now_ms()
        buffer = recorder.buffer
        if recorder.bytes < self._piece_bytes and not buffer.spilled:
            return self._insert(head, buffer.entries, now, last=last)
        piece: list[bytes] = []
        size = 0
        for entry in buffer:
            if size >= self._piece_bytes:
                self._insert(head, piece, now, last=False)
                piece, size = [], 0
            piece.append(entry)
            size += len(entry)
        self._insert(head, piece, now, last=last)

    def _insert(self, head: bytes, changes: Sequence[bytes], now: int, *, last: bool) -> None:
        db = self._db
        rowid = db.last_insert_rowid()
        piece = encode_piece(head, changes)
        try:
            db.execute(_INSERT, (last, now, piece))
        except apsw.TooBigError as exc:
            raise RowTooLargeError(
                tables=self._recorder.table_names(), size=len(piece), limit=db.limit(apsw.SQLITE_LIMIT_LENGTH)
            ) from exc
        self.rows_written += 1
        if self._first_written is None:
            self._first_written = db.last_insert_rowid()
        db.set_last_insert_rowid(rowid)

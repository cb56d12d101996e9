"""The outbox as its writers see it: the pieces of the open transaction, inserted in that same transaction.

Owns `_tranlog_outbox`'s rows until COMMIT, and when a writer frees what capture has carried over (`claim` says what
may go); `source` reads them, `raw` is what stands in them. The hard idea: a COMMIT may be refused (a deferred
constraint) and the transaction goes on, so what was written for it can be taken back. Compiled, see `tranlog.compiled`.
"""

from __future__ import annotations

import os
from typing import Final

import apsw

from tranlog.clock import Clock
from tranlog.source.sqlite.claim import free, read_progress
from tranlog.source.sqlite.lost_changes import RowTooLargeError
from tranlog.source.sqlite.raw import OUTBOX_TABLE, encode_piece
from tranlog.source.sqlite.recorder import RowRecorder

FREE_EVERY_COMMITS: Final = 16
FREE_EVERY_MS: Final = 1000
"""A writer looks so often for rows to free: a look reads a file, and freeing takes some pages more in the WAL."""

# SQLite gives the largest id plus 1, which is above every id there ever was: the last row captured is never freed.
INSERT_PIECE: Final = f"INSERT INTO main.{OUTBOX_TABLE}(last, tstamp, token, synced, changes) VALUES(?, ?, ?, ?, ?)"
_TAKE_BACK: Final = f"DELETE FROM main.{OUTBOX_TABLE} WHERE id > (SELECT max(id) FROM main.{OUTBOX_TABLE}) - ?"
_TOKEN_MOST: Final = (1 << 63) - 1


def random_token() -> int:
    """Return a token, which another row of any outbox has by chance alone, once in 2^64. Shape: SQLite's 64 bits."""
    return int.from_bytes(os.urandom(8), "big", signed=True)


class OutboxWriter:
    """Writes one connection's transactions into the outbox of the database `uuid`, one at a time. Not for threads."""

    def __init__(
        self, db: apsw.Connection, recorder: RowRecorder, *, uuid: str, piece_bytes: int, clock: Clock
    ) -> None:
        self._db = db
        self._cursor = db.cursor()  # kept: a new one for each piece takes a tenth of its time
        self._uuid = uuid
        self._recorder = recorder
        self._piece_bytes = piece_bytes
        self._clock = clock
        self.finishing = False
        """Whether what COMMIT needs is written, whole or not."""
        self.exact = True
        """Whether it is known what is written."""
        self._written = 0  # rows of the outbox, by `finish`
        self._token = random_token()  # counted on: asking for chance costs a small transaction a fiftieth
        self.open = False
        """Whether changes of the transaction have been taken already."""
        self.rows_written = 0
        """How many rows SQLite has counted as changed for the outbox, ever."""
        self.synced = True
        """Whether a commit waits until the WAL is durable."""
        self._commits = FREE_EVERY_COMMITS  # since the last look for what to free
        self._looked_ms = 0

    def reset(self) -> None:
        """Forget the transaction, which has ended. Runs no SQL."""
        self.open = self.finishing = False
        self.exact = True

    def flush(self) -> None:
        """Write the recorder's changes, those of a transaction that goes on, and let the recorder forget them.

        When this raises, the transaction must be rolled back: part of them may be written.
        """
        self._write(last=False)
        self.open = True
        self._recorder.forget_flushed()

    def finish(self) -> None:
        """Write the last changes of a transaction that is about to commit. Until `reset`, `take_back` undoes it."""
        self._written = 0
        self.finishing = True
        now_ms = self._write(last=True)
        self._commits += 1
        if self._commits >= FREE_EVERY_COMMITS or not 0 <= now_ms - self._looked_ms < FREE_EVERY_MS:
            self._free(now_ms)

    def _free(self, now_ms: int) -> None:
        """Free some of what the log has durable, in the open transaction; see `claim.free`."""
        more = False
        progress = read_progress(self._db.filename)
        if progress is not None and progress.uuid == self._uuid:
            count, more = free(self._db, progress, below=progress.place.id)
            self.rows_written += count
        self._commits = FREE_EVERY_COMMITS if more else 0
        self._looked_ms = now_ms

    def take_back(self) -> None:
        """Undo a `finish`, whole or not, since the transaction goes on. Only while `exact`."""
        db = self._db
        if self._written:
            db.execute(_TAKE_BACK, (self._written,))
            self.rows_written += self._written
        self.finishing = False

    def _write(self, *, last: bool) -> int:
        """Write the changes in pieces; the transaction's last one may be without any. Return the time, `now_ms`."""
        recorder = self._recorder
        head, now = recorder.head(), self._clock.now_ms()
        buffer = recorder.buffer
        if recorder.hook.bytes < self._piece_bytes and not buffer.spilled:
            entries = buffer.entries
            # One entry is an array of changes as it is.
            piece = head + entries[0] if len(entries) == 1 else encode_piece(head, entries)
            self._insert(piece, now, last=last)
            return now
        listed: list[bytes] = []
        size = 0
        for entry in buffer:
            if size >= self._piece_bytes:
                self._insert(encode_piece(head, listed), now, last=False)
                listed, size = [], 0
            listed.append(entry)
            size += len(entry)
        self._insert(encode_piece(head, listed), now, last=last)
        return now

    def _insert(self, piece: bytes, now: int, *, last: bool) -> None:
        db = self._db
        rowid = db.last_insert_rowid()
        self._token = self._token + 1 if self._token < _TOKEN_MOST else -_TOKEN_MOST
        self.exact = False
        try:
            self._cursor.execute(INSERT_PIECE, (last, now, self._token, self.synced, piece))
        except apsw.Error as exc:
            self.exact = True
            if not isinstance(exc, apsw.TooBigError):
                raise
            raise RowTooLargeError(
                tables=self._recorder.table_names(), size=len(piece), limit=db.limit(apsw.SQLITE_LIMIT_LENGTH)
            ) from exc
        self.rows_written += 1
        self._written += 1
        self.exact = True
        db.set_last_insert_rowid(rowid)

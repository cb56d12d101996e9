"""Reading a SQLite source's outbox, a page at a time.

Owns which rows a look reads, and where a transaction ends whose rows triggers wrote: nobody says so, and all of them
that stand together and are committed by then make one, but for a snapshot's place, which stays between two. That end is
found once, and then read up to by as many pages as it takes.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import apsw

from tranlog.errors import SourceError, SourceUnavailableError, UnsupportedTypeError
from tranlog.source.sqlite.claim import sync_wal
from tranlog.source.sqlite.opening import db_transaction
from tranlog.source.sqlite.raw import OUTBOX_TABLE
from tranlog.source.sqlite.triggers import BY_TRIGGER, TriggerRow, TriggerTables, read_values

_PAGE_ROWS = 256
_PAGE_BYTES = 1 << 20
"""A look reads so many rows at most, and no more of them once they hold so many bytes. It ends before anything is done
with them: for as long as a read transaction lasts, the WAL cannot begin anew."""
_ROWS_OF_TRIGGERS = 16
"""A page has so many times as many rows where triggers write them: each is one change."""
_MS_AT = "CAST((tstamp - 2440587.5) * 86400000 AS INTEGER)"  # a trigger notes a Julian day
_READ = (
    f"SELECT id, token, last, synced, COALESCE(CASE last WHEN {BY_TRIGGER} THEN {_MS_AT} ELSE CAST(tstamp AS INTEGER) "
    f"END, 0), CASE WHEN last = {BY_TRIGGER} AND typeof(changes) = 'integer' THEN changes "
    "ELSE COALESCE(CAST(changes AS BLOB), x'') END "
    f"FROM main.{OUTBOX_TABLE} WHERE id > ? ORDER BY id LIMIT ?"
)
_END_OF_RUN = f"""
SELECT coalesce((SELECT id - 1 FROM main.{OUTBOX_TABLE} WHERE id > ?1 AND last <> {BY_TRIGGER} ORDER BY id LIMIT 1),
    (SELECT max(id) FROM main.{OUTBOX_TABLE}))"""


class OutboxRow(NamedTuple):
    """A row of the outbox; `last`: whether its transaction ends with it."""

    id: int
    token: int
    last: bool
    tstamp: int
    changes: bytes | TriggerRow


class OutboxPages:
    """Reads one outbox by one connection. `check_place` is called in each read transaction. Not for threads."""

    def __init__(
        self, reader: apsw.Connection, path: str, check_place: Callable[[apsw.Connection], None], *, by_trigger: bool
    ) -> None:
        self.tables = TriggerTables()
        """What the rows of triggers name."""
        self._reader = reader
        self._path = path
        self._check_place = check_place
        self._by_trigger = by_trigger
        self._run_end = 0  # the last id of the transaction at hand, of those that triggers wrote
        self._snapshot_at = 0

    def keep_apart(self, outbox_id: int) -> None:
        """Let no transaction have rows both up to this id, a snapshot's newest, and after it."""
        self._snapshot_at = outbox_id

    def read(self, after: int) -> deque[OutboxRow]:
        """Return the next rows after an id. Raises what ends capture for good."""
        reader, path = self._reader, self._path
        rows: deque[OutboxRow] = deque()
        expected, size, durable = after, 0, True
        most = _PAGE_ROWS * (_ROWS_OF_TRIGGERS if self._by_trigger else 1)
        try:
            with db_transaction(reader, write=False):
                self._check_place(reader)
                cursor = reader.cursor()
                for number, token, last, synced, tstamp, changes in cursor.execute(_READ, (after, most)):
                    expected += 1
                    if number != expected:
                        raise SourceError(
                            f"the outbox of {path} lacks the row {expected}, and {number} is there: something other "
                            "than capture deleted from it. Restore the database from a copy"
                        )
                    if type(changes) is int:
                        self._run_end = self._run_end if number <= self._run_end else self._end_of_run(number)
                        rows.append(OutboxRow(number, token, number == self._run_end, tstamp, TriggerRow(changes, ())))
                    else:
                        rows.append(OutboxRow(number, token, bool(last), tstamp, changes))
                        size += len(changes)
                    durable = durable and bool(synced)
                    if size >= _PAGE_BYTES or number == self._run_end:
                        break
                cursor.close(True)
                rows = self._with_values(rows)
            if not durable:
                sync_wal(reader.filename)
        except UnicodeDecodeError as exc:
            kind = "text that is not UTF-16"
            raise UnsupportedTypeError(table="(any)", column="(any)", type_name=kind) from exc
        except (apsw.Error, OSError) as exc:
            raise SourceUnavailableError(where=path, why=str(exc)) from exc
        return rows

    def _end_of_run(self, number: int) -> int:
        """Return the last id of the rows by triggers that stand together, which were all committed by now."""
        ((found,),) = self._reader.execute(_END_OF_RUN, (number,)).fetchall()
        assert isinstance(found, int)
        return min(found, self._snapshot_at) if number <= self._snapshot_at else found

    def _with_values(self, rows: deque[OutboxRow]) -> deque[OutboxRow]:
        """Return rows with what triggers copied, in the open transaction; fewer, where those hold many bytes."""
        numbers = [row.changes.changes for row in rows if isinstance(row.changes, TriggerRow)]
        if not numbers:
            return rows
        reader, size = self._reader, 0
        self.tables.look(reader, numbers)
        filled: deque[OutboxRow] = deque()
        with contextlib.closing(read_values(reader, rows[0].id, rows[-1].id)) as found:
            for row, values in zip(rows, found, strict=True):
                if isinstance(row.changes, TriggerRow):
                    row = row._replace(changes=row.changes._replace(values=values))
                    size += sum([len(value) for value in values if isinstance(value, str | bytes)])
                filled.append(row)
                if size >= _PAGE_BYTES:
                    break
        return filled

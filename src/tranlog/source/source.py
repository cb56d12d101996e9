"""What every source database offers to capture: a position, a stream of fragments, and being freed.

Owns the seam between `capture` and the databases. The hard idea: a source hands out each committed transaction
exactly once per position, in commit order, and forgets nothing before `release` says that the log has it durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import msgspec

from tranlog.change import Fragment, TableMap, TableName
from tranlog.loads import Key
from tranlog.row_blocks import RowBlock
from tranlog.types import Value


class Source(Protocol):
    """A database whose committed transactions can be followed.

    Threads: all methods are called by one thread, except `stop`.
    """

    source_id: str
    """Names this source in every record: host, service or file; stable over restarts."""

    def start(self, event_id: str | None) -> None:
        """Check the set-up and get ready to read what was committed after `event_id`.

        None means a log without any event: start where the source's options say. Raises SourceSetupError,
        SourceUnavailableError, PositionLostError; and then nothing was read.
        """

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        """Yield the fragments that are there, waiting up to `timeout_s` for the first; end when none is left for now.

        Shape: whole transactions in commit order, no gaps, no repeats over successive calls; the iteration may
        end only after a fragment that is the `last` of its transaction. Raises SourceError.
        """

    def release(self, event_id: str) -> None:
        """Forget or acknowledge everything up to and including `event_id`: the log has it durable."""

    def stop(self) -> None:
        """Make a waiting `read` end soon. Callable from another thread or a signal handler."""

    def close(self) -> None:
        """Free connections; closing twice is harmless."""


@runtime_checkable
class ClaimedSource(Source, Protocol):
    """A source that knows which log it is for, and lets no other one follow it."""

    def claim(self, *, history: bytes, holder: str, take: bool) -> None:
        """Say who follows it from the next `start` on: the log of that history, in the directory of that holder.

        `start` then raises SourceClaimedError where it is another holder's, unless it is to `take` it.
        """


@runtime_checkable
class NotingSource(Source, Protocol):
    """A source that needs to know at its start what no server says any more; the log's directory keeps it."""

    def notes(self) -> bytes | None:
        """Return what a start after the last `release` needs to know; None: what was returned last, or nothing yet.

        It may be older than that, and is never ahead of what was released.
        """

    def take_notes(self, notes: bytes) -> None:
        """Take what `notes` returned last for this log; called before `start`."""


@runtime_checkable
class ServerSource(Source, Protocol):
    """A source at a server that has to prove, at each connection, that it has the log's history."""

    accept_server: bool
    """Set by a caller on an operator's word: the next connection takes the server for one of the log's history."""


@runtime_checkable
class SendingSource(Source, Protocol):
    """A source at a server, which sends what it has when it likes: that nothing comes does not say that it has none."""

    def end(self) -> str:
        """Return up to where the server has by now what it is to send. Raises SourceError."""

    def has_given(self, end: str) -> bool:
        """Whether `read` has given, or passed over, all up to there; asked after a read that ended."""


class TableReader(Protocol):
    """Reads a source's tables as they are now: for `tranlog verify` and `tranlog tables create`."""

    def tables(self) -> list[TableMap]:
        """Return the captured tables by (schema, table): without the database's own and without ours."""

    def rows(self, table: TableMap, limit: int | None = None) -> Iterator[tuple[Value, ...]]:
        """Yield a table's rows, up to `limit`, as the capture would carry them, in no order, streaming."""

    def estimate(self, table: TableMap) -> int:
        """Return about how many rows a table has, by what the source has at hand; 0: it has nothing."""

    def beside(self) -> dict[str, str]:
        """Return the captured tables, `schema.table`, whose rows cannot be read at a position, and why."""

    def close(self) -> None:
        """Free the connection; closing twice is harmless."""


class Snapshot(Protocol):
    """A source's tables as they were at one position of its own, over a connection of its own.

    Threads: one, the capture's.
    """

    serves_all: bool
    """Whether all chunks of a load are read from it, at this one position."""

    def table(self, name: TableName) -> TableMap | None:
        """Return a captured table as it was at the position; None: there is none. Raises SourceError."""

    def is_ordered(self, table: TableMap) -> bool:
        """Whether `chunk` gives rows in the order of the key, as `loads.is_key` wants it, and takes its bounds.

        Else a table is read at once.
        """

    def chunk(self, table: TableMap, after: Key | None, limit: int | None) -> Iterator[RowBlock]:
        """Yield the rows after a key, exclusive, up to `limit` of them, streaming. Raises SourceError."""

    def whole(self, table: TableMap) -> Iterator[RowBlock]:
        """Yield all rows of a table that `table` gave last, in no order, streaming. Raises SourceError.

        The server's lock on the table is free after it, where the server frees it before the snapshot's end.
        """

    def covers(self, event_id: str) -> bool:
        """Whether what was committed at this event id is in the rows."""

    def close(self) -> None:
        """Free the connection; closing twice is harmless."""


class SnapshotWait(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that the server has not taken yet. `why`: for whom it waits, once that takes long; else ""."""

    why: str = ""


@runtime_checkable
class LoadableSource(Source, Protocol):
    """A source whose tables can be read at a position."""

    def begins_earlier(self) -> bool:
        """Whether a log without any event begins before now, and gets rows that are there already from the stream."""

    def reader(self) -> TableReader:
        """Return what reads the tables as they are now."""

    def snapshot(self) -> Snapshot | SnapshotWait:
        """Return a snapshot of now, without a lock; or that it is being taken: ask again. Raises SourceError."""

    def has_reached(self, snapshot: Snapshot) -> bool:
        """Whether `read` has given all that the snapshot covers; asked after a read that ended."""

    def drop_snapshot(self) -> None:
        """Forget a snapshot that is being taken."""

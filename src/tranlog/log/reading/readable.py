"""What readers of transactions need of a log, whatever its codec.

Owns the seam alone. `log.reader` is the native log behind it, `tungsten.translated` the Java replicator's.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Protocol, runtime_checkable

from tranlog.change import Change
from tranlog.errors import PurgedError
from tranlog.header import Passes, Record, TransactionHeader
from tranlog.ids import Seqno
from tranlog.log.reading.reader import IndexEntry, LogRange
from tranlog.payload import Payload


class ReadableTransaction(Protocol):
    """One transaction: see `cursor.StoredTransaction`."""

    @property
    def header(self) -> TransactionHeader:
        """The last fragment's header, which speaks for the whole."""

    @property
    def fragments(self) -> int:
        """How many fragments it has."""

    @property
    def size_bytes(self) -> int | None:
        """How many bytes its records have; None where nobody knows."""

    @property
    def checksum(self) -> int | None:
        """The checksum of the last fragment's bytes as they stand in its log; None where there is none."""

    def payloads(self) -> Iterator[bytes]:
        """Yield each fragment's payload, in the native form."""

    def records(self) -> Iterator[Record]:
        """Yield each fragment's header and payload."""

    def changes(self) -> Iterator[Change]:
        """Yield the changes of all fragments, again at each call."""

    def payload(self) -> Payload:
        """Return the whole content at once; for small transactions."""


@runtime_checkable
class ForeignTransaction(Protocol):
    """One that stands in another codec."""

    def foreign(self) -> list[bytes]:
        """Return each fragment's payload as it stands there."""


class ReadableCursor(Protocol):
    """A place in the log that moves forward: see `cursor.Cursor`."""

    def seek(self, seqno: Seqno) -> None:
        """Stand before `seqno`."""

    def next_header(self, timeout_s: float = 0.0) -> TransactionHeader | None:
        """Return the next transaction's header, or None if none is there within `timeout_s`."""

    def pass_over(self, shards: Container[bytes], upto: Seqno, passes: Passes | None = None) -> Seqno:
        """Pass the next transactions of these shards as far as that is cheap; return the seqno passed last.

        With `passes` those of which it says so instead.
        """

    def passed(self) -> TransactionHeader:
        """Return the header of the transaction that `pass_over` passed last."""

    def current(self) -> ReadableTransaction:
        """Return the transaction whose header `next_header` returned last."""

    def close(self) -> None:
        """Close the files."""

    def __enter__(self) -> ReadableCursor: ...

    def __exit__(self, *exc: object) -> None: ...


class ReadableLog(Protocol):
    """A log opened for reading: see `reader.LogReader`."""

    @property
    def path(self) -> str:
        """The log's directory."""

    @property
    def history(self) -> bytes | None:
        """The identity of its history, 16 bytes; None in the Java replicator's codec, which has none."""

    @property
    def keeps_holds(self) -> bool:
        """Whether its retention waits for holds."""

    def range(self) -> LogRange:
        """Return what the log holds now."""

    def header(self, seqno: Seqno) -> TransactionHeader | None:
        """Return the header of a transaction's last fragment; None for one that the log does not show."""

    def payload(self, seqno: Seqno) -> Payload:
        """Return the content of a transaction that the log shows, at once; for small ones."""

    def cursor(self, *, committed_only: bool = False) -> ReadableCursor:
        """Return a cursor at the first transaction."""

    def index(self) -> list[IndexEntry]:
        """Return one entry per segment."""

    def purged(self, seqno: Seqno) -> PurgedError:
        """Return the error for a seqno before the first one held."""

    def close(self) -> None:
        """Close the files; closing twice is harmless."""

    def __enter__(self) -> ReadableLog: ...

    def __exit__(self, *exc: object) -> None: ...

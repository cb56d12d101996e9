"""A Tungsten directory behind the seam of native logs: what a pipeline reads there are transactions of ours.

Owns the reader, its cursor and its transactions; what an event is here is `translate`'s. The hard idea: channels count
on a row without gaps and on headers that decide, so seqnos that the ancestor has no event for are shown as no-ops, and
a transaction with a statement in it is shown as serial, whatever shard the ancestor put it in: for that its content
must be looked at before its header is shown.

Source: docs/format.md.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from contextlib import closing

import msgspec

from tranlog.change import Change
from tranlog.clock import SYSTEM_CLOCK, Clock, check_seconds
from tranlog.closing import Closing
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import CorruptRecordError, LogClosedError, LogReplacedError, PayloadError, PurgedError
from tranlog.header import Passes, Record, TransactionHeader
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Seqno, segment_name
from tranlog.log.files.segments import SegmentStat
from tranlog.log.reading.reader import IndexEntry, LogRange
from tranlog.payload import Payload
from tranlog.shard import UNKNOWN_SHARD
from tranlog.tungsten.files.segments import TungstenSegment
from tranlog.tungsten.reading.reader import Seek, TungstenCursor, TungstenReader
from tranlog.tungsten.reading.stream import WholeReader, stand_before, translated, with_tables
from tranlog.tungsten.records.codec import CRC_32, segment_number
from tranlog.tungsten.rules.arrange import WIDE_GAP, Piece, Whole
from tranlog.tungsten.rules.translate import (
    MEANINGS,
    NO_CHANGES,
    Loss,
    NativeFragment,
    Outer,
    missing_fragment,
    outer_of,
)

_POLL_FIRST_S = 0.001
_POLL_LONGEST_S = 0.05


class TranslatedReader(Closing):
    """A Tungsten directory opened for reading as a log of ours; nothing in it is changed.

    Everything complete counts as committed: nothing in such a directory tells what is durable.
    Threads: any; `_lock` guards the limits. Each cursor belongs to one at a time.
    """

    keeps_holds = False
    """The replicator's retention knows nothing of us."""
    history = None
    """Its log has no identity."""

    def __init__(self, path: str, *, disk: Disk = OS_DISK, clock: Clock = SYSTEM_CLOCK, checksum: bool = True) -> None:
        """Open it. Raises what `TungstenReader.open` raises."""
        self.path = path
        self.disk = disk
        self.clock = clock
        self.checked = checksum
        self._lock = threading.Lock()
        self._reader = TungstenReader.open(path, disk=self.disk, checked=checksum)
        self._first_name = self._front()
        self._last = Seqno(self._reader.next_seqno - 1) if self._reader.last_seqno >= 0 else NO_SEQNO
        self._epoch = NO_EPOCH
        self._tail = WholeReader(self._at_end())
        self._closed = False

    def _at_end(self) -> TungstenCursor:
        cursor = self._reader.cursor()
        if self._last != NO_SEQNO:
            cursor.seek(self._reader.last_seqno)
        return cursor

    def _front(self) -> str:
        return min((name for name in self.disk.list_dir(self.path) if segment_number(name) is not None), default="")

    def range(self) -> LogRange:
        """Return what the directory holds now. Raises CorruptRecordError, LogReplacedError, and reading's errors."""
        with self._lock:
            if self._closed:
                raise LogClosedError()
            while (whole := self._tail.next()) is not None:
                self._last = Seqno(max(self._last, whole.end_seqno))
                self._epoch = Epoch(max(whole.pieces[-1].record.epoch, 0))
            why = self._tail.lost()
            if why is not None:
                raise LogReplacedError(path=self.path, why=why)
            if self._front() != self._first_name or (self._reader.first_seqno < 0 <= self._last):
                self._reader.refresh()
                self._first_name = self._front()
            empty = self._last == NO_SEQNO
            first = NO_SEQNO if empty else Seqno(self._reader.first_seqno)
            return LogRange(
                first_seqno=first,
                last_seqno=self._last,
                durable_seqno=self._last,
                committed_seqno=self._last,
                epoch=self._epoch,
                scanned=True,
            )

    def header(self, seqno: Seqno) -> TransactionHeader | None:
        """Return the header of a transaction's last fragment; None for one that the log does not show."""
        found = self.range()
        if seqno < 0 or not found.first_seqno <= seqno <= found.last_seqno:
            return None
        with self.cursor() as cursor:
            cursor.seek(seqno)
            return cursor.next_header()

    def payload(self, seqno: Seqno) -> Payload:
        """Return the content of a transaction that the log shows, at once; for small ones."""
        with self.cursor() as cursor:
            cursor.seek(seqno)
            assert cursor.next_header() is not None, f"the log shows no seqno {seqno}"
            return cursor.current().payload()

    def cursor(self, *, committed_only: bool = False) -> TranslatedCursor:
        """Return a cursor at the first transaction; complete and committed are the same here."""
        return TranslatedCursor(self, self.range().first_seqno)

    def reader(self) -> TungstenReader:
        """Return a reader of its own for one cursor."""
        return TungstenReader.open(self.path, disk=self.disk, checked=self.checked)

    def index(self) -> list[IndexEntry]:
        """Return one entry per segment; a Tungsten segment does not say when it was begun."""
        with self._lock:
            self._reader.refresh()
            return [
                SegmentStat(
                    number=one.number,
                    name=one.name,
                    first_seqno=Seqno(one.first_seqno),
                    last_seqno=Seqno(one.last_seqno if one.last_seqno >= 0 else one.first_seqno - 1),
                    bytes=one.bytes,
                    written_at=None,
                )
                for one in self._reader.index()
            ]

    def purged(self, seqno: Seqno) -> PurgedError:
        """Return the error for a seqno before the first one held; why it went, the replicator does not say."""
        return PurgedError(seqno=seqno, first=self.range().first_seqno)

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        with self._lock:
            self._closed = True
            self._tail.close()


class TranslatedCursor(Closing):
    """A place in a Tungsten directory that moves forward, one transaction at a time. Threads: one at a time."""

    def __init__(self, log: TranslatedReader, first: Seqno) -> None:
        self._log = log
        self._next = Seqno(max(first, 0))
        self._reading: WholeReader | None = None
        self._before: Outer | None = None  # the transaction before what is read next
        self._filled_upto = -1  # seqnos up to here have no event: a filtered range's, or a gap's
        self._waiting: Whole | None = None  # read, and its turn comes after the gap before it
        self._current: TranslatedTransaction | None = None

    def seek(self, seqno: Seqno) -> None:
        """Stand before `seqno`, also when it is not written yet. Raises PurgedError before the first one held."""
        self.close()
        self._next = seqno

    def _place(self) -> WholeReader:
        """Open the directory where the next seqno is, or what stands before it."""
        wanted = self._next
        reader = self._log.reader()
        cursor = reader.cursor()
        if reader.last_seqno < 0:
            return WholeReader(cursor)
        if wanted < reader.first_seqno:
            raise PurgedError(seqno=wanted, first=reader.first_seqno)
        found = cursor.seek(wanted)
        if found is Seek.NOT_YET:  # what comes may leave a gap, which is filled in the likeness of the last one
            cursor.seek(reader.last_seqno)
        elif found is Seek.MISSING:
            cursor.close()
            return stand_before(reader, max(wanted - 1, 0), strict=True, all_there=True)
        return WholeReader(cursor)

    def next_header(self, timeout_s: float = 0.0) -> TransactionHeader | None:
        """Return the next transaction's verdict header; `#UNKNOWN` as its shard where a statement is in it.

        Raises CorruptRecordError, PurgedError, LogReplacedError, SegmentGoneError, PayloadError.
        """
        check_seconds("timeout_s", timeout_s)
        clock = self._log.clock
        deadline = clock.monotonic() + timeout_s
        pause = _POLL_FIRST_S
        while True:
            found = self._advance()
            if found is not None:
                self._current = found
                self._next = Seqno(found.header.seqno + 1)
                return found.header
            left = deadline - clock.monotonic()
            if left <= 0:
                return None
            clock.sleep(min(pause, left))
            pause = min(pause * 2, _POLL_LONGEST_S)

    def _advance(self) -> TranslatedTransaction | None:
        wanted = self._next
        if self._reading is None:
            self._reading = self._place()
        while True:
            if wanted <= self._filled_upto:
                assert self._before is not None
                outer = msgspec.structs.replace(self._before, seqno=wanted, fragno=0, last_frag=True)
                return TranslatedTransaction.missing(self._log, outer)
            whole = self._waiting or self._reading.next()
            self._waiting = None
            if whole is None:
                why = self._reading.lost()
                if why is not None:
                    raise LogReplacedError(path=self._log.path, why=why)
                return None
            outer, _ = outer_of(whole.pieces[-1].record)
            if whole.seqno > wanted and self._before is not None:
                if whole.seqno - wanted > WIDE_GAP:
                    raise self._too_wide(whole)
                self._filled_upto = whole.seqno - 1
                self._waiting = whole
                continue
            self._before = outer
            if whole.end_seqno - whole.seqno > WIDE_GAP:
                raise self._too_wide(whole)
            self._filled_upto = whole.end_seqno
            if whole.seqno == wanted:
                return TranslatedTransaction.read(self._log, self._reading, whole)
            if whole.seqno > wanted:  # the log begins there
                raise PurgedError(seqno=wanted, first=whole.seqno)

    def _too_wide(self, whole: Whole) -> CorruptRecordError:
        piece = whole.pieces[0]
        return CorruptRecordError(
            segment=segment_name(piece.segment),
            offset=piece.record.offset,
            seqno=whole.seqno,
            why=MEANINGS[Loss.WIDE_GAP],
        )

    def pass_over(self, shards: Container[bytes], upto: Seqno, passes: Passes | None = None) -> Seqno:
        """Pass nothing: whether a transaction is serial shows only when it is read."""
        return Seqno(self._next - 1)

    def passed(self) -> TransactionHeader:
        """Return the header of what `pass_over` passed last: nothing, ever."""
        raise AssertionError("pass_over() passes nothing here")

    def current(self) -> TranslatedTransaction:
        """Return the transaction whose header `next_header` returned last."""
        assert self._current is not None, "next_header() has not returned a header since the last seek"
        return self._current

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        self._before = self._waiting = self._current = None
        self._filled_upto = -1


class TranslatedTransaction:
    """One transaction of a Tungsten directory as ours. Content of several fragments is read again at each call."""

    size_bytes: int | None = None
    """What a channel would tell of it has no place in a replicator's directory."""

    def __init__(
        self, log: TranslatedReader, header: TransactionHeader, whole: Whole | None, only: NativeFragment | None
    ) -> None:
        self._log = log
        self._whole = whole
        self._only = only
        self.header = header
        self.fragments = 1 if only is not None or whole is None else 1 + whole.pieces[-1].record.fragno

    @classmethod
    def missing(cls, log: TranslatedReader, outer: Outer) -> TranslatedTransaction:
        """Return what stands for a seqno without an event: a no-op."""
        fragment = missing_fragment(outer)
        return cls(log, _header(outer, None, fragment, ()), None, fragment)

    @classmethod
    def read(cls, log: TranslatedReader, reading: WholeReader, whole: Whole) -> TranslatedTransaction:
        """Look into a transaction that was just read, for its verdict."""
        serial = False
        found: NativeFragment | None = None
        for fragment, tables in with_tables(reading.fragments(whole, keep=False)):
            found, listed = fragment, tables
            serial = serial or fragment.has_statement
        assert found is not None
        outer = found.outer
        if serial or not outer.shard_id:
            outer = msgspec.structs.replace(outer, shard_id=UNKNOWN_SHARD)
        header = _header(outer, whole.pieces[-1], found, listed)
        return cls(log, header, whole, found if whole.pieces[-1].record.fragno == 0 else None)

    def _fragments(self) -> Iterator[NativeFragment]:
        if self._only is not None:
            yield self._readable(self._only)
            return
        assert self._whole is not None
        number = self._whole.pieces[0].segment
        with closing(TungstenSegment(self._log.path, number, self._log.disk, checked=self._log.checked)) as segment:

            def payload_of(piece: Piece) -> bytes:
                return segment.payload(piece.record)

            for fragment in translated(self._whole, payload_of, keep=False):
                yield self._readable(fragment)

    def _readable(self, fragment: NativeFragment) -> NativeFragment:
        """Raise PayloadError where changes would be missing at a target."""
        for loss in fragment.losses & NO_CHANGES:
            raise PayloadError(why=MEANINGS[loss], seqno=self.header.seqno)
        return fragment

    def records(self) -> Iterator[Record]:
        """Yield each fragment's header and payload. Raises PayloadError for what cannot be read as changes."""
        for fragment in self._fragments():
            yield Record(_header(fragment.outer, None, fragment, fragment.tables), fragment.payload)

    def payloads(self) -> Iterator[bytes]:
        """Yield each fragment's payload, in the native form. Raises as `records`."""
        for fragment in self._fragments():
            yield fragment.payload

    def changes(self) -> Iterator[Change]:
        """Yield the changes of all fragments, in order. Raises as `records`."""
        for fragment in self._fragments():
            yield from fragment.content.changes

    def payload(self) -> Payload:
        """Return the whole content at once; for small transactions. Raises as `records`."""
        parts = [fragment.content for fragment in self._fragments()]
        changes = tuple(change for part in parts for change in part.changes)
        return Payload(metadata=parts[-1].metadata, options=parts[-1].options, changes=changes)

    @property
    def checksum(self) -> int | None:
        """See `ReadableTransaction.checksum`."""
        last = None if self._whole is None else self._whole.pieces[-1].record
        return last.crc if last is not None and last.crc_type == CRC_32 else None

    def foreign(self) -> list[bytes]:
        """Return each fragment's payload as the replicator wrote it; none for a seqno without an event."""
        if self._whole is None:
            return []
        number = self._whole.pieces[0].segment
        with closing(TungstenSegment(self._log.path, number, self._log.disk, checked=self._log.checked)) as segment:
            return [segment.payload(piece.record) for piece in self._whole.pieces]

    def is_noop(self) -> bool:
        """Whether this is a no-op: a seqno without content."""
        return self._only is not None and self._only.content.is_noop()


def _header(
    outer: Outer, piece: Piece | None, fragment: NativeFragment, tables: tuple[tuple[str, str], ...] | None
) -> TransactionHeader:
    return TransactionHeader(
        seqno=Seqno(outer.seqno),
        fragno=outer.fragno,
        last_frag=outer.last_frag,
        epoch=Epoch(outer.epoch),
        source_id=outer.source_id,
        event_id=outer.event_id,
        shard_id=outer.shard_id,
        tstamp=outer.tstamp,
        tables=tables,
        record_length=0 if piece is None else piece.record.length,
        data_length=len(fragment.payload),
        spilled=False,
        write_set=b"",
    )

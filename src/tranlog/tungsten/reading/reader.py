"""Reading a directory of the Tungsten replicator's log as a stream, while a replicator may be writing it.

Owns the reader and its cursor. What damage is, is `recovery`'s and `segments`' to say. The hard idea: only complete
transactions are shown, in order, and a seqno that the log does not hold is never answered with its neighbour.
"""

from __future__ import annotations

import enum
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from contextlib import closing

from tranlog.closing import Closing
from tranlog.disk import OS_DISK, Disk
from tranlog.errors import CorruptRecordError, LogMissingError, PayloadError, PurgedError
from tranlog.ids import segment_name
from tranlog.log.files.directory import join
from tranlog.tungsten.files.segments import (
    TungstenSegment,
    damage_error,
    event_header,
    list_entries,
    notes_of,
    place_of,
    read_entry,
    scan_segment,
    torn_end,
)
from tranlog.tungsten.records.codec import FILE_HEADER, NO_BASE, next_number, segment_number
from tranlog.tungsten.records.event import Event, JavaObject
from tranlog.tungsten.records.payload import decode
from tranlog.tungsten.records.record import (
    BadLength,
    Damaged,
    EventRecord,
    FileHeader,
    Outcome,
    PartialEvent,
    Short,
    TungstenRotate,
    UnknownRecord,
)
from tranlog.tungsten.rules.recovery import (
    DirectoryEntry,
    EventPlace,
    IndexEntry,
    Refuse,
    Torn,
    header_problem,
    holes,
    reading_problem,
    rotate_problem,
)

logger = logging.getLogger(__name__)


class StoredEvent:
    """A fragment as the log holds it: its record's header, and the payload."""

    __slots__ = ("payload", "record", "segment")

    def __init__(self, record: EventRecord, segment: str, payload: bytes) -> None:
        self.record = record
        self.segment = segment
        self.payload = payload

    def event(self) -> Event | JavaObject:
        """Decode the payload. Raises PayloadError with the seqno."""
        try:
            return decode(self.payload)
        except PayloadError as exc:
            raise PayloadError(why=exc.why, seqno=self.record.seqno) from exc


class Seek(enum.Enum):
    """Where a cursor stands after `seek`."""

    FOUND = "found"
    """At the transaction, or at the filtered range that it lies in."""
    NOT_YET = "not yet"
    """After the last: what comes next is what the caller waits for, or lies before it."""
    MISSING = "missing"
    """Before the next higher one: the log holds lower and higher seqnos, but not this one."""


class TungstenReader:
    """A log directory opened for reading; nothing in it is changed, no lock is taken.

    Ends: `first_seqno` and `last_seqno` are of complete transactions, -1 in an empty log; a filtered range counts by
    its first seqno, as in the ancestor, and `next_seqno` is the one after its end.
    Threads: one; open another for another thread.
    A last segment without a transaction does not hide those before it. Source: docs/conformance.md, B7-3 to B7-5.
    """

    def __init__(self, path: str, disk: Disk, *, checked: bool) -> None:
        self.path = path
        self.disk = disk
        self.checked = checked
        self.notes: tuple[str, ...] = ()
        """What is odd but no error: another minor version, an unfinished end."""
        self.order_notes: tuple[str, ...] = ()
        """Events out of order in the newest segments (B7-22): an error to a strict cursor, not to this."""
        self._entries: list[DirectoryEntry] = []
        self._holes: tuple[Refuse, ...] = ()
        self.first_number = 1
        """The oldest segment's number."""
        self._last_place = -1
        self._bases: list[int] = []
        self.first_seqno = self.last_seqno = -1
        self.next_seqno = 0
        """The seqno that is to come after the last complete transaction."""

    @classmethod
    def open(cls, path: str, *, disk: Disk = OS_DISK, checked: bool = True) -> TungstenReader:
        """Open a directory. `checked` off passes checksums over (`thl -no-checksum`).

        Raises LogMissingError, LogUnreadableError, NativeLogError, CorruptRecordError for a bad header or damage in
        the newest segment. A missing segment (B7-4) is for whoever reads so far, and for `check_whole`.
        """
        reader = cls(path, disk, checked=checked)
        reader.refresh()
        text = "Opened a Java replicator's log. path=%s segments=%d checksum=%s"
        logger.info(text, path, len(reader._entries), checked)
        return reader

    def refresh(self) -> None:
        """Read the directory again; raises what `open` raises."""
        entries = list_entries(self.path, self.disk)
        if not entries:
            raise LogMissingError(path=self.path, why="it holds no segment (thl.data.*)")
        problem = header_problem(entries)
        if problem is not None:
            raise damage_error(problem)
        self._holes = tuple(holes(entries))
        notes = notes_of(entries)
        order_notes = []
        whole = list(entries)
        if isinstance(whole[-1].header, PartialEvent):
            notes.append(f"{whole[-1].name} is skipped: its header was not finished")
            whole.pop()
        self._entries = whole
        self.first_number = entries[0].number
        self._bases = [self._base(entry) for entry in whole]
        self.first_seqno = self.last_seqno = -1
        self.next_seqno = 0
        for place in range(len(whole) - 1, -1, -1):
            scan = scan_segment(self.path, whole[place], self.disk, checked=self.checked)
            if isinstance(scan.stop, Damaged):
                raise CorruptRecordError(
                    segment=whole[place].name,
                    offset=scan.stop.offset,
                    seqno=None if scan.last is None else scan.last.seqno,
                    why=scan.stop.why,
                )
            if place == len(whole) - 1:
                if isinstance(scan.stop, Torn):
                    notes.append(f"{whole[place].name} ends in {scan.stop.why}, offset {scan.stop.offset}")
                elif scan.open_fragments:
                    notes.append(f"{whole[place].name} ends in a transaction whose last fragment is missing")
                elif scan.rotate is not None and place == len(entries) - 1:
                    following = segment_name(scan.rotate.next_segment)
                    notes.append(f"{whole[place].name} leads to {following}, which is not there")
            if scan.order_problem is not None:
                order_notes.append(f"{whole[place].name}: {scan.order_problem}")
            if scan.last is not None:
                self.last_seqno = scan.last.seqno
                self._last_place = place
                self.next_seqno = scan.next_seqno
                break
        self.first_seqno = next((base for base in self._bases if base >= 0), -1) if self.last_seqno >= 0 else -1
        self.notes = tuple(notes)
        self.order_notes = tuple(order_notes)

    def _base(self, entry: DirectoryEntry) -> int:
        """Return a segment's first seqno: its header's, or its first record's where that has none; -1 for neither."""
        assert isinstance(entry.header, FileHeader)
        if entry.header.base_seqno != NO_BASE:
            return entry.header.base_seqno
        with closing(TungstenSegment(self.path, entry.number, self.disk, checked=self.checked)) as reader:
            outcome = reader.record(FILE_HEADER.size)
            return outcome.seqno if isinstance(outcome, EventRecord) else -1

    def index(self) -> list[IndexEntry]:
        """Return the segments with the seqnos that each holds."""
        out = []
        for place, entry in enumerate(self._entries):
            first = self._bases[place]
            if self.last_seqno < 0 or place > self._last_place or first < 0:
                first = last = -1
            elif place == self._last_place:
                last = self.last_seqno
            elif self._entries[place + 1].number == next_number(entry.number):
                last = self._bases[place + 1] - 1
            else:  # what is missing after it has some of those before the next one's
                last = scan_segment(self.path, entry, self.disk, checked=self.checked).next_seqno - 1
            out.append(IndexEntry(number=entry.number, first_seqno=first, last_seqno=last, bytes=entry.size))
        return out

    def check_whole(self) -> None:
        """Raise CorruptRecordError for the first segment that is missing between others."""
        for hole in self._holes:
            raise damage_error(hole)

    def segments(self) -> list[DirectoryEntry]:
        """Return the segments with a finished header, rising."""
        return list(self._entries)

    def cursor(self, *, strict: bool = True, only: Callable[[EventRecord], bool] | None = None) -> TungstenCursor:
        """Return a cursor at the start. `strict`: an event out of order (B7-22) is an error, not shown as it is.

        `only` decides by a record's header which fragments `next` returns; payloads of others are not read.
        """
        return TungstenCursor(self, strict=strict, only=only)

    def place_before(self, seqno: int) -> int:
        """Return the number of the segment where a seqno lies if the log holds it."""
        place = bisect_right(self._bases, seqno) - 1
        return self._entries[place].number if place >= 0 else self.first_number

    def segment_exists(self, number: int) -> bool:
        """Whether a segment's file is there now."""
        return self.disk.exists(join(self.path, segment_name(number)))

    def later_exists(self, number: int) -> bool:
        """Whether there is any segment above that number now."""
        return any((segment_number(name) or -1) > number for name in self.disk.list_dir(self.path))


class TungstenCursor(Closing):
    """Reads forward, one fragment at a time, and only transactions that are complete.

    At the end `next` returns None; called again later it goes on where a replicator that writes has got to.
    """

    def __init__(
        self, reader: TungstenReader, *, strict: bool, only: Callable[[EventRecord], bool] | None = None
    ) -> None:
        self._reader = reader
        self._only = only
        self._strict = strict
        self._segment: TungstenSegment | None = None
        self._at = 0
        self._whole_at = 0  # the end of the last complete transaction in the segment
        self._run: list[tuple[EventRecord, TungstenSegment]] = []
        self._ready: deque[tuple[EventRecord, TungstenSegment]] = deque()
        self._retired: list[TungstenSegment] = []
        self._wanted: EventPlace | None = None
        self._last_whole: EventPlace | None = None
        self._last: int | None = None
        self._open(reader.first_number)

    def close(self) -> None:
        """Close; closing twice is harmless."""
        self._close_retired()
        if self._segment is not None:
            self._segment.close()

    def _open(self, number: int) -> None:
        if self._segment is not None:
            self._retired.append(self._segment)
        self._segment = TungstenSegment(self._reader.path, number, self._reader.disk, checked=self._reader.checked)
        self._at = self._whole_at = FILE_HEADER.size

    def _restart(self, number: int) -> None:
        self._run.clear()
        self._ready.clear()
        self._wanted = self._last_whole = None
        self._last = None
        self._open(number)
        self._close_retired()

    def _close_retired(self) -> None:
        for segment in self._retired:
            segment.close()
        self._retired.clear()

    def seek(self, seqno: int) -> Seek:
        """Go to a transaction, or to the filtered range that it lies in.

        Raises PurgedError for a seqno before the first, CorruptRecordError for damage on the way, and for a segment
        that is missing where the seqno would lie.
        The ancestor gives the event before a hole. Source: docs/conformance.md, B7-23.
        """
        reader = self._reader
        if seqno >= reader.next_seqno:
            reader.refresh()
        if reader.first_seqno > seqno:
            raise PurgedError(seqno=seqno, first=reader.first_seqno)
        self._restart(reader.place_before(seqno))
        segment = self._segment
        assert segment is not None
        found, before = segment.skip(FILE_HEADER.size, seqno)
        self._last = None if before is None else before.seqno
        outcome = segment.record(found)
        if isinstance(outcome, EventRecord) and outcome.seqno == seqno:
            self._at = self._whole_at = found
            return Seek.FOUND
        if before is not None:
            header = event_header(segment, before)
            if header is not None and header.filtered and (header.seqno_end or 0) >= seqno:
                self._at = self._whole_at = before.offset
                return Seek.FOUND
        self._at = self._whole_at = found
        if seqno >= reader.next_seqno:
            return Seek.NOT_YET
        self._raise_damage(outcome)
        if isinstance(outcome, TungstenRotate):
            self._rotate(outcome, segment)
        return Seek.MISSING

    @property
    def passed(self) -> int | None:
        """The seqno of the event before this place in the segment, or of the last one read; None for neither."""
        return self._last

    def seek_segment(self, number: int) -> None:
        """Go to the start of a segment. Raises SegmentGoneError."""
        self._restart(number)

    def next(self) -> StoredEvent | None:
        """Return the next fragment of a complete transaction, or None where the log ends for now.

        Raises CorruptRecordError, SegmentGoneError, LogUnreadableError.
        """
        only = self._only
        while True:
            while not self._ready:
                if not self._read():
                    return None
            record, segment = self._ready.popleft()
            if only is None or only(record):
                break
        payload = segment.payload(record)
        if not self._ready and not self._run:
            self._close_retired()
        return StoredEvent(record, segment_name(segment.number), payload)

    def next_run(self) -> list[tuple[EventRecord, TungstenSegment]] | None:
        """Return the records of the next complete transaction, payloads unread, or None where the log ends for now.

        Shape: each with a reader of its segment, which is good until the next call. Of a cursor that is not strict,
        fragments of a transaction that never ended may stand before it. Raises as `next`.
        """
        if not self._run:
            self._close_retired()
        while not self._ready:
            if not self._read():
                return None
        run = list(self._ready)
        self._ready.clear()
        return run

    def lost(self) -> str | None:
        """Return why what `next` returned last is no longer in the directory, None while it is.

        For a cursor at the end that waits for more. A replicator that starts again may cut what is not complete: that
        is read again. But whoever resets or restores the directory takes complete transactions away, or the file.
        Not lost is what was purged after this cursor.
        """
        segment = self._segment
        assert segment is not None
        size = segment.size()
        if size < self._whole_at:
            return f"{segment_name(segment.number)} was cut to {size} bytes, and {self._whole_at} of it had been read"
        if size < self._at:
            self._run.clear()
            self._at = self._whole_at
            self._wanted = self._last_whole
            segment.forget()
        if not segment.linked() and not self._reader.segment_exists(next_number(segment.number)):
            return f"{segment_name(segment.number)} was removed or replaced, and nothing follows it"
        return None

    def _read(self) -> bool:
        """Take one record in; False at the end."""
        segment = self._segment
        assert segment is not None
        outcome = segment.record(self._at)
        if isinstance(outcome, EventRecord):
            self._take(outcome, segment)
            self._at = outcome.end
            return True
        if isinstance(outcome, TungstenRotate):
            return self._rotate(outcome, segment)
        self._raise_damage(outcome)
        if self._reader.later_exists(segment.number):
            again = segment.record(self._at)  # the rest may have been written between the two looks
            if not isinstance(again, Short | BadLength):
                return True
            torn = torn_end(again, segment.size(), self._at)
            why = "it ends without a rotate record" if torn is None else torn.why
            raise self._damaged(self._at, f"{why}, and segments follow")
        return False

    def _take(self, record: EventRecord, segment: TungstenSegment) -> None:
        if self._strict:
            why = reading_problem(self._wanted, record.seqno, record.fragno)
            if why is not None:
                raise self._damaged(record.offset, why)
            self._wanted = place_of(segment, record)
            if record.last_frag:
                self._last_whole = self._wanted
        self._run.append((record, segment))
        self._last = record.seqno
        if record.last_frag:
            self._whole_at = record.end
            self._ready.extend(self._run)
            self._run.clear()

    def _rotate(self, record: TungstenRotate, segment: TungstenSegment) -> bool:
        wanted = next_number(segment.number)
        if record.next_segment != wanted:
            raise self._damaged(record.offset, rotate_problem(record, segment.number))
        if self._strict and self._run:
            raise self._damaged(record.offset, "the segment ends inside a transaction")
        if not self._reader.segment_exists(wanted):
            if self._reader.later_exists(wanted):
                if not segment.linked():  # purged, and so is what would have come next
                    self._reader.refresh()
                    raise PurgedError(seqno=(self._last or 0) + 1, first=self._reader.first_seqno)
                raise CorruptRecordError(
                    segment=segment_name(wanted), offset=0, seqno=self._last, why="the segment is missing"
                )
            return False
        entry = read_entry(self._reader.path, wanted, self._reader.disk)
        if isinstance(entry.header, PartialEvent) and not self._reader.later_exists(wanted):
            return False
        if not isinstance(entry.header, FileHeader):
            why = entry.header.why if not isinstance(entry.header, PartialEvent) else "its header was not finished"
            raise CorruptRecordError(segment=entry.name, offset=0, seqno=self._last, why=why)
        self._open(wanted)
        return True

    def _raise_damage(self, outcome: Outcome) -> None:
        if isinstance(outcome, Damaged):
            raise self._damaged(outcome.offset, outcome.why)
        if isinstance(outcome, UnknownRecord):
            raise self._damaged(outcome.offset, f"record type {outcome.record_type}, which is none of the replicator's")

    def _damaged(self, offset: int, why: str) -> CorruptRecordError:
        assert self._segment is not None
        return CorruptRecordError(segment=segment_name(self._segment.number), offset=offset, seqno=self._last, why=why)

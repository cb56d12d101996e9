"""Walking the segments forward for a cursor: where the next transaction's records stand, and the step to them.

Owns the place in the log, and how it moves over records, from segment to segment and by the index. What may be read
by now, and what a rollback means to whoever reads, is the cursor's.
"""

from __future__ import annotations

from typing import Protocol

from tranlog.errors import CorruptRecordError
from tranlog.ids import NO_SEQNO, Lsn, Seqno, segment_name
from tranlog.log.files.segment import SegmentReader
from tranlog.log.files.segments import Segments
from tranlog.log.records.format import (
    HEADER,
    SEQNO_MAX,
    BadChecksum,
    End,
    Impossible,
    Partial,
    RecordHeader,
    RollbackMark,
    RotateRecord,
    SegmentHeader,
    SyncRecord,
    parse_event,
    parse_header,
    skip_events,
)
from tranlog.log.rules.index_values import Place
from tranlog.lsn import lsn_offset, lsn_segment


class CursorLog(Protocol):
    """What a cursor needs of the log it reads: the writer's own, or a reader's in another process."""

    @property
    def segments(self) -> Segments:
        """The row of segments."""

    @property
    def checksum(self) -> bool:
        """Whether payloads are checked against their checksums."""

    def limit(self, *, committed_only: bool) -> Seqno:
        """Return the newest seqno that may be read now."""

    def heed(self) -> None:
        """Make `segments` know every rollback that has returned, before something that was read is returned."""

    def wait(self, seqno: Seqno, *, committed_only: bool, timeout_s: float) -> Seqno:
        """Return the limit once it has reached `seqno`, or after `timeout_s` whatever it is then."""


def fault_of(outcome: object) -> str:
    """Return why what was read is not the record that belongs there."""
    match outcome:
        case BadChecksum() | Impossible():
            return outcome.why
        case Partial():
            return "the file ends inside the record"
        case End():
            return "the records end here, before the last one that was visible"
        case RotateRecord():
            return "a rotate record inside a transaction"
        case _:
            return "something else is where a record belongs"


class LogWalk:
    """A place in the log, at the start of a transaction once there is a reader. Threads: one at a time.

    `reader` is that of the open segment, None before the first step and after `leave`; the transaction `expect` begins
    at `offset` of it. `living` is the last seqno that lives in this segment. `found` is the transaction that `advance`
    returned last: where it begins, how many fragments it has, its header. `passed` is the last one that was taken out
    of a window, or passed over there: the window, the place in it, where it begins.
    """

    __slots__ = ("_committed_only", "_segments", "_view", "expect", "found", "living", "offset", "passed", "reader")

    def __init__(self, view: CursorLog, *, committed_only: bool) -> None:
        self._view = view
        self._segments = view.segments
        self._committed_only = committed_only
        self.reader: SegmentReader | None = None
        self.offset = 0
        self.expect: Seqno = NO_SEQNO
        self.living = Seqno(SEQNO_MAX)
        self.found: tuple[Lsn, int, RecordHeader] | None = None
        self.passed: tuple[bytes, int, Lsn] | None = None

    def place_of(self, seqno: Seqno) -> int:
        """Return where in the reader's window the transaction `seqno` begins; -1 where the walk is not at it."""
        reader = self.reader
        if reader is None or self.expect != seqno:
            return -1
        at = self.offset - reader.start
        return at if at < len(reader.window) else -1

    def move(self, behind: int, following: Seqno, last: int = -1) -> None:
        """Stand at `behind` in the window, where `following` begins; `last` is the place of the one before it there."""
        reader = self.reader
        assert reader is not None
        self.offset = reader.start + behind
        self.expect = following
        self.found = None
        self.passed = None if last < 0 else (reader.window, last, Lsn(reader.number << 32 | reader.start + last))

    def advance(self, wanted: Seqno) -> RecordHeader:
        """Return the verdict header of `wanted`, which is visible, and stand after it; it is `found` then."""
        if self.reader is None or wanted > self.living:
            self._enter(wanted)
        if self.expect != wanted:
            self._skip_to(wanted)
        reader = self.reader
        assert reader is not None
        window, start, base = reader.window, reader.start, reader.number << 32
        offset = first = self.offset
        fragno = 0
        while True:
            at = offset - start
            header = parse_event(window, at, base | offset) if 0 <= at < len(window) else None
            if header is None:
                self.offset = offset
                header = self._read_slowly(first, fragno, wanted)
                reader = self.reader
                assert reader is not None
                window, start, base = reader.window, reader.start, reader.number << 32
                offset = self.offset
                if header is None:
                    continue
            if header.seqno != wanted or header.fragno != fragno:
                why = f"seqno {header.seqno} fragment {header.fragno} where seqno {wanted} fragment {fragno} belongs"
                raise self._blame(first if fragno else self._before(offset), offset, wanted, why)
            if fragno == 0:
                first = offset
            offset += header.record_length
            if header.last_frag:
                break
            fragno += 1
        self.offset = offset
        self.expect = Seqno(wanted + 1)
        self.found = Lsn(base | first), fragno + 1, header
        return header

    def leave(self) -> None:
        """Close the segment: the next step asks the index. What was passed over stays known."""
        if self.reader is not None:
            self._segments.keep_open(self.reader.number, self.reader.file)
            self.reader = None
        self.found = None

    def _skip_to(self, wanted: Seqno) -> None:
        """Move from the place that the index gave to the first record of `wanted`, payloads unread."""
        reader = self.reader
        assert reader is not None
        near = reader.start
        while True:
            at = self.offset - reader.start
            if 0 <= at < len(reader.window):
                self.offset = reader.start + skip_events(reader.window, at, wanted)
            outcome = reader.read(self.offset, verify=False)
            match outcome:
                case RecordHeader():
                    if outcome.fragno == 0 and outcome.seqno <= wanted and reader.start != near:
                        self._segments.note(outcome.seqno, outcome.lsn)
                    if outcome.seqno == wanted and outcome.fragno == 0:
                        self.expect = wanted
                        return
                    if outcome.seqno >= wanted:
                        why = f"seqno {outcome.seqno} fragment {outcome.fragno} where seqno {wanted} belongs"
                        raise reader.corrupt(self.offset, outcome.seqno, why)
                    self.offset += outcome.record_length
                case SyncRecord() | RollbackMark():
                    self.offset += outcome.record_length
                case RotateRecord():
                    reader = self._rotate(reader, outcome, wanted)
                    if wanted > self.living:  # what this segment holds under that number was abandoned
                        reader = self._enter(wanted)
                    if self.expect == wanted:
                        return
                case _:
                    raise reader.corrupt(self.offset, wanted, fault_of(outcome))

    def _enter(self, wanted: Seqno) -> SegmentReader:
        """Open the segment to read from on the way to `wanted`, and return its reader."""
        self._view.limit(committed_only=self._committed_only)  # before the index is asked, to hear of rollbacks
        place = self._segments.locate(wanted)
        reader = self._open_at(place, wanted)
        if place is None or self.offset == HEADER.size or reader.begins(self.offset, place.seqno):
            return reader
        # The index is wrong here, or the log is damaged: walking there tells which.
        reader = self._open_at(self._segments.start_of(wanted), wanted)
        if self.expect != wanted:
            self._skip_to(wanted)
            assert self.reader is not None
            reader = self.reader
        self._segments.misled(place)
        return reader

    def _open_at(self, place: Place | None, wanted: Seqno) -> SegmentReader:
        if place is None:
            raise self._segments.purged(wanted)
        self.offset = lsn_offset(place.lsn)
        self.expect = place.seqno
        return self._open(lsn_segment(place.lsn), wanted)

    def _open(self, number: int, wanted: Seqno) -> SegmentReader:
        file = self._segments.open(number, wanted)
        cut = self._segments.cut_of(number)
        self.living = Seqno(SEQNO_MAX) if cut is None else cut
        if self.reader is not None:
            self._segments.keep_open(self.reader.number, self.reader.file)
        self.reader = SegmentReader(file, number, checksum=self._view.checksum)
        return self.reader

    def _before(self, offset: int) -> int:
        """Return where the transaction returned last begins, if it lies in this segment; else `offset`."""
        start = self.found[0] if self.found is not None else None if self.passed is None else self.passed[2]
        if self.reader is None or start is None or lsn_segment(start) != self.reader.number:
            return offset
        return lsn_offset(start)

    def _blame(self, first: int, offset: int, seqno: Seqno, why: str) -> CorruptRecordError:
        """Return the error for what was found at `offset`, or for the record from `first` on that misled us there."""
        reader = self.reader
        assert reader is not None
        at = first
        while self._view.checksum and at <= offset:
            outcome = reader.read(at, verify=True)
            if isinstance(outcome, BadChecksum):
                return reader.corrupt(at, seqno, outcome.why)
            if not isinstance(outcome, RecordHeader | SyncRecord):
                break
            at += outcome.record_length
        return reader.corrupt(offset, seqno, why)

    def _read_slowly(self, first: int, fragno: int, wanted: Seqno) -> RecordHeader | None:
        """Take a step that the fast path could not: None after moving on, or a header that passes the window."""
        reader = self.reader
        assert reader is not None
        window = reader.start
        outcome = reader.read(self.offset, verify=False)
        if reader.start != window:
            self._view.limit(committed_only=self._committed_only)  # far from the limit, it hears of rollbacks here
        match outcome:
            case RecordHeader():
                if fragno == 0:
                    self._segments.note(outcome.seqno, outcome.lsn)
                return outcome
            case SyncRecord() | RollbackMark():
                self.offset += outcome.record_length
            case RotateRecord():
                if fragno:
                    raise self._blame(first, self.offset, wanted, fault_of(outcome))
                following = self._rotate(reader, outcome, wanted)
                if self.expect != wanted:
                    why = f"bad header: prev_seqno {self.expect - 1}, but the previous segment ends at {wanted - 1}"
                    raise following.corrupt(0, wanted, why)
            case _:
                start = first if fragno else self._before(self.offset)
                raise self._blame(start, self.offset, wanted, fault_of(outcome))
        return None

    def _rotate(self, reader: SegmentReader, rotate: RotateRecord, wanted: Seqno) -> SegmentReader:
        number = reader.number + 1
        if rotate.next_file_name != segment_name(number):
            raise reader.corrupt(self.offset, wanted, f"a rotate record that leads to {rotate.next_file_name}")
        if not self._segments.knows(number):
            self._segments.refresh()
        following = self._open(number, wanted)
        header = parse_header(following.file.pread(HEADER.size, 0))
        if not isinstance(header, SegmentHeader):
            why = header.why if isinstance(header, Impossible) else "bad header: cut short or zeros"
            raise following.corrupt(0, wanted, why)
        self.offset = HEADER.size
        self.expect = Seqno(header.prev_seqno + 1)
        if self.expect > wanted:
            why = f"bad header: prev_seqno {header.prev_seqno}, but the previous segment ends before seqno {wanted}"
            raise following.corrupt(0, wanted, why)
        return following

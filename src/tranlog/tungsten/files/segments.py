"""The segments of a Tungsten directory: which there are, what each holds, and a window on one.

Owns the facts that `recovery` judges. The hard idea: a Java replicator may be writing meanwhile. Segments only grow
until a rotate record ends them, so half a record at the end of the newest is an end, and anywhere else damage.

Source: thl-internals, "Log Organization".
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Final

from tranlog.disk import Disk, DiskFile
from tranlog.errors import CorruptRecordError, NativeLogError, PayloadError, SegmentGoneError
from tranlog.ids import segment_name
from tranlog.log.files.directory import join, list_names, open_file, reading
from tranlog.tungsten.records.codec import (
    FILE_HEADER,
    MINOR_VERSION,
    is_native,
    parse_file_header,
    parse_record,
    pass_plain,
    segment_number,
    skip_events,
)
from tranlog.tungsten.records.event import EventHeader
from tranlog.tungsten.records.payload import decode_header
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
    Refuse,
    Torn,
    TungstenScan,
    order_problem,
    place_behind,
)

WINDOW_BYTES: Final = 1 << 20
_HEADER_PROBE: Final = 256


def list_entries(path: str, disk: Disk) -> list[DirectoryEntry]:
    """Return the segments with their headers, rising. Raises LogMissingError, LogUnreadableError, NativeLogError."""
    entries = []
    for number in sorted(number for number in map(segment_number, list_names(path, disk)) if number is not None):
        with suppress(SegmentGoneError):  # purged meanwhile
            entries.append(read_entry(path, number, disk))
    return entries


def read_entry(path: str, number: int, disk: Disk) -> DirectoryEntry:
    """Read what a segment's first bytes say. Raises SegmentGoneError, LogUnreadableError, NativeLogError."""
    name = segment_name(number)
    with closing(_open(join(path, name), disk)) as file, reading(join(path, name)):
        raw = file.pread(_HEADER_PROBE, 0)
        if is_native(raw):
            raise NativeLogError(path=path, segment=name)
        if len(raw) <= FILE_HEADER.size and not any(raw):  # a loss of power can leave the length and not the bytes
            return DirectoryEntry(number=number, size=len(raw), header=PartialEvent(0))
        return DirectoryEntry(number=number, size=file.size(), header=parse_file_header(raw))


def _open(path: str, disk: Disk) -> DiskFile:
    """Open a segment. Raises SegmentGoneError, LogUnreadableError."""
    try:
        return open_file(path, disk)
    except FileNotFoundError as exc:
        raise SegmentGoneError(path=path) from exc


def notes_of(entries: list[DirectoryEntry]) -> list[str]:
    """Return what is odd about the headers but no error."""
    notes = []
    for entry in entries:
        if isinstance(entry.header, FileHeader) and entry.header.minor != MINOR_VERSION:
            notes.append(
                f"{entry.name}: minor version mismatch: format 1.{entry.header.minor}, ours 1.{MINOR_VERSION}; read on"
            )
    return notes


class TungstenSegment:
    """Records of one segment by their offset, through a window."""

    __slots__ = ("_checked", "_raw", "_start", "file", "number", "path")

    def __init__(self, directory: str, number: int, disk: Disk, *, checked: bool) -> None:
        self.path = join(directory, segment_name(number))
        self.number = number
        self.file = _open(self.path, disk)
        self._checked = checked
        self._raw = b""
        self._start = 0

    def close(self) -> None:
        self.file.close()

    def _load(self, offset: int, size: int) -> bool:
        """Move the window to `offset`; False if the file does not have `size` bytes from there."""
        with reading(self.path):
            if self.file.size() < offset + size:
                return False
            self._raw = self.file.pread(max(size, WINDOW_BYTES), offset)
        self._start = offset
        return len(self._raw) >= size

    def size(self) -> int:
        with reading(self.path):
            return self.file.size()

    def forget(self) -> None:
        """Drop what was read: the file was cut, and may be rewritten."""
        self._raw, self._start = b"", 0

    def linked(self) -> bool:
        """Whether the segment is still the file of its name."""
        with reading(self.path):
            return self.file.linked()

    def record(self, offset: int) -> Outcome:
        """Read the record at `offset`. Short: the file ends before it does."""
        at = offset - self._start
        if not 0 <= at <= len(self._raw):
            self._raw, self._start, at = b"", offset, 0
        outcome = parse_record(self._raw, at, offset, checked=self._checked)
        while isinstance(outcome, Short) and self._load(offset, outcome.needed):
            outcome = parse_record(self._raw, 0, offset, checked=self._checked)
        return outcome

    def skip(self, offset: int, seqno: int) -> tuple[int, EventRecord | None]:
        """Pass events of seqnos below `seqno` from `offset` on; return where that ends, and the last one passed."""
        before: EventRecord | None = None
        last = -1
        while True:
            at = offset - self._start
            if not 0 <= at <= len(self._raw):
                self._raw, self._start, at = b"", offset, 0
            found, passed = skip_events(self._raw, at, seqno, checked=self._checked)
            if passed >= 0:
                last = self._start + passed
                before = None
            offset = self._start + found
            outcome = self.record(offset)
            if not isinstance(outcome, EventRecord) or outcome.seqno >= seqno:
                break
            before = outcome
            offset = outcome.end
        if before is None and last >= 0:
            outcome = self.record(last)
            before = outcome if isinstance(outcome, EventRecord) else None
        return offset, before

    def pass_plain(self, offset: int, seqno: int) -> tuple[int, int, int]:
        """Pass plain transactions as far as the window goes: where that ends, the last one's offset, how many."""
        at = offset - self._start
        if not 0 <= at <= len(self._raw):
            return offset, -1, 0
        found, before, count = pass_plain(self._raw, at, seqno)
        return self._start + found, self._start + before, count

    def payload(self, record: EventRecord) -> bytes:
        """Return an event's payload."""
        at = record.payload_offset - self._start
        size = record.payload_length
        if at < 0 or at + size > len(self._raw):
            if not self._load(record.payload_offset, size):
                raise SegmentGoneError(path=self.path)
            at = record.payload_offset - self._start
        return self._raw[at : at + size]


def torn_end(outcome: Short | BadLength, size: int, offset: int) -> Torn | None:
    """Return what half a record means; None where there is not a byte of one."""
    if isinstance(outcome, BadLength):
        return Torn(offset, f"a record length of {outcome.record_length}")
    left = size - offset
    return Torn(offset, f"{left} bytes of a record") if left > 0 else None


def event_header(reader: TungstenSegment, record: EventRecord) -> EventHeader | None:
    """Read the header in a payload, None for a Java object. Raises PayloadError."""
    try:
        return decode_header(reader.payload(record))
    except PayloadError as exc:
        raise PayloadError(why=exc.why, seqno=record.seqno) from exc


def filtered_header(reader: TungstenSegment, record: EventRecord) -> EventHeader | None:
    """Read the header in a payload; None where it is not that of a filtered event, or cannot be read."""
    payload = reader.payload(record)
    if not payload.endswith(b"\0"):  # only then its body can be empty, as every filtered event's is
        return None
    try:
        header = decode_header(payload)
    except PayloadError:
        return None
    return header if header is not None and header.filtered else None


def place_of(reader: TungstenSegment, record: EventRecord) -> EventPlace:
    """Return where the event after `record` belongs; after a filtered range that is after its end."""
    header = filtered_header(reader, record)
    end = (None, None) if header is None else (header.seqno_end, header.fragno_end)
    return place_behind(record.seqno, record.fragno, record.last_frag, *end)


def scan_segment(path: str, entry: DirectoryEntry, disk: Disk, *, checked: bool = True) -> TungstenScan:
    """Read all records of a segment with a sound header, up to its end or the first damage."""
    assert isinstance(entry.header, FileHeader)
    first: EventRecord | None = None
    last: EventRecord | None = None
    rotate: TungstenRotate | None = None
    unknown: UnknownRecord | None = None
    stop: Torn | Damaged | None = None
    order: str | None = None
    wanted: EventPlace | None = None
    complete_end = at = FILE_HEADER.size
    open_fragments = transactions = fragments = next_seqno = 0
    plain_last = -1
    with closing(TungstenSegment(path, entry.number, disk, checked=checked)) as reader:
        while True:
            if checked and wanted is not None and not (wanted.fragno or open_fragments or rotate):
                at, before, count = reader.pass_plain(at, wanted.seqno)
                if count:
                    plain_last = before
                    wanted = EventPlace(wanted.seqno + count)
                    next_seqno = max(next_seqno, wanted.seqno)
                    transactions += count
                    fragments += count
                    complete_end = at
            outcome = reader.record(at)
            if isinstance(outcome, Short | BadLength):
                stop = torn_end(outcome, reader.size(), at)
                break
            if isinstance(outcome, Damaged):
                stop = outcome
                break
            if rotate is not None:
                stop = Torn(at, "records after the rotate record")
                break
            if isinstance(outcome, TungstenRotate):
                rotate = outcome
            elif isinstance(outcome, UnknownRecord):
                unknown = unknown or outcome
            else:
                first = first or outcome
                fragments += 1
                if order is None:
                    why = order_problem(wanted or EventPlace(outcome.seqno), outcome.seqno, outcome.fragno)
                    if why is not None:
                        order = f"offset {at}: {why}"
                wanted = place_of(reader, outcome)
                if outcome.last_frag:
                    next_seqno = max(next_seqno, wanted.seqno)
                    last = outcome
                    complete_end = outcome.end
                    transactions += 1
                    open_fragments = 0
                else:
                    open_fragments += 1
            at += outcome.length
        if last is not None and plain_last > last.offset:
            newest = reader.record(plain_last)
            last = newest if isinstance(newest, EventRecord) else last
        return TungstenScan(
            number=entry.number,
            size=reader.size(),
            base_seqno=entry.header.base_seqno,
            first=first,
            last=last,
            complete_end=complete_end,
            records_end=at,
            rotate=rotate,
            stop=stop,
            unknown=unknown,
            open_fragments=open_fragments,
            transactions=transactions,
            fragments=fragments,
            next_seqno=next_seqno,
            order_problem=order,
        )


def scan_all(path: str, entries: list[DirectoryEntry], disk: Disk, *, checked: bool) -> dict[int, TungstenScan]:
    """Scan every segment that has a header, by number."""
    return {
        entry.number: scan_segment(path, entry, disk, checked=checked)
        for entry in entries
        if isinstance(entry.header, FileHeader)
    }


def damage_error(problem: Refuse) -> CorruptRecordError:
    """Return our error for a verdict of damage."""
    return CorruptRecordError(segment=problem.segment, offset=problem.offset, seqno=problem.seqno, why=problem.why)

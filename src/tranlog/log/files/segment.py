"""One segment's file: reading records at an offset, and what its first and last bytes say of it.

Owns how bytes are fetched: in windows, so that a header scan reads little and a large payload is held once. What
whole segments hold is `scan`'s, which there are `segments`'s.
"""

from __future__ import annotations

import logging

from tranlog.checksum import crc32
from tranlog.disk import DiskFile
from tranlog.errors import CorruptRecordError
from tranlog.ids import NO_SEQNO, Epoch, Lsn, Seqno, segment_name
from tranlog.log.records.format import (
    BAD_CHECKSUM,
    BEFORE_HEADER,
    CRC_NONE,
    EVENT_DATA_LENGTH,
    EVENT_TYPE,
    HEADER,
    HEADER_LENGTH_MAX,
    RECORD_START,
    REFERENCE_TYPE,
    ROTATE_MIN,
    SEGMENT_BYTES_MAX,
    TRAILER,
    BadChecksum,
    Impossible,
    Outcome,
    Partial,
    RecordHeader,
    RollbackMark,
    RotateRecord,
    SegmentHeader,
    SyncRecord,
    event_begins,
    event_checksum_holds,
    parse_event,
    parse_header,
    parse_record,
)
from tranlog.log.rules.recovery import BadRecord, SegmentGlance
from tranlog.lsn import lsn, lsn_offset, lsn_segment, lsn_text

logger = logging.getLogger(__name__)

WINDOW_BYTES = 256 * 1024
"""How much is read at once. A larger record is read in parts."""
FIRST_WINDOW_BYTES = 16 * 1024
"""How much is read after a leap: copying bytes that nobody asked for is most of what a seek costs."""

UNCHECKED = "a record without a checksum after records with one"
"""One writer writes all its records with checksums or none, and says which: this one has lost its end."""

_ZEROS = bytes(4096)
_GLANCE_BYTES = 4096
_SECTOR_BYTES = 512


class SegmentReader:
    """Reads records of one open segment by offset. Not for threads.

    `window` are the bytes from `start` on that were read last. They are only worth something below the seqno that
    was visible before they were read: `forget` drops them. Windows that follow one another grow.
    """

    __slots__ = ("_asked", "_base", "_checked", "checksum", "file", "name", "number", "start", "window")

    def __init__(self, file: DiskFile, number: int, *, checksum: bool = True) -> None:
        self.file = file
        self.number = number
        self.name = segment_name(number)
        self.checksum = checksum
        self.window = b""
        self.start = 0
        self._asked = 0  # bytes that were asked for when the window was read
        self._base = number << 32
        self._checked: dict[int, bool] = {}  # by epoch, for records without a checksum: its writer writes them

    def load(self, offset: int, least: int = FIRST_WINDOW_BYTES) -> None:
        """Read a window that begins at `offset`, of `least` bytes or as much as is read at once."""
        if self.window and 0 <= offset - self.start <= len(self.window):
            least = max(least, 2 * self._asked)
        self._asked = min(least, WINDOW_BYTES)
        self.window = self.file.pread(self._asked, offset)
        self.start = offset

    def begins(self, offset: int, seqno: Seqno) -> bool:
        """Whether the first record of `seqno` stands at `offset`, by its first bytes; reads a window there."""
        self.load(offset)
        return event_begins(self.window, seqno)

    def forget(self) -> None:
        """Drop what was read: the file may have grown, or been cut and written again."""
        self.window = b""

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def read(self, offset: int, *, verify: bool) -> Outcome:
        """Return what stands at `offset`; with `verify` an event's checksum is checked against all its bytes.

        Shape: Partial only where the file ends before the record does. Memory: one window, whatever the record.
        """
        position = self._base | offset
        at = offset - self.start
        # Fewer bytes than a record's first ones are no ground for a verdict: a length may begin with zeros.
        if 0 <= at <= len(self.window) - RECORD_START.size:
            outcome = parse_record(self.window, at, position, verify)
            if not isinstance(outcome, Partial):
                return outcome
            if at == 0 and outcome.needed > WINDOW_BYTES and len(self.window) == self._asked:
                return self._read_large(offset, outcome, verify)
        self.load(offset)
        outcome = parse_record(self.window, 0, position, verify)
        if isinstance(outcome, Partial) and len(self.window) == self._asked < outcome.needed <= WINDOW_BYTES:
            self.load(offset, outcome.needed)
            outcome = parse_record(self.window, 0, position, verify)
        return self._read_large(offset, outcome, verify) if isinstance(outcome, Partial) else outcome

    def _read_large(self, offset: int, partial: Partial, verify: bool) -> Outcome:
        """Read the header of an event that passes the window; its payload goes by in parts, if at all."""
        length = partial.needed
        if len(self.window) < self._asked or self.file.size() < offset + length:
            return partial
        if self.window[4] not in (EVENT_TYPE, REFERENCE_TYPE):
            return Impossible(f"a record of type {self.window[4]} with {length} bytes")
        (header_length,) = EVENT_DATA_LENGTH.unpack_from(self.window, 5)
        if header_length > HEADER_LENGTH_MAX:
            return Impossible(f"an event header of {header_length} bytes", length)
        head = self.window
        if len(head) < BEFORE_HEADER + header_length + 4:
            head = self.file.pread(BEFORE_HEADER + header_length + 4, offset)
        trailer = self.file.pread(TRAILER.size, offset + length - TRAILER.size)
        if len(trailer) < TRAILER.size:
            return partial
        header = parse_event(head, 0, self._base | offset, trailer)
        if header is None:
            return Impossible("an event record whose lengths or strings contradict each other", length)
        if verify and not event_checksum_holds(header, self._crc(offset, length - 4)):
            return BadChecksum(length, header)
        return header

    def _crc(self, offset: int, length: int) -> int:
        crc = 0
        end = offset + length
        while offset < end:
            chunk = self.file.pread(min(WINDOW_BYTES, end - offset), offset)
            if not chunk:
                return -1
            crc = crc32(chunk, crc)
            offset += len(chunk)
        return crc

    def lacks_checksum(self, header: RecordHeader) -> bool:
        """Whether a record has no checksum though its writer, by the sync record before its epoch, writes them.

        Zeros over a record's last bytes, as a loss of power leaves them, read "no checksum".
        """
        if header.crc_method != CRC_NONE or not self.checksum:
            return False
        epoch = header.epoch
        if epoch not in self._checked:
            walk = SegmentReader(self.file, self.number)  # leaves our window alone
            checked, at = False, HEADER.size
            while isinstance(outcome := walk.read(at, verify=False), RecordHeader | SyncRecord | RollbackMark):
                if isinstance(outcome, RecordHeader) and outcome.epoch >= epoch:
                    break
                if isinstance(outcome, SyncRecord):
                    checked = outcome.checksums
                at += outcome.record_length
            self._checked[epoch] = checked
        return self._checked[epoch]

    def payload(self, header: RecordHeader) -> bytes:
        """Return a record's payload, its checksum verified. Raises CorruptRecordError."""
        offset = lsn_offset(header.lsn)
        if self.lacks_checksum(header):
            raise self.corrupt(offset, header.seqno, UNCHECKED)
        at = offset - self.start
        if at >= 0 and at + header.record_length <= len(self.window):
            payload = payload_at(self.window, at, header, checksum=self.checksum)
            if payload is not None:
                return payload
        else:
            end = offset + header.record_length - TRAILER.size
            head = self.file.pread(end - header.data_length - offset, offset)
            payload = self.file.pread(header.data_length, end - header.data_length)
            method = self.file.pread(1, end)
            if len(payload) == header.data_length:
                if not self.checksum or event_checksum_holds(header, crc32(method, crc32(payload, crc32(head)))):
                    return payload
        raise self.corrupt(offset, header.seqno, BAD_CHECKSUM)

    def corrupt(self, offset: int, seqno: int | None, why: str) -> CorruptRecordError:
        """Return the error for a bad record of this segment; `seqno` -1 counts as none."""
        return CorruptRecordError(segment=self.name, offset=offset, seqno=None if seqno == NO_SEQNO else seqno, why=why)


def payload_at(window: bytes, at: int, header: RecordHeader, *, checksum: bool) -> bytes | None:
    """Return the payload of the record at `window[at]`, which is `header`'s; None if its checksum does not hold."""
    end = at + header.record_length - TRAILER.size
    if checksum and not event_checksum_holds(header, crc32(memoryview(window)[at : end + 1])):
        return None
    return window[end - header.data_length : end]


# --- a segment from outside -------------------------------------------------------------------------------


def only_zeros(file: DiskFile, offset: int, size: int) -> bool:
    """Whether nothing but zeros stands from `offset` up to `size`."""
    while offset < size:
        chunk = file.pread(WINDOW_BYTES, offset)
        if not chunk:
            return True
        if chunk.count(0) != len(chunk):
            return False
        offset += len(chunk)
    return True


def written_size(file: DiskFile, size: int) -> int:
    """Return where the zeros at the end of a file of `size` bytes begin: what of it was written."""
    while size:
        start = max(0, size - WINDOW_BYTES)
        chunk = file.pread(size - start, start)
        end = len(chunk)
        while end >= len(_ZEROS) and chunk[end - len(_ZEROS) : end] == _ZEROS:
            end -= len(_ZEROS)
        first = max(0, end - len(_ZEROS))
        rest = chunk[first:end].rstrip(b"\0")
        if rest:
            return start + first + len(rest)
        size = start
    return 0


def torn_size(file: DiskFile, size: int) -> int:
    """Return what of a file of `size` bytes a torn write may have reached: whole sectors, since it may end in zeros."""
    return min(size, -(-written_size(file, size) // _SECTOR_BYTES) * _SECTOR_BYTES)


def doubt_of_last(file: DiskFile, place: Lsn, seqno: Seqno, epoch: Epoch) -> str | None:
    """Return why an index whose last transaction is `seqno` of `epoch`, at `place` of an open segment, is not of it.

    None where that record stands there, whole as far as a window shows it. Raises OSError.
    """
    reader = SegmentReader(file, lsn_segment(place))
    header = reader.read(lsn_offset(place), verify=False)
    if isinstance(header, RecordHeader) and header.record_length <= WINDOW_BYTES:
        header = reader.read(lsn_offset(place), verify=True)
    if isinstance(header, RecordHeader) and (header.seqno, header.fragno, header.epoch) == (seqno, 0, epoch):
        return None
    return f"seqno {seqno} of epoch {epoch} is not at {lsn_text(place)}"


def glance_at(file: DiskFile, number: int) -> SegmentGlance:
    """Read a segment's first and last bytes. Raises OSError; LogCodecError has no place here, see `survey`."""
    size = file.size()
    if size > SEGMENT_BYTES_MAX:
        why = f"it has {size} bytes, and a segment ends at 4 GiB"
        return SegmentGlance(number=number, size=size, prev_seqno=None, problem=why)
    reader = SegmentReader(file, number)
    reader.load(0, _GLANCE_BYTES)
    header = parse_header(reader.window)
    match header:
        case Partial():
            if only_zeros(file, 0, size) or size < HEADER.size:
                return SegmentGlance(number=number, size=size, prev_seqno=None, torn_header=True)
            return SegmentGlance(
                number=number, size=size, prev_seqno=None, problem="bad header: zeros, and records after them"
            )
        case Impossible(why=why):
            return SegmentGlance(number=number, size=size, prev_seqno=None, problem=why)
        case SegmentHeader():
            pass
    at = HEADER.size
    outcome = reader.read(at, verify=False)
    written_at = outcome.written_at if isinstance(outcome, SyncRecord) else None
    while isinstance(outcome, SyncRecord):
        at += outcome.record_length
        outcome = reader.read(at, verify=False)
    mark: RollbackMark | None = None
    after = header.prev_seqno
    if isinstance(outcome, RollbackMark):
        mark, after = outcome, outcome.matchpoint_seqno
    while isinstance(outcome, SyncRecord) or (isinstance(outcome, RollbackMark) and outcome is mark):
        at += outcome.record_length
        outcome = reader.read(at, verify=False)
    first_seqno: Seqno | None = None
    bad: BadRecord | None = None
    if isinstance(outcome, RecordHeader):
        first_seqno = outcome.seqno
        if first_seqno != after + 1:  # which of the two is wrong?
            outcome = reader.read(at, verify=True)
    if isinstance(outcome, BadChecksum | Impossible):
        first_seqno = None
        bad = BadRecord(offset=at, why=outcome.why)
    next_name: str | None = None
    name_end = ROTATE_MIN - 1 + len(segment_name(number)) + 1
    if size >= HEADER.size + name_end:
        tail = file.pread(name_end, size - name_end)
        last = parse_record(tail, 0, lsn(number, size - name_end))
        if isinstance(last, RotateRecord) and last.record_length == len(tail):
            next_name = last.next_file_name
    return SegmentGlance(
        number=number,
        size=size,
        prev_seqno=header.prev_seqno,
        first_seqno=first_seqno,
        first_offset=None if first_seqno is None else at,
        bad=bad,
        next_name=next_name,
        written_at=written_at,
        mark=mark,
    )

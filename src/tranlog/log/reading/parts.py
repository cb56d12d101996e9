"""Reading a large transaction in parts: some bytes of its records, and where the next ones begin.

Owns the walk over the records of one transaction from a place inside it. The hard idea: nothing is remembered between
two parts. Where the rest begins is a record and an offset in it, which the caller keeps; so a part costs its own bytes,
however many there are, and memory is one part.

Source: docs/protocol.md, "The order of things".
"""

from __future__ import annotations

from typing import NamedTuple

from tranlog.ids import Lsn, Seqno
from tranlog.log.files.segment import UNCHECKED, SegmentReader
from tranlog.log.files.segments import Segments
from tranlog.log.reading.walk import fault_of
from tranlog.log.records.format import RecordHeader, SyncRecord
from tranlog.lsn import lsn_offset, lsn_segment


class RecordsPart(NamedTuple):
    """Bytes of one transaction's records, side by side, and where the rest begins; `record` None: there is none."""

    raw: bytes
    record: Lsn | None
    offset: int


def read_part(segments: Segments, seqno: Seqno, record: Lsn, offset: int, limit: int, *, checksum: bool) -> RecordsPart:
    """Return at most `limit` bytes of a transaction's records from `offset` of the one at `record` on.

    Each record's checksum is verified when its first byte is read. Raises CorruptRecordError, PurgedError,
    SegmentGoneError, LogUnreadableError.
    """
    parts: list[bytes] = []
    number, at, room = lsn_segment(record), lsn_offset(record), limit
    with segments.opened(number, seqno) as file:
        reader = SegmentReader(file, number, checksum=checksum)
        while True:
            header = reader.read(at, verify=checksum and not offset)
            if isinstance(header, SyncRecord):
                at += header.record_length
                continue
            if not isinstance(header, RecordHeader):
                raise reader.corrupt(at, seqno, fault_of(header))
            if header.seqno != seqno:
                raise reader.corrupt(at, seqno, f"seqno {header.seqno} inside the transaction {seqno}")
            if not offset and reader.lacks_checksum(header):
                raise reader.corrupt(at, seqno, UNCHECKED)
            taken = file.pread(min(header.record_length - offset, room), at + offset)
            parts.append(taken)
            room, offset = room - len(taken), offset + len(taken)
            if offset < header.record_length:
                return RecordsPart(b"".join(parts), Lsn(number << 32 | at), offset)
            if header.last_frag:
                return RecordsPart(b"".join(parts), None, 0)
            at, offset = at + header.record_length, 0

"""Reading what rollbacks abandoned, for people: the records that no cursor shows.

Owns the walk through dead intervals. Which mark took a record is `rollback`'s decision. The hard idea: of nested
intervals each record belongs to the first mark that covers it, the one that ended its life; later marks pass over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from tranlog.ids import Lsn
from tranlog.log.files.directory import reading
from tranlog.log.files.segment import SegmentReader
from tranlog.log.files.segments import Segments
from tranlog.log.files.spilled import read_spilled
from tranlog.log.records.format import HEADER, RecordHeader, RollbackMark, RotateRecord, StoredRecord, SyncRecord
from tranlog.log.rules.rollback import killer, still_there
from tranlog.lsn import lsn, lsn_offset, lsn_segment


def read_abandoned(segments: Segments, *, checksum: bool = True) -> Iterator[tuple[RollbackMark, StoredRecord]]:
    """Yield every abandoned fragment that is still there, with the mark that took it: mark by mark, in log order.

    Raises CorruptRecordError, PurgedError, SegmentGoneError, LogUnreadableError.
    """
    row = segments.row()
    if not row:
        return
    marks = still_there(segments.marks, row[0][0])
    for mark in marks:
        place = max(mark.dead_start, lsn(row[0][0], HEADER.size))
        while lsn_segment(place) < lsn_segment(mark.dead_end):
            first = killer(marks, place)
            if first is not None and first is not mark:
                place = first.dead_end
                continue
            number = lsn_segment(place)
            reader = SegmentReader(segments.open(number, mark.last_seqno), number, checksum=checksum)
            with closing(reader), reading(segments.files.path(number)):
                yield from _walk(reader, lsn_offset(place), mark, marks, segments)
            place = lsn(number + 1, HEADER.size)


def _walk(
    reader: SegmentReader, offset: int, mark: RollbackMark, marks: tuple[RollbackMark, ...], segments: Segments
) -> Iterator[tuple[RollbackMark, StoredRecord]]:
    """Yield what `mark` took of one segment, from `offset` to its end."""
    while True:
        if killer(marks, Lsn(reader.number << 32 | offset)) is not mark:
            return  # an earlier mark took it, and with that the rest of the segment
        outcome = reader.read(offset, verify=False)
        match outcome:
            case RecordHeader(spilled=True):
                raw = reader.payload(outcome)
                for record in read_spilled(segments.directory, segments.disk, outcome, raw, segments.history):
                    yield mark, record
            case RecordHeader():
                yield mark, StoredRecord(outcome, reader.payload(outcome))
            case SyncRecord() | RollbackMark():
                pass
            case RotateRecord():
                return
            case _:
                raise reader.corrupt(offset, mark.last_seqno, "something else is where a record belongs")
        offset += outcome.record_length

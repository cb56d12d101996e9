"""The running hash up to any transaction, from the bytes of a log.

Owns the search for it: a walk over the records between the transaction and a sync record that says a hash. The hard
idea: a hash is carried back as well as forward, so the nearest sync record serves, on whichever side it stands.

Source: docs/format.md, "The running hash".
"""

from __future__ import annotations

from typing import Final

from tranlog.errors import CorruptRecordError
from tranlog.ids import Seqno, segment_name
from tranlog.log.files.segment import SegmentReader
from tranlog.log.files.segments import Segments
from tranlog.log.records.format import CRC_32, HEADER, TRAILER, RecordHeader, RollbackMark, SyncRecord, take_events
from tranlog.log.records.running_hash import after, before, fold, fold_span, signed, tag_of
from tranlog.log.rules.index_values import Place
from tranlog.lsn import lsn_offset, lsn_segment

_BACK: Final = 4
"""So many transactions before the one that is asked for the second walk begins; each later one four times as many."""


def not_shown(seqno: Seqno, last: Seqno) -> ValueError:
    """Return the error for a seqno after the last one."""
    return ValueError(f"the log shows no seqno {seqno}: its last one is {last}")


def hash_up_to(segments: Segments, seqno: Seqno, last: Seqno) -> int:
    """Return the running hash up to a transaction, or up to the one before the first; signed.

    `last` is the last one that may be read. Raises ValueError for a later one, CorruptRecordError where nothing says a
    hash, PurgedError, SegmentGoneError, LogUnreadableError.
    """
    first = segments.first_seqno()
    if seqno > max(last, first - 1):
        raise not_shown(seqno, last)
    start = segments.start_of(max(seqno, first))
    if start is None or seqno < first - 1:
        raise segments.purged(seqno)
    back = 0
    while True:
        near = segments.locate(Seqno(seqno - back)) if seqno - back > start.seqno else None
        place = start if near is None or lsn_segment(near.lsn) != lsn_segment(start.lsn) else near
        number = lsn_segment(place.lsn)
        with segments.opened(number, seqno) as file:
            found = _walk(SegmentReader(file, number), place, seqno, last)
        if found is not None:
            return found
        if place is start:
            break
        back = 4 * back or _BACK
    if last < first:
        return 0  # nothing was written yet
    why = f"no sync record from here on says the running hash up to seqno {seqno}"
    raise CorruptRecordError(segment=segment_name(number), offset=HEADER.size, seqno=seqno, why=why)


def record_tag(reader: SegmentReader, header: RecordHeader) -> int:
    """Return what the bytes of a record put into the running hash. Raises OSError."""
    if header.crc_method == CRC_32 and not header.spilled:
        return header.crc
    record = reader.file.pread(header.record_length, lsn_offset(header.lsn))
    end = len(record) - TRAILER.size
    payload = end - header.data_length
    return tag_of(record[:payload], record[payload:end], record[end:])


def _walk(reader: SegmentReader, place: Place, wanted: Seqno, last: Seqno) -> int | None:
    """Walk from the transaction at `place` on, until a sync record tells the hash up to `wanted`; None if none does."""
    first = following = place.seqno
    offset = lsn_offset(place.lsn)
    hashes: list[int] = []  # after each transaction, if it were 0 before the first
    h = fragments = fragno = 0
    base: int | None = None
    while base is None or following <= wanted:
        outcome = reader.read(offset, verify=False)
        match outcome:
            case RecordHeader() if (outcome.seqno, outcome.fragno) == (following, fragno) and following <= last:
                places: list[int] = []
                at = offset - reader.start
                if not fragno:
                    end, following_ = take_events(reader.window, at, following, last, places, verify=False)
                if places:
                    h = fold_span(reader.window, at, end, h, hashes)
                    offset, following = reader.start + end, Seqno(following_)
                    continue
                fragments = fold(fragments, record_tag(reader, outcome), outcome.seqno, outcome.epoch)
                fragno += 1
                if outcome.last_frag:
                    h = after(h, fragments, 1)
                    hashes.append(h)
                    following, fragments, fragno = Seqno(following + 1), 0, 0
            case SyncRecord() if first - 1 <= outcome.seqno < following:
                count = outcome.seqno - first + 1
                base = before(signed(outcome.h), hashes[count - 1] if count else 0, count)
            case SyncRecord():
                pass
            case RollbackMark() if not hashes:
                base = None  # what stands before it was abandoned
            case _:
                return None
        offset += outcome.record_length
    count = wanted - first + 1
    return after(base, hashes[count - 1], count) if count else base

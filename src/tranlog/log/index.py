"""Where a seqno lies: the row of segments and, inside each, a place about every 64 KB.

Owns the sparse map from seqno to LSN, in memory, built by whoever scans. The hard idea: an index only ever says
"start reading here, at or before what you want"; what is read there is checked by the reader, so a thin or empty
index is slow and never wrong.

Source: design/index.md, "Shape", "Truncation".
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from tranlog.ids import Lsn, Seqno, lsn, lsn_offset, lsn_segment

STRIDE_BYTES = 64 * 1024
"""Least distance of two places of one segment that the index keeps."""


class Place(msgspec.Struct, frozen=True):
    """The first record of transaction `seqno` stands at `lsn`."""

    seqno: Seqno
    lsn: Lsn


class _Bucket:
    """One segment: the seqno before its first, and places in it in rising order."""

    __slots__ = ("number", "offsets", "prev_seqno", "seqnos")

    def __init__(self, number: int, prev_seqno: Seqno) -> None:
        self.number = number
        self.prev_seqno = prev_seqno
        self.seqnos = array("Q")
        self.offsets = array("Q")


class SeqnoIndex:
    """The segments of a log, first to newest, and sparse places in them.

    Threads: not for several at once; the owner's lock guards it.
    """

    def __init__(self, *, first_offset: int) -> None:
        """`first_offset` is where the first record of a segment stands."""
        self._first_offset = first_offset
        self._buckets: list[_Bucket] = []

    def __len__(self) -> int:
        return len(self._buckets)

    def __contains__(self, number: object) -> bool:
        return any(bucket.number == number for bucket in self._buckets)

    def add_segment(self, number: int, prev_seqno: Seqno) -> None:
        """Add the segment behind the newest one known."""
        assert not self._buckets or number == self._buckets[-1].number + 1
        self._buckets.append(_Bucket(number, prev_seqno))

    def segments(self) -> Iterator[tuple[int, Seqno]]:
        """Yield (number, prev_seqno), first to newest."""
        return iter([(bucket.number, bucket.prev_seqno) for bucket in self._buckets])

    def first_number(self) -> int | None:
        """Return the number of the first segment; None without any."""
        return self._buckets[0].number if self._buckets else None

    def newest_number(self) -> int | None:
        """Return the number of the newest segment; None without any."""
        return self._buckets[-1].number if self._buckets else None

    def first_seqno(self) -> Seqno | None:
        """Return the first seqno that the log holds or, while it is empty, will hold; None without a segment."""
        return Seqno(self._buckets[0].prev_seqno + 1) if self._buckets else None

    def prev_seqno(self, number: int) -> Seqno | None:
        """Return the last seqno before a segment; None for a segment that is not known."""
        for bucket in reversed(self._buckets):
            if bucket.number == number:
                return bucket.prev_seqno
        return None

    def note(self, seqno: Seqno, position: Lsn) -> None:
        """Learn where a transaction begins, in any order. Kept if it lies far enough from what is known."""
        number, offset = lsn_segment(position), lsn_offset(position)
        for bucket in reversed(self._buckets):
            if bucket.number == number:
                offsets = bucket.offsets
                at = bisect_right(offsets, offset)
                before = offsets[at - 1] if at else self._first_offset
                if offset - before >= STRIDE_BYTES and (at == len(offsets) or offsets[at] - offset >= STRIDE_BYTES):
                    bucket.seqnos.insert(at, seqno)
                    offsets.insert(at, offset)
                return

    def locate(self, seqno: Seqno) -> Place | None:
        """Return the nearest place at or before `seqno`; None when it lies before the first segment.

        Shape: for a seqno behind the end, the last place known. The place may be a segment's first record, which
        need not be an event; the seqno that is returned is that of the first event from there on.
        """
        row = bisect_right(self._buckets, seqno - 1, key=lambda bucket: bucket.prev_seqno) - 1
        if row < 0:
            return None
        # Two segments with one prev_seqno: the earlier one holds no transaction, the later one is right.
        bucket = self._buckets[row]
        at = bisect_right(bucket.seqnos, seqno) - 1
        if at < 0:
            return Place(Seqno(bucket.prev_seqno + 1), lsn(bucket.number, self._first_offset))
        return Place(Seqno(bucket.seqnos[at]), lsn(bucket.number, bucket.offsets[at]))

    def drop_front(self, number: int) -> None:
        """Forget the segments below `number`."""
        self._buckets = [bucket for bucket in self._buckets if bucket.number >= number]

    def drop_end(self, position: Lsn) -> None:
        """Forget whatever stands at `position` or behind it; the segment of `position` stays."""
        number, offset = lsn_segment(position), lsn_offset(position)
        self._buckets = [bucket for bucket in self._buckets if bucket.number <= number]
        for bucket in self._buckets:
            if bucket.number == number:
                while bucket.offsets and bucket.offsets[-1] >= offset:
                    bucket.offsets.pop()
                    bucket.seqnos.pop()

"""Filling the gaps of an index whose stored form was lost: what its buckets leave out is walked, beside the commits.

Owns the steps of the walk, and when one is given up; what a gap is, and how it is filled, is `index`'s, in which thread
and what is stored of it `index_flush`'s. The hard idea: what is missing shows in the buckets themselves. So nothing has
to be remembered from one writer to the next, and what was stored before a crash is not walked again.

Source: vlsn-index ("Recovery").
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from contextlib import closing

from tranlog.errors import LogError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.segment import SegmentReader
from tranlog.log.files.segments import Segments
from tranlog.log.records.format import RecordHeader, RollbackMark, SyncRecord, take_events
from tranlog.log.rules.index_values import Gap
from tranlog.lsn import lsn_offset, lsn_segment

logger = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
"""What is walked between two looks at whether to end: closing the log waits for no more."""


def walk_gap(reader: SegmentReader, gap: Gap, most: int) -> array[int]:
    """Return the offsets of the transactions after a gap's place, in its segment and one by one.

    Ends: with the gap, with the segment, after `most` bytes but not before one transaction was found, and at what is
    no record that belongs there, which whoever reads up to it will name. Raises OSError.
    """
    offsets = array("I")
    start = at = begun = lsn_offset(gap.place.lsn)
    seqno, fragno = gap.place.seqno, 0
    while seqno <= gap.upto and (at - start < most or len(offsets) < 2):
        outcome = reader.read(at, verify=False)
        places: list[int] = []
        if not fragno:
            end, following = take_events(reader.window, at - reader.start, seqno, gap.upto, places, verify=False)
            if places:
                offsets.extend([reader.start + place for place in places])
                at, seqno = reader.start + end, Seqno(following)
                continue
        match outcome:
            case RecordHeader() if (outcome.seqno, outcome.fragno) == (seqno, fragno):
                begun = begun if fragno else at
                fragno += 1
                if outcome.last_frag:
                    offsets.append(begun)
                    seqno, fragno = Seqno(seqno + 1), 0
            case SyncRecord() | RollbackMark():
                pass
            case _:
                break
        at += outcome.record_length
    return offsets[1:]  # the first one is the place itself


class IndexFill:
    """Fills the gaps of one log's index. Threads: `run` in one of its own, `end` by any."""

    def __init__(self, segments: Segments, give_way: Callable[[], object], *, filled: Callable[[], object]) -> None:
        """`give_way` is called between two steps, `filled` once there is something to store and nothing to fill."""
        self._segments = segments
        self._give_way = give_way
        self._filled = filled
        self._ending = False

    def end(self) -> None:
        """Make `run` return after the step that is under way."""
        self._ending = True

    def run(self) -> None:
        """Walk gap by gap, from the front; one that cannot be filled is left for the next writer."""
        segments = self._segments
        above = NO_SEQNO
        while (gap := segments.index.mappings.gap(above)) is not None:
            offsets = self._walk(gap)
            if not offsets:
                above = Seqno(gap.upto + 1)
            elif segments.fill(gap, offsets):  # else the log was rolled back or purged: that gap is not there now
                above = Seqno(gap.place.seqno + len(offsets))
            if self._ending:
                return
            self._give_way()
        logger.info(
            "The gaps of the index were filled. path=%s buckets=%d", segments.directory, len(segments.index.mappings)
        )
        self._filled()

    def _walk(self, gap: Gap) -> array[int]:
        number = lsn_segment(gap.place.lsn)
        try:
            with closing(self._segments.disk.open(self._segments.files.path(number))) as file:
                return walk_gap(SegmentReader(file, number), gap, STEP_BYTES)
        except (OSError, LogError) as exc:  # purged meanwhile, or it cannot be read
            logger.info("A gap of the index is left. path=%s why=%s", self._segments.files.path(number), exc)
            return array("I")

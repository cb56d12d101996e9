"""What a log that is open for writing says of itself, and its cursors.

Owns the questions of `Log`; nothing here changes the log.

Source: thl-internals; docs/format.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

from tranlog.ids import NO_SEQNO, Epoch, Gtid, Lsn, Seqno
from tranlog.log.files.hashing import hash_up_to
from tranlog.log.files.holds import KeptHold
from tranlog.log.files.positions import NO_LSN
from tranlog.log.files.segment import SegmentReader
from tranlog.log.files.segments import SegmentStat
from tranlog.log.files.spilled import SpillFault, SpillReader, SpillStat
from tranlog.log.options import LogStatus
from tranlog.log.reading.cursor import Cursor
from tranlog.log.reading.gate import Gate
from tranlog.log.reading.parts import RecordsPart, read_part
from tranlog.log.reading.reader import LogRange
from tranlog.log.records.format import HEADER, RecordHeader, RollbackMark, SyncRecord
from tranlog.log.records.running_hash import unsigned
from tranlog.log.records.spill import RawChunk
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.writing.log_end import LogEnd, OwnView
from tranlog.lsn import lsn_segment


class LogView:
    """A log in its writer's process, to be asked and read. Threads: any."""

    def __init__(self, end: LogEnd) -> None:
        self._end = end
        self.path = end.path
        """The log's directory."""
        self.disk = end.disk
        """The disk on which its directory is."""

    @property
    def history(self) -> bytes:
        """The identity of the log's history, 16 bytes: made with the log, and that of each copy of it."""
        assert self._end.segments.history is not None, "opening the log has found it, or made it"
        return self._end.segments.history

    @property
    def seqno_index(self) -> SeqnoIndex:
        """The index: any thread may look up in it and read its range, nobody else may change it."""
        return self._end.segments.index

    @property
    def epoch(self) -> Epoch:
        """The epoch of this opening of the log."""
        return self._end.pending.epoch

    @property
    def first_seqno(self) -> Seqno:
        """The first transaction held; NO_SEQNO while there is none."""
        return self._end.segments.first_seqno() if self._end.publishing.visible_lsn != NO_LSN else NO_SEQNO

    @property
    def last_seqno(self) -> Seqno:
        """The last transaction that has a place, visible or not; NO_SEQNO while there is none."""
        return self._end.pending.last

    @property
    def visible_seqno(self) -> Seqno:
        """The last transaction that readers may see."""
        return self._end.publishing.visible

    @property
    def durable_seqno(self) -> Seqno:
        """The last transaction that a sync covered."""
        return self._end.publishing.durable

    @property
    def visible_gtid(self) -> Gtid | None:
        """The last transaction that readers may see; None in a log without any."""
        publishing = self._end.publishing
        return None if publishing.visible_lsn == NO_LSN else Gtid(publishing.visible_epoch, publishing.visible)

    @property
    def visible_lsn(self) -> Lsn:
        """Where the last transaction begins that readers may see; 0 in a log without any."""
        return self._end.publishing.visible_lsn

    @property
    def marks(self) -> int:
        """The number of the last rollback mark; 0 in a log that never was rolled back."""
        return self._end.publishing.mark

    def last(self) -> RecordHeader | None:
        """Return the header of the last visible transaction's last fragment; None in a log without any."""
        if self._end.publishing.visible_lsn == NO_LSN:
            return None
        with self.cursor() as cursor:
            cursor.seek(self._end.publishing.visible)
            return cursor.next_header()

    def range(self) -> LogRange:
        """Return what the log holds now, as readers see it."""
        publishing, first = self._end.publishing, self.first_seqno
        if first == NO_SEQNO:
            return LogRange(epoch=self.epoch)
        return LogRange(
            first_seqno=first,
            last_seqno=publishing.visible,
            durable_seqno=publishing.durable,
            committed_seqno=publishing.committed,
            epoch=self.epoch,
        )

    def header(self, seqno: Seqno) -> RecordHeader | None:
        """Return the header of a visible transaction's last fragment; None for one that the log does not show."""
        if seqno < 0 or not self.first_seqno <= seqno <= self._end.publishing.visible:
            return None
        with self.cursor() as cursor:
            cursor.seek(seqno)
            return cursor.next_header()

    def h(self, seqno: Seqno) -> int:
        """Return the running hash up to a visible transaction, or up to the one before the first.

        Units: from 0 to 2^64 - 1. Raises PurgedError for an earlier one, ValueError for a later one, SegmentGoneError,
        LogUnreadableError, CorruptRecordError.
        """
        with self._end.steps.lock:
            visible, h = self._end.publishing.visible, self._end.prefix.h
        return unsigned(h if seqno == visible else hash_up_to(self._end.segments, seqno, visible))

    def last_of_epoch(self, epoch: int) -> Gtid | None:
        """Return the last visible transaction of that epoch or of one before it; None where none is held.

        By halving over headers: epochs do not fall.
        """
        low, high = self.first_seqno, self._end.publishing.visible
        found: Gtid | None = None
        with self.cursor() as cursor:
            while NO_SEQNO < low <= high:
                middle = Seqno((low + high + 1) // 2)
                cursor.seek(middle)
                header = cursor.next_header()
                if header is not None and header.epoch <= epoch:
                    found, low = header.gtid, Seqno(middle + 1)
                else:
                    high = Seqno(middle - 1)
        return found

    def logged_at(self, seqno: Seqno) -> tuple[list[tuple[Seqno, int]], Seqno]:
        """Return when the transactions of one segment, that of a visible `seqno`, were logged here, and its last one.

        Shape: pairs in order, the first of those that were logged together and the wall clock then, ms since 1970. That
        the sync record before them says. Reads the segment's headers. Raises as a cursor's `next`.
        """
        with self.cursor() as cursor:
            cursor.seek(seqno)
            found = cursor.next()
            assert found is not None, "it is visible"
            number = lsn_segment(found.start)
        segments = self._end.segments
        after, cut = segments.prev_seqno(number), segments.cut_of(number)
        assert after is not None
        times: list[tuple[Seqno, int]] = []
        following, offset = Seqno(after + 1), HEADER.size
        with segments.opened(number, seqno) as file:
            reader = SegmentReader(file, number)
            while True:
                match outcome := reader.read(offset, verify=False):
                    case RecordHeader():
                        following = Seqno(outcome.seqno + outcome.last_frag)
                    case SyncRecord():
                        times.append((following, outcome.written_at))
                    case RollbackMark():
                        following = Seqno(outcome.matchpoint_seqno + 1)
                    case _:
                        break
                offset += outcome.record_length
        last = Seqno(following - 1)
        return times, last if cut is None else min(last, cut)

    def open_spills(self) -> dict[bytes, int]:
        """Return how many chunks each transaction has spilled that is still open, by its oid."""
        return {one.oid: one.chunks for one in self._end.spilling.open_ones()}

    def open_chunks(self, have: Mapping[bytes, int] | None = None) -> Iterator[RawChunk]:
        """Yield the chunks that transactions have spilled which are still open, each one's in order.

        `have`: so many of one, by its oid, are not wanted. One that ends meanwhile has no more of them. Raises
        LogUnreadableError.
        """
        end = self._end
        for reference, first, places in end.spilling.open_places({} if have is None else have):
            with closing(SpillReader(end.path, end.disk, reference, None, end.segments.history)) as reader:
                for found in reader.chunks(first, places):
                    if isinstance(found, SpillFault):
                        break
                    yield found

    def part(self, seqno: Seqno, record: Lsn, offset: int, limit: int) -> RecordsPart:
        """Return some of a visible transaction's bytes, see `read_part`."""
        return read_part(self._end.segments, seqno, record, offset, limit, checksum=self._end.options.checksum)

    def last_event_id(self) -> str | None:
        """Return the event id that a source resumes after; None in a log that never captured anything.

        Shape: that of the last visible transaction; what a full disk took is no part of it.
        """
        return self._end.publishing.visible_ids[1] or None

    def segments(self) -> list[SegmentStat]:
        """Describe each segment, first to newest."""
        return self._end.segments.stats(self._end.publishing.visible)

    def spill_segments(self) -> list[SpillStat]:
        """Describe each spill segment, oldest first. Raises LogUnreadableError."""
        return self._end.spilling.stats()

    def spilled_into(self, number: int) -> list[Gtid]:
        """Return the transactions that refer into a spill segment; one may have been abandoned since."""
        return self._end.spilling.referring(number)

    def status(self) -> LogStatus:
        """Return where the log stands."""
        end, publishing = self._end, self._end.publishing
        with end.steps.lock:
            return LogStatus(
                path=end.path,
                epoch=end.pending.epoch,
                first_seqno=self.first_seqno,
                last_seqno=end.pending.last,
                visible_seqno=publishing.visible,
                durable_seqno=publishing.durable,
                committed_seqno=publishing.committed,
                segments=len(end.segments.row()),
                syncs=end.journal.syncs,
                reads=end.recent.snapshot(),
                closed_because=None if end.ownership.lost is None else str(end.ownership.lost),
            )

    def cursor(self, *, committed_only: bool = False, hold: str | None = None) -> Cursor:
        """Return a cursor at the first transaction, which wakes as soon as there is more; see `LogReader.cursor`."""
        kept = None if hold is None else KeptHold(self._end.path, hold, disk=self._end.disk, clock=self._end.clock)
        return Cursor(OwnView(self._end), committed_only=committed_only, kept=kept)

    def gate(self, *, committed_only: bool = False) -> Gate:
        """Return the gate at which to wait for a transaction to be visible or, on demand, committed."""
        return self._end.publishing.gate(committed_only=committed_only)

"""A log as any process may read it: no lock, no byte changed.

Owns how a reader learns what it may see: from the positions file where that can be trusted, else by scanning. The
hard idea: the two answer differently on purpose. The positions file says what the living writer has made visible
and durable; a scan can only say what is complete, and durable is then no more than what a sync record proves.

Source: docs/format.md.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from tranlog.clock import SYSTEM_CLOCK, Clock, check_seconds
from tranlog.closing import Closing
from tranlog.disk import OS_DISK, Disk, DiskFile
from tranlog.errors import CorruptRecordError, LogClosedError, LogMissingError, PurgedError, SegmentGoneError
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Seqno, segment_name
from tranlog.log.files.commit_point import is_member, read_commit_point
from tranlog.log.files.directory import directory_of, join, reading
from tranlog.log.files.hashing import hash_up_to, not_shown
from tranlog.log.files.holds import KeptHold
from tranlog.log.files.index_reader import IndexReader
from tranlog.log.files.index_table import INDEX_NAME, read_index
from tranlog.log.files.positions import POSITIONS_NAME, Positions, PositionsReader, read_published
from tranlog.log.files.scan import SegmentScanner, checkpoint_of, scan_segment, survey
from tranlog.log.files.segment import SegmentReader, glance_at, torn_size
from tranlog.log.files.segments import Segments, SegmentStat
from tranlog.log.files.spilled import SpillStat, spill_stats
from tranlog.log.reading.abandoned import read_abandoned
from tranlog.log.reading.cursor import Cursor
from tranlog.log.records.format import HEADER, RECORD_START
from tranlog.log.records.record import RecordHeader, RollbackMark, StoredRecord
from tranlog.log.records.running_hash import unsigned
from tranlog.log.rules.recovery import Checkpoint, SegmentScan, end_problem, judge, last_transaction, missing
from tranlog.lsn import lsn_segment
from tranlog.payload import Payload

logger = logging.getLogger(__name__)

POLL_FIRST_S = 0.0005
POLL_LONGEST_S = 0.020
"""Where nothing tells it, a reader looks again after the first, then twice as long each time, up to the longest."""
SLOW_POLL_S = 0.250
"""Where the system tells of each write, a reader looks all the same after so long: not every file system tells all."""

LOOK_S = 0.050
"""After so long a reader looks for a rollback before it returns what it has read; a rollback waits for twice that."""

IndexEntry = SegmentStat


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """What a log holds and how far it may be read; NO_SEQNO where there is nothing.

    `scanned`: the positions file could not be trusted, so last_seqno is the last complete transaction, and durable
    and committed are what a sync record proves; of a member of a group, committed is what `group/commit` says.
    """

    first_seqno: Seqno = NO_SEQNO
    last_seqno: Seqno = NO_SEQNO
    durable_seqno: Seqno = NO_SEQNO
    committed_seqno: Seqno = NO_SEQNO
    epoch: Epoch = NO_EPOCH
    scanned: bool = False


class LogReader(Closing):
    """A log opened for reading. Threads: any; each cursor belongs to one at a time. `_lock` guards the limits."""

    def __init__(self, path: str, *, disk: Disk, clock: Clock, checksum: bool) -> None:
        """For `open` only."""
        self.path = path
        """The log's directory."""
        self._disk = disk
        self._clock = clock
        self._checksum = checksum
        self._lock = threading.Lock()
        self._segments = Segments(path, disk)
        self._segments.follow_index(IndexReader(join(path, INDEX_NAME), disk))
        self._positions = PositionsReader(path, disk)
        self._watch = disk.watch(f"{path.rstrip('/')}/{POSITIONS_NAME}")
        self._taken: Positions | None = None  # what `_range` was made of
        self._surveyed: SegmentScan | None = None  # the newest segment, as the last survey found it
        self._before: RecordHeader | None = None  # the last event before it, where that was read
        self._tail: SegmentScanner | None = None  # walks on from there
        self._tail_reader: SegmentReader | None = None
        self._range = LogRange()
        self._told_by = 0  # the positions file that was read last
        self._heeded = 0  # the last rollback mark that was looked for
        self._closed = False

    keeps_holds = True
    """Retention waits for holds."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        disk: Disk = OS_DISK,
        clock: Clock = SYSTEM_CLOCK,
        checksum: bool = True,
    ) -> LogReader:
        """Open the log in a directory. Without `checksum`, records are shown whatever their checksum says.

        Raises LogMissingError, LogUnreadableError, LogCodecError, CorruptRecordError.
        """
        return cls(
            directory_of(path),
            disk=disk,
            clock=clock,
            checksum=checksum,
        )._begin()

    def _begin(self) -> Self:
        """Look at the log for the first time. Raises as `open`."""
        try:
            self._limit_marks(self._positions.read())
            self._segments.refresh()
            if not self._segments.row():
                raise LogMissingError(path=self.path, why="its first segment has no header yet")
            found = self.range()
        except BaseException:
            self.close()
            raise
        logger.info(
            "Opened for reading. path=%s segments=%d last_seqno=%d checksum=%s end=%s",
            self.path,
            len(self._segments.row()),
            found.last_seqno,
            self._checksum,
            "scanned" if found.scanned else "published",
        )
        return self

    @property
    def history(self) -> bytes:
        """The identity of the log's history, 16 bytes. Raises LogMissingError while it has no record."""
        segments = self._segments
        if segments.history is None:  # it may have its first record by now
            number = segments.row()[0][0]
            segments.keep_open(number, segments.open(number, NO_SEQNO))
        if segments.history is None:
            raise LogMissingError(path=self.path, why="its first segment has no record yet")
        return segments.history

    def range(self) -> LogRange:
        """Return what the log holds now. Raises CorruptRecordError, LogUnreadableError, LogMissingError."""
        with self._lock:
            if self._closed:
                raise LogClosedError()
            with reading(self.path):
                self._look()
            return self._range

    def _limit_marks(self, positions: Positions | None) -> None:
        """Ignore every rollback that its writer has not published: readers go by what is visible."""
        self._segments.mark_limit = None if positions is None else positions.mark

    def _look(self) -> None:
        self._positions.history = self._segments.history
        positions = self._positions.read()
        if positions is not None and positions is self._taken:
            return
        self._limit_marks(positions)
        self._taken = None
        self._heed_replacement(positions)
        if positions is None:
            self._scan()
            return
        self._drop_tail()
        self._surveyed = None
        self._take(positions)
        self._taken = positions

    def _heed_replacement(self, positions: Positions | None) -> None:
        """Where the positions come from another file than before, or from none, see that the segments do not."""
        file = 0 if positions is None else positions.identity
        if file != self._told_by:
            if self._told_by:
                self._segments.files.check_all_same(self._segments.history)
            self._told_by = file

    def _take(self, positions: Positions) -> None:
        empty = positions.visible_seqno < positions.first_seqno
        first = self._segments.first_seqno()
        if positions.mark != self._heeded:
            self._segments.refresh()
            self._heeded = positions.mark
            first = self._segments.first_seqno()
        number = lsn_segment(positions.visible_lsn)
        if not empty and not self._segments.knows(number):
            self._segments.refresh()
            first = self._segments.first_seqno()
            empty = positions.visible_seqno < first
            if not empty and not self._segments.knows(number):
                raise SegmentGoneError(path=self._segments.files.path(number))
        if not empty:
            after = self._segments.prev_seqno(number)
            if after is not None and after >= positions.visible_seqno:
                why = f"seqno {positions.visible_seqno} is in it, after a rollback mark that cannot be read"
                raise CorruptRecordError(segment=segment_name(number), offset=HEADER.size, seqno=after, why=why)
            if first < positions.first_seqno:
                self._segments.refresh()
                first = self._segments.first_seqno()
            self._segments.note(positions.visible_seqno, positions.visible_lsn)
        if empty:
            self._range = LogRange(epoch=positions.epoch)
            return
        self._range = LogRange(
            first_seqno=first,
            last_seqno=positions.visible_seqno,
            durable_seqno=positions.durable_seqno,
            committed_seqno=positions.committed_seqno,
            epoch=positions.epoch,
        )

    def _scan(self) -> None:
        """Find the end by reading: at first the newest segments, later what has come after."""
        if self._surveyed is not None:
            try:
                return self._scan_after(self._surveyed)
            except (PurgedError, SegmentGoneError):  # where it stood is purged
                self._drop_tail()
                self._surveyed = None
        self._begin_scan()

    def _scan_after(self, surveyed: SegmentScan) -> None:
        published = read_published(self.path, self._disk)  # before anything that it tells of
        if self._tail is None:
            number = surveyed.number
            segment = self._segments.open(number, self._range.last_seqno)
            if not (_grown(segment, surveyed) or self._disk.exists(self._segments.files.path(number + 1))):
                return
            self._open_tail(number, surveyed.header_seqno, self._before, surveyed.behind)
        else:
            self._tail.advance()
        while self._tail is not None and self._tail_reader is not None:
            found = self._tail.result()
            marks = self._segments.marks if found.mark is None else (*self._segments.marks, found.mark)
            newest = found.next_name is None or not self._disk.exists(self._segments.files.path(found.number + 1))
            problem = end_problem(found, newest=newest, published=published.beside(marks), epoch=found.epoch)
            if problem is not None:
                path = self._segments.files.path(found.number)
                raise problem.error() if self._disk.exists(path) else SegmentGoneError(path=path)
            self._take_scan(found.last_seqno, found.proven_seqno, found.last_header)
            if newest:
                return
            self._segments.refresh()
            if not self._segments.knows(found.number + 1):
                return
            self._open_tail(found.number + 1, found.last_seqno, found.last_header)

    def _begin_scan(self) -> None:
        stored = read_index(join(self.path, INDEX_NAME), self._disk) if self._checksum else None
        checkpoint = None if stored is None else checkpoint_of(*stored)
        found = survey(
            self.path,
            self._disk,
            checksum=self._checksum,
            checkpoint=checkpoint,
            history=self._segments.history,
        )
        self._segments.refresh()
        ends = {segment_name(found.glances[-1].number), *(segment_name(scan.number) for scan in found.scans[-1:])}
        for problem in judge(found):
            if problem.segment in ends:  # what is wrong before that is met by whoever reads up to it
                raise problem.error()
        if not found.scans:
            return
        header, _ = last_transaction(found)
        last = found.scans[-1]
        for scan in found.scans:
            self._segments.learn_run(scan.number, Seqno(scan.prev_seqno + 1), scan.starts)
        self._surveyed = last
        self._before = found.scans[-2].last_header if len(found.scans) > 1 else None
        self._take_scan(last.last_seqno, last.proven_seqno, header)

    def _open_tail(
        self, number: int, prev_seqno: Seqno, before: RecordHeader | None, behind: Checkpoint | None = None
    ) -> None:
        """Walk a segment from its start or, where its survey began `behind` a checkpoint, from there."""
        self._drop_tail()
        reader = SegmentReader(self._segments.open(number, prev_seqno), number, checksum=self._checksum)
        self._tail_reader = reader
        if behind is None:
            self._tail = SegmentScanner(reader, prev_seqno, before=before)
        else:
            header = reader.read(behind.offset, verify=True)
            if not isinstance(header, RecordHeader):
                raise reader.corrupt(behind.offset, behind.seqno, "the record that was here is gone")
            self._tail = SegmentScanner(reader, prev_seqno, before=header, offset=behind.offset)
        self._tail.advance()
        if behind is not None:
            self._tail.prove(behind.end)

    def _drop_tail(self) -> None:
        if self._tail_reader is not None:
            self._tail_reader.close()
        self._tail = self._tail_reader = None

    def _take_scan(self, last: Seqno, proven: Seqno, header: RecordHeader | None) -> None:
        first = self._segments.first_seqno()
        empty = last < first
        durable = NO_SEQNO if proven < first else proven
        self._range = LogRange(
            first_seqno=NO_SEQNO if empty else first,
            last_seqno=NO_SEQNO if empty else last,
            durable_seqno=durable,
            committed_seqno=self._commit_point(last) if is_member(self.path, self._disk) else durable,
            epoch=self._range.epoch if header is None else header.epoch,
            scanned=True,
        )

    def _commit_point(self, last: Seqno) -> Seqno:
        """Return up to where the group has committed what a member's log holds, which ends at `last`, if it is kept."""
        point = read_commit_point(self.path, self._disk)
        if point is None or not self._segments.first_seqno() <= point.seqno <= last:
            return NO_SEQNO
        with Cursor(_ScannedView(self._segments, self._checksum, last)) as cursor:
            cursor.seek(point.seqno)
            header = cursor.next_header()
        return point.seqno if header is not None and header.gtid == point else NO_SEQNO

    def cursor(self, *, committed_only: bool = False, hold: str | None = None) -> Cursor:
        """Return a cursor at the first transaction; with `committed_only` it never passes the committed seqno.

        `hold`: the name of a hold that it keeps at its place, so that nothing from there on is purged, unless a hard
        limit passes it; with one a cursor also raises HoldError, where that cannot be written. It stays when the cursor
        is closed: seek there, or give it up by `drop_hold`.
        """
        self.range()  # which segments there are now
        kept = None if hold is None else KeptHold(self.path, hold, disk=self._disk, clock=self._clock)
        return Cursor(_ReaderView(self), committed_only=committed_only, kept=kept)

    def header(self, seqno: Seqno) -> RecordHeader | None:
        """Return the header of a transaction's last fragment; None for one that the log does not show."""
        found = self.range()
        if not found.first_seqno <= seqno <= found.last_seqno or seqno < 0:
            return None
        with self.cursor() as cursor:
            cursor.seek(seqno)
            return cursor.next_header()

    def h(self, seqno: Seqno) -> int:
        """Return the running hash up to a transaction that the log shows, or up to the one before the first.

        Units: from 0 to 2^64 - 1. Raises PurgedError for an earlier one, ValueError for a later one, and as `range`.
        """
        last = self.range().last_seqno
        return unsigned(hash_up_to(self._segments, seqno, last))

    def payload(self, seqno: Seqno) -> Payload:
        """Return the content of a transaction that the log shows, at once; for small ones. Raises as `h`."""
        with self.cursor() as cursor:
            cursor.seek(seqno)
            transaction = cursor.next()
            if transaction is None:
                raise not_shown(seqno, self.range().last_seqno)
            return transaction.payload()

    def abandoned(self) -> Iterator[tuple[RollbackMark, StoredRecord]]:
        """Yield each fragment that a rollback abandoned and that is still there, with the mark that took it.

        Shape: mark by mark, in the order of the log. Raises CorruptRecordError, PurgedError, SegmentGoneError.
        """
        self.range()
        self._segments.refresh()
        return read_abandoned(self._segments, checksum=self._checksum)

    def index(self) -> list[IndexEntry]:
        """Return one entry per segment: its seqnos, its size, when it was begun.

        Shape: where segments are missing, the one before them ends where it ends; `check_whole` then raises.
        """
        found = self.range()
        ends = self._ends_before_holes()
        stats = self._segments.stats(max(found.last_seqno, self._segments.row()[-1][1]))
        return [replace(one, last_seqno=ends.get(one.number, one.last_seqno)) for one in stats]

    def modified_ms(self, name: str) -> int:
        """Return when a segment's file was written last, ms since 1970. Raises LogUnreadableError."""
        with reading(join(self.path, name)):
            return self._disk.modified_ms(join(self.path, name))

    def _ends_before_holes(self) -> dict[int, Seqno]:
        """Return where each segment ends that the next one is missing after; no later header tells it."""
        while True:
            self._segments.refresh()
            numbers = [number for number, _ in self._segments.row()]
            try:
                return {one: self._end_of(one) for one, following in pairwise(numbers) if following != one + 1}
            except PurgedError:
                continue  # a purge takes the oldest first: there is a hole only where the one before it is still there

    def _end_of(self, number: int) -> Seqno:
        with self._segments.opened(number, NO_SEQNO) as file:
            return scan_segment(self.path, self._disk, glance_at(file, number), checksum=self._checksum).last_seqno

    def check_whole(self) -> None:
        """Raise CorruptRecordError for the first segment that is missing between others."""
        self.range()
        for number, last in self._ends_before_holes().items():
            raise missing(number + 1, last).error()

    def purged(self, seqno: Seqno) -> PurgedError:
        """Return the error for a seqno before the first one held, with what is known of why it went."""
        return self._segments.purged(seqno)

    def spill_segments(self) -> list[SpillStat]:
        """Describe each spill segment, oldest first.

        Raises CorruptRecordError, LogUnreadableError, SegmentGoneError.
        """
        return spill_stats(self.path, self._disk)

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        with self._lock:
            if self._watch is not None and not self._closed:
                self._watch.close()
            self._closed = True
            self._drop_tail()
            self._positions.close()
            self._segments.close()

    def _wait(self, seqno: Seqno, committed_only: bool, timeout_s: float) -> Seqno:
        deadline = self._clock.monotonic() + timeout_s
        marks = self._segments.marks
        found = self.range()
        while True:
            limit = found.committed_seqno if committed_only else found.last_seqno
            left = deadline - self._clock.monotonic()
            if limit >= seqno or left <= 0 or self._segments.marks is not marks:
                return limit
            found = self.changed(found, left)

    def changed(self, known: LogRange, timeout_s: float) -> LogRange:
        """Return what the log holds as soon as that is not what is `known`, or after `timeout_s` whatever it is then.

        Raises as `range`.
        """
        check_seconds("timeout_s", timeout_s)
        deadline = self._clock.monotonic() + timeout_s
        pause = POLL_FIRST_S
        watch = self._watch
        told = True  # by the system, that it is worth looking
        while True:
            ticket = None if watch is None else watch.ticket()  # first this, then look: nothing between is lost
            found = self.range()
            if found != known and watch is not None and not told:
                watch.missed()
            left = deadline - self._clock.monotonic()
            if found != known or left <= 0:
                return found
            if watch is None or ticket is None or found.scanned:
                told = True
                self._clock.sleep(min(pause, left))
                look_again = pause >= POLL_LONGEST_S
                pause = min(pause * 2, POLL_LONGEST_S)
            else:
                told = watch.wait(ticket, min(left, SLOW_POLL_S))
                look_again = not told
            if look_again:
                with self._lock:
                    self._positions.look_again()


def _grown(segment: DiskFile, found: SegmentScan) -> bool:
    """Whether there is more in a segment than a survey found; it may have been longer all the time, by zeros."""
    with closing(segment) as file:
        if found.bad is None:
            return any(file.pread(RECORD_START.size, found.end))
        return torn_size(file, file.size()) != found.size


class _ScannedView:
    """A log up to where a scan found it to end, for a look at one of its records."""

    __slots__ = ("_last", "checksum", "segments")

    def __init__(self, segments: Segments, checksum: bool, last: Seqno) -> None:
        self.segments = segments
        self.checksum = checksum
        self._last = last

    def limit(self, *, committed_only: bool) -> Seqno:
        return self._last

    def heed(self) -> None:
        """The scan has."""

    def wait(self, seqno: Seqno, *, committed_only: bool, timeout_s: float) -> Seqno:
        return self._last


class _ReaderView:
    """The log as cursors over a reader see it."""

    __slots__ = ("_look_at", "_monotonic", "_reader", "checksum", "segments")

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._monotonic = reader._clock.monotonic
        self._look_at = 0.0
        self.segments = reader._segments
        self.checksum = reader._checksum

    def limit(self, *, committed_only: bool) -> Seqno:
        found = self._reader.range()
        return found.committed_seqno if committed_only else found.last_seqno

    def heed(self) -> None:
        now = self._monotonic()
        if now >= self._look_at:
            self._reader.range()
            self._look_at = now + LOOK_S

    def wait(self, seqno: Seqno, *, committed_only: bool, timeout_s: float) -> Seqno:
        return self._reader._wait(seqno, committed_only, timeout_s)

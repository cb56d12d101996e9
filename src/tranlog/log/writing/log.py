"""The one writer of a log: append, commit, rotate, recover, roll back, purge.

Owns a log's life: opening it, giving out places, rotating, rolling back, purging, the stored index, closing. How bytes
become visible and durable is `log_end`'s; what a crash leaves is judged by `recovery`, which segments may go by
`retention`; reading is `cursor`'s. The hard idea: every step that ends or begins a segment is durable before the next
one begins, so a crash finds either none of it or all of it.

Source: seeds/thl-internals; design/log-format.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import Self

import msgspec

from tranlog.change import Fragment
from tranlog.clock import Clock, SystemClock
from tranlog.disk import Disk, OsDisk
from tranlog.errors import (
    AppendOrderError,
    DiskFullError,
    LogClosedError,
    LogError,
    LogMissingError,
    PurgeFailedError,
    RollbackError,
    SegmentEmptyError,
)
from tranlog.ids import HISTORY_BYTES, NO_SEQNO, Epoch, Gtid, Lsn, Seqno, lsn, lsn_text
from tranlog.log.files.directory import (
    directory_of,
    list_segments,
    make_directory,
    storage_error,
    take_lock,
)
from tranlog.log.files.positions import (
    NO_LSN,
    KeptHold,
    drop_hold,
    hold,
    is_running,
    read_holds,
    shut_out,
)
from tranlog.log.files.segments import SegmentStat
from tranlog.log.files.spilled import SpillStat
from tranlog.log.options import LogOptions, LogStatus
from tranlog.log.reading.cursor import Cursor
from tranlog.log.reading.reader import LOOK_S, LogReader
from tranlog.log.records.format import (
    FRAGNO_MAX,
    HEADER,
    RecordHeader,
    RollbackMark,
    encode_header,
    encode_mark,
    segment_name,
)
from tranlog.log.records.spill import Reference, encode_reference
from tranlog.log.rules.numbering import Numbering, follows
from tranlog.log.rules.prefix import Extent
from tranlog.log.rules.retention import Limit, PurgePlan, Retained, UpToSeqno
from tranlog.log.rules.rollback import Needed, refusal
from tranlog.log.writing.allocation import Allocation, Place, empty_transaction, padding_for, records_of, size_of
from tranlog.log.writing.flushing import Flushing
from tranlog.log.writing.log_end import LogEnd, OwnView
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.log.writing.opening import check_source_id, open_newest
from tranlog.log.writing.purging import limits_of
from tranlog.log.writing.spilling import SpilledTransaction

logger = logging.getLogger(__name__)


class Log(LogEnd):
    """A log opened for writing. There is one at a time per directory; `LogReader` is for everybody else.

    Threads: any number may append, commit and take cursors. A transaction of several fragments belongs to the
    thread that began it: others wait until its last fragment, or `abandon_open`.
    """

    # --- opening -------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        source_id: str,
        options: LogOptions | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        start_after: Gtid | None = None,
        history: bytes | None = None,
        numbering: Numbering = Numbering.OWN,
    ) -> Self:
        """Take the lock, mend what a crash left, open a new epoch and write its no-op, synced.

        With another `numbering` than its own it begins no epoch: transactions come by `append_given`, or not at all.

        The directory is created if missing; its parent must exist. `start_after` and `history` only matter for a log
        without records: it begins behind that position and behind what it held before it was cleared, in a higher
        epoch, and has that identity, 16 bytes, where it takes over every transaction of another log; by default that
        of the cleared log, or a new one, random. Raises LogLockedError, CorruptRecordError, LogMissingError,
        LogUnreadableError, LogCodecError, ForeignHistoryError, DiskFullError, DiskFailedError, ConfigError.
        """
        options = LogOptions() if options is None else options
        options.check()
        disk = OsDisk() if disk is None else disk
        clock = SystemClock() if clock is None else clock
        directory = directory_of(path)
        check_source_id(source_id)
        assert history is None or len(history) == HISTORY_BYTES
        try:
            make_directory(directory, disk)
            lock_file = take_lock(directory, disk)
            log = None
            try:
                log = cls(directory, source_id=source_id, options=options, disk=disk, clock=clock, lock_file=lock_file)
                log._recover(start_after, history, numbering)
            except BaseException:
                if log is not None:
                    log._let_go()
                lock_file.release()
                raise
        except OSError as exc:
            raise storage_error(exc, directory) from exc
        return log

    @classmethod
    def open_for_upkeep(
        cls,
        path: str | os.PathLike[str],
        *,
        options: LogOptions | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Take the lock and mend what a crash left, as `open`, but begin no epoch: for segments, not for transactions.

        What may be asked of it is `add_segment`, `trim`, `purge`, `segments`, `status`, and `close`. Raises as `open`,
        and LogMissingError where there is no segment: none is created.
        """
        directory = directory_of(path)
        if not list_segments(directory, OsDisk() if disk is None else disk):
            raise LogMissingError(path=directory, why="it holds no segment (thl.data.*)")
        return cls.open(path, source_id="", options=options, disk=disk, clock=clock, numbering=Numbering.NONE)

    def _recover(self, start_after: Gtid | None, history: bytes | None, numbering: Numbering) -> None:
        opened = open_newest(self._path, self._disk, self._segments, start_after=start_after, history=history)
        self.recovered = opened.report
        self._journal.open(
            opened.file,
            opened.number,
            end=opened.end,
            durable_end=opened.durable_end,
            begun_at=self._segments.begun_and_size(opened.number)[0],
            history=self.history,
        )
        pending = self._pending
        ids, start = pending.ids, NO_LSN
        if opened.last_header is not None and opened.last_first_lsn is not None:
            ids, start = (opened.last_header.source_id, opened.last_header.event_id), opened.last_first_lsn
        elif opened.event_id:
            ids = (self._source_id, opened.event_id)
        pending.go_back(opened.last_seqno, ids)
        pending.epoch = numbering.epoch(opened.epoch, None if opened.last_header is None else opened.last_header.epoch)
        self._index_flush.adopt(opened.index)
        self._publishing.open(opened.last_seqno, ids, start, opened.end)
        self._spilling.take_stock(list_segments(self._path, self._disk), pending.start, self.history)
        try:
            self._spilling.drop_below(self._segments.first_seqno())
        except PurgeFailedError as exc:
            logger.warning("Spill that nothing refers to could not be removed. path=%s why=%s", self._path, exc)
        self._numbering = numbering
        with self._lock, self._step:
            if numbering is Numbering.OWN:
                self._begin_epoch(opened.epoch)
            else:
                self._sync_now()
            if numbering is Numbering.GIVEN:
                self._tell()
        if self._options.flush_interval_s and numbering is not Numbering.NONE:
            self._flushing = Flushing(
                lambda: self.commit(sync=self._options.sync_on_flush),
                interval_s=self._options.flush_interval_s,
                name=self._path,
            )
            self._flushing.start()

    def _begin_epoch(self, epoch: Epoch) -> None:
        """Begin an epoch behind everything, by a no-op; only after its sync is there anything to see of it."""
        self._pending.epoch = epoch
        self._append(empty_transaction(self._pending.ids, max(self._clock.now_ms(), 0)), get_ident())
        self._flush()
        self._sync_now()
        self._publish()

    # --- what it holds -------------------------------------------------------------------------------

    def last(self) -> RecordHeader | None:
        """Return the header of the last visible transaction's last fragment; None in a log without any."""
        if self._publishing.visible_lsn == NO_LSN:
            return None
        with self.cursor() as cursor:
            cursor.seek(self._publishing.visible)
            return cursor.next_header()

    def last_event_id(self) -> str | None:
        """Return the event id that a source resumes behind; None in a log that never captured anything.

        Shape: that of the last visible transaction; what a full disk took is no part of it.
        """
        return self._publishing.visible_ids[1] or None

    def segments(self) -> list[SegmentStat]:
        """Describe each segment, first to newest."""
        return self._segments.stats(self._publishing.visible)

    def status(self) -> LogStatus:
        """Return where the log stands."""
        with self._lock:
            return LogStatus(
                path=self._path,
                epoch=self._pending.epoch,
                first_seqno=self.first_seqno,
                last_seqno=self._pending.last,
                visible_seqno=self._publishing.visible,
                durable_seqno=self._publishing.durable,
                committed_seqno=self._publishing.committed,
                segments=len(self._segments.row()),
                syncs=self._journal.syncs,
                reads=self._recent.snapshot(),
                closed_because=None if self._stopped is None else str(self._stopped),
            )

    # --- writing -------------------------------------------------------------------------------------

    def append(self, fragment: Fragment) -> Gtid:
        """Put a fragment behind the last one; return its transaction's identity. Nothing is visible before `commit`.

        The seqno is given out with a transaction's first fragment. Before a first fragment the segment may be
        rotated; whatever is complete then is durable and visible, as if committed. Raises RecordLimitError (the
        whole transaction is refused), DiskFullError (everything since the last commit is refused, by whomever it
        was appended; `last_event_id` says what is kept), DiskFailedError, LogClosedError, LogLockedError. Where a
        DiskFullError names a spill segment, and with SpillFailedError, this transaction alone is refused.
        """
        me = get_ident()
        with self._lock:
            pending = self._pending
            if pending.add(fragment, me):
                return Gtid(pending.epoch, pending.last)
            with self._step:
                self._await_turn(me)
                self._let_in()
            if pending.add(fragment, me):
                return Gtid(pending.epoch, pending.last)
            turn = self._turn
            added = turn is None or turn.spilled is None
            if not added:
                gtid = Gtid(pending.epoch, Seqno(pending.last + 1))
            else:
                try:
                    record = self._encode(fragment)
                except BaseException:
                    self.abandon_open()
                    raise
                with self._step:
                    gtid = self._put(record, fragment, me)
                turn = self._turn
            spilled = None if turn is None else turn.spilled
        if spilled is not None and (fragment.last or not added):
            self._append_spilled(spilled, fragment, me, added=added)
        return gtid

    def append_given(self, fragment: Fragment, gtid: Gtid) -> None:
        """As `append`, in a log whose numbers are given: `gtid` is the transaction's.

        Raises AppendOrderError for one that does not follow, and what `append` raises.
        """
        assert self._numbering is Numbering.GIVEN
        pending = self._pending
        with self._lock:
            if gtid.epoch != pending.epoch or gtid.seqno != pending.last + 1:
                with self._step:
                    self._await_turn(get_ident())
                    last = Gtid(pending.epoch, pending.last)
                    if not follows(gtid, last):
                        raise AppendOrderError(path=self._path, why=f"{gtid} behind {last}")
                    pending.epoch = gtid.epoch
            self.append(fragment)

    def append_many(self, fragments: Iterable[Fragment]) -> Gtid | None:
        """Append one fragment after the other; return what `append` returns for the last, None where there is none.

        Faster than as many calls, and no other promise: what others append may come between, and when one is refused
        those before it are appended. The iterable is read to its end first. Raises as `append`.
        """
        me = get_ident()
        row = list(fragments)
        gtid: Gtid | None = None
        at, count = 0, len(row)
        pending = self._pending
        while at < count:
            with self._lock:
                at = pending.add_run(row, at, me)
                if at == count:
                    return Gtid(pending.epoch, pending.last)
            gtid = self.append(row[at])
            at += 1
        return gtid

    def _append_spilled(self, spilled: SpilledTransaction, fragment: Fragment, me: int, *, added: bool) -> None:
        """Go on with a transaction that `append` spills; with its last fragment, append the record that refers to it.

        The turn is this thread's until then, so nothing is appended meanwhile, and the disk works without the lock.
        """
        reference = None
        try:
            if not added:
                spilled.add(fragment)
            if fragment.last:
                reference = spilled.finish()
        except BaseException:
            with self._lock, self._step:
                if self._turn is not None and self._turn.spilled is spilled:
                    self._drop_open()
            raise
        with self._lock, self._step:
            self._check(me)
            spilled.check()
            if reference is not None:
                spilled.end(reference, self._append(fragment, me, reference))
                self._end_turn()

    def _await_turn(self, me: int) -> None:
        """Return when this thread may give out the next place, in a segment that has room for it."""
        if self._numbering is Numbering.NONE:
            raise AppendOrderError(path=self._path, why="every transaction: it was opened for upkeep, without an epoch")
        while True:
            self._check(me)
            if self._draining:
                self._wait()
            elif self._turn is not None:
                if self._turn.dropped():
                    self._drop_open()
                elif self._turn.owner == me:
                    return
                else:
                    self._wait()
            elif self._journal.end < self._options.segment_bytes and not (self._pending.sync_due and self._is_due()):
                return
            elif self._prefix.waits_for(me) and self._has_room():
                return  # who would wait for it to be filled is who is to fill it
            elif self._commits.leader or self._prefix.unfinished():
                self._wait()
            else:
                self._rotate()
                return

    def allocate(self, fragments: Sequence[Fragment]) -> Allocation:
        """Give a whole transaction its seqno and its place; its bytes are written later, outside the lock.

        Other threads go on appending and allocating behind it. For transactions that are large, or whose writing
        should not hold up others; small ones are cheaper through `append`. Raises as `append`.
        """
        self._check_shape(fragments)
        if len(fragments) <= FRAGNO_MAX + 1:
            size = size_of(fragments)
            if size <= self._options.spill_above:
                return self._allocate(fragments, size)
        spilled = self.begin_spill()
        for fragment in fragments:
            spilled.add(fragment)
        return self._allocate_spilled(spilled, fragments[-1])

    def _allocate_spilled(self, spilled: SpilledTransaction, last: Fragment) -> Allocation:
        reference = spilled.finish()
        told = msgspec.structs.replace(last, payload=encode_reference(reference))
        try:
            return self._allocate([told], size_of([told]), spilled, reference)
        except BaseException:
            spilled.abort()
            raise

    def _allocate(
        self,
        fragments: Sequence[Fragment],
        size: int,
        spilled: SpilledTransaction | None = None,
        reference: Reference | None = None,
    ) -> Allocation:
        me = get_ident()
        event_id = fragments[-1].event_id
        with self._lock, self._step:
            self._await_turn(me)
            self._check_none_open()
            pending = self._pending
            before = pending.ids
            padding = padding_for(size, before, fragments[-1].tstamp)
            self._journal.prove()
            self._flush()
            self._publish()
            start = pending.start
            end = start + size + padding
            seqno = self._next_seqno(event_id)
            extent = Extent(seqno, (start,), end=end, ids=(fragments[-1].source_id, event_id))
            extent.holder = me
            place = Place(
                extent,
                Gtid(pending.epoch, seqno),
                start=start,
                before=before,
                tstamp=fragments[-1].tstamp,
                checksum=self._options.checksum,
            )
            allocation = Allocation(self, place, fragments, padding=padding, spilled=spilled is not None)
            self._prefix.allocate(extent)
            pending.allocate(end, extent.ids)
            self._places[seqno] = place
            if spilled is not None and reference is not None:
                spilled.end(reference, allocation.gtid)
            return allocation

    def transact(self, fragments: Iterable[Fragment], *, sync: bool = True) -> Gtid:
        """Append a whole transaction and commit it; large ones do not hold up others. Raises as `append`, `commit`;
        AppendOrderError, with nothing appended, where not exactly the last fragment says that it is the last.
        Of an iterable that is no sequence only so much is held in memory as an open transaction holds; see `begin`.
        """
        if not isinstance(fragments, Sequence):
            transaction = self.begin()
            try:
                for fragment in fragments:
                    transaction.add(fragment)
                return transaction.commit(sync=sync)
            finally:
                transaction.abort()
        self._check_shape(fragments)
        if sum(len(fragment.payload) for fragment in fragments) < self._options.buffer_bytes:
            gtid = self._append_whole(fragments)
            if gtid is not None:
                self.commit(sync=sync)
                return gtid
        return self.allocate(fragments).complete(sync=sync)

    def _append_whole(self, fragments: Sequence[Fragment]) -> Gtid | None:
        """Append a transaction at once, all of it or nothing; None, and nothing, where it is too large for that."""
        me = get_ident()
        with self._lock:
            pending = self._pending
            if len(fragments) == 1 and pending.add(fragments[0], me):
                return Gtid(pending.epoch, pending.last)
            with self._step:
                self._await_turn(me)
                self._check_none_open()
            if len(fragments) > FRAGNO_MAX + 1:
                return None
            seqno, epoch = Seqno(pending.last + 1), pending.epoch
            checksum = self._options.checksum
            pieces = list(records_of(fragments, seqno=seqno, epoch=epoch, checksum=checksum, padding=0))
            if sum(map(len, pieces)) > self._options.spill_above:
                return None
            with self._step:
                return self._put(pieces, fragments[-1], me)

    # --- open transactions, and what they spill --------------------------------------------------------

    def begin(self) -> OpenTransaction:
        """Open a transaction that takes fragments one by one and is in the log once it commits, whole.

        It holds up nobody: beyond `spill_buffer_bytes` its fragments go to spill segments, and its commit is one
        small record. Any number may be open at once. Raises LogClosedError.
        """
        with self._lock, self._step:
            if self._stopped is not None:
                self._check(get_ident())
        return OpenTransaction(self, self._options.spill_buffer_bytes)

    def begin_spill(self) -> SpilledTransaction:
        """For `OpenTransaction` only."""
        with self._lock, self._step:
            if self._stopped is not None:
                self._check(get_ident())
            return self._spilling.begin(self._pending.epoch)

    def commit_spilled(self, spilled: SpilledTransaction, last: Fragment, sync: bool) -> Gtid:
        """For `OpenTransaction` only."""
        return self._allocate_spilled(spilled, last).complete(sync=sync)

    def spill_segments(self) -> list[SpillStat]:
        """Describe each spill segment, oldest first. Raises LogUnreadableError."""
        return self._spilling.stats()

    def roll_spill(self) -> int:
        """Begin another spill segment, whatever the size of the newest; return its number.

        Raises LogClosedError, LogLockedError, DiskFullError, DiskFailedError.
        """
        with self._lock, self._step:
            if self._stopped is not None:
                self._check(get_ident())
            return self._spilling.roll()

    def abandon_open(self) -> None:
        """Forget the fragments of a transaction whose last one will not come; without one this is harmless."""
        with self._lock, self._step:
            if self._turn is not None and self._stopped is None:
                self._drop_open()

    def commit(self, *, sync: bool = True) -> Seqno:
        """Make everything appended and complete visible; with `sync`, return once it is durable.

        Return the last seqno that this call covered. Group commit: while one thread's sync runs, others queue, and
        one sync then serves them all. Raises DiskFullError (everything since the last commit is refused),
        DiskFailedError and LogClosedError (nothing after the last good sync is durable for certain: open the log
        again and see), LogLockedError.
        """
        me = get_ident()
        with self._lock, self._step:
            if self._stopped is not None or self._refused:
                self._check(me)
            oldest = self._prefix.oldest_unfinished()
            last = self._pending.last
            target = last if oldest == NO_SEQNO else max(self._pending.appended, Seqno(oldest - 1))
            if not sync:
                if self._publishing.visible < target:
                    self._flush()
                    self._publish()
                return target
            turn = self._commits.take_turn(target)
        return Seqno(self._commits.wait(turn, target))

    # --- rotating and purging ------------------------------------------------------------------------

    def _rotate(self) -> None:
        """Close the newest segment, durable, and start the next one."""
        self._flush()
        self._publish()
        self._begin_segment()
        self._segments.adopt(self._journal.number, self._publishing.visible)
        self._tell()
        self._store_index()
        self._spilling.store_table(self._journal.number)
        self._retain()

    def _retain(self) -> None:
        """Give up what the options say; an error of the disk stops nobody."""
        try:
            self._purge(limits_of(self._options))
        except (OSError, LogError) as exc:
            if self._stopped is not None:
                raise
            logger.warning("Retention could not remove segments. path=%s why=%s", self._path, exc)

    def _begin_segment(self, first_records: bytes = b"", begun_at: int | None = None) -> None:
        """End the newest segment, durable; create the next one, durable with its first records."""
        end = self._pending.start
        try:
            self._journal.name_next()
        except OSError as exc:
            raise self._write_failed(exc) from exc
        try:
            self._journal.trim()
        except OSError as exc:
            raise self._stop_for(exc, "giving its true length to the segment") from exc
        self._sync_now()
        try:
            full = self._journal.begin_next(encode_header(self._publishing.visible) + first_records, begun_at)
        except OSError as exc:
            raise self._stop_for(exc, "starting the next segment") from exc
        if full is not None:
            self._publishing.visible_end = end
            raise self._write_failed(full) from full
        self._publishing.visible_end = self._pending.start

    # --- rolling back --------------------------------------------------------------------------------

    def rollback(self, matchpoint: Gtid) -> RollbackMark | None:
        """Abandon everything after `matchpoint`, durably, and open a new epoch there; return the mark that says so.

        None, and no new epoch, where nothing follows it. What is abandoned stays in its segments, and no reader sees
        it. The mark takes effect as a whole or not at all, whatever a crash cuts off. A cursor that has returned
        something of it raises AbandonedError at its next step; when this has returned, none on this machine returns
        more of it. Refused while a pipeline runs, and below what one may have applied. Raises RollbackError, HoldError,
        LogClosedError, DiskFullError (nothing was changed), DiskFailedError (open it again and see), LogLockedError.
        """
        with self._lock, self._step:  # what is refused anyway, or has nothing to do, changes nothing, not even a lock
            if self._matchpoint(matchpoint) is None:
                return None
        with shut_out(self._path, disk=self._disk), self._lock, self._step:
            found = self._matchpoint(matchpoint)
            mark = None if found is None else self._roll_back(*found)
        if mark is not None:
            self._clock.sleep(2 * LOOK_S)
        return mark

    def _matchpoint(self, matchpoint: Gtid) -> tuple[RecordHeader, Lsn] | None:
        """Return the matchpoint's last header and place; None where nothing follows it. Raises RollbackError."""
        while self._commits.leader or self._draining:
            self._wait()
        self._check(get_ident())
        path, disk = self._path, self._disk
        header, start = self._find(matchpoint.seqno)
        why = refusal(
            matchpoint,
            first=self._segments.first_seqno(),
            visible=self._publishing.visible,
            durable=self._publishing.durable,
            last=self._pending.last,
            unfinished=self._unfinished(),
            found=None if header is None else header.epoch,
            holds=[
                Needed(one.name, one.restart_seqno, one.applied_seqno, is_running(path, one.name, disk=disk))
                for one in read_holds(path, disk=disk)
            ],
        )
        if why is not None:
            raise RollbackError(matchpoint=matchpoint, why=why)
        return None if header is None or matchpoint.seqno == self._publishing.visible else (header, start)

    def _roll_back(self, header: RecordHeader, start: Lsn) -> RollbackMark:
        self._flush()  # a sync record may be left of a transaction that was given up
        number = self._journal.number + 1
        stamp = self._clock.now_ms()
        proof = self._journal.sync_record(HEADER.size, self._pending.start, stamp, number)
        mark = RollbackMark(
            epoch=Epoch(self._pending.epoch + 1),
            matchpoint_epoch=header.epoch,
            matchpoint_seqno=header.seqno,
            matchpoint_lsn=start,
            dead_start=Lsn(header.lsn + header.record_length),
            dead_end=lsn(number, HEADER.size + len(proof)),
            last_seqno=self._publishing.visible,
            written_at=max(self._clock.now_ms(), 0),
        )
        self._begin_segment(proof + encode_mark(mark), stamp)
        self._go_back(mark, header)
        return mark

    def _find(self, seqno: Seqno) -> tuple[RecordHeader | None, Lsn]:
        """Return the last header of a visible transaction and where its first record stands; None if there is none."""
        if not max(self._segments.first_seqno(), 0) <= seqno <= self._publishing.visible:
            return None, NO_LSN
        with self.cursor() as cursor:
            cursor.seek(seqno)
            found = cursor.next()
        return (None, NO_LSN) if found is None else (found.header, found.start)

    def _go_back(self, mark: RollbackMark, header: RecordHeader) -> None:
        """Take a mark that is durable for the end of the stream, and begin its epoch with a no-op."""
        last = mark.matchpoint_seqno
        # What readers may pass to comes first: the segments that they then look into hold nothing beyond it.
        ids = (header.source_id, header.event_id)
        self._publishing.go_back(last, ids, mark.matchpoint_lsn)
        self._pending.go_back(last, ids)
        self._segments.roll_back(self._journal.number, mark.last_seqno, mark)
        logger.warning(
            "Rolled back. matchpoint=%s abandoned=%d..%d mark=%s epoch=%d path=%s",
            mark.matchpoint,
            last + 1,
            mark.last_seqno,
            lsn_text(mark.dead_end),
            mark.epoch,
            self._path,
        )
        try:
            self._begin_epoch(mark.epoch)
        except DiskFullError as exc:  # the mark says all that matters
            logger.warning("The new epoch has no no-op. path=%s why=%s", self._path, exc)
        self._tell()
        self._publishing.stir()
        self._store_index()

    def flush_index(self) -> None:
        """Store the index as it is: what is durable and visible. Opening and seeking are faster for it, never wrong."""
        with self._lock, self._step:
            if self._stopped is None:
                self._store_index()

    def _store_index(self, *, if_due: bool = False) -> None:
        """Store the index if everything in it is durable; with `if_due` by another thread, once it is time."""
        if self._publishing.indexable:
            flush = self._index_flush.after_sync if if_due else self._index_flush.store
            flush(self._publishing.built_from(self._journal.number))

    def add_segment(self) -> str:
        """Close the newest segment, durable with everything complete in it, and start the next; return its name.

        So that what is in it can be trimmed as soon as there is something behind it. Raises SegmentEmptyError where
        the newest one holds nothing (nothing was changed), as `append`, and LogLockedError.
        """
        me = get_ident()
        with self._lock, self._step:
            self._await_quiet(me)
            self._flush()
            self._publish()
            if not self._newest_holds():
                raise SegmentEmptyError(path=self._journal.path)
            self._rotate()
            return segment_name(self._journal.number)

    def expire(self) -> list[str]:
        """Do what age asks for: close the newest segment, give up old ones, have the index stored; name those given up.

        Whoever writes without end needs no call: each append looks for itself. For a writer that may be idle, now and
        then. Removing that fails is a warning, and tried again the next time. Raises as `append`.
        """
        with self._lock, self._step:
            self._await_quiet(get_ident())
            before = self._segments.row()
            if self._is_due():
                self._rotate()
            else:
                self._retain()
            self._store_index(if_due=True)
            return [segment_name(number) for number, _ in before if not self._segments.knows(number)]

    def purge(self, *, below: Seqno | None = None) -> list[str]:
        """Remove whole segments from the front; return their names.

        With `below`: those that hold nothing but transactions below it; without: those that the options give up.
        The newest stays and the one with the last durable transaction, and whatever a hold needs. What could not be
        removed goes first the next time. Raises HoldError, PurgeFailedError, LogClosedError, DiskFailedError.
        """
        limits = limits_of(self._options) if below is None else [UpToSeqno(seqno=Seqno(below - 1))]
        return self._purge_now(limits, carry_out=True)[0]

    def trim(self, limit: Limit, *, dry_run: bool = False) -> PurgePlan:
        """Remove whole segments from the front by one limit, bounds inclusive; return what went, and what stayed why.

        With `dry_run` nothing goes. Raises as `purge`.
        """
        return self._purge_now([limit], carry_out=not dry_run)[1]

    def _purge_now(self, limits: Sequence[Limit], *, carry_out: bool) -> tuple[list[str], PurgePlan]:
        with self._lock, self._step:
            if self._stopped is not None:
                self._check(get_ident())
            try:
                if not carry_out:
                    return [], self._plan_purge(limits)
                return self._purge(limits)
            except OSError as exc:
                raise PurgeFailedError(path=self._path, why=exc.strerror or str(exc)) from exc

    def _plan_purge(self, limits: Sequence[Limit]) -> PurgePlan:
        journal, publishing = self._journal, self._publishing
        newest = Retained(
            number=journal.number, last_seqno=publishing.visible, begun_at=journal.begun_at, bytes=self._pending.start
        )
        return self._purging.choose(newest, durable=publishing.durable, limits=limits, now_ms=self._clock.now_ms())

    def _purge(self, limits: Sequence[Limit]) -> tuple[list[str], PurgePlan]:
        plan = self._plan_purge(limits)
        if plan.gone:  # range first, so that no reader starts in what will go
            self._purging.note(plan, now_ms=self._clock.now_ms())
            self._segments.drop_front(plan.gone[-1] + 1)
            self._tell()
            self._store_index()
        names = self._purging.remove(plan.gone)
        self._spilling.drop_below(self._segments.first_seqno())
        return names, plan

    # --- reading, and the end ------------------------------------------------------------------------

    def cursor(self, *, committed_only: bool = False, hold: str | None = None) -> Cursor:
        """Return a cursor at the first transaction, which wakes as soon as there is more; see `LogReader.cursor`."""
        kept = None if hold is None else KeptHold(self._path, hold, disk=self._disk, clock=self._clock)
        return Cursor(OwnView(self), committed_only=committed_only, kept=kept)

    def close(self) -> None:
        """Commit what is complete, say in the log that it ends cleanly, and let go. Closing twice is harmless.

        An open transaction is forgotten. Raises DiskFullError, DiskFailedError, LogLockedError; let go is then, too.
        In a process that was forked from the one that opened the log it lets go of the files, and changes nothing.
        """
        if self._ownership.foreign():
            self._let_go()
            return
        if self._flushing is not None:
            self._flushing.stop()
        try:
            self._close()
        finally:
            if self._flushing is not None:
                self._flushing.join()

    def _close(self) -> None:
        with self._lock, self._step:
            while not self._closed and (self._commits.leader or self._draining or self._prefix.writing()):
                self._wait()
            if self._closed:
                return
            try:
                if self._stopped is None:
                    self._close_cleanly()
            finally:
                self._let_go()
                self._closed = True
                self._changed.notify_all()
                self._publishing.close()

    def _close_cleanly(self) -> None:
        if self._turn is not None:
            self._drop_open()
        self._flush()
        self._leave_empty(self._prefix.unfinished())
        self._publish()
        self._sync_now()
        self._tell()
        self._index_flush.end_filling()
        self._store_index()
        self._spilling.store_table(self._journal.number)
        try:
            self._journal.end_cleanly()
        except OSError as exc:
            # Everything is durable; only the next open has more to look at.
            logger.warning("The mark of a clean close could not be written. path=%s why=%s", self._path, exc)

    def _let_go(self) -> None:
        self._ownership.lose(LogClosedError())
        self._forget_spilled()
        self._spilling.close()
        self._index_flush.close()
        self._segments.close()
        self._journal.close()
        self._publishing.let_go()
        self._lock_file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


__all__ = ["Log", "LogOptions", "LogReader", "drop_hold", "hold", "read_holds"]

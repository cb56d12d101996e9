"""The one writer of a log: append, commit, roll back, purge.

Owns a log's life: opening it, what may be asked of it, closing; and that each operation is one step. Its parts carry
it out: how bytes become visible and durable is `log_end`'s, whose turn it is `appending`'s, when a segment ends
`rotation`'s. What a crash leaves is judged by `recovery`; reading is `cursor`'s.

Source: thl-internals; docs/format.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import Self

from tranlog.change import Fragment
from tranlog.clock import SYSTEM_CLOCK, Clock
from tranlog.closing import Closing
from tranlog.disk import OS_DISK, Disk, DiskLock
from tranlog.errors import LogMissingError, PurgeFailedError, SegmentEmptyError
from tranlog.forking import tell_of_forks
from tranlog.ids import HISTORY_BYTES, Gtid, Seqno, segment_name
from tranlog.log.files.commit_point import check_no_member
from tranlog.log.files.directory import directory_of, list_segments, make_directory, storing, take_lock
from tranlog.log.files.holds import drop_hold, hold, read_holds, shut_out
from tranlog.log.files.ownership import OwnedDisk, Ownership
from tranlog.log.options import LogOptions
from tranlog.log.reading.reader import LOOK_S, LogReader
from tranlog.log.records.format import RollbackMark
from tranlog.log.records.spill import RawChunk
from tranlog.log.rules.numbering import Numbering
from tranlog.log.rules.pending import Pending
from tranlog.log.rules.retention import Limit, PurgePlan, UpToSeqno, check_limit
from tranlog.log.writing.allocating import Allocating, check_shape
from tranlog.log.writing.allocation import Allocation
from tranlog.log.writing.appending import Appending
from tranlog.log.writing.committing import Commits
from tranlog.log.writing.flushing import Flushing
from tranlog.log.writing.log_end import LogEnd
from tranlog.log.writing.log_view import LogView
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.log.writing.opening import RecoveryReport, check_source_id, open_newest
from tranlog.log.writing.purging import limits_of
from tranlog.log.writing.raw_appending import RawAppending
from tranlog.log.writing.rolling_back import Rollback
from tranlog.log.writing.rotation import Rotation
from tranlog.log.writing.spilling import SpilledTransaction
from tranlog.option_kinds import check_options


class Log(LogView, Closing):
    """A log opened for writing. There is one at a time per directory; `LogReader` is for everybody else.

    Threads: any number may append, commit and take cursors. A transaction of several fragments belongs to the
    thread that began it: others wait until its last fragment, or `abandon_open`.
    """

    check_owner = staticmethod(check_no_member)

    def __init__(
        self, path: str, *, source_id: str, options: LogOptions, disk: Disk, clock: Clock, lock_file: DiskLock
    ) -> None:
        """For `open` only."""
        self._options = options
        self._pending = Pending(source_id=source_id, checksum=options.checksum, most=options.spill_above)
        ownership = Ownership(path, lock_file, lost=self._close_room)
        super().__init__(LogEnd(path, OwnedDisk(disk, ownership), clock, options, ownership, self._pending))
        self._steps = self._end.steps
        self._rotation = Rotation(self._end)
        self._appending = Appending(self._end, self._rotation)
        self._raw = RawAppending(self._end, self._appending)
        self._allocating = Allocating(self._end, self._appending)
        self._committing = Commits(self._end)
        self._rollback = Rollback(self._end, self._rotation, self._appending)
        self._flushing: Flushing | None = None
        self._closed = False
        self.forked = self._end.forked
        tell_of_forks(self)
        self.recovered = RecoveryReport(created=True, clean=True)

    def _close_room(self) -> None:
        """Make the next append look at what came up. Threads: any, without the lock."""
        self._pending.room = 0

    # --- opening -------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        source_id: str,
        options: LogOptions | None = None,
        disk: Disk = OS_DISK,
        clock: Clock = SYSTEM_CLOCK,
        start_after: Gtid | None = None,
        history: bytes | None = None,
        numbering: Numbering = Numbering.OWN,
    ) -> Self:
        """Take the lock, repair what a crash left, open a new epoch and write its no-op, synced.

        With another `numbering` than its own it begins no epoch: transactions come by `append_raw`, or not at all.

        The directory is created if missing; its parent must exist. `start_after` and `history` only matter for a log
        without records: it begins after that position and after what it held before it was cleared, in a higher
        epoch, and has that identity, 16 bytes, where it takes over every transaction of another log; by default that
        of the cleared log, or a new one, random. Raises LogLockedError, CorruptRecordError, LogMissingError,
        LogUnreadableError, LogCodecError, ForeignHistoryError, DiskFullError, DiskFailedError, ConfigError,
        MemberLogError.
        """
        options = LogOptions() if options is None else options
        check_options(options, LogOptions)
        options.check()
        directory = directory_of(path)
        check_source_id(source_id)
        assert history is None or len(history) == HISTORY_BYTES
        with storing(directory):
            make_directory(directory, disk)
            cls.check_owner(directory, disk)
            lock_file = take_lock(directory, disk)
            log = None
            try:
                log = cls(directory, source_id=source_id, options=options, disk=disk, clock=clock, lock_file=lock_file)
                log._recover(start_after, history, numbering)
            except BaseException:
                if log is not None:
                    log._end.let_go()
                lock_file.release()
                raise
        return log

    @classmethod
    def open_for_upkeep(
        cls,
        path: str | os.PathLike[str],
        *,
        options: LogOptions | None = None,
        disk: Disk = OS_DISK,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Take the lock and repair what a crash left, as `open`, but begin no epoch: for segments, not transactions.

        What may be asked of it is `add_segment`, `trim`, `purge`, `segments`, `status`, and `close`. Raises as `open`,
        and LogMissingError where there is no segment: none is created.
        """
        directory = directory_of(path)
        if not list_segments(directory, disk):
            raise LogMissingError(path=directory, why="it holds no segment (thl.data.*)")
        return cls.open(path, source_id="", options=options, disk=disk, clock=clock, numbering=Numbering.NONE)

    def _recover(self, start_after: Gtid | None, history: bytes | None, numbering: Numbering) -> None:
        end = self._end
        opened = open_newest(end.path, end.disk, end.segments, start_after=start_after, history=history)
        self.recovered = opened.report
        end.open(opened)
        last = opened.last_header
        self._pending.epoch = numbering.epoch(opened.epoch, None if last is None else last.epoch)
        self._appending.numbering = numbering
        end.publishing.given = numbering is Numbering.GIVEN
        with self._steps.lock, self._steps:
            if numbering is Numbering.OWN:
                self._appending.begin_epoch(opened.epoch)
            else:
                end.sync_now()
            end.take_commit_point()
            if numbering is Numbering.GIVEN:
                end.tell()
        if self._options.flush_interval_s and numbering is not Numbering.NONE:
            self._flushing = Flushing(
                lambda: self.commit(sync=self._options.sync_on_flush),
                interval_s=self._options.flush_interval_s,
                name=end.path,
            )
            self._flushing.start()

    # --- writing -------------------------------------------------------------------------------------

    def append(self, fragment: Fragment) -> Gtid:
        """Put a fragment after the last one; return its transaction's identity. Nothing is visible before `commit`.

        The seqno is assigned with a transaction's first fragment. Before a first fragment the segment may be
        rotated; whatever is complete then is durable and visible, as if committed. Raises RecordLimitError (the
        whole transaction is refused), DiskFullError (everything since the last commit is refused, by whomever it
        was appended; `last_event_id` says what is kept), DiskFailedError, LogClosedError, LogLockedError. Where a
        DiskFullError names a spill segment, and with SpillFailedError, this transaction alone is refused.
        """
        return self._appending.append(fragment)

    def append_raw(self, raw: bytes) -> Gtid:
        """Put whole records as they came from another log of the same history; return the last whole transaction.

        For a log whose numbers are given. They are verified once, all before the first is put: checksums, the row of
        seqnos and fragments, epochs that do not fall. The end may lie inside a transaction of several fragments, which
        goes on with the next call or is given up by `abandon_open`. A record that refers to a spilled transaction
        comes after its chunks, and refers to where these stand here. Visible by `commit`. Threads: one at a time.
        Raises RawRecordError (nothing of `raw` was put), and as `append`.
        """
        assert self._appending.numbering is Numbering.GIVEN
        return self._raw.append(raw)

    def take_over(self, history: bytes, h: int = 0) -> None:
        """Say whose the first records are, 16 bytes, and the hash up to them; a log with records stays as it is.
        Raises as `commit`."""
        self._raw.take_over(history, h)

    def put_chunk(self, chunk: RawChunk) -> None:
        """Spill a chunk of a transaction of another log, under its oid there, before the record that refers to it.

        In order; one that is there is passed over. An opening forgets those whose record has not come. Raises
        AppendOrderError, DiskFullError, SpillFailedError, LogClosedError.
        """
        self._raw.put_chunk(chunk)

    def drop_chunks(self, oid: bytes) -> None:
        """Forget the chunks of a transaction of another log that was given up there."""
        self._raw.drop_chunks(oid)

    def append_many(self, fragments: Iterable[Fragment]) -> Gtid | None:
        """Append one fragment after the other; return what `append` returns for the last, None where there is none.

        Faster than as many calls, and no other promise: what others append may come between, and when one is refused
        those before it are appended. The iterable is read to its end first. Raises as `append`.
        """
        me, pending = get_ident(), self._pending
        row = list(fragments)
        gtid: Gtid | None = None
        at, count = 0, len(row)
        while at < count:
            with self._steps.lock:
                at = pending.add_run(row, at, me)
                if at == count:
                    return Gtid(pending.epoch, pending.last)
            gtid = self.append(row[at])
            at += 1
        return gtid

    def allocate(self, fragments: Sequence[Fragment]) -> Allocation:
        """Give a whole transaction its seqno and its place; its bytes are written later, outside the lock.

        Other threads go on appending and allocating after it. For transactions that are large, or whose writing
        should not hold up others; small ones are cheaper through `append`. Raises as `append`.
        """
        return self._allocating.allocate(fragments)

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
        return self.commit_whole(fragments, sync, None)

    def commit_whole(self, fragments: Sequence[Fragment], sync: bool, reign: int | None) -> Gtid:
        """For `transact`, and `OpenTransaction`, whose `reign` it is."""
        check_shape(self._end.path, fragments)
        if sum(len(fragment.payload) for fragment in fragments) < self._options.buffer_bytes:
            if (gtid := self._appending.append_whole(fragments, reign)) is not None:
                self.commit(sync=sync)
                return gtid
        return self._allocating.allocate(fragments, reign).complete(sync=sync)

    # --- open transactions, and what they spill --------------------------------------------------------

    def begin(self) -> OpenTransaction:
        """Open a transaction that takes fragments one by one and is in the log once it commits, whole.

        It holds up nobody: beyond `spill_buffer_bytes` its fragments go to spill segments, and its commit is one
        small record. Any number may be open at once. Raises LogClosedError.
        """
        with self._steps.lock, self._steps:
            self._end.check_open()
            self._end.check_leads()
            return OpenTransaction(self, self._options.spill_buffer_bytes, self._end.reign, self._end.check_reign)

    def begin_spill(self) -> SpilledTransaction:
        """For whoever appends the record that refers to it: `OpenTransaction`, and by `append_raw`."""
        return self._allocating.begin_spill()

    def commit_spilled(self, spilled: SpilledTransaction, last: Fragment, sync: bool, reign: int) -> Gtid:
        """For `OpenTransaction` only."""
        return self._allocating.allocate_spilled(spilled, last, reign).complete(sync=sync)

    def roll_spill(self) -> int:
        """Begin another spill segment, whatever the size of the newest; return its number.

        Raises LogClosedError, LogLockedError, DiskFullError, DiskFailedError.
        """
        with self._steps.lock, self._steps:
            self._end.check_open()
            return self._end.spilling.roll()

    def abandon_open(self) -> None:
        """Forget the fragments of a transaction whose last one will not come; without one this is harmless."""
        with self._steps.lock, self._steps:
            self._end.abandon()

    def commit(self, *, sync: bool = True) -> Seqno:
        """Make everything appended and complete visible; with `sync`, return once it is durable.

        Return the last seqno that this call covered. Group commit: while one thread's sync runs, others queue, and
        one sync then serves them all. Raises DiskFullError (everything since the last commit is refused),
        DiskFailedError and LogClosedError (nothing after the last good sync is durable for certain: open the log
        again and see), LogLockedError.
        """
        return self._committing.commit(sync)

    # --- rolling back, rotating and purging ------------------------------------------------------------

    def rollback(self, matchpoint: Gtid) -> RollbackMark | None:
        """Abandon everything after `matchpoint`, durably, and open a new epoch there; return the mark that says so.

        None, and no new epoch, where nothing follows it. What is abandoned stays in its segments, and no reader sees
        it. The mark takes effect as a whole or not at all, whatever a crash cuts off. A cursor that has returned
        something of it raises AbandonedError at its next step; when this has returned, none on this machine returns
        more of it. Refused while a pipeline runs, and below what one may have applied. Raises RollbackError, HoldError,
        LogClosedError, DiskFullError (nothing was changed), DiskFailedError (open it again and see), LogLockedError.
        """
        Gtid.check(matchpoint)
        # What is refused anyway, or has nothing to do, changes nothing, not even a lock.
        with self._steps.lock, self._steps:
            if self._rollback.matchpoint(matchpoint) is None:
                return None
        with shut_out(self._end.path, disk=self._end.disk), self._steps.lock, self._steps:
            found = self._rollback.matchpoint(matchpoint)
            mark = None if found is None else self._rollback.carry_out(*found)
        if mark is not None:
            self._end.clock.sleep(2 * LOOK_S)
        return mark

    def flush_index(self) -> None:
        """Store the index as it is: what is durable and visible. Opening and seeking are faster for it, never wrong."""
        with self._steps.lock, self._steps:
            if self._end.ownership.lost is None:
                self._end.store_index()

    def add_segment(self) -> str:
        """Close the newest segment, durable with everything complete in it, and start the next; return its name.

        So that what is in it can be trimmed as soon as there is something after it. Raises SegmentEmptyError where
        the newest one holds nothing (nothing was changed), as `append`, and LogLockedError.
        """
        with self._steps.lock, self._steps:
            self._appending.await_quiet()
            self._end.flush()
            self._end.publish()
            if not self._rotation.newest_holds():
                raise SegmentEmptyError(path=self._end.journal.path)
            self._rotation.rotate()
            return segment_name(self._end.journal.number)

    def expire(self) -> list[str]:
        """Do what age asks for: close the newest segment, give up old ones, have the index stored; name those given up.

        For a writer that may be idle, now and then; each append looks for itself. Removing that fails is a warning, and
        tried again the next time. Raises as `append`.
        """
        with self._steps.lock, self._steps:
            self._appending.await_quiet()
            before = self._end.segments.row()
            if self._rotation.is_due():
                self._rotation.rotate()
            else:
                self._rotation.retain()
            self._end.store_index(if_due=True)
            return [segment_name(number) for number, _ in before if not self._end.segments.knows(number)]

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
        for limit in limits:
            check_limit(limit)
        with self._steps.lock, self._steps:
            self._end.check_open()
            try:
                return self._rotation.purge(limits) if carry_out else ([], self._rotation.plan_purge(limits))
            except OSError as exc:
                raise PurgeFailedError(path=self._end.path, why=exc.strerror or str(exc)) from exc

    # --- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit what is complete, say in the log that it ends cleanly, and let go. Closing twice is harmless.

        An open transaction is forgotten. Raises DiskFullError, DiskFailedError, LogLockedError; let go is then, too.
        In a process that was forked from the one that opened the log it lets go of the files, and changes nothing.
        """
        if self._end.ownership.foreign():
            self._end.let_go()
            return
        if self._flushing is not None:
            self._flushing.stop()
        try:
            self._close()
        finally:
            if self._flushing is not None:
                self._flushing.join()

    def _close(self) -> None:
        with self._steps.lock, self._steps:
            steps, end = self._steps, self._end
            while not self._closed and (steps.commits.leader or steps.draining or end.prefix.writing()):
                steps.wait()
            if self._closed:
                return
            try:
                if self._end.ownership.lost is None:
                    self._end.close_cleanly()
            finally:
                self._end.let_go()
                self._closed = True
                self._steps.changed.notify_all()
                self._end.publishing.close()


__all__ = ["Log", "LogOptions", "LogReader", "drop_hold", "hold", "read_holds"]

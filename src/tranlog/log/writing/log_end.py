"""The end of a log that is being written: what is appended, visible and durable, and how each of the three moves.

Owns the places that were given out, group commit, and what a disk that is full or fails does to them. The bytes are
`journal`'s; when a segment ends, what is opened, purged or abandoned is `log`'s. The hard
idea: there are three ends, and each moves by its own rule. *Appended* may be in memory; *visible* is written and whole,
with everything before it; *durable* is what a sync covered. A sync runs outside the lock, one thread at a time, and
serves everybody who came before it began.

Source: design/performance.md, "One lock, leader/follower group commit"; design/replication.md, "Unbroken prefix".
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from threading import get_ident
from types import TracebackType

from tranlog.change import Fragment
from tranlog.clock import Clock
from tranlog.disk import Disk, DiskFile, DiskLock
from tranlog.errors import (
    AppendOrderError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogError,
    RecordLimitError,
    SegmentGoneError,
)
from tranlog.group_commit import LOOK_AGAIN_S, GroupCommit, Sync
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.files.directory import DISK_FULL, join
from tranlog.log.files.ownership import OwnedDisk, Ownership, closed_by, renew_locks
from tranlog.log.files.positions import (
    NO_LSN,
    POSITIONS_NAME,
)
from tranlog.log.files.recent import RecentPieces
from tranlog.log.files.scan import read_fragments
from tranlog.log.files.segments import Segments
from tranlog.log.options import LogOptions, ReadCounts
from tranlog.log.reading.gate import Gate
from tranlog.log.records.format import (
    FRAGNO_MAX,
    SEGMENT_BYTES_MAX,
    SEQNO_MAX,
    encode_event,
)
from tranlog.log.records.spill import REFERENCE, Reference, encode_reference
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.rules.numbering import Numbering
from tranlog.log.rules.pending import Pending
from tranlog.log.rules.prefix import Extent, UnbrokenPrefix
from tranlog.log.rules.retention import rotation_due
from tranlog.log.writing.allocation import Place
from tranlog.log.writing.flushing import Flushing
from tranlog.log.writing.index_flush import IndexFlush
from tranlog.log.writing.journal import Journal
from tranlog.log.writing.open_turn import OpenTurn
from tranlog.log.writing.opening import RecoveryReport
from tranlog.log.writing.publishing import Publishing
from tranlog.log.writing.purging import Purging
from tranlog.log.writing.spilling import Spilling

logger = logging.getLogger(__name__)

_WRITERS: weakref.WeakSet[LogEnd] = weakref.WeakSet()
"""The logs that this process has open for writing; a child that is forked lets go of each."""
_GIVE_WAY_S = 0.001
"""So long a large transaction waits for those who commit, between two of its slices."""
_GIVE_WAY_LOOKS = 5
"""So often it looks in that time whether they are through."""


class _Step:
    """One operation of the writer, under the log's lock; what leaves it in its midst closes the log for writing.

    One of our own exceptions has been resolved by whoever raised it. After any other, of which Ctrl-C, a handler of a
    signal and a lack of memory are some, nobody knows what was done; nor where not even the end of the step was
    reached, which the next one to come finds out. A wait, and a sync, are no part of the step around them.

    An exception may come between any two lines. CPython raises none that comes from elsewhere between a lock's `with`
    and its block, nor between the block's end and the release.
    """

    __slots__ = ("_log", "under_way")

    def __init__(self, log: LogEnd) -> None:
        self._log = log
        self.under_way = False

    def __enter__(self) -> None:
        log = self._log
        if self.under_way or log._commits.leader or log._pending.room < 0:
            log.began(interrupted=self.under_way)
        self.under_way = True

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self.under_way:
            if issubclass(kind, LogError):
                self._log.wake_all()
            else:
                self._log.interrupted(kind.__name__)
        self.under_way = False


class LogEnd:
    """The writing end of a log; `Log` is what is opened.

    Threads: any number. A transaction of several fragments belongs to the thread that began it: others wait until its
    last fragment, or `abandon_open`. `_lock` guards everything; it is let go while a sync runs, and while an
    allocation's bytes are written.
    """

    def __init__(
        self, path: str, *, source_id: str, options: LogOptions, disk: Disk, clock: Clock, lock_file: DiskLock
    ) -> None:
        """For `open` only."""
        self._path = path
        self._source_id = source_id
        self._options = options
        self._ownership = Ownership(path, lock_file, lost=self._close_room)
        self._disk: Disk = OwnedDisk(disk, self._ownership)
        disk = self._disk  # nothing here writes through another one
        self._clock = clock
        self._lock_file = lock_file
        self._lock = threading.RLock()  # a signal's handler may come back to the log in the midst of a step
        self._step = _Step(self)
        self._changed = threading.Condition(self._lock)  # a sync ended, a transaction ended, the log closed
        self._commits = GroupCommit(self, self._lock, self._step)
        self._segments = Segments(path, disk)
        self._segments.recent = self._recent = RecentPieces()
        self._purging = Purging(path, disk, self._segments)
        self._spilling = Spilling(
            path,
            disk=disk,
            clock=clock,
            options=options,
            may_write=self._ownership.may_write,
            give_way=self.give_way,
            syncs=self.syncs,
        )
        self._index_flush = IndexFlush(path, disk, clock, self._segments, options, self.give_way)
        self._closed = False
        self._flushing: Flushing | None = None
        self._numbering = Numbering.NONE
        self._pending = Pending(source_id=source_id, checksum=options.checksum, most=options.spill_above)
        self._journal = Journal(path, disk, clock, options, self._pending)
        self._publishing = Publishing(path, disk, self._segments, self._pending)
        self._prefix = UnbrokenPrefix()  # what was allocated before it and is not visible yet
        self._places: dict[Seqno, Place] = {}  # those of allocations neither complete nor abandoned
        self._draining = False  # the disk is full, and writers outside the lock are waited for
        self._turn: OpenTurn | None = None
        self._refused: dict[int, str] = {}  # threads whose transactions a full disk took, through another's write
        self.recovered = RecoveryReport(created=True, clean=True)
        _WRITERS.add(self)

    @property
    def disk(self) -> Disk:
        """The disk on which its directory is."""
        return self._disk

    @property
    def path(self) -> str:
        """The log's directory."""
        return self._path

    @property
    def _stopped(self) -> LogError | None:
        """Why the log is closed for writing; None while it is open."""
        return self._ownership.lost

    @property
    def history(self) -> bytes:
        """The identity of the log's history, 16 bytes: made with the log, and that of each copy of it."""
        assert self._segments.history is not None, "opening the log has found it, or made it"
        return self._segments.history

    @property
    def seqno_index(self) -> SeqnoIndex:
        """The index: any thread may look up in it and read its range, nobody else may change it."""
        return self._segments.index

    @property
    def epoch(self) -> Epoch:
        """The epoch of this opening of the log."""
        return self._pending.epoch

    @property
    def first_seqno(self) -> Seqno:
        """The first transaction held; NO_SEQNO while there is none."""
        return self._segments.first_seqno() if self._publishing.visible_lsn != NO_LSN else NO_SEQNO

    @property
    def last_seqno(self) -> Seqno:
        """The last transaction that has a place, visible or not; NO_SEQNO while there is none."""
        return self._pending.last

    @property
    def visible_seqno(self) -> Seqno:
        """The last transaction that readers may see."""
        return self._publishing.visible

    @property
    def durable_seqno(self) -> Seqno:
        """The last transaction that a sync covered."""
        return self._publishing.durable

    def began(self, *, interrupted: bool) -> None:
        """For `_Step` only: a step begins."""
        if interrupted or self._pending.room < 0:
            self.interrupted("an exception, or a call from a signal's handler,")
        if self._commits.over():
            self._changed.notify_all()

    def interrupted(self, what: str) -> None:
        """For `_Step` only: close the log for writing; what is half done stays as a crash would leave it."""
        if self._stopped is None:
            self._stop(LogClosedError(f"{what} came in the midst of a step of its writer"))
        self._commits.leader = 0
        self._draining = False
        self.wake_all()

    def wake_all(self) -> None:
        """Have everybody look again who waits for anything."""
        self._changed.notify_all()
        self._commits.wake(everybody=True)

    def _wait(self) -> None:
        """Wait for whatever changes next, out of the step: everything is in order meanwhile, and has to be."""
        self._step.under_way = False
        told = self._changed.wait(LOOK_AGAIN_S)
        self._step.under_way = True
        if not told:
            self.look_again()

    def look_again(self) -> None:
        """For `GroupCommit`, and who waits: see that nobody waits for what nobody is at any more."""
        self._commits.drop_broken_off()
        if self._turn is not None and self._turn.dropped():
            self._drop_open()
        if self._dropped() and self._stopped is None:
            self._flush()
            self._publish()

    def _append(self, fragment: Fragment, me: int, reference: Reference | None = None) -> Gtid:
        """Append a fragment or, with `reference`, the record of a spilled transaction whose last fragment this is."""
        return self._put(self._encode(fragment, reference), fragment, me, reference)

    def _encode(self, fragment: Fragment, reference: Reference | None = None) -> tuple[bytes, bytes, bytes]:
        """Return the next record, as `_append` puts it, in pieces; nothing is changed. Raises RecordLimitError."""
        payload = fragment.payload if reference is None else encode_reference(reference)
        head, trailer = encode_event(
            seqno=Seqno(self._pending.last + 1),
            fragno=0 if reference is not None or self._turn is None else min(self._turn.fragno, FRAGNO_MAX),
            last_frag=fragment.last,
            epoch=self._pending.epoch,
            source_id=fragment.source_id,
            event_id=fragment.event_id,
            shard_id=fragment.shard_id,
            tstamp=fragment.tstamp,
            tables=fragment.tables,
            payload=payload,
            checksum=self._options.checksum,
            spilled=reference is not None,
        )
        return head, payload, trailer

    def _put(self, pieces: Sequence[bytes], fragment: Fragment, me: int, reference: Reference | None = None) -> Gtid:
        """Put a record, or all those of a transaction, behind what is pending; `fragment` is the last one of them."""
        pending, turn = self._pending, self._turn
        pending.room = 0
        gtid = Gtid(pending.epoch, Seqno(pending.last + 1))
        size = sum(map(len, pieces))
        if reference is None:
            so_far, fragno = (turn.bytes, turn.fragno) if turn is not None else (0, 0)
            if size + so_far > self._options.spill_above or fragno > FRAGNO_MAX:
                if fragno or len(fragment.payload) > REFERENCE.size:
                    self._spill_open(fragment)
                    return gtid
        self._journal.prove()
        if turn is None or reference is not None:
            start = self._journal.end
        else:
            start = turn.start
        for piece in pieces:
            pending.put(piece)
        pending.owners.add(me)
        if fragment.last:
            pending.complete(start, (fragment.source_id, fragment.event_id))
            if turn is not None and reference is None:
                self._end_turn()
        else:
            if turn is None:
                self._turn = turn = OpenTurn(start)
            turn.took(size)
        if len(pending) >= self._options.buffer_bytes:
            self._flush()
        self._let_in()
        return gtid

    def _let_in(self) -> None:
        """Let whole transactions in without a look at anything else, where nothing else is the matter."""
        if not (self._turn or self._draining or self._refused or self._stopped):
            self._journal.prove()
            self._give_room()

    def _end_turn(self) -> None:
        """Let others append."""
        self._turn = None
        self._changed.notify_all()

    def _check_shape(self, fragments: Sequence[Fragment]) -> None:
        """Raise AppendOrderError for what is not one whole transaction: it would be stored as none, or as two."""
        count = len(fragments)
        if not count:
            raise AppendOrderError(path=self._path, why="a transaction without a fragment")
        for number, fragment in enumerate(fragments, 1):
            if fragment.last is not (number == count):
                says = "says that it is the last" if fragment.last else "does not say that it is the last"
                raise AppendOrderError(path=self._path, why=f"a transaction whose fragment {number} of {count} {says}")

    def _check_none_open(self) -> None:
        """Raise AppendOrderError where this thread's transaction of several fragments is open."""
        if self._turn is not None:
            why = "what is no part of this thread's open transaction: append its last fragment, or abandon_open"
            raise AppendOrderError(path=self._path, why=why)

    def _has_room(self) -> bool:
        """Whether the newest segment, full as it is, takes one more of the largest transactions. Raises if not."""
        options = self._options
        if self._journal.end + options.segment_bytes + options.spill_above < SEGMENT_BYTES_MAX:
            return True
        why = "one more transaction of a thread that has not completed its own allocation, in a segment of 4 GiB"
        raise AppendOrderError(path=self._path, why=why)

    def _is_due(self) -> bool:
        """Whether the newest segment holds something and is old enough to be closed."""
        now_ms, begun_at = self._clock.now_ms(), self._journal.begun_at
        due = rotation_due(begun_at=begun_at, now_ms=now_ms, retention_s=self._options.retention_s)
        return due and self._newest_holds()

    def _newest_holds(self) -> bool:
        """Whether a transaction lives in the newest segment."""
        after = self._segments.prev_seqno(self._journal.number)
        return after is not None and self._pending.last > after

    def _unfinished(self) -> str | None:
        """Return what of the writing is under way; None when nothing is."""
        if self._turn is not None:
            return f"seqno {self._pending.last + 1} is open: its last fragment has not come"
        oldest = self._prefix.oldest_unfinished()
        return None if oldest == NO_SEQNO else f"seqno {oldest} has its place and is not complete"

    def _await_quiet(self, me: int) -> None:
        """Return when nothing is open, unfinished or being synced, so that a segment may end here."""
        while True:
            self._check(me)
            if self._turn is not None and self._turn.owner == me:
                self._check_none_open()
            if not (self._draining or self._turn or self._commits.leader or self._prefix.unfinished()):
                return
            self._wait()

    def _next_seqno(self, event_id: str) -> Seqno:
        """Return the seqno to give out. Raises RecordLimitError behind the last one that there is."""
        if self._pending.last >= SEQNO_MAX:
            why = f"the log has reached {SEQNO_MAX}, the last seqno there is"
            raise RecordLimitError(event_id=event_id, why=why)
        return Seqno(self._pending.last + 1)

    def _give_room(self) -> None:
        """Let whole transactions in without a look at anything else, as far as buffer and segment go."""
        pending, options = self._pending, self._options
        pending.room = max(min(options.buffer_bytes, options.segment_bytes - pending.start), 0)

    def _spill_open(self, fragment: Fragment) -> None:
        """Move the open transaction, which grew too large for a segment, out of the log, and `fragment` with it.

        Its seqno and its turn stay: the record that refers to it is appended with its last fragment, by `append`.
        """
        spilled, turn = self._spilling.begin(self._pending.epoch), self._turn
        try:
            if turn is not None:
                self._flush()
                for one in read_fragments(self._journal.file, self._journal.number, turn.start, turn.fragno):
                    spilled.add(one)
                self._drop_open()
            spilled.add(fragment)
        except BaseException as exc:
            spilled.abort()
            if isinstance(exc, LogError) and self._turn is not None:
                self._drop_open()
            raise
        self._turn = OpenTurn(self._journal.end, spilled)

    def begin_write(self, extent: Extent) -> DiskFile:
        """For `Allocation` only."""
        with self._lock, self._step:
            self._check_extent(extent)
            extent.writing = True
            extent.holder = get_ident()
            return self._journal.file

    def syncs(self) -> int:
        """Return how many syncs there were since the log was opened; takes no lock."""
        return self._journal.syncs

    def give_way(self) -> bool:
        """Let those who commit go first, for a moment; return whether they are through.

        For whoever writes much beside them, between one slice and the next, without the log's lock: who holds that may
        want the interpreter, the processor, or the segment's file.
        """
        # The lock is watched, not taken: without `with`, an exception between its lines would leave it held for ever.
        for _ in range(_GIVE_WAY_LOOKS):
            if not self._step.under_way:
                return True
            time.sleep(_GIVE_WAY_S / _GIVE_WAY_LOOKS)
        return not self._step.under_way

    def end_write(self, extent: Extent, failure: OSError | None) -> None:
        """For `Allocation` only."""
        with self._lock, self._step:
            extent.writing = False
            self._changed.notify_all()
            if failure is not None:
                raise self._write_failed(failure) from failure
            self._check_extent(extent)

    def finish(self, extent: Extent, sync: bool) -> None:
        """For `Allocation` only."""
        with self._lock, self._step:
            self._check_extent(extent)
            extent.done = True
            self._places.pop(extent.first, None)
            self._flush()
            self._publish()
            self._changed.notify_all()
            turn = self._commits.take_turn(extent.last) if sync else extent.last
        if sync:
            self._commits.wait(turn, extent.last)
            with self._lock, self._step:
                self._check_extent(extent)

    def _check_extent(self, extent: Extent) -> None:
        if extent.refused is not None:
            raise DiskFullError(path=extent.refused)
        if self._stopped is not None:
            self._check(get_ident())

    @property
    def durable(self) -> Seqno:
        """For `GroupCommit` only: the place up to which everything is durable."""
        return self._publishing.durable

    def reach(self, target: int) -> Seqno:
        """For `GroupCommit` only: what a full disk took is not waited for; those that it belonged to are told."""
        self._check(get_ident())
        return Seqno(min(target, self._pending.last))

    def may_sync(self, target: int) -> bool:
        """For `GroupCommit` only: where an unfinished allocation is in the way, write and show what is before it."""
        if self._draining:
            self._wait()
        elif NO_SEQNO != self._prefix.oldest_unfinished() <= target:
            if self._pending:
                self._flush()
                self._publish()
            self._wait()
        else:
            return True
        return False

    def begin_sync(self) -> Sync:
        """For `GroupCommit` only: other processes hear of it once, when it is durable; this one's readers at once."""
        self._flush(zeros=True)
        self._publish(elsewhere=False)
        self._journal.begin_sync(self._publishing.visible_end if len(self._prefix) else self._pending.start)
        return Sync(self._journal.file.sync, self._publishing.visible)

    def sync_failed(self, failure: OSError) -> DiskFailedError:
        """For `GroupCommit` only."""
        return self._stop_for(failure, "sync")

    def synced(self, place: int) -> None:
        """For `GroupCommit` only: take what a sync covered for durable, and tell everybody."""
        if self._stopped is not None:
            self._check(get_ident())  # stopped meanwhile: the positions file may be another writer's already
        look = self._publishing.look_due()
        if look:
            self._check_segment_file()
        self._journal.synced()
        self._publishing.synced(Seqno(place))
        self._tell(look=look)
        self._commits.wake(self._publishing.durable)
        if self._publishing.indexable:
            self._index_flush.after_sync(self._publishing.built_from(self._journal.number))

    def _sync_now(self) -> None:
        """Sync under the lock, nothing else running: everything flushed is durable then."""
        try:
            self._journal.sync()
        except OSError as exc:
            raise self._stop_for(exc, "sync") from exc
        self._check_segment_file()
        self._publishing.synced(self._pending.last)

    def _flush(self, *, zeros: bool = False) -> None:
        """Write what is pending; with `zeros` some of them behind it, for the syncs to come."""
        if not self._pending:
            return
        try:
            self._recent.put(self._journal.number, *self._journal.write(zeros=zeros))
        except OSError as exc:
            raise self._write_failed(exc) from exc
        if self._pending.room:
            self._give_room()

    def _publish(self, *, elsewhere: bool = True) -> None:
        """Let readers see every transaction before the oldest unfinished one; what was pending has been flushed.

        Not `elsewhere`: those in other processes wait for the next time.
        """
        if self._pending.starts:
            extent = self._pending.seal()
            extent.done = True
            self._prefix.allocate(extent)
            if self._turn is not None:
                self._pending.owners.add(self._turn.owner)
        if self._places:
            self._leave_empty(self._dropped())
        visible = self._prefix.advance()
        if visible:
            self._publishing.show(self._journal.number, visible)
            self._tell(elsewhere=elsewhere)

    def _tell(self, *, elsewhere: bool = True, look: bool = False) -> None:
        """Publish where the log stands; see `Publishing.publish`."""
        try:
            self._publishing.publish(elsewhere=elsewhere, look=look)
        except OSError as exc:
            raise self._stop_for(exc, "write", POSITIONS_NAME) from exc

    def _check(self, me: int) -> None:
        if me in self._refused:
            raise DiskFullError(path=self._refused.pop(me))
        if self._stopped is not None:
            raise closed_by(self._stopped) from self._stopped

    def _check_segment_file(self) -> None:
        """Close the log for writing where its newest segment was removed: a sync of that is worth nothing."""
        try:
            linked = self._journal.file.linked()
        except OSError as exc:
            raise self._stop_for(exc, "looking up") from exc
        if not linked:
            error = SegmentGoneError(path=self._journal.path)
            self._stop(error)
            raise error

    def _close_room(self) -> None:
        """Have the next append look at what came up. Threads: any, without the lock."""
        self._pending.room = 0

    def _stop(self, error: LogError) -> None:
        self._ownership.lose(error)
        self.wake_all()
        logger.error("The log is closed for writing. path=%s why=%s", self._path, error)

    def _stop_for(self, exc: OSError, what: str, name: str | None = None) -> DiskFailedError:
        """Close the log for writing and return the error that says so; `name`: the file, if not the newest segment."""
        path = join(self._path, name) if name else self._journal.path
        error = DiskFailedError(path=path, why=f"{what} failed: {exc.strerror or exc}")
        self._stop(error)
        return error

    def _write_failed(self, exc: OSError) -> LogError:
        """Take back what is not visible if the disk is full, else close; return the error to raise."""
        if exc.errno not in DISK_FULL:
            return self._stop_for(exc, "write")
        path = self._journal.path
        told = self._draining  # another thread
        while self._draining:
            self._wait()
        if told:
            return DiskFullError(path=path)
        self._draining = True
        self._pending.room = 0
        try:
            while self._prefix.writing():
                self._wait()
        except BaseException as other:
            self.interrupted(type(other).__name__)
            raise
        self._draining = False
        self._places.clear()
        owners = self._prefix.take_back(path) | self._pending.owners
        self._refused.update(dict.fromkeys(owners - {get_ident()}, path))
        self.wake_all()
        if self._stopped is not None:
            return self._stopped
        try:
            self._recent.forget()
            self._journal.cut(self._publishing.visible_end)
        except OSError as again:
            return self._stop_for(again, "cutting back")
        visible = self._publishing.visible
        self._pending.go_back(visible, self._publishing.visible_ids)
        self._forget_spilled()
        self._turn = None
        self._spilling.forget_above(Gtid(self._pending.epoch, visible))
        logger.warning("The disk is full; what was not committed is refused. path=%s", path)
        return DiskFullError(path=path)

    def _leave_empty(self, extents: Sequence[Extent]) -> None:
        """Fill these places with empty transactions: what is complete after them counts."""
        for extent in extents:
            place = self._places[extent.first]
            at = place.start
            try:
                for piece in place.empty_pieces():
                    self._journal.file.pwrite(piece, at)
                    at += len(piece)
            except OSError as exc:
                raise self._write_failed(exc) from exc
            extent.ids = place.before
            extent.done = True
            del self._places[extent.first]
            self._changed.notify_all()

    def _dropped(self) -> list[Extent]:
        """Return the extents whose allocation was dropped: nobody else will fill them, and others wait for them."""
        if not self._places or self._draining:
            return []
        return [one for one in self._prefix.unfinished() if self._places[one.first].dropped()]

    def _drop_open(self) -> None:
        """Take back the open transaction's fragments."""
        turn = self._turn
        assert turn is not None
        self._end_turn()
        if turn.spilled is not None:
            turn.spilled.abort()
            return
        try:
            self._recent.forget()
            self._journal.take_back(turn.start)
        except OSError as exc:
            raise self._stop_for(exc, "cutting back") from exc

    def _forget_spilled(self) -> None:
        """Give up what `append` has spilled of the open transaction."""
        if self._turn is not None and self._turn.spilled is not None:
            self._turn.spilled.abort()

    def forked(self) -> None:
        """In a child that was just forked: keep nothing that is the parent's, nor a lock that nobody here will free.

        What this process is told from now on is that another one writes the log. Only of forks that Python makes it is
        told at once; after one of a library's own, each write finds it out.
        """
        self._ownership.foreign()
        lock = self._lock
        gates = self._publishing.seen, self._publishing.proven
        renew_locks(self, self._commits, self._segments, self._spilling, self._recent, *gates)
        self._commits.lock = self._lock
        if self._lock is not lock:
            self._changed = threading.Condition(self._lock)
        self._lock_file.release()  # the parent keeps its own; were it killed, this one would keep the log locked

    def gate(self, *, committed_only: bool = False) -> Gate:
        """Return the gate at which to wait for a transaction to be visible or, on demand, committed."""
        return self._publishing.proven if committed_only else self._publishing.seen

    def read_counts(self) -> ReadCounts:
        """Return from where the cursors of this process got what they read."""
        return self._recent.counts


def _forked() -> None:
    for log in list(_WRITERS):
        log.forked()


os.register_at_fork(after_in_child=_forked)


class OwnView:
    """The log as the cursors of its own process see it."""

    __slots__ = ("_log", "checksum", "segments")

    def __init__(self, log: LogEnd) -> None:
        self._log = log
        self.segments = log._segments
        self.checksum = log._options.checksum

    def limit(self, *, committed_only: bool) -> Seqno:
        publishing = self._log._publishing
        return publishing.committed if committed_only else publishing.visible

    def heed(self) -> None:
        """Rollbacks are heard of at once."""

    def wait(self, seqno: Seqno, *, committed_only: bool, timeout_s: float) -> Seqno:
        return self._log.gate(committed_only=committed_only).wait(seqno, timeout_s)

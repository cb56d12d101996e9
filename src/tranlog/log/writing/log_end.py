"""The end of a log that is being written: what is appended, visible and durable, and how each of the three moves.

Owns how each of the three moves, what a full or failing disk does to them, and what is done at the end. The bytes are
`journal`'s, who hears of them is `publishing`'s, and who waits for a sync is `group_commit`'s. The hard idea: there are
three ends, and each moves by its own rule. *Appended* may be in memory; *visible* is written and whole, with everything
before it; *durable* is what a sync covered. A sync runs outside the lock, one thread at a time, and serves everybody
who came before it began.

Source: docs/performance.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import get_ident

from tranlog.clock import Clock
from tranlog.disk import Disk
from tranlog.errors import (
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogError,
    NotPrimaryError,
    PurgeFailedError,
    SegmentGoneError,
)
from tranlog.group_commit import Sync
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.files.commit_point import is_member, read_commit_point
from tranlog.log.files.directory import DISK_FULL, join, list_segments
from tranlog.log.files.hashing import hash_up_to
from tranlog.log.files.ownership import Ownership, closed_by
from tranlog.log.files.positions import NO_LSN, POSITIONS_NAME
from tranlog.log.files.recent import RecentPieces
from tranlog.log.files.segments import Segments
from tranlog.log.options import LogOptions
from tranlog.log.reading.cursor import Cursor
from tranlog.log.rules.pending import Pending
from tranlog.log.rules.prefix import Extent, UnbrokenPrefix
from tranlog.log.writing.allocation import AllocatedPlace
from tranlog.log.writing.index_flush import IndexFlush
from tranlog.log.writing.journal import Journal
from tranlog.log.writing.open_turn import OpenTurn
from tranlog.log.writing.opening import OpenedSegment
from tranlog.log.writing.publishing import Publishing
from tranlog.log.writing.spilling import Spilling
from tranlog.log.writing.steps import Steps
from tranlog.lsn import lsn

logger = logging.getLogger(__name__)


class LogEnd:
    """The writing end of a log, as the parts of its writer share it; `Log` is what is opened.

    Threads: `steps.lock` guards everything; it is let go while a sync runs, and while an allocation's bytes are
    written.
    """

    def __init__(
        self, path: str, disk: Disk, clock: Clock, options: LogOptions, ownership: Ownership, pending: Pending
    ) -> None:
        """For `Log` only; nothing here writes through another disk than this one, which is owned."""
        self.path = path
        self.disk = disk
        self.clock = clock
        self.options = options
        self.ownership = ownership
        self.pending = pending
        self.steps = Steps(path, ownership, pending, self)
        self.segments = Segments(path, disk)
        self.segments.recent = self.recent = RecentPieces()
        self.prefix = UnbrokenPrefix()  # what was allocated before it and is not visible yet
        hashed = lambda: self.prefix.hashed(pending.last, pending.added, len(pending.starts))  # noqa: E731
        self.journal = Journal(path, disk, clock, options, pending, hashed)
        self.publishing = Publishing(path, disk, self.segments, pending)
        give_way, may_write = self.steps.give_way, ownership.may_write
        self.spilling = Spilling(path, disk, clock, options, may_write=may_write, give_way=give_way, syncs=self.syncs)
        self.index_flush = IndexFlush(path, disk, clock, self.segments, options, give_way)
        self.places: dict[Seqno, AllocatedPlace] = {}  # those of allocations neither complete nor abandoned
        self.turn: OpenTurn | None = None
        self.refused: dict[int, LogError] = {}  # threads whose transactions were taken back by another one, and why
        self.reign = 0  # counts how often a member of a group began to lead, and ceased

    def open(self, opened: OpenedSegment) -> None:
        """Go on where the log ends that was recovered. Raises OSError."""
        history = self.segments.history
        assert history is not None, "opening the log has found it, or made it"
        self.journal.open(opened.file, opened.number, opened.end, durable_end=opened.durable_end, history=history)
        self.journal.begun_at = self.segments.files.begun_and_size(opened.number)[0]
        ids, start, epoch = self.pending.ids, NO_LSN, NO_EPOCH
        if opened.last_header is not None and opened.last_first_lsn is not None:
            ids, start = (opened.last_header.source_id, opened.last_header.event_id), opened.last_first_lsn
            epoch = opened.last_header.epoch
        elif opened.event_id:
            ids = (ids[0], opened.event_id)
        self.pending.go_back(opened.last_seqno, ids)
        if is_member(self.path, self.disk):
            self.publishing.told = min(opened.committed, opened.last_seqno)
        self.index_flush.adopt(opened.index)
        self.prefix.h = hash_up_to(self.segments, opened.last_seqno, opened.last_seqno)
        self.publishing.open(opened.last_seqno, ids, epoch, start, opened.end, opened.mark)
        self.spilling.take_stock(list_segments(self.path, self.disk), opened.end, history)
        try:
            self.spilling.drop_below(self.segments.first_seqno())
        except PurgeFailedError as exc:
            logger.warning("Spill that nothing refers to could not be removed. path=%s why=%s", self.path, exc)

    def take_commit_point(self) -> None:
        """In the log of a member of a group, take what it has kept of the commit point, if the log holds that."""
        point = None if self.publishing.told is None else read_commit_point(self.path, self.disk)
        if point is not None and self.publishing.committed < point.seqno <= self.publishing.visible:
            with Cursor(OwnView(self), committed_only=False, kept=None) as cursor:
                cursor.seek(point.seqno)
                header = cursor.next_header()
            if header is not None and header.gtid == point:
                self.publishing.commit_to(point.seqno)

    def syncs(self) -> int:
        """Return how many syncs there were since the log was opened; takes no lock."""
        return self.journal.syncs

    @property
    def durable(self) -> Seqno:
        """For `GroupCommit` only: the place up to which everything is durable."""
        return self.publishing.durable

    def reach(self, target: int) -> Seqno:
        """For `GroupCommit` only: what a full disk took is not waited for; those that it belonged to are told."""
        self.check()
        return Seqno(min(target, self.pending.last))

    def may_sync(self, target: int) -> bool:
        """For `GroupCommit` only: where an unfinished allocation is in the way, write and show what is before it."""
        if self.steps.draining:
            self.steps.wait()
        elif NO_SEQNO != self.prefix.oldest_unfinished() <= target:
            if self.pending:
                self.flush()
                self.publish()
            self.steps.wait()
        else:
            return True
        return False

    def begin_sync(self) -> Sync:
        """For `GroupCommit` only: other processes hear of it once, when it is durable; this one's readers at once.

        What was written is on its way to the disk meanwhile: the files are looked at now, and not after the sync.
        """
        self.flush(zeros=True)
        if self.publishing.look_due():
            self.look_at_files()
        self.publish(elsewhere=False)
        self.journal.begin_sync(self.publishing.visible_end if len(self.prefix) else self.pending.start)
        return Sync(self.journal.file.sync, self.publishing.visible)

    def sync_failed(self, failure: OSError) -> DiskFailedError:
        """For `GroupCommit` only."""
        return self.stop_for(failure, "sync")

    def synced(self, place: int) -> None:
        """For `GroupCommit` only: take what a sync covered for durable, and tell everybody."""
        self.check_open()  # stopped meanwhile: the positions file may be another writer's already
        self.journal.synced()
        self.publishing.synced(Seqno(place))
        self.tell()
        self.steps.commits.wake(self.publishing.durable)
        self.store_index(if_due=True)

    def look_again(self) -> None:
        """For `GroupCommit`, and who waits: see that nobody waits for what nobody is at any more."""
        self.steps.commits.drop_broken_off()
        if self.turn is not None and self.turn.dropped():
            self.drop_open()
        if self.dropped() and self.ownership.lost is None:
            self.flush()
            self.publish()

    def sync_now(self) -> None:
        """Sync under the lock, nothing else running: everything flushed is durable then."""
        try:
            self.journal.sync()
        except OSError as exc:
            raise self.stop_for(exc, "sync") from exc
        self.check_segment_file()
        self.publishing.synced(self.pending.last)

    def flush(self, *, zeros: bool = False) -> None:
        """Write what is pending; with `zeros` some of them after it, for the syncs to come."""
        if not self.pending:
            return
        try:
            self.recent.put(self.journal.number, *self.journal.write(zeros=zeros))
        except OSError as exc:
            raise self.write_failed(exc) from exc
        if self.pending.room:
            self.give_room()

    def give_room(self) -> None:
        """Let whole transactions in without a look at anything else, as far as buffer and segment go."""
        pending, options = self.pending, self.options
        pending.room = 0 if self.follows else max(min(options.buffer_bytes, options.segment_bytes - pending.start), 0)

    def publish(self, *, elsewhere: bool = True) -> None:
        """Let readers see every transaction before the oldest unfinished one; what was pending has been flushed.

        Not `elsewhere`: those in other processes wait for the next time.
        """
        self._seal()
        if self.places:
            self.leave_empty(self.dropped())
        visible = self.prefix.advance()
        if visible:
            self.publishing.show(self.journal.number, visible)
            self.tell(elsewhere=elsewhere)

    def _seal(self) -> None:
        """Put the whole transactions that are flushed in one row with the allocations."""
        if self.pending.starts:
            extent = self.pending.seal()
            extent.done = True
            self.prefix.allocate(extent)
            if self.turn is not None:
                self.pending.owners.add(self.turn.owner)

    def go_on_in(self, epoch: Epoch) -> None:
        """Have what is appended from here on be of this epoch."""
        if epoch != self.pending.epoch:
            self.flush()
            self._seal()
            self.pending.epoch = epoch

    def dropped(self) -> list[Extent]:
        """Return the extents whose allocation was dropped: nobody else will fill them, and others wait for them."""
        if not self.places or self.steps.draining:
            return []
        return [one for one in self.prefix.unfinished() if self.places[one.first].dropped()]

    def leave_empty(self, extents: Sequence[Extent]) -> None:
        """Fill these places with empty transactions: what is complete after them counts."""
        for extent in extents:
            place = self.places[extent.first]
            at = place.start
            try:
                for piece in place.empty_pieces():
                    self.journal.file.pwrite(piece, at)
                    at += len(piece)
            except OSError as exc:
                raise self.write_failed(exc) from exc
            extent.ids = place.before
            extent.done = True
            del self.places[extent.first]
            self.steps.changed.notify_all()

    def tell(self, *, elsewhere: bool = True) -> None:
        """Publish where the log stands; see `Publishing.publish`."""
        try:
            self.publishing.publish(elsewhere=elsewhere)
        except OSError as exc:
            raise self.stop_for(exc, "write", POSITIONS_NAME) from exc

    def store_index(self, *, if_due: bool = False) -> None:
        """Store the index if everything in it is durable; with `if_due` by another thread, once it is time."""
        if not if_due or self.index_flush.is_due(lsn(self.journal.number, self.publishing.visible_end)):
            built_from = self.publishing.built_from(self.journal.number)
            if built_from is not None:
                (self.index_flush.store_beside if if_due else self.index_flush.store)(built_from)

    def unfinished(self) -> str | None:
        """Return what of the writing is under way; None when nothing is."""
        if self.turn is not None:
            return f"seqno {self.pending.last + 1} is open: its last fragment is missing"
        oldest = self.prefix.oldest_unfinished()
        return None if oldest == NO_SEQNO else f"seqno {oldest} is allocated and not complete"

    def end_turn(self) -> None:
        """Let others append."""
        self.turn = None
        self.steps.changed.notify_all()

    def abandon(self) -> None:
        """Take back the open transaction's fragments, if there is one and the log is not closed."""
        if self.turn is not None and self.ownership.lost is None:
            self.drop_open()

    def drop_open(self) -> None:
        """Take back the open transaction's fragments."""
        turn = self.turn
        assert turn is not None
        self.end_turn()
        if turn.spilled is not None:
            turn.spilled.abort()
            return
        try:
            self.recent.forget()
            self.journal.take_back(turn.start)
        except OSError as exc:
            raise self.stop_for(exc, "cutting back") from exc
        self.publishing.settle_epoch(self.prefix.newest())

    def forget_spilled(self) -> None:
        """Give up what `append` has spilled of the open transaction."""
        if self.turn is not None and self.turn.spilled is not None:
            self.turn.spilled.abort()

    def check(self) -> None:
        """Raise what has closed the log, or why what this thread appended was taken back."""
        if self.refused and get_ident() in self.refused:
            raise self.refused.pop(get_ident())
        if self.ownership.lost is not None:
            raise closed_by(self.ownership.lost) from self.ownership.lost

    def check_open(self) -> None:
        """Raise as `check`, where the log is closed."""
        if self.ownership.lost is not None:
            self.check()

    @property
    def follows(self) -> bool:
        """Whether this is the log of a member of a group that does not lead it."""
        return self.publishing.given and self.publishing.told is not None

    def check_leads(self, reign: int | None = None) -> None:
        """Raise NotPrimaryError where only the group gives transactions, or `reign` is over."""
        if self.follows:
            raise NotPrimaryError(path=self.path)
        if reign is not None:
            self.check_reign(reign)

    def check_reign(self, reign: int) -> None:
        """Raise NotPrimaryError where `reign` is over."""
        if reign != self.reign:
            self.refused.pop(get_ident(), None)
            raise NotPrimaryError(path=self.path)

    def look_at_files(self) -> None:
        """Close the log for writing where its newest segment was removed; put back a positions file that was."""
        self.check_segment_file()
        try:
            self.publishing.restore()
        except OSError as exc:
            raise self.stop_for(exc, "write", POSITIONS_NAME) from exc

    def check_segment_file(self) -> None:
        """Close the log for writing where its newest segment was removed: a sync of that is worth nothing."""
        try:
            linked = self.journal.file.linked()
        except OSError as exc:
            raise self.stop_for(exc, "looking up") from exc
        if not linked:
            error = SegmentGoneError(path=self.journal.path)
            self.steps.stop(error)
            raise error

    def stop_for(self, exc: OSError, what: str, name: str | None = None) -> DiskFailedError:
        """Close the log for writing and return the error that says so; `name`: the file, if not the newest segment."""
        path = join(self.path, name) if name else self.journal.path
        error = DiskFailedError(path=path, why=f"{what} failed: {exc.strerror or exc}")
        self.steps.stop(error)
        return error

    def write_failed(self, exc: OSError) -> LogError:
        """Take back what is not visible if the disk is full, else close; return the error to raise."""
        if exc.errno not in DISK_FULL:
            return self.stop_for(exc, "write")
        path = self.journal.path
        told = self.steps.draining  # another thread
        while self.steps.draining:
            self.steps.wait()
        if told:
            return DiskFullError(path=path)
        self.steps.draining = True
        self.pending.room = 0
        try:
            while self.prefix.writing():
                self.steps.wait()
        except BaseException as other:
            self.steps.interrupted(type(other).__name__)
            raise
        self.steps.draining = False
        self.places.clear()
        owners = self.prefix.take_back(path) | self.pending.owners
        self.refused.update({owner: DiskFullError(path=path) for owner in owners - {get_ident()}})
        self.steps.wake_all()
        if self.ownership.lost is not None:
            return self.ownership.lost
        try:
            self.recent.forget()
            self.journal.cut(self.publishing.visible_end)
        except OSError as again:
            return self.stop_for(again, "cutting back")
        visible = self.publishing.visible
        self.pending.go_back(visible, self.publishing.visible_ids)
        self.forget_spilled()
        self.turn = None
        self.spilling.forget_above(Gtid(self.pending.epoch, visible))
        self.publishing.settle_epoch(self.prefix.newest())
        logger.warning("The disk is full; what was not committed is refused. path=%s", path)
        return DiskFullError(path=path)

    def close_cleanly(self) -> None:
        """Commit what is complete, and say in the log that it ends cleanly."""
        self.abandon()
        self.flush()
        self.leave_empty(self.prefix.unfinished())
        self.publish()
        self.sync_now()
        self.tell()
        self.index_flush.end_filling()
        self.store_index()
        self.spilling.store_table(self.journal.number)
        try:
            self.journal.end_cleanly()
        except OSError as exc:
            # Everything is durable; only the next open has more to look at.
            logger.warning("The mark of a clean close could not be written. path=%s why=%s", self.path, exc)

    def let_go(self) -> None:
        """Let go of files, threads and the lock file; twice is harmless."""
        self.ownership.lose(LogClosedError())
        self.forget_spilled()
        self.spilling.close()
        self.index_flush.close()
        self.segments.close()
        self.journal.close()
        self.publishing.let_go()
        self.ownership.release()

    def forked(self) -> None:
        """In a child that was just forked: keep nothing that is the parent's, nor a lock that nobody here will free.

        What this process is told from now on is that another one writes the log.
        """
        self.ownership.foreign()
        self.steps.forked()
        self.segments.forked()
        self.spilling.forked()
        self.recent.forked()
        self.publishing.forked()
        self.ownership.release()  # the parent keeps its own; were it killed, this one would keep the log locked


class OwnView:
    """The log as the cursors of its own process see it."""

    __slots__ = ("_publishing", "checksum", "segments")

    def __init__(self, end: LogEnd) -> None:
        self._publishing = end.publishing
        self.segments = end.segments
        self.checksum = end.options.checksum

    def limit(self, *, committed_only: bool) -> Seqno:
        return self._publishing.committed if committed_only else self._publishing.visible

    def heed(self) -> None:
        """Rollbacks are heard of at once."""

    def wait(self, seqno: Seqno, *, committed_only: bool, timeout_s: float) -> Seqno:
        return self._publishing.gate(committed_only=committed_only).wait(seqno, timeout_s)

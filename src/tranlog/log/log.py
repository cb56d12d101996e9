"""The one writer of a log: append, commit, rotate, recover, purge.

Owns what is on disk and what is said about it: the lock, the newest segment, the positions file. What a crash
leaves is judged by `recovery`, which segments may go by `retention`; reading is `cursor`'s. The hard idea: there
are three ends, and each moves by its own rule. *Appended* may be in memory; *visible* is written and whole, and
never taken back; *durable* is what a sync covered. A sync runs outside the lock, one thread at a time, and serves
everybody who came before it began.

Source: seeds/thl-internals; design/log-format.md; design/performance.md, "One lock, leader/follower group commit".
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from threading import get_ident

from tranlog.change import Fragment
from tranlog.clock import Clock, SystemClock
from tranlog.disk import Disk, DiskFile, DiskLock, OsDisk
from tranlog.errors import (
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogError,
    LogLockedError,
    PurgeFailedError,
    RecordLimitError,
)
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Gtid, Seqno, lsn
from tranlog.log.allocation import Allocation, empty_transaction, padding_for, size_of
from tranlog.log.cursor import Cursor
from tranlog.log.format import (
    HEADER,
    RecordHeader,
    encode_event,
    encode_rotate,
    encode_sync,
    segment_name,
)
from tranlog.log.gate import Gate
from tranlog.log.index import BuiltFrom
from tranlog.log.index_table import INDEX_NAME, IndexTable
from tranlog.log.opening import (
    DISK_FULL,
    RecoveryReport,
    create_segment,
    make_directory,
    open_newest,
    storage_error,
    take_lock,
)
from tranlog.log.options import LogOptions, LogStatus
from tranlog.log.positions import (
    NO_LSN,
    POSITIONS_NAME,
    Positions,
    PositionsFile,
    hold,
    read_holds,
)
from tranlog.log.prefix import Extent, UnbrokenPrefix
from tranlog.log.purging import Purging
from tranlog.log.reader import LogReader
from tranlog.log.recent import ReadCounts, RecentPieces
from tranlog.log.retention import SegmentAge
from tranlog.log.segment import (
    LOCK_NAME,
    Segments,
    SegmentStat,
    join,
)

logger = logging.getLogger(__name__)

_NAMED_TABLES = 5
"""So many tables of a transaction that is refused are named."""


class Log:
    """A log opened for writing. There is one at a time per directory; `LogReader` is for everybody else.

    Threads: any number may append, commit and take cursors. A transaction of several fragments belongs to the
    thread that began it: others wait until its last fragment, or `abandon_open`. `_lock` guards everything; it is
    let go while a sync runs.
    """

    def __init__(
        self, path: str, *, source_id: str, options: LogOptions, disk: Disk, clock: Clock, lock_file: DiskLock
    ) -> None:
        """For `open` only."""
        self._path = path
        self._source_id = source_id
        self._options = options
        self._disk = disk
        self._clock = clock
        self._lock_file = lock_file
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # a sync ended, a transaction ended, the log closed
        self._seen = Gate()  # opens as transactions become visible
        self._proven = Gate()  # opens as they become durable
        self._segments = Segments(path, disk)
        self._segments.recent = self._recent = RecentPieces()
        self._purging = Purging(path, disk, self._segments)
        self._positions: PositionsFile | None = None
        self._index_table = IndexTable(join(path, INDEX_NAME), disk)
        self._epoch = NO_EPOCH
        self._syncs = 0
        self._stopped: LogError | None = None
        self._closed = False
        # the newest segment
        self._file: DiskFile | None = None
        self._number = 0
        self._flushed_end = 0  # everything before it is written, or allocated to somebody who will
        self._pending = bytearray()  # what belongs at _flushed_end
        self._buffered = Extent(Seqno(0))  # the complete transactions in it
        self._prefix = UnbrokenPrefix()  # what was allocated before it and is not visible yet
        self._allocations: dict[Seqno, Allocation] = {}  # those that are neither complete nor abandoned
        self._draining = False  # the disk is full, and writers outside the lock are waited for
        # the transaction that is being appended
        self._next_seqno = Seqno(0)
        self._fragno = 0  # > 0: it is open
        self._owner = 0
        self._open_start = 0
        self._transaction_bytes = 0
        # given a place: complete, or allocated
        self._last = NO_SEQNO
        self._last_ids = (source_id, "")
        self._appended = NO_SEQNO  # the last one that `append` completed
        self._refused: dict[int, str] = {}  # threads whose transactions a full disk took, through another's write
        # visible
        self._visible = NO_SEQNO
        self._visible_start = NO_LSN
        self._visible_end = 0
        self._visible_ids = (source_id, "")
        # durable
        self._durable = NO_SEQNO
        self._durable_end = 0
        self._sync_due = True  # a sync record goes before the next record
        self._syncing = False
        self._sync_end = 0  # what the running sync covers; a cut lowers it
        self.recovered = RecoveryReport(created=True, clean=True)

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
    ) -> Log:
        """Take the lock, mend what a crash left, open a new epoch and write its no-op, synced.

        The directory is created if missing; its parent must exist. `start_after` only matters for a log without
        records: it begins behind that position, in a higher epoch. Raises LogLockedError, CorruptRecordError,
        LogMissingError, LogUnreadableError, LogCodecError, DiskFullError, DiskFailedError, ConfigError.
        """
        options = LogOptions() if options is None else options
        options.check()
        disk = OsDisk() if disk is None else disk
        clock = SystemClock() if clock is None else clock
        directory = os.fspath(path).rstrip("/") or "/"
        try:
            make_directory(directory, disk)
            lock_file = take_lock(directory, disk)
            log = cls(directory, source_id=source_id, options=options, disk=disk, clock=clock, lock_file=lock_file)
            try:
                log._recover(start_after)
            except BaseException:
                log._let_go()
                raise
        except OSError as exc:
            raise storage_error(exc, directory) from exc
        return log

    def _recover(self, start_after: Gtid | None) -> None:
        opened = open_newest(self._path, self._disk, self._segments, start_after=start_after)
        self.recovered = opened.report
        self._file = opened.file
        self._number = opened.number
        self._flushed_end = opened.end
        self._next_seqno = Seqno(opened.last_seqno + 1)
        self._last = self._appended = self._visible = self._durable = opened.last_seqno
        self._buffered = Extent(self._next_seqno)
        self._visible_end = self._durable_end = opened.end
        if opened.last_header is not None and opened.last_first_lsn is not None:
            self._visible_ids = self._last_ids = (opened.last_header.source_id, opened.last_header.event_id)
            self._visible_start = opened.last_first_lsn
        self._epoch = opened.epoch
        self._segments.adopt_index(opened.index)
        self._positions = PositionsFile(self._path, self._disk)
        noop = empty_transaction(self._visible_ids, max(self._clock.now_ms(), 0))
        with self._lock:
            # Only after the sync is there anything to see of the new epoch.
            self._append(noop, get_ident())
            self._flush()
            self._sync_now()
            self._publish()

    # --- what it holds -------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The log's directory."""
        return self._path

    @property
    def epoch(self) -> Epoch:
        """The epoch of this opening of the log."""
        return self._epoch

    @property
    def first_seqno(self) -> Seqno:
        """The first transaction held; NO_SEQNO while there is none."""
        return self._segments.first_seqno() if self._visible_start != NO_LSN else NO_SEQNO

    @property
    def last_seqno(self) -> Seqno:
        """The last transaction that has a place, visible or not; NO_SEQNO while there is none."""
        return self._last

    @property
    def visible_seqno(self) -> Seqno:
        """The last transaction that readers may see."""
        return self._visible

    @property
    def durable_seqno(self) -> Seqno:
        """The last transaction that a sync covered."""
        return self._durable

    def last(self) -> RecordHeader | None:
        """Return the header of the last visible transaction's last fragment; None in a log without any."""
        if self._visible_start == NO_LSN:
            return None
        with self.cursor() as cursor:
            cursor.seek(self._visible)
            return cursor.next_header()

    def last_event_id(self) -> str | None:
        """Return the event id that a source resumes behind; None in a log that never captured anything.

        Shape: that of the last visible transaction; what a full disk took is no part of it.
        """
        return self._visible_ids[1] or None

    def segments(self) -> list[SegmentStat]:
        """Describe each segment, first to newest."""
        return self._segments.stats(self._visible)

    def status(self) -> LogStatus:
        """Return where the log stands."""
        with self._lock:
            return LogStatus(
                path=self._path,
                epoch=self._epoch,
                first_seqno=self.first_seqno,
                last_seqno=self._last,
                visible_seqno=self._visible,
                durable_seqno=self._durable,
                committed_seqno=self._durable,
                segments=len(self._segments.row()),
                syncs=self._syncs,
                closed_because=None if self._stopped is None else str(self._stopped),
            )

    # --- writing -------------------------------------------------------------------------------------

    def append(self, fragment: Fragment) -> Gtid:
        """Put a fragment behind the last one; return its transaction's identity. Nothing is visible before `commit`.

        The seqno is given out with a transaction's first fragment. Before a first fragment the segment may be
        rotated; whatever is complete then is durable and visible, as if committed. Raises RecordLimitError (the
        whole transaction is refused), DiskFullError (everything since the last commit is refused, by whomever it
        was appended; `last_event_id` says what is kept), DiskFailedError, LogClosedError, LogLockedError.
        """
        me = get_ident()
        with self._lock:
            self._await_turn(me)
            return self._append(fragment, me)

    def _await_turn(self, me: int) -> None:
        """Return when this thread may give out the next place, in a segment that has room for it."""
        while True:
            if self._stopped is not None or self._refused:
                self._check(me)
            if self._draining:
                self._changed.wait()
            elif self._fragno:
                if self._owner == me:
                    return
                self._changed.wait()
            elif self._flushed_end + len(self._pending) < self._options.segment_bytes:
                return
            elif self._syncing or self._prefix.unfinished():
                self._changed.wait()
            else:
                self._rotate()
                return

    def _append(self, fragment: Fragment, me: int) -> Gtid:
        seqno = self._next_seqno
        fragno = self._fragno
        payload = fragment.payload
        try:
            head, trailer = encode_event(
                seqno=seqno,
                fragno=fragno,
                last_frag=fragment.last,
                epoch=self._epoch,
                source_id=fragment.source_id,
                event_id=fragment.event_id,
                shard_id=fragment.shard_id,
                tstamp=fragment.tstamp,
                tables=fragment.tables,
                payload=payload,
                checksum=self._options.checksum,
            )
            size = len(head) + len(payload) + len(trailer)
            if fragno:
                size += self._transaction_bytes
            if size > self._options.spill_above:
                names = ", ".join([f"{schema}.{table}" for schema, table in (fragment.tables or ())[:_NAMED_TABLES]])
                changes = f"with changes of {names or 'many tables'}, "
                raise RecordLimitError(
                    event_id=fragment.event_id,
                    why=f"its records, {changes}take {size} bytes or more, and spill_above is "
                    f"{self._options.spill_above}",
                )
        except RecordLimitError:
            if fragno:
                self._drop_open()
            raise
        pending = self._pending
        self._prove_before_next()
        if fragno == 0:
            self._open_start = self._flushed_end + len(pending)
        pending += head
        pending += payload
        pending += trailer
        buffered = self._buffered
        buffered.owners.add(me)
        if fragment.last:
            ids = (fragment.source_id, fragment.event_id)
            buffered.add(seqno, self._number, self._open_start, self._flushed_end + len(pending), ids)
            self._last = self._appended = seqno
            self._last_ids = ids
            self._next_seqno = Seqno(seqno + 1)
            if fragno:
                self._fragno = self._owner = 0
                self._changed.notify_all()
        else:
            self._fragno = fragno + 1
            self._owner = me
            self._transaction_bytes = size
        if len(pending) >= self._options.buffer_bytes:
            self._flush()
        return Gtid(self._epoch, seqno)

    def _prove_before_next(self) -> None:
        """Put a sync record before the next record, if a sync has completed since the last one."""
        if self._sync_due:
            self._pending += encode_sync(lsn(self._number, self._durable_end), self._clock.now_ms())
            self._sync_due = False

    def allocate(self, fragments: Sequence[Fragment]) -> Allocation:
        """Give a whole transaction its seqno and its place; its bytes are written later, outside the lock.

        Other threads go on appending and allocating behind it. For transactions that are large, or whose writing
        should not hold up others; small ones are cheaper through `append`. Raises as `append`.
        """
        me = get_ident()
        size = size_of(fragments)
        event_id = fragments[-1].event_id
        if size > self._options.spill_above:
            raise RecordLimitError(
                event_id=event_id,
                why=f"its records take {size} bytes, and spill_above is {self._options.spill_above}",
            )
        with self._lock:
            self._await_turn(me)
            assert not self._fragno, "this thread's transaction of several fragments is open"
            before = self._last_ids
            padding = padding_for(size, before, fragments[-1].tstamp)
            self._prove_before_next()
            self._flush()
            self._publish()
            start = self._flushed_end
            seqno = self._next_seqno
            extent = Extent(seqno)
            extent.add(seqno, self._number, start, start + size + padding, (fragments[-1].source_id, event_id))
            self._prefix.allocate(extent)
            self._flushed_end = extent.end
            self._next_seqno = Seqno(seqno + 1)
            self._buffered = Extent(self._next_seqno)
            self._last = seqno
            self._last_ids = extent.ids
            allocation = Allocation(
                self,
                extent,
                Gtid(self._epoch, seqno),
                fragments,
                start=start,
                padding=padding,
                before=before,
                checksum=self._options.checksum,
            )
            self._allocations[seqno] = allocation
            return allocation

    def transact(self, fragments: Sequence[Fragment], *, sync: bool = True) -> Gtid:
        """Append a whole transaction and commit it; large ones do not hold up others. Raises as `append`, `commit`."""
        if sum(len(fragment.payload) for fragment in fragments) >= self._options.buffer_bytes:
            return self.allocate(fragments).complete(sync=sync)
        for fragment in fragments:
            gtid = self.append(fragment)
        self.commit(sync=sync)
        return gtid

    def begin_write(self, extent: Extent) -> DiskFile:
        """For `Allocation` only."""
        with self._lock:
            self._check_extent(extent)
            extent.writing = True
            assert self._file is not None
            return self._file

    def end_write(self, extent: Extent, failure: OSError | None) -> None:
        """For `Allocation` only."""
        with self._lock:
            extent.writing = False
            self._changed.notify_all()
            if failure is not None:
                raise self._write_failed(failure) from failure
            self._check_extent(extent)

    def finish(self, extent: Extent, sync: bool) -> None:
        """For `Allocation` only."""
        with self._lock:
            self._check_extent(extent)
            extent.done = True
            self._allocations.pop(extent.first, None)
            self._check_lock_file()
            self._flush()
            self._publish()
            self._changed.notify_all()
            if sync:
                self._await_durable(extent.last, get_ident())
                self._check_extent(extent)

    def _check_extent(self, extent: Extent) -> None:
        if extent.refused is not None:
            raise DiskFullError(path=extent.refused)
        if self._stopped is not None:
            self._check(get_ident())

    def abandon_open(self) -> None:
        """Forget the fragments of a transaction whose last one will not come; without one this is harmless."""
        with self._lock:
            if self._fragno and self._stopped is None:
                self._drop_open()

    def commit(self, *, sync: bool = True) -> Seqno:
        """Make everything appended and complete visible; with `sync`, return once it is durable.

        Return the last seqno that this call covered. Group commit: while one thread's sync runs, others queue, and
        one sync then serves them all. Raises DiskFullError (everything since the last commit is refused),
        DiskFailedError and LogClosedError (nothing after the last good sync is durable for certain: open the log
        again and see), LogLockedError.
        """
        me = get_ident()
        with self._lock:
            if self._stopped is not None or self._refused:
                self._check(me)
            oldest = self._prefix.oldest_unfinished()
            target = self._last if oldest == NO_SEQNO else max(self._appended, Seqno(oldest - 1))
            if not sync:
                if self._visible < target:
                    self._check_lock_file()
                    self._flush()
                    self._publish()
                return target
            self._await_durable(target, me)
            return min(target, self._last)

    def _await_durable(self, target: Seqno, me: int) -> None:
        """Return once `target` is durable: sync, or wait for whoever syncs, and for every older transaction.

        What a full disk took meanwhile is not waited for; those that it belonged to are told.
        """
        while self._durable < min(target, self._last):
            if self._syncing or self._draining:
                self._changed.wait()
            elif NO_SEQNO != self._prefix.oldest_unfinished() <= target:
                if self._pending:
                    self._check_lock_file()
                    self._flush()
                    self._publish()
                self._changed.wait()
            else:
                self._lead_sync()
                continue
            if self._stopped is not None or self._refused:
                self._check(me)

    def _lead_sync(self) -> None:
        """Write, publish and sync for everybody who has finished so far; the lock is free while the disk works."""
        self._check_lock_file()
        self._flush()
        self._publish()
        self._syncing = True
        self._sync_end = self._visible_end if len(self._prefix) else self._flushed_end
        covered = self._visible
        file = self._file
        assert file is not None
        failure: OSError | None = None
        self._lock.release()
        try:
            file.sync()
        except OSError as exc:
            failure = exc
        finally:
            self._lock.acquire()
            self._syncing = False
            self._changed.notify_all()
        if failure is not None:
            raise self._stop_for(failure, "sync") from failure
        if self._stopped is not None:
            self._check(get_ident())  # stopped meanwhile: the positions file may be another writer's already
        self._syncs += 1
        self._durable = max(self._durable, covered)
        self._durable_end = self._sync_end
        self._sync_due = True
        self._write_positions(look=True)

    def _sync_now(self) -> None:
        """Sync under the lock, nothing else running: everything flushed is durable then."""
        assert self._file is not None
        try:
            self._file.sync()
        except OSError as exc:
            raise self._stop_for(exc, "sync") from exc
        self._syncs += 1
        self._durable = self._last
        self._durable_end = self._flushed_end
        self._sync_due = True

    def _flush(self) -> None:
        """Write what is pending."""
        pending = self._pending
        if not pending:
            return
        assert self._file is not None
        try:
            written = bytes(pending)
            self._file.pwrite(written, self._flushed_end)
        except OSError as exc:
            raise self._write_failed(exc) from exc
        self._recent.put(self._number, self._flushed_end, written)
        self._flushed_end += len(pending)
        pending.clear()

    def _publish(self) -> None:
        """Let readers see every transaction before the oldest unfinished one; what was pending has been flushed."""
        if self._buffered:
            self._buffered.done = True
            self._seal()
        visible = self._prefix.advance()
        if not visible:
            return
        for extent in visible:
            self._segments.register(self._number, extent.first, extent.starts)
        newest = visible[-1]
        self._visible = newest.last
        self._visible_start = newest.last_start
        self._visible_end = newest.end
        self._visible_ids = newest.ids
        self._write_positions()

    def _seal(self) -> None:
        """Give the buffered transactions their place in the row, and begin another buffer."""
        self._prefix.allocate(self._buffered)
        self._buffered = Extent(Seqno(self._buffered.last + 1))
        if self._fragno:
            self._buffered.owners.add(self._owner)

    def _write_positions(self, *, look: bool = False) -> None:
        """Tell readers, here and elsewhere; with `look`, see first whether the file is still where they look for it."""
        assert self._positions is not None
        self._segments.synced(self._durable)
        try:
            if look:
                self._positions.restore()
            self._positions.write(
                Positions(
                    boot_id=self._positions.boot_id,
                    identity=self._positions.identity,
                    epoch=self._epoch,
                    first_seqno=self._segments.first_seqno(),
                    visible_seqno=self._visible,
                    durable_seqno=self._durable,
                    committed_seqno=self._durable,
                    visible_lsn=self._visible_start,
                )
            )
        except OSError as exc:
            raise self._stop_for(exc, "write", POSITIONS_NAME) from exc
        self._seen.open_to(self._visible)
        self._proven.open_to(self._durable)

    # --- refusing and stopping -----------------------------------------------------------------------

    def _check(self, me: int) -> None:
        if me in self._refused:
            raise DiskFullError(path=self._refused.pop(me))
        if self._stopped is not None:
            if isinstance(self._stopped, LogClosedError):
                raise LogClosedError()
            raise LogClosedError(f"it closed itself ({self._stopped})") from self._stopped

    def _check_lock_file(self) -> None:
        if self._lock_file.held():
            return
        self._stop(LogLockedError(path=self._path, holder=f"{LOCK_NAME} was replaced or removed under this one"))
        assert self._stopped is not None
        raise self._stopped

    def _stop(self, error: LogError) -> None:
        self._stopped = error
        self._changed.notify_all()
        logger.error("The log is closed for writing. path=%s why=%s", self._path, error)

    def _stop_for(self, exc: OSError, what: str, name: str | None = None) -> DiskFailedError:
        """Close the log for writing and return the error that says so; `name`: the file, if not the newest segment."""
        error = DiskFailedError(
            path=join(self._path, name or segment_name(self._number)), why=f"{what} failed: {exc.strerror or exc}"
        )
        self._stop(error)
        return error

    def _write_failed(self, exc: OSError) -> LogError:
        """Take back what is not visible if the disk is full, else close; return the error to raise."""
        if exc.errno not in DISK_FULL:
            return self._stop_for(exc, "write")
        path = join(self._path, segment_name(self._number))
        if self._draining:  # another thread was told first
            self._changed.wait_for(lambda: not self._draining)
            return DiskFullError(path=path)
        self._draining = True
        while self._prefix.writing():
            self._changed.wait()
        self._draining = False
        self._allocations.clear()
        owners = self._prefix.take_back(path) | self._buffered.owners
        self._refused.update(dict.fromkeys(owners - {get_ident()}, path))
        self._changed.notify_all()
        if self._stopped is not None:
            return self._stopped
        try:
            self._cut_to(self._visible_end)
        except OSError as again:
            return self._stop_for(again, "cutting back")
        self._next_seqno = Seqno(self._visible + 1)
        self._buffered = Extent(self._next_seqno)
        self._last = self._appended = self._visible
        self._last_ids = self._visible_ids
        self._fragno = self._owner = 0
        logger.warning("The disk is full; what was not committed is refused. path=%s", path)
        return DiskFullError(path=path)

    def _drop_open(self) -> None:
        """Take back the open transaction's fragments."""
        start = self._open_start
        self._fragno = self._owner = 0
        self._changed.notify_all()
        if start >= self._flushed_end:
            del self._pending[start - self._flushed_end :]
            self._sync_due = True
            return
        try:
            self._cut_to(start)
        except OSError as exc:
            raise self._stop_for(exc, "cutting back") from exc

    def _cut_to(self, end: int) -> None:
        """Shorten the newest segment; synced, so that what is cut cannot come back behind new records."""
        assert self._file is not None
        self._pending.clear()
        self._recent.forget()
        self._file.truncate(end)
        self._file.sync()
        self._flushed_end = end
        self._durable_end = min(self._durable_end, end)
        self._sync_end = min(self._sync_end, end)
        self._sync_due = True

    # --- rotating and purging ------------------------------------------------------------------------

    def _rotate(self) -> None:
        """Close the newest segment, durable, and start the next one."""
        self._check_lock_file()
        self._flush()
        self._publish()
        assert self._file is not None
        end = self._flushed_end
        number = self._number + 1
        try:
            self._file.pwrite(encode_rotate(segment_name(number)), end)
        except OSError as exc:
            raise self._write_failed(exc) from exc
        self._flushed_end = end + len(encode_rotate(segment_name(number)))
        self._sync_now()
        old = self._number
        try:
            file = create_segment(self._path, self._disk, number, self._visible)
        except OSError as exc:
            if exc.errno not in DISK_FULL:
                raise self._stop_for(exc, "starting the next segment") from exc
            try:
                # The old segment may only lose its rotate record once there is certainly no next one.
                path = join(self._path, segment_name(number))
                if self._disk.exists(path):
                    self._disk.unlink(path)
                    self._disk.sync_dir(self._path)
            except OSError as again:
                raise self._stop_for(again, "starting the next segment") from again
            self._visible_end = end
            raise self._write_failed(exc) from exc
        self._file.close()
        self._file = file
        self._number = number
        self._flushed_end = self._durable_end = self._visible_end = HEADER.size
        self._segments.adopt(number, self._visible)
        self._write_positions()
        self._store_index()
        logger.debug("Rotated. from=%s to=%s", segment_name(old), segment_name(number))
        if self._options.retention_s is not None:
            try:
                self._purge(None)
            except (OSError, LogError) as exc:
                if self._stopped is not None:
                    raise
                logger.warning("Retention could not remove segments. path=%s why=%s", self._path, exc)

    def flush_index(self) -> None:
        """Store the index as it is: what is durable and visible. Opening and seeking are faster for it, never wrong."""
        with self._lock:
            if self._stopped is None:
                self._store_index()

    def _store_index(self) -> None:
        """Store the index if everything in it is durable; it is a cache, so a disk that refuses stops nothing."""
        if self._durable != self._visible or self._visible_start == NO_LSN:
            return
        built_from = BuiltFrom(epoch=self._epoch, end=lsn(self._number, self._visible_end))
        try:
            self._segments.store_index(self._index_table, built_from)
        except OSError as exc:
            logger.warning("The index could not be stored. path=%s why=%s", self._path, exc)

    def purge(self, *, below: Seqno | None = None) -> list[str]:
        """Remove whole segments from the front; return their names.

        With `below`: those that hold nothing but transactions below it; without: those that retention gives up.
        The newest two stay, and whatever a hold needs. What could not be removed goes first the next time. Raises
        HoldError, PurgeFailedError, LogClosedError, DiskFailedError.
        """
        with self._lock:
            if self._stopped is not None:
                self._check(get_ident())
            try:
                return self._purge(below)
            except OSError as exc:
                raise PurgeFailedError(path=self._path, why=exc.strerror or str(exc)) from exc

    def _purge(self, below: Seqno | None) -> list[str]:
        newest = SegmentAge(number=self._number, last_seqno=self._visible, ended_at=None)
        gone = self._purging.choose(newest, below=below, now_ms=self._clock.now_ms(), options=self._options)
        if gone:  # range first, so that no reader starts in what will go
            self._segments.drop_front(gone[-1] + 1)
            self._write_positions()
            self._store_index()
        return self._purging.remove(gone)

    # --- reading, and the end ------------------------------------------------------------------------

    def cursor(self, *, committed_only: bool = False) -> Cursor:
        """Return a cursor that wakes as soon as there is more, standing at the first transaction."""
        return Cursor(_OwnView(self), committed_only=committed_only)

    def close(self) -> None:
        """Commit what is complete, say in the log that it ends cleanly, and let go. Closing twice is harmless.

        An open transaction is forgotten. Raises DiskFullError, DiskFailedError, LogLockedError; let go is then, too.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            while self._syncing or self._draining or self._prefix.writing():
                self._changed.wait()
            try:
                if self._stopped is None:
                    self._close_cleanly()
            finally:
                if self._stopped is None:
                    self._stopped = LogClosedError()
                self._let_go()
                self._changed.notify_all()
                self._seen.close()
                self._proven.close()

    def _close_cleanly(self) -> None:
        self._check_lock_file()
        if self._fragno:
            self._drop_open()
        self._flush()
        self._fill_unfinished()
        self._publish()
        self._sync_now()
        self._write_positions()
        self._store_index()
        assert self._file is not None
        end = self._flushed_end
        try:
            self._file.pwrite(encode_sync(lsn(self._number, end), self._clock.now_ms()), end)
            self._file.sync()
        except OSError as exc:
            # Everything is durable; only the next open has more to look at.
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            logger.warning("The mark of a clean close could not be written. path=%s why=%s", self._path, exc)

    def _fill_unfinished(self) -> None:
        """Leave empty transactions where allocations were not completed: what is complete behind them counts."""
        assert self._file is not None
        for extent in self._prefix.unfinished():
            at = extent.starts[0]
            try:
                for piece in self._allocations[extent.first].empty_pieces():
                    self._file.pwrite(piece, at)
                    at += len(piece)
            except OSError as exc:
                raise self._write_failed(exc) from exc
            extent.done = True

    def _let_go(self) -> None:
        self._index_table.close()
        if self._file is not None:
            self._file.close()
        if self._positions is not None:
            self._positions.close()
        self._lock_file.release()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def gate(self, *, committed_only: bool = False) -> Gate:
        """Return the gate at which to wait for a transaction to be visible or, on demand, committed."""
        return self._proven if committed_only else self._seen

    def read_counts(self) -> ReadCounts:
        """Return from where the cursors of this process got what they read."""
        return self._recent.counts


class _OwnView:
    """The log as the cursors of its own process see it."""

    __slots__ = ("_log", "checksum", "segments")

    def __init__(self, log: Log) -> None:
        self._log = log
        self.segments = log._segments
        self.checksum = log._options.checksum

    def limit(self, *, committed_only: bool) -> Seqno:
        return self._log._durable if committed_only else self._log._visible

    def wait(self, seqno: Seqno, *, committed_only: bool, timeout_s: float) -> Seqno:
        return self._log.gate(committed_only=committed_only).wait(seqno, timeout_s)


__all__ = ["Log", "LogOptions", "LogReader", "hold", "read_holds"]

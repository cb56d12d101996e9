"""The journal of a store: records appended in groups, one sync for many, containers taken, added and given back.

Owns the place of the next record, the bytes not yet written, and what is durable. `rules.state` owns the meaning of
records. The hard idea: a record is put into memory under the store's lock and has its place at once. The first thread
that waits for it writes and syncs for all threads before it. A Sync record names the end that an earlier sync covered,
and stands before the next record; by it recovery tells a torn tail from damage.

Source: docs/format.md, "The message store"; docs/decisions/0009.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from types import TracebackType

from tranlog.clock import Clock
from tranlog.errors import DiskFailedError, DiskFullError, LogClosedError, TranlogError
from tranlog.forking import freed
from tranlog.group_commit import GroupCommit, Sync, Turn
from tranlog.ids import Lsn
from tranlog.log.files.directory import DISK_FULL
from tranlog.log.files.ownership import Ownership, closed_by
from tranlog.queues.files.containers import ContainerFiles
from tranlog.queues.files.syncing import OneSync
from tranlog.queues.rules.buffer import RecordBuffer
from tranlog.queues.rules.containers import (
    SYNC_BYTES,
    Need,
    kept_back,
    left_over,
    room,
    room_of_one,
    to_give_back,
    to_remove,
)
from tranlog.queues.rules.records import (
    CHECKPOINT,
    HEADER_BYTES,
    NEXT,
    NEXT_BODY,
    NEXT_BYTES,
    OVERHEAD,
    container_name,
    encode_checkpoint,
    encode_sync,
    first_lsn,
)
from tranlog.queues.rules.state import QueueState

logger = logging.getLogger(__name__)

_BUFFER_BYTES = 64 * 1024


class Changes:
    """Something became durable or free, or the store closed. The caller holds the lock."""

    __slots__ = ("_told", "_waiting")

    def __init__(self, lock: threading.RLock) -> None:
        self._told = threading.Condition(lock)
        self._waiting = 0

    def tell(self) -> None:
        """Wake all waiting threads; cheap if there are none."""
        if self._waiting:
            self._told.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait for `tell`, at most so many seconds; return whether it came. The lock is released meanwhile."""
        self._waiting += 1
        try:
            return self._told.wait(seconds)
        finally:
            self._waiting -= 1


class QueueJournal:
    """The writing end of a store's log. `lock` guards it and the state that its records make.

    `durable` is the place up to which everything is durable, `place` the one after the last record. `counter` is the
    catalogue's. `reserved`: bytes that the outcomes of prepared transactions need.
    """

    def __init__(
        self,
        files: ContainerFiles,
        clock: Clock,
        ownership: Ownership,
        state: QueueState,
        *,
        initial_containers: int,
        write_buffers: int,
    ) -> None:
        """Writes nothing before `open`."""
        self.files = files
        self.lock = threading.RLock()
        self.changed = Changes(self.lock)
        self.commits = GroupCommit(self, self.lock, self)
        self.durable = Lsn(0)
        self.buffer = RecordBuffer(0, HEADER_BYTES)
        self.ahead: list[int] = []
        """Containers with a number, behind the newest, that have no record yet."""
        self.epoch = 0
        self.counter = 0
        self.sync_due = True
        self.reserved = 0
        self.syncs = OneSync()
        self.tidy: Callable[[int], None] = lambda count: None
        """Called after a sync for which containers were begun: empties so many of the oldest. Raises as `put`."""
        self._tidied = 0  # the newest container when that was over last
        self._clock = clock
        self._ownership = ownership
        self._state = state
        self.initial = initial_containers
        self._pending_most = write_buffers * _BUFFER_BYTES
        self._needed = 0  # the lowest container that was needed when the last sync began

    # --- what may be done ----------------------------------------------------------------------------

    def __enter__(self) -> None:
        self.commits.over()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, TranlogError):
            self.stop(LogClosedError(f"{kind.__name__} came in the midst of a step of its writer"))

    def stop(self, error: DiskFailedError | LogClosedError | None = None) -> None:
        """Stop writing: at the end, or because of an error, which leaves the same as a crash."""
        if self._ownership.lost is None:
            self._ownership.lose(error or LogClosedError())
            if error is not None:
                logger.error("The message store is closed for writing. path=%s why=%s", self.files.path, error)
        self.commits.leader = 0
        self.commits.wake(everybody=True)
        self.changed.tell()

    def stop_for(self, failure: OSError, what: str) -> DiskFailedError:
        """Close the store for writing, and return the error for it."""
        name = container_name(self.buffer.number) if self.buffer.number else ""
        error = DiskFailedError(path=f"{self.files.path}/{name}", why=f"{what}: {failure.strerror or failure}")
        self.stop(error)
        return error

    @property
    def is_open(self) -> bool:
        """Whether anything can be written."""
        return self._ownership.lost is None

    def check_open(self) -> None:
        """Raise LogClosedError if nothing may be written any more."""
        if self._ownership.lost is not None:
            raise closed_by(self._ownership.lost) from self._ownership.lost

    def forked(self) -> None:
        """In a child that was just forked: have no lock that nobody here will free."""
        lock = self.lock
        self.lock = freed(lock)
        if self.lock is not lock:
            self.changed = Changes(self.lock)
        self.commits.forked(self.lock)

    # --- opening -------------------------------------------------------------------------------------

    def open(self, number: int, end: int, *, epoch: int, proven: Lsn, counter: int) -> None:
        """Go on at a place. `proven`: up to where everything is known to be durable."""
        self.buffer.go(number, end)
        self.epoch = epoch
        self.durable = proven
        self.counter = counter
        self.ahead = [other for other in self.files.in_use if other > number]
        self._needed = self.files.in_use[0]
        self._tidied = number - 1
        if end == HEADER_BYTES:
            self._put_checkpoint(proven)

    # --- appending -----------------------------------------------------------------------------------

    @property
    def place(self) -> Lsn:
        """The place after everything that was put."""
        return self.buffer.place

    def _checkpoint_bytes(self) -> int:
        return SYNC_BYTES + 2 + sum(22 + len(name) for name in self._state.positions)

    @property
    def shown(self) -> Lsn:
        """The place up to which all groups are durable as a whole."""
        return self.buffer.shown(self.durable)

    def admit(self, size: int, need: Need) -> None:
        """Make room for a group of so many bytes; add a container if none is left.

        Raises DiskFullError, and has written nothing then; LogClosedError; DiskFailedError.
        """
        self.check_open()
        if self.ahead and not self.reserved and self.fits(size):
            return  # what is kept back is ahead
        each, checkpoint = self.files.container_bytes, self._checkpoint_bytes()
        kept = kept_back(need, room_of_one(each, checkpoint), self.reserved)
        while room(each, self.buffer.end, len(self.ahead), checkpoint) - kept < size + SYNC_BYTES:
            if not (self._grow() or self._free_now()):
                if not self._state.live:  # the newest is free, too, once the next one is begun
                    kept = kept_back(Need.DRAIN, 0, self.reserved)
                    if room(each, self.buffer.end, len(self.ahead), checkpoint) - kept >= size + SYNC_BYTES:
                        return
                raise DiskFullError(path=self.files.path)

    def admit_records(self, sizes: Sequence[int], need: Need, outcome: int = 0) -> None:
        """Make room for a group by the sizes of its records, and for its `outcome`. Raises as `admit`."""
        size = sum(sizes)
        if not self.fits(size):
            every = chain((SYNC_BYTES,), sizes)
            size += left_over(every, self.files.container_bytes, self.buffer.end, self._checkpoint_bytes())
        self.admit(size + outcome, need)

    def fits(self, size: int) -> bool:
        """Whether a group of so many bytes goes into the newest container as a whole."""
        return self.buffer.end + size + SYNC_BYTES + NEXT_BYTES <= self.files.container_bytes

    def next_place(self) -> Lsn:
        """Return the place of a group that fits: after a Sync record, if one is due."""
        if self.sync_due:
            self._prove(self.durable)
        return self.buffer.place

    def put_whole(self, pieces: Iterable[bytes], size: int, *, wait: bool = False) -> None:
        """Put the records of groups that fit, of `size` bytes in all, at `next_place`. Raises DiskFailedError.

        `wait`: the caller will wait for them, and has other work before. If it is alone, writing begins now; if others
        wait, one sync serves all of them.
        """
        buffer = self.buffer
        buffer.put_whole(pieces, size)
        if wait and not self.commits.leader and not self.commits:
            offset = buffer.written
            self.write()
            self.files.file(buffer.number).write_out(buffer.written - offset, offset, wait=False)
        else:
            self._write_much()

    def put(self, record_type: int, flags: int, undo_prev: Lsn, body: bytes) -> Lsn:
        """Append a record; return its place. Raises DiskFullError if no container can be added.

        A group that ends so was cut off. Raises DiskFailedError, LogClosedError.
        """
        size = OVERHEAD + len(body)
        if self.buffer.end + size + (SYNC_BYTES if self.sync_due else 0) + NEXT_BYTES > self.files.container_bytes:
            self._roll(size)
        if self.sync_due:
            self._prove(self.durable)
        return self._put(record_type, flags, undo_prev, body)

    def _put(self, record_type: int, flags: int, undo_prev: Lsn, body: bytes) -> Lsn:
        place = self.buffer.put(record_type, flags, self.epoch, undo_prev, body)
        self._write_much()
        return place

    def _write_much(self) -> None:
        if self.buffer.end - self.buffer.written >= self._pending_most:
            self.write()

    def _prove(self, durable: Lsn) -> None:
        self.sync_due = False
        known, raw = self.buffer.sync_ahead
        if known != (self.place, durable, self.counter):
            raw = self._encode_sync(durable)
        self.buffer.put_sync(raw)

    def _encode_sync(self, durable: Lsn) -> bytes:
        return encode_sync(self.epoch, self.buffer.place, durable, self._clock.now_ms(), self.counter)

    def _put_checkpoint(self, durable: Lsn) -> None:
        self.sync_due = False
        now_ms, positions = self._clock.now_ms(), self._state.positions
        self._put(CHECKPOINT, 0, Lsn(0), encode_checkpoint(durable, now_ms, self.counter, positions))

    def write(self) -> None:
        """Write what is pending. Raises DiskFailedError."""
        raw = self.buffer.pending(self.files.container_bytes)
        if not raw:
            return
        try:
            self.files.file(self.buffer.number).pwrite(raw, self.buffer.written)
        except OSError as exc:
            raise self.stop_for(exc, "write") from exc
        self.buffer.wrote()

    # --- containers ----------------------------------------------------------------------------------

    def _grow(self) -> bool:
        """Have one more container ahead; False where the disk is full: one that is free stays so."""
        files, number = self.files, self.buffer.number + len(self.ahead) + 1
        try:
            if not files.free:
                files.make_free()
            files.take(number, epoch=self.epoch, base=first_lsn(files.in_use[0]), now_ms=self._clock.now_ms())
        except OSError as exc:
            if exc.errno in DISK_FULL and number not in files.in_use:
                logger.warning("No container can be added: the disk is full. path=%s", files.path)
                return False
            raise self.stop_for(exc, "adding a container") from exc
        self.ahead.append(number)
        return True

    def _free_now(self) -> bool:
        """Free the containers that are not needed, if no sync is due before; return whether there was one."""
        lowest = self.files.in_use[0]
        if self.durable == self.place:
            self.give_back(self._state.lowest(self.buffer.number))
        return self.files.in_use[0] > lowest

    def _roll(self, size: int) -> None:
        """Go on in the next container, for a record of `size` bytes. What is put so far is durable then."""
        self.check_open()
        if not self.ahead and not self._grow():
            raise DiskFullError(path=self.files.path)
        self._put(NEXT, 0, Lsn(0), NEXT_BODY.pack(self.buffer.number + 1))
        self._sync_all()
        self.buffer.go(self.ahead.pop(0))
        self._put_checkpoint(self.durable)
        assert self.buffer.end + size + NEXT_BYTES <= self.files.container_bytes, "no record is larger than a container"

    def _sync_all(self) -> None:
        """Make everything durable that was put, with the lock held."""
        self.write()
        try:
            self.syncs.sync(self.files.file(self.buffer.number))
        except OSError as exc:
            raise self.stop_for(exc, "sync") from exc
        self.durable = self.place

    def give_back(self, needed: int) -> None:
        """Free the containers below `needed`, and remove some if many are unused."""
        files = self.files
        unneeded = to_give_back(files.in_use[0], min(needed, self.buffer.number))
        if not unneeded:
            return
        try:
            for number in unneeded:
                files.give_back(number)
            for number in to_remove(len(files.in_use), files.free, self.initial, files.in_use[0] - 1):
                files.remove(number)
        except OSError as exc:
            raise self.stop_for(exc, "giving a container back") from exc

    # --- one sync for many ---------------------------------------------------------------------------

    def commit(self, target: Lsn | None = None) -> None:
        """Return when everything before `target`, or everything put so far, is durable. The lock is not held."""
        with self.lock, self:
            target = self.buffer.place if target is None else target
            turn = self.commits.take_turn(target)
        self.commits.wait(turn, target)

    def take_turn(self) -> tuple[Turn, Lsn]:
        """Start to make everything durable that was put so far; `commits.wait` waits for it."""
        target = self.buffer.place
        return self.commits.take_turn(target), target

    def reach(self, target: int) -> int:
        """For `GroupCommit` only."""
        self.check_open()
        return target

    def may_sync(self, target: int) -> bool:
        """For `GroupCommit` only."""
        return True

    def begin_sync(self) -> Sync:
        """For `GroupCommit` only: write what everybody has put."""
        self.write()
        file = self.files.file(self.buffer.number)
        self._needed = self._state.lowest(self.buffer.number)
        place = self.place
        if not self.commits:  # alone, and the disk is at it: what comes after the sync is made now
            self.buffer.sync_ahead = (place, place, self.counter), self._encode_sync(place)
        return Sync(lambda: self.syncs.sync(file), place)

    def synced(self, place: int) -> None:
        """For `GroupCommit` only."""
        self.check_open()
        if place > self.durable:
            self.durable = Lsn(place)
            self.sync_due = True
        if self.files.in_use[0] < self._needed:
            self.give_back(self._needed)
        self.commits.wake(self.durable)
        self.changed.tell()
        begun = self.buffer.number - self._tidied
        if begun:
            self.tidy(2 * begun)  # more than were begun, so that what is needed by little becomes less
            self._tidied = self.buffer.number

    def sync_failed(self, failure: OSError) -> DiskFailedError:
        """For `GroupCommit` only."""
        return self.stop_for(failure, "sync")

    def look_again(self) -> None:
        """For `GroupCommit` only."""
        self.commits.drop_broken_off()

    # --- the end -------------------------------------------------------------------------------------

    def end_cleanly(self) -> None:
        """Make everything durable that was put, and note that in the log. Raises as `put`."""
        with self.lock, self:
            self.check_open()
            if self.buffer.end + SYNC_BYTES + NEXT_BYTES > self.files.container_bytes:
                try:
                    self._roll(SYNC_BYTES)
                except DiskFullError:
                    self._sync_all()
                    return  # the next opening finds a whole log all the same
            if self.durable < self.place:  # what was moved after the last sync, or came from another thread
                self._sync_all()
            self._prove(self.place)
            self._sync_all()

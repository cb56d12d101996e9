"""Who may write a log: the one place that every write of its writer passes.

Owns what is asked before each call that changes a byte or a name: is this the process that opened the log, does it
still hold the lock file, and has nothing closed the log for writing. The hard idea: nobody has to remember to ask. The
writer is given no disk but `OwnedDisk`, so its segments, buffers, allocations, spill, index, positions, cuts and its
end all ask; a fork inherits the files and may not use them.

Between the look and the write a moment is left. A writer that is stopped in it, while the lock file is removed and
another one opens the log, writes what is then no longer its own. It acknowledges nothing of that: the write of the
positions, after the sync, asks again; and what it has overwritten contradicts its checksums and epochs.

Source: docs/format.md; fcntl(2), "Open file description locks".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from tranlog.disk import Disk, DiskFile, DiskLock
from tranlog.errors import LogClosedError, LogError, LogLockedError
from tranlog.log.files.directory import LOCK_NAME

logger = logging.getLogger(__name__)


class Ownership:
    """The right of one opening of a log to write. Threads: any; it is lost once, for good.

    `lost`: why nothing may be written any more, None while it may.
    """

    def __init__(self, path: str, lock: DiskLock, *, lost: Callable[[], None], lock_name: str = LOCK_NAME) -> None:
        """`lost` is called by whichever thread finds it out or says it, before anything is raised."""
        self._lock_name = lock_name
        self._path = path
        self._lock = lock
        self._on_loss = lost
        self._process = os.getpid()
        self.lost: LogError | None = None

    def lose(self, why: LogError) -> None:
        """Refuse every write from now on; the first reason stays."""
        if self.lost is None:
            self.lost = why
            self._on_loss()

    def foreign(self) -> bool:
        """Whether this is another process than the one that opened the log: a child of it."""
        mine = os.getpid()
        if mine == self._process:
            return False
        self.lost = LogClosedError(
            f"process {self._process} opened it, and this is process {mine}, forked from it; only the one that opened "
            "a log writes to it"
        )
        self._on_loss()
        return True

    def check(self, *, look: bool = False) -> None:
        """Return if a write may go on; with `look`, the lock file's path is looked at in any case.

        Raises LogLockedError by whom it is found out that the lock is gone, LogClosedError afterwards and otherwise.
        """
        if os.getpid() != self._process:
            self.foreign()
        if self.lost is not None:
            raise closed_by(self.lost) from self.lost
        if not self._lock.held(look=look):
            error = LogLockedError(path=self._path, holder=f"{self._lock_name} was replaced or removed under this one")
            self.lose(error)
            logger.error("The log is closed for writing. path=%s why=%s", self._path, error)
            raise error

    def release(self) -> None:
        """Let go of the lock file."""
        self._lock.release()

    def may_write(self) -> bool:
        """Whether `check` would return."""
        try:
            self.check()
        except LogError:
            return False
        return True


def closed_by(lost: LogError) -> LogClosedError:
    """Return the error for whoever comes after a log was closed for writing."""
    return LogClosedError(lost.why if isinstance(lost, LogClosedError) else f"it closed itself ({lost})")


class OwnedDisk:
    """A disk as the writer of a log sees it: whatever changes something asks first."""

    def __init__(self, disk: Disk, ownership: Ownership) -> None:
        self._disk = disk
        self._ownership = ownership
        # What changes nothing of a log is the disk's own.
        self.list_dir = disk.list_dir
        self.exists = disk.exists
        self.modified_ms = disk.modified_ms
        self.sync_dir = disk.sync_dir
        self.entries_stamp = disk.entries_stamp
        self.lock = disk.lock
        self.is_locked = disk.is_locked
        self.boot_id = disk.boot_id
        self.free_bytes = disk.free_bytes
        self.watch = disk.watch

    def open(self, path: str, *, write: bool = False, create: bool = False) -> DiskFile:
        if not write:
            return self._disk.open(path)
        self._ownership.check(look=True)
        return OwnedFile(self._disk.open(path, write=True, create=create), self._ownership)

    def make_dir(self, path: str) -> None:
        self._ownership.check(look=True)
        self._disk.make_dir(path)

    def unlink(self, path: str) -> None:
        self._ownership.check(look=True)
        self._disk.unlink(path)

    def rename(self, old: str, new: str) -> None:
        self._ownership.check(look=True)
        self._disk.rename(old, new)


class OwnedFile:
    """A file that the writer of a log has open for writing."""

    __slots__ = ("_file", "_ownership", "close", "identity", "linked", "pread", "size", "sync", "write_out")

    def __init__(self, file: DiskFile, ownership: Ownership) -> None:
        self._file = file
        self._ownership = ownership
        # What changes nothing is the file's own.
        self.pread = file.pread
        self.write_out = file.write_out
        self.size = file.size
        self.sync = file.sync
        self.linked = file.linked
        self.identity = file.identity
        self.close = file.close

    def pwrite(self, raw: bytes | memoryview, offset: int) -> None:
        self._ownership.check()
        self._file.pwrite(raw, offset)

    def truncate(self, size: int) -> None:
        self._ownership.check()
        self._file.truncate(size)

"""The disk, as an argument: the only way in which the log touches files.

Owns the seam (`Disk`, `DiskFile`, `DiskLock`) and the real one behind it. The hard idea: a test's disk
(`testing.disk`) forgets what was not synced and can stop at any call, so whatever the log promises about power
loss is promised through these methods and no others. Errors are the operating system's (OSError); the log turns
them into ours.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable
from functools import cache
from typing import Final, NoReturn, Protocol, cast

from mypy_extensions import mypyc_attr

from tranlog.inotify import FileWatch, watch_file


class DiskFile(Protocol):
    """An open file with explicit offsets; no cursor, no buffer."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""

    def pwrite(self, raw: bytes | memoryview, offset: int) -> None:
        """Write all of `raw` at `offset`. On OSError any prefix of it may have been written."""

    def write_out(self, size: int, offset: int, *, wait: bool = True) -> None:
        """Have bytes that were written go to the disk now, and wait for them, or not; no promise.

        Raises nothing: where that fails, each `sync` after it does.
        """

    def size(self) -> int:
        """Return the file's length in bytes."""

    def truncate(self, size: int) -> None:
        """Set the file's length."""

    def sync(self) -> None:
        """Return when the file's bytes and length would survive a loss of power (fdatasync)."""

    def linked(self) -> bool:
        """Whether the path that was opened still leads to this very file."""

    def identity(self) -> int:
        """Return a number that this file keeps while it exists and a copy of it does not share (the inode's)."""

    def close(self) -> None:
        """Close; closing twice is harmless."""


class DiskLock(Protocol):
    """An exclusive lock on a file."""

    def held(self, *, look: bool = False) -> bool:
        """Whether the lock file is still the one that was locked; False once it was replaced or removed.

        `look`: do not take what stands for it, as an unchanged time of change, but look at its path.
        """

    def release(self) -> None:
        """Give the lock back; releasing twice is harmless."""


class Disk(Protocol):
    """Directories and files by path. A new or renamed entry is durable only after `sync_dir`."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> DiskFile:
        """Open a file. Raises FileNotFoundError unless `create`."""

    def list_dir(self, path: str) -> list[str]:
        """Return the entries' names, sorted."""

    def exists(self, path: str) -> bool:
        """Whether the path leads to a file or directory."""

    def modified_ms(self, path: str) -> int:
        """Return the file's modification time, ms since 1970."""

    def make_dir(self, path: str) -> None:
        """Create a directory whose parent exists; one that is there already is harmless."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing what was there."""

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""

    def entries_stamp(self, path: str) -> object:
        """Return what stays equal while no entry of the directory is made, removed or renamed; None if nobody knows."""

    def lock(self, path: str) -> DiskLock:
        """Lock a file exclusively, creating it if missing. Raises BlockingIOError when another holder has it."""

    def is_locked(self, path: str) -> bool:
        """Whether anybody holds the lock on a file that is there; takes none, and asks for no right but to read."""

    def boot_id(self) -> str:
        """Return what changes with each start of the machine; shared memory and caches do not outlive it."""

    def free_bytes(self, path: str) -> int | None:
        """Return how many bytes can still be written where a path is; None where nobody knows."""

    def watch(self, path: str) -> FileWatch | None:
        """Return a watch that tells when the file is written, there or not as yet; None for no such thing."""


# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_FLOCK = struct.Struct("hhqqi4x")
_F_OFD_GETLK = 36
_F_OFD_SETLK = 37
_LOOK_EVERY = 64
"""So many times a lock is assumed to be held by its own open file, before its path is looked at again."""


_SETTLED_NS = 100_000_000
"""A time of change so long ago, which no tick of a file system's clock reaches, is not given to another change."""


def _load_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return Linux's sync_file_range(2); None where there is none."""
    try:
        found = ctypes.CDLL(None, use_errno=True).sync_file_range
    except (AttributeError, OSError):
        return None
    found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast("Callable[[int, int, int, int], int]", found)


_sync_file_range = _load_sync_file_range()
_NOT_POSSIBLE = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.ESPIPE)
"""What a system or a file system answers that knows no such call."""
_FADVISE: Final = hasattr(os, "posix_fadvise")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_WRITE = 2
_WRITE_AND_WAIT = 7
"""Wait for what is under way in the range, write it, wait for that."""


def may_write(path: str) -> bool:
    """Whether this process may write a file, or make one in a folder; False for what is not there."""
    return os.access(path, os.W_OK, effective_ids=True)


@mypyc_attr(allow_interpreted_subclasses=True)
class OsFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "_lost", "_path", "_same")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._lost = 0  # the errno with which bytes did not get to the disk
        self._same: tuple[int, int] | None = None  # what the path has to lead to, once somebody asked

    def pread(self, size: int, offset: int) -> bytes:
        raw = os.pread(self._fd, size, offset)
        if len(raw) == size or not raw:
            return raw
        chunks = [raw]
        got = len(raw)
        while got < size:
            raw = os.pread(self._fd, size - got, offset + got)
            if not raw:
                break
            chunks.append(raw)
            got += len(raw)
        return b"".join(chunks)

    def pwrite(self, raw: bytes | memoryview, offset: int) -> None:
        written = os.pwrite(self._fd, raw, offset)
        while written < len(raw):
            written += os.pwrite(self._fd, memoryview(raw)[written:], offset + written)

    def write_out(self, size: int, offset: int, *, wait: bool = True) -> None:
        if not wait and size < _PAGE_BYTES and _FADVISE:
            # Pages that are covered whole would be dropped; there is none, and a ctypes call takes twice as long.
            try:
                os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_DONTNEED)
            except OSError as exc:
                if exc.errno not in _NOT_POSSIBLE:
                    self._lost = exc.errno or errno.EIO
        # Not fdatasync: that ends a transaction of the file system's journal, and others wait for it.
        elif _sync_file_range is not None:
            failed = _sync_file_range(self._fd, offset, size, _WRITE_AND_WAIT if wait else _WRITE)
            if failed and ctypes.get_errno() not in _NOT_POSSIBLE:
                self._lost = ctypes.get_errno()

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        if self._lost:  # the system tells an open file of it once, and has
            raise OSError(self._lost, os.strerror(self._lost), self._path)
        os.fdatasync(self._fd)

    def linked(self) -> bool:
        if self._same is None:
            opened = os.fstat(self._fd)
            self._same = (opened.st_dev, opened.st_ino)
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == self._same

    def identity(self) -> int:
        return os.fstat(self._fd).st_ino

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1  # in this order: whatever comes between, no later file's number is closed
            os.close(fd)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open file cannot be copied or pickled")  # its copy would close it

    def __del__(self) -> None:
        self.close()  # a cursor that nobody has closed must not cost its process a file


class OsLock:
    """An open-file-description lock: it excludes a second holder in this process, in another, and Java's own lock.

    A child that was forked shares it. The process that took it gives it back at once, whatever children there are;
    a child that releases its copy gives back nothing.
    """

    __slots__ = ("_changed_ns", "_fd", "_looks", "_owner", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path
        self._owner = os.getpid()
        self._changed_ns = -1
        self._looks = 0

    def held(self, *, look: bool = False) -> bool:
        """Look at the open file alone while nothing was done to it: who removes or renames it changes its ctime.

        Every so often the path is looked at all the same, for file systems that do not, and for changes within one
        tick of their clock.
        """
        if self._fd < 0:
            return False
        opened = os.fstat(self._fd)
        self._looks += 1
        if not opened.st_nlink:
            return False
        if opened.st_ctime_ns == self._changed_ns and self._looks % _LOOK_EVERY and not look:
            return True
        if not _same_file(self._fd, self._path):
            return False
        self._changed_ns = opened.st_ctime_ns
        return True

    def take(self) -> None:
        """Lock it. Raises OSError."""
        fcntl.fcntl(self._fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))

    def release(self) -> None:
        if self._fd >= 0:
            if self._owner == os.getpid():
                fcntl.fcntl(self._fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a lock cannot be copied or pickled")  # its copy would close the file, and give it back

    def __del__(self) -> None:
        self.release()  # an opening that was broken off must not keep the log locked


def _same_file(fd: int, path: str) -> bool:
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


@cache
def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


@mypyc_attr(allow_interpreted_subclasses=True)
class OsDisk:
    """The operating system's files."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> OsFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return OsFile(os.open(path, flags, 0o644), path)

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def make_dir(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def entries_stamp(self, path: str) -> object:
        try:
            found = os.stat(path)
        except OSError:
            return None
        changed_ns = found.st_mtime_ns
        return (found.st_dev, found.st_ino, changed_ns) if time.time_ns() - changed_ns > _SETTLED_NS else None

    def lock(self, path: str) -> OsLock:
        lock = OsLock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), path)
        try:
            lock.take()
        except OSError as exc:
            lock.release()
            if exc.errno in (errno.EAGAIN, errno.EACCES):
                raise BlockingIOError(exc.errno, "locked by another writer", path) from exc
            raise
        if not lock.held():  # replaced between open and lock: the holder of the new file decides
            lock.release()
            raise BlockingIOError(errno.EAGAIN, "the lock file was replaced while locking it", path)
        return lock

    def is_locked(self, path: str) -> bool:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            asked = fcntl.fcntl(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(fd)
        return bool(_FLOCK.unpack(asked)[0] != fcntl.F_UNLCK)

    def free_bytes(self, path: str) -> int | None:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def watch(self, path: str) -> FileWatch | None:
        return watch_file(path)

    def boot_id(self) -> str:
        return _boot_id()


OS_DISK: Final = OsDisk()
"""The disk of whoever names no other."""

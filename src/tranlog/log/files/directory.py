"""A log's directory: made, listed, locked for its one writer, and what is cut off kept in it.

Owns the names in it, the lock file and the word in it, the folder of what was cut, and which error of ours a refusal of
the operating system is. What stands in the segments is others'.

Source: docs/format.md.
"""

from __future__ import annotations

import errno
import gc
import os
import posixpath
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tranlog.disk import Disk, DiskFile, DiskLock
from tranlog.errors import DiskFailedError, DiskFullError, LogError, LogLockedError, LogMissingError, LogUnreadableError
from tranlog.ids import segment_number
from tranlog.log.files.segment import WINDOW_BYTES

LOCK_NAME = "disklog.lck"
CUT_DIR = "cut"
RESTORING_NAME = "restoring"
"""While this file is there, one log is being put in place of another, and nobody opens either."""

DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What the operating system says when there is no room."""
_DENIED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
_HOLDER_BYTES = 64


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise LogUnreadableError for what the operating system refuses meanwhile."""
    try:
        yield
    except OSError as exc:
        raise LogUnreadableError(path=path, why=exc.strerror or str(exc)) from exc


def open_file(path: str, disk: Disk) -> DiskFile:
    """Open a file of a log for reading. Raises FileNotFoundError, LogUnreadableError."""
    try:
        return disk.open(path)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise LogUnreadableError(path=path, why=exc.strerror or str(exc)) from exc


def make_directory(path: str, disk: Disk) -> None:
    """Create the log's directory if it is missing. Raises LogMissingError without a parent, and OSError."""
    if disk.exists(path):
        return
    parent = posixpath.dirname(path) or "."
    if not disk.exists(parent):
        raise LogMissingError(path=path, why=f"the directory {parent} does not exist")
    try:
        disk.make_dir(path)
    except NotADirectoryError as exc:
        raise LogMissingError(path=path, why=f"{parent} is not a directory") from exc


def take_lock(path: str, disk: Disk, name: str = LOCK_NAME) -> DiskLock:
    """Lock the log for its one writer by its lock file. Raises LogLockedError naming the holder, and OSError."""
    try:
        try:
            return disk.lock(join(path, name))
        except BlockingIOError:
            gc.collect()  # of a log that nobody could close: an exception came before its opening returned
            return disk.lock(join(path, name))
    except NotADirectoryError as exc:
        raise LogMissingError(path=path, why="it is not a directory") from exc
    except BlockingIOError as exc:
        raise LogLockedError(path=path, holder=read_holder(path, disk, name)) from exc


def sign_lock(path: str, disk: Disk, name: str = LOCK_NAME) -> None:
    """Write into the lock file who holds it, for messages."""
    with closing(disk.open(join(path, name), write=True)) as file:
        file.pwrite(f"pid {os.getpid()}".ljust(_HOLDER_BYTES - 1).encode() + b"\n", 0)


def read_holder(path: str, disk: Disk, name: str = LOCK_NAME) -> str:
    """Return what the last writer of the log at `path` left in its lock file: `pid 4711`; `unknown` without it."""
    try:
        with closing(disk.open(join(path, name))) as file:
            return file.pread(_HOLDER_BYTES, 0).decode(errors="replace").strip() or "unknown"
    except OSError:
        return "unknown"


def storage_error(exc: OSError, path: str) -> LogError:
    """Return our error for what the operating system refused while the log was opened."""
    why = exc.strerror or str(exc)
    if exc.errno in DISK_FULL:
        return DiskFullError(path=path)
    if exc.errno in _DENIED:
        return LogUnreadableError(path=path, why=why)
    return DiskFailedError(path=path, why=why)


@contextmanager
def storing(path: str) -> Iterator[None]:
    """Raise `storage_error` for what the operating system refuses meanwhile."""
    try:
        yield
    except OSError as exc:
        raise storage_error(exc, path) from exc


def replace_file(path: str, raw: bytes, disk: Disk) -> None:
    """Write a whole file, durable; what was there stays until it is replaced. Raises OSError."""
    fresh = f"{path}.new"
    with closing(disk.open(fresh, write=True, create=True)) as file:
        file.truncate(0)
        file.pwrite(raw, 0)
        file.sync()
    disk.rename(fresh, path)
    disk.sync_dir(posixpath.dirname(path))


def keep_bytes(path: str, disk: Disk, file: DiskFile, name: str, start: int, end: int) -> str:
    """Copy bytes `start` to `end` of an open segment into cut/, durable; return the copy's path. Raises OSError."""
    directory = join(path, CUT_DIR)
    disk.make_dir(directory)
    disk.sync_dir(path)
    stem = f"{name}-{start:010d}"
    kept, count = join(directory, stem), 1
    while disk.exists(kept):
        count += 1
        kept = join(directory, f"{stem}.{count}")
    with closing(disk.open(kept, write=True, create=True)) as copy:
        try:
            for at in range(start, end, WINDOW_BYTES):
                copy.pwrite(file.pread(min(WINDOW_BYTES, end - at), at), at - start)
            copy.sync()
        except OSError:
            disk.unlink(kept)
            raise
    disk.sync_dir(directory)
    return kept


def directory_of(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a log's directory, however its opener writes it: a chdir changes nothing afterwards.

    Raises LogMissingError where none can be.
    """
    directory = os.fsdecode(path)
    if not directory:
        raise LogMissingError(path="''", why="an empty path names no directory")
    if "\0" in directory:
        raise LogMissingError(path=repr(directory), why="no path holds a NUL character")
    return os.path.join(os.getcwd(), directory).rstrip("/") or "/"


def join(directory: str, name: str) -> str:
    """Return the path of a file in a log's directory."""
    return f"{directory.rstrip('/')}/{name}"


def list_names(directory: str, disk: Disk) -> list[str]:
    """Return the names in a log's directory, sorted. Raises LogMissingError, LogUnreadableError."""
    try:
        names = disk.list_dir(directory)
    except FileNotFoundError as exc:
        raise LogMissingError(path=directory, why="the directory does not exist") from exc
    except NotADirectoryError as exc:
        raise LogMissingError(path=directory, why="it is not a directory") from exc
    except OSError as exc:
        raise LogUnreadableError(path=directory, why=exc.strerror or str(exc)) from exc
    if RESTORING_NAME in names:
        raise LogUnreadableError(path=directory, why="its node is replacing the log", remedy="Wait until it has")
    return names


def list_segments(directory: str, disk: Disk) -> list[int]:
    """Return the numbers of the segments in a directory, rising. Raises LogMissingError, LogUnreadableError."""
    numbers = [segment_number(name) for name in list_names(directory, disk)]
    return sorted(number for number in numbers if number is not None)

"""Being told that a file was written: Linux's inotify, one instance and one watch per file for a whole process.

Owns the descriptor, what the system tells through it, and who is woken by that. The hard idea: there is no thread. Of
those who wait, one reads the descriptor for all, and hands over to another when its own wait is over. A ticket taken
before looking at the file makes sure that nothing between looking and waiting is lost: what came since then ends the
wait at once.

Nothing here is needed for an answer to be right: where the system cannot watch, or does not tell (files of another
machine), `FileWatch.ticket` says so, and its owner looks by itself now and then.

Source: inotify(7); docs/format.md; docs/performance.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
import time
from typing import Any, Final

_EVENT: Final = struct.Struct("iIII")
"""struct inotify_event before its name: wd, mask, cookie, length of the name."""
_READ_BYTES: Final = 64 * 1024

_MODIFY: Final = 0x2
_ATTRIB: Final = 0x4
_DELETE_SELF: Final = 0x400
_MOVE_SELF: Final = 0x800
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_WANTED: Final = _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF
_GONE: Final = _ATTRIB | _DELETE_SELF | _MOVE_SELF | _IGNORED  # the path may lead to another file now

_MISSES: Final = 3
"""After so many changes in a row of which the system told nothing, it is not relied upon for that file."""


class FileWatch:
    """A file that is watched, shared by all who wait for it in this process; from `watch_file` only. Threads: any."""

    __slots__ = ("_generation", "_misses", "_path", "_users", "_wd")

    def __init__(self, path: str) -> None:
        self._path = path
        self._users = 0
        self._wd = -1
        self._generation = 0
        self._misses = 0

    def ticket(self) -> int | None:
        """Return what to give to `wait`, before the file is looked at; None where the system does not tell."""
        return _notices.ticket(self)

    def wait(self, ticket: int, timeout_s: float) -> bool:
        """Return true as soon as something was done to the file since the ticket, false after `timeout_s`."""
        return _notices.wait(self, ticket, timeout_s)

    def missed(self) -> None:
        """Say that the file had changed although nothing was told."""
        self._misses += 1

    def close(self) -> None:
        """Give up the use of it; once for each `watch_file`."""
        _notices.leave(self)


class _Notices:
    """The process's inotify instance. Threads: any; `_changed`'s lock guards everything but the reading itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # reentrant: Ctrl-C may come between taking it and being inside
        self._fd = -1
        self._reading = False  # one of those who wait reads for all
        self._by_path: dict[str, FileWatch] = {}
        self._by_wd: dict[int, list[FileWatch]] = {}  # two paths may lead to one file

    def after_fork(self) -> None:
        """In the child: let go of the parent's instance, whose events would go to either of them by chance."""
        self._changed = threading.Condition()
        self._reading = False
        self._by_wd = {}
        for watch in self._by_path.values():
            watch._wd = -1
            watch._generation += 1
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def enter(self, path: str) -> FileWatch:
        with self._changed:
            watch = self._by_path.get(path)
            if watch is None:
                watch = self._by_path[path] = FileWatch(path)
            watch._users += 1
            return watch

    def leave(self, watch: FileWatch) -> None:
        with self._changed:
            watch._users -= 1
            if watch._users > 0 or self._by_path.get(watch._path) is not watch:
                return
            del self._by_path[watch._path]
            self._forget(watch)
            if not self._by_path and self._fd >= 0 and not self._reading:
                os.close(self._fd)
                self._fd = -1

    def ticket(self, watch: FileWatch) -> int | None:
        with self._changed:
            if watch._misses >= _MISSES or (watch._wd < 0 and not self._add(watch)):
                return None
            return watch._generation

    def wait(self, watch: FileWatch, ticket: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while watch._generation == ticket:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                if self._reading or self._fd < 0:
                    self._changed.wait(left)
                else:
                    self._read(left)
            watch._misses = 0
            return True

    def _read(self, timeout_s: float) -> None:
        """Wait for events and take them, the lock free meanwhile; then let another one read."""
        changed, fd = self._changed, self._fd
        self._reading = True
        changed.release()
        raw = b""
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if poll.poll(max(timeout_s * 1000, 1)):
                raw = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            pass
        finally:
            changed.acquire()
            self._reading = False
            self._take(raw)
            changed.notify_all()

    def _take(self, raw: bytes) -> None:
        at = 0
        while at + _EVENT.size <= len(raw):
            wd, mask, _, length = _EVENT.unpack_from(raw, at)
            at += _EVENT.size + length
            told = list(self._by_path.values()) if mask & _OVERFLOW else list(self._by_wd.get(wd, ()))
            for watch in told:
                watch._generation += 1
                if mask & _GONE:
                    self._forget(watch)

    def _add(self, watch: FileWatch) -> bool:
        """Have the file at the path watched, whatever file that is now; false where that cannot be."""
        if _libc is None:
            return False
        if self._fd < 0:
            self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                return False
        wd = _libc.inotify_add_watch(self._fd, os.fsencode(watch._path), _WANTED)
        if wd < 0:
            return False
        watch._wd = wd
        self._by_wd.setdefault(wd, []).append(watch)
        return True

    def _forget(self, watch: FileWatch) -> None:
        wd, watch._wd = watch._wd, -1
        sharing = self._by_wd.get(wd)
        if sharing is not None:
            sharing.remove(watch)
            if not sharing:
                del self._by_wd[wd]
                _libc.inotify_rm_watch(self._fd, wd)


def _load() -> Any:
    """Return the C library if it knows inotify, else None."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.inotify_init1.argtypes = (ctypes.c_int,)
        library.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
        library.inotify_rm_watch.argtypes = (ctypes.c_int, ctypes.c_int)
    except (AttributeError, OSError):
        return None
    return library


_libc = _load()
_notices = _Notices()
os.register_at_fork(after_in_child=_notices.after_fork)


def watch_file(path: str) -> FileWatch:
    """Return the watch of a file, which may be missing as yet; `close` it when it is not needed any more."""
    return _notices.enter(path)

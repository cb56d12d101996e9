"""A disk in memory that forgets what was not synced: crash, full disk and failing disk, at any call.

Owns the model of what a loss of power leaves. The hard idea: a write is not lost or kept as a whole. Each sector
that was touched since the file's last sync may hold any of the contents that it had since then, the file's length
any of its lengths, and a directory any subset of what was done to its entries since its own last sync. What a
program promises must hold over all of that.

Calls that can change something are numbered from 1, so that a test can run a workload once, and then again with
the power cut at each of them.
"""

from __future__ import annotations

import errno
import posixpath
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The power is gone. Not an Exception, so that nothing in between takes it for an error to handle."""


@dataclass(slots=True)
class _Write:
    offset: int
    raw: bytes


@dataclass(slots=True)
class _Truncate:
    size: int


class _File:
    """A file: what everybody sees, what is on the platter, and what was done in between, in order."""

    __slots__ = ("content", "durable", "modified_ms", "number", "pending")

    def __init__(self, number: int) -> None:
        self.number = number
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[_Write | _Truncate] = []
        self.modified_ms = 0

    def do(self, change: _Write | _Truncate) -> None:
        _apply(self.content, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def after_crash(self, rng: random.Random) -> bytearray:
        """Return what the platter may hold after a loss of power."""
        pending = self.pending
        if not pending:
            return bytearray(self.durable)
        fate = rng.randrange(4)
        if fate == 0:
            return bytearray(self.durable)
        if fate == 1:
            return bytearray(self.content)
        if fate == 2:  # all up to some change
            state = bytearray(self.durable)
            for change in pending[: rng.randrange(len(pending) + 1)]:
                _apply(state, change)
            return state
        # Each sector, and the length, as of some moment of its own.
        state = bytearray(self.durable)
        longest = max(len(state), *(c.offset + len(c.raw) if isinstance(c, _Write) else c.size for c in pending), 0)
        sectors = -(-longest // SECTOR_BYTES)
        moments = [rng.randrange(len(pending) + 1) for _ in range(sectors)]
        length_moment = rng.randrange(len(pending) + 1)
        left = bytearray(sectors * SECTOR_BYTES)
        length = 0
        for moment in range(len(pending) + 1):
            if moment:
                _apply(state, pending[moment - 1])
            if moment == length_moment:
                length = len(state)
            for sector in [s for s in range(sectors) if moments[s] == moment]:
                at = sector * SECTOR_BYTES
                chunk = state[at : at + SECTOR_BYTES]
                left[at : at + len(chunk)] = chunk
        del left[length:]
        left.extend(bytes(length - len(left)))
        return left


def _apply(content: bytearray, change: _Write | _Truncate) -> None:
    match change:
        case _Write(offset=offset, raw=raw):
            if offset > len(content):
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(raw)] = raw
        case _Truncate(size=size):
            if size < len(content):
                del content[size:]
            else:
                content.extend(bytes(size - len(content)))


class _Folder:
    """A directory: its entries now, those on the platter, and what was done in between, in order."""

    __slots__ = ("changes", "durable", "entries", "pending")

    def __init__(self) -> None:
        self.changes = 0
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.pending: list[Callable[[dict[str, _Node]], None]] = []

    def do(self, change: Callable[[dict[str, _Node]], None]) -> None:
        change(self.entries)
        self.changes += 1
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            change(self.durable)
        self.pending.clear()

    def after_crash(self, rng: random.Random) -> dict[str, _Node]:
        """Return the entries that the platter may hold after a loss of power."""
        entries = dict(self.durable)
        fate = rng.randrange(3)
        for change in self.pending:
            if fate == 1 or (fate == 2 and rng.random() < 0.5):
                change(entries)
        return entries


_Node = _File | _Folder


def _link(name: str, node: _Node) -> Callable[[dict[str, _Node]], None]:
    def change(entries: dict[str, _Node]) -> None:
        entries[name] = node

    return change


def _unlink(name: str) -> Callable[[dict[str, _Node]], None]:
    def change(entries: dict[str, _Node]) -> None:
        entries.pop(name, None)

    return change


def _rename(old: str, new: str, node: _Node) -> Callable[[dict[str, _Node]], None]:
    def change(entries: dict[str, _Node]) -> None:
        if entries.get(old) is node:
            del entries[old]
        entries[new] = node

    return change


class SimDisk:
    """A `tranlog.disk.Disk` in memory. Paths are absolute; "/" is there from the start. Threads: any.

    Knobs, to be set at any time:
    `cut_at`: the number of the call at which the power goes; from then on every call raises PowerCut.
    `fail_at`: errno by number of a call, raised once. A write has done half by then; a sync has lost what it was
    to carry, while everybody still reads it. With `chance` it has lost a random part of it.
    `room`: bytes by which files may still grow, None for no end; then ENOSPC, what fits is written.
    `read_only`: nothing can be changed (EROFS). `denied`: paths that nobody may open or list (EACCES).
    `broken`: paths that cannot be read (EIO).
    `before_sync`: called at the start of each file's sync, outside any lock.
    `sync_ms`: called for each of these, says how long it takes. The call returns at once all the same: whoever runs
    many disks in one thread takes the time from `waited_ms` and lets it pass.
    """

    def __init__(self, *, boot: int = 1) -> None:
        self._lock = threading.RLock()
        self._root = _Folder()
        self._boot = boot
        self._numbers = 0
        self._locks: set[int] = set()
        self.calls = 0
        """Calls so far that could change something."""
        self.counts: Counter[str] = Counter()
        """The same by kind: open, pwrite, truncate, sync, make_dir, unlink, rename, sync_dir, lock."""
        self.dead = False
        self.cut_at: int | None = None
        self.fail_at: dict[int, int] = {}
        self.chance: random.Random | None = None
        self.room: int | None = None
        self.read_only = False
        self.denied: set[str] = set()
        self.broken: set[str] = set()
        self.before_sync: Callable[[str], None] | None = None
        self.sync_ms: Callable[[], int] | None = None
        self.waited_ms = 0

    # --- crashing ------------------------------------------------------------------------------------

    def after_crash(self, rng: random.Random) -> SimDisk:
        """Return the disk as the machine finds it when it starts again: one of the many that are possible."""
        with self._lock:
            disk = SimDisk(boot=self._boot + 1)
            disk._numbers = self._numbers
            copies: dict[int, _File] = {}

            def copy(folder: _Folder) -> _Folder:
                made = _Folder()
                for name, node in sorted(folder.after_crash(rng).items()):
                    if isinstance(node, _Folder):
                        made.entries[name] = copy(node)
                        continue
                    if node.number not in copies:
                        file = copies[node.number] = _File(node.number)
                        file.content = node.after_crash(rng)
                        file.durable = bytearray(file.content)
                        file.modified_ms = node.modified_ms
                    made.entries[name] = copies[node.number]
                made.durable = dict(made.entries)
                return made

            disk._root = copy(self._root)
            return disk

    def kill(self) -> None:
        """End the process that used this disk, not the machine: locks fall, all that was written stays readable.

        What was not synced is still at risk: it goes with the power, if that goes before the next sync.
        """
        with self._lock:
            self._locks.clear()
            self.dead = False
            self.cut_at = None

    def restart(self) -> None:
        """Start the machine again; by chance the disk had taken everything that was written."""
        with self._lock:
            self.kill()
            self._boot += 1

    def copy_files(self, source: str, target: str) -> None:
        """Copy a directory's files into another, new one, as `cp -r` does: new files, everything synced."""
        with self._lock:
            made = _Folder()
            for name, node in self._folder(source).entries.items():
                if isinstance(node, _File):
                    self._numbers += 1
                    file = made.entries[name] = _File(self._numbers)
                    file.content = bytearray(node.content)
                    file.durable = bytearray(node.content)
            made.durable = dict(made.entries)
            parent, name = self._parent(target)
            parent.entries[name] = parent.durable[name] = made

    def content(self, path: str) -> bytes:
        """Return a file's bytes as everybody sees them."""
        with self._lock:
            return bytes(self._find_file(path).content)

    def set_content(self, path: str, content: bytes) -> None:
        """Replace a file's bytes without a word to anybody, durable at once: what decay or a hand does."""
        with self._lock:
            file = self._find_file(path)
            file.content = bytearray(content)
            file.durable = bytearray(content)
            file.pending.clear()

    # --- Disk ----------------------------------------------------------------------------------------

    def open(self, path: str, *, write: bool = False, create: bool = False) -> SimFile:
        """Open a file."""
        with self._lock:
            self._alive()
            self._allowed(path)
            folder, name = self._parent(path)
            node = folder.entries.get(name)
            if write and self.read_only:
                raise OSError(errno.EROFS, "Read-only file system", path)
            if node is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
                self._changing("open", path)
                self._numbers += 1
                node = _File(self._numbers)
                folder.do(_link(name, node))
            if isinstance(node, _Folder):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            return SimFile(self, node, path, write)

    def list_dir(self, path: str) -> list[str]:
        """Return the entries' names, sorted."""
        with self._lock:
            self._alive()
            self._allowed(path)
            return sorted(self._folder(path).entries)

    def exists(self, path: str) -> bool:
        """Whether the path leads to a file or directory."""
        with self._lock:
            self._alive()
            try:
                folder, name = self._parent(path)
            except OSError:
                return False
            return name == "" or name in folder.entries

    def modified_ms(self, path: str) -> int:
        """Return the file's modification time, ms since 1970."""
        with self._lock:
            self._alive()
            return self._find_file(path).modified_ms

    def make_dir(self, path: str) -> None:
        """Create a directory whose parent exists."""
        with self._lock:
            self._alive()
            folder, name = self._parent(path)
            node = folder.entries.get(name)
            if isinstance(node, _Folder):
                return
            if node is not None:
                raise FileExistsError(errno.EEXIST, "File exists", path)
            self._changing("make_dir", path)
            folder.do(_link(name, _Folder()))

    def unlink(self, path: str) -> None:
        """Remove a file."""
        with self._lock:
            self._alive()
            folder, name = self._parent(path)
            if name not in folder.entries:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            self._changing("unlink", path)
            folder.do(_unlink(name))

    def rename(self, old: str, new: str) -> None:
        """Rename a file inside its directory, replacing what was there."""
        with self._lock:
            self._alive()
            folder, name = self._parent(old)
            other, new_name = self._parent(new)
            assert folder is other, "renaming between directories is not modelled"
            node = folder.entries.get(name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", old)
            self._changing("rename", old)
            folder.do(_rename(name, new_name, node))

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""
        with self._lock:
            self._alive()
            folder = self._folder(path)
            self._changing("sync_dir", path)
            folder.sync()

    def entries_stamp(self, path: str) -> object:
        """Return what stays equal while no entry of the directory is made, removed or renamed."""
        with self._lock:
            self._alive()
            folder = self._folder(path)
            return folder, folder.changes

    def lock(self, path: str) -> SimLock:
        """Lock a file exclusively, creating it if missing."""
        with self._lock:
            self._alive()
            file = self.open(path, write=True, create=True)._file
            if file.number in self._locks:
                raise BlockingIOError(errno.EAGAIN, "locked by another writer", path)
            self._changing("lock", path)
            self._locks.add(file.number)
            return SimLock(self, file, path)

    def is_locked(self, path: str) -> bool:
        """Whether anybody holds the lock on a file that is there."""
        with self._lock:
            self._alive()
            return self._find_file(path).number in self._locks

    def boot_id(self) -> str:
        """Return what changes with each crash."""
        return f"{self._boot:08d}-sim"

    def free_bytes(self, path: str) -> int | None:
        """Return how many bytes files may still grow."""
        return self.room

    def watch(self, path: str) -> None:
        """Watch nothing: readers look by their clock, which a test moves."""

    # --- inside --------------------------------------------------------------------------------------

    def _alive(self) -> None:
        if self.dead:
            raise PowerCut

    def _changing(self, kind: str, path: str) -> int:
        """Number a call; raise what is due at it. Return the errno to fail with after doing half, or 0."""
        if self.read_only:
            raise OSError(errno.EROFS, "Read-only file system", path)
        self.calls += 1
        self.counts[kind] += 1
        if self.calls == self.cut_at:
            self.dead = True
            raise PowerCut
        number = self.fail_at.pop(self.calls, 0)
        if number and kind not in ("pwrite", "sync"):
            raise OSError(number, f"injected at call {self.calls}", path)
        return number

    def _allowed(self, path: str) -> None:
        if path in self.denied:
            raise PermissionError(errno.EACCES, "Permission denied", path)

    def _folder(self, path: str) -> _Folder:
        node: _Node = self._root
        for part in path.split("/"):
            if not part:
                continue
            if isinstance(node, _File):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            if part not in node.entries:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            node = node.entries[part]
        if isinstance(node, _File):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        assert path.startswith("/"), f"SimDisk knows absolute paths only, not {path!r}"
        folder, name = posixpath.split(path.rstrip("/"))
        return self._folder(folder), name

    def _find_file(self, path: str) -> _File:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if not isinstance(node, _File):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def _leads_to(self, path: str, file: _File) -> bool:
        try:
            return self._find_file(path) is file
        except OSError:
            return False


class SimFile:
    """An open file of a SimDisk."""

    def __init__(self, disk: SimDisk, file: _File, path: str, write: bool) -> None:
        self._disk = disk
        self._file = file
        self._path = path
        self._write = write
        self._closed = False

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        with self._disk._lock:
            self._check()
            if self._path in self._disk.broken:
                raise OSError(errno.EIO, "Input/output error", self._path)
            return bytes(self._file.content[offset : offset + size])

    def pwrite(self, raw: bytes | memoryview, offset: int) -> None:
        """Write all of `raw` at `offset`, or a part of it and raise."""
        disk = self._disk
        with disk._lock:
            self._check()
            assert self._write, "the file was opened for reading"
            failure = disk._changing("pwrite", self._path)
            size = len(self._file.content)
            if failure:
                self._file.do(_Write(offset, bytes(raw[: len(raw) // 2])))
                raise OSError(failure, f"injected at call {disk.calls}", self._path)
            growth = max(0, offset + len(raw) - size)
            if disk.room is not None and growth > disk.room:
                fits = len(raw) - (growth - disk.room)
                if fits > 0:
                    self._file.do(_Write(offset, bytes(raw[:fits])))
                    disk.room = 0
                raise OSError(errno.ENOSPC, "No space left on device", self._path)
            if disk.room is not None:
                disk.room -= growth
            self._file.do(_Write(offset, bytes(raw)))

    def write_out(self, size: int, offset: int, *, wait: bool = True) -> None:
        """Change nothing: what is not synced may be lost, whatever was on its way."""

    def size(self) -> int:
        """Return the file's length."""
        with self._disk._lock:
            self._check()
            return len(self._file.content)

    def truncate(self, size: int) -> None:
        """Set the file's length."""
        with self._disk._lock:
            self._check()
            self._disk._changing("truncate", self._path)
            if self._disk.room is not None:
                self._disk.room += len(self._file.content) - size
            self._file.do(_Truncate(size))

    def sync(self) -> None:
        """Make the file's bytes and length durable."""
        disk = self._disk
        if disk.before_sync is not None:
            disk.before_sync(self._path)
        if disk.sync_ms is not None:
            disk.waited_ms += disk.sync_ms()
        with disk._lock:
            self._check()
            failure = disk._changing("sync", self._path)
            if failure:
                # The system takes the pages for written, and they are not: no later sync carries them.
                if disk.chance is not None:
                    self._file.durable = self._file.after_crash(disk.chance)
                self._file.pending.clear()
                raise OSError(failure, f"injected at call {disk.calls}", self._path)
            self._file.sync()

    def linked(self) -> bool:
        """Whether the path that was opened still leads to this very file."""
        with self._disk._lock:
            self._check()
            return self._disk._leads_to(self._path, self._file)

    def identity(self) -> int:
        """Return the file's number."""
        return self._file.number

    def close(self) -> None:
        """Close; closing twice is harmless."""
        self._closed = True

    def _check(self) -> None:
        self._disk._alive()
        if self._closed:
            raise OSError(errno.EBADF, "Bad file descriptor", self._path)


class SimLock:
    """A lock on a SimDisk; it falls with the power."""

    def __init__(self, disk: SimDisk, file: _File, path: str) -> None:
        self._disk = disk
        self._file = file
        self._path = path
        self._released = False

    def held(self, *, look: bool = False) -> bool:
        """Whether the lock file is still the one that was locked."""
        with self._disk._lock:
            self._disk._alive()
            return not self._released and self._disk._leads_to(self._path, self._file)

    def release(self) -> None:
        """Give the lock back; releasing twice is harmless."""
        with self._disk._lock:
            if not self._released:
                self._released = True
                self._disk._locks.discard(self._file.number)

"""SQLite on a `SimDisk`: its own code, its files where the power can go.

Owns the translation from SQLite's VFS to the calls of that disk. A directory is synced where SQLite's own VFS for Unix
does it: with the first sync of a file that was created, and where a delete asks for it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any

import apsw

from tranlog.testing.disk import PowerCut, SimDisk, SimFile

_POWERSAFE_OVERWRITE = apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


def _told(call: Callable[..., Any]) -> Callable[..., Any]:
    """Have a failure of the disk be SQLite's: what it then does goes on, and ends in an error of its own."""

    def wrapped(*args: Any) -> Any:
        try:
            return call(*args)
        except (OSError, PowerCut) as exc:
            raise apsw.IOError(str(exc)) from None

    return wrapped


class SimVfs(apsw.VFS):
    """SQLite's files on one disk; `connect` opens a database there. Close it when its connections are closed."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._name = f"sim-{id(disk):x}"
        super().__init__(self._name, base="")

    def connect(self, path: str) -> apsw.Connection:
        """Open a database."""
        return apsw.Connection(path, vfs=self._name)

    def xFullPathname(self, name: str) -> str:
        """Return the path."""
        return name

    @_told
    def xAccess(self, name: str, flags: int) -> bool:
        """Whether the file is there."""
        return self._disk.exists(name)

    @_told
    def xDelete(self, name: str, sync_dir: bool) -> None:
        """Remove a file."""
        if not self._disk.exists(name):
            raise apsw.IOError("no such file")
        self._disk.unlink(name)
        if sync_dir:
            self._disk.sync_dir(posixpath.dirname(name))

    @_told
    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> _SqliteFile:
        """Open a file, creating it where SQLite says so."""
        assert name is not None, "SQLite keeps what is temporary in memory"
        path = name if isinstance(name, str) else name.filename()
        create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        made = create and not self._disk.exists(path)
        flags[1] = flags[0]
        write = bool(flags[0] & apsw.SQLITE_OPEN_READWRITE)
        return _SqliteFile(self._disk, self._disk.open(path, write=write, create=create), path, made)


class _SqliteFile:
    """An open file as SQLite sees it."""

    def __init__(self, disk: SimDisk, file: SimFile, path: str, made: bool) -> None:
        self._disk = disk
        self._file = file
        self._path = path
        self._made = made

    @_told
    def xRead(self, amount: int, offset: int) -> bytes:
        return self._file.pread(amount, offset)

    @_told
    def xWrite(self, data: bytes, offset: int) -> None:
        self._file.pwrite(bytes(data), offset)

    @_told
    def xTruncate(self, size: int) -> None:
        self._file.truncate(size)

    @_told
    def xSync(self, flags: int) -> None:
        self._file.sync()
        if self._made:
            self._disk.sync_dir(posixpath.dirname(self._path))
            self._made = False

    @_told
    def xFileSize(self) -> int:
        return self._file.size()

    def xClose(self) -> None:
        self._file.close()

    def xLock(self, level: int) -> None:
        """The store's lock keeps others out."""

    def xUnlock(self, level: int) -> None:
        """As `xLock`."""

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 512

    def xDeviceCharacteristics(self) -> int:
        return _POWERSAFE_OVERWRITE

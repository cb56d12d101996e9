"""A node's log, read by remote clients: its files as they are, read-only.

Owns which files a reader may see, and which a reader has open; `committed_bytes` says up to where. The hard idea: any
process can read a log beside its writer, without a lock, from the files in its folder. So a remote reader needs only
that folder, and every reader of logs can read a node's.

Source: docs/protocol.md, "Readers".
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tranlog.disk import Disk, DiskFile
from tranlog.errors import LogError
from tranlog.log.files.commit_point import COMMIT_NAME
from tranlog.log.writing.member import MemberLog
from tranlog.replication.acting.committed_bytes import CommittedBytes
from tranlog.replication.acting.transport import Wire
from tranlog.replication.rules.packets import RAW_BYTES_MAX, READABLE, STATE_NAMES, DiskAnswer, DiskCall

READING_THREADS: Final = 4
"""So many read files for a node's readers: they wait for the disk there, and nobody else does."""
FILES_MAX: Final = 256
"""So many files may one reader have open."""
_PLAIN: Final = re.compile(r"[\w-][\w.-]*")


class ServedLog:
    """The readers of one node. Threads: the event loop's only; the files are read in others."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._readers: dict[Wire, _Reader] = {}
        self._committed: CommittedBytes | None = None
        self.executor = ThreadPoolExecutor(READING_THREADS, "node reading")
        self._ended = False

    def take(self, wire: Wire, call: DiskCall, size: int, state: int, log: MemberLog | None) -> None:
        """Take a reader's packet, of a node in that state that writes that log."""
        if self._ended or call.call not in CALLS:
            wire.end("this node ends" if self._ended else f"there is no call {call.call[:40]!r}", warn=not self._ended)
        elif state not in READABLE or log is None:
            why = f"this node is {STATE_NAMES[state]}, and serves no reads"
            wire.send(DiskAnswer(number=call.number, errno=errno.EAGAIN, why=why))
        else:
            soon = asyncio.get_running_loop().call_soon_threadsafe
            if self._committed is None or self._committed.log is not log:
                self._committed = CommittedBytes(log)
            reader = self._readers.setdefault(wire, _Reader(wire, self._path, self._disk, self._committed))
            if reader.committed is self._committed:
                self.executor.submit(reader.answer, call, size, soon)
                return
            wire.end("this node's log was replaced: open it again", warn=False)
        wire.done(size)

    def lost(self, wire: Wire) -> None:
        """A connection has ended: close what its reader had open."""
        reader = self._readers.pop(wire, None)
        if reader is not None:
            reader.close()

    async def close(self) -> None:
        """Close, after the calls that are running."""
        self._ended = True
        await asyncio.to_thread(self.executor.shutdown)
        for reader in self._readers.values():
            reader.close()


@dataclass(slots=True)
class _Opened:
    """A file that a reader has open. `chunk`: the bytes of a spill segment that it may have, from the last look on."""

    name: str
    file: DiskFile
    chunk: tuple[int, int] = (0, 0)


class _Reader:
    """What a node knows of one reader. Threads: `close` in the event loop, `answer` in any."""

    def __init__(self, wire: Wire, path: str, disk: Disk, committed: CommittedBytes) -> None:
        self.committed = committed
        """Of the one log that it reads."""
        self._wire = wire
        self._path = path
        self._disk = disk
        self._files: dict[int, _Opened] = {}
        self._numbers = itertools.count(1)
        self._gone = False

    def close(self) -> None:
        """The reader is gone: let go of its files."""
        self._gone = True
        for number in list(self._files):
            self._drop(number)

    def _drop(self, number: int) -> None:
        found = self._files.pop(number, None)
        if found is not None:
            found.file.close()

    def answer(self, call: DiskCall, size: int, soon: Callable[..., object]) -> None:
        """Do what a call says, and have the answer sent; `soon` calls something in the event loop."""
        try:
            told = CALLS[call.call](self, call)
        except OSError as exc:
            told = DiskAnswer(number=call.number, errno=exc.errno or errno.EIO, why=exc.strerror or str(exc))
        except LogError as exc:
            told = DiskAnswer(number=call.number, errno=errno.EAGAIN, why=str(exc))
        if self._gone:
            self.close()
        soon(self._send, told, size)

    def _send(self, told: DiskAnswer, size: int) -> None:
        if not self._wire.send(told):
            self._wire.cut()
        self._wire.done(size)

    def _place(self, call: DiskCall) -> str:
        """Return the path of what a call names. Raises FileNotFoundError for what is not a reader's to see."""
        if not call.name:
            return self._path
        if call.name == COMMIT_NAME or _PLAIN.fullmatch(call.name):
            return f"{self._path.rstrip('/')}/{call.name}"
        raise FileNotFoundError(errno.ENOENT, "no file of the log")

    def _opened(self, call: DiskCall) -> _Opened:
        found = self._files.get(call.file)
        if found is None:
            raise OSError(errno.EBADF, f"no open file {call.file}")
        return found

    def open(self, call: DiskCall) -> DiskAnswer:
        """Open a file: its number, and its identity."""
        if len(self._files) >= FILES_MAX:
            raise OSError(errno.EMFILE, f"{FILES_MAX} files are open already")
        file, number = self._disk.open(self._place(call)), next(self._numbers)
        self._files[number] = _Opened(call.name, file)
        return _told(call, number, str(file.identity()).encode())

    def pread(self, call: DiskCall) -> DiskAnswer:
        """Read bytes; fewer than were asked for only at the file's end, and where what is not committed begins."""
        opened = self._opened(call)
        end = self.committed.end_of(opened.name, opened.file)
        if end is None:
            begin, end = opened.chunk
            if not begin <= call.offset < end:
                end = self.committed.chunk_end(opened.name, opened.file, call.offset)
                opened.chunk = call.offset, end or 0
        size = min(call.size, RAW_BYTES_MAX) if end is None else min(call.size, RAW_BYTES_MAX, end - call.offset)
        return _told(call, raw=opened.file.pread(size, call.offset) if size > 0 else b"")

    def size(self, call: DiskCall) -> DiskAnswer:
        """A file's length, of a segment as far as it is committed."""
        opened = self._opened(call)
        end = self.committed.end_of(opened.name, opened.file)
        return _told(call, opened.file.size() if end is None else end)

    def linked(self, call: DiskCall) -> DiskAnswer:
        """Whether its name still leads to that very file."""
        return _told(call, self._opened(call).file.linked())

    def close_file(self, call: DiskCall) -> DiskAnswer:
        """Close a file."""
        self._drop(call.file)
        return _told(call)

    def list_dir(self, call: DiskCall) -> DiskAnswer:
        """The names in the folder."""
        return _told(call, raw="\0".join(self._disk.list_dir(self._place(call))).encode())

    def exists(self, call: DiskCall) -> DiskAnswer:
        """Whether there is such a name."""
        return _told(call, self._disk.exists(self._place(call)))

    def modified_ms(self, call: DiskCall) -> DiskAnswer:
        """When a file was written last."""
        return _told(call, self._disk.modified_ms(self._place(call)))

    def entries_stamp(self, call: DiskCall) -> DiskAnswer:
        """What stays equal while the folder's names do."""
        found = self._disk.entries_stamp(self._place(call))
        return _told(call, found is not None, repr(found).encode())

    def boot_id(self, call: DiskCall) -> DiskAnswer:
        """What changes with each start of the node's machine."""
        return _told(call, raw=self._disk.boot_id().encode())


CALLS: Final[Mapping[str, Callable[[_Reader, DiskCall], DiskAnswer]]] = {
    "open": _Reader.open,
    "pread": _Reader.pread,
    "size": _Reader.size,
    "linked": _Reader.linked,
    "close": _Reader.close_file,
    "list": _Reader.list_dir,
    "exists": _Reader.exists,
    "modified": _Reader.modified_ms,
    "stamp": _Reader.entries_stamp,
    "boot": _Reader.boot_id,
}
"""What a reader may ask for."""


def _told(call: DiskCall, value: int = 0, raw: bytes = b"") -> DiskAnswer:
    return DiskAnswer(number=call.number, value=int(value), raw=raw)

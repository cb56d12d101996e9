"""What was written last, still in memory: readers at the end of the log need not ask the file for it.

Owns the bytes and the counts of who found what where. The hard idea: pieces hold whole records, so a read that begins
inside one never needs what stands after it in the file.

Source: vlsn-index.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import replace

from tranlog.disk import DiskFile
from tranlog.forking import freed
from tranlog.log.options import ReadCounts

RECENT_BYTES = 256 * 1024
"""What is kept, in all; at least half of it."""


class _Run:
    """Pieces side by side, of one segment, up to offset `end`."""

    __slots__ = ("end", "number", "pieces", "starts")

    def __init__(
        self, number: int, starts: list[int] | None = None, pieces: list[bytes] | None = None, end: int = -1
    ) -> None:
        self.number = number
        self.starts: list[int] = starts or []
        self.pieces: list[bytes] = pieces or []
        self.end = end


class RecentPieces:
    """The last pieces of the newest segment, side by side.

    Threads: one writes, any number read. A reader takes one run of pieces, which only grows: who is to be dropped from
    it is left behind in it, and the rest goes on in a new one.
    """

    def __init__(self) -> None:
        self.counts = ReadCounts()
        self._lock = threading.Lock()  # guards the counts
        self._run = _Run(0)
        self._total = 0  # bytes of the pieces

    def snapshot(self) -> ReadCounts:
        """Return the counts of this moment."""
        with self._lock:
            return replace(self.counts)

    def put(self, number: int, start: int, piece: bytes) -> None:
        """Keep what was written at `start` of segment `number`; pieces that do not border on it go."""
        run = self._run
        size = len(piece)
        if number != run.number or start != run.end:
            run = _Run(number)
            self._total = 0
        if self._total + size > RECENT_BYTES:
            run = self._newest(run, RECENT_BYTES // 2 - size)
        if size <= RECENT_BYTES:
            run.starts.append(start)
            run.end = start + size
            run.pieces.append(piece)  # last: a reader counts these
            self._total += size
        self._run = run

    def _newest(self, run: _Run, room: int) -> _Run:
        """Return a run of the newest pieces that fit in."""
        first, total = len(run.pieces), 0
        while first and total + len(run.pieces[first - 1]) <= room:
            first -= 1
            total += len(run.pieces[first])
        self._total = total
        return _Run(run.number, run.starts[first:], run.pieces[first:], run.end if total else -1)

    def forked(self) -> None:
        """In a child that was just forked: have no lock that nobody here will free."""
        self._lock = freed(self._lock)

    def forget(self) -> None:
        """Drop everything: the file was cut, or another segment begins."""
        self._run = _Run(0)
        self._total = 0

    def read(self, number: int, size: int, offset: int) -> bytes | None:
        """Return up to `size` bytes from `offset`, as far as they are here; None if `offset` is not."""
        run = self._run
        starts, pieces = run.starts, run.pieces
        count = len(pieces)  # what is put meanwhile is not seen
        at = bisect_right(starts, offset, 0, count) - 1
        if number != run.number or at < 0 or offset >= starts[at] + len(pieces[at]):
            with self._lock:
                self.counts.file += 1
            return None
        begin = offset - starts[at]
        found = pieces[at][begin : begin + size]
        with self._lock:
            if at == count - 1:
                self.counts.just_written += 1
            else:
                self.counts.recent += 1
        while len(found) < size and at < count - 1:
            at += 1
            found += pieces[at][: size - len(found)]
        return found


class RecentFile:
    """A segment opened for reading in the writer's own process: memory first, then the file."""

    __slots__ = ("_file", "_number", "_recent")

    def __init__(self, file: DiskFile, number: int, recent: RecentPieces) -> None:
        self._file = file
        self._number = number
        self._recent = recent

    def pread(self, size: int, offset: int) -> bytes:
        found = self._recent.read(self._number, size, offset)
        return self._file.pread(size, offset) if found is None else found

    def pwrite(self, raw: bytes | memoryview, offset: int) -> None:
        raise AssertionError("readers do not write")

    def write_out(self, size: int, offset: int, *, wait: bool = True) -> None:
        raise AssertionError("readers do not write")

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        raise AssertionError("readers do not write")

    def sync(self) -> None:
        self._file.sync()

    def linked(self) -> bool:
        return self._file.linked()

    def identity(self) -> int:
        return self._file.identity()

    def close(self) -> None:
        self._file.close()

"""What was written last, still in memory: readers at the end of the log need not ask the file for it.

Owns the bytes and the counts of who found what where. The hard idea: pieces hold whole records, so a read that begins
inside one never needs what stands after it in the file.

Source: vlsn-index.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from tranlog.disk import DiskFile
from tranlog.forking import freed
from tranlog.log.options import ReadCounts

RECENT_BYTES = 256 * 1024
"""What is kept, in all."""
_PIECES = 128
"""So many pieces are kept at most: each commit copies their row."""


class RecentPieces:
    """The last pieces of the newest segment, side by side.

    Threads: one writes, any number read; what they see is replaced as a whole.
    """

    def __init__(self) -> None:
        self.counts = ReadCounts()
        self._lock = threading.Lock()  # guards the counts
        self._number = 0
        self._pieces: tuple[tuple[int, bytes], ...] = ()
        self._total = 0  # bytes of the pieces

    def snapshot(self) -> ReadCounts:
        """Return the counts of this moment."""
        with self._lock:
            return replace(self.counts)

    def put(self, number: int, start: int, piece: bytes) -> None:
        """Keep what was written at `start` of segment `number`; pieces that do not border on it go."""
        pieces, total = self._pieces, self._total + len(piece)
        if number != self._number or not pieces or pieces[-1][0] + len(pieces[-1][1]) != start:
            pieces, total = (), len(piece)
        first = max(len(pieces) + 1 - _PIECES, 0)
        total -= sum([len(one) for _, one in pieces[:first]])
        while total > RECENT_BYTES and first < len(pieces):
            total -= len(pieces[first][1])
            first += 1
        # Never a moment in which old pieces stand under the new number.
        self._pieces = ()
        self._number = number
        self._total = total if total <= RECENT_BYTES else 0
        self._pieces = (*pieces[first:], (start, piece)) if total <= RECENT_BYTES else ()

    def forked(self) -> None:
        """In a child that was just forked: have no lock that nobody here will free."""
        self._lock = freed(self._lock)

    def forget(self) -> None:
        """Drop everything: the file was cut, or another segment begins."""
        self._pieces = ()
        self._total = 0

    def read(self, number: int, size: int, offset: int) -> bytes | None:
        """Return up to `size` bytes from `offset`, as far as they are here; None if `offset` is not."""
        pieces = self._pieces
        if not pieces or number != self._number or offset < pieces[0][0]:
            with self._lock:
                self.counts.file += 1
            return None
        last = len(pieces) - 1
        at = last
        while at and offset < pieces[at][0]:
            at -= 1
        start, piece = pieces[at]
        if offset >= start + len(piece):
            with self._lock:
                self.counts.file += 1
            return None
        found = piece[offset - start : offset - start + size]
        while len(found) < size and at < last:
            at += 1
            found += pieces[at][1][: size - len(found)]
        with self._lock:
            if offset >= pieces[last][0]:
                self.counts.just_written += 1
            else:
                self.counts.recent += 1
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

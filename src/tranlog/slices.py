"""How the bytes of a large transaction are written, so that small commits beside it wait for little.

Owns the sizes in which such bytes are cut, the cutting, and the decision when they go to the disk. Who writes them,
and lets others go first in between, is `allocation` and `spilling`. The hard idea: a file takes one write at a time,
and a disk carries out a sync after whatever it was given before; so nothing large may be given to either at once.

Source: docs/performance.md, "A gigabyte in flight".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

SLICE_BYTES = 64 * 1024
"""How much is written at once: while it is, nobody else can write into the segment."""
SEND_BYTES = 2 << 20
"""After so many bytes they are sent to the disk, so that the system never makes those wait who write little."""
SEND_BESIDE_BYTES = 512 * 1024
"""After so many while others sync: theirs waits behind what is on its way to the disk."""


class Outflow:
    """What was written to a file, from some offset on, and not yet sent to the disk."""

    __slots__ = ("_begin", "_beside_until", "_end", "_syncs")

    def __init__(self, begin: int, syncs: int) -> None:
        """`syncs`: how many the log has had so far. Others are taken to commit until they are seen not to."""
        self._begin = self._end = begin
        self._beside_until = begin + SEND_BYTES
        self._syncs = syncs

    def wrote(self, end: int) -> None:
        """Take note that everything before offset `end` is written."""
        self._end = end

    def due(self, syncs: int) -> tuple[int, int] | None:
        """Return size and offset of what to send now, and count it as sent; None for nothing yet."""
        if syncs != self._syncs:
            self._syncs = syncs
            self._beside_until = self._end + SEND_BYTES
        size = SEND_BESIDE_BYTES if self._end < self._beside_until else SEND_BYTES
        begin = self._begin
        if self._end - begin < size:
            return None
        self._begin += size
        return size, begin


def slices(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Return the same bytes in parts of up to `SLICE_BYTES`: short pieces joined, long ones cut without a copy.

    Lazy: what follows a part is asked for once the part was taken.
    """
    row: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if row and size + len(piece) > SLICE_BYTES:
            yield b"".join(row)
            row, size = [], 0
        if len(piece) >= SLICE_BYTES:
            view = memoryview(piece)
            for begin in range(0, len(piece), SLICE_BYTES):
                yield view[begin : begin + SLICE_BYTES]
        elif piece:
            row.append(piece)
            size += len(piece)
    if row:
        yield b"".join(row)

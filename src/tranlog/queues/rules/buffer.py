"""Records that were put and are not written yet, and their places.

Owns the place of each record in the newest container, and where groups begin and end. The hard idea: a group may stand
in two containers, and the first may be durable earlier. Nothing of the group is shown until all of it is durable.
"""

from __future__ import annotations

from collections.abc import Iterable

from tranlog.ids import Lsn
from tranlog.lsn import lsn
from tranlog.queues.rules.encoding import encode
from tranlog.queues.rules.records import CONTROL, FIRST, HEADER_BYTES

_END = bytes(4)
"""A record_length of 0: what stands behind the last record."""


class RecordBuffer:
    """The end of the newest container, `number`. The store's lock guards it.

    `end` is the offset after everything, `written` the one after what is written. `sync_ahead`: a prepared Sync record,
    with the place, the durable end and the counter for which it was made.
    """

    __slots__ = ("_group", "_pieces", "_spanning", "end", "number", "sync_ahead", "written")

    def __init__(self, number: int, end: int) -> None:
        self._group = Lsn(0)  # where the last group begins
        self._spanning = (Lsn(0), Lsn(0))  # begin and end of the last one that is in more than one container
        self._pieces: list[bytes] = []
        self.sync_ahead: tuple[tuple[Lsn, Lsn, int], bytes] = (Lsn(0), Lsn(0), 0), b""
        self.go(number, end)

    def go(self, number: int, end: int = HEADER_BYTES) -> None:
        """Continue in a container; nothing is pending."""
        self.number = number
        self.end = self.written = end

    @property
    def place(self) -> Lsn:
        """The place after everything."""
        return Lsn(self.number << 32 | self.end)

    @property
    def unwritten(self) -> Lsn:
        """The place up to which everything is written."""
        return lsn(self.number, self.written)

    def put(self, record_type: int, flags: int, epoch: int, undo_prev: Lsn, body: bytes) -> Lsn:
        """Put a record that has room; return its place."""
        place = Lsn(self.number << 32 | self.end)
        raw = encode(record_type, flags, epoch, place, undo_prev, body)
        self._pieces.append(raw)
        self.end += len(raw)
        if flags & FIRST:
            self._group = place
        elif record_type not in CONTROL and self._group >> 32 != self.number:
            self._spanning = self._group, self.place
        return place

    def put_sync(self, raw: bytes) -> None:
        """Put a Sync record, which has room and belongs to no group."""
        self._pieces.append(raw)
        self.end += len(raw)

    def put_whole(self, pieces: Iterable[bytes], size: int) -> None:
        """Put the records of whole groups, of `size` bytes in all, which have room."""
        self._group = self.place
        self._pieces.extend(pieces)
        self.end += size

    def shown(self, durable: Lsn) -> Lsn:
        """Return up to where all groups are durable as a whole."""
        begin, end = self._spanning
        return begin if begin < durable < end else durable

    def pending(self, container_bytes: int) -> bytes:
        """Return the bytes to write at `written`, with the end mark after them; empty if there are none."""
        if not self._pieces:
            return b""
        return b"".join(self._pieces) + _END[: container_bytes - self.end]

    def wrote(self) -> None:
        """Note that the pending bytes are written."""
        self._pieces.clear()
        self.written = self.end

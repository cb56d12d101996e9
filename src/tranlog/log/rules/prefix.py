"""The unbroken prefix: which of the transactions that were given a place may be seen.

Owns the row of extents between what is visible and the end of what was allocated, and the decision how far the
visible end may move; writing the bytes is `log`'s. The hard idea: places are assigned in order and filled in any
order, so the end that readers see moves only when the oldest extent is finished, and then over all that wait after it.

Source: tokumx-replication ("the oldest unfinished").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set

from tranlog.errors import DiskFullError, LogError
from tranlog.ids import NO_EPOCH, NO_SEQNO, Epoch, Seqno
from tranlog.log.records.running_hash import after


class Extent:
    """A stretch of the newest segment that holds whole transactions.

    `first` to `last` are theirs, both inclusive; `starts` the offsets at which they begin; `end` is after the last
    byte. `epoch` is that of all of them, `ids` are source id and event id of the last one, `owners` the threads whose
    transactions are in it. `added` is the running hash that they make of 0, once all bytes are there.
    """

    __slots__ = (
        "added",
        "done",
        "end",
        "epoch",
        "first",
        "holder",
        "ids",
        "last",
        "owners",
        "refused",
        "starts",
        "writing",
    )

    def __init__(
        self,
        first: Seqno,
        starts: Sequence[int],
        *,
        end: int,
        ids: tuple[str, str],
        epoch: Epoch = NO_EPOCH,
        owners: Set[int] = frozenset(),
        added: int = 0,
    ) -> None:
        assert starts
        self.first = first
        self.last = Seqno(first + len(starts) - 1)
        self.starts = starts
        self.end = end
        self.epoch = epoch
        self.ids = ids
        self.owners = owners
        self.added = added
        self.holder = 0
        """The thread that is to fill it, as far as that is known; 0 for none."""
        self.done = False
        """All its bytes are written."""
        self.writing = False
        """A thread is writing them now, outside the lock."""
        self.refused: LogError | None = None
        """Why these transactions were taken back, or their place left empty."""


class UnbrokenPrefix:
    """The extents that were allocated and are not visible yet, oldest first.

    Threads: the log's lock guards it.
    """

    __slots__ = ("_row", "h")

    def __init__(self) -> None:
        self._row: deque[Extent] = deque()
        self.h = 0
        """The running hash up to what is visible, signed."""

    def __len__(self) -> int:
        return len(self._row)

    def allocate(self, extent: Extent) -> None:
        """Put an extent after the youngest one."""
        assert not self._row or extent.first == self._row[-1].last + 1
        self._row.append(extent)

    def advance(self) -> list[Extent]:
        """Return the extents that become visible now, in order: the finished ones before the oldest unfinished."""
        visible: list[Extent] = []
        while self._row and self._row[0].done:
            extent = self._row.popleft()
            self.h = after(self.h, extent.added, len(extent.starts))
            visible.append(extent)
        return visible

    def hashed(self, last: Seqno, added: int, count: int) -> tuple[Seqno, int]:
        """Return the running hash as far as it is known, signed, and up to where: nothing before that is unfinished.

        `added` is what `count` transactions make of 0, up to `last`, that come after the youngest extent.
        """
        h = self.h
        for extent in self._row:
            if not extent.done:
                return Seqno(extent.first - 1), h
            h = after(h, extent.added, len(extent.starts))
        return last, after(h, added, count)

    def newest(self) -> Extent | None:
        """Return the extent that was allocated last; None when all are visible."""
        return self._row[-1] if self._row else None

    def oldest_unfinished(self) -> Seqno:
        """Return the first seqno of the oldest extent that is unfinished; NO_SEQNO when there is none."""
        for extent in self._row:
            if not extent.done:
                return extent.first
        return NO_SEQNO

    def writing(self) -> bool:
        """Whether a thread is writing into one of them outside the lock."""
        return any(extent.writing for extent in self._row)

    def waits_for(self, thread: int) -> bool:
        """Whether one of the extents that are not finished is to be filled by this thread."""
        return any(extent.holder == thread and not extent.done for extent in self._row)

    def unfinished(self) -> list[Extent]:
        """Return the extents that are not finished, oldest first."""
        return [extent for extent in self._row if not extent.done]

    def take_back(self, path: str) -> set[int]:
        """Refuse everything that is not visible, the disk being full; return the threads it belonged to."""
        owners: set[int] = set()
        for extent in self._row:
            extent.refused = DiskFullError(path=path)
            owners |= extent.owners
        self._row.clear()
        return owners

"""What waits on a queue, in its order, and what was taken from it.

Owns the order in memory and what is handed out next. The hard idea: what becomes visible comes in rising order, so it
goes behind the others; only what comes back needs to be sorted in, and that is little.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from tranlog.ids import Lsn
from tranlog.queues.rules.state import Message, QueuePlace

Waiting = tuple[Lsn, Lsn, Message]
"""LSNs by which a queue is ordered, and the message."""


class QueueRow:
    """The messages that wait on one queue. The store's lock guards it. `len` is how many."""

    __slots__ = ("_back", "_row")

    def __init__(self, row: list[Waiting] | None = None) -> None:
        """`row` is in order."""
        self._row: deque[Waiting] = deque(row or ())
        self._back: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._row) + len(self._back)

    def __iter__(self) -> Iterator[Message]:
        """Go over the messages in order."""
        return (one[2] for one in heapq.merge(self._row, sorted(self._back)))

    def add(self, message: Message, place: QueuePlace) -> None:
        """Put a message where it belongs."""
        waiting = (*place.order, message)
        if self._row and waiting[:2] < self._row[-1][:2]:
            heapq.heappush(self._back, waiting)
        else:
            self._row.append(waiting)

    def first(self) -> Waiting | None:
        """Return the next one."""
        if self._back and (not self._row or self._back[0][:2] < self._row[0][:2]):
            return self._back[0]
        return self._row[0] if self._row else None

    def take(self) -> Message:
        """Remove the next one."""
        if self._back and (not self._row or self._back[0][:2] < self._row[0][:2]):
            return heapq.heappop(self._back)[2]
        return self._row.popleft()[2]

    def clear(self) -> list[Message]:
        """Remove all; return them in order."""
        found = list(self)
        self._row.clear()
        self._back.clear()
        return found

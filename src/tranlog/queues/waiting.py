"""The waiting messages of a queue, in order, and the counts of what happened on it.

Owns the order in memory and which message is delivered next. The hard idea: messages become visible in rising order, so
each is put after the others; only messages that come back must be sorted in, and they are few.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from tranlog.ids import Lsn
from tranlog.queues.rules.records import ACKED
from tranlog.queues.rules.state import NO_LSN, Message, QueuePlace

_Order = tuple[int, ...]


class QueueCounts(msgspec.Struct, kw_only=True):
    """What happened on a queue since the store was opened, in messages.

    `published`: put on it. `delivered`: taken from it. `acknowledged`: answered by `ack`, or by a transaction.
    `requeued`: came back. `dropped`: rejected, expired or purged.
    """

    published: int = 0
    delivered: int = 0
    acknowledged: int = 0
    requeued: int = 0
    dropped: int = 0

    def left(self, reason: int) -> None:
        """Count one that left the queue."""
        if reason == ACKED:
            self.acknowledged += 1
        else:
            self.dropped += 1


class PutBack:
    """The places to which a Rollback has returned messages, until that is durable. The store's lock guards it."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[QueuePlace, Lsn] = {}  # by place the Rollback

    def add(self, places: Iterable[QueuePlace], rollback: Lsn, shown: Lsn) -> None:
        """Add the places of a Rollback, and forget those that are durable: below `shown`."""
        kept = {place: since for place, since in self._since.items() if since >= shown}
        self._since = kept | dict.fromkeys(places, rollback)

    def is_shown(self, place: QueuePlace, shown: Lsn) -> bool:
        """Whether the record that put a message on a queue is durable, or the Rollback that returned it."""
        return place.needs < shown and (not self._since or self._since.get(place, NO_LSN) < shown)


class QueueRow:
    """The messages that wait on one queue. The store's lock guards it. `len` is how many."""

    __slots__ = ("_back", "_queue_id", "_row", "counts")

    def __init__(self, queue_id: int, row: Iterable[Message] = ()) -> None:
        """`row` is in order."""
        self.counts = QueueCounts()
        self._queue_id = queue_id
        self._row: deque[Message] = deque(row)
        self._back: list[tuple[_Order, Message]] = []  # a heap; no two have the same order

    def __len__(self) -> int:
        return len(self._row) + len(self._back)

    def __iter__(self) -> Iterator[Message]:
        """Go over the messages in order."""
        return heapq.merge(self._row, (one for _, one in sorted(self._back)), key=self._order)

    def _order(self, message: Message) -> _Order:
        place = message.place_on(self._queue_id)
        assert place is not None, "what waits on a queue is on it"
        return place.order

    def add(self, message: Message, place: QueuePlace) -> None:
        """Insert a message by its place on this queue."""
        if self._row and place.order < self._order(self._row[-1]):
            heapq.heappush(self._back, (place.order, message))
        else:
            self._row.append(message)

    def append(self, message: Message) -> None:
        """Put a message after all others: it was published after them."""
        self._row.append(message)

    def first(self) -> Message | None:
        """Return the next one."""
        if self._back and (not self._row or self._back[0][0] < self._order(self._row[0])):
            return self._back[0][1]
        return self._row[0] if self._row else None

    def take(self) -> Message:
        """Remove the next one."""
        if self._back and (not self._row or self._back[0][0] < self._order(self._row[0])):
            return heapq.heappop(self._back)[1]
        return self._row.popleft()

    def clear(self) -> list[Message]:
        """Remove all; return them in order."""
        found = list(self)
        self._row.clear()
        self._back.clear()
        return found

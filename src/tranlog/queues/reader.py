"""A message store read without owning it, whether or not a process has it open.

Owns what can be read from a store's files alone. The lock is not taken and no byte is changed.

Source: docs/format.md, "The message store".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Self

from tranlog.clock import Clock, SystemClock
from tranlog.closing import Closing
from tranlog.disk import Disk, OsDisk
from tranlog.errors import NotHeldError
from tranlog.log.files.directory import directory_of
from tranlog.lsn import lsn_text
from tranlog.queues.core import Delivery, check_count
from tranlog.queues.files.beside import ContainersBeside, read_store
from tranlog.queues.files.recovering import StoreRecovery
from tranlog.queues.rules.state import Message, in_order, section_start
from tranlog.queues.standing import Pinned, QueueStanding, StoreStatus, age_of, pinned_in


class StoreReader(Closing):
    """A store as its files had it at the last `refresh`. Threads: one at a time.

    Messages that were delivered and not answered count as waiting, and what is written counts although it may not be
    durable. Only the process that has the store open knows more.
    """

    def __init__(self, files: ContainersBeside, clock: Clock) -> None:
        """For `open` only."""
        self.path = files.path
        self._files = files
        self._clock = clock
        self.refresh()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, disk: Disk | None = None, clock: Clock | None = None) -> Self:
        """Read a store that is there.

        Raises StoreMissingError, LogUnreadableError, StoreDamagedError, CatalogueError.
        """
        files = ContainersBeside(directory_of(path), OsDisk() if disk is None else disk)
        return cls(files, SystemClock() if clock is None else clock)

    def refresh(self) -> None:
        """Read the files again. Raises as `open`, and keeps what was read before then."""
        self._files.close()
        scan, self._catalogue = read_store(self._files)
        state, names = scan.state, {queue.id: queue.name for queue in self._catalogue.queues.values()}
        rolled_back, dropped = state.abort_open(), state.drop_unknown(names)
        self._scan, self._state, self._names = scan, state, names
        self._rows = in_order(state.messages)
        self._recovery = StoreRecovery(
            created=False,
            clean=scan.clean,
            epoch=scan.epoch,
            messages=len(state.messages),
            in_doubt=len(state.transactions),
            rolled_back=len(rolled_back),
            dropped=len(dropped),
            deleted=len(state.homeless()),
            groups_cut=scan.groups_cut,
        )

    def queues(self) -> dict[str, int]:
        """Return by queue how many messages are on it."""
        return {name: len(self._rows.get(queue_id, ())) for queue_id, name in self._names.items()}

    def peek(self, queue: str, count: int = 1) -> list[Delivery]:
        """Return the first messages of a queue, at most `count`. They cannot be answered.

        Reading one raises NotHeldError if the owner has freed its place. Raises UnknownQueueError; ValueError for a
        count below 0.
        """
        check_count(count, least=0)
        queue_id, now_ms = self._catalogue.queue(queue).id, self._clock.now_ms()
        found = []
        for message in self._rows.get(queue_id, ()):
            place = message.place_on(queue_id)
            assert place is not None, "what is on a queue has a place there"
            if not 0 < place.expires_at <= now_ms:
                found.append(Delivery(self, queue, message, place, place.attempts > 0))
        return found[:count]

    def read(self, message: Message) -> Iterator[bytes]:
        """Read a message's header and content in parts. Raises NotHeldError."""
        for place in (message.stands, *(message.chunks or ())):
            try:
                record = self._files.read_record(place)
            except FileNotFoundError as exc:
                raise NotHeldError(what=f"message {lsn_text(message.id)}", why="it is gone, or was moved") from exc
            yield bytes(record.body[section_start(record) :])

    def tpc_recover(self) -> list[bytes]:
        """Return the xids of the prepared transactions without an outcome, in the order in which they were prepared."""
        return [one.xid for one in self._state.transactions.values()]

    def producers(self) -> dict[str, int]:
        """Return the last stored number of each producer that uses `publish_once`, by name."""
        return {name.decode(): one.number for name, one in self._state.positions.items()}

    def pinned(self) -> list[Pinned]:
        """Return what keeps the oldest container from being emptied, and so those after it from being freed."""
        size, now_ms = self._files.container_bytes, self._clock.now_ms()
        return pinned_in(self._state, self._scan.end_number, size, self._names, now_ms)

    def status(self) -> StoreStatus:
        """Return the status of the store."""
        now_ms, queues = self._clock.now_ms(), {}
        for queue_id, name in self._names.items():
            row = self._rows.get(queue_id, [])
            queues[name] = QueueStanding(waiting=len(row), oldest_ms=age_of(row[0], now_ms) if row else None)
        return StoreStatus(
            queues=queues,
            containers_in_use=len(self._files.in_use),
            containers_free=len(self._files.free),
            container_bytes=self._files.container_bytes,
            pinned_bytes=max((one.held_bytes for one in self.pinned()), default=0),
            in_doubt=tuple(self.tpc_recover()),
            recovered=self._recovery,
        )

    def close(self) -> None:
        """Close the files. Closing twice is harmless."""
        self._files.close()

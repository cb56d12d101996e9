"""The message store: durable queues in a log, opened by one process at a time, for any number of threads.

Owns opening and closing, names, waiting, and when a call returns: once its changes are durable. `core` makes records of
an operation, and `rules.recovery` judges what a crash left.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid; docs/format.md, "The message store".
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import Self

import msgspec

from tranlog.clock import Clock, SystemClock, check_seconds
from tranlog.closing import Closing
from tranlog.disk import Disk, OsDisk
from tranlog.errors import DeclaredOtherwiseError, DiskFailedError, TransactionStateError
from tranlog.ids import Lsn
from tranlog.log.files.directory import directory_of
from tranlog.log.writing.flushing import Flushing
from tranlog.option_kinds import check_options
from tranlog.queues.core import Delivery, StoreCore, check_count
from tranlog.queues.definitions import StoreDefinitions
from tranlog.queues.files.catalogue import why_no_name
from tranlog.queues.opening import Connect, OpenedStore, open_store
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.publishing import MessagePublishing
from tranlog.queues.rules.branches import Branches, CallRefused
from tranlog.queues.rules.records import ACKED, REJECTED, NamedPosition, ProducerStep
from tranlog.queues.rules.routing import DEFAULT_EXCHANGE
from tranlog.queues.standing import Pinned, QueueStanding, StoreStatus, age_of, pinned_in
from tranlog.queues.transaction import BranchSession, StoreTransaction, TransactionWork, decide, in_doubt

_LOOK_S = 0.5
"""Whoever waits for a message looks so often whether the store was closed."""


class MessageStore(StoreDefinitions, Closing):
    """An open store. Threads: any number, for every method. Processes: the one that opened it.

    Methods raise LogClosedError after it is closed, and in a process that was forked; DiskFailedError if a write or a
    sync fails, which closes it; and DiskFullError if there is no room for more: then messages can still be taken and
    answered.
    """

    def __init__(self, opened: OpenedStore) -> None:
        """For `open` only."""
        self.path = opened.files.path
        self.recovered = opened.recovered
        self._opened = opened
        self._clock = opened.clock
        self._files = opened.files
        super().__init__(opened.core)
        self._publishing = MessagePublishing(opened.core)
        self._branches: Branches[TransactionWork] = Branches()
        self._dropped: deque[TransactionWork] = deque()  # of transactions that nobody decided and nobody has any more
        self._flushing: Flushing | None = None
        self._closed = False

    # --- opening and closing -------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        options: QueueStoreOptions | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        connect: Connect | None = None,
    ) -> Self:
        """Take the lock, repair what a crash left, begin an epoch. A missing store is created; its parent must exist.

        `connect` opens the catalogue by its path; None: apsw does. Raises LogLockedError, StoreDamagedError,
        CatalogueError, StoreMissingError, LogUnreadableError, DiskFullError, DiskFailedError, ConfigError.
        """
        options = QueueStoreOptions() if options is None else options
        check_options(options, QueueStoreOptions)
        options.check()
        disk = OsDisk() if disk is None else disk
        clock = SystemClock() if clock is None else clock
        store = cls(open_store(directory_of(path), options, disk, clock, connect))
        if options.ack_sync_s is not None:
            store._flushing = Flushing(store._sync_acks, interval_s=options.ack_sync_s, name=store.path)
            store._flushing.start()
        return store

    def close(self) -> None:
        """Make everything durable and close the store. Held messages are on their queues when it is opened again.

        Closing twice is harmless. Raises as writing does; the store is closed then, too. In a process that was forked
        from the one that opened the store it lets go of the files, and changes nothing.
        """
        if self._opened.ownership.foreign():
            self._opened.let_go()
            return
        with self._journal.lock:
            if self._closed:
                return
            self._closed = True
        if self._flushing is not None:
            self._flushing.stop()
            self._flushing.join()
        try:
            if self._journal.is_open:
                self.sync()
                self._journal.end_cleanly()
        finally:
            with self._journal.lock:
                if self._journal.is_open:
                    self._journal.stop()
            self._opened.let_go()

    def closed_by(self) -> str:
        """Return why the store is closed; empty while it is open."""
        lost = self._opened.ownership.lost
        return "" if lost is None else str(lost)

    def _sync_acks(self) -> None:
        with self._journal.lock:
            behind = self._journal.durable < self._journal.place
        if behind:
            self.sync()

    # --- looking, purging ----------------------------------------------------------------------------

    def pinned(self) -> list[Pinned]:
        """Return what keeps the oldest container from being emptied, and so those after it from being freed."""
        with self._journal.lock:
            self._journal.check_open()
            names = {queue.id: queue.name for queue in self._catalogue.queues.values()}
            newest, size = self._journal.buffer.number, self._files.container_bytes
            return pinned_in(self._core.state, newest, size, names, self._clock.now_ms())

    def status(self) -> StoreStatus:
        """Return the status of the store."""
        with self._journal.lock:
            return StoreStatus(
                queues={name: self._standing(name, held) for name, (_, held) in self.queues().items()},
                containers_in_use=len(self._files.in_use),
                containers_free=len(self._files.free),
                container_bytes=self._files.container_bytes,
                pinned_bytes=max((one.held_bytes for one in self.pinned()), default=0),
                in_doubt=tuple(in_doubt(self._core)),
                recovered=self.recovered,
                syncs=self._journal.syncs.count,
                transient_messages=len(self._core.transient.messages),
                transient_bytes=self._core.transient.used,
            )

    def _standing(self, queue: str, held: int) -> QueueStanding:
        found = self._catalogue.queue(queue)
        row = self._core.row(found.id)
        first = row.first()
        return QueueStanding(
            waiting=len(row),
            oldest_ms=None if first is None else age_of(first, self._clock.now_ms()),
            held=held,
            counts=msgspec.structs.replace(row.counts),
            transient=found.transient,
        )

    def peek(self, queue: str, count: int = 1) -> list[Delivery]:
        """Return the next messages that `get` would return, at most `count`, without taking them.

        They can be read while they are there, and cannot be answered. Raises UnknownQueueError; ValueError for a count
        below 0.
        """
        check_count(count, least=0)
        with self._journal.lock:
            self._journal.check_open()
            found = self._core.waiting(queue, self._catalogue.queue(queue).id)
            return list(itertools.islice(found, min(count, sys.maxsize)))

    def purge(self, queue: str) -> int:
        """Remove the waiting messages from a queue; return how many there were. Raises UnknownQueueError."""
        with self._journal.lock:
            self._journal.check_open()
            queue_id = self._catalogue.queue(queue).id
            with self._journal:
                count = self._core.clear(queue_id)
        self.sync()
        return count

    # --- publishing ----------------------------------------------------------------------------------

    def publish(
        self,
        content: bytes | Iterable[bytes | memoryview],
        *,
        queues: Sequence[str] | None = None,
        exchange: str = DEFAULT_EXCHANGE,
        key: str = "",
        headers: Mapping[str, object] | None = None,
        length: int | None = None,
        header: bytes = b"",
        expires_at: int = 0,
        priority: int = 0,
        wait: bool = True,
        transient: bool = False,
    ) -> Lsn | None:
        """Put a message on all of these queues or on none; return its id, once that is durable.

        Without `queues`, those that `route` returns for exchange, key and headers; None if there are none. They are not
        stored with the message: put what a consumer needs into its `header`.

        A message that is first on its queue at `expires_at` (ms since 1970) or later is dropped; 0 means never.
        `priority` is only passed on to consumers.
        Content in parts needs its `length` in bytes. Without `wait` it is durable with the next sync, and `sync` waits
        for that. Raises UnknownQueueError; ValueError if the parts do not have that length.

        A `transient` message is never written: it waits in memory, in the same order as the others, and is gone when
        the store is closed or its process dies. So is any message on a transient queue. Its id is 0, or the id of the
        message on the other queues. Raises TransientRoomError if memory has no room for it, and puts nothing on any
        queue then.
        """
        if queues is None:
            queues = self.route(exchange, key, headers)
            if not queues:
                return None
        stamps = expires_at, priority
        message = self._publishing.publish(content, queues, length, header, *stamps, wait=wait, transient=transient)
        assert message is not None, "only publish_once has seen a message before"
        return message.id

    def publish_many(
        self,
        contents: Iterable[bytes],
        *,
        queues: Sequence[str] | None = None,
        exchange: str = DEFAULT_EXCHANGE,
        key: str = "",
        headers: Mapping[str, object] | None = None,
        header: bytes = b"",
        expires_at: int = 0,
        priority: int = 0,
        wait: bool = True,
    ) -> list[Lsn]:
        """Publish messages to the same queues, in this order; return their ids once all are durable.

        The same as one `publish` after another, at half the cost. If one is refused, those before it are published;
        use a `transaction` for all or nothing. Returns an empty list if they are routed to no queue. Raises as
        `publish`.
        """
        if queues is None:
            queues = self.route(exchange, key, headers)
            if not queues:
                return []
        found = self._publishing.publish_many(list(contents), queues, header, expires_at, priority)
        if wait:
            self.sync()
        return [one.id for one in found]

    def publish_once(
        self,
        name: str,
        number: int,
        content: bytes | Iterable[bytes | memoryview],
        *,
        queues: Sequence[str] | None = None,
        exchange: str = DEFAULT_EXCHANGE,
        key: str = "",
        headers: Mapping[str, object] | None = None,
        length: int | None = None,
        header: bytes = b"",
        expires_at: int = 0,
        priority: int = 0,
    ) -> Lsn | None:
        """Publish number `number` of the producer `name` once, also after crashes of either side; durable on return.

        Numbers rise. Returns None for a number that is not above all before it, which is a repeat, or if no queue is
        routed to. Raises as `publish`; DeclaredOtherwiseError for an invalid name; ValueError for an invalid number.
        """
        if why := why_no_name("name", name):
            raise DeclaredOtherwiseError(what=f"producer {name!r}", why=why)
        if not 0 <= index(number) < 1 << 63:
            raise ValueError(f"a number is 0 to 2^63 - 1, not {number}")
        queues = self.route(exchange, key, headers) if queues is None else queues
        once = ProducerStep(name.encode(), NamedPosition(number))
        message = self._publishing.publish(content, queues, length, header, expires_at, priority, once)
        return None if message is None else message.id

    def transaction(self) -> StoreTransaction:
        """Begin a transaction of this store."""
        self._journal.check_open()
        return StoreTransaction(self)

    def _take_answers(self, work: TransactionWork, deliveries: Sequence[Delivery], reason: int) -> None:
        with self._journal.lock:
            self._journal.check_open()
            work.answer(self._core, deliveries, reason)

    # --- distributed transactions ----------------------------------------------------------------------

    def session(self) -> BranchSession:
        """Return a session for branches of distributed transactions."""
        return BranchSession(self, self._branches)

    def tpc_recover(self) -> list[bytes]:
        """Return the xids of the prepared transactions without an outcome, in the order in which they were prepared."""
        with self._deciding(b"") as core:
            return list(in_doubt(core))

    def tpc_commit(self, xid: bytes) -> None:
        """Commit the transaction that any session prepared under this xid; durable. Raises TransactionStateError."""
        with self._deciding(xid):
            self._decide(xid, commit=True)
        self.sync()

    def tpc_rollback(self, xid: bytes) -> None:
        """Roll back the transaction that any session prepared under this xid; durable. Raises TransactionStateError.

        So is one that is not prepared, where its time is over, or nobody works in it and it cannot be committed.
        """
        with self._deciding(xid):
            self._decide(xid, commit=False)
        self.sync()

    def _decide(self, xid: bytes, *, commit: bool) -> None:
        decide(self._core, self._branches, xid, commit=commit)

    @contextlib.contextmanager
    def _deciding(self, xid: bytes) -> Iterator[StoreCore]:
        """Hold the lock for a step of a branch, and have what it must not do be an error of ours."""
        if not isinstance(xid, bytes):
            raise TransactionStateError(what=f"transaction {xid!r}", why="an xid is bytes")
        with self._journal.lock, self._journal:
            self._journal.check_open()
            self._expire()
            try:
                yield self._core
            except CallRefused as exc:
                raise TransactionStateError(what=f"transaction {xid!r}", why=str(exc)) from exc

    def _expire(self) -> bool:
        """Undo the branches whose time is over, and dropped transactions; return whether there were any."""
        over = self._branches.expire(self._clock.monotonic())
        while self._dropped:
            over.append(self._dropped.popleft())
        for work in over:
            work.undo(self._core)
        return bool(over)

    def monotonic(self) -> float:
        """Return the store's clock, for timeouts."""
        return self._clock.monotonic()

    # --- taking --------------------------------------------------------------------------------------

    def get(self, queue: str, *, timeout_s: float | None = 0.0) -> Delivery | None:
        """Take the next message of a queue; None if none comes within so many seconds. None waits without end.

        Returns durable messages only; waits for the sync of others. Raises UnknownQueueError; ValueError for a time
        below 0.
        """
        found = self.get_many(queue, 1, timeout_s=timeout_s)
        return found[0] if found else None

    def get_many(self, queue: str, count: int, *, timeout_s: float | None = 0.0) -> list[Delivery]:
        """Take the next durable messages of a queue, at most `count`; at least one, as `get`.

        Raises as `get`, ValueError for a count below 1.
        """
        check_count(count, least=1)
        if timeout_s is not None:
            check_seconds("timeout_s", timeout_s)
        journal = self._journal
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while True:
            with journal.lock:
                journal.check_open()
                queue_id = self._catalogue.queue(queue).id
                with journal:
                    self._expire()
                    found = self._core.take(queue, queue_id, count)
                    if found:
                        return found
                    target, waiting = journal.place, len(self._core.row(queue_id))
                if not waiting:  # outside the step, which Ctrl-C would break off
                    left = _LOOK_S if until is None else min(until - self._clock.monotonic(), _LOOK_S)
                    if left <= 0:
                        return []
                    journal.changed.wait(left)
            if waiting:
                journal.commit(target)

    def watch(self, wake: Callable[[], object]) -> None:
        """Call `wake` whenever a message may have come to a queue, until the store is closed. The lock is held then."""
        journal, told = self._journal, True
        with journal.lock:
            while journal.is_open:
                if told:
                    wake()
                told = journal.changed.wait(_LOOK_S)
                if not told and journal.is_open:
                    with contextlib.suppress(DiskFailedError), journal:  # which has closed the store
                        told = self._expire()

    def consume(self, queue: str) -> Iterator[Delivery]:
        """Yield the messages of a queue, one after the other, without end; wait for the next one. Raises as `get`."""
        while True:
            delivery = self.get(queue, timeout_s=None)
            assert delivery is not None
            yield delivery

    def ack(self, *deliveries: Delivery, wait: bool = False) -> None:
        """Acknowledge these messages: they leave their queues. With `wait`, return once that is durable.

        Raises NotHeldError, and then acknowledges none of them.
        """
        self._answer(deliveries, ACKED, wait)

    def reject(self, *deliveries: Delivery, wait: bool = False) -> None:
        """Reject these messages: they leave their queues. Raises as `ack`."""
        self._answer(deliveries, REJECTED, wait)

    def _answer(self, deliveries: Sequence[Delivery], reason: int, wait: bool) -> None:
        with self._journal.lock:
            self._journal.check_open()
            for delivery in deliveries:
                self._core.check_held(delivery)
            with self._journal:
                self._core.answer(dict.fromkeys(deliveries), reason)
        if wait:
            self.sync()

    def requeue(self, *deliveries: Delivery) -> None:
        """Put these messages back where they were in their queues. Raises as `ack`."""
        with self._journal.lock:
            self._journal.check_open()
            for delivery in deliveries:
                self._core.check_held(delivery)
            with self._journal:
                for delivery in dict.fromkeys(deliveries):
                    self._core.come_back(delivery.message, delivery.place)
                    del self._core.held[delivery.place]
                self._journal.changed.tell()

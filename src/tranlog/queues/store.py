"""The message store: durable queues in a log, opened by one process at a time, for any number of threads.

Owns opening and closing, names, waiting, and when a call returns: once what it asked for is durable. How an operation
becomes records is `core`'s, what a crash left is judged by `rules.recovery`.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid; docs/format.md, "The message store".
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

import apsw

from tranlog.clock import Clock, SystemClock
from tranlog.disk import Disk, DiskLock, OsDisk
from tranlog.errors import CatalogueError, StoreDamagedError
from tranlog.ids import Lsn
from tranlog.log.files.directory import directory_of, join, make_directory, sign_lock, storage_error, take_lock
from tranlog.log.files.ownership import OwnedDisk, Ownership
from tranlog.log.writing.flushing import Flushing
from tranlog.queues.core import Delivery, StoreCore, sections_of
from tranlog.queues.files.catalogue import Catalogue
from tranlog.queues.files.containers import ContainerFiles
from tranlog.queues.files.journal import QueueJournal
from tranlog.queues.files.recovering import (
    StoreOpening,
    StoreRecovery,
    check_catalogue,
    create_containers,
    read_headers,
    scan_log,
)
from tranlog.queues.options import QueueStoreOptions
from tranlog.queues.rules.records import (
    ACKED,
    CATALOGUE_NAME,
    FIRST,
    REJECTED,
    STORE_ID_BYTES,
    STORE_LOCK_NAME,
    container_name,
)
from tranlog.queues.rules.recovery import next_epoch
from tranlog.queues.rules.state import Message, QueueState

_LOOK_S = 0.5
"""Whoever waits for a message looks so often whether the store was closed."""


class MessageStore:
    """An open store. Threads: any number, for every method.

    Methods raise LogClosedError once it is closed, DiskFailedError where a write or a sync fails, which closes it, and
    DiskFullError where there is no room for more: then messages can still be taken and answered.
    """

    def __init__(self, path: str, disk: Disk, clock: Clock, options: QueueStoreOptions, lock_file: DiskLock) -> None:
        """For `open` only."""
        self.path = path
        self._clock = clock
        self._options = options
        self._ownership = Ownership(path, lock_file, lost=lambda: None, lock_name=STORE_LOCK_NAME)
        self._disk = OwnedDisk(disk, self._ownership)
        self._flushing: Flushing | None = None
        self._closed = False
        self._catalogue: Catalogue
        self._files: ContainerFiles
        self._core: StoreCore
        self._journal: QueueJournal
        self.recovered: StoreRecovery

    # --- opening and closing -------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        options: QueueStoreOptions | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        connect: Callable[[str], apsw.Connection] = apsw.Connection,
    ) -> Self:
        """Take the lock, mend what a crash left, begin an epoch. A new store is created; its parent has to exist.

        `connect` opens the catalogue by its path. Raises LogLockedError, StoreDamagedError, CatalogueError,
        LogMissingError, LogUnreadableError, DiskFullError, DiskFailedError, ConfigError: a store that cannot be
        opened as it was left is not opened.
        """
        options = QueueStoreOptions() if options is None else options
        options.check()
        disk = OsDisk() if disk is None else disk
        clock = SystemClock() if clock is None else clock
        directory = directory_of(path)
        try:
            make_directory(directory, disk)
            lock_file = take_lock(directory, disk, STORE_LOCK_NAME)
            store = cls(directory, disk, clock, options, lock_file)
            try:
                store._recover(connect)
                sign_lock(directory, store._disk, STORE_LOCK_NAME)
            except BaseException:
                store._let_go()
                raise
        except OSError as exc:
            raise storage_error(exc, directory) from exc
        if options.ack_sync_s is not None:
            store._flushing = Flushing(store._sync_acks, interval_s=options.ack_sync_s, name=directory)
            store._flushing.start()
        return store

    def _recover(self, connect: Callable[[str], apsw.Connection]) -> None:
        disk, options = self._disk, self._options
        path = join(self.path, CATALOGUE_NAME)
        self._files = files = ContainerFiles(
            self.path, disk, container_bytes=options.container_bytes, store_id=bytes(STORE_ID_BYTES)
        )
        files.list()
        if files.in_use and not disk.exists(path):
            raise CatalogueError(path=path, why="it is missing, and there are containers with messages")
        self._catalogue = catalogue = Catalogue(path, connect)
        new_id = None if files.in_use else os.urandom(STORE_ID_BYTES)
        catalogue.load(new_id, self._clock.now_ms())
        created = catalogue.epoch == 0
        if created:
            disk.sync_dir(posixpath.dirname(self.path) or ".")  # its own entry, too
        if not files.in_use:
            if not created:
                why = f"it is missing, and the catalogue was opened in epoch {catalogue.epoch}"
                raise StoreDamagedError(path=self.path, file=container_name(1), offset=0, why=why)
            files.store_id = catalogue.store_id
            create_containers(files, options.initial_containers, now_ms=self._clock.now_ms())
        headers = read_headers(files)
        state = QueueState()
        scan = scan_log(files, state)
        check_catalogue(path, scan, files, catalogue)
        self._journal = journal = QueueJournal(
            files,
            self._clock,
            self._ownership,
            state,
            initial_containers=options.initial_containers,
            write_buffers=options.write_buffers,
        )
        epoch = next_epoch(scan, headers, catalogue.epoch)
        opening = StoreOpening(disk, self._clock, files, catalogue, scan, epoch)
        self.recovered = opening.run(journal, created=created)
        self._core = StoreCore(journal, state, catalogue, self._clock, options.content_bytes)

    def close(self) -> None:
        """Make everything durable and end. What is held is on its queues when the store is opened again.

        Twice is harmless. Raises what writing raises; the store is closed then, too.
        """
        with self._journal.lock:
            if self._closed:
                return
            self._closed = True
        if self._flushing is not None:
            self._flushing.stop()
            self._flushing.join()
        try:
            if self._ownership.lost is None:
                self._commit()
                self._journal.end_cleanly()
        finally:
            with self._journal.lock:
                if self._ownership.lost is None:
                    self._journal.stop()
            self._let_go()

    def _let_go(self) -> None:
        for name in ("_catalogue", "_files"):
            if hasattr(self, name):
                getattr(self, name).close()
        self._ownership.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _commit(self) -> None:
        """Return when everything that was put so far is durable."""
        with self._journal.lock:
            target = self._journal.place
        self._journal.commit(target)

    def _sync_acks(self) -> None:
        with self._journal.lock:
            behind = self._journal.durable < self._journal.place
        if behind:
            self._commit()

    # --- queues --------------------------------------------------------------------------------------

    def declare(self, queue: str, *, arguments: bytes = b"") -> int:
        """Create a queue if it is missing; return its id, which is never given out again.

        Raises DeclaredOtherwiseError where it is there with other arguments, CatalogueError.
        """
        with self._journal.lock, self._journal:
            self._journal.check_open()
            found = self._catalogue.declare_queue(queue, arguments)
            self._core.catalogue_changed()
            return found.id

    def delete(self, queue: str) -> None:
        """Delete a queue with its bindings and messages. Raises UnknownQueueError, CatalogueError."""
        with self._journal.lock, self._journal:
            self._journal.check_open()
            found = self._catalogue.delete_queue(queue)
            self._core.catalogue_changed()
            self._core.drop_queue(found.id)
        self._commit()

    def queues(self) -> dict[str, tuple[int, int]]:
        """Return by queue how many messages wait on it, and how many are held."""
        with self._journal.lock:
            held: dict[int, int] = {}
            for place in self._core.held:
                held[place.queue_id] = held.get(place.queue_id, 0) + 1
            return {
                queue.name: (len(self._core.row(queue.id)), held.get(queue.id, 0))
                for queue in self._catalogue.queues.values()
            }

    def purge(self, queue: str) -> int:
        """Take off a queue what waits on it; return how many messages that were. Raises UnknownQueueError."""
        with self._journal.lock, self._journal:
            self._journal.check_open()
            count = self._core.clear(self._catalogue.queue(queue).id)
        self._commit()
        return count

    # --- publishing ----------------------------------------------------------------------------------

    def publish(
        self,
        content: bytes | Iterable[bytes | memoryview],
        *,
        queues: Sequence[str],
        length: int | None = None,
        header: bytes = b"",
        expires_at: int = 0,
        priority: int = 0,
        wait: bool = True,
    ) -> Lsn:
        """Put a message on all of these queues or on none; return its id, once that is durable.

        Content in parts needs its `length` in bytes. Without `wait` it is durable with the next sync, and `sync` waits
        for that. Raises UnknownQueueError, ValueError where the parts are not as long as they were said to be.
        """
        names = list(dict.fromkeys(queues))
        if not names:
            raise ValueError("a message is published to at least one queue")
        if isinstance(content, bytes | bytearray | memoryview):
            length, parts = len(content), iter((content,))
        elif length is None:
            raise ValueError("content in parts needs its length")
        else:
            parts = iter(content)
        total = len(header) + length
        if total <= self._core.section_bytes:
            raw = b"".join((header, *parts))
            _check_length(len(raw), total)
            with self._journal.lock, self._journal:
                ids = self._ids(names)
                message = self._core.publish_small(len(header), raw, ids, expires_at, priority)
        else:
            message = self._publish_large(parts, names, header, total, expires_at, priority)
        if wait:
            self._commit()
        return message.id

    def _ids(self, queues: Iterable[str]) -> list[int]:
        self._journal.check_open()
        return [self._catalogue.queue(name).id for name in queues]

    def _publish_large(
        self,
        parts: Iterator[bytes | memoryview],
        names: Sequence[str],
        header: bytes,
        total: int,
        expires_at: int,
        priority: int,
    ) -> Message:
        """Put a message section by section; others go on in between. The last one decides."""
        core, journal = self._core, self._journal
        sections = sections_of(_joined(header, parts), core.section_bytes)
        message: Message | None = None
        try:
            with journal.lock, journal:
                self._ids(names)
            section = next(sections)
            for following in sections:
                _check_length((message.got if message else 0) + len(section) + 1, total, least=0)
                with journal.lock, journal:
                    if message is None:
                        message = core.begin_large(len(header), total, section)
                    else:
                        core.add_section(message, section)
                section = following
            _check_length((message.got if message else 0) + len(section), total)
            assert message is not None, "it is larger than one section"
            with journal.lock, journal:
                ids = self._ids(names)
                core.add_section(message, section, FIRST, behind=len(ids))
                core.enqueue(message, ids, expires_at, priority)
        except BaseException:
            if message is not None:
                with journal.lock, journal:
                    if self._ownership.lost is None and not message.places:
                        core.delete(message)
            raise
        return message

    def sync(self) -> None:
        """Return when everything that any call has done so far is durable."""
        self._commit()

    # --- taking --------------------------------------------------------------------------------------

    def get(self, queue: str, *, timeout_s: float | None = 0.0) -> Delivery | None:
        """Take the next message of a queue; None where none comes in so many seconds, None waits for ever.

        Only what is durable is handed out; this waits for the sync of what is not. Raises UnknownQueueError.
        """
        journal = self._journal
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while True:
            with journal.lock, journal:
                journal.check_open()
                queue_id = self._catalogue.queue(queue).id
                first = self._core.row(queue_id).first()
                if first is not None and first[0] < journal.shown:
                    return self._core.take(queue, queue_id)
                target = journal.place
                if first is None:
                    left = _LOOK_S if until is None else min(until - self._clock.monotonic(), _LOOK_S)
                    if left <= 0:
                        return None
                    journal.changed.wait(left)
            if first is not None:
                journal.commit(target)

    def consume(self, queue: str) -> Iterator[Delivery]:
        """Take one message of a queue after the other, for ever; each waits for the next. Raises as `get`."""
        while True:
            delivery = self.get(queue, timeout_s=None)
            assert delivery is not None
            yield delivery

    def ack(self, *deliveries: Delivery, wait: bool = False) -> None:
        """Have these messages done with: they leave their queues. With `wait`, once that is durable.

        Raises NotHeldError, nothing being done with any of them.
        """
        self._answer(deliveries, ACKED, wait)

    def reject(self, *deliveries: Delivery, wait: bool = False) -> None:
        """Have these messages leave their queues undone. Raises as `ack`."""
        self._answer(deliveries, REJECTED, wait)

    def _answer(self, deliveries: Sequence[Delivery], reason: int, wait: bool) -> None:
        with self._journal.lock, self._journal:
            self._journal.check_open()
            for delivery in deliveries:
                self._core.check_held(delivery)
            for delivery in dict.fromkeys(deliveries):
                self._core.dequeue(delivery.message, delivery.place, reason)
                del self._core.held[delivery.place]
        if wait:
            self._commit()

    def requeue(self, *deliveries: Delivery) -> None:
        """Put these messages back where they were in their queues. Raises as `ack`."""
        with self._journal.lock, self._journal:
            self._journal.check_open()
            for delivery in deliveries:
                self._core.check_held(delivery)
            for delivery in dict.fromkeys(deliveries):
                self._core.come_back(delivery.message, delivery.place)
                del self._core.held[delivery.place]
            self._journal.changed.notify_all()


def _joined(header: bytes, parts: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    yield header
    yield from parts


def _check_length(found: int, total: int, *, least: int | None = None) -> None:
    """Raise ValueError where content is not as long as was said."""
    if not (total if least is None else least) <= found <= total:
        raise ValueError(f"header and content have {found} bytes so far, and {total} were announced")

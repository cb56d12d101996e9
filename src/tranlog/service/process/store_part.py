"""A message store, served by the process that has it open, or used by a command.

Owns the operations and who carries them out: the process that holds the store if it serves it, else this one. The hard
idea: what only looks never opens the store for writing, so it changes no byte and needs no lock.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tranlog.errors import ConfigError, ControlError, LogClosedError, NotHeldError, QueueError
from tranlog.lsn import lsn_text
from tranlog.queues.backup import back_up
from tranlog.queues.by_hand import StoreVerdict
from tranlog.queues.core import Delivery
from tranlog.queues.reader import StoreReader
from tranlog.queues.standing import Pinned, StoreStatus
from tranlog.queues.store import MessageStore
from tranlog.service.config.exposure import Role
from tranlog.service.process import api
from tranlog.service.process.client import opened_or_asked, operations_of, owner_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_TIMEOUT_S: Final = 600.0
_SHOWN_BYTES: Final = 60


class StoreLooks:
    """What can be asked of a store without changing it. Threads: those of the store."""

    def __init__(self, store: MessageStore | StoreReader) -> None:
        self._store = store

    @api.get("/store/status")
    def status(self) -> StoreStatus:
        """Return how the store stands."""
        return self._store.status()

    @api.get("/store/pinned")
    def pinned(self) -> list[Pinned]:
        """Return what keeps the oldest container from being emptied."""
        return self._store.pinned()

    @api.get("/store/producers")
    def producers(self) -> dict[str, int]:
        """Return by name of those that publish once the number up to which their messages are here."""
        return self._store.producers()

    @api.post("/store/peek", role=Role.READ)
    def peek(self, asked: api.Peek) -> list[api.Peeked]:
        """Return the first messages of a queue, and take none. Raises UnknownQueueError."""
        found = self._store.peek(asked.queue, asked.count)
        return [api.Peeked(**_told(one), begins=one.begins(_SHOWN_BYTES)) for one in found]


class StorePart(StoreLooks):
    """The part that has a store open."""

    def __init__(self, store: MessageStore) -> None:
        super().__init__(store)
        self._own = store
        self._taken: dict[str, Delivery] = {}

    @api.post("/store/declare-queue")
    def declare(self, asked: api.DeclareQueue) -> api.Done:
        """Create a queue if it is missing. Raises DeclaredOtherwiseError."""
        self._own.declare(asked.queue, transient=asked.transient)
        return api.Done()

    @api.post("/store/declare-exchange")
    def declare_exchange(self, asked: api.DeclareExchange) -> api.Done:
        """Create an exchange if it is missing. Raises DeclaredOtherwiseError."""
        self._own.declare_exchange(asked.exchange, asked.kind, alternate=asked.alternate)
        return api.Done()

    @api.post("/store/delete-queue")
    def delete(self, asked: api.ByName) -> api.Done:
        """Delete a queue with its bindings and messages. Raises UnknownQueueError."""
        self._own.delete(asked.name)
        return api.Done()

    @api.post("/store/delete-exchange")
    def delete_exchange(self, asked: api.ByName) -> api.Done:
        """Delete an exchange with its bindings. Raises UnknownQueueError."""
        self._own.delete_exchange(asked.name)
        return api.Done()

    @api.post("/store/bind")
    def bind(self, asked: api.Bind) -> api.Done:
        """Bind an exchange. Raises UnknownQueueError, DeclaredOtherwiseError."""
        _check_ends(asked)
        ends = {"queue": asked.queue, "destination": asked.destination}
        self._own.bind(asked.exchange, **ends, key=asked.key, arguments=asked.arguments)
        return api.Done()

    @api.post("/store/unbind")
    def unbind(self, asked: api.Bind) -> api.Done:
        """Remove the binding with all of these. Raises UnknownQueueError."""
        _check_ends(asked)
        ends = {"queue": asked.queue, "destination": asked.destination}
        self._own.unbind(asked.exchange, **ends, key=asked.key, arguments=asked.arguments)
        return api.Done()

    @api.post("/store/purge")
    def purge(self, asked: api.ByName) -> api.Removed:
        """Take off a queue what waits on it, for good. Raises UnknownQueueError."""
        return api.Removed(messages=self._own.purge(asked.name))

    @api.post("/store/publish")
    def publish(self, asked: api.PublishMessage, content: api.Content) -> api.PublishedMessage:
        """Put a message on queues; durable when this returns.

        Raises UnknownQueueError, DiskFullError, TransientRoomError, ConfigError for content of another length.
        """
        options = msgspec.structs.asdict(asked)
        try:
            found = self._own.publish(content, **options)
        except ValueError as exc:
            raise ConfigError(option="length", value=asked.length, why=str(exc)) from exc
        return api.PublishedMessage(id=None if found is None else lsn_text(found))

    @api.post("/store/take")
    def take(self, asked: api.TakeMessage) -> api.Sending[api.TakenMessage]:
        """Take the next message of a queue; its content follows.

        It goes back to its queue where it is not answered before the connection ends. Raises UnknownQueueError.
        """
        delivery = self._own.get(asked.queue)
        if delivery is None:
            return api.Sending(head=api.TakenMessage(), content=iter(()), close=lambda: None)
        name = os.urandom(8).hex()
        self._taken[name] = delivery
        head = api.TakenMessage(delivery=name, message=api.MessageTold(**_told(delivery)))
        return api.Sending(head=head, content=delivery.parts(), close=lambda: self._give_back(name))

    def _give_back(self, name: str) -> None:
        delivery = self._taken.pop(name, None)
        if delivery is not None:
            with suppress(LogClosedError, QueueError):  # then its next opening has it on the queue
                self._own.requeue(delivery)

    @api.post("/store/answer")
    def answer(self, asked: api.AnswerMessage) -> api.Done:
        """Have a message that was taken be done with, durable, or back on its queue.

        Raises NotHeldError; DiskFullError, and it is held as before.
        """
        delivery = self._taken.get(asked.delivery)
        if delivery is None:
            raise NotHeldError(what=f"delivery {asked.delivery}", why="it is not held, or went back to its queue")
        if asked.requeue:
            self._own.requeue(delivery)
        else:
            self._own.ack(delivery, wait=True)
        self._taken.pop(asked.delivery, None)  # until then it goes back to its queue with its connection
        return api.Done()

    @api.post("/store/back-up")
    def back_up(self, asked: api.BackUp) -> StoreVerdict:
        """Copy the store into a directory that is not there yet, durable; check the copy. Raises ConfigError."""
        if not os.path.isabs(asked.to):
            raise ConfigError(option="to", value=asked.to, why="it is not an absolute path")
        return back_up(self._own, asked.to)

    @api.post("/store/decide")
    def decide(self, asked: api.Decide) -> api.Done:
        """Commit or roll back what is prepared. Raises TransactionStateError."""
        (self._own.tpc_commit if asked.commit else self._own.tpc_rollback)(asked.xid)
        return api.Done()

    @api.post("/store/forget-producer")
    def forget_producer(self, asked: api.ByName) -> api.Done:
        """Forget a producer. Raises UnknownQueueError."""
        self._own.forget_producer(asked.name)
        return api.Done()

    def progress(self) -> StoreStatus:
        """Return how the store stands."""
        return self.status()

    def ready(self) -> str:
        """Say why the store takes nothing; empty where it does."""
        return self._own.closed_by()

    def families(self) -> Iterable[Metric]:
        """Return the store's metrics. Raises LogClosedError."""
        from tranlog.service.process.metrics import store_families

        return store_families(self.status(), self._own.path)


def _check_ends(asked: api.Bind) -> None:
    if (asked.queue is None) == (asked.destination is None):
        why = "a binding leads to a queue or to an exchange: name one of queue and destination"
        raise ConfigError(option="queue", value=asked.queue, why=why)


def _told(delivery: Delivery) -> dict[str, Any]:
    message = delivery.message
    return {
        "id": lsn_text(delivery.id),
        "queue": delivery.queue,
        "bytes": message.total_length - message.header_length,
        "stored_at_ms": message.stored_at,
        "redelivered": delivery.redelivered,
        "attempts": delivery.attempts,
        "priority": delivery.priority,
        "expires_at_ms": delivery.place.expires_at or None,
        "header": delivery.header,
    }


@contextmanager
def store_looks(path: str) -> Iterator[StoreLooks]:
    """Give whoever can tell how the store at `path` stands: the process that serves it, else its files.

    Raises as `StoreReader.open`, and what the process refuses.
    """
    owner = owner_of(path)
    if any(os.path.exists(address) for address in owner.addresses):  # else its library need not be loaded
        try:
            owner.ask("/livez")
        except ControlError:
            pass  # of a process that was killed
        else:
            yield operations_of(owner, StoreLooks, timeout_s=_TIMEOUT_S)
            return
    with StoreReader.open(path) as reader:
        yield StoreLooks(reader)


def store_part(path: str, open_store: Callable[[str], MessageStore]) -> AbstractContextManager[StorePart]:
    """Give whoever can change the store at `path`: this process, which opens it, or the one that serves it.

    Raises as `open_store`; LogLockedError where its owner does not answer.
    """
    return opened_or_asked(lambda: open_store(path), StorePart, owner_of(path), timeout_s=_TIMEOUT_S)

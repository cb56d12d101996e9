"""The named objects of a store: queues, exchanges, bindings, producers; and the routing of messages by them.

Owns the calls that change the catalogue, and the order of catalogue and log: a queue is created before the first record
that names it, and deleted before the records that remove its messages.

Source: Design for Hybrid SQL/CLFS-Based Store in Qpid, first section and "Recovery".
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tranlog.errors import DeclaredOtherwiseError, UnknownQueueError
from tranlog.queues.core import StoreCore
from tranlog.queues.rules.containers import Need
from tranlog.queues.rules.records import PART_FORGOTTEN, POSITION_BYTES_MOST, WHOLE, NamedPosition, ProducerStep
from tranlog.queues.rules.routing import Router, check_arguments, check_exchange


class StoreDefinitions:
    """The named things of an open store. Threads: any, for every method. Each change is durable when it returns.

    Methods raise UnknownQueueError for an unknown name; DeclaredOtherwiseError for a name that exists with other
    properties or is not allowed; CatalogueError; LogClosedError.
    """

    def __init__(self, core: StoreCore) -> None:
        self._core = core
        self._catalogue = core.catalogue
        self._journal = core.journal
        # With the catalogue's count of changes then, and the names of queues by their ids.
        self._router: tuple[int, Router, dict[int, str]] | None = None

    def sync(self) -> None:
        """Return when everything that any call has done so far is durable."""
        self._journal.commit()

    def declare(self, queue: str, *, arguments: bytes = b"", transient: bool = False) -> int:
        """Create a queue if it is missing; return its id, which is never given out again.

        A `transient` queue is in memory only, with its bindings and messages: it is gone when the store is closed or
        its process dies. Its id is below 0.
        """
        if not isinstance(arguments, bytes):
            raise TypeError(f"arguments of a queue are bytes, not {arguments!r}")
        with self._journal.lock:
            self._journal.check_open()
            found = self._catalogue.declare_queue(queue, arguments, transient=transient)
            self._core.catalogue_changed()
            return found.id

    def delete(self, queue: str) -> None:
        """Delete a queue with its bindings and messages."""
        with self._journal.lock:
            self._journal.check_open()
            found = self._catalogue.delete_queue(queue)
            self._core.catalogue_changed()
            with self._journal:
                self._core.drop_queue(found.id)
            self._journal.changed.tell()  # whoever waits for its next message
        self.sync()

    def declare_exchange(self, exchange: str, kind: str, *, alternate: str | None = None) -> int:
        """Create an exchange if it is missing: direct, fanout, topic or headers; return its id.

        A message that matches none of its bindings goes to the exchange `alternate`, if that exists then.
        """
        why = check_exchange(kind)
        if why is not None:
            raise DeclaredOtherwiseError(what=f"exchange {exchange!r}", why=why)
        with self._journal.lock:
            self._journal.check_open()
            found = self._catalogue.declare_exchange(exchange, kind, alternate=alternate)
            self._core.catalogue_changed()
            return found.id

    def delete_exchange(self, exchange: str) -> None:
        """Delete an exchange with its bindings."""
        with self._journal.lock:
            self._journal.check_open()
            self._catalogue.delete_exchange(exchange)
            self._core.catalogue_changed()

    def bind(
        self,
        exchange: str,
        *,
        queue: str | None = None,
        destination: str | None = None,
        key: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Bind an exchange to a queue, or to another exchange, its `destination`; an existing binding stays.

        `arguments` are what a headers exchange requires of a message's headers, with `x-match`; their values are those
        of JSON.
        """
        _check_ends(queue, destination)
        with self._journal.lock:
            self._journal.check_open()
            raw = _encoded(arguments)
            why = check_arguments(self._catalogue.exchange(exchange).type, arguments or {})
            if why is not None:
                raise DeclaredOtherwiseError(what=f"binding of exchange {exchange!r}", why=why)
            self._catalogue.bind(exchange, queue=queue, destination=destination, key=key, arguments=raw)
            self._core.catalogue_changed()

    def unbind(
        self,
        exchange: str,
        *,
        queue: str | None = None,
        destination: str | None = None,
        key: str = "",
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Remove the binding with all of these properties."""
        _check_ends(queue, destination)
        with self._journal.lock:
            self._journal.check_open()
            raw = _encoded(arguments)
            self._catalogue.unbind(exchange, queue=queue, destination=destination, key=key, arguments=raw)
            self._core.catalogue_changed()

    def route(self, exchange: str, key: str, headers: Mapping[str, object] | None = None) -> list[str]:
        """Return the queues to which a message would go. The exchange without a name leads to the queue named `key`."""
        if not isinstance(key, str):
            raise TypeError(f"a key is a str, not {key!r}")
        if headers is not None and not isinstance(headers, Mapping):
            raise TypeError(f"headers are a mapping, not {headers!r}")
        with self._journal.lock:
            self._journal.check_open()
            catalogue = self._catalogue
            if self._router is None or self._router[0] != catalogue.changes:
                ids = {queue.name: queue.id for queue in catalogue.queues.values()}
                router = Router(ids, catalogue.exchanges.values(), catalogue.bindings, _decoded)
                self._router = catalogue.changes, router, {queue_id: name for name, queue_id in ids.items()}
            _, router, names = self._router
            try:
                found = router.route(exchange, key, headers or {})
            except KeyError:
                raise UnknownQueueError(what=f"exchange {exchange!r}") from None
            return [names[queue_id] for queue_id in found]

    def queues(self) -> dict[str, tuple[int, int]]:
        """Return by queue how many messages wait on it, and how many are held."""
        with self._journal.lock:
            self._journal.check_open()
            held: dict[int, int] = {}
            for place in self._core.held:
                held[place.queue_id] = held.get(place.queue_id, 0) + 1
            return {
                queue.name: (len(self._core.row(queue.id)), held.get(queue.id, 0))
                for queue in self._catalogue.queues.values()
            }

    def producers(self) -> dict[str, int]:
        """Return the last stored number of each producer that uses `publish_once`, by name."""
        with self._journal.lock:
            self._journal.check_open()
            return {name.decode(): one.number for name, one in self._core.state.positions.items()}

    def forget_producer(self, name: str) -> None:
        """Forget a producer: its numbers start again. Durable on return. Raises UnknownQueueError."""
        with self._journal.lock:
            self._journal.check_open()
            if name not in self.producers():
                raise UnknownQueueError(what=f"producer {name!r}")
            with self._journal:
                self._journal.admit(POSITION_BYTES_MOST, Need.DRAIN)
                self._core.stand(ProducerStep(name.encode(), NamedPosition(0, 0, PART_FORGOTTEN)), WHOLE)
        self.sync()


def _check_ends(queue: str | None, destination: str | None) -> None:
    """Raise ValueError where a binding leads to nothing, or to two."""
    if (queue is None) == (destination is None):
        raise ValueError("a binding leads to a queue, or to another exchange: name one of the two")


def _encoded(arguments: Mapping[str, object] | None) -> bytes:
    """Return a binding's arguments as they are stored. Raises TypeError for what would be something else when read."""
    raw = msgspec.json.encode(dict(arguments), order="sorted") if arguments else b""
    if raw and _decoded(raw) != arguments:
        raise TypeError(f"arguments of a binding have the values of JSON, not {arguments!r}")
    return raw


def _decoded(raw: bytes) -> dict[str, object]:
    return msgspec.json.decode(raw, type=dict[str, object]) if raw else {}

"""The state that the records of a store make: messages, their places on queues, open transactions, positions.

Owns the effect of each record, the same when it is written and when it is recovered, and the number of objects that
each container still holds. The hard idea: what a transaction did to a message is noted at the place itself. So an
outcome is one record, and no other transaction can use a place while one does.

Source: docs/format.md, "Bodies"; Design for Hybrid SQL/CLFS-Based Store in Qpid, "In-Memory Objects".
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from mypy_extensions import mypyc_attr

from tranlog.ids import Lsn
from tranlog.lsn import lsn_segment, lsn_text
from tranlog.queues.rules import records
from tranlog.queues.rules.containers import can_be_moved
from tranlog.queues.rules.records import PART_FORGOTTEN, NamedPosition, QueueRecord

NO_LSN = Lsn(0)


class Contradiction(Exception):
    """A record that contradicts those before it."""


@mypyc_attr(acyclic=True)
class QueuePlace:
    """A message on a queue. `enqueuing`, `dequeuing`: the undecided transaction that puts it there, or removes it.

    When compiled, this and Message are not tracked by the garbage collector: there are millions, and they are in no
    cycle.
    """

    __slots__ = ("attempts", "dequeuing", "enqueued", "enqueuing", "expires_at", "priority", "queue_id", "visible")

    def __init__(
        self, queue_id: int, visible: Lsn, enqueued: Lsn, expires_at: int, priority: int, attempts: int = 0
    ) -> None:
        self.queue_id = queue_id
        self.visible = visible
        self.enqueued = enqueued
        self.expires_at = expires_at
        self.priority = priority
        self.attempts = attempts
        self.enqueuing = NO_LSN
        self.dequeuing = NO_LSN

    @property
    def order(self) -> tuple[int, ...]:
        """The key of the queue's order."""
        return self.visible, self.enqueued

    @property
    def needs(self) -> Lsn:
        """The record that must be durable before the message is delivered."""
        return self.visible

    @property
    def free(self) -> bool:
        """Whether no transaction is at it."""
        return not (self.enqueuing or self.dequeuing)


@mypyc_attr(acyclic=True)
class TransientPlace(QueuePlace):
    """A transient message on a queue, between the records that were put before and after it.

    `visible` and `enqueued` are at or after the last record before it, and below the next one. `number` rises from one
    transient message to the next. `after`: the Commit that must be durable first, NO_LSN for none.
    """

    __slots__ = ("after", "number")

    def __init__(
        self, queue_id: int, visible: Lsn, enqueued: Lsn, expires_at: int, priority: int, number: int, after: Lsn
    ) -> None:
        super().__init__(queue_id, visible, enqueued, expires_at, priority)
        self.number = number
        self.after = after

    @property
    def order(self) -> tuple[int, ...]:
        """The key of the queue's order."""
        return self.visible, self.enqueued, self.number

    @property
    def needs(self) -> Lsn:
        """The record that must be durable before the message is delivered; NO_LSN for none."""
        return self.after


@mypyc_attr(acyclic=True)
class Message:
    """A message in the log. `id` is the LSN of its Start, `stands` that or the LSN of its last Move.

    A transient message is only in memory: both are NO_LSN, and it is not in `QueueState`.

    `got`: how many bytes of header and content are there, of `total_length`. `chunks`: the places of the sections after
    the first one. `content`: header and content, as far as they are kept in memory.
    """

    __slots__ = ("chunks", "content", "got", "header_length", "id", "places", "stands", "stored_at", "total_length")

    def __init__(
        self,
        message_id: Lsn,
        stands: Lsn,
        stored_at: int,
        header_length: int,
        total_length: int,
        got: int = 0,
        places: tuple[QueuePlace, ...] = (),
    ) -> None:
        self.id = message_id
        self.stands = stands
        self.stored_at = stored_at
        self.header_length = header_length
        self.total_length = total_length
        self.got = got
        self.chunks: list[Lsn] | None = None
        self.places = places
        self.content: bytes | None = None

    @property
    def complete(self) -> bool:
        """Whether all of its content is there."""
        return self.got == self.total_length

    @property
    def transient(self) -> bool:
        """Whether it is in memory alone."""
        return not self.id

    def leave(self, place: QueuePlace) -> None:
        """Take it off a place."""
        self.places = tuple([one for one in self.places if one is not place])

    def place_on(self, queue_id: int) -> QueuePlace | None:
        """Return its place on a queue."""
        for place in self.places:
            if place.queue_id == queue_id:
                return place
        return None


class MessageTable:
    """Messages by id. Each container has a dict of its own: one of all would not fit the processor's caches."""

    __slots__ = ("_by_container", "_count")

    def __init__(self) -> None:
        self._by_container: dict[int, dict[int, Message]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, message_id: Lsn) -> Message | None:
        """Return a message; None for one that is not there."""
        found = self._by_container.get(message_id >> 32)
        return None if found is None else found.get(message_id)

    def values(self) -> list[Message]:
        """Return all."""
        return [message for one in self.parts() for message in one.values()]

    def parts(self) -> list[dict[int, Message]]:
        """Return the containers' dicts, not to be changed: a list of millions takes longer than a walk."""
        return list(self._by_container.values())

    def add(self, message: Message) -> None:
        """Add a message."""
        number = message.id >> 32
        found = self._by_container.get(number)
        if found is None:
            found = self._by_container[number] = {}
        self._count += message.id not in found
        found[message.id] = message

    def add_all(self, number: int, messages: list[Message]) -> None:
        """Add messages that began in this container, and are not there."""
        found = self._by_container.setdefault(number, {})
        for message in messages:
            found[message.id] = message
        self._count += len(messages)

    def remove(self, message: Message) -> None:
        """Remove a message that is there."""
        number = message.id >> 32
        found = self._by_container[number]
        del found[message.id]
        self._count -= 1
        if not found:
            del self._by_container[number]


class QueueTransaction:
    """A transaction without outcome. `id` is the LSN of its start, `xid` empty for a local one.

    `operations`: the messages and places that it touches, in order; True for what it puts there.
    """

    __slots__ = ("id", "operations", "prepared", "started", "xid")

    def __init__(self, transaction_id: Lsn, xid: bytes = b"", *, started: bool = False) -> None:
        self.id = transaction_id
        self.xid = xid
        self.prepared = False
        self.started = started
        self.operations: list[tuple[Message, QueuePlace, bool]] = []


class QueueState:
    """The state of the whole log. One thread at a time; the store's lock guards it."""

    def __init__(self) -> None:
        self.messages = MessageTable()
        self.transactions: dict[Lsn, QueueTransaction] = {}
        """Those without outcome."""
        self.positions: dict[bytes, NamedPosition] = {}
        self.live: dict[int, int] = {}
        """By container: messages that stand there, and undecided transactions that began there."""
        self.live_bytes = 0
        """Of header and content of all messages."""

    # --- space ---------------------------------------------------------------------------------------

    def lowest(self, otherwise: int) -> int:
        """Return the number of the lowest container that is still needed."""
        return next(iter(self.live), otherwise)  # they come in the order of their numbers

    def pinning(
        self, number: int, container_bytes: int, count: int = 1
    ) -> tuple[list[Message], list[Message], list[QueueTransaction]]:
        """Return the contents of `count` containers: messages that can be moved, others, undecided transactions.

        Those that can be moved are in the order of their places.
        """
        numbers = range(number, number + count)
        movable: list[Message] = []
        fixed: list[Message] = []
        for message in self.messages.values():
            if lsn_segment(message.stands) in numbers:
                free = message.complete and message.places and all(place.free for place in message.places)
                fits = can_be_moved(message.total_length, len(message.places), container_bytes)
                (movable if free and fits else fixed).append(message)
        started = (one for one in self.transactions.values() if one.started)
        movable.sort(key=lambda one: one.stands)
        return movable, fixed, [one for one in started if lsn_segment(one.id) in numbers]

    def hold(self, number: int, count: int) -> None:
        """Count so many more messages and transactions of a container, or fewer."""
        left = self.live.get(number, 0) + count
        if left:
            self.live[number] = left
        elif number in self.live:
            del self.live[number]

    def _hold(self, place: Lsn) -> None:
        self.hold(place >> 32, 1)

    def _let_go(self, place: Lsn) -> None:
        self.hold(place >> 32, -1)

    # --- messages ------------------------------------------------------------------------------------

    def start(self, place: Lsn, stored_at: int, header_length: int, total_length: int, size: int) -> Message:
        """Begin a message with `size` bytes of it."""
        message = Message(place, place, stored_at, header_length, total_length)
        self.know(message)
        self._hold(place)
        if size == total_length:
            message.got = total_length  # one object of the two, for each message that waits
        else:
            self._add(message, size)
        return message

    def put_whole(self, place: Lsn, stored_at: int, header_length: int, total_length: int, on: QueuePlace) -> Message:
        """Begin a message, all of it, on one queue."""
        message = Message(place, place, stored_at, header_length, total_length, total_length, (on,))
        self.know(message)
        self._hold(place)
        return message

    def know(self, message: Message) -> None:
        """Note a message, but not its place."""
        self.messages.add(message)
        self.live_bytes += message.total_length

    def know_all(self, number: int, messages: list[Message]) -> None:
        """Note messages that began in a container, are not known, and stand there."""
        if messages:
            self.messages.add_all(number, messages)
            self.hold(number, len(messages))
            for message in messages:
                self.live_bytes += message.total_length

    def chunk(self, place: Lsn, message_id: Lsn, at: int, size: int) -> None:
        """Add the next bytes of a message."""
        message = self.messages.get(message_id)
        if message is None:
            return
        if at != message.got:
            raise Contradiction(f"a Chunk at byte {at} of message {lsn_text(message_id)}, which has {message.got}")
        if message.chunks is None:
            message.chunks = []
        message.chunks.append(place)
        self._add(message, size)

    def _add(self, message: Message, size: int) -> None:
        message.got = message.got + size if message.got else size
        if message.got > message.total_length:
            raise Contradiction(f"message {lsn_text(message.id)} is longer than the {message.total_length} it said")

    def enqueue(
        self, place: Lsn, message_id: Lsn, queue_id: int, transaction: Lsn, expires_at: int, priority: int
    ) -> QueuePlace | None:
        """Put a message on a queue; None if the message is gone."""
        message = self.messages.get(message_id)
        if message is None:
            return None
        if message.place_on(queue_id) is not None:
            raise Contradiction(f"message {lsn_text(message_id)} is put on queue {queue_id} twice")
        found = QueuePlace(queue_id, place, place, expires_at, priority)
        message.places += (found,)
        if transaction:
            found.enqueuing = transaction
            self._transaction(transaction).operations.append((message, found, True))
        return found

    def dequeue(self, message_id: Lsn, queue_id: int, transaction: Lsn) -> None:
        """Remove a message from a queue, or note that a transaction does."""
        message = self.messages.get(message_id)
        place = None if message is None else message.place_on(queue_id)
        if message is None or place is None:
            return
        if not transaction:
            message.leave(place)
            return
        if not place.free:
            raise Contradiction(f"two transactions take message {lsn_text(message_id)} off queue {queue_id}")
        place.dequeuing = transaction
        self._transaction(transaction).operations.append((message, place, False))

    def delete(self, message_id: Lsn) -> None:
        """End a message."""
        message = self.messages.get(message_id)
        if message is not None:
            self.messages.remove(message)
            self.live_bytes -= message.total_length
            self._let_go(message.stands)

    def move(self, place: Lsn, message: Message, size: int) -> None:
        """Move a message to `place`, with its first `size` bytes; its Chunks follow."""
        known = self.messages.get(message.id)
        if known is None:
            self.know(message)
            known = message
        else:
            self._let_go(known.stands)
        known.stands = place
        known.chunks = None
        known.got = 0
        self._hold(place)
        self._add(known, size)

    def attempt(self, message_id: Lsn, queue_id: int, attempts: int) -> None:
        """Note how often a message came back to a queue."""
        message = self.messages.get(message_id)
        place = None if message is None else message.place_on(queue_id)
        if place is not None:
            place.attempts = attempts

    # --- transactions --------------------------------------------------------------------------------

    def begin(self, place: Lsn, xid: bytes = b"") -> QueueTransaction:
        """Begin a transaction."""
        made = self.transactions[place] = QueueTransaction(place, xid, started=True)
        self._hold(place)
        return made

    def _transaction(self, transaction: Lsn) -> QueueTransaction:
        """Return one that has no outcome yet; where its start is not there, it began below the base."""
        found = self.transactions.get(transaction)
        if found is None:
            found = self.transactions[transaction] = QueueTransaction(transaction)
        return found

    def prepare(self, transaction: Lsn) -> None:
        """Prepare a transaction: it waits for its outcome, also after a crash."""
        self._transaction(transaction).prepared = True

    def _decide(self, transaction: Lsn) -> list[tuple[Message, QueuePlace, bool]]:
        found = self.transactions.pop(transaction, None)
        if found is None:
            return []
        if found.started:
            self._let_go(transaction)
        return found.operations

    def commit(self, place: Lsn, transaction: Lsn) -> list[tuple[Message, QueuePlace]]:
        """Carry a transaction out; return what became visible."""
        shown = []
        for message, on, puts in self._decide(transaction):
            if on not in message.places:  # its queue was deleted meanwhile
                continue
            if puts:
                on.enqueuing, on.visible = NO_LSN, place
                shown.append((message, on))
            else:
                message.leave(on)
        return shown

    def roll_back(self, transaction: Lsn) -> list[tuple[Message, QueuePlace]]:
        """Undo a transaction; return the places that are free again."""
        freed = []
        for message, on, puts in self._decide(transaction):
            if on not in message.places:
                continue
            if puts:
                message.leave(on)
            else:
                on.dequeuing = NO_LSN
                freed.append((message, on))
        return freed

    # --- recovery ------------------------------------------------------------------------------------

    def stand(self, name: bytes, position: NamedPosition) -> None:
        """Note where a producer stands, or forget it."""
        if position.part == PART_FORGOTTEN:
            self.positions.pop(name, None)
        else:
            self.positions[name] = position

    def abort_open(self) -> list[Lsn]:
        """Roll back the transactions without outcome and without Prepare; return their ids."""
        found = [one.id for one in self.transactions.values() if not one.prepared]
        for transaction in found:
            self.roll_back(transaction)
        return found

    def drop_unknown(self, queues: Collection[int]) -> list[tuple[Message, int]]:
        """Remove messages from queues that are not among these; return each message and queue."""
        dropped: list[tuple[Message, int]] = []
        for part in self.messages.parts():
            for message in part.values():
                for place in message.places:
                    if place.queue_id not in queues:
                        dropped.append((message, place.queue_id))
                        message.leave(place)
        return dropped

    def homeless(self) -> list[Message]:
        """Return the messages that are on no queue, or incomplete."""
        parts = self.messages.parts()
        return [one for part in parts for one in part.values() if not one.places or one.got != one.total_length]

    def apply(self, record: QueueRecord, section: int) -> None:
        """Apply a record of a whole group. `section`: bytes of content in it, which its body here may lack.

        Raises Contradiction.
        """
        apply = _APPLY.get(record.record_type)
        if apply is not None:
            apply(self, record, section)


def _start(state: QueueState, record: QueueRecord, section: int) -> None:
    kind, stored_at, header_length, total_length = records.START_BODY.unpack_from(record.body)
    if kind:
        raise Contradiction(f"a Start of kind {kind}, which this release does not know")
    state.start(record.lsn, stored_at, header_length, total_length, section)


def _chunk(state: QueueState, record: QueueRecord, section: int) -> None:
    state.chunk(record.lsn, record.undo_prev, records.CHUNK_BODY.unpack_from(record.body)[0], section)


def _enqueue(state: QueueState, record: QueueRecord, section: int) -> None:
    queue_id, transaction, expires_at, priority = records.ENQUEUE_BODY.unpack(record.body)
    state.enqueue(record.lsn, record.undo_prev, queue_id, Lsn(transaction), expires_at, priority)


def _dequeue(state: QueueState, record: QueueRecord, section: int) -> None:
    queue_id, transaction, _ = records.DEQUEUE_BODY.unpack(record.body)
    state.dequeue(record.undo_prev, queue_id, Lsn(transaction))


def _move(state: QueueState, record: QueueRecord, section: int) -> None:
    stored_at, header_length, total_length, count = records.MOVE_BODY.unpack_from(record.body)
    message = Message(record.undo_prev, record.lsn, stored_at, header_length, total_length)
    for number in range(count):
        at = records.MOVE_BODY.size + number * records.MOVE_PLACE.size
        queue_id, visible, enqueued, *rest = records.MOVE_PLACE.unpack_from(record.body, at)
        message.places += (QueuePlace(queue_id, Lsn(visible), Lsn(enqueued), *rest),)
    state.move(record.lsn, message, section)


def _attempt(state: QueueState, record: QueueRecord, section: int) -> None:
    state.attempt(record.undo_prev, *records.ATTEMPT_BODY.unpack(record.body))


def _position(state: QueueState, record: QueueRecord, section: int) -> None:
    for name, position in positions_of(record).items():
        state.stand(name, position)


_APPLY: dict[int, Callable[[QueueState, QueueRecord, int], object]] = {
    records.POSITION: _position,
    records.START: _start,
    records.CHUNK: _chunk,
    records.ENQUEUE: _enqueue,
    records.DEQUEUE: _dequeue,
    records.DELETE: lambda state, record, _: state.delete(record.undo_prev),
    records.MOVE: _move,
    records.ATTEMPT: _attempt,
    records.DTX_START: lambda state, record, _: state.begin(record.lsn, bytes(record.body)),
    records.TX_START: lambda state, record, _: state.begin(record.lsn),
    records.PREPARE: lambda state, record, _: state.prepare(record.undo_prev),
    records.COMMIT: lambda state, record, _: state.commit(record.lsn, record.undo_prev),
    records.ROLLBACK: lambda state, record, _: state.roll_back(record.undo_prev),
}
"""What a record does; End and the transaction's Delete change nothing that the outcome has not."""


def section_start(record: QueueRecord) -> int | None:
    """Return where in a record's body its section begins; None for one without. Raises Contradiction."""
    match record.record_type:
        case records.START:
            return records.START_BODY.size
        case records.CHUNK:
            return records.CHUNK_BODY.size
        case records.MOVE:
            count = int(records.MOVE_BODY.unpack_from(record.body)[3])
            begin = records.MOVE_BODY.size + count * records.MOVE_PLACE.size
            if begin > len(record.body):
                raise Contradiction(f"a Move to {count} places, for which it has no room")
            return begin
        case _:
            return None


def positions_of(record: QueueRecord) -> dict[bytes, NamedPosition]:
    """Return the positions in a Position or a Checkpoint. Raises Contradiction."""
    try:
        return records.parse_positions(record.body, record.record_type)
    except ValueError as exc:
        raise Contradiction(str(exc)) from exc


def in_order(messages: MessageTable) -> dict[int, list[Message]]:
    """Return the waiting messages of each queue, in order, without those that a transaction uses."""
    rows: dict[int, list[Message]] = {}
    last: dict[int, QueuePlace] = {}
    late: dict[int, list[tuple[tuple[int, ...], Message]]] = {}
    queue, row = -1, list[Message]()  # those of the place before: the next one is often on the same queue
    before: QueuePlace | None = None
    for part in messages.parts():
        for message in part.values():
            for place in message.places:
                if place.enqueuing or place.dequeuing:
                    continue
                if place.queue_id != queue:
                    if before is not None:
                        last[queue] = before
                    queue = place.queue_id
                    row, before = rows.setdefault(queue, []), last.get(queue)
                if before is None or (
                    before.visible < place.visible
                    or (before.visible == place.visible and before.enqueued < place.enqueued)
                ):  # a tuple of each would be made
                    row.append(message)
                    before = place
                else:  # it was moved, or became visible by a transaction
                    late.setdefault(queue, []).append((place.order, message))
    for queue, rest in late.items():
        rows[queue] = _merged(queue, rows[queue], sorted(rest))  # no two are enqueued at one place
    return rows


def _merged(queue: int, row: list[Message], rest: list[tuple[tuple[int, ...], Message]]) -> list[Message]:
    found: list[Message] = []
    at = 0
    for order, message in rest:
        while at < len(row) and (place := row[at].place_on(queue)) is not None and place.order < order:
            found.append(row[at])
            at += 1
        found.append(message)
    return found + row[at:]

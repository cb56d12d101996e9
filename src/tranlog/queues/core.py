"""The working parts of an open store under one lock: journal, state, queues in memory, content.

Owns how an operation becomes a group of records, and after that its effect on the queues in memory: a group for which
there is no room changes nothing. Names and waiting threads belong to `store`.

Source: docs/format.md, "Groups, order, what a recovery believes".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import index
from typing import NoReturn, Protocol

from tranlog.clock import Clock
from tranlog.errors import DeclaredOtherwiseError, DiskFullError, NotHeldError
from tranlog.ids import Lsn
from tranlog.lsn import lsn_text
from tranlog.queues.files.catalogue import Catalogue
from tranlog.queues.files.journal import QueueJournal
from tranlog.queues.moving import tidy
from tranlog.queues.rules import records
from tranlog.queues.rules.containers import Need, largest_section
from tranlog.queues.rules.records import (
    CHUNK,
    CHUNK_BODY,
    DELETE,
    DEQUEUE,
    DEQUEUE_BODY,
    ENQUEUE,
    ENQUEUE_BODY,
    EXPIRED,
    FIRST,
    LAST,
    OVERHEAD,
    POSITION,
    POSITION_BYTES_MOST,
    POSITIONS_MOST,
    PURGED,
    QUEUE_GONE,
    SECTION_BYTES,
    START,
    START_BODY,
    WHOLE,
    ProducerStep,
    encode_position,
)
from tranlog.queues.rules.runs import RunWriter
from tranlog.queues.rules.state import NO_LSN, Message, QueuePlace, QueueState, in_order, section_start
from tranlog.queues.transient import TransientMessages
from tranlog.queues.waiting import PutBack, QueueRow

logger = logging.getLogger(__name__)

_START_BYTES = OVERHEAD + START_BODY.size
_ENQUEUE_BYTES = OVERHEAD + ENQUEUE_BODY.size
_PUBLISH_BYTES = _START_BYTES + _ENQUEUE_BYTES
_DEQUEUE_BYTES = 2 * OVERHEAD + DEQUEUE_BODY.size
_STANDING = (QUEUE_GONE, EXPIRED)
"""Reasons that the next opening finds again, if there is no room to write that a message left for one of them."""
_RUN_BYTES = 256 * 1024
"""So much is put at once of what is published together."""


class HoldsContent(Protocol):
    """Where a message's content is read."""

    def read(self, message: Message) -> Iterator[bytes]:
        """Read a message's header and content in parts."""


class Delivery:
    """A message that was taken from a queue and is held until it is answered. Threads: any, one at a time.

    `redelivered`: it may have been taken before, since it came back, or was there when the store was opened: the log
    does not say what was handed out. `attempts`: how often it came back.
    """

    __slots__ = ("_held_by", "message", "place", "queue", "redelivered")

    def __init__(
        self, held_by: HoldsContent, queue: str, message: Message, place: QueuePlace, redelivered: bool
    ) -> None:
        self._held_by = held_by
        self.queue = queue
        self.message = message
        self.place = place
        self.redelivered = redelivered

    @property
    def id(self) -> Lsn:
        """The message's persistence id; 0 for a transient one."""
        return self.message.id

    @property
    def attempts(self) -> int:
        """How often it came back."""
        return self.place.attempts

    @property
    def priority(self) -> int:
        """The publisher's priority; a queue's order does not depend on it."""
        return self.place.priority

    @property
    def header(self) -> bytes:
        """The header that it was published with."""
        return _first(self.sections(), self.message.header_length)

    @property
    def content(self) -> bytes:
        """All of its content. `sections` needs less memory for a large one."""
        kept = self.message.content
        return (b"".join(self.sections()) if kept is None else kept)[self.message.header_length :]

    def parts(self) -> Iterator[bytes]:
        """Read its content in parts of up to 64 KiB."""
        skip = self.message.header_length
        for part in self.sections():
            yield part[skip:]
            skip = max(skip - len(part), 0)

    def begins(self, size: int) -> bytes:
        """Return the first bytes of its content, at most `size`."""
        return _first(self.parts(), size)

    def sections(self) -> Iterator[bytes]:
        """Read the header, then the content, in parts of up to 64 KiB."""
        return self._held_by.read(self.message)

    def __str__(self) -> str:
        return f"message {lsn_text(self.id)} of queue {self.queue!r}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: a copy would be held by nobody."""
        raise TypeError(f"{self} cannot be copied or pickled; take its header and content")


def _first(parts: Iterator[bytes], size: int) -> bytes:
    """Return the first bytes of these parts, at most `size`, and read no further."""
    found = bytearray()
    for part in parts:
        found += part
        if len(found) >= size:
            break
    return bytes(found[:size])


def _waiting_on(message: Message, queue_id: int) -> QueuePlace:
    """Return a message's place on the queue on which it waits."""
    place = message.place_on(queue_id)
    assert place is not None, "what waits on a queue is on it"
    return place


class StoreCore:
    """An open store. `journal.lock` guards everything here; the caller holds it, except for `read`."""

    def __init__(
        self,
        journal: QueueJournal,
        state: QueueState,
        catalogue: Catalogue,
        clock: Clock,
        content_bytes: int,
        transient: TransientMessages,
    ) -> None:
        self.journal = journal
        self.state = state
        self.catalogue = catalogue
        self.transient = transient
        self.held: dict[QueuePlace, Delivery] = {}  # what was taken and not answered
        self.put_back = PutBack()
        self._runs = RunWriter()
        self.section_bytes = largest_section(journal.files.container_bytes, SECTION_BYTES)
        self.recovered = journal.place
        """What was published before this place counts as redelivered."""
        journal.tidy = lambda count: tidy(journal, state, self.section, count)
        self._clock = clock
        self._room = content_bytes  # for content in memory
        self._rows = {queue_id: QueueRow(queue_id, row) for queue_id, row in in_order(state.messages).items()}

    def row(self, queue_id: int) -> QueueRow:
        """Return what waits on a queue."""
        found = self._rows.get(queue_id)
        if found is None:
            found = self._rows[queue_id] = QueueRow(queue_id)
        return found

    def catalogue_changed(self) -> None:
        """Write the catalogue's counter into the log; changes of transient queues are not counted."""
        if self.journal.counter != self.catalogue.counter:
            self.journal.counter = self.catalogue.counter
            self.journal.sync_due = True

    # --- putting -------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the time for a record's stamp."""
        return self._clock.now_ms()

    def started(self, place: Lsn, stored_at: int, header_length: int, raw: bytes) -> Message:
        """Begin a message that stands in the log, whole, in one section; keep its content if there is room."""
        return self._keep(self.state.start(place, stored_at, header_length, len(raw), len(raw)), raw)

    def _keep(self, message: Message, raw: bytes) -> Message:
        if len(raw) <= self._room:
            self._room -= len(raw)
            message.content = raw
        return message

    def publish_small(
        self,
        header_length: int,
        raw: bytes,
        queues: Sequence[int],
        expires_at: int,
        priority: int,
        once: ProducerStep | None,
        wait: bool,
    ) -> Message:
        """Put a message that fits one section on queues, as one group. `wait`: its publisher will wait for it."""
        size = _PUBLISH_BYTES + len(raw)
        if len(queues) == 1 and once is None and self.journal.fits(size):
            return self._publish_run(header_length, (raw,), size, queues[0], expires_at, priority, wait)[0]
        return self._publish_group(header_length, raw, queues, expires_at, priority, once)

    def publish_each(
        self, header_length: int, raws: Sequence[bytes], queue_id: int, expires_at: int, priority: int
    ) -> list[Message]:
        """Put messages that fit one section each on a queue, each as a group of its own."""
        found: list[Message] = []
        while len(found) < len(raws):
            size, run = 0, []  # what goes into the newest container, and is put at once
            for raw in islice(raws, len(found), None):
                more = size + _PUBLISH_BYTES + len(raw)
                if more > _RUN_BYTES or not self.journal.fits(more):
                    break
                size = more
                run.append(raw)
            if run:
                found += self._publish_run(header_length, run, size, queue_id, expires_at, priority)
            else:
                raw = raws[len(found)]
                found.append(self._publish_group(header_length, raw, (queue_id,), expires_at, priority, None))
        return found

    def _publish_run(
        self,
        header_length: int,
        run: Sequence[bytes],
        size: int,
        queue_id: int,
        expires_at: int,
        priority: int,
        wait: bool = False,
    ) -> list[Message]:
        """Put messages, whose groups have `size` bytes and fit the newest container, on a queue."""
        journal, state, row, stored_at = self.journal, self.state, self.row(queue_id), self._clock.now_ms()
        journal.admit(size, Need.PUBLISH)
        place = begin = journal.next_place()
        epoch = journal.epoch
        pieces: list[bytes] = []
        for raw in run:
            pieces += self._runs.published(epoch, place, stored_at, header_length, raw, queue_id, expires_at, priority)
            place = Lsn(place + _PUBLISH_BYTES + len(raw))
        journal.put_whole(pieces, size, wait=wait)
        found: list[Message] = []
        for raw in run:
            enqueued = Lsn(begin + _START_BYTES + len(raw))
            on = QueuePlace(queue_id, enqueued, enqueued, expires_at, priority)
            message = self._keep(state.put_whole(begin, stored_at, header_length, len(raw), on), raw)
            row.append(message)
            found.append(message)
            begin = Lsn(enqueued + _ENQUEUE_BYTES)
        row.counts.published += len(run)
        return found

    def _publish_group(
        self,
        header_length: int,
        raw: bytes,
        queues: Sequence[int],
        expires_at: int,
        priority: int,
        once: ProducerStep | None,
    ) -> Message:
        """Put a message record by record: on several queues, with its producer's step, or over a container's end."""
        behind = len(queues) * _ENQUEUE_BYTES + (POSITION_BYTES_MOST if once else 0)
        self.journal.admit(_START_BYTES + len(raw) + behind, Need.PUBLISH)
        stored_at = self._clock.now_ms()
        place = self.journal.put(START, FIRST, NO_LSN, START_BODY.pack(0, stored_at, header_length, len(raw)) + raw)
        message = self.started(place, stored_at, header_length, raw)
        try:
            self.enqueue(message, queues, expires_at, priority, once)
        except BaseException:
            self.forget(message)  # its group is cut off, and counts for nothing
            raise
        return message

    def show_transient(
        self,
        message: Message,
        raw: bytes,
        queues: Sequence[int],
        expires_at: int,
        priority: int,
        *,
        behind: Lsn | None = None,
        commit: Lsn | None = None,
    ) -> None:
        """Put a transient message on queues, with header and content, after the messages that are on them.

        `behind`, `commit`: within a transaction, the place of its turn, and the place of the Commit.
        """
        behind = self.journal.place if behind is None else behind
        message.content = raw
        message.places = tuple(self.transient.place(one, behind, commit, expires_at, priority) for one in queues)
        for place in message.places:
            row = self.row(place.queue_id)
            row.add(message, place)
            row.counts.published += 1
        self.journal.changed.tell()

    def begin_large(self, header_length: int, total_length: int, section: bytes) -> Message:
        """Put the first section of a message. The message has no effect until it is on a queue."""
        self.journal.admit(_START_BYTES + len(section), Need.PUBLISH)
        stored_at = self._clock.now_ms()
        body = START_BODY.pack(0, stored_at, header_length, total_length) + section
        place = self.journal.put(START, WHOLE, NO_LSN, body)
        return self.state.start(place, stored_at, header_length, total_length, len(section))

    def add_section(self, message: Message, section: bytes, flags: int = WHOLE, behind: int = 0) -> None:
        """Put the next section of a message. `behind`: how many Enqueues follow in its group."""
        journal = self.journal
        journal.admit(OVERHEAD + CHUNK_BODY.size + len(section) + behind * _ENQUEUE_BYTES, Need.PUBLISH)
        place = journal.put(CHUNK, flags, message.id, CHUNK_BODY.pack(message.got) + section)
        self.state.chunk(place, message.id, message.got, len(section))

    def enqueue(
        self, message: Message, queues: Sequence[int], expires_at: int, priority: int, once: ProducerStep | None
    ) -> None:
        """Put the records that end a publish's group, then the message on the queues."""
        put, places = self.journal.put, []
        for number, queue_id in enumerate(queues, start=1):
            body = ENQUEUE_BODY.pack(queue_id, 0, expires_at, priority)
            flags = LAST if number == len(queues) and once is None else 0
            places.append(put(ENQUEUE, flags, message.id, body))
        if once is not None:
            self.stand(once, LAST)
        for place, queue_id in zip(places, queues, strict=True):
            found = self.state.enqueue(place, message.id, queue_id, NO_LSN, expires_at, priority)
            assert found is not None, "it was started before"
            self._published(message, found)

    def _published(self, message: Message, on: QueuePlace) -> None:
        row = self.row(on.queue_id)
        row.append(message)
        row.counts.published += 1

    def stand(self, once: ProducerStep, flags: int) -> None:
        """Put a producer's position, at the end of its publish's group or alone."""
        self.journal.put(POSITION, flags, NO_LSN, encode_position(*once))
        self.state.stand(*once)

    def has_seen(self, once: ProducerStep) -> bool:
        """Whether a publish is a repeat. Raises DeclaredOtherwiseError if there is no room for the producer's name."""
        known = self.state.positions.get(once.name)
        if known is not None:
            return once.position.number <= known.number
        size = sum(len(name) for name in self.state.positions) + len(once.name)
        count = len(self.state.positions) + 1
        if count > POSITIONS_MOST or size + 22 * count > self.section_bytes:
            why = f"there are {count - 1} producers, and their names are in each container: forget some"
            raise DeclaredOtherwiseError(what=f"producer {once.name.decode()!r}", why=why)
        return False

    def forget(self, message: Message) -> None:
        """Forget a message that is deleted or was never complete."""
        if message.transient:
            self.transient.forget(message)
            return
        if message.content is not None:
            self._room += len(message.content)
            message.content = None
        self.state.delete(message.id)

    def delete(self, message: Message, need: Need = Need.DRAIN) -> None:
        """Delete a message that is on no queue. If there is no room to write that, the next opening deletes it."""
        with suppress(DiskFullError):
            self.journal.admit(OVERHEAD, need)
            self.journal.put(DELETE, WHOLE, message.id, b"")
        self.forget(message)

    def dequeue(self, message: Message, place: QueuePlace, reason: int, row: QueueRow | None = None) -> None:
        """Remove a message from a queue for good, and delete it with its last place. `row`: it is first there."""
        last = len(message.places) == 1
        if not message.transient:
            try:
                self._put_dequeue(message, place, reason, last=last)
            except DiskFullError:
                if reason not in _STANDING:
                    raise
        if row is not None:
            row.take()
        known = self._rows.get(place.queue_id)
        if known is not None:  # else its queue is being deleted
            known.counts.left(reason)
        message.leave(place)
        if last:
            self.forget(message)

    def _put_dequeue(self, message: Message, place: QueuePlace, reason: int, *, last: bool) -> None:
        """Put the records by which a message leaves a queue, and at its last place itself, as one group."""
        journal = self.journal
        journal.admit(_DEQUEUE_BYTES, Need.DRAIN)
        if last and journal.fits(_DEQUEUE_BYTES):
            at = journal.next_place()
            group = self._runs.taken(journal.epoch, at, message.id, place.queue_id, reason)
            journal.put_whole((group,), _DEQUEUE_BYTES)
            return
        body = DEQUEUE_BODY.pack(place.queue_id, 0, reason)
        journal.put(DEQUEUE, FIRST if last else WHOLE, message.id, body)
        if last:
            journal.put(DELETE, LAST, message.id, b"")

    def come_back(self, message: Message, place: QueuePlace) -> None:
        """Return a taken message to its queue, and count the attempt: in memory alone where the disk is full."""
        place.attempts += 1
        if not message.transient:
            with suppress(DiskFullError):
                self.journal.admit(OVERHEAD + records.ATTEMPT_BODY.size, Need.PUBLISH)  # it makes no room
                body = records.ATTEMPT_BODY.pack(place.queue_id, place.attempts)
                self.journal.put(records.ATTEMPT, WHOLE, message.id, body)
        row = self.row(place.queue_id)
        row.add(message, place)
        row.counts.requeued += 1

    # --- taking --------------------------------------------------------------------------------------

    def take(self, queue: str, queue_id: int, count: int) -> list[Delivery]:
        """Take the next messages of a queue that are durable, at most `count`. Expired ones are removed."""
        row, shown = self.row(queue_id), self.journal.shown
        found: list[Delivery] = []
        while len(found) < count and (message := row.first()) is not None:
            place = _waiting_on(message, queue_id)
            if 0 < place.expires_at <= self._clock.now_ms():
                self.dequeue(message, place, EXPIRED, row)
                continue
            if not self.put_back.is_shown(place, shown):
                break
            row.take()
            delivery = self.held[place] = self._delivery(queue, message, place)
            found.append(delivery)
        row.counts.delivered += len(found)
        return found

    def _delivery(self, queue: str, message: Message, place: QueuePlace) -> Delivery:
        redelivered = place.attempts > 0 or NO_LSN < message.id < self.recovered
        return Delivery(self, queue, message, place, redelivered)

    def waiting(self, queue: str, queue_id: int) -> Iterator[Delivery]:
        """Yield what `take` would return, in order, without taking it. The lock is held meanwhile."""
        shown, now_ms = self.journal.shown, self._clock.now_ms()
        for message in self.row(queue_id):
            place = _waiting_on(message, queue_id)
            if self.put_back.is_shown(place, shown) and not 0 < place.expires_at <= now_ms:
                yield self._delivery(queue, message, place)

    def check_held(self, delivery: Delivery) -> None:
        """Raise NotHeldError if a delivery was answered or its message is gone; TypeError if it is no delivery."""
        if not isinstance(delivery, Delivery):
            raise TypeError(f"a delivery is what `get` returned, not {delivery!r}")
        if self.held.get(delivery.place) is not delivery:
            raise NotHeldError(what=str(delivery), why="it is not held")

    def answer(self, deliveries: Collection[Delivery], reason: int) -> None:
        """Remove held deliveries from their queues, for good."""
        if self._answer_at_once(deliveries, reason):
            return
        for delivery in deliveries:
            self.dequeue(delivery.message, delivery.place, reason)
            del self.held[delivery.place]

    def _answer_at_once(self, deliveries: Collection[Delivery], reason: int) -> bool:
        """Write one piece for all, a group for each; False where that does not do, nothing being done."""
        journal, size = self.journal, _DEQUEUE_BYTES * len(deliveries)
        if not journal.fits(size) or any(one.message.transient or len(one.message.places) > 1 for one in deliveries):
            return False
        try:
            journal.admit(size, Need.DRAIN)
        except DiskFullError:
            return False  # for some of them there may be room
        at, epoch = journal.next_place(), journal.epoch
        pieces: list[bytes] = []
        for one in deliveries:
            pieces.append(self._runs.taken(epoch, at, one.message.id, one.place.queue_id, reason))
            at = Lsn(at + _DEQUEUE_BYTES)
        journal.put_whole(pieces, size)
        for one in deliveries:
            del self.held[one.place]
            self._rows[one.place.queue_id].counts.left(reason)
            one.message.places = ()
            self.forget(one.message)
        return True

    def clear(self, queue_id: int) -> int:
        """Remove the waiting messages from a queue; return how many there were."""
        found = self.row(queue_id).clear()
        for number, message in enumerate(found):
            try:
                self.dequeue(message, _waiting_on(message, queue_id), PURGED)
            except BaseException:
                for rest in found[number:]:
                    self.row(queue_id).add(rest, _waiting_on(rest, queue_id))
                raise
        return len(found)

    def drop_queue(self, queue_id: int) -> None:
        """Remove everything from a queue that is no longer in the catalogue."""
        self._rows.pop(queue_id, None)
        messages = (*self.state.messages.values(), *self.transient.messages)
        touched = [(one, place) for one in messages for place in one.places]
        for message, place in touched:
            if place.queue_id == queue_id:
                self.held.pop(place, None)
                self.dequeue(message, place, QUEUE_GONE)

    # --- content -------------------------------------------------------------------------------------

    def read(self, message: Message) -> Iterator[bytes]:
        """Read a message's header and content in parts. The lock is not held between them."""
        if message.content is not None:
            yield message.content
            return
        number = 0
        while True:
            with self.journal.lock:
                chunks = message.chunks or ()
                if number > len(chunks):
                    return
                if self.state.messages.get(message.id) is not message:
                    raise NotHeldError(what=f"message {lsn_text(message.id)}", why="it is gone")
                section = self.section(chunks[number - 1] if number else message.stands)
            yield section
            number += 1

    def section(self, place: Lsn) -> bytes:
        """Return the bytes of a message that are in a record. The lock is held."""
        if place >= self.journal.buffer.unwritten:
            self.journal.write()  # a message that was moved stands in memory at first
        record = self.journal.files.read_record(place)
        begin = section_start(record)
        assert begin is not None, "a message's sections are Start, Move and Chunk"
        return bytes(record.body[begin:])


def names_of(queues: Iterable[object]) -> list[str]:
    """Return these names of queues, each once. Raises TypeError here, and not in the midst of a step of a writer."""
    names: list[str] = []
    if isinstance(queues, str):
        raise TypeError(f"queues are a list of names, not the str {queues!r}")
    for one in dict.fromkeys(queues):
        if not isinstance(one, str):
            raise TypeError(f"the name of a queue is a str, not {type(one).__name__}")
        names.append(one)
    return names


def check_count(count: int, *, least: int) -> None:
    """Raise ValueError for a number of messages below `least`, TypeError for what is no number of them."""
    if index(count) < least:
        raise ValueError(f"a count is {least} or more, not {count}")


def sections_of(pieces: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Yield the same bytes in parts of exactly `size`, except the last one."""
    kept = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        if len(view) != view.nbytes:  # its items are no bytes
            view = memoryview(view.tobytes())
        while len(kept) + len(view) >= size:
            wanted = size - len(kept)
            yield bytes(kept) + bytes(view[:wanted])
            kept.clear()
            view = view[wanted:]
        kept += view
    if kept:
        yield bytes(kept)

"""The working parts of an open store under one lock: journal, state, queues in memory, content.

Owns how an operation becomes a group of records and what it does to the queues in memory, in that order: a group that
found no room has changed nothing. Names and threads that wait are `store`'s.

Source: docs/format.md, "Groups, order, what a recovery believes".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from tranlog.clock import Clock
from tranlog.errors import DeclaredOtherwiseError, DiskFullError, NotHeldError
from tranlog.ids import Lsn, lsn_segment, lsn_text
from tranlog.queues.files.catalogue import Catalogue
from tranlog.queues.files.journal import QueueJournal
from tranlog.queues.rules import records
from tranlog.queues.rules.containers import Need, largest_section, to_be_emptied
from tranlog.queues.rules.records import (
    ACKED,
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
    MOVE,
    MOVE_BODY,
    MOVE_PLACE,
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
    encode_published,
    encode_taken,
)
from tranlog.queues.rules.state import NO_LSN, Message, QueuePlace, QueueState, in_order, section_start
from tranlog.queues.transient import TransientMessages
from tranlog.queues.waiting import QueueRow

logger = logging.getLogger(__name__)

_START_BYTES = OVERHEAD + START_BODY.size
_ENQUEUE_BYTES = OVERHEAD + ENQUEUE_BODY.size
_MOVE_BYTES = OVERHEAD + MOVE_BODY.size + MOVE_PLACE.size
_DEQUEUE_BYTES = 2 * OVERHEAD + DEQUEUE_BODY.size


class HoldsContent(Protocol):
    """Where a message's content is read."""

    def read(self, message: Message) -> Iterator[bytes]:
        """Read a message's header and content in parts."""


class Delivery:
    """A message that was taken from a queue and is held until it is answered. Threads: any, one at a time.

    `redelivered`: it was taken before. `attempts`: how often it came back.
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
        """What its publisher said; a queue's order does not go by it."""
        return self.place.priority

    @property
    def header(self) -> bytes:
        """The header that it was published with."""
        return b"".join(self.sections())[: self.message.header_length]

    @property
    def content(self) -> bytes:
        """All of its content. `sections` needs less memory for a large one."""
        return b"".join(self.sections())[self.message.header_length :]

    def parts(self) -> Iterator[bytes]:
        """Read its content in parts of up to 64 KiB."""
        skip = self.message.header_length
        for part in self.sections():
            yield part[skip:]
            skip = max(skip - len(part), 0)

    def begins(self, size: int) -> bytes:
        """Return the first bytes of its content, at most `size`."""
        found = b""
        for part in self.parts():
            found += part
            if len(found) >= size:
                break
        return found[:size]

    def sections(self) -> Iterator[bytes]:
        """Read header and content, one behind the other, in parts of up to 64 KiB."""
        return self._held_by.read(self.message)

    def __str__(self) -> str:
        return f"message {lsn_text(self.id)} of queue {self.queue!r}"


class StoreCore:
    """An open store. `journal.lock` guards everything here and is held by whoever calls, but for `read`."""

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
        self.held: dict[QueuePlace, Delivery] = {}
        """What was taken and not answered."""
        self.section_bytes = largest_section(journal.files.container_bytes, SECTION_BYTES)
        self.recovered = journal.place
        """What was published before this place counts as redelivered."""
        journal.tidy = self.tidy
        self._clock = clock
        self._room = content_bytes  # for content in memory
        self._rows = {queue_id: QueueRow(queue_id, row) for queue_id, row in in_order(state.messages.values()).items()}

    def row(self, queue_id: int) -> QueueRow:
        """Return what waits on a queue."""
        found = self._rows.get(queue_id)
        if found is None:
            found = self._rows[queue_id] = QueueRow(queue_id)
        return found

    def catalogue_changed(self) -> None:
        """Have the log say what the catalogue's counter is now; what is transient is not counted."""
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
    ) -> Message:
        """Put a message that fits one section on queues, as one group."""
        journal = self.journal
        behind = len(queues) * _ENQUEUE_BYTES + (POSITION_BYTES_MOST if once else 0)
        size = _START_BYTES + len(raw) + behind
        journal.admit(size, Need.PUBLISH)
        stored_at = self._clock.now_ms()
        if len(queues) == 1 and once is None and journal.fits(size):
            place, epoch, queue_id = journal.next_place(), journal.epoch, queues[0]
            journal.put_whole(
                encode_published(epoch, place, stored_at, header_length, raw, queue_id, expires_at, priority)
            )
            enqueued = Lsn(place + _START_BYTES + len(raw))
            on = QueuePlace(queue_id, enqueued, enqueued, expires_at, priority)
            message = self._keep(self.state.put_whole(place, stored_at, header_length, len(raw), on), raw)
            self._published(message, on)
            return message
        place = journal.put(START, FIRST, NO_LSN, START_BODY.pack(0, stored_at, header_length, len(raw)) + raw)
        message = self.started(place, stored_at, header_length, raw)
        try:
            self.enqueue(message, queues, expires_at, priority, once)
        except BaseException:
            self.forget(message)  # its group is cut off, and counts for nothing
            raise
        return message

    def begin_transient(self, header_length: int, total_length: int) -> Message:
        """Take the memory for a transient message. Raises TransientRoomError."""
        return self.transient.begin(header_length, total_length, self._clock.now_ms())

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
        """Put a transient message on queues, with header and content; it goes behind what is on them.

        `behind`, `commit`: within a transaction, the place at which it was its turn, and that of the Commit.
        """
        behind = self.journal.place if behind is None else behind
        message.content = raw
        message.places = tuple(self.transient.place(one, behind, commit, expires_at, priority) for one in queues)
        for place in message.places:
            row = self.row(place.queue_id)
            row.add(message, place)
            row.counts.published += 1
        self.journal.changed.notify_all()

    def begin_large(self, header_length: int, total_length: int, section: bytes) -> Message:
        """Put the first section of a message, which counts for nothing before it is on a queue."""
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
        row.add(message, on)
        row.counts.published += 1

    def stand(self, once: ProducerStep, flags: int) -> None:
        """Put where a producer stands; at the end of its publish's group, or alone."""
        self.journal.put(POSITION, flags, NO_LSN, encode_position(*once))
        self.state.stand(*once)

    def has_seen(self, once: ProducerStep) -> bool:
        """Whether a publish was there before. Raises DeclaredOtherwiseError for a name that there is no room for."""
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
        """Forget a message: it is deleted, or never was."""
        if message.transient:
            self.transient.forget(message)
            return
        if message.content is not None:
            self._room += len(message.content)
            message.content = None
        self.state.delete(message.id)

    def delete(self, message: Message, need: Need = Need.DRAIN) -> None:
        """Delete a message that is on no queue."""
        self.journal.admit(OVERHEAD, need)
        self.journal.put(DELETE, WHOLE, message.id, b"")
        self.forget(message)

    def dequeue(self, message: Message, place: QueuePlace, reason: int, row: QueueRow | None = None) -> None:
        """Take a message off a queue, for good; its last place takes the message along. `row`: it is first there."""
        last = len(message.places) == 1
        if not message.transient:
            self._put_dequeue(message, place, reason, last=last)
        if row is not None:
            row.take()
        known = self._rows.get(place.queue_id)
        if known is not None:  # else its queue is being deleted
            if reason == ACKED:
                known.counts.acknowledged += 1
            else:
                known.counts.dropped += 1
        message.leave(place)
        if last:
            self.forget(message)

    def _put_dequeue(self, message: Message, place: QueuePlace, reason: int, *, last: bool) -> None:
        """Put the records by which a message leaves a queue, and at its last place itself, as one group."""
        journal = self.journal
        journal.admit(_DEQUEUE_BYTES, Need.DRAIN)
        if last and journal.fits(_DEQUEUE_BYTES):
            at = journal.next_place()
            journal.put_whole(encode_taken(journal.epoch, at, message.id, place.queue_id, reason))
            return
        body = DEQUEUE_BODY.pack(place.queue_id, 0, reason)
        journal.put(DEQUEUE, FIRST if last else WHOLE, message.id, body)
        if last:
            journal.put(DELETE, LAST, message.id, b"")

    def come_back(self, message: Message, place: QueuePlace) -> None:
        """Put a message that was taken back into its queue, and count that."""
        attempts = place.attempts + 1
        if not message.transient:
            self.journal.admit(OVERHEAD + records.ATTEMPT_BODY.size, Need.DRAIN)
            body = records.ATTEMPT_BODY.pack(place.queue_id, attempts)
            self.journal.put(records.ATTEMPT, WHOLE, message.id, body)
        place.attempts = attempts  # as the record says it
        row = self.row(place.queue_id)
        row.add(message, place)
        row.counts.requeued += 1

    # --- space ---------------------------------------------------------------------------------------

    def tidy(self, count: int) -> None:
        """Move forward what is left in the oldest containers, at most `count`, where they hold back more than it is."""
        if not self._worth_emptying():
            return
        lowest = self.state.lowest(0)
        movable, fixed, undecided = self.state.pinning(lowest, count)
        held = min(
            (lsn_segment(place) for place in (*(one.stands for one in fixed), *(one.id for one in undecided))),
            default=lowest + count,
        )
        try:
            for message in movable:
                number = lsn_segment(message.stands)
                if number >= held:
                    return  # it would not be empty
                if number > lowest and not self._worth_emptying():
                    return
                lowest = number
                self.move(message)
        except DiskFullError:
            logger.warning("The oldest container is not emptied: there is no room. path=%s", self.journal.files.path)

    def _worth_emptying(self) -> bool:
        files, state, newest = self.journal.files, self.state, self.journal.buffer.number
        live_bytes = state.live_bytes + _MOVE_BYTES * len(state.messages)
        return to_be_emptied(newest - state.lowest(newest), live_bytes, files.container_bytes, self.journal.initial)

    def move(self, message: Message) -> None:
        """Write a message again, with its places, behind everything; its id stays."""
        journal = self.journal
        places = b"".join(
            MOVE_PLACE.pack(one.queue_id, one.visible, one.enqueued, one.expires_at, one.priority, one.attempts)
            for one in message.places
        )
        sections = self._stored(message)
        head = MOVE_BODY.pack(message.stored_at, message.header_length, message.total_length, len(message.places))
        size = message.total_length + len(places) + (OVERHEAD + MOVE_BODY.size) * (1 + len(message.chunks or ()))
        journal.admit(size, Need.DRAIN)
        last = len(message.chunks or ())
        moved: list[tuple[Lsn, int]] = []
        for number, section in enumerate(sections):
            flags = (FIRST if number == 0 else 0) | (LAST if number == last else 0)
            if number == 0:
                moved.append((journal.put(MOVE, flags, message.id, head + places + section), len(section)))
            else:
                at = sum(length for _, length in moved)
                moved.append((journal.put(CHUNK, flags, message.id, CHUNK_BODY.pack(at) + section), len(section)))
        place, length = moved[0]
        self.state.move(place, message, length)
        for place, length in moved[1:]:
            self.state.chunk(place, message.id, message.got, length)

    def _stored(self, message: Message) -> Iterator[bytes]:
        """Read a message's sections from the log, with the lock."""
        for place in (message.stands, *(message.chunks or ())):
            yield self._section(place)

    # --- taking --------------------------------------------------------------------------------------

    def take(self, queue: str, queue_id: int) -> Delivery:
        """Take the next message of a queue that has one."""
        row = self.row(queue_id)
        delivery = self._delivery(queue, queue_id, row.take())
        row.counts.delivered += 1
        self.held[delivery.place] = delivery
        return delivery

    def _delivery(self, queue: str, queue_id: int, message: Message) -> Delivery:
        place = message.place_on(queue_id)
        assert place is not None and place.free, "what waits on a queue is on it"
        redelivered = place.attempts > 0 or NO_LSN < message.id < self.recovered
        return Delivery(self, queue, message, place, redelivered)

    def waiting(self, queue: str, queue_id: int) -> Iterator[Delivery]:
        """Go over what `take` would hand out, in order, without taking it. The lock is held meanwhile."""
        shown, now_ms = self.journal.shown, self._clock.now_ms()
        for message in self.row(queue_id):
            found = self._delivery(queue, queue_id, message)
            if found.place.needs < shown and not 0 < found.place.expires_at <= now_ms:
                yield found

    def drop_expired(self, queue_id: int) -> None:
        """Take off a queue those at its head whose time is over."""
        row = self.row(queue_id)
        while (message := row.first()) is not None:
            place = message.place_on(queue_id)
            assert place is not None
            if not 0 < place.expires_at <= self._clock.now_ms():
                return
            self.dequeue(message, place, EXPIRED, row)

    def check_held(self, delivery: Delivery) -> None:
        """Raise NotHeldError where a delivery was answered, or its message is gone."""
        if self.held.get(delivery.place) is not delivery:
            raise NotHeldError(what=str(delivery), why="it is not held")

    def clear(self, queue_id: int) -> int:
        """Take what waits on a queue off it; return how many messages that were."""
        found = self.row(queue_id).clear()
        for number, message in enumerate(found):
            place = message.place_on(queue_id)
            assert place is not None
            try:
                self.dequeue(message, place, PURGED)
            except BaseException:
                for rest in found[number:]:
                    place = rest.place_on(queue_id)
                    assert place is not None
                    self.row(queue_id).add(rest, place)
                raise
        return len(found)

    def drop_queue(self, queue_id: int) -> None:
        """Take everything off a queue that the catalogue does not have any more."""
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
                section = self._section(chunks[number - 1] if number else message.stands)
            yield section
            number += 1

    def _section(self, place: Lsn) -> bytes:
        if place >= self.journal.buffer.unwritten:
            self.journal.write()  # a message that was moved stands in memory at first
        record = self.journal.files.read_record(place)
        begin = section_start(record)
        assert begin is not None, "a message's sections are Start, Move and Chunk"
        return bytes(record.body[begin:])


def sections_of(pieces: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Return the same bytes in parts of exactly `size`, but for the last one."""
    kept = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        while len(kept) + len(view) >= size:
            wanted = size - len(kept)
            yield bytes(kept) + bytes(view[:wanted])
            kept.clear()
            view = view[wanted:]
        kept += view
    if kept:
        yield bytes(kept)

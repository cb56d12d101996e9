"""Moving the remaining messages out of the oldest containers, so that these can be used again.

Owns the records of a Move, and which messages are moved in which order. The hard idea: a container is freed as a whole.
So nothing is moved out of a container that comes after one that cannot be emptied.

Source: docs/format.md, "Groups, order, what a recovery believes".
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tranlog.errors import DiskFullError
from tranlog.ids import Lsn
from tranlog.lsn import lsn_segment
from tranlog.queues.files.journal import QueueJournal
from tranlog.queues.rules.containers import Need, to_be_emptied
from tranlog.queues.rules.records import CHUNK, CHUNK_BODY, FIRST, LAST, MOVE, MOVE_BODY, MOVE_PLACE, OVERHEAD
from tranlog.queues.rules.state import Message, QueueState

logger = logging.getLogger(__name__)

_MOVE_BYTES = OVERHEAD + MOVE_BODY.size + MOVE_PLACE.size

ReadsSection = Callable[[Lsn], bytes]
"""Returns the bytes of a message that the record at a place has."""


def tidy(journal: QueueJournal, state: QueueState, section: ReadsSection, count: int) -> None:
    """Move what is left in the oldest containers, at most `count`, if that frees more than it writes."""
    if not _worth_emptying(journal, state):
        return
    lowest = state.lowest(0)
    movable, fixed, undecided = state.pinning(lowest, journal.files.container_bytes, count)
    held = min(
        (lsn_segment(place) for place in (*(one.stands for one in fixed), *(one.id for one in undecided))),
        default=lowest + count,
    )
    try:
        for message in movable:
            number = lsn_segment(message.stands)
            if number >= held:
                return  # it would not be empty
            if number > lowest and not _worth_emptying(journal, state):
                return
            lowest = number
            move(journal, state, section, message)
    except DiskFullError:
        logger.warning("The oldest container is not emptied: there is no room. path=%s", journal.files.path)


def _worth_emptying(journal: QueueJournal, state: QueueState) -> bool:
    newest = journal.buffer.number
    live_bytes = state.live_bytes + _MOVE_BYTES * len(state.messages)
    return to_be_emptied(newest - state.lowest(newest), live_bytes, journal.files.container_bytes, journal.initial)


def move(journal: QueueJournal, state: QueueState, section: ReadsSection, message: Message) -> None:
    """Write a message again at the end, with its places; its id stays. Raises as `QueueJournal.put`."""
    places = b"".join(
        MOVE_PLACE.pack(one.queue_id, one.visible, one.enqueued, one.expires_at, one.priority, one.attempts)
        for one in message.places
    )
    head = MOVE_BODY.pack(message.stored_at, message.header_length, message.total_length, len(message.places))
    chunks = message.chunks or ()
    size = message.total_length + len(places) + (OVERHEAD + MOVE_BODY.size) * (1 + len(chunks))
    journal.admit(size, Need.DRAIN)
    at, moved = 0, []
    for number, stands in enumerate((message.stands, *chunks)):
        raw = section(stands)
        flags = (FIRST if number == 0 else 0) | (LAST if number == len(chunks) else 0)
        body = CHUNK_BODY.pack(at) if number else head + places
        moved.append((journal.put(CHUNK if number else MOVE, flags, message.id, body + raw), len(raw)))
        at += len(raw)
    (place, length), *rest = moved
    state.move(place, message, length)
    for place, length in rest:
        state.chunk(place, message.id, message.got, length)

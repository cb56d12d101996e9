"""Containers as numbers: which are freed, which are removed, and how much room the others have.

Owns these decisions; `files.containers` owns the files. The hard idea: the last available container is reserved for
operations that make room, so a full disk stops publishers and lets consumers drain the queues.

Source: docs/format.md, "Groups, order, what a recovery believes"; Design for Hybrid SQL/CLFS-Based Store in Qpid,
"CLFS Capabilities".
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from tranlog.queues.rules.records import (
    HEADER_BYTES,
    MOVE_BODY,
    MOVE_PLACE,
    NEXT_BYTES,
    OVERHEAD,
    PROOF_BODY,
    SECTION_BYTES,
)

LEAST_KEPT = 3
"""So many containers are never removed."""


class Need(enum.Enum):
    """The purpose for which room is needed."""

    PUBLISH = enum.auto()
    """It adds to the store: refused while the last container that can be had is not there to spare."""
    DRAIN = enum.auto()
    """It makes room, as an acknowledgement does."""
    OUTCOME = enum.auto()
    """It decides what is prepared, and has its room reserved."""


def room(container_bytes: int, end: int, ahead: int, checkpoint: int) -> int:
    """Return how many bytes of records fit: after `end` of the newest container, and in so many ahead of it.

    `checkpoint`: bytes of the record that begins each container.
    """
    here = container_bytes - end - NEXT_BYTES
    return max(here, 0) + ahead * room_of_one(container_bytes, checkpoint)


def room_of_one(container_bytes: int, checkpoint: int) -> int:
    """Return how many bytes of records fit into an empty container."""
    return container_bytes - HEADER_BYTES - NEXT_BYTES - checkpoint


def left_over(sizes: Iterable[int], container_bytes: int, end: int, checkpoint: int) -> int:
    """Return how many bytes stay free at the ends of containers where records of these sizes are put after `end`.

    A record is in one container. `checkpoint`: as in `room`.
    """
    free, left = 0, max(container_bytes - end - NEXT_BYTES, 0)
    for size in sizes:
        if size > left:
            free += left
            left = room_of_one(container_bytes, checkpoint)
        left -= size
    return free


def kept_back(need: Need, container_room: int, outcomes: int) -> int:
    """Return how many bytes are reserved for others. `outcomes`: for the outcomes of all prepared transactions."""
    match need:
        case Need.PUBLISH:
            return container_room + outcomes
        case Need.DRAIN:
            return outcomes
        case Need.OUTCOME:
            return 0


def largest_section(container_bytes: int, wanted: int) -> int:
    """Return how much content one record holds: `wanted`, or a fair part of a small container."""
    return min(wanted, (container_bytes - HEADER_BYTES) // 3)


def can_be_moved(total_length: int, places: int, container_bytes: int) -> bool:
    """Whether the Move of a message on so many queues has room in any container, behind the longest Checkpoint."""
    section = largest_section(container_bytes, SECTION_BYTES)
    size = OVERHEAD + MOVE_BODY.size + places * MOVE_PLACE.size + min(total_length, section)
    return size + SYNC_BYTES <= room_of_one(container_bytes, OVERHEAD + PROOF_BODY.size + 2 + section)


def to_be_emptied(full: int, live_bytes: int, container_bytes: int, initial: int) -> bool:
    """Whether to move what is left in the oldest container: many are in use, and less than half of that is needed."""
    return full >= max(initial, LEAST_KEPT) and 2 * live_bytes < full * (container_bytes - HEADER_BYTES)


def to_give_back(lowest: int, needed: int) -> range:
    """Return the numbers of the containers that are not needed any more, lowest first."""
    return range(lowest, needed)


def to_remove(in_use: int, free: Sequence[int], initial: int, given_back: int) -> list[int]:
    """Return the free containers to remove: as long as there are more than at the start, and half of them are unused.

    Three stay in any case: one that is written, one ahead of it, and one to be emptied. So does the one that was
    freed last: it shows that those below the oldest in use are not missing.
    """
    gone: list[int] = []
    left, rest = len(free), sorted(number for number in free if number != given_back)
    while rest and in_use + left > max(initial, LEAST_KEPT) and 2 * left >= in_use + left:
        gone.append(rest.pop())
        left -= 1
    return gone


SYNC_BYTES = OVERHEAD + PROOF_BODY.size
"""Of a Sync record."""

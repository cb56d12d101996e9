"""The status of a store, for programs and operators: its queues, its space, transactions in doubt.

Owns the form, and the search for what keeps the oldest container from being emptied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tranlog.ids import Lsn
from tranlog.queues.files.recovering import StoreRecovery
from tranlog.queues.rules.state import Message, QueueState
from tranlog.queues.waiting import QueueCounts


class Pinned(NamedTuple):
    """What stands in the oldest container and cannot be moved: `what` is "message", "branch" or "transaction".

    A message is still being published, or an open transaction uses it, or it is on more queues than one record names;
    a branch is in doubt: decide it.
    `age_ms` is None if it is not known. `held_bytes`: the size of the containers after it.
    """

    what: str
    id: Lsn
    xid: bytes
    queues: tuple[str, ...]
    age_ms: int | None
    held_bytes: int


class QueueStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a queue. `held`: delivered and not answered. `oldest_ms`: the age of the first waiting message.

    `transient`: it is only in memory. Only the process that has the store open knows `held` and `counts`, which are
    None elsewhere, and its transient queues and messages.
    """

    waiting: int
    oldest_ms: int | None
    held: int | None = None
    counts: QueueCounts | None = None
    transient: bool = False


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a store, with its queues by name.

    `pinned_bytes`: the size of the containers that `pinned` keeps from being freed. `recovered`: what this opening
    found and did; for a reader, what an opening would find. `syncs`: since this opening. `transient_messages`, and the
    memory that they use: None if only the owner knows.
    """

    queues: dict[str, QueueStanding]
    containers_in_use: int
    containers_free: int
    container_bytes: int
    pinned_bytes: int
    in_doubt: tuple[bytes, ...]
    recovered: StoreRecovery
    syncs: int | None = None
    transient_messages: int | None = None
    transient_bytes: int | None = None


def pinned_in(
    state: QueueState, newest: int, container_bytes: int, queues: Mapping[int, str], now_ms: int
) -> list[Pinned]:
    """Return what keeps the oldest container from being emptied. `newest`: the number of the newest one."""
    lowest = state.lowest(newest)
    _, messages, undecided = state.pinning(lowest, container_bytes)
    held_bytes = (newest - lowest) * container_bytes
    found = [Pinned("branch" if one.xid else "transaction", one.id, one.xid, (), None, held_bytes) for one in undecided]
    for one in messages:
        names = tuple(queues.get(place.queue_id, "") for place in one.places)
        found.append(Pinned("message", one.id, b"", names, age_of(one, now_ms), held_bytes))
    return found


def age_of(message: Message, now_ms: int) -> int:
    """Return the age of a message in ms; 0 if the clock was set back since."""
    return max(now_ms - message.stored_at, 0)

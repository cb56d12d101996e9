"""How a store stands, as programs and operators see it: its queues, its space, what is in doubt.

Owns the form, and what keeps the oldest container from being emptied.
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

    A message is on its way in, or a transaction without outcome touches it; a branch is in doubt: decide it.
    `age_ms` is None where nothing says it. `held_bytes`: of the containers behind it.
    """

    what: str
    id: Lsn
    xid: bytes
    queues: tuple[str, ...]
    age_ms: int | None
    held_bytes: int


class QueueStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How a queue stands. `held`: handed out and not answered. `oldest_ms`: the age of the first that waits.

    `transient`: it is in memory alone. Only the process that has the store open knows `held` and `counts`, which are
    None elsewhere, and its transient queues and messages.
    """

    waiting: int
    oldest_ms: int | None
    held: int | None = None
    counts: QueueCounts | None = None
    transient: bool = False


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a store stands, its queues by name.

    `pinned_bytes`: of the containers that what `pinned` returns holds back. `recovered`: what this opening found and
    did, the last recovery that there was; of a reader, what an opening would find. `syncs`: of this opening's.
    `transient_messages`, and the memory that they take: None where only the owner knows.
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
    _, messages, undecided = state.pinning(lowest)
    held_bytes = (newest - lowest) * container_bytes
    found = [Pinned("branch" if one.xid else "transaction", one.id, one.xid, (), None, held_bytes) for one in undecided]
    for one in messages:
        names = tuple(queues.get(place.queue_id, "") for place in one.places)
        found.append(Pinned("message", one.id, b"", names, age_of(one, now_ms), held_bytes))
    return found


def age_of(message: Message, now_ms: int) -> int:
    """Return how old a message is, in ms; 0 where the clock was set back since."""
    return max(now_ms - message.stored_at, 0)

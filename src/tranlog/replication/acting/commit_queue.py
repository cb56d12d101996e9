"""The commits that a node has received and not written yet.

Owns how long they wait. If the nearest voter lags too far behind, they wait until it has caught up, or until the
client's timeout, after which nothing was written. One that has spilled waits until followers have its chunks; others
pass it. With its timeout it is written: it would not come any further another time. What a commit waited here is taken
off its timeout.

Source: docs/protocol.md, "Flow control".
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tranlog.replication.rules.config import NO_NODE, NodeId
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.flow_control import FlowControl

if TYPE_CHECKING:
    from tranlog.replication.acting.core_thread import CommitWanted

logger = logging.getLogger(__name__)

_LOT = 256
"""So many are written together."""
_SHORT_MS = 500
"""What waited for less keeps its timeout."""
_TOLD_MS = 60_000
"""So often, at most, a line says that writers wait."""


class CommitQueue:
    """The queue of one node. Used in a turn of the node."""

    def __init__(self, flow: FlowControl) -> None:
        self.flow = flow
        self.waits_for: NodeId = NO_NODE
        """For whom writers wait now."""
        self._waiting: deque[tuple[int, CommitWanted]] = deque()
        self._spilled: list[tuple[int, CommitWanted]] = []
        self._told = -_TOLD_MS

    def __bool__(self) -> bool:
        return bool(self._waiting or self._spilled)

    def put(self, one: CommitWanted, now: int) -> None:
        """Add a commit. Units: ms of the monotonic clock."""
        (self._spilled if one.oid else self._waiting).append((now, one))

    @property
    def has_large(self) -> bool:
        """Whether the next commit is a large one, or one has spilled."""
        return bool(self._spilled) or (bool(self._waiting) and self._waiting[0][1].large)

    def take(self, core: Core, *, large: bool = True) -> list[CommitWanted]:
        """Remove and return commits to write now, or to refuse if this node is not primary; a bounded number.

        Without `large`: no large commit, and after one only those that have spilled.
        """
        holds = core.accepts_writes and self.flow.holds(core.config, core.node, core.mind)
        self.waits_for = self.flow.nearest if holds and self._waiting else NO_NODE
        for since, one in self._spilled if large else ():
            if not core.accepts_writes or self.flow.has_spread(one.oid, core) or _is_late(since, one, core):
                self._spilled.remove((since, one))
                return [_with_rest(since, one, core)]
        if not holds:
            lot: list[CommitWanted] = []
            while self._waiting and len(lot) < _LOT and (large or not self._waiting[0][1].large):
                since, one = self._waiting.popleft()
                lot.append(one if core.mind.now - since < _SHORT_MS else _with_rest(since, one, core))
            return lot
        if self.waits_for and core.mind.now - self._told >= _TOLD_MS:
            self._told = core.mind.now
            logger.warning("Writers wait for %s, the nearest voter, which lags. bytes=%d", *self.lags(core))
        return []

    def lags(self, core: Core) -> tuple[str, int]:
        """Return the name of the nearest voter, empty if there is none, and how many bytes it lacked last."""
        member = core.config.member(self.flow.nearest)
        return "" if member is None else member.name, self.flow.lag

    def late(self, core: Core) -> list[CommitWanted]:
        """Remove and return the commits that have timed out."""
        over = [one for since, one in self._waiting if _is_late(since, one, core)]
        if over:
            self._waiting = deque([(since, one) for since, one in self._waiting if not _is_late(since, one, core)])
        return over

    def take_back(self, sent: tuple[str, str]) -> list[CommitWanted]:
        """Remove and return the commits of this sender with this event id."""
        waiting = [one for _, one in (*self._spilled, *self._waiting)]
        self._spilled = [(since, one) for since, one in self._spilled if one.sent != sent]
        self._waiting = deque([(since, one) for since, one in self._waiting if one.sent != sent])
        return [one for one in waiting if one.sent == sent]

    def clear(self) -> list[CommitWanted]:
        """Remove and return all of them."""
        waiting = [one for _, one in (*self._spilled, *self._waiting)]
        self._waiting.clear()
        self._spilled.clear()
        return waiting


def _limit(one: CommitWanted, core: Core) -> int:
    return core.config.wtimeout_ms if one.wtimeout_ms is None else one.wtimeout_ms


def _is_late(since: int, one: CommitWanted, core: Core) -> bool:
    limit = _limit(one, core)
    return limit > 0 and core.mind.now - since >= limit


def _with_rest(since: int, one: CommitWanted, core: Core) -> CommitWanted:
    """Return a commit with what is left of its timeout."""
    limit = _limit(one, core)
    return msgspec.structs.replace(one, wtimeout_ms=max(limit - (core.mind.now - since), 1)) if limit else one

"""The part of the log to search for a transaction by its event id.

Owns how far a search goes, and what it proves. The hard idea: GTIDs rise along the log, and a client's transaction gets
a greater one than all that the client saw before. So transactions at or below that GTID need not be searched, whether
or not the log holds exactly that one.

Source: docs/protocol.md, "Looking for a transaction".
"""

from __future__ import annotations

import msgspec

from tranlog.ids import Gtid
from tranlog.replication.rules.effects import ReplicatedLog
from tranlog.replication.rules.packets import NO_GTID

FOUND = "found"
NOT_THERE = "not there"
MORE = "more"
"""It is not in the part that was looked at, and there is more after that."""
WALK_MOST = 50_000
"""So many transactions are looked at in one walk."""


class LogPart(msgspec.Struct, frozen=True):
    """The range of one search: from `first` to `upto`, both inclusive; empty if `upto` is below `first`.

    `complete`: nothing in question lies before it. `is_last`: the log ends with it.
    """

    first: int
    upto: int
    complete: bool
    is_last: bool


def part_to_walk(log: ReplicatedLog, after: Gtid | None, most: int = WALK_MOST) -> LogPart:
    """Return the part to search for what comes after `after`; None: the newest `most` transactions."""
    end = log.last.seqno
    if after is None:
        first = max(log.first, end + 1 - most)
        return LogPart(first, end, complete=first == 0, is_last=True)
    before = log.last_of_epoch(after.epoch)
    if before == NO_GTID:  # all that is held has later epochs
        wanted = 0
    else:
        wanted = min(before, after, key=lambda one: one.seqno).seqno + 1
    first = max(log.first, wanted)
    upto = min(end, first + most - 1)
    return LogPart(first, upto, complete=first == wanted, is_last=upto == end)

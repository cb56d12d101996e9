"""Whether a write concern is met, by which nodes, and the answer.

Source: tokumx-replication (Write Concern); docs/protocol.md, "Write concern".
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tranlog.ids import Gtid
from tranlog.replication.rules.config import MAJORITY, NO_NODE, GroupConfig, NodeId
from tranlog.replication.rules.packets import NO_GTID

SATISFIED = "satisfied"
TIMED_OUT = "timed out"
NOT_PRIMARY = "not primary"
FAILED_OVER = "failed over"
ROLLED_BACK = "rolled back"
PURGED = "purged"


class Outcome(msgspec.Struct, frozen=True):
    """The answer. `timed out`, `failed over` and `purged` do not mean a loss: the transaction may be in the log."""

    kind: str
    gtid: Gtid
    written_to: tuple[str, ...] = ()
    waited_ms: int = 0
    primary: NodeId = NO_NODE


class OpenQuestion(msgspec.Struct, frozen=True):
    """A question that is not answered yet. `deadline`: None for no limit."""

    number: int
    gtid: Gtid
    w: int | str
    since: int
    deadline: int | None


def written_to(config: GroupConfig, durable: Mapping[NodeId, Gtid], gtid: Gtid) -> tuple[NodeId, ...]:
    """Return the nodes with data that have the transaction durable."""
    return tuple([m.node for m in config.members if not m.witness and durable.get(m.node, NO_GTID) >= gtid])


def is_met(
    config: GroupConfig, waiting: OpenQuestion, durable: Mapping[NodeId, Gtid], committed: Gtid, epoch: int
) -> bool:
    """Whether the write concern is met. What an earlier primary wrote must be committed, whatever the number."""
    gtid, w = waiting.gtid, waiting.w
    if w == MAJORITY or (gtid.epoch < epoch and w != 0):
        if gtid > committed:
            return False
        if w == MAJORITY:
            return True
    having = written_to(config, durable, gtid)
    if isinstance(w, int):
        return len(having) >= w
    by_node = {member.node: member.tags for member in config.members}
    return all(
        [
            len({by_node[node][tag] for node in having if tag in by_node[node]}) >= count
            for tag, count in config.rules[w].items()
        ]
    )


def named(config: GroupConfig, nodes: tuple[NodeId, ...]) -> tuple[str, ...]:
    """Return the names of nodes, in the configuration's order."""
    return tuple([member.name for member in config.members if member.node in nodes])

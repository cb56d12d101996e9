"""Acks as the primary counts them, and the commit point that follows from them.

The hard idea: an ack proves itself. Equal GTIDs mean equal history, so an acked GTID that the primary's own log holds
says that the other log is the same up to there. A GTID that it does not hold is not counted.

Source: docs/protocol.md, "Numbers" and "Elections" 4, 6 and 7; tokumx-replication (Write Concern).
"""

from __future__ import annotations

from collections.abc import Mapping

from tranlog.ids import Gtid
from tranlog.replication.rules.config import GroupConfig, NodeId, copies_needed
from tranlog.replication.rules.packets import NO_GTID, Ack

AckTable = dict[NodeId, Ack]
"""By node, of one reign: emptied when it begins or ends."""


def may_ack(primary_epoch: int, own_epoch: int) -> bool:
    """Whether a node may ack to the primary of an epoch: not once it voted in, or heard of, a later one."""
    return primary_epoch >= own_epoch


def note_ack(acks: AckTable, node: NodeId, ack: Ack, *, epoch: int, held: bool) -> bool:
    """Count an ack; return whether anything changed. `held`: the primary's log holds the acked GTID.

    An ack from a log that was rolled back replaces the earlier ack.
    """
    if ack.epoch != epoch:
        return False
    known = acks.get(node)
    if known is not None and (ack.mark, ack.durable) <= (known.mark, known.durable):
        return False
    if not held:
        if known is None or ack.mark == known.mark:
            return False
        ack = Ack(durable=NO_GTID, epoch=ack.epoch, mark=ack.mark)
    acks[node] = ack
    return True


def durable_at(acks: Mapping[NodeId, Ack], own: NodeId, own_durable: Gtid) -> dict[NodeId, Gtid]:
    """Return what each node has durable, by node, the primary itself included."""
    return {own: own_durable} | {node: ack.durable for node, ack in acks.items() if node != own}


def commit_point(config: GroupConfig, durable: Mapping[NodeId, Gtid], epoch: int) -> Gtid:
    """Return up to where a majority has everything durable; `NO_GTID` if that is in an earlier epoch.

    What an earlier primary wrote is committed only together with a later record of this primary's epoch.
    """
    copies = sorted([durable.get(node, NO_GTID) for node in config.copies], reverse=True)
    needed = copies_needed(config)
    if not needed or len(copies) < needed:
        return NO_GTID
    reached = copies[needed - 1]
    return reached if reached.epoch == epoch else NO_GTID

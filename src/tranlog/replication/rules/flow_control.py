"""Flow control: whether a primary's writers wait, and for which voter.

Owns how many bytes of the log the nearest voter with data lacks. Acks name transactions, not bytes; so the primary
remembers how its log has grown in this reign, with the transaction each time. The hard idea: a voter that makes no
progress does not delay writers. If its acks stand still, it is treated as gone, and writers continue.

Source: docs/protocol.md, "Flow control".
"""

from __future__ import annotations

from bisect import bisect_right

from tranlog.ids import Gtid, Lsn
from tranlog.lsn import lsn_offset, lsn_segment
from tranlog.replication.rules.beats import Mind
from tranlog.replication.rules.config import NO_NODE, GroupConfig, NodeId, copies_needed
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.election import PATIENCE_LEAST, PATIENCE_MOST
from tranlog.replication.rules.packets import NO_GTID, PRIMARY, REPLICA

CHUNKS_LEFT = 2
_STEPS = 1024
"""Lag is known to the limit divided by this."""


class FlowControl:
    """The flow control of one primary.

    `nearest`: the nearest voter, NO_NODE for none; `lag`: the bytes that it lacks.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: so many bytes may be lacking; 0: any number."""
        self.nearest = NO_NODE
        self.lag = 0
        self._limit = limit
        self._epoch = 0
        self._size = 0
        self._at = Lsn(0)
        self._ends: list[Gtid] = []
        self._sizes: list[int] = []
        self._moved: dict[NodeId, tuple[Gtid, int]] = {}
        self._spread: dict[bytes, tuple[int, int]] = {}

    def grew(self, last: Gtid, at: Lsn) -> None:
        """Note the log's last transaction and its place."""
        if last.epoch != self._epoch:
            self._epoch, self._size, self._ends, self._sizes, self._moved = last.epoch, 0, [last], [0], {}
        elif lsn_segment(at) != lsn_segment(self._at):
            self._size += lsn_offset(at)
        else:
            self._size += at - self._at
        self._at = at
        if self._size - self._sizes[-1] > self._limit // _STEPS:
            self._ends.append(last)
            self._sizes.append(self._size)
            if len(self._ends) > 4 * _STEPS:
                del self._ends[: 2 * _STEPS], self._sizes[: 2 * _STEPS]

    def holds(self, config: GroupConfig, own: NodeId, mind: Mind) -> bool:
        """Look at the acks; return whether writers wait. Never while this node is not primary."""
        nearest, self.nearest, self.lag = NO_GTID, NO_NODE, 0
        if not self._limit or mind.state != PRIMARY or mind.epoch != self._epoch:
            return False
        for node in config.copies:
            if node != own and self._moves(config, node, mind) and mind.acks[node].durable >= nearest:
                nearest, self.nearest = mind.acks[node].durable, node
        if self.nearest != NO_NODE:
            self.lag = self._size - self._sizes[max(bisect_right(self._ends, nearest) - 1, 0)]
        return self.lag > self._limit

    def has_spread(self, oid: bytes, core: Core) -> bool:
        """Whether the record of a spilled transaction may be appended: enough followers were sent almost all of it.

        Otherwise everything committed after it would wait for them. If its chunks make no progress, nothing waits.
        """
        config, mind, streams = core.config, core.mind, core.feeder.streams
        chunks = core.log.open_spills().get(oid, 0)
        sent = [streams[node].chunks.get(oid, 0) for node in config.copies if node in streams and node != core.node]
        needed = min(copies_needed(config) - 1, len(sent))
        if sum([one + CHUNKS_LEFT >= chunks for one in sent]) >= needed:
            self._spread.pop(oid, None)
            return True
        moved = sum(sent) + sum([one.offsets.get(oid, 0) for one in streams.values()])
        known = self._spread.get(oid)
        if known is None or known[0] != moved:
            self._spread[oid] = known = moved, mind.now
        return mind.now - known[1] > PATIENCE_MOST * config.heartbeat_ms

    def _moves(self, config: GroupConfig, node: NodeId, mind: Mind) -> bool:
        """Whether a node follows, is alive, and has got further a moment ago, or has everything."""
        ack, peer = mind.acks.get(node), mind.peers.get(node)
        if ack is None or peer is None:
            return False
        known = self._moved.get(node)
        if known is None or known[0] != ack.durable or ack.durable >= self._ends[-1]:
            self._moved[node] = known = ack.durable, mind.now
        alive = mind.now - peer.heard <= PATIENCE_LEAST * config.heartbeat_ms
        return peer.state == REPLICA and alive and mind.now - known[1] <= PATIENCE_MOST * config.heartbeat_ms

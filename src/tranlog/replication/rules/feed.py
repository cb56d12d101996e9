"""The streams to followers, and the choice of the node to follow.

Owns the streams of a source and the choice of a source. A `Follow`, which names the record before it, begins a stream,
and each `Records` names the record before itself. So a follower notices lost, repeated or late packets, and begins a
new stream. Nothing here remembers what was sent.

Source: docs/protocol.md, "The order of things"; tokumx-replication (Large Transactions, Concurrency).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from tranlog.ids import Gtid
from tranlog.log.records.spill import RawChunk
from tranlog.replication.rules.config import NO_NODE, GroupConfig, NodeId
from tranlog.replication.rules.effects import Effect, KeepFrom, ReplicatedLog, Rest, Send
from tranlog.replication.rules.packets import (
    NO_GTID,
    RAW_BYTES,
    READABLE,
    ChunksGone,
    Follow,
    Records,
    SpillChunk,
)
from tranlog.replication.rules.syncup import holds

CREDIT = 4 << 20
"""Bytes that a follower lets its source send ahead of its acks."""
CHUNKS_SHARE = 8
"""This part of it is for chunks of transactions that are still open: whatever is committed goes past them."""
LEFT_BEHIND_MS = 30_000
"""A source is left when another node is so long ahead of it."""
SET_BACK_MS = 60_000
"""What was logged so much later than now was logged before the clock was set back."""


class Stream(msgspec.Struct):
    """The stream to one follower: what was sent last, and how many more bytes may be sent.

    `granted`: the credit when nothing is under way. `chunks`: how many chunks were sent of transactions whose record
    was not, by oid, and `offsets` how much of the next one. `part`: how many parts were sent of the next transaction,
    up to `rest`.
    """

    number: int
    after: Gtid
    credit: int
    granted: int
    delay_ms: int
    chunks: dict[bytes, int] = {}
    offsets: dict[bytes, int] = {}
    part: int = 0
    rest: Rest | None = None


class Feeder(msgspec.Struct):
    """The followers of this node, and the nodes that search for their matchpoint, with the time since when."""

    streams: dict[NodeId, Stream] = {}
    searching: dict[NodeId, int] = {}

    def begin(self, node: NodeId, follow: Follow, log: ReplicatedLog) -> list[Effect]:
        """Serve a follower from the transaction that it names; do nothing if this log does not hold it.

        The follower's own hold begins before that of its search ends, so that no purge passes in between.
        """
        if not holds(log, follow.after):
            return []
        known = self.streams.get(node)
        if known is not None and known.number == follow.number:
            return []
        self.streams[node] = Stream(follow.number, follow.after, follow.credit, follow.credit, follow.delay_ms)
        return [KeepFrom(f"node.{node}", follow.after.seqno + 1), KeepFrom(f"restore.{node}", None)]

    def acked(self, node: NodeId, durable: Gtid, credit: int) -> list[Effect]:
        """Give a follower more credit, and release the hold on what it has."""
        stream = self.streams.get(node)
        if stream is None:
            return []
        stream.credit = min(stream.credit + credit, CREDIT)
        return [KeepFrom(f"node.{node}", durable.seqno + 1)]

    def pump(self, log: ReplicatedLog, committed: Gtid, epoch: int, wall: int) -> Iterator[Effect]:
        """Yield what may be sent now: records, then chunks of open transactions, as far as credit and delay allow."""
        for node, stream in list(self.streams.items()):
            end: int = log.last.seqno
            if stream.after.seqno < log.first - 1:
                del self.streams[node]  # a purge went past this follower
                yield KeepFrom(f"node.{node}", None)
                continue
            if stream.delay_ms:
                end = _old_enough(log, stream.after.seqno, end, stream.delay_ms, wall)
            while stream.credit > 0 and stream.after.seqno < end:
                out = log.outgoing(stream.after.seqno, end, min(stream.credit, RAW_BYTES), stream.rest)
                if out.chunks is not None:
                    yield from _chunks(node, stream, out.chunks(stream.chunks.get(out.oid, 0)))
                    if stream.credit <= 0:
                        break  # the record comes after the last of them
                    stream.chunks.pop(out.oid, None)
                    stream.offsets.pop(out.oid, None)
                last = out.last if out.rest is None else stream.after
                sent = Records(
                    number=stream.number,
                    after=stream.after,
                    last=last,
                    committed=min(committed, last),
                    epoch=epoch,
                    part=stream.part,
                    raw=out.raw,
                )
                yield Send(node, sent)
                stream.part = 0 if out.rest is None else stream.part + 1
                stream.after, stream.rest = last, out.rest
                stream.credit -= len(out.raw)
            spare = stream.granted - stream.granted // CHUNKS_SHARE
            if not stream.delay_ms and stream.after.seqno == end and stream.credit > spare:
                yield from _chunks(node, stream, log.open_chunks(stream.chunks), spare)
            if stream.chunks and stream.after == log.last:
                for oid in stream.chunks.keys() - log.open_spills().keys():
                    del stream.chunks[oid]
                    stream.offsets.pop(oid, None)
                    yield Send(node, ChunksGone(number=stream.number, oid=oid))


def _chunks(node: NodeId, stream: Stream, chunks: Iterable[RawChunk], spare: int = 0) -> Iterator[Effect]:
    """Yield chunks as far as credit goes, but for so much of it: where more is left, that was all of them.

    None is taken that nothing can be sent of: it would be read in vain.
    """
    chunks = iter(chunks)
    while stream.credit > spare and (one := next(chunks, None)) is not None:
        behind, size = stream.offsets.get(one.oid, 0), len(one.raw)
        while behind < size and stream.credit > spare:
            offset, raw = behind, one.raw[behind : behind + RAW_BYTES]
            behind += len(raw)
            whole = behind == size
            stream.chunks[one.oid], stream.offsets[one.oid] = (one.seq + 1, 0) if whole else (one.seq, behind)
            stream.credit -= len(raw)
            yield Send(
                node,
                SpillChunk(
                    number=stream.number,
                    oid=one.oid,
                    seq=one.seq,
                    codec=one.codec,
                    raw_length=one.raw_length,
                    offset=offset,
                    size=size,
                    raw=raw,
                ),
            )


def _old_enough(log: ReplicatedLog, after: int, end: int, delay_ms: int, wall: int) -> int:
    """Return up to where records are as old as a delayed follower wants; what is far in the future was logged by a
    clock that was set back since, and does not wait for it. What has just been logged is later than `wall`, too.
    """
    seqno = after
    while seqno < end and not -SET_BACK_MS < wall - log.written_at(seqno + 1) < delay_ms:
        seqno += 1
    return seqno


class Candidate(msgspec.Struct, frozen=True):
    """A node that might be followed, as its last beat showed it."""

    node: NodeId
    state: int
    epoch: int
    last: Gtid


def choose_source(
    config: GroupConfig, own: NodeId, last: Gtid, epoch: int, alive: list[Candidate], primary: NodeId, wish: NodeId
) -> NodeId:
    """Return the node to follow; NO_NODE for none.

    The one that an operator chose, else the primary, else the node that is furthest ahead: alive, of no older epoch,
    holding more than this node, not hidden, and not more delayed. Without a primary, any node that holds more is
    allowed: a node that can be elected may have to catch up with one that cannot.
    """
    member = config.member(own)
    delay = 0 if member is None else member.delay_ms
    able = {}
    for one in alive:
        known = config.member(one.node)
        if known is None or known.witness or one.state not in READABLE or one.epoch < epoch or one.node == own:
            continue
        near = known.delay_ms <= delay and (one.node == wish or (config.chaining and not known.hidden))
        if one.node == primary or (one.last > last and (near or primary == NO_NODE)):
            able[one.node] = one
    if wish in able:
        return wish
    if primary in able:
        return primary
    return max(able.values(), key=lambda one: (one.last, one.node)).node if able else NO_NODE


class Intake(msgspec.Struct):
    """What a follower knows of its own stream. `number` is that of the search, and of the stream that came
    of it; `received` what the source has not been told of, in bytes; `part` the next part of the transaction that comes
    in parts, and `dropped` that others of it will not come."""

    source: NodeId = NO_NODE
    number: int = 0
    streaming: bool = False
    since: int = 0
    behind_since: int | None = None
    asked: Gtid = NO_GTID
    received: int = 0
    part: int = 0
    dropped: bool = False

    def stop(self) -> None:
        """Follow no node; ignore the answers to earlier questions, and earlier streams."""
        self.number += 1
        self.received = 0
        self.dropped |= self.part > 0
        self.part = 0
        self.source = NO_NODE
        self.streaming = False

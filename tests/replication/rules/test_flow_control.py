"""replication/rules/flow_control.py: who holds up a primary's writers. docs/protocol.md, "Flow control"."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fix_group import HEARTBEAT, LONG, A, Alone, B, C, D, group, gtid, plain, witness
from tranlog.ids import Seqno
from tranlog.log.records.spill import RawChunk
from tranlog.lsn import lsn
from tranlog.replication.acting.commit_queue import CommitQueue
from tranlog.replication.acting.core_thread import CommitWanted
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.config import NO_NODE, GroupConfig, NodeId
from tranlog.replication.rules.feed import Stream
from tranlog.replication.rules.flow_control import FlowControl
from tranlog.replication.rules.packets import RECOVERING, Ack

LIMIT = 1_000_000
EACH = 1_000


class Nobody:
    """Who wants no answer."""

    gone = False

    def __call__(self, outcome: Outcome, text: str) -> None: ...


class Primary(Alone):
    """A primary whose transactions have `EACH` bytes; a segment has ten of them."""

    def __init__(self, config: GroupConfig | None = None, limit: int = LIMIT) -> None:
        super().__init__(A, config or group(A, B, C))
        self.elect(*[one for one in self.core.config.voters if one != A])
        self.flow = FlowControl(limit)
        self.wrote(0)

    def wrote(self, count: int) -> None:
        """Write so many."""
        for _ in range(count + (self.flow._epoch == 0)):
            last = self.write()
            self.flow.grew(last, lsn(last.seqno // 10, last.seqno % 10 * EACH))

    def ack(self, node: NodeId, lacks: int) -> None:
        """Get an ack, and a beat, of a node that lacks so many."""
        durable = gtid(self.core.mind.epoch, self.log.last.seqno - lacks)
        self.get(node, Ack(durable=durable, epoch=durable.epoch))
        self.beat(node)

    @property
    def waits_for(self) -> NodeId:
        """For whom writers wait."""
        return self.flow.nearest if self.flow.holds(self.core.config, A, self.core.mind) else NO_NODE


def test_writers_wait_for_the_nearest_voter() -> None:
    one = Primary()
    one.ack(B, 0)
    one.ack(C, 0)
    one.wrote(2000)
    assert one.waits_for in (B, C) and one.flow.lag == pytest.approx(2000 * EACH, rel=0.2)
    one.ack(C, 1500)
    assert one.waits_for == C and one.flow.lag == pytest.approx(1500 * EACH, rel=0.2)
    one.ack(B, 500)
    assert one.waits_for == NO_NODE and one.flow.nearest == B


@pytest.mark.parametrize("lacking", [800, 1400])
def test_the_lag_is_known_however_long_the_reign_was(lacking: int) -> None:
    one = Primary()
    for _ in range(8):
        one.wrote(700)
        one.ack(B, 0)
    one.wrote(lacking)
    assert (one.waits_for == B) == (lacking * EACH * 0.9 > LIMIT)
    assert one.flow.lag == pytest.approx(lacking * EACH * 0.9, rel=0.05), "a segment's last record is not counted"


def test_without_a_limit_nobody_waits() -> None:
    one = Primary(limit=0)
    one.ack(B, 0)
    one.wrote(2000)
    assert one.waits_for == NO_NODE


def test_who_is_gone_or_stands_still_holds_up_nobody() -> None:
    one = Primary()
    one.ack(B, 0)
    one.wrote(2000)
    assert one.waits_for == B
    one.now += 5 * HEARTBEAT
    one.beat(C)
    assert one.waits_for == NO_NODE, "B was not heard"
    one.beat(B)
    assert one.waits_for == B
    for _ in range(4):
        one.now += HEARTBEAT
        one.beat(C)
        one.beat(B)
    assert one.waits_for == NO_NODE, "B's log does not grow"
    one.ack(B, 1900)
    assert one.waits_for == B
    one.beat(B, state=RECOVERING)
    assert one.waits_for == NO_NODE, "B does not fetch"


def test_only_voters_with_data_count() -> None:
    one = Primary(group(A, B, plain(C, votes=0, priority=0), witness(D)))
    one.ack(B, 0)
    one.wrote(2000)
    one.ack(C, 0)
    one.beat(D)
    assert one.waits_for == B


def test_who_is_not_primary_lets_go_on() -> None:
    one = Primary()
    one.ack(B, 0)
    one.wrote(2000)
    assert one.waits_for == B
    one.wait(LONG)
    assert one.waits_for == NO_NODE


def test_a_spilled_transaction_waits_until_a_majority_has_almost_all_its_chunks() -> None:
    """Others go past it; where its chunks do not move it is committed all the same."""
    one, wanted = Primary(), [CommitWanted(lambda log: gtid(1, 1), 1, 0, Nobody(), lambda: None, oid=b"o")]
    assert one.flow.has_spread(b"o", one.core), "nobody follows"
    one.log.spilled[b"o"] = [RawChunk(b"o", seq, 0, 1, b"c") for seq in range(10)]
    streams = one.core.feeder.streams
    for node in (B, C):
        streams[node] = Stream(1, one.log.last, 0, 0, 0, {b"o": 3})
    commits = CommitQueue(one.flow)
    commits.put(wanted[0], 0)
    small = CommitWanted(lambda log: gtid(1, 2), 1, 0, Nobody(), lambda: None)
    commits.put(small, 0)
    assert commits.take(one.core) == [small] and commits.take(one.core) == [] and commits
    streams[C].chunks[b"o"] = 8
    assert commits.take(one.core) == wanted and not commits
    streams[C].chunks[b"o"] = 4
    commits.put(wanted[0], 0)
    assert not commits.take(one.core)
    one.core.mind.now += LONG // 2 + 1
    streams[C].offsets[b"o"] = 500
    assert not commits.take(one.core), "a part of a chunk has gone out"
    one.core.mind.now += LONG // 2 + 1
    assert not commits.take(one.core)
    one.core.mind.now += LONG
    assert commits.take(one.core) == wanted


def test_a_spilled_transaction_waits_no_longer_than_its_client() -> None:
    """It is written then; what any commit has waited before is taken off its timeout."""
    one = Primary()
    one.log.spilled[b"o"] = [RawChunk(b"o", seq, 0, 1, b"c") for seq in range(10)]
    one.core.feeder.streams[B] = Stream(1, one.log.last, 0, 0, 0, {b"o": 3})
    commits = CommitQueue(one.flow)
    large, small = (
        CommitWanted(lambda log: gtid(1, 1), 1, 1500, Nobody(), lambda: None, oid=oid) for oid in (b"o", b"")
    )
    commits.put(large, one.core.mind.now)
    assert commits.take(one.core) == []
    commits.put(small, one.core.mind.now)
    one.core.mind.now += 1499
    assert commits.take(one.core) == [replace(small, wtimeout_ms=1)] and commits.take(one.core) == []
    one.core.mind.now += 1
    assert commits.take(one.core) == [replace(large, wtimeout_ms=1)] and not commits


def test_a_commit_waits_as_long_as_its_client_gave_it() -> None:
    one = Primary()
    commits = CommitQueue(one.flow)
    for wtimeout_ms in (100, 0, None):
        wanted = CommitWanted(lambda log: gtid(1, 1), None, wtimeout_ms, Nobody(), lambda: None)
        commits.put(wanted, one.core.mind.now)
    first, forever, default = (waiting for _, waiting in commits._waiting)
    one.ack(B, 0)
    one.wrote(2000)
    assert commits.take(one.core) == [] and commits.waits_for == B and commits.lags(one.core)[0] == "b"
    assert commits.late(one.core) == []
    one.core.mind.now += 100
    assert commits.late(one.core) == [first] and commits
    one.ack(B, 0)
    assert commits.take(one.core) == [forever, default] and commits.waits_for == NO_NODE and not commits
    assert Seqno(one.log.last.seqno) > 2000

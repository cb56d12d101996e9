"""Core: what waits for one round, and for credit. What else a node decides, the simulator plays."""

from __future__ import annotations

import pytest

from sim.cluster import Cluster
from sim.scenario import Story
from tranlog.ids import Gtid, Seqno
from tranlog.replication.rules.config import NodeId
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import Put, Send
from tranlog.replication.rules.feed import CREDIT
from tranlog.replication.rules.packets import Ack, Records
from tranlog.replication.rules.reading import Latest, may_read

A = NodeId("a")
ROUND_MS = 20
"""A line takes up to 5 ms, and a heartbeat comes every 250."""


def elected(nodes: str) -> tuple[Cluster, Core]:
    """A group whose first node is primary, and that has no beat on its way."""
    story = Story()
    for line in (f"nodes {nodes}", "elect a", "commit a x"):
        story.do(line)
    cluster = story.cluster
    core = cluster.nodes[A].core
    assert core is not None
    assert cluster.run_until(lambda: core.confirmed() == core.mind.pulse.beat, 1_000)
    return cluster, core


@pytest.mark.parametrize("nodes", ["a", "a b c", "a b c:witness", "a b c d:votes0"])
def test_who_reads_the_latest_waits_for_one_round(nodes: str) -> None:
    """docs/protocol.md, "The order of things": a beat goes out at once, and is answered at once."""
    cluster, core = elected(nodes)
    for _ in range(30):
        wish = Latest(core.mind.pulse.beat, core.mind.committed)
        assert not may_read(wish, core.position(), 0)
        cluster.read_latest(A)
        cluster.run(0 if nodes == "a" else ROUND_MS)
        assert may_read(wish, core.position(), 0)


def test_many_readers_share_a_round() -> None:
    """While a beat waits for its answers there is no other, however long they take."""
    cluster, core = elected("a b c")
    cluster.network.part([A], [NodeId("b"), NodeId("c")])
    before = core.mind.pulse.beat
    for _ in range(100):
        cluster.read_latest(A)
        cluster.run(5)
    beats = core.mind.pulse.beat - before
    assert 1 <= beats <= 1 + 500 // core.config.heartbeat_ms + 1
    asked = Latest(core.mind.pulse.beat, core.mind.committed)
    assert not may_read(asked, core.position(), 0), "nobody confirms it"


def test_credit_comes_back_while_a_sync_takes_its_time() -> None:
    """docs/protocol.md, "The order of things": with what is appended, a quarter at a time."""
    cluster, _ = elected("a b c")
    core = cluster.nodes[NodeId("b")].core
    assert core is not None and core.intake.streaming
    durable = after = core.log.last
    core.ready()
    packet = Records(
        number=core.intake.number,
        after=after,
        last=Gtid(after.epoch, Seqno(after.seqno + 1)),
        committed=after,
        epoch=after.epoch,
        part=0,
        raw=bytes(CREDIT // 4),
    )
    core.step(A, packet, core.mind.now)
    put, sent = core.ready()
    assert isinstance(put, Put), "it is appended before it is told"
    assert isinstance(sent, Send) and isinstance(sent.packet, Ack)
    assert (sent.to, sent.packet.durable, sent.packet.credit) == (A, durable, CREDIT // 4)

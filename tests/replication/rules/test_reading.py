"""Reading: conformance/vlsn-index.md I43 and S10."""

from __future__ import annotations

import pytest

from fix_group import HEARTBEAT, A, Alone, B, C, group, gtid
from tranlog.replication.rules.config import NO_NODE
from tranlog.replication.rules.packets import NO_GTID, PRIMARY, RECOVERING, REPLICA, Ack
from tranlog.replication.rules.reading import (
    AtLeast,
    Latest,
    Position,
    Preference,
    Readable,
    Within,
    choose_node,
    may_read,
)

NODES = [
    Readable(A, PRIMARY, 5, tags={"site": "x"}),
    Readable(B, REPLICA, 9, tags={"site": "x"}),
    Readable(C, REPLICA, 1, tags={"site": "y"}),
]


@pytest.mark.parametrize(
    ("preference", "all_up", "no_primary", "no_replica"),
    [
        ("primary", A, NO_NODE, A),
        ("primaryPreferred", A, C, A),
        ("replica", C, C, NO_NODE),
        ("replicaPreferred", C, C, A),
        ("nearest", C, C, A),
    ],
)
def test_preference(preference: str, all_up: str, no_primary: str, no_replica: str) -> None:
    wish = Preference(preference)
    assert choose_node(NODES, wish) == all_up
    assert choose_node(NODES[1:], wish) == no_primary
    assert choose_node(NODES[:1], wish) == no_replica


def test_tags_in_their_order() -> None:
    assert choose_node(NODES, Preference.NEAREST, [{"site": "z"}, {"site": "x"}]) == A
    assert choose_node(NODES, Preference.REPLICA, [{"site": "x"}]) == B
    assert choose_node(NODES, Preference.REPLICA, [{"site": "z"}]) == NO_NODE
    assert choose_node(NODES, Preference.REPLICA, [{"site": "z"}, {}]) == C


def test_hidden_nodes_and_states_that_serve_no_reads_are_left_out() -> None:
    nodes = [Readable(B, RECOVERING, 1), Readable(C, REPLICA, 1, hidden=True), Readable(A, REPLICA, 99)]
    assert choose_node(nodes, Preference.NEAREST) == A


def test_read_your_writes() -> None:
    position = Position(gtid(2, 5), 0)
    assert may_read(AtLeast(gtid(2, 5)), position, 0) and not may_read(AtLeast(gtid(2, 6)), position, 0)


def test_at_most_so_far_behind() -> None:
    position = Position(gtid(2, 5), fresh_at=1000)
    assert may_read(Within(500), position, 1500) and not may_read(Within(500), position, 1501)


def test_the_lax_never_wait_for_the_strict() -> None:
    position = Position(gtid(2, 5), fresh_at=1000)
    wishes = [Within(1), AtLeast(gtid(9, 9)), Latest(0), Within(10_000), AtLeast(gtid(1, 1)), None]
    assert [may_read(wish, position, 5000) for wish in wishes] == [False, False, False, True, True, True]


def test_latest_waits_until_a_majority_has_confirmed_the_epoch() -> None:
    node = Alone(A, group(A, B, C))
    node.elect(B)
    wish = Latest(node.core.mind.pulse.beat)
    node.beat(B)  # an answer to a beat from before the question; nothing committed either
    assert not may_read(wish, node.core.position(), 0)
    node.wait(HEARTBEAT)
    node.beat(B)
    assert node.core.mind.committed == NO_GTID and not may_read(wish, node.core.position(), 0)
    node.get(B, Ack(durable=node.log.last, epoch=1))
    assert may_read(wish, node.core.position(), 0)
    node.beat(C, epoch=2)  # it is primary no more
    assert not may_read(wish, node.core.position(), 0)


def test_readers_at_a_primary_see_what_is_durable_there() -> None:
    """Others make a majority before its own disk has what they have."""
    node = Alone(A, group(A, B, C))
    node.elect(B)
    node.get(B, Ack(durable=node.log.last, epoch=1))
    first, node.synced = node.log.last, False
    written = node.write()
    for other in (B, C):
        node.get(other, Ack(durable=written, epoch=1))
    asked = Latest(node.core.mind.pulse.beat, node.core.mind.committed)
    node.wait(HEARTBEAT)
    sent = node.core.mind.now
    node.beat(B)
    at = node.core.position()
    assert node.core.mind.committed == written and at.shown == first
    assert not may_read(AtLeast(written), at, sent) and not may_read(asked, at, sent)
    assert not may_read(Within(0), at, sent)
    node.log.sync()
    node.core.durable()
    at = node.core.position()
    assert at.shown == written
    assert may_read(AtLeast(written), at, sent) and may_read(asked, at, sent) and may_read(Within(0), at, sent)


def test_readers_at_a_replica_see_what_is_durable_there() -> None:
    """The primary's word of what is committed comes before its own disk has it."""
    node = Alone(B, group(A, B, C))
    node.wait(HEARTBEAT)
    mind = node.core.mind
    node.log.append("x", 0)
    told = {"state": PRIMARY, "epoch": 1, "committed": node.log.last, "echo": mind.pulse, "confirmed_ms": 0}
    node.beat(A, **told)
    at = node.core.position()
    assert mind.committed == node.log.last and at.shown == NO_GTID
    assert not may_read(AtLeast(node.log.last), at, mind.now) and not may_read(Within(0), at, mind.now)
    node.log.sync()
    at = node.core.position()
    assert may_read(AtLeast(node.log.last), at, mind.now) and may_read(Within(0), at, mind.now)

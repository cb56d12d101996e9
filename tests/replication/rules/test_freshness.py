"""How recent a node's log is, by clocks that are hours apart: docs/protocol.md, "The order of things"."""

from __future__ import annotations

from fix_group import HEARTBEAT, A, Alone, B, C, group, gtid
from tranlog.replication.rules.freshness import KEPT, NEVER, Freshness
from tranlog.replication.rules.packets import Ack, Heartbeat, Pulse
from tranlog.replication.rules.reading import Within, may_read


def test_a_replica_is_as_fresh_as_its_own_beat_that_the_primary_had_heard() -> None:
    fresh = Freshness()
    for beat in range(5):
        fresh.sent(beat, 1000 * beat)
    fresh.told(gtid(1, 5), 3, 200, own=gtid(1, 4))
    assert fresh.at(gtid(1, 4)) == NEVER, "what the primary had committed is not here yet"
    assert fresh.at(gtid(1, 5)) == 2800
    fresh.told(gtid(1, 5), 2, 0, own=gtid(1, 5))
    assert fresh.at(gtid(1, 5)) == 2800, "an older word changes nothing"
    fresh.told(gtid(1, 6), 4, 0, own=gtid(1, 5))
    fresh.told(gtid(1, 7), 99, 0, own=gtid(1, 5))
    assert fresh.at(gtid(1, 7)) == 4000, "a beat that is not remembered says nothing"


def test_a_replica_that_is_far_behind_remembers_little() -> None:
    fresh = Freshness()
    fresh.sent(0, 0)
    for seqno in range(10 * KEPT):
        fresh.told(gtid(1, seqno), 0, 0, own=gtid(1, 0))
    assert len(fresh._told) <= KEPT


def test_a_primary_is_as_fresh_as_what_a_majority_has_answered() -> None:
    node = Alone(A, group(A, B, C))
    node.elect(B)
    assert node.core.position().fresh_at == NEVER
    node.wait(HEARTBEAT)
    sent = node.core.mind.now
    node.beat(B)
    assert node.core.position().fresh_at == NEVER, "nothing is committed in its epoch: an earlier one's may be missing"
    node.get(B, Ack(durable=node.log.last, epoch=1))
    assert node.core.position().fresh_at == sent
    beats = [one for _, one in node.wait(HEARTBEAT) if isinstance(one, Heartbeat)]
    assert beats and {one.confirmed_ms for one in beats} == {node.core.mind.now - sent}
    node.wait(HEARTBEAT)
    at = node.core.position()
    now = node.core.mind.now
    assert may_read(Within(now - sent), at, now) and not may_read(Within(now - sent - 1), at, now)


def test_only_an_echo_of_this_start_counts() -> None:
    node = Alone(B, group(A, B, C))
    node.wait(HEARTBEAT)
    mind = node.core.mind
    for start, fresh in ((mind.pulse.start + 1, NEVER), (mind.pulse.start, mind.now - 40)):
        node.beat(A, state=1, epoch=1, echo=Pulse(start, mind.pulse.beat), confirmed_ms=40)
        assert node.core.position().fresh_at == fresh

"""Acks and the commit point: docs/protocol.md, "Numbers"; conformance/tokumx.md, part B, 14 to 20."""

from __future__ import annotations

from itertools import combinations

import pytest

from fix_group import A, Alone, B, C, D, E, group, gtid, log_of, plain, witness
from tranlog.replication.rules.acks import AckTable, commit_point, may_ack, note_ack
from tranlog.replication.rules.config import GroupConfig, NodeId, copies_needed, election_majority
from tranlog.replication.rules.packets import NO_GTID, PRIMARY, Ack, AckRelay


@pytest.mark.parametrize(
    ("config", "needed"),
    [
        (group(A), 1),
        (group(A, B), 2),
        (group(A, B, C), 2),
        (group(A, B, C, D), 3),
        (group(A, B, C, D, E), 3),
        (group(A, B, witness(C)), 2),
        (group(A, witness(B), witness(C)), 1),
        (group(A, B, C, witness(D), witness(E)), 3),
        (group(A, B, plain(C, votes=0, priority=0)), 2),
    ],
)
def test_how_many_copies_are_a_majority(config: GroupConfig, needed: int) -> None:
    """min(floor(voters / 2) + 1, voters with data)."""
    assert copies_needed(config) == needed
    for having in combinations(config.copies, needed):
        for voting in combinations(config.voters, election_majority(config)):
            # Whoever is elected has a copy, or is voted for by one who has and compares.
            for candidate in set(voting) & set(config.copies) - set(having):
                assert set(having) & set(voting) - {candidate}, "an election passes the copies by"


def test_half_of_the_voters_with_data_is_not_enough() -> None:
    """Of three and two witnesses, one and both witnesses elect a primary that lacks the write."""
    config = group(A, B, C, witness(D), witness(E))
    assert commit_point(config, {A: gtid(1, 5), B: gtid(1, 5)}, 1) == NO_GTID
    assert commit_point(config, {A: gtid(1, 5), B: gtid(1, 5), C: gtid(1, 4)}, 1) == gtid(1, 4)


def test_only_voters_with_data_count() -> None:
    config = group(A, B, plain(C, votes=0, priority=0), witness(D))
    assert commit_point(config, {A: gtid(1, 5), C: gtid(1, 5), D: gtid(1, 5)}, 1) == NO_GTID


def test_an_older_epoch_is_committed_only_with_a_record_of_the_own_behind_it() -> None:
    config = group(A, B, C)
    assert commit_point(config, {A: gtid(3, 9), B: gtid(2, 7)}, 3) == NO_GTID
    assert commit_point(config, {A: gtid(3, 9), B: gtid(3, 8)}, 3) == gtid(3, 8)


def test_no_ack_to_an_older_epoch() -> None:
    assert may_ack(3, 3) and not may_ack(2, 3)


def told(durable: tuple[int, int], mark: int = 0, epoch: int = 3) -> Ack:
    return Ack(durable=gtid(*durable), epoch=epoch, mark=mark)


def test_acks_only_rise_and_those_of_another_epoch_do_not_count() -> None:
    acks: AckTable = {}
    assert note_ack(acks, B, told((3, 5)), epoch=3, held=True)
    assert not note_ack(acks, B, told((3, 4)), epoch=3, held=True)
    assert not note_ack(acks, B, told((3, 6), epoch=2), epoch=3, held=True)
    assert not note_ack(acks, B, told((3, 6), epoch=4), epoch=3, held=True)
    assert acks[B].durable == gtid(3, 5)


def test_an_ack_of_what_the_primary_does_not_hold_counts_for_nothing() -> None:
    acks: AckTable = {}
    assert not note_ack(acks, B, told((2, 9)), epoch=3, held=False)
    assert B not in acks


def test_an_ack_is_void_when_its_log_went_back() -> None:
    acks: AckTable = {}
    note_ack(acks, B, told((3, 5)), epoch=3, held=True)
    assert note_ack(acks, B, told((3, 2), mark=1), epoch=3, held=True)
    assert acks[B].durable == gtid(3, 2)
    assert not note_ack(acks, B, told((3, 5)), epoch=3, held=True)  # overtaken
    assert note_ack(acks, B, told((2, 9), mark=2), epoch=3, held=False)
    assert acks[B].durable == NO_GTID


def test_acks_of_a_node_that_lost_its_log_are_void() -> None:
    node = Alone(A, group(A, B, C))
    node.synced = False
    node.elect(B)
    node.get(C, Ack(durable=gtid(1, 0), epoch=1))
    node.beat(C, asks=True)
    node.log.sync()
    node.core.durable()
    assert node.core.mind.committed == NO_GTID


def test_acks_percolate_through_a_chain() -> None:
    """conformance/tokumx.md A5.6: those who follow a follower count."""
    primary, middle = Alone(A, group(A, B, C)), Alone(B, group(A, B, C))
    primary.elect(C)
    written = primary.write()
    middle.core.intake.source = A
    ((to, relay),) = middle.get(C, Ack(durable=written, epoch=1))
    assert to == A and isinstance(relay, AckRelay) and relay.node == C
    primary.get(B, relay)
    assert primary.core.mind.committed == written


def test_acks_do_not_circle() -> None:
    node = Alone(B, group(A, B, C))
    node.core.intake.source = A
    relay = AckRelay(node=C, ack=told((1, 0)))
    assert not node.get(A, relay)  # it came from there
    assert not node.get(C, AckRelay(node=A, ack=told((1, 0))))  # it is about the source
    assert not node.get(C, AckRelay(node=NodeId("x"), ack=told((1, 0)), hops=16))


def test_a_replica_takes_a_commit_point_only_as_a_gtid_that_it_holds() -> None:
    node = Alone(A, group(A, B, C), log_of(1, 1, 1, 1))
    node.beat(B, state=PRIMARY, epoch=2, committed=gtid(2, 2))
    assert node.core.mind.committed == NO_GTID  # seqno 2 is there, and another transaction
    node.beat(B, state=PRIMARY, epoch=2, committed=gtid(1, 1))
    assert node.core.mind.committed == gtid(1, 1)


def test_a_commit_point_never_goes_back() -> None:
    node = Alone(A, group(A, B, C), log_of(1, 1, 1, 1))
    for seqno in (2, 0, 3, 1):
        node.beat(B, state=PRIMARY, epoch=2, committed=gtid(1, seqno))
    assert node.core.mind.committed == gtid(1, 3)

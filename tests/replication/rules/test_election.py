"""Elections: each rule of docs/protocol.md, "Elections", has a test that is named for it.

The rest proves what conformance/tokumx.md says of A7: priority, hidden, delay, witness, votes 0, freeze, maintenance,
transfer, the group of one.
"""

from __future__ import annotations

import pytest

from fix_group import HEARTBEAT, LONG, A, Alone, B, C, group, gtid, log_of, of, plain, sent, vote_for, witness
from tranlog.replication.rules.config import NO_NODE, ConfigId, GroupConfig, successor
from tranlog.replication.rules.core import Core
from tranlog.replication.rules.effects import BeginReign, Effect, EndReign, Persist, Send, Tell
from tranlog.replication.rules.packets import (
    FATAL,
    NO_GTID,
    PRIMARY,
    RECOVERING,
    REPLICA,
    Ack,
    Lead,
    PreVote,
    Records,
    Vote,
    Voted,
)

THREE = group(A, B, C)


def position(effects: list[Effect], kind: type[Effect]) -> int:
    return next(at for at, one in enumerate(effects) if isinstance(one, kind))


def test_rule_1_nobody_stands_without_a_pre_vote() -> None:
    node = Alone(A, THREE)
    asked = node.wait()
    assert {to for to, packet in asked if isinstance(packet, PreVote)} == {B, C} and not of(Vote, asked)
    assert node.disk.epoch == 0 and node.core.mind.epoch == 0  # nothing promised, no epoch used up
    node.get(B, Voted(epoch=1, pre=True, why="I hear a primary", known=0))
    assert not of(Vote, sent(node.done))
    assert of(Vote, node.get(C, Voted(epoch=1, pre=True, why="", known=0)))


def test_rule_1_who_hears_a_primary_pre_votes_for_nobody() -> None:
    node = Alone(A, THREE)
    node.beat(B, state=PRIMARY, epoch=1)
    request = PreVote(epoch=2, last=gtid(9, 9), config=THREE.id, priority=1)
    (answer,) = of(Voted, node.get(C, request))
    assert isinstance(answer, Voted) and answer.why == "I hear a primary"
    node.now += LONG
    (answer,) = of(Voted, node.get(C, request))
    assert isinstance(answer, Voted) and answer.why == ""


def test_rule_2_one_vote_an_epoch() -> None:
    node = Alone(A, THREE)
    assert vote_for(node, B, 1) == ""
    assert vote_for(node, C, 1) == "I have voted in epoch 1"
    assert vote_for(node, B, 1) == ""  # asked again, the same answer
    assert vote_for(node, C, 2) == ""


def test_rule_2_a_vote_is_durable_before_it_is_told() -> None:
    node = Alone(A, THREE)
    node.core.step(B, Vote(epoch=1, last=node.log.last, config=THREE.id, priority=1), 0)
    effects = node.carry_out()
    assert position(effects, Persist) < position(effects, Send)
    again = Alone(A, THREE, epoch=node.disk.epoch, candidate=node.disk.candidate)  # after a loss of power
    assert vote_for(again, C, 1) == "I have voted in epoch 1"


def test_rule_2_the_own_vote_is_durable_before_the_first_request() -> None:
    node = Alone(A, THREE)
    node.wait()
    node.core.step(B, Voted(epoch=1, pre=True, why="", known=0), node.now)
    effects = node.carry_out()
    assert position(effects, Persist) < position(effects, Send)
    assert (node.disk.epoch, node.disk.candidate) == (1, A)


def test_rule_2_a_primary_votes_for_nobody() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    assert vote_for(node, C, 9, last=gtid(9, 9), config=ConfigId(9, 9)) == "I am primary"


def test_rule_3_no_vote_for_an_older_log() -> None:
    node = Alone(A, THREE, log_of(1, 1, 2))
    assert "the candidate's log ends at GTID(1, 9)" in vote_for(node, B, 3, last=gtid(1, 9))
    assert "the candidate's log ends at GTID(2, 1)" in vote_for(node, B, 3, last=gtid(2, 1))
    assert vote_for(node, B, 3, last=gtid(2, 2)) == ""


def test_rule_3_no_vote_for_an_older_configuration() -> None:
    node = Alone(A, group(A, B, C, id=ConfigId(2, 5)))
    assert "configuration is older" in vote_for(node, B, 3, config=ConfigId(1, 9))
    assert vote_for(node, B, 3, config=ConfigId(2, 6)) == ""


def test_rule_3_a_witness_has_no_log_to_compare() -> None:
    node = Alone(A, group(witness(A), B, C), log_of(1, 1, 1))
    assert vote_for(node, B, 2, last=gtid(1, 0)) == ""


def test_rule_4_no_ack_to_an_epoch_older_than_the_last_vote() -> None:
    primary, node = Alone(B, THREE), Alone(A, THREE)
    primary.elect(C)
    for _ in range(9):  # until it follows
        _exchange(node, primary)
    assert of(Ack, node.wait(HEARTBEAT))
    node.now += LONG
    assert vote_for(node, C, 2) == ""
    assert not of(Ack, node.wait(HEARTBEAT))


def _exchange(one: Alone, other: Alone) -> None:
    """Let two nodes beat, and hear each other out."""
    queue = [(one, other, packet) for to, packet in one.wait(HEARTBEAT) if to == other.core.node]
    queue += [(other, one, packet) for to, packet in other.wait(HEARTBEAT) if to == one.core.node]
    while queue:
        sender, receiver, packet = queue.pop(0)
        answers = receiver.get(sender.core.node, packet)
        queue += [(receiver, sender, answer) for to, answer in answers if to == sender.core.node]


def test_rule_5_a_primary_that_hears_no_majority_steps_down() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    for _ in range(20):
        node.beat(B)
        node.wait(HEARTBEAT)
    assert node.core.mind.state == PRIMARY  # with one of two
    node.wait(LONG)
    assert node.core.mind.state == REPLICA and any(isinstance(one, EndReign) for one in node.done)


def test_rule_5_after_a_pause_it_steps_down_before_it_answers() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    written = node.write()
    node.core.ask(1, written, "majority", 0)
    node.now += LONG  # the program stood still, an ack lies in its socket
    node.get(B, Ack(durable=written, epoch=1))
    (told,) = [one for one in node.done if isinstance(one, Tell)]
    assert told.outcome.kind == "not primary"


def test_rule_6_committed_only_through_a_record_of_the_own_epoch() -> None:
    """Raft's figure 8: a majority has the old record durable, and it can still be lost."""
    node = Alone(A, THREE, log_of(1, 1))
    node.synced = False
    node.elect(B)
    node.get(B, Ack(durable=gtid(1, 1), epoch=node.core.mind.epoch))
    assert node.core.mind.committed == gtid(0, -1)
    node.get(B, Ack(durable=gtid(2, 2), epoch=node.core.mind.epoch))
    assert node.core.mind.committed == gtid(0, -1)  # the primary's own copy is not durable
    node.log.sync()
    node.core.durable()
    assert node.core.mind.committed == gtid(2, 2)


def test_rule_7_a_role_change_voids_acks() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    node.get(B, Ack(durable=gtid(1, 0), epoch=1))
    assert node.core.mind.acks
    node.wait(LONG)
    assert node.core.mind.state == REPLICA and not node.core.mind.acks
    node.elect(B)
    assert not node.core.mind.acks


def test_rule_8_a_refused_connection_to_the_primary_starts_the_pre_vote_at_once() -> None:
    node = Alone(A, THREE)
    node.beat(B, state=PRIMARY, epoch=1)
    assert not of(PreVote, node.wait(HEARTBEAT))
    node.core.refused(C, node.now)
    assert not of(PreVote, node.wait(1))
    node.core.refused(B, node.now)
    assert of(PreVote, node.wait(1))


def test_rule_8_who_was_refused_asks_again_soon() -> None:
    """Another node may not know yet that the primary is gone, or wait for this one as it has a higher priority."""
    for chance in (0, 1, 249, 250, 251, 999):
        node = Alone(A, THREE)
        node.beat(B, state=PRIMARY, epoch=1)
        node.core.refused(B, node.now)
        assert of(PreVote, node.wait(1, chance))
        patience = node.core.mind.stand_at - node.now
        assert patience == HEARTBEAT + chance % (HEARTBEAT + 1)
        assert of(PreVote, node.wait(patience, chance))
        node.beat(C, state=PRIMARY, epoch=2)
        node.wait(LONG, chance)
        assert node.core.mind.stand_at - node.now == 4 * HEARTBEAT + chance, "the next one is only silent"


def test_rule_8_else_it_waits_four_to_eight_heartbeats() -> None:
    for chance in (0, 1, 999, 1000, 12345):
        node = Alone(A, THREE)
        node.wait(HEARTBEAT * 4, chance)
        patience = node.core.mind.stand_at - node.now
        assert 4 * HEARTBEAT <= patience <= 8 * HEARTBEAT
        assert patience == 4 * HEARTBEAT + chance % (4 * HEARTBEAT + 1)


def test_rule_9_a_lower_priority_waits_once_for_a_higher_one_that_is_caught_up() -> None:
    node = Alone(A, group(plain(A, priority=1), plain(B, priority=5), C))
    node.now += LONG
    node.beat(B)
    assert not of(PreVote, node.wait(1))
    node.now += LONG
    node.beat(B)
    assert of(PreVote, node.wait(1))  # one timeout at most


def test_rule_9_it_does_not_wait_for_one_that_is_behind() -> None:
    node = Alone(A, group(plain(A, priority=1), plain(B, priority=5), C), log_of(1, 1))
    node.now += LONG
    node.beat(B, last=gtid(1, 0))
    assert of(PreVote, node.wait(1))


def test_rule_9_a_primary_hands_over_to_a_higher_priority() -> None:
    node = Alone(A, group(plain(A, priority=1), plain(B, priority=5), C))
    node.elect(C)
    for _ in range(9):
        node.beat(B)
        node.beat(C)
        node.get(B, Ack(durable=node.log.last, epoch=1))
        node.wait(HEARTBEAT)
    assert [to for to, packet in sent(node.done) if isinstance(packet, Lead)] == [B]
    assert node.core.mind.state == REPLICA


@pytest.mark.parametrize(
    "config",
    [
        group(plain(A, priority=0), B, C),
        group(plain(A, priority=0, hidden=True), B, C),
        group(plain(A, priority=0, delay_ms=1000), B, C),
        group(plain(A, priority=0, votes=0), B, C),
        group(witness(A), B, C),
        group(B, C),
    ],
    ids=["priority 0", "hidden", "delayed", "votes 0", "witness", "no member"],
)
def test_rule_9_who_may_not_be_primary_never_stands(config: GroupConfig) -> None:
    node = Alone(A, config)
    for _ in range(5):
        assert not of(PreVote, node.wait())
    assert not of(Vote, node.get(B, Lead(epoch=0)))


def test_rule_9_frozen_and_maintained_nodes_do_not_stand_and_vote() -> None:
    frozen, maintained = Alone(A, THREE), Alone(A, THREE)
    frozen.core.freeze(10 * LONG)
    maintained.core.maintain(True)
    assert maintained.core.mind.state == RECOVERING and not maintained.core.serves_reads
    for node in (frozen, maintained):
        assert not of(PreVote, node.wait())
        assert vote_for(node, B, 1) == ""
    frozen.core.freeze(0)
    maintained.core.maintain(False)
    for node in (frozen, maintained):
        assert of(PreVote, node.wait() + node.wait())


def test_rule_9_maintenance_is_left_as_often_as_it_was_entered() -> None:
    node = Alone(A, THREE)
    for on, state in ((True, RECOVERING), (True, RECOVERING), (False, RECOVERING), (False, REPLICA), (False, REPLICA)):
        node.core.maintain(on)
        assert node.core.mind.state == state


def test_rule_10_a_transfer_waits_for_one_replica_that_has_everything() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    written = node.write()
    node.beat(B)
    node.beat(C)
    assert node.core.hand_over(NO_NODE, 1000)
    assert not node.core.accepts_writes and node.core.mind.state == PRIMARY
    assert not node.core.hand_over(NO_NODE, 1000)  # one at a time
    node.get(C, Ack(durable=gtid(1, 0), epoch=1))
    assert node.core.mind.state == PRIMARY
    assert of(Lead, node.get(B, Ack(durable=written, epoch=1)))
    assert node.core.mind.state == REPLICA
    assert not of(PreVote, node.wait(LONG))  # it rests for a while


def test_rule_10_a_transfer_that_nobody_can_take_is_refused_and_commits_go_on() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    node.write()
    node.core.hand_over(NO_NODE, 100)
    node.beat(B)
    node.wait(100)
    assert node.core.accepts_writes and not of(Lead, sent(node.done))


def test_rule_10_unless_it_is_forced() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    node.write()
    node.beat(B)
    node.get(B, Ack(durable=gtid(1, 0), epoch=1))
    node.core.hand_over(NO_NODE, 100, force=True)
    assert of(Lead, node.wait(100))
    assert node.core.mind.state == REPLICA


def test_rule_10_who_is_told_to_lead_stands_at_once_and_is_voted_for_although_a_primary_was_heard() -> None:
    node, voter = Alone(B, THREE), Alone(C, THREE)
    for one in (node, voter):
        one.beat(A, state=PRIMARY, epoch=1)
    (request, _) = of(Vote, node.get(A, Lead(epoch=1)))
    assert isinstance(request, Vote) and request.transfer and request.epoch == 2
    (answer,) = of(Voted, voter.get(B, request))
    assert isinstance(answer, Voted) and answer.why == ""
    assert not of(Vote, node.get(A, Lead(epoch=1)))  # once


def test_a_group_of_one_elects_itself_and_each_start_has_a_new_epoch() -> None:
    node = Alone(A, group(A))
    node.wait()
    assert node.core.accepts_writes and node.log.last == gtid(1, 0)
    written = node.write()
    assert node.core.mind.committed == written
    again = Alone(A, node.core.config, node.log, epoch=node.disk.epoch, candidate=node.disk.candidate)
    again.wait()
    assert again.log.last == gtid(2, 2)


def test_the_first_epoch_lies_above_all_of_an_old_log() -> None:
    node = Alone(A, group(A), log_of(1, 4, 7))
    node.wait()
    assert node.log.last == gtid(8, 3)


def test_a_primary_begins_with_the_no_op_of_its_epoch() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    assert [one for one in node.done if isinstance(one, BeginReign)] == [BeginReign(1)]
    assert node.log.entries[0].text == "no-op"


def test_a_later_epoch_ends_a_reign() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    written = node.write()
    node.core.ask(1, written, "majority", 0)
    node.beat(C, epoch=5)
    assert node.core.mind.state == REPLICA and node.core.mind.epoch == 5 and not node.core.accepts_writes
    (told,) = [one for one in node.done if isinstance(one, Tell)]
    assert told.outcome.kind == "failed over"


def test_who_lost_what_was_durable_does_not_vote_stand_or_ack() -> None:
    node = Alone(A, THREE, log_of(1, 1))
    node.core = Core(node.disk, node.log, start=2, now=0, wall=0, lost=True)
    why = vote_for(node, B, 5)
    assert "lost what was durable" in why and "tranlog group reconfigure --force" in why
    assert node.disk.owing  # survives the next start, too
    assert not of(PreVote, node.wait())
    again = Alone(A, THREE, log_of(1, 1), owing=True)
    assert "lost what was durable" in vote_for(again, B, 5)


def test_it_votes_again_once_it_holds_the_commit_point_that_the_primary_named_after_that() -> None:
    node = Alone(A, THREE, log_of(1, 1), owing=True)
    node.beat(B, state=PRIMARY, epoch=1, owed=gtid(1, 1), echo=node.core.mind.pulse.__class__(99, 1))
    assert node.disk.owing  # named to an earlier start of this node
    node.beat(B, state=PRIMARY, epoch=1, owed=gtid(1, 2))
    assert node.disk.owing  # not there yet
    node.beat(B, state=PRIMARY, epoch=1, owed=gtid(1, 1))
    assert not node.disk.owing


def test_a_primary_names_that_commit_point_once_a_majority_without_the_asker_confirmed_its_epoch() -> None:
    node = Alone(A, THREE)
    node.elect(B)
    node.get(B, Ack(durable=node.log.last, epoch=1))
    assert node.core.mind.committed == gtid(1, 0)
    node.beat(C, asks=True)

    def owed() -> list[object]:
        return [getattr(packet, "owed", None) for to, packet in node.wait(HEARTBEAT) if to == C]

    assert owed() == [None]
    node.beat(C, asks=True)
    assert owed() == [None]  # the asker itself confirms nothing
    node.beat(B)
    assert owed() == [gtid(1, 0)]


def test_records_follow_only_a_source_of_no_older_epoch() -> None:
    primary, node = Alone(B, THREE), Alone(A, THREE)
    primary.elect(C)
    for _ in range(9):
        _exchange(node, primary)
    assert node.log.last == gtid(1, 0)
    node.core.mind.epoch = 4
    intake = node.core.intake
    node.get(
        B,
        Records(
            number=intake.number, after=node.log.last, last=gtid(1, 1), committed=gtid(0, -1), epoch=3, part=0, raw=b""
        ),
    )
    assert not intake.streaming


def test_who_gives_its_log_up_by_order_votes_again_once_it_holds_as_much() -> None:
    """Without a primary, too. After a FATAL end only a primary knows what of it counts; an empty log held nothing."""
    node = Alone(A, group(A, B, C), log_of(1, 1))
    assert node.core.restore(B) is None
    assert (node.core.stored.owing, node.core.stored.had) == (True, gtid(1, 1))
    node = Alone(A, group(A, B, C), log_of(1, 1))
    node.core.mind.fatal, node.core.mind.state = "it went too far", FATAL
    assert node.core.restore(B) is None and not node.core.stored.owing
    node.core.gives_up()
    assert (node.core.stored.owing, node.core.stored.had) == (True, NO_GTID)
    node = Alone(A, group(A, B, C), log_of())
    assert node.core.restore(B) is None
    node.core.gives_up()
    assert not node.core.stored.owing


def test_a_fatal_node_that_is_forced_goes_on() -> None:
    """docs/replication.md, "When a majority is lost for ever": its history was chosen."""
    node = Alone(A, group(A, B, C), log_of(1, 1))
    node.core.mind.fatal, node.core.mind.state = "it went too far", FATAL
    alone = successor(node.core.config, [plain(A)], epoch=node.core.mind.epoch, forced=True)
    assert node.core.reconfigure(alone, forced=True) is None
    node.elect()


@pytest.mark.parametrize("ordered", ["restore", "freeze", "maintenance"])
@pytest.mark.parametrize("asks", ["pre-vote", "vote"])
def test_a_campaign_ends_where_the_node_may_stand_no_more(ordered: str, asks: str) -> None:
    """A vote that was under way may not make a node primary whose log is being replaced."""
    node = Alone(A, THREE, log_of(1, 1, 1))
    for _ in range(3):
        node.wait()
    if asks == "vote":
        node.get(B, Voted(epoch=2, pre=True, why="", known=0))
    campaign = node.core.mind.campaign
    assert campaign is not None and campaign.pre is (asks == "pre-vote")
    if ordered == "restore":
        assert node.core.restore(B) is None
    elif ordered == "freeze":
        node.core.freeze(node.now + LONG)
    else:
        node.core.maintain(True)
    node.carry_out()
    for pre in (True, False):
        node.get(C, Voted(epoch=campaign.epoch, pre=pre, why="", known=0))
    assert node.core.mind.state != PRIMARY

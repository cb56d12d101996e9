"""Configuration: docs/protocol.md, "Configuration"; conformance/tokumx.md A7.5 to A7.7, A7.12."""

from __future__ import annotations

import msgspec
import pytest

from fix_group import A, Alone, B, C, D, E, group, gtid, log_of, plain, vote_for, witness
from tranlog.errors import ConfigError
from tranlog.replication.rules.config import (
    CONFIG_BYTES_MAX,
    NAME_BYTES_MAX,
    ConfigId,
    GroupConfig,
    Member,
    NodeId,
    admits,
    change_refused,
    check,
    successor,
    voters_changed,
    warnings,
)
from tranlog.replication.rules.packets import PRIMARY, REMOVED, REPLICA, Ack, Heartbeat
from tranlog.replication.rules.stored import Stored, slot_bytes

F, G, H = (NodeId(one) for one in "fgh")


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (group(plain(A, priority=0), witness(B)), "no node can be primary"),
        (group(), "no node can be primary"),
        (group(A, plain(B, name="a")), "name = 'a': two nodes"),
        (group(plain(A, name="x"), plain(A, name="y")), "node = 'a': two nodes"),
        (group(plain(A, address="h:1"), plain(B, address="h:1")), "address = 'h:1': two nodes"),
        (group(plain(A, name="a\nb")), "text that can be printed, in one line"),
        (group(plain(A, name="")), "text that can be printed, in one line"),
        (group(A, B, C, D, E, F, G, H), "at most 7 nodes vote"),
        (group(A, plain(B, witness=True, priority=0, tags={"x": "y"})), "a witness votes and holds nothing"),
        (group(A, plain(B, witness=True, priority=0, votes=0)), "a witness votes and holds nothing"),
        (group(A, plain(B, delay_ms=1)), "must be 0 for a node that is delayed"),
        (group(A, plain(B, hidden=True)), "must be 0"),
        (group(A, plain(B, votes=0)), "must be 0"),
        (group(A, plain(B, votes=2)), "is 0 or 1"),
        (group(A, plain(B, priority=1001)), "is 0 to 1000"),
        (group(A, plain(B, priority=-1)), "is 0 to 1000"),
        (group(A, plain(B, delay_ms=367 * 86_400_000, priority=0)), "366 days"),
        (group(A, heartbeat_ms=0), "must be above 0"),
        (group(A, rollback_ddl="no"), "refuse or abandon"),
        (group(plain(A, tags={"s": "x"}), B, rules={"r": {"s": 2}}), "the nodes have 1 values of this tag"),
        (group(A, rules={"r": {}}), "names no tag, and any commit would meet it"),
        (group(plain(A, tags={"s": "x"}), rules={"majority": {"s": 1}}), "give the rule another name"),
        (group(A, w="r"), "is a number, majority"),
        (group(A, w=2), "1 nodes hold data"),
        (group(*[plain(NodeId(f"n{at}"), votes=at == 0, priority=at == 0) for at in range(51)]), "at most 50"),
        (group(plain(A, tags={"x": "y" * CONFIG_BYTES_MAX})), rf"has \d+ bytes and may have {CONFIG_BYTES_MAX}"),
        (group(A, rules={"r" * CONFIG_BYTES_MAX: {}}), "may have"),
        (group(plain(A, address="h" * NAME_BYTES_MAX + ":1")), f"address = 'h+...': is longer than {NAME_BYTES_MAX}"),
        (group(A, group="g" * (NAME_BYTES_MAX + 1)), "is longer than"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: GroupConfig, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(config)


def test_the_largest_configuration_fits_a_nodes_file_with_the_longest_vote() -> None:
    long = NodeId("n" * NAME_BYTES_MAX)
    config = group(plain(long, tags={"x": ""}), group="g" * NAME_BYTES_MAX)
    room = CONFIG_BYTES_MAX - len(msgspec.msgpack.encode(config)) - 4  # the length of a long text takes more
    config = msgspec.structs.replace(config, members=(plain(long, tags={"x": "y" * room}),))
    check(config)
    stored = Stored(group=config.group, node=long, epoch=1 << 60, candidate=long, had=gtid(1 << 60, 9), config=config)
    assert slot_bytes(stored, 1 << 60)


def test_an_even_number_of_voters_is_allowed_and_warned_of() -> None:
    for count, config in enumerate((group(A), group(A, B), group(A, B, C), group(A, B, C, D)), start=1):
        check(config)
        assert bool(warnings(config)) == (count % 2 == 0)


@pytest.mark.parametrize(
    ("new", "count"),
    [
        (group(A, B, C), 0),
        (group(A, B), 1),
        (group(A, B, C, D), 1),
        (group(A, B, witness(C)), 1),
        (group(A, B, plain(C, votes=0, priority=0)), 1),
        (group(A, B, plain(D, name="c")), 2),
        (group(A, plain(C, priority=9), B, plain(E, votes=0, priority=0)), 0),
        (group(A, D, E), 4),
    ],
)
def test_voters_that_come_go_or_change_their_kind(new: GroupConfig, count: int) -> None:
    assert voters_changed(group(A, B, C), new) == count
    refused = change_refused(group(A, B, C), new, installed=[A, B], committed=True, copied=True)
    assert (refused is None) == (count <= 1)


def test_a_new_one_waits_for_the_present_one_and_for_a_commit() -> None:
    old, new = group(A, B, C), group(A, B)
    facts = {"installed": [A, B], "committed": True, "copied": True}
    assert change_refused(old, new, **facts) is None  # type: ignore[arg-type]
    for name, value, why in (
        ("installed", [A], "not yet at a majority"),
        ("committed", False, "no transaction of this primary's epoch"),
        ("copied", False, "majority of the new"),
    ):
        assert why in str(change_refused(old, new, **{**facts, name: value}))  # type: ignore[arg-type]
    assert "another group" in str(change_refused(old, msgspec.structs.replace(new, group="x"), **facts))  # type: ignore[arg-type]


def reigning() -> Alone:
    node = Alone(A, group(A, B, C))
    node.elect(B)
    return node


def changed(node: Alone, *members: Member, forced: bool = False) -> str | None:
    new = successor(node.core.config, members, epoch=node.core.mind.epoch, forced=forced)
    why = node.core.reconfigure(new, forced=forced)
    node.carry_out()
    return why


def test_a_primary_installs_one_after_the_other() -> None:
    node = reigning()
    assert node.core.config.id == ConfigId(1, 1)  # the winner's epoch
    smaller = (plain(A), plain(B))
    assert "at a majority" in str(changed(node, *smaller))
    node.beat(B)
    assert "committed" in str(changed(node, *smaller))
    node.get(B, Ack(durable=node.log.last, epoch=1))
    assert changed(node, *smaller) is None
    assert node.disk.config == node.core.config and node.core.config.id == ConfigId(1, 2)
    assert "at a majority" in str(changed(node, plain(A)))  # this one has to spread first


def test_what_is_committed_has_its_majority_in_the_new_one_too() -> None:
    """c and a have it, and c is to be a witness: b would be elected without it."""
    node = reigning()
    node.beat(B)
    node.beat(C)
    node.get(C, Ack(durable=node.log.last, epoch=1))
    assert "of the new configuration" in str(changed(node, plain(A), plain(B), witness(C)))
    node.get(B, Ack(durable=node.log.last, epoch=1))
    assert changed(node, plain(A), plain(B), witness(C)) is None


def test_only_a_primary_and_force_changes_it_anywhere() -> None:
    node = Alone(A, group(A, B, C), owing=True)
    assert changed(node, plain(A), plain(B)) == "this node is not primary"
    assert changed(node, plain(A), forced=True) is None
    assert node.core.config.id == ConfigId(1000, 100_001) and not node.disk.owing
    node.wait()
    assert node.core.accepts_writes  # a majority of what is left


@pytest.mark.parametrize("restarted", [False, True])
def test_no_gtid_of_what_is_lost_is_given_again_after_force(restarted: bool) -> None:
    """The others had later epochs than this node has heard of, and may have committed in them."""
    node = Alone(A, group(A, B, C), log_of(1, 2))
    assert changed(node, plain(A), forced=True) is None
    if restarted:
        node = Alone(A, node.core.config, node.log)
    for _ in range(3):
        node.wait()
    assert node.core.accepts_writes and node.log.last == gtid(1003, 2)


def test_force_is_the_way_out_of_a_group_of_one_that_lost_its_logs_end() -> None:
    node = Alone(A, group(A), owing=True)
    for _ in range(3):
        node.wait()
        assert not node.core.accepts_writes  # nobody else can name a commit point
    assert changed(node, plain(A), forced=True) is None
    node.wait()
    assert node.core.accepts_writes and not node.disk.owing


def test_it_spreads_by_beats_and_a_removed_node_learns_of_it() -> None:
    node, other = reigning(), Alone(C, group(A, B, C))
    node.beat(B)
    node.get(B, Ack(durable=node.log.last, epoch=1))
    changed(node, plain(A), plain(B))
    (answer,) = [packet for to, packet in node.beat(C, config=ConfigId(0, 1)) if to == C]
    assert isinstance(answer, Heartbeat) and answer.full == node.core.config
    other.get(A, answer)
    assert other.disk.config == node.core.config and other.core.mind.state == REMOVED
    assert vote_for(other, B, 9, config=ConfigId(9, 9)) == "I do not vote"


def test_an_older_one_is_not_taken_and_that_of_another_group_never() -> None:
    node = reigning()
    for config in (group(A, id=ConfigId(0, 99)), group(A, id=ConfigId(9, 9), group="x")):
        node.beat(B, full=config, config=config.id)
        assert len(node.core.config.members) == 3


@pytest.mark.parametrize(
    "full",
    [
        group(C, id=ConfigId(9, 9)),
        group(A, B, C, id=ConfigId(9, 9)),
    ],
)
@pytest.mark.parametrize("own", [A, B])
def test_no_stranger_replaces_it(own: NodeId, full: GroupConfig) -> None:
    """Nor a node that was removed: it hears the present one, and what it sends is not installed."""
    node = Alone(own, group(A, B))
    node.beat(C, full=full, config=full.id)
    assert node.core.config == group(A, B) and node.core.mind.state == REPLICA
    node.beat(A if own == B else B, full=group(A, B, C, id=ConfigId(9, 9)), config=ConfigId(9, 9))
    assert node.core.config.id == ConfigId(9, 9), "a member may"


def test_one_that_cannot_work_is_not_taken_from_a_member_either() -> None:
    for full in (group(A, B, heartbeat_ms=0), group(A, plain(B, tags={"x": "y" * CONFIG_BYTES_MAX}))):
        node = Alone(A, group(A, B))
        wrong = msgspec.structs.replace(full, id=ConfigId(9, 9))
        node.beat(B, full=wrong, config=wrong.id)
        assert node.core.config == group(A, B)


def test_a_removed_node_comes_back_by_whoever_is_a_member_then() -> None:
    """None of those that it knows need be there any more; whoever names it is a member by what it sends."""
    node = Alone(A, group(B, C, id=ConfigId(1, 3)))
    assert node.core.mind.state == REMOVED
    node.beat(D, full=group(D, E, id=ConfigId(2, 8)), config=ConfigId(2, 8))
    node.beat(D, full=group(A, E, id=ConfigId(2, 8)), config=ConfigId(2, 8))
    assert node.core.config.id == ConfigId(1, 3)
    node.beat(D, full=group(A, D, E, id=ConfigId(2, 8)), config=ConfigId(2, 8))
    assert node.core.config.id == ConfigId(2, 8) and node.core.mind.state == REPLICA


def test_a_node_in_no_group_is_admitted_by_a_whole_configuration_alone() -> None:
    good = group(A, D, group="5a" * 16)
    assert admits(good, own=D, sender=A)
    assert not admits(good, own=D, sender=B) and not admits(good, own=E, sender=A)
    for changes in ({"group": "5a"}, {"group": "g" * 32}, {"group": ""}, {"heartbeat_ms": 0}):
        assert not admits(msgspec.structs.replace(good, **changes), own=D, sender=A)  # type: ignore[arg-type]


def test_a_primary_that_may_be_it_no_more_steps_down() -> None:
    node = reigning()
    node.beat(B)
    node.get(B, Ack(durable=node.log.last, epoch=1))
    assert changed(node, plain(A, priority=0), plain(B), plain(C)) is None
    assert node.core.mind.state == REPLICA


def test_a_wiped_node_is_another_one() -> None:
    """Its id is made once: under a new one it neither counts nor votes before it is admitted."""
    node = reigning()
    wiped = NodeId("b2")
    node.get(wiped, Ack(durable=node.log.last, epoch=1))
    assert not node.core.mind.acks and node.core.mind.committed == gtid(0, -1)
    again = Alone(wiped, group(A, B, C))
    assert vote_for(again, A, 1) == "I do not vote"


def test_a_new_node_learns_the_configuration_from_its_group_alone() -> None:
    node = Alone(D, group())
    node.disk = msgspec.structs.replace(node.disk, config=None)
    node.core.stored = node.disk
    node.beat(A, full=group(A, D, id=ConfigId(1, 2), group="x"), config=ConfigId(1, 2))
    assert node.disk.config is None
    node.beat(A, full=group(A, D, id=ConfigId(1, 2)), config=ConfigId(1, 2), state=PRIMARY)
    assert node.core.config.id == ConfigId(1, 2) and node.core.mind.state == REPLICA

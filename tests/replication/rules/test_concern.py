"""Write concern: tokumx-replication (Write Concern); conformance/tokumx.md A6."""

from __future__ import annotations

import pytest

from fix_group import HEARTBEAT, A, Alone, B, C, D, group, gtid, log_of, plain, witness
from tranlog.errors import ConfigError
from tranlog.ids import Gtid
from tranlog.replication.rules.concern import Outcome
from tranlog.replication.rules.effects import Tell
from tranlog.replication.rules.packets import NO_GTID, Ack

SITES = group(
    plain(A, tags={"site": "x"}),
    plain(B, tags={"site": "x"}),
    plain(C, tags={"site": "y"}),
    rules={"both": {"site": 2}},
)


def outcomes(node: Alone) -> dict[int, Outcome]:
    return {one.number: one.outcome for one in node.done if isinstance(one, Tell)}


def kinds(node: Alone) -> dict[int, str]:
    return {number: one.kind for number, one in outcomes(node).items()}


def ask(node: Alone, number: int, gtid: Gtid, w: int | str | None = None, wtimeout_ms: int | None = None) -> None:
    node.core.ask(number, gtid, w, wtimeout_ms)
    node.carry_out()


def reigning(config: object = None) -> Alone:
    node = Alone(A, config or group(A, B, C))  # type: ignore[arg-type]
    node.elect(B)
    return node


def test_0_is_met_by_handing_over_1_by_the_own_disk() -> None:
    node = reigning()
    node.synced = False
    written = node.write()
    ask(node, 0, written, 0)
    ask(node, 1, written, 1)
    assert kinds(node) == {0: "satisfied"}
    node.log.sync()
    node.core.durable()
    node.carry_out()
    assert kinds(node) == {0: "satisfied", 1: "satisfied"}


def test_a_number_counts_durable_copies_the_primary_among_them() -> None:
    node = reigning()
    written = node.write()
    ask(node, 2, written, 2)
    ask(node, 3, written, 3)
    node.get(B, Ack(durable=written, epoch=1))
    assert outcomes(node)[2].written_to == ("a", "b") and 3 not in kinds(node)
    node.get(C, Ack(durable=written, epoch=1))
    assert outcomes(node)[3].written_to == ("a", "b", "c")


def test_majority_and_tags_are_met_independently() -> None:
    node = reigning(SITES)
    written = node.write()
    ask(node, 1, written, "both")
    ask(node, 2, written, "majority")
    node.get(B, Ack(durable=written, epoch=1))
    assert kinds(node) == {2: "satisfied"}  # two copies at one site
    node.get(C, Ack(durable=written, epoch=1))
    assert kinds(node) == {1: "satisfied", 2: "satisfied"}


def test_a_lax_question_never_waits_for_a_strict_one() -> None:
    """docs/protocol.md: the laxer never waits for the stricter."""
    node = reigning()
    written = [node.write() for _ in range(3)]
    for number, one in enumerate(reversed(written)):
        ask(node, number, one, 3)
    ask(node, 9, written[-1], 1)
    assert kinds(node) == {9: "satisfied"}
    for who in (B, C):
        node.get(who, Ack(durable=written[0], epoch=1))
    assert kinds(node) == {9: "satisfied", 2: "satisfied"}


def test_a_time_out_says_who_has_it_and_undoes_nothing() -> None:
    node = reigning()
    written = node.write()
    ask(node, 1, written, 3, 500)
    node.beat(B)
    node.get(B, Ack(durable=written, epoch=1))
    node.wait(600)
    assert outcomes(node)[1] == Outcome("timed out", written, ("a", "b"), 600, A)
    assert node.log.last == written
    node.get(C, Ack(durable=written, epoch=1))
    ask(node, 2, written, 3)
    assert kinds(node)[2] == "satisfied"


def test_without_a_time_out_it_waits() -> None:
    node = reigning()
    ask(node, 1, node.write(), 3, 0)
    for _ in range(50):
        node.beat(B)
        node.wait(HEARTBEAT)
    assert kinds(node) == {}


def test_the_group_has_defaults() -> None:
    """conformance/tokumx.md A6.6."""
    node = reigning(group(A, B, C, w="majority", wtimeout_ms=100))
    written = node.write()
    ask(node, 1, written)
    assert kinds(node) == {}
    node.wait(100)
    assert kinds(node) == {1: "timed out"}


def test_who_is_not_primary_says_who_is() -> None:
    node = Alone(A, group(A, B, C))
    node.beat(B, state=1, epoch=1)
    ask(node, 1, gtid(1, 0), "majority")
    assert outcomes(node)[1].kind == "not primary" and outcomes(node)[1].primary == B


@pytest.mark.parametrize("w", ["nowhere", 4, -1])
def test_what_can_never_be_met_is_refused(w: int | str) -> None:
    node = reigning()
    with pytest.raises(ConfigError, match="configuration: w"):
        node.core.ask(1, node.write(), w)


def test_a_witness_is_no_copy() -> None:
    node = reigning(group(A, B, witness(D)))
    written = node.write()
    ask(node, 1, written, 2)
    node.get(D, Ack(durable=written, epoch=1))
    assert kinds(node) == {}
    with pytest.raises(ConfigError, match="2 nodes hold data"):
        node.core.ask(2, written, 3)


def test_an_earlier_reigns_transaction_is_acknowledged_only_when_committed() -> None:
    """Inv 19: whatever the number, since copies of an older epoch can still be lost."""
    node = Alone(A, group(A, B, C), log_of(1, 1))
    node.synced = False
    node.elect(B)
    ask(node, 1, gtid(1, 1), 2)
    node.get(B, Ack(durable=gtid(1, 1), epoch=2))
    assert kinds(node) == {}
    node.log.sync()
    node.core.durable()
    node.get(B, Ack(durable=gtid(2, 2), epoch=2))
    assert kinds(node) == {1: "satisfied"}


def test_rolled_back_is_said_only_when_it_can_never_return() -> None:
    """Inv 21: a primary of an uncommitted reign may be followed by one that holds the transaction."""
    node = Alone(A, group(A, B, C), log_of(1))
    node.core.mind.epoch = 2
    node.elect(B)
    ask(node, 1, gtid(2, 1), "majority")
    assert kinds(node) == {}
    node.get(B, Ack(durable=gtid(3, 1), epoch=3))
    assert kinds(node) == {1: "rolled back"}


def test_what_was_purged_was_committed() -> None:
    node = Alone(A, group(A), log_of(1, 1, 1, begin=2))
    node.wait()
    ask(node, 1, gtid(1, 0), "majority")
    assert kinds(node) == {1: "satisfied"}


def test_what_never_was_is_not_satisfied() -> None:
    """A commit that was cut off before it had a GTID names none; nor was a later epoch's transaction ever purged."""
    for log in (log_of(), log_of(1)):
        node = Alone(A, group(A), log)
        node.wait()
        ask(node, 1, NO_GTID, "majority")
        assert kinds(node) == {1: "rolled back"}
    node = Alone(A, group(A), log_of(1, 1, 1, begin=2))
    node.core.mind.epoch = 2
    node.wait()
    ask(node, 1, NO_GTID, "majority")
    ask(node, 2, gtid(2, 1), 1)
    ask(node, 3, gtid(1, 1), 1)
    assert kinds(node) == {1: "rolled back", 2: "rolled back", 3: "satisfied"}


def test_of_an_earlier_epoch_nobody_knows_what_was_purged() -> None:
    """GTID(1, 1) may have been rolled back, and GTID(2, 1) be what was purged."""
    node = Alone(A, group(A), log_of(1, 2, 2, begin=2))
    node.core.mind.epoch = 2
    node.wait()
    ask(node, 1, gtid(1, 1), "majority")
    ask(node, 2, gtid(1, 1), 0)
    assert kinds(node) == {1: "purged", 2: "purged"}
    assert outcomes(node)[1].written_to == ()


def test_a_later_transaction_of_the_own_epoch_is_waited_for() -> None:
    node = reigning(group(A))
    ask(node, 1, gtid(1, 1), 1)
    assert kinds(node) == {}
    node.write()
    assert kinds(node) == {1: "satisfied"}


def test_nobody_is_said_to_have_what_the_primary_does_not_hold() -> None:
    """An ack of a later transaction covers what lies before it in the primary's log, and nothing else."""
    node = Alone(A, group(A, B, C), log_of(1))
    node.core.mind.epoch = 2
    node.elect(B)
    ask(node, 1, gtid(2, 1), 2, 500)
    node.get(B, Ack(durable=gtid(1, 0), epoch=3))
    node.synced = False
    node.beat(B)
    node.wait(600)
    assert outcomes(node)[1].kind == "timed out" and outcomes(node)[1].written_to == ()

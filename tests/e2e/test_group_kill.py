"""`make group-kill`, smaller; and its own decisions: which harms a seed does, what its judge of the wire finds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import group_harms
import group_kill
from group_history import CommitOp, Entry, Fate
from group_kill import at_part, failovers, stale
from group_links import Sent, WireJudge
from group_load import Shown
from mutants import check_group_kill
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.replication.rules.config import ConfigId
from tranlog.replication.rules.packets import NO_GTID, Ack, Heartbeat, Packet, Pulse, Vote, Voted, encode


def run(folder: Path, *words: str, rounds: int) -> dict:
    """Run the program; return its one object."""
    command = [sys.executable, str(group_kill.__file__), str(folder), f"--rounds={rounds}", "--seed=1", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600 + 120 * rounds)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert [result[name] for name in group_kill.MUST_BE_NONE] == [0] * len(group_kill.MUST_BE_NONE)
    assert result["rounds"] == rounds and result["linearizable"] is True
    assert min(result["acknowledged"].values()) > 0
    assert result["rounds_of_tls"] > 0 and 0 < result["large"] <= result["spilled"]
    return result


@pytest.mark.e2e
@pytest.mark.timeout(36_000)
def test_a_group_of_three_processes_loses_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Processes killed and stopped, links cut and slowed, disks full, orders under load; 100 rounds in `make soak`."""
    rounds = 100 if request.config.getoption("--soak") else 10
    result = run(tmp_path / "group", rounds=rounds)
    assert sum(result["harms"].values()) >= rounds
    if rounds >= 50:
        assert set(result["harms"]) == {harm.__name__ for harm in group_harms.HARMS}


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(36_000)
def test_two_nodes_and_a_witness_lose_nothing(tmp_path: Path) -> None:
    run(tmp_path / "group", "--witness", rounds=50)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", check_group_kill.HARMS)
def test_a_rule_that_is_missing_is_seen(name: str, tmp_path: Path) -> None:
    result = check_group_kill.play(name, tmp_path / "group")
    assert result.get(check_group_kill.HARMS[name][1]), result


def test_each_kind_comes_before_any_comes_twice() -> None:
    for seed in range(20):
        harms = [harm.__name__ for of_round in group_harms.plan(50, seed) for harm in of_round]
        counted = Counter(harms)
        assert len(counted) == len(group_harms.HARMS) and max(counted.values()) - min(counted.values()) <= 1
    assert group_harms.plan(9, 3) == group_harms.plan(9, 3) != group_harms.plan(9, 4)


def test_some_rounds_are_by_tls() -> None:
    for seed in range(20):
        rounds = group_harms.secured(50, seed)
        assert len(rounds) == 50 and not rounds[0] and set(group_harms.secured(10, seed)) == {True, False}
        assert rounds == group_harms.secured(50, seed)


def at(seqno: int, epoch: int = 1) -> Gtid:
    return Gtid(Epoch(epoch), Seqno(seqno))


def test_a_failover_ends_with_the_first_commit_of_a_majority_that_began_after_it() -> None:
    done = [
        CommitOp("under way", 0, Fate.STANDS, 0.9, 1.5, at(1)),
        CommitOp("unknown", 0, Fate.UNKNOWN, 1.1, 1.2),
        CommitOp("first", 0, Fate.STANDS, 1.2, 2.0, at(3)),
        CommitOp("second", 0, Fate.STANDS, 1.3, 3.0, at(4)),
    ]
    assert failovers(done, [1.0, 9.0]) == [1.0]
    assert [at_part([0.001, 0.002, 0.003, 0.004], part) for part in (0.5, 0.99, 1.0)] == [3, 4, 4]
    assert at_part([], 0.5) is None


def test_a_read_shows_what_it_asked_for_and_what_the_log_holds() -> None:
    log = [Entry(at(0)), Entry(at(1), "one"), Entry(at(2), "two")]
    tail = ((at(0), ""), (at(1), "one"))
    assert stale([Shown("at least", at(1), at(1), tail), Shown("none", at(2), at(1), tail)], log) == []
    assert len(stale([Shown("at least", at(2), at(1), tail)], log)) == 1
    assert len(stale([Shown("none", NO_GTID, at(1), ((at(1), "another"), (at(1, epoch=2), "")))], log)) == 2


def beat(start: int, epoch: int) -> Heartbeat:
    return Heartbeat(
        epoch=epoch,
        state=2,
        last=NO_GTID,
        durable=NO_GTID,
        committed=NO_GTID,
        config=ConfigId(),
        pulse=Pulse(start, 1),
        echo=Pulse(),
    )


def voted(epoch: int, *, why: str = "", pre: bool = False) -> Voted:
    return Voted(epoch=epoch, pre=pre, why=why, known=epoch)


def request(epoch: int) -> Vote:
    return Vote(epoch=epoch, last=NO_GTID, config=ConfigId(), priority=1)


def ack(epoch: int) -> Ack:
    return Ack(durable=NO_GTID, epoch=epoch, mark=0, credit=0)


@pytest.mark.parametrize(
    ("sent", "wrong"),
    [
        pytest.param({"ab": [beat(1, 4), ack(4), voted(5), beat(1, 5), ack(5)]}, 0, id="as it should"),
        pytest.param({"ab": [beat(1, 5), ack(4)]}, 1, id="an ack to an older epoch"),
        pytest.param({"ab": [beat(1, 5)], "ac": [ack(4)]}, 0, id="of two connections nobody knows the order"),
        pytest.param({"ab": [voted(5)], "ac": [voted(5)]}, 1, id="two votes an epoch"),
        pytest.param({"ab": [voted(5, why="no")], "ac": [voted(5, pre=True)], "ad": [voted(5)]}, 0, id="no votes"),
        pytest.param({"ab": [request(5), voted(5)]}, 1, id="stands and votes"),
        pytest.param({"ab": [voted(5), beat(1, 5)], "ac": [beat(2, 4)]}, 1, id="forgot its vote"),
        pytest.param({"ab": [voted(5), beat(1, 5)], "ac": [beat(2, 5)]}, 0, id="knew its vote"),
        pytest.param({"ab": [voted(5), beat(1, 5)], "bc": [beat(2, 4)]}, 0, id="another node"),
    ],
)
def test_what_a_node_says_is_held_against_what_it_has_said(sent: dict[str, list[Packet]], wrong: int) -> None:
    judge = WireJudge()
    for way, packets in sent.items():
        one, raw = Sent(way[0], way[1]), b"".join(map(encode, packets))
        for cut in range(0, len(raw), 7):
            judge.take(one, raw[cut : cut + 7])
    assert len(judge.wrong) == wrong, judge.wrong

"""`make group-kill`, smaller; and its own decisions: which harms a seed does, and what its judge calls disordered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import group_kill
from group_kill import Committed, disordered, failovers
from tranlog.ids import Epoch, Gtid, Seqno

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.timeout(36_000)
def test_a_group_of_three_processes_loses_nothing(tmp_path: Path, rounds: int) -> None:
    """kill -9 of the primary, a replica and all, SIGSTOP, step-down: every acknowledged commit is in every log."""
    command = [sys.executable, str(group_kill.__file__), str(tmp_path / "group"), f"--rounds={rounds}", "--seed=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300 + 120 * rounds)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert [result[name] for name in group_kill.MUST_BE_NONE] == [0] * len(group_kill.MUST_BE_NONE)
    assert result["rounds"] == rounds and sum(result["harms"].values()) >= rounds
    assert min(result["acknowledged"].values()) > 0


def test_each_kind_comes_before_any_comes_twice() -> None:
    for seed in range(20):
        harms = [harm.__name__ for of_round in group_kill.plan(50, seed) for harm in of_round]
        counted = Counter(harms)
        assert len(counted) == len(group_kill.HARMS) and max(counted.values()) - min(counted.values()) <= 1
    assert group_kill.plan(9, 3) == group_kill.plan(9, 3) != group_kill.plan(9, 4)


def committed(event: str, seqno: int, began: float, returned: float, w: int | str = 1) -> Committed:
    return Committed(event, w, Gtid(Epoch(1), Seqno(seqno)), began, returned)


def test_a_commit_stands_at_its_gtid_and_behind_those_that_returned_before_it_began() -> None:
    def held(*commits: Committed) -> dict[str, list[Gtid]]:
        return {one.event: [one.gtid] for one in commits}

    first, second = committed("first", 1, 0.0, 1.0), committed("second", 2, 2.0, 3.0)
    assert disordered([first, second], held(first, second)) == []
    beside = committed("beside", 1, 0.5, 9.0)
    later = committed("first", 2, 0.0, 1.0)
    assert disordered([later, beside], held(later, beside)) == [], "they were under way together"
    early = committed("second", 1, 2.0, 3.0)
    assert disordered([later, early], held(later, early)) == ["second"]
    assert disordered([first], {"first": [second.gtid]}) == ["first"], "it stands elsewhere"
    assert disordered([first], {"first": [first.gtid, second.gtid]}) == ["first"], "it stands twice"
    assert disordered([first], {}) == [], "that is lost, which is counted elsewhere"


def test_a_failover_ends_with_the_first_commit_of_a_majority_that_began_after_it() -> None:
    done = [
        committed("under way", 1, 0.9, 1.5, "majority"),
        committed("alone", 2, 1.1, 1.2, 1),
        committed("first", 3, 1.2, 2.0, "majority"),
        committed("second", 4, 1.3, 3.0, "majority"),
    ]
    assert failovers(done, [1.0, 9.0]) == [1.0]

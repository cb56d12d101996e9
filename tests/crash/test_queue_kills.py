"""`make queue-kill`, smaller; what its judge calls lost, doubled, reordered and split; and that it sees a mutant."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fix_conformance import ROOT
from fix_effort import Effort
from mutants.catalogue import MUTANTS
from queue_judge import QueueJudge

PROGRAM = ROOT / "tests" / "kill" / "queue_rounds.py"
Line = list[Any]


def kill_rounds(folder: Path, *arguments: str, mutant: str = "") -> tuple[int, dict[str, Any], str]:
    """Run the program as `make queue-kill` does; return its exit code, its one object, and what it said beside."""
    env = {**os.environ, "TRANLOG_MUTANT": mutant, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(PROGRAM), str(folder / "kill"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.long
@pytest.mark.timeout(14_000)
def test_kills_of_a_store_lose_double_and_split_nothing(tmp_path: Path, effort: Effort) -> None:
    rounds = effort(3, 5, 1_000)
    code, result, said = kill_rounds(tmp_path, f"--rounds={rounds}", "--seed=2", "--life=1")
    assert code == 0, (result, said)
    assert result["rounds"] == rounds and result["containers_most"] > 2
    assert 0 < result["confirmed"] <= result["published"] and result["taken"] > 0
    wrong = ("lost", "doubled", "reordered", "split", "in_doubt_wrong")
    assert {name: result[name] for name in wrong} == dict.fromkeys(wrong, 0)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    "mutant", ["queue-group-in-parts", "queue-position-not-carried", "queue-prepared-is-rolled-back"]
)
def test_kills_of_a_store_find_a_mutant(tmp_path: Path, mutant: str) -> None:
    path = f"--path={ROOT / 'tests' / 'mutants'}"
    code, result, said = kill_rounds(tmp_path, "--rounds=200", "--life=1", "--first", path, mutant=mutant)
    assert code == 1 and "failed" not in result, (MUTANTS[mutant].what, result, said)


# --- the judge -------------------------------------------------------------------------------------------


def looked(doubt: list[str], **queues: list[int]) -> list[Line]:
    """What a process tells that has opened the store."""
    return [["looks"], *(["found", queue, numbers] for queue, numbers in queues.items()), ["looked", doubt]]


def judged(*history: Line) -> dict[str, int]:
    """Return the figures that are not 0, of what is wrong."""
    judge = QueueJudge()
    for line in history:
        judge.take(line)
    told = dataclasses.asdict(judge.verdict)
    return {name: told[name] for name in list(told)[3:] if told[name]}


AB = [["asks", 0, [["a", 1], ["b", 1]], []], ["done", 0]]
ONE_TWO = [["asks", 1, [["a", 1]], []], ["done", 1], ["asks", 2, [["a", 2]], []], ["done", 2]]
TOOK = [*AB, ["took", "t", "a", 1]]
PREPARED = [*TOOK, ["prepares", "x", [["b", 2]], [["a", 1]]], ["prepared", "x"]]
MOVES = [*TOOK, ["asks", 3, [["b", 2]], [["a", 1]]]]
ONCE = [["once", 4, "p", 1, [["a", 1]]]]


@pytest.mark.parametrize(
    ("history", "wrong"),
    [
        ([*AB, *looked([], a=[1], b=[1])], {}),
        ([*AB, *looked([])], {"lost": 2}),
        ([*AB, *looked([], a=[1], b=[1]), *looked([], b=[1])], {"lost": 1}),
        ([AB[0], *looked([])], {}),
        ([AB[0], *looked([], a=[1], b=[1])], {}),
        ([AB[0], *looked([], a=[1])], {"split": 1}),
        ([*AB, *looked([], a=[1, 1], b=[1])], {"doubled": 1}),
        ([*AB, *looked([], a=[1], b=[1], c=[7])], {"doubled": 1}),
        ([*TOOK, *looked([], a=[1], b=[1])], {}),
        ([*TOOK, *looked([], b=[1])], {"lost": 1, "split": 1}),
        ([*TOOK, ["took", "u", "a", 1]], {"doubled": 1}),
        ([*TOOK, ["returns", [["a", 1]]], ["took", "u", "a", 1]], {}),
        ([*TOOK, ["asks", 1, [], [["a", 1]]], *looked([], a=[1], b=[1])], {}),
        ([*TOOK, ["asks", 1, [], [["a", 1]]], *looked([], b=[1])], {}),
        ([*TOOK, ["asks", 1, [], [["a", 1]]], ["done", 1], *looked([], a=[1], b=[1])], {"doubled": 1}),
        ([*TOOK, ["asks", 1, [], [["a", 1]]], ["done", 1], ["took", "u", "a", 1]], {"doubled": 1}),
        ([*ONE_TWO, *looked([], a=[1, 2])], {}),
        ([*ONE_TWO, *looked([], a=[2, 1])], {"reordered": 1}),
        ([ONE_TWO[0], ["placed", 1], ONE_TWO[2], *looked([], a=[2, 1])], {"reordered": 1}),
        ([ONE_TWO[0], ONE_TWO[2], *looked([], a=[2, 1])], {}),
        ([ONE_TWO[0], ONE_TWO[2], *looked([], a=[2, 1]), *looked([], a=[1, 2])], {"reordered": 2}),
        ([*ONE_TWO, ["took", "t", "a", 2], ["took", "t", "a", 1]], {"reordered": 1}),
        ([*ONE_TWO, ["took", "t", "a", 2], ["took", "u", "a", 1]], {}),
        ([*MOVES, *looked([], a=[1], b=[1])], {}),
        ([*MOVES, *looked([], b=[1, 2])], {}),
        ([*MOVES, *looked([], b=[1])], {"split": 1}),
        ([*MOVES, *looked([], a=[1], b=[1, 2])], {"split": 1}),
        ([*MOVES, ["done", 3], *looked([], b=[1])], {"lost": 1, "split": 1}),
        ([*PREPARED, *looked(["x"], b=[1])], {}),
        ([*PREPARED, *looked([], a=[1], b=[1])], {"in_doubt_wrong": 1}),
        ([*PREPARED, *looked(["x"], a=[1], b=[1])], {"split": 1}),
        ([*PREPARED, *looked(["x", "y"], b=[1])], {"in_doubt_wrong": 1}),
        ([*PREPARED[:-1], *looked([], a=[1], b=[1])], {}),
        ([*PREPARED[:-1], *looked([], b=[1])], {"split": 1}),
        ([*PREPARED, ["took", "u", "a", 1]], {"doubled": 1}),
        ([*PREPARED, ["decides", "x", True], *looked(["x"], b=[1])], {}),
        ([*PREPARED, ["decides", "x", True], *looked([], b=[1, 2])], {}),
        ([*PREPARED, ["decides", "x", True], *looked([], a=[1], b=[1])], {"in_doubt_wrong": 1}),
        ([*PREPARED, ["decides", "x", True], *looked([], b=[1])], {"split": 1}),
        ([*PREPARED, ["decides", "x", True], ["decided", "x"], *looked(["x"], b=[1])], {"in_doubt_wrong": 1}),
        ([*PREPARED, *looked(["x"], b=[1]), ["decides", "x", False], *looked(["x"], b=[1])], {}),
        ([*PREPARED, *looked(["x"], b=[1]), ["decides", "x", False], *looked([], a=[1], b=[1])], {}),
        # Handed out again before its rollback was durable: the work that took it cannot be told from one done in part.
        (
            [*PREPARED, ["decides", "x", False], ["took", "u", "a", 1]]
            + [["took", "u", "b", 1], ["asks", 5, [], [["a", 1], ["b", 1]]], *looked(["x"], b=[1])],
            {"split": 1},
        ),
        (
            [*PREPARED, ["decides", "x", False], ["decided", "x"], *looked([], b=[1, 2])],
            {"lost": 1, "doubled": 1, "split": 1, "in_doubt_wrong": 1},
        ),
        ([*ONCE, ["done", 4], *looked([], a=[1]), ["once", 5, "p", 1, [["a", 1]]], *looked([], a=[1])], {}),
        ([*ONCE, ["done", 4], ["once", 5, "p", 1, [["a", 1]]], *looked([], a=[1, 1])], {"doubled": 1}),
        ([*ONCE, *looked([]), ["once", 5, "p", 1, [["a", 1]]], *looked([], a=[1])], {}),
    ],
)
def test_the_judge_counts_what_is_wrong(history: list[Line], wrong: dict[str, int]) -> None:
    assert judged(*history) == wrong

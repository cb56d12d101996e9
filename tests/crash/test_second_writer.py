"""A second writer at every call that the log's writer makes to its disk: somebody has removed the lock file.

Before each call in turn the lock file goes, and another writer opens the log and commits. Afterwards what either of
them acknowledged is there, and the first one refuses from then on. One moment is excepted, as in decision 0016: a call
that changes something, between the look at the lock and itself. What is lost then the checksums tell.

Proves: docs/decisions/0016-one-owner.md.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from fix_crash import replayable
from fix_operations import CHANGES, OPERATIONS, PATH, Stepped, Told, check, open_log, struck_log, transacted
from tranlog.errors import LogClosedError, LogError, LogLockedError, LogMissingError
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log
from tranlog.testing.disk import SimDisk


class Second:
    """A log whose lock file goes before the disk call `step` of one operation; 0: never."""

    def __init__(self, seed: int, name: str, step: int) -> None:
        self.seed, self.name, self.step = seed, name, step
        self.calls = -1  # not counted as yet
        self.struck = ""
        self.other: Log | None = None
        self.disk = SimDisk()
        self.log, self.told = struck_log(Stepped(self.disk, self.at_call), seed, name)

    def at_call(self, call: str, given: tuple[Any, ...]) -> None:
        if self.calls < 0 or self.other is not None:
            return
        self.calls += 1
        if self.calls == self.step:
            creates = call == "open" and ("write", True) in given
            self.struck = "changes" if call in CHANGES or creates else "looks"
            self.disk.unlink(f"{PATH}/disklog.lck")
            self.calls = -1
            self.other = open_log(self.disk, self.seed)
            transacted(self.other, self.told, "other")

    def operate(self) -> None:
        self.calls = 0
        if self.name == "close":
            self.log.close()
        else:
            OPERATIONS[self.name](self.log, self.told, "struck")


def run_once(seed: int, name: str, step: int) -> int:
    """Strike once; return how many calls the operation makes if it is never struck."""
    life = Second(seed, name, step)
    told = life.told
    if step == 0:
        life.operate()
        calls, life.calls = life.calls, -1
        life.log.close()
        return calls
    with suppress(LogError):
        life.operate()
    assert life.other is not None
    try:
        with pytest.raises((LogLockedError, LogClosedError)):
            transacted(life.log, Told(), "later")
        life.log.close()
        transacted(life.other, told, "other again")
        life.other.close()
        with open_log(life.disk, seed) as log:
            check(log, told)
    except (LogError, AssertionError):
        if life.struck == "looks" or is_sound(life.disk):
            raise
    return 0


def is_sound(disk: SimDisk) -> bool:
    """Whether nothing tells that something is amiss."""
    try:
        return verify(PATH, disk=disk).sound
    except LogMissingError:
        return False


def run_all(seed: int, name: str, most: int | None) -> int:
    """Strike at `most` of an operation's calls, drawn by the seed, at each if None; return how many there are."""
    calls = run_once(seed, name, 0)
    steps = list(range(1, calls + 1))
    for step in steps if most is None else random.Random(seed).sample(steps, min(most, calls)):
        with replayable(f"run_once({seed}, {name!r}, {step})"):
            run_once(seed, name, step)
    return calls


@pytest.mark.long
@pytest.mark.parametrize("name", [*OPERATIONS, "close"])
def test_a_second_writer_at_a_sample_of_calls(name: str) -> None:
    """The slow form lets one come at each."""
    run_all(7, name, 12)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [*OPERATIONS, "close"])
@pytest.mark.parametrize("seed", range(300, 306))
def test_a_second_writer_at_every_call(name: str, seed: int) -> None:
    run_all(seed, name, None)

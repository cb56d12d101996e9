"""A fork at every call that the log's writer makes to its disk: the child changes nothing, and is told nothing untrue.

The process forks in the midst of an operation, on the machine's own files. The child does what a child may do, in its
own time, while the parent goes on; then what the parent acknowledged is there, each once and in order. A child goes on
with the call itself only where that changes nothing: between the look and the write is the moment that decision 0016
leaves.

Proves: docs/decisions/0016-one-owner.md.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fix_crash import replayable
from fix_operations import CHANGES, OPERATIONS, Stepped, Told, check, fragment, open_log, struck_log, transacted
from tranlog.disk import OsDisk
from tranlog.errors import LogClosedError, LogError
from tranlog.log.upkeep.verify import verify

pytestmark = pytest.mark.long

GOES_ON, REFUSED, DIED = 3, 0, 1
FATES = ("calls", "leaves", "ends", "goes on")


class Forking:
    """One life of a log whose process forks before the disk call `step` of one operation; 0 forks never."""

    def __init__(self, folder: Path, seed: int, name: str, step: int, fate: str) -> None:
        self.path, self.seed, self.name, self.step, self.fate = str(folder / "log"), seed, name, step, fate
        self.parent = os.getpid()
        self.calls = -1  # not counted as yet
        self.child: int | None = None
        self.log, self.told = struck_log(Stepped(OsDisk(), self.at_call), seed, name, self.path)

    def forked(self) -> bool:
        return os.getpid() != self.parent

    def at_call(self, call: str, given: tuple[Any, ...]) -> None:
        if self.calls < 0 or self.forked():
            return
        self.calls += 1
        if self.calls == self.step:
            self.child = os.fork()
            if self.forked():
                self.act(call)

    def act(self, call: str) -> None:
        """Do in the child what its fate is."""
        match self.fate:
            case "calls":
                log = self.log
                calls: list[Callable[[], object]] = [
                    *(lambda: log.append(fragment("child", 50)), log.commit, lambda: transacted(log, Told(), "child")),
                    *(log.begin, log.purge, log.add_segment),
                ]
                for one in calls:
                    with pytest.raises(LogClosedError):
                        one()
                log.close()
                os._exit(REFUSED)
            case "leaves":
                raise SystemExit
            case "goes on" if call not in CHANGES:
                pass
            case _:
                os._exit(REFUSED)

    def live(self) -> None:
        try:
            with self.log as log:
                self.calls = 0
                if self.name == "close":
                    log.close()
                elif self.name == "open":
                    log.close()
                    self.log = open_log(Stepped(OsDisk(), self.at_call), self.seed, self.path)
                else:
                    OPERATIONS[self.name](log, self.told, "struck")
                if self.name not in ("close", "open"):
                    transacted(log, self.told, "behind")
            self.log.close()
            if self.forked():
                os._exit(GOES_ON)  # in the midst of a call that changed nothing any more
        except BaseException as exc:
            if not self.forked():
                raise
            if not isinstance(exc, SystemExit | LogError):
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(REFUSED if isinstance(exc, SystemExit | LogError) else DIED)


def run_once(folder: Path, seed: int, name: str, step: int, fate: str) -> int:
    """Fork once; return how many calls the operation makes."""
    life = Forking(folder, seed, name, step, fate)
    life.live()
    if life.child is not None:
        code = os.waitstatus_to_exitcode(os.waitpid(life.child, 0)[1])
        assert code == REFUSED or (code == GOES_ON and fate == "goes on"), f"the child ended by {code}"
    with open_log(OsDisk(), seed, life.path) as log:
        assert log.recovered.clean
        check(log, life.told)
        transacted(log, life.told, "again")
    assert verify(life.path).sound
    shutil.rmtree(life.path)
    return life.calls


def run_all(folder: Path, seed: int, name: str, most: int | None) -> None:
    """Fork at `most` of an operation's calls, drawn by the seed, at each if None; in each of the ways."""
    calls = run_once(folder, seed, name, 0, "ends")
    rng = random.Random(seed)
    steps = list(range(1, calls + 1))
    for step in steps if most is None else rng.sample(steps, min(most, calls)):
        for fate in FATES if most is None else (rng.choice(FATES),):
            if name == "open" and fate == "calls":
                continue  # there is no log to call as yet
            with replayable(f"run_once(tmp_path, {seed}, {name!r}, {step}, {fate!r})"):
                run_once(folder, seed, name, step, fate)


@pytest.mark.parametrize("name", [*OPERATIONS, "close", "open"])
def test_a_fork_at_a_sample_of_calls_loses_nothing(tmp_path: Path, name: str) -> None:
    """The slow form forks at each."""
    run_all(tmp_path, 5, name, 4)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", [*OPERATIONS, "close", "open"])
@pytest.mark.parametrize("seed", range(200, 203))
def test_a_fork_at_every_call_loses_nothing(tmp_path: Path, name: str, seed: int) -> None:
    run_all(tmp_path, seed, name, None)

"""The log under loss of power: cut at every call that changes the disk, keep a random part, open again, compare.

conventions.md, tier "crash": nothing acknowledged is lost; nothing unfinished is seen; what a reader took for
committed stays. A failing case prints the line that replays it.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from fix_crash import Ledger, Life, append, end, finish, look, open_log, replayable
from fix_effort import Effort, few_of
from tranlog.testing.disk import PowerCut, SimDisk

STEPS = 40


def calls_of(seed: int, steps: int) -> SimDisk:
    """Return the disk after the whole life, nothing going wrong."""
    disk = SimDisk()
    Life(disk, Ledger(), seed).live(steps)
    return disk


def run_once(seed: int, cut: int, fate: int, steps: int) -> None:
    """Cut the life at call `cut`, then up to three reopenings after it: a kill or a loss of power; then all holds."""
    disk = SimDisk()
    ledger = Ledger()
    disk.cut_at = cut
    with contextlib.suppress(PowerCut):
        Life(disk, ledger, seed).live(steps)
    rng = random.Random(seed * 1_000_003 + cut * 101 + fate)
    disk = end(disk, ledger, rng)
    for _ in range(rng.randrange(4)):
        look(disk, ledger)
        disk.cut_at = disk.calls + rng.randrange(1, 20)
        with contextlib.suppress(PowerCut):
            append(open_log(disk, ledger, seed), ledger, "between", 2, rng)
        disk = end(disk, ledger, rng)
    finish(disk, ledger, seed, rng)


def run_double(seed: int, cut: int, second: int, fate: int, steps: int) -> bool:
    """Cut the life at call `cut`, the opening that mends it at its call `second`; whether it has so many calls."""
    disk = SimDisk()
    ledger = Ledger()
    disk.cut_at = cut
    with contextlib.suppress(PowerCut):
        Life(disk, ledger, seed).live(steps)
    rng = random.Random(seed * 1_000_003 + cut * 101 + fate)  # the same fate for each second cut
    disk = end(disk, ledger, rng)
    disk.cut_at = disk.calls + second
    went = False
    try:
        open_log(disk, ledger, seed)
    except PowerCut:
        went = True
    disk = end(disk, ledger, rng)
    finish(disk, ledger, seed, rng)
    return went


def test_the_life_has_every_kind_of_call() -> None:
    """What is cut below is worth it: rotation, purging, holds, cuts, the index, closing and opening are all in it."""
    found: set[str] = set()
    for seed in range(6):
        found |= set(calls_of(seed, STEPS).counts)
    assert found == {"open", "pwrite", "truncate", "sync", "make_dir", "unlink", "rename", "sync_dir", "lock"}


@pytest.mark.long
def test_a_cut_at_every_call_of_a_life_loses_nothing(effort: Effort) -> None:
    """log-format.md, "Ends of a log". A sample of them in `make unit`."""
    seed = 1
    total = calls_of(seed, STEPS).calls
    assert total > 100
    for cut in range(1, total + 2, effort(9, 1, 1)):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.parametrize("seed", few_of(range(2, 8)))
def test_a_cut_at_a_sample_of_calls_loses_nothing(seed: int) -> None:
    """The same over other lives, whose segments, buffers and retention differ."""
    total = calls_of(seed, STEPS).calls
    for cut in range(1 + seed, total + 2, 24):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.long
@pytest.mark.parametrize("seed", few_of(range(3)))
def test_a_cut_at_every_call_of_a_recovery_loses_nothing(seed: int) -> None:
    """Opening is cut at each of its own calls, for some of the states that a first cut leaves."""
    total = calls_of(seed, STEPS).calls
    for cut in random.Random(seed).sample(range(10, total), 3):
        second = 1
        while True:
            with replayable(f"run_double(seed={seed}, cut={cut}, second={second}, fate=0, steps={STEPS})"):
                if not run_double(seed, cut, second, 0, STEPS):
                    break
            second += 1
        assert second > 4


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_cut_at_every_call_loses_nothing(seed: int) -> None:
    """The same at every call, with several fates each."""
    total = calls_of(seed, STEPS).calls
    for cut in range(1, total + 2):
        for fate in range(3):
            with replayable(f"run_once(seed={seed}, cut={cut}, fate={fate}, steps={STEPS})"):
                run_once(seed, cut, fate, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(200, 206))
def test_a_cut_at_every_call_of_every_recovery_loses_nothing(seed: int) -> None:
    """Every pair of a cut in a life and a cut in the opening after it."""
    total = calls_of(seed, STEPS).calls
    for cut in range(1, total + 2):
        second = 1
        while True:
            with replayable(f"run_double(seed={seed}, cut={cut}, second={second}, fate=0, steps={STEPS})"):
                if not run_double(seed, cut, second, 0, STEPS):
                    break
            second += 1

"""The message store under loss of power: cut at every call that changes the disk, open again, compare.

SQLite's own code runs on the same disk, so the catalogue's commits are among the calls. What is found is the state
after some group of the log, and none that was told to be durable is missing.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from fix_crash import replayable
from fix_effort import Effort, few_of
from fix_queues import PATH, QueueLedger, QueueLife, check_opened, opened
from tranlog.errors import TranlogError
from tranlog.queues.rules.records import container_name
from tranlog.testing.disk import PowerCut, SimDisk

STEPS = 60


def lived(seed: int, steps: int) -> SimDisk:
    """Return the disk after a whole life, nothing going wrong."""
    disk = SimDisk()
    QueueLife(disk, QueueLedger(seed), seed).live(steps)
    return disk


def cut_life(seed: int, cut: int, steps: int) -> tuple[SimDisk, QueueLedger]:
    """Live until call `cut`."""
    disk = SimDisk()
    ledger = QueueLedger(seed)
    disk.cut_at = cut
    life = QueueLife(disk, ledger, seed)
    try:
        life.live(steps)
    except (PowerCut, TranlogError):
        assert disk.dead
    return disk, ledger


def end(disk: SimDisk, rng: random.Random) -> SimDisk:
    """End the process, and mostly the machine with it."""
    if rng.random() < 0.3:
        disk.kill()
        return disk
    return disk.after_crash(rng)


def finish(disk: SimDisk, ledger: QueueLedger) -> None:
    """Open what is left, hold it against the ledger, go on for a while, open again."""
    life = QueueLife(disk, ledger, ledger.seed)
    life.live(12)
    with opened(disk, ledger.seed) as store:
        assert store.recovered.clean
        assert not (store.recovered.dropped or store.recovered.deleted)
        check_opened(store, ledger)
        store.close()


def run_once(seed: int, cut: int, fate: int, steps: int) -> None:
    """Cut the life at call `cut`, then up to three openings after it; then all holds."""
    disk, ledger = cut_life(seed, cut, steps)
    rng = random.Random(seed * 1_000_003 + cut * 101 + fate)
    disk = end(disk, rng)
    for _ in range(rng.randrange(4)):
        disk.cut_at = disk.calls + rng.randrange(1, 40)
        try:
            with opened(disk, seed) as store:
                check_opened(store, ledger)
        except (PowerCut, TranlogError):
            assert disk.dead
        disk = end(disk, rng)
    finish(disk, ledger)


def run_double(seed: int, cut: int, second: int, fate: int, steps: int) -> bool:
    """Cut the life at call `cut`, the opening after it at its call `second`; whether it has so many calls."""
    disk, ledger = cut_life(seed, cut, steps)
    rng = random.Random(seed * 1_000_003 + cut * 101 + fate)
    disk = end(disk, rng)
    disk.cut_at = disk.calls + second
    went = False
    try:
        with opened(disk, seed) as store:
            check_opened(store, ledger)
    except (PowerCut, TranlogError):
        went = True
        assert disk.dead
    disk = end(disk, rng)
    finish(disk, ledger)
    return went


def test_the_life_has_every_kind_of_call() -> None:
    """What is cut below is worth it: containers are taken, given back and removed, and the catalogue changes."""
    found: set[str] = set()
    for seed in range(4):
        found |= set(lived(seed, STEPS).counts)
    assert found == {"open", "pwrite", "truncate", "sync", "make_dir", "unlink", "rename", "sync_dir", "lock"} - {
        "truncate"
    }


@pytest.mark.long
def test_a_cut_at_every_call_of_a_life_loses_nothing(effort: Effort) -> None:
    seed = 1
    total = lived(seed, STEPS).calls
    assert total > 300
    for cut in range(1, total + 2, effort(17, 2, 1)):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.long
@pytest.mark.parametrize("seed", few_of(range(2, 10)))
def test_a_cut_at_a_sample_of_calls_loses_nothing(seed: int) -> None:
    """The same over other lives, whose containers and memory differ."""
    total = lived(seed, STEPS).calls
    for cut in range(1 + seed, total + 2, 29):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_cut_at_every_call_of_an_opening_loses_nothing(seed: int) -> None:
    """Opening is cut at each of its own calls, for some of the states that a first cut leaves."""
    total = lived(seed, STEPS).calls
    for cut in random.Random(seed).sample(range(30, total), 3):
        second = 1
        while True:
            with replayable(f"run_double(seed={seed}, cut={cut}, second={second}, fate=0, steps={STEPS})"):
                if not run_double(seed, cut, second, 0, STEPS):
                    break
            second += 1
        assert second > 4


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_cut_at_every_call_loses_nothing(seed: int) -> None:
    """The same at every call, with several fates each."""
    total = lived(seed, STEPS).calls
    for cut in range(1, total + 2):
        for fate in range(3):
            with replayable(f"run_once(seed={seed}, cut={cut}, fate={fate}, steps={STEPS})"):
                run_once(seed, cut, fate, STEPS)


@pytest.mark.parametrize("fate", few_of(range(12), few=3))
def test_what_was_cut_off_once_is_not_found_again(fate: int) -> None:
    """The end of the log is followed by zeros before anything is written there, whatever the disk keeps of that."""
    disk, rubbish = SimDisk(), random.Random(fate).randbytes(2_000)
    with opened(disk, 0) as store:
        store.declare("a")
        store.publish(b"kept", queues=["a"])
        place = store._journal.place
    disk.kill()
    path = f"{PATH}/{container_name(place >> 32)}"
    raw, end = disk.content(path), place & 0xFFFF_FFFF
    disk.set_content(path, raw[:end] + rubbish + raw[end + len(rubbish) :])
    with opened(disk, 0) as store:
        assert store.recovered.cut is not None
        assert disk.content(store.recovered.cut) == rubbish
        assert not any(disk.content(path)[store._journal.place & 0xFFFF_FFFF :])
        store.publish(b"some more than one sector" * 60, queues=["a"], wait=False)
        store._journal.write()
    disk = disk.after_crash(random.Random(fate))
    with opened(disk, 0) as store:
        assert store.recovered.messages in (1, 2)
        if store.recovered.cut is not None:
            cut = disk.content(store.recovered.cut)
            assert not any(rubbish[at : at + 32] in cut for at in range(0, len(rubbish), 32)), "cut off twice"


@pytest.mark.long
def test_what_a_failing_call_leaves_is_no_more_than_a_crash(effort: Effort) -> None:
    """Each call fails once; the store says so or goes on, and nothing durable is lost."""
    seed = 3
    total = lived(seed, STEPS).calls
    for at in range(1, total + 1, effort(23, 5, 1)):
        for error in (5, 28):  # EIO, ENOSPC
            disk, ledger = SimDisk(), QueueLedger(seed)
            disk.fail_at = {at: error}
            with replayable(f"at={at} error={error}"):
                with contextlib.suppress(TranlogError, OSError):
                    QueueLife(disk, ledger, seed).live(STEPS)
                rng = random.Random(at)
                disk.fail_at = {}
                finish(end(disk, rng), ledger)

"""Spill under loss of power: cut at every call that changes the disk, keep a random part, open again, compare.

Issue 5, "How it is proven", for the writers of spill: after any crash a transaction that spilled is in the log whole or
not at all, no reference has lost a part, and what was aborted or cut off leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from fix_crash import PATH, Ledger, Life, end, finish, fragment, look, open_log, replayable
from tranlog.log.open_transaction import OpenTransaction
from tranlog.log.spill import spill_number
from tranlog.log.verify import verify
from tranlog.testing.disk import PowerCut, SimDisk

STEPS = 30


class SpillLife(Life):
    """A life with transactions that stay open over others' commits, rotations, purges and reopenings."""

    def __init__(self, disk: SimDisk, ledger: Ledger, seed: int) -> None:
        super().__init__(disk, ledger, seed)
        self.transactions: list[tuple[str, OpenTransaction, list[bytes]]] = []

    def step(self, step: int) -> None:
        rng = self.rng
        if rng.random() < 0.35:
            super().step(step)
            return
        if not self.transactions or (len(self.transactions) < 3 and rng.random() < 0.3):
            self.made += 1
            self.transactions.append((f"{self.seed}/spills/{self.made}", self.log.begin(), []))
            return
        event_id, transaction, parts = rng.choice(self.transactions)
        chance = rng.random()
        if chance < 0.6 or not parts:
            parts.append(rng.randbytes(rng.randrange(10, 900)))
            transaction.add(fragment(event_id, parts[-1], last=False))
        elif chance < 0.9:
            self.drop(event_id)
            self.ledger.appended[self.log.last_seqno + 1] = (event_id, b"".join(parts))
            sync = rng.random() < 0.7
            gtid = transaction.commit(sync=sync)
            if sync:
                self.ledger.synced = max(self.ledger.synced, gtid.seqno)
        elif chance < 0.97:
            self.drop(event_id)
            transaction.abort()
        else:
            self.log.roll_spill()

    def drop(self, event_id: str) -> None:
        self.transactions = [one for one in self.transactions if one[0] != event_id]

    def open(self) -> None:
        self.transactions = []
        super().open()


def life(disk: SimDisk, ledger: Ledger, seed: int, steps: int) -> None:
    SpillLife(disk, ledger, seed).live(steps)


def calls_of(seed: int, steps: int) -> SimDisk:
    disk = SimDisk()
    life(disk, Ledger(), seed, steps)
    return disk


def sound(disk: SimDisk) -> None:
    """Whatever a crash left: no transaction that is there has lost a part."""
    if disk.exists(PATH) and any(name.startswith("thl.data") for name in disk.list_dir(PATH)):
        report = verify(PATH, disk=disk)
        assert report.sound, report.problems


def nothing_left_over(disk: SimDisk, ledger: Ledger, seed: int) -> None:
    """A log that was just opened has no spill segment that no transaction refers into."""
    log = open_log(disk, ledger, seed)
    left = [one.name for one in log.spill_segments() if one.referred_by is None]
    assert not left, "spill that nothing refers to"
    there = {spill_number(name) for name in disk.list_dir(PATH)} - {None}
    assert there == {one.number for one in log.spill_segments()}
    log.close()


def run_once(seed: int, cut: int, fate: int, steps: int) -> None:
    """Cut the life at call `cut`, then up to two reopenings after it; then all holds."""
    disk = SimDisk()
    ledger = Ledger()
    disk.cut_at = cut
    with contextlib.suppress(PowerCut):
        life(disk, ledger, seed, steps)
    rng = random.Random(seed * 1_000_003 + cut * 101 + fate)
    disk = end(disk, ledger, rng)
    for _ in range(rng.randrange(3)):
        sound(disk)
        look(disk, ledger)
        disk.cut_at = disk.calls + rng.randrange(1, 25)
        with contextlib.suppress(PowerCut):
            log = open_log(disk, ledger, seed)
            with log.begin() as transaction:
                parts = [rng.randbytes(300) for _ in range(8)]
                for part in parts:
                    transaction.add(fragment("between", part, last=False))
                ledger.appended[log.last_seqno + 1] = ("between", b"".join(parts))
        disk = end(disk, ledger, rng)
    sound(disk)
    finish(disk, ledger, seed, rng)
    sound(disk)
    nothing_left_over(disk, ledger, seed)


def run_double(seed: int, cut: int, second: int, steps: int) -> bool:
    """Cut the life at call `cut`, the opening that mends it at its call `second`; whether it has so many calls."""
    disk = SimDisk()
    ledger = Ledger()
    disk.cut_at = cut
    with contextlib.suppress(PowerCut):
        life(disk, ledger, seed, steps)
    rng = random.Random(seed * 1_000_003 + cut * 101)
    disk = end(disk, ledger, rng)
    disk.cut_at = disk.calls + second
    went = False
    try:
        open_log(disk, ledger, seed)
    except PowerCut:
        went = True
    disk = end(disk, ledger, rng)
    sound(disk)
    finish(disk, ledger, seed, rng)
    return went


def test_the_life_spills_commits_aborts_and_purges() -> None:
    """What is cut below is worth it."""
    ledger = Ledger()
    disk = SimDisk()
    spilled = SpillLife(disk, ledger, 1)
    spilled.live(200)
    names = {one for one in disk.list_dir(PATH) if spill_number(one)}
    assert names and min(names) > "thl.spill.0000000003", "spill is written, and goes"
    assert sum("spills" in event_id for event_id, _ in ledger.appended.values()) > 5


def test_a_cut_at_every_call_of_a_life_leaves_each_transaction_whole_or_not_at_all() -> None:
    seed = 1
    total = calls_of(seed, STEPS).calls
    assert total > 60
    for cut in range(1, total + 2):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.parametrize("seed", range(2, 12))
def test_a_cut_at_a_sample_of_calls(seed: int) -> None:
    total = calls_of(seed, STEPS).calls
    for cut in range(1 + seed, total + 2, 11):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.parametrize("seed", range(3))
def test_a_cut_at_every_call_of_an_opening(seed: int) -> None:
    total = calls_of(seed, STEPS).calls
    for cut in random.Random(seed).sample(range(10, total), 3):
        second = 1
        while True:
            with replayable(f"run_double(seed={seed}, cut={cut}, second={second}, steps={STEPS})"):
                if not run_double(seed, cut, second, STEPS):
                    break
            second += 1
        assert second > 4


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_cut_at_every_call(seed: int) -> None:
    """The same at every call of longer lives, with several fates each."""
    total = calls_of(seed, 60).calls
    for cut in range(1, total + 2):
        for fate in range(3):
            with replayable(f"run_once(seed={seed}, cut={cut}, fate={fate}, steps=60)"):
                run_once(seed, cut, fate, 60)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(200, 206))
def test_a_cut_at_every_call_of_every_opening(seed: int) -> None:
    total = calls_of(seed, STEPS).calls
    for cut in range(1, total + 2):
        second = 1
        while True:
            with replayable(f"run_double(seed={seed}, cut={cut}, second={second}, steps={STEPS})"):
                if not run_double(seed, cut, second, STEPS):
                    break
            second += 1

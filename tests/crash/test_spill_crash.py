"""Spill under loss of power: cut at every call that changes the disk, keep a random part, open again, compare.

For the writers of spill: after any crash a transaction that spilled is in the log whole or
not at all, no reference has lost a part, and what was aborted or cut off leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import random

import pytest

from fix_crash import PATH, Ledger, Life, end, finish, fragment, look, open_log, replayable
from fix_effort import Effort, few_of
from tranlog.ids import Seqno
from tranlog.log.records.spill import spill_number
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

STEPS = 60


class SpillLife(Life):
    """A life with transactions that stay open over others' commits, rotations, purges and reopenings."""

    def __init__(self, disk: SimDisk, ledger: Ledger, seed: int) -> None:
        super().__init__(disk, ledger, seed)
        self.transactions: list[tuple[str, OpenTransaction, list[bytes]]] = []

    def step(self, step: int) -> None:
        rng = self.rng
        if rng.random() < 0.25:
            super().step(step)
            return
        if not self.transactions or (len(self.transactions) < 3 and rng.random() < 0.3):
            self.made += 1
            self.transactions.append((f"{self.seed}/spills/{self.made}", self.log.begin(), []))
            return
        event_id, transaction, parts = rng.choice(self.transactions)
        chance = rng.random()
        if chance < 0.65 or not parts:
            parts.append(rng.randbytes(rng.randrange(10, 900)))
            transaction.add(fragment(event_id, parts[-1], last=False))
        elif chance < 0.92:
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
    committed = gone = 0
    for seed in range(1, 6):
        ledger = Ledger()
        disk = SimDisk()
        life(disk, ledger, seed, 200)
        numbers = {spill_number(name) for name in disk.list_dir(PATH)} - {None}
        gone += max(one or 0 for one in numbers) - len(numbers)
        committed += sum("spills" in event_id for event_id, _ in ledger.appended.values())
    assert committed > 20
    assert gone > 20


@pytest.mark.long
def test_a_cut_at_every_call_of_a_life_leaves_each_transaction_whole_or_not_at_all(effort: Effort) -> None:
    """At a sample of them in `make unit`."""
    seed = 1
    total = calls_of(seed, STEPS).calls
    assert total > 60
    for cut in range(1, total + 2, effort(9, 1, 1)):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.long
@pytest.mark.parametrize("seed", few_of(range(2, 12)))
def test_a_cut_at_a_sample_of_calls(seed: int) -> None:
    total = calls_of(seed, STEPS).calls
    for cut in range(1 + seed, total + 2, 9):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.parametrize("seed", few_of(range(3)))
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


def run_purge(cut: int, fate: int, second: int = 0) -> tuple[bool, bool]:
    """Cut a purge off by a loss of power; with `second` by the process's end, and the opening after it by the power.

    Return whether the purge was cut off, and the opening.
    """
    disk = SimDisk()
    options = LogOptions(
        segment_bytes=1_000,
        buffer_bytes=1,
        index_flush_s=None,  # a thread of its own is not what is cut here
        spill_buffer_bytes=1,
        spill_chunk_bytes=200,
        spill_segment_bytes=1_000,
    )

    def open_again() -> Log:
        return Log.open(PATH, source_id="db", options=options, disk=disk, clock=ManualClock())

    log = open_again()
    for number in range(25):
        log.transact(fragment(f"{number}", bytes(300), last=False) for _ in range(4))
    disk.cut_at = disk.calls + cut
    went = [False, False]
    try:
        log.purge(below=Seqno(20))
    except PowerCut:
        went[0] = True
    begins = 0
    if second:
        disk.kill()
        disk.cut_at = disk.calls + second
        try:
            begins = open_again().first_seqno
        except PowerCut:
            went[1] = True
    disk = disk.after_crash(random.Random(fate))
    sound(disk)
    again = open_again()
    assert again.first_seqno >= begins, "what was gone came back"
    with again.cursor() as cursor:
        while (transaction := cursor.next()) is not None:
            assert transaction.is_noop() or b"".join(transaction.payloads()) == bytes(1_200)
    again.purge(below=Seqno(20))
    assert {one.referred_by.seqno >= again.first_seqno for one in again.spill_segments() if one.referred_by} == {True}
    return went[0], went[1]


@pytest.mark.long
def test_a_cut_at_every_call_of_a_purge_leaves_no_reference_without_its_parts(effort: Effort) -> None:
    """tokumx.md A8.6: first the log, then what nothing in it refers to any more."""
    cut = 1
    while any([run_purge(cut, fate)[0] for fate in range(effort(1, 4, 4))]):
        cut += 1
    assert cut > 10


@pytest.mark.long
def test_a_segment_that_a_killed_purge_removed_does_not_come_back_to_lost_spill() -> None:
    """The removal that the next opening finds is durable before it drops what only that segment referred to."""
    # Only an opening that drops spill has twelve calls: the purge ended between removing a segment and the sync.
    cut = next(cut for cut in range(1, 40) if run_purge(cut, 0, 12)[1])
    second = 1
    while any([run_purge(cut, fate, second)[1] for fate in range(2)]):
        second += 1
    assert second > 12


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_cut_at_every_call(seed: int) -> None:
    """The same at every call of longer lives, with several fates each."""
    total = calls_of(seed, 120).calls
    for cut in range(1, total + 2):
        for fate in range(3):
            with replayable(f"run_once(seed={seed}, cut={cut}, fate={fate}, steps=120)"):
                run_once(seed, cut, fate, 120)


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

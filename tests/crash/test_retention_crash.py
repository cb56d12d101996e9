"""Closing segments for their age, adding, trimming and purging under loss of power: cut at every call, opened again.

Rotate, purge, trim. What was acknowledged and not given up is there; the row has no hole;
a hold keeps what it keeps; and whoever lost something is told why, since the reason is durable before the first file
goes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from fix_crash import replayable
from fix_effort import Effort, few_of
from fix_log import PATH, make_fragment, segment_names
from tranlog.errors import SegmentEmptyError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.rules.retention import Limit, OlderThan, UpToSeqno, UpToTime
from tranlog.log.writing.log import Log, LogOptions, LogReader, hold
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

STEPS = 26
START = 1_700_000_000_000


@dataclass(slots=True)
class Told:
    """What the program was told: by seqno what it committed, up to where it let go, and what was held."""

    acked: dict[int, str] = field(default_factory=dict)
    durable: int = NO_SEQNO
    may_go: int = 0
    """No plan reached beyond it."""
    held: int = 1 << 60
    passed: dict[int, str] = field(default_factory=dict)
    """Seqnos that a hard limit may have taken from a hold, with the hold's name."""


class Life:
    """A program that writes, and an operator who adds and trims; some of it through a log opened for upkeep."""

    def __init__(self, disk: SimDisk, told: Told, seed: int) -> None:
        self.disk = disk
        self.told = told
        self.rng = random.Random(seed)
        self.clock = ManualClock(START)
        self.options = LogOptions(
            segment_bytes=1_000,
            retention_s=self.rng.choice((7_200.0, 200_000.0)),
            hard_retention_bytes=self.rng.choice((None, 9_000)),
            index_flush_s=None,  # a flush has a thread of its own, which is not what is cut here
        )
        self.log: Log

    def live(self, steps: int) -> None:
        self.open()
        for _ in range(steps):
            self.rng.choice((self.write, self.write, self.write, self.add, self.trim, self.trim, self.hold, self.age))()
            if self.rng.random() < 0.15:
                self.reopen()
        self.close()

    def open(self) -> None:
        self.log = Log.open(PATH, source_id="db", options=self.options, disk=self.disk, clock=self.clock)
        self.told.durable = self.log.durable_seqno

    def close(self) -> None:
        self.log.close()
        self.told.durable = max(self.told.durable, self.log.visible_seqno)

    def reopen(self) -> None:
        self.close()
        if self.rng.random() < 0.5:
            self.log = Log.open_for_upkeep(PATH, options=self.options, disk=self.disk, clock=self.clock)
            self.rng.choice((self.add, self.trim))()
            self.close()
        self.open()

    def write(self) -> None:
        self.foresee()
        for _ in range(self.rng.randrange(1, 5)):
            event_id = f"e{len(self.told.acked)}-{self.rng.random()}"
            self.told.acked[self.log.last_seqno + 1] = event_id
            self.log.append(make_fragment(event_id, self.rng.randbytes(self.rng.randrange(400))))
        self.told.durable = max(self.told.durable, self.log.commit())

    def foresee(self) -> None:
        """What the options give up by themselves is bounded by what is durable, and for soft limits by holds."""
        soft = self.options.hard_retention_bytes is None
        if not soft:
            self.may_pass(self.log.last_seqno + 10)
        self.told.may_go = max(self.told.may_go, min(self.told.held, 1 << 60) if soft else 1 << 60)

    def may_pass(self, upto: int) -> None:
        for seqno in range(min(self.told.held, upto), upto):
            self.told.passed.setdefault(seqno, "pipe")

    def add(self) -> None:
        self.foresee()
        with contextlib.suppress(SegmentEmptyError):
            self.log.add_segment()

    def trim(self) -> None:
        hard = self.rng.random() < 0.3
        seqno = Seqno(self.rng.randrange(self.log.last_seqno + 2))
        limits: tuple[Limit, ...] = (
            UpToSeqno(seqno=seqno, hard=hard),
            UpToTime(at_ms=self.clock.now_ms() - self.rng.randrange(10_000), hard=hard),
            OlderThan(ms=self.rng.randrange(20_000), hard=hard),
        )
        limit = self.rng.choice(limits)
        plan = self.log.trim(limit, dry_run=True)
        if plan.up_to is not None:
            self.told.may_go = max(self.told.may_go, plan.up_to + 1)
            if plan.passed:
                self.may_pass(plan.up_to + 1)
        self.log.trim(limit)

    def hold(self) -> None:
        seqno = max(self.log.first_seqno, self.rng.randrange(self.log.visible_seqno + 1))
        self.told.held = max(self.told.held if self.told.held < 1 << 60 else 0, seqno)  # until it is written, either
        hold(PATH, "pipe", Seqno(seqno), disk=self.disk, clock=self.clock)
        self.told.held = seqno

    def age(self) -> None:
        self.foresee()
        self.clock.advance(self.rng.choice((60.0, 4_000.0, 90_000.0)))
        if self.rng.random() < 0.3:
            self.clock.set_ms(START)
        self.log.expire()


def check(disk: SimDisk, told: Told, opening: Callable[[], Log]) -> None:
    """Open what is left, and hold it against what the program was told."""
    if not disk.exists(PATH) or not segment_names(disk):
        assert told.durable == NO_SEQNO
        return
    with opening() as log:
        first = log.first_seqno
        numbers = [int(name[-10:]) for name in segment_names(disk)]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a hole in the row"
        assert log.visible_seqno >= told.durable, "lost what was acknowledged"
        if first != NO_SEQNO:
            assert first <= told.may_go, "gave up more than was decided"
            assert first <= told.durable or told.durable == NO_SEQNO, "gave up the last durable transaction"
        with log.cursor() as cursor:
            found = {}
            while (transaction := cursor.next()) is not None:
                if not transaction.is_noop():
                    found[int(transaction.header.seqno)] = transaction.header.event_id
        for seqno, event_id in told.acked.items():
            if first <= seqno <= told.durable:
                assert found.get(seqno) == event_id
    with LogReader.open(PATH, disk=disk, clock=ManualClock(START)) as reader:
        for seqno in range(max(first, 0)):
            error = reader.purged(Seqno(seqno))
            assert error.limit is not None and error.up_to is not None and error.up_to >= seqno, "nobody says why"
            if error.passed:
                assert told.passed.get(seqno, "pipe") in error.passed
            if first <= told.held:
                continue
            assert seqno < told.held or seqno in told.passed, "a hold was passed, and no hard limit said so"
            if seqno >= told.held:
                assert error.passed == ("pipe",), "who was passed is told so"


def run_once(seed: int, cut: int | None, fate: int, steps: int) -> SimDisk:
    """Cut the life at call `cut`, lose the power or only the process, and open again, half of the time for upkeep."""
    disk, told = SimDisk(), Told()
    disk.cut_at = cut
    with contextlib.suppress(PowerCut):
        Life(disk, told, seed).live(steps)
    rng = random.Random(f"{seed}/{cut}/{fate}")
    disk.kill()
    left = disk if rng.random() < 0.25 else disk.after_crash(rng)
    clock = ManualClock(START)

    def upkeep() -> Log:
        return Log.open_for_upkeep(PATH, disk=left, clock=clock)

    def write() -> Log:
        return Log.open(PATH, source_id="db", disk=left, clock=clock)

    for opening in (upkeep, write, upkeep) if rng.random() < 0.5 else (write, write):
        check(left, told, opening)
    return disk


def test_the_life_purges_closes_and_passes_holds() -> None:
    """What is cut below is worth it."""
    firsts, passed = [], 0
    for seed in range(12):
        disk = run_once(seed, None, 0, STEPS)
        with LogReader.open(PATH, disk=disk, clock=ManualClock(START)) as reader:
            firsts.append(reader.range().first_seqno)
            passed += any(reader.purged(Seqno(seqno)).passed for seqno in range(max(firsts[-1], 0)))
    assert sum(first > 0 for first in firsts) >= 8 and passed >= 2, (firsts, passed)


@pytest.mark.parametrize("seed", few_of(range(1, 4)))
def test_a_cut_at_every_third_call(seed: int, effort: Effort) -> None:
    total = run_once(seed, None, 0, STEPS).calls
    assert total > 60
    for cut in range(1 + seed % 3, total + 2, effort(9, 3, 3)):
        with replayable(f"run_once({seed}, {cut}, 0, {STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_cut_at_every_call(seed: int) -> None:
    for cut in range(1, run_once(seed, None, 0, 60).calls + 2):
        for fate in range(3):
            with replayable(f"run_once({seed}, {cut}, {fate}, 60)"):
                run_once(seed, cut, fate, 60)

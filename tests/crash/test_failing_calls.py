"""The log on a disk that fails: an error at every call that changes the disk, once or from then on; then a reopening.

After a failed sync nothing is assumed durable, the log closes for writing and says so; what was
acknowledged is there when it is opened again, also if the power goes before, or after. A failing case prints the
line that replays it.
"""

from __future__ import annotations

import errno
import random

import pytest

from fix_crash import (
    PATH,
    Ledger,
    Life,
    check,
    check_ladder,
    compare,
    end,
    finish,
    fragment,
    observe,
    replayable,
)
from fix_effort import Effort
from tranlog.errors import (
    DiskFailedError,
    DiskFullError,
    HoldError,
    LogClosedError,
    LogError,
    PurgeFailedError,
    SpillFailedError,
)
from tranlog.ids import Seqno
from tranlog.testing.disk import SimDisk

STEPS = 40
LASTING = 100_000


class FailingLife(Life):
    """A life that meets errors, holds each against what it may be, mends the disk and goes on.

    `met`: the kinds of error, in order. `fate`: what a loss of power would leave, right after an error and later.
    """

    def __init__(self, disk: SimDisk, ledger: Ledger, seed: int, fate: random.Random) -> None:
        super().__init__(disk, ledger, seed)
        self.fate = fate
        self.met: list[type[LogError]] = []

    def open(self) -> None:
        try:
            super().open()
        except (DiskFullError, DiskFailedError) as error:
            self.told(error)
            self.mend()
            super().open()

    def step(self, step: int) -> None:
        try:
            super().step(step)
        except (DiskFullError, DiskFailedError, HoldError, PurgeFailedError) as error:
            self.told(error)
            self.after(error)

    def close(self) -> None:
        try:
            super().close()
        except (DiskFullError, DiskFailedError) as error:
            self.told(error)
            self.crash_aside()
            self.mend()
            # Letting go has happened all the same: the lock is free, and what was acknowledged is there.
            super().open()
            super().close()

    def told(self, error: LogError) -> None:
        self.met.append(type(error))
        assert PATH in str(error), "the error names the file"

    def after(self, error: LogError) -> None:
        log = self.log
        check_ladder(log)
        self.read_on()
        match error:
            case SpillFailedError(path=path) | DiskFullError(path=path) if "thl.spill." in path:
                assert "the transaction was refused" in str(error).lower(), "that one alone"
                assert log.status().closed_because is None
                if self.disk.fail_at:
                    self.mend()
                return
            case DiskFailedError():
                assert "closed for writing" in str(error)
                self.refuses_for_good(error)
            case DiskFullError():
                assert "Free some space" in str(error)
                assert log.last_seqno == log.visible_seqno, "everything since the last commit was refused"
                assert log.status().closed_because is None
            case _:
                assert log.status().closed_because is None
                if self.disk.fail_at:  # it lasts: the log itself may fail next
                    self.mend()
                return
        self.crash_aside()
        self.mend()
        if isinstance(error, DiskFullError):
            log.append(fragment(f"{self.seed}/room again", b"", last=False))
            log.abandon_open()
        else:
            log.close()
            super().open()
            check(self.ledger, self.log)

    def refuses_for_good(self, error: LogError) -> None:
        """Every later call says that the log is closed, why, and what to do; the disk being well again or not."""
        log = self.log
        assert str(error) == log.status().closed_because
        for call in (
            lambda: log.append(fragment("refused", b"x")),
            lambda: log.commit(),
            lambda: log.commit(sync=False),
            lambda: log.purge(below=Seqno(1)),
        ):
            with pytest.raises(LogClosedError, match="Open it again") as refused:
                call()
            assert str(error) in str(refused.value)
        visible = log.visible_seqno
        log.abandon_open()
        assert log.visible_seqno == visible

    def read_on(self) -> None:
        """What was visible stays readable, here and for a reader elsewhere."""
        with self.log.cursor() as cursor:
            last = None
            while (transaction := cursor.next()) is not None:
                compare(transaction, self.ledger)
                last = transaction.header.seqno
            assert last == self.log.visible_seqno
        self.watch()

    def mend(self) -> None:
        self.disk.fail_at = {}

    def crash_aside(self) -> None:
        """Were the power to go now: what was acknowledged is there, on a disk that works again."""
        ledger = Ledger(
            appended=dict(self.ledger.appended),
            synced=self.ledger.synced,
            shown=max(self.ledger.shown, self.log.durable_seqno),
            proven=self.ledger.proven,
            epochs=list(self.ledger.epochs),
            may_go_below=self.ledger.may_go_below,
        )
        aside = self.disk.after_crash(self.fate)
        finish(aside, ledger, self.seed, self.fate)


def run_once(seed: int, call: int, number: int, lasting: bool, steps: int) -> list[type[LogError]]:
    """Let call `call` fail with errno `number`, once or with all that follow; return the errors that were met."""
    rng = random.Random(f"{seed}/{call}/{number}/{lasting}")
    disk = SimDisk()
    disk.chance = None if rng.random() < 0.5 else rng
    ledger = Ledger()
    disk.fail_at = dict.fromkeys(range(call, call + (LASTING if lasting else 1)), number)
    life = FailingLife(disk, ledger, seed, rng)
    life.live(steps)
    disk = end(disk, ledger, rng)
    finish(disk, ledger, seed, rng)
    if rng.random() < 0.5:
        observe(disk, ledger)
        finish(disk.after_crash(rng), ledger, seed, rng)
    return life.met


def calls_of(seed: int, steps: int) -> int:
    disk = SimDisk()
    Life(disk, Ledger(), seed).live(steps)
    return disk.calls


@pytest.mark.long
def test_an_error_at_a_sample_of_calls_loses_nothing_acknowledged(effort: Effort) -> None:
    """Every third call fails in one way, fewer in `make unit`; the slow form lets each call fail in every way."""
    met: set[type[LogError]] = set()
    for call in range(1, calls_of(0, STEPS) + 1, effort(9, 3, 3)):
        number = (errno.ENOSPC, errno.EIO)[call % 2]
        lasting = call % 5 < 2
        with replayable(f"run_once(0, {call}, {number}, {lasting}, {STEPS})"):
            met |= set(run_once(0, call, number, lasting, STEPS))
    assert {DiskFailedError, DiskFullError} <= met


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 130))
def test_every_error_at_every_call_loses_nothing_acknowledged(seed: int) -> None:
    """ENOSPC, EIO and EDQUOT, once and lasting, at every call of many lives."""
    for call in range(1, calls_of(seed, STEPS) + 1):
        for number in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            for lasting in (False, True):
                with replayable(f"run_once({seed}, {call}, {number}, {lasting}, {STEPS})"):
                    run_once(seed, call, number, lasting, STEPS)

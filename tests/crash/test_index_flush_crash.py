"""The background flush of the index under loss of power: at every call, early, late, overtaken; then all holds.

Flushes run at moments of their own, as their thread might, in between anything else; so does the filling of an index
that was lost, which happens now and then. Opening believes what they left, whatever the size of the segment. A failing
case prints the line that replays it.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import pytest

from fix_crash import PATH, Ledger, Life, append, end, finish, look, open_log, options, replayable
from fix_effort import Effort, few_of
from tranlog.ids import Seqno
from tranlog.log.files import scan
from tranlog.log.files.index_table import INDEX_NAME
from tranlog.log.writing import index_fill
from tranlog.log.writing.log import Log
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

STEPS = 30
TABLE = f"{PATH}/{INDEX_NAME}"
WAITING: list[threading.Thread] = []


class Late(threading.Thread):
    """A flush that waits for its turn; who waits for its end gives it that."""

    def start(self) -> None:
        WAITING.append(self)

    def is_alive(self) -> bool:
        return self in WAITING

    def join(self, timeout: float | None = None) -> None:
        if self in WAITING:
            WAITING.remove(self)
            self.run()


@pytest.fixture(autouse=True)
def late_flushes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("tranlog.log.writing.index_flush.threading.Thread", Late)
    monkeypatch.setattr(scan, "WALK_WHOLE_BYTES", 0)
    monkeypatch.setattr(index_fill, "STEP_BYTES", 1_500)
    WAITING.clear()
    yield
    WAITING.clear()


class FlushingLife(Life):
    """A life whose flushes come after a few hundred bytes, and run one to some steps later."""

    def open(self) -> None:
        if self.rng.random() < 0.5 and self.disk.exists(TABLE):
            self.disk.unlink(TABLE)
        super().open()
        object.__setattr__(self.log._end.index_flush._options, "index_flush_bytes", self.rng.choice((1, 300, 900)))

    def step(self, step: int) -> None:
        if WAITING and self.rng.random() < 0.4:
            self.rng.choice(WAITING).join()
        super().step(step)
        index = self.log.seqno_index
        assert index.range.last == self.log.visible_seqno


def run_once(seed: int, cut: int, fate: int, steps: int) -> None:
    """Cut the life at call `cut`, then up to three reopenings after it."""
    WAITING.clear()
    disk, ledger = SimDisk(), Ledger()
    disk.cut_at = cut
    with contextlib.suppress(PowerCut):
        FlushingLife(disk, ledger, seed).live(steps)
    WAITING.clear()
    rng = random.Random(seed * 1_000_003 + cut * 101 + fate)
    disk = end(disk, ledger, rng)
    for _ in range(rng.randrange(4)):
        look(disk, ledger)
        disk.cut_at = disk.calls + rng.randrange(1, 20)
        with contextlib.suppress(PowerCut):
            append(open_log(disk, ledger, seed), ledger, "between", 2, rng)
        disk = end(disk, ledger, rng)
    finish(disk, ledger, seed, rng)
    every_place_is_right(disk, seed)


def every_place_is_right(disk: SimDisk, seed: int) -> None:
    """The index that is continued answers for every seqno as a walk over the log does."""
    with Log.open(PATH, source_id="db", options=options(seed), disk=disk, clock=ManualClock()) as log:
        log._end.index_flush._fill.run()
        index = log.seqno_index
        assert (index.range.first, index.range.last) == (log.first_seqno, log.visible_seqno)
        assert index.mappings.gap() is None, "whatever was lost, and when, is filled"
        with log.cursor() as cursor:
            for seqno in range(log.first_seqno, log.visible_seqno + 1):
                transaction = cursor.next()
                assert transaction is not None
                below = index.lte(Seqno(seqno))
                assert below is not None and below.seqno <= seqno and below.lsn <= transaction.start
                assert index.exact(Seqno(seqno)) in (None, transaction.start)


def calls_of(seed: int, steps: int) -> tuple[int, int]:
    """Return how many calls a life has, and how many of them are the stored index's."""
    WAITING.clear()
    disk = SimDisk()
    touched = []
    changing = disk._changing

    def noted(kind: str, path: str) -> int:
        touched.append(path)
        return changing(kind, path)

    disk._changing = noted  # type: ignore[method-assign]
    FlushingLife(disk, Ledger(), seed).live(steps)
    return disk.calls, sum("index.table" in path for path in touched)


@pytest.mark.long
@pytest.mark.parametrize("seed", few_of(range(8)))
def test_a_cut_at_a_sample_of_calls_loses_nothing(seed: int, effort: Effort) -> None:
    """A crash at every call of every writer here, the index's flush among them."""
    total, of_the_index = calls_of(seed, STEPS)
    assert of_the_index > 4
    for cut in range(1 + seed % 3, total + 2, effort(9, 3, 3)):
        with replayable(f"run_once(seed={seed}, cut={cut}, fate=0, steps={STEPS})"):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_cut_at_every_call_loses_nothing(seed: int) -> None:
    """The same at every call, with several fates each."""
    total, _ = calls_of(seed, STEPS)
    for cut in range(1, total + 2):
        for fate in range(3):
            with replayable(f"run_once(seed={seed}, cut={cut}, fate={fate}, steps={STEPS})"):
                run_once(seed, cut, fate, STEPS)

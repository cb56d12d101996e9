"""A rollback cut off at every call to the disk: afterwards it is complete, or it never began, and nothing in between.

design/replication.md, "Rollback"; conformance/vlsn-index.md, I26 to I31. The disk loses and reorders what was not
synced; the process dies with or without it. A failing case prints the line that replays it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from fix_effort import Effort, few_of
from fix_log import PATH, make_fragment, open_log, open_reader, read_all
from tranlog.ids import Gtid, Seqno
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log
from tranlog.testing.disk import PowerCut, SimDisk

Entry = tuple[int, str, bytes] | None
"""Epoch, event id and payload of a transaction; None for the no-op of an opening or a rollback."""


class History:
    """What a program handed over, as far as it knows: `durable` for certain, `rest` perhaps.

    `undone` is what a rollback that has begun and not returned leaves; None while there is none.
    """

    def __init__(self) -> None:
        self.first = 0
        self.purged_below = 0
        self.durable: list[Entry] = []
        self.rest: list[Entry] = []
        self.undone: list[Entry] | None = None
        self.given: dict[Gtid, Entry] = {}
        self.top = 0
        """The highest epoch that was seen."""

    def append(self, log: Log, event_id: str, payload: bytes) -> None:
        entry = (int(log.epoch), event_id, payload)
        self.given[Gtid(log.epoch, Seqno(log.last_seqno + 1))] = entry
        self.rest.append(entry)
        assert self.given[log.append(make_fragment(event_id, payload))] is entry

    def commit(self, log: Log) -> None:
        log.commit()
        self.durable += self.rest
        self.rest = []

    def rollback(self, log: Log, seqno: int) -> None:
        self.commit(log)
        with log.cursor() as cursor:
            cursor.seek(Seqno(seqno))
            header = cursor.next_header()
        assert header is not None
        kept = self.durable[: seqno + 1]
        self.undone = kept if len(kept) == len(self.durable) else [*kept, None]
        mark = log.rollback(header.gtid)
        assert (mark is None) == (len(kept) == len(self.durable))
        self.durable, self.undone = self.undone, None
        assert log.last_seqno == len(self.durable) - 1

    def purge(self, log: Log, below: int) -> None:
        self.purged_below = max(self.purged_below, below)
        log.purge(below=Seqno(below))
        self.first = log.first_seqno

    def adopt(self, log: Log) -> None:
        """Hold a log that was opened again against what may be there, and go on from what is."""
        found = read(log)
        assert self.first <= log.first_seqno <= self.purged_below
        self.first = log.first_seqno
        candidates = [(self.durable, self.rest)]
        if self.undone is not None:
            candidates.append((self.undone[:-1], [None]) if self.undone[-1:] == [None] else (self.undone, []))
        assert any(self._fits(found, *one) for one in candidates), (found, candidates)
        assert log.epoch > self.top
        self.top = log.epoch
        self.durable = [*self.durable[: self.first], *found]
        self.rest, self.undone = [], None
        event_id = next((one[1] for one in reversed(self.durable) if one is not None), None)
        assert log.last_event_id() == event_id, "a source would resume at the wrong place"

    def _fits(self, found: list[Entry], durable: list[Entry], rest: list[Entry]) -> bool:
        """Whether `found` is all of `durable`, some of `rest` from its front, and no-ops of openings."""
        wanted = durable[self.first :]
        if found[: len(wanted)] != wanted:
            return False
        behind = found[len(wanted) :]
        while behind and behind[-1] is None:
            behind.pop()
        return [one for one in behind if one] == [one for one in rest if one][: len(behind)]


def read(log: Log) -> list[Entry]:
    """Return what a log holds, read from its front; seqnos rise one by one, epochs never fall."""
    entries: list[Entry] = []
    epoch = 0
    with log.cursor() as cursor:
        for at, one in enumerate(read_all(cursor), start=log.first_seqno):
            assert one.header.seqno == at
            assert one.header.epoch >= epoch
            epoch = one.header.epoch
            payload = b"".join(one.payloads())
            entries.append(None if one.is_noop() else (epoch, one.header.event_id, payload))
    assert len(entries) == log.last_seqno + 1 - log.first_seqno
    return entries


def open_again(disk: SimDisk, history: History, segment_bytes: int) -> Log:
    log = open_log(disk, segment_bytes=segment_bytes)
    history.adopt(log)
    return log


def end(disk: SimDisk, rng: random.Random) -> SimDisk:
    """End the process, and mostly the machine with it."""
    if rng.random() < 0.3:
        disk.kill()
        return disk
    return disk.after_crash(rng)


def check(disk: SimDisk, history: History, rng: random.Random, segment_bytes: int) -> None:
    """Open what a crash left, cut that off as well a few times, then hold everything against everything."""
    for _ in range(rng.randrange(3)):
        disk.cut_at = disk.calls + rng.randrange(1, 16)
        with contextlib.suppress(PowerCut):
            open_again(disk, history, segment_bytes)
        disk = end(disk, rng)
    if rng.random() < 0.3 and disk.exists(f"{PATH}/index.table"):
        disk.unlink(f"{PATH}/index.table")
    log = open_again(disk, history, segment_bytes)
    with open_reader(disk) as reader:
        assert reader.range().last_seqno == log.last_seqno
    for seqno in range(log.first_seqno, log.last_seqno + 1):
        with log.cursor() as cursor:
            cursor.seek(Seqno(seqno))
            header = cursor.next_header()
            assert header is not None
            entry = history.durable[seqno]
            assert entry is None or header.epoch == entry[0]
            given = history.given.get(header.gtid)
            assert given is None or given == entry, "a GTID was given out twice"
    history.append(log, "after", b"after")
    history.commit(log)
    log.close()
    found = verify(PATH, disk=disk)
    assert found.sound, found.problems
    assert found.transactions == log.last_seqno + 1 - log.first_seqno
    log = open_again(disk, history, segment_bytes)
    assert log.recovered.clean
    log.close()


@contextlib.contextmanager
def replayable(line: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(f"replay: {line}")
        raise


# --- one rollback, every call, every fate -------------------------------------------------------------------


def one_rollback(disk: SimDisk, history: History, *, to: int, cut_at: int | None) -> int:
    """Roll a log of several segments back, the power cut at a call of the rollback; return the rollback's calls."""
    log = open_again(disk, history, 1_000)
    for number in range(14):
        history.append(log, f"e{number}", bytes([number]) * 150)
    history.commit(log)
    before = disk.calls
    disk.cut_at = None if cut_at is None else before + cut_at
    history.rollback(log, to)
    calls = disk.calls - before
    log.close()
    return calls


def nested(disk: SimDisk, history: History, *, cut_at: int | None) -> int:
    """A rollback behind two others: one inside what it abandons, one to the same matchpoint before it."""
    log = open_again(disk, history, 1_000)
    for number in range(10):
        history.append(log, f"e{number}", bytes([number]) * 150)
    history.rollback(log, 8)
    for number in range(10, 14):
        history.append(log, f"e{number}", bytes([number]) * 150)
    history.rollback(log, 4)
    for number in range(14, 18):
        history.append(log, f"e{number}", bytes([number]) * 150)
    history.commit(log)
    before = disk.calls
    disk.cut_at = None if cut_at is None else before + cut_at
    history.rollback(log, 4)
    calls = disk.calls - before
    log.close()
    return calls


CASES: dict[str, Callable[..., int]] = {
    "in the newest segment": lambda disk, history, cut_at: one_rollback(disk, history, to=13, cut_at=cut_at),
    "over a rotation": lambda disk, history, cut_at: one_rollback(disk, history, to=6, cut_at=cut_at),
    "to the first": lambda disk, history, cut_at: one_rollback(disk, history, to=0, cut_at=cut_at),
    "nested": lambda disk, history, cut_at: nested(disk, history, cut_at=cut_at),
}


def run_case(name: str, cut_at: int, fate: int) -> None:
    disk, history = SimDisk(), History()
    with contextlib.suppress(PowerCut):
        CASES[name](disk, history, cut_at=cut_at)
    rng = random.Random(cut_at * 101 + fate)
    check(end(disk, rng), history, rng, 1_000)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_rollback_is_complete_or_never_began(name: str, effort: Effort) -> None:
    """I28, I29: a cut at each call of a rollback, several fates each."""
    calls = CASES[name](SimDisk(), History(), cut_at=None)
    assert calls >= 8
    for cut_at in range(1, calls + 2):
        for fate in range(effort(1, 4, 4)):
            with replayable(f"run_case({name!r}, cut_at={cut_at}, fate={fate})"):
                run_case(name, cut_at, fate)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_rollback_is_complete_or_never_began_whatever_the_fate(name: str) -> None:
    calls = CASES[name](SimDisk(), History(), cut_at=None)
    for cut_at in range(1, calls + 2):
        for fate in range(4, 60):
            with replayable(f"run_case({name!r}, cut_at={cut_at}, fate={fate})"):
                run_case(name, cut_at, fate)


# --- a life with many ---------------------------------------------------------------------------------------


def live(disk: SimDisk, history: History, seed: int, steps: int) -> None:
    """Append, commit, roll back, purge and open again, in a random order."""
    rng = random.Random(seed)
    segment_bytes = rng.choice((1_000, 1_600))
    log = open_again(disk, history, segment_bytes)
    for step in range(steps):
        kind = rng.randrange(10)
        if kind < 5:
            history.append(log, f"{seed}/{step}", rng.randbytes(rng.randrange(1, 250)))
        elif kind < 6:
            history.commit(log)
        elif kind < 8:
            history.rollback(log, rng.randrange(max(log.first_seqno, log.last_seqno - 8), log.last_seqno + 1))
        elif kind < 9:
            history.commit(log)
            history.purge(log, rng.randrange(log.last_seqno + 1))
        else:
            log.close()
            history.durable += history.rest
            history.rest = []
            log = open_again(disk, history, segment_bytes)
    log.close()


def run_life(seed: int, cut_at: int, fate: int, steps: int) -> None:
    disk, history = SimDisk(), History()
    disk.cut_at = cut_at
    with contextlib.suppress(PowerCut):
        live(disk, history, seed, steps)
    rng = random.Random(seed * 1_000_003 + cut_at * 101 + fate)
    check(end(disk, rng), history, rng, 1_000)


@pytest.mark.parametrize("seed", few_of(range(4)))
def test_a_cut_anywhere_in_a_life_with_rollbacks_loses_nothing(seed: int) -> None:
    disk = SimDisk()
    live(disk, History(), seed, 24)
    for cut_at in range(1 + seed % 3, disk.calls + 2, 3):
        with replayable(f"run_life(seed={seed}, cut_at={cut_at}, fate=0, steps=24)"):
            run_life(seed, cut_at, 0, 24)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_cut_at_every_call_of_a_life_with_rollbacks_loses_nothing(seed: int) -> None:
    disk = SimDisk()
    live(disk, History(), seed, 40)
    for cut_at in range(1, disk.calls + 2):
        for fate in range(3):
            with replayable(f"run_life(seed={seed}, cut_at={cut_at}, fate={fate}, steps=40)"):
                run_life(seed, cut_at, fate, 40)

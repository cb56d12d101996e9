"""The log under loss of power: cut at every call that changes the disk, keep a random part, open again, compare.

conventions.md, tier "crash": nothing acknowledged is lost; nothing unfinished is seen. A failing case prints the
line that replays it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tranlog.change import Fragment
from tranlog.errors import DiskFullError, LogMissingError
from tranlog.ids import NO_SEQNO, Epoch, Seqno
from tranlog.log.cursor import StoredTransaction
from tranlog.log.log import Log, LogOptions, LogReader, hold
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

PATH = "/log"


@dataclass(slots=True)
class Ledger:
    """What the program was told, and what it handed over: the other side of the promise."""

    appended: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """Event id and joined payloads by seqno, noted before the last fragment is appended; no-ops are not in it."""
    synced: int = NO_SEQNO
    """The highest seqno whose commit with sync returned."""
    epochs: list[int] = field(default_factory=list)
    """Epochs that an open returned."""
    purged_below: int = 0


def options(seed: int) -> LogOptions:
    rng = random.Random(seed)
    return LogOptions(
        segment_bytes=rng.choice((1_000, 1_800, 4_000)),
        buffer_bytes=rng.choice((1, 600, 100_000)),
        checksum=True,
        spill_above=1_000_000,
    )


def open_log(disk: SimDisk, ledger: Ledger, seed: int, clock: ManualClock) -> Log:
    log = Log.open(PATH, source_id="db", options=options(seed), disk=disk, clock=clock)
    ledger.epochs.append(log.epoch)
    with log.cursor() as cursor:  # what was not acknowledged may be lost, and a no-op stand in its place
        cursor.seek(Seqno(max(ledger.synced + 1, log.first_seqno)))
        while (transaction := cursor.next()) is not None:
            compare(transaction, ledger)
            if transaction.is_noop():
                ledger.appended.pop(transaction.header.seqno, None)
    assert log.last_seqno > ledger.synced, "lost what was acknowledged"
    ledger.synced = log.last_seqno
    return log


def work(disk: SimDisk, ledger: Ledger, seed: int, steps: int) -> None:
    """One program's life: small and fragmented transactions, commits, rotation, reopening, purging."""
    rng = random.Random(seed)
    clock = ManualClock()
    log = open_log(disk, ledger, seed, clock)
    made = 0
    for _ in range(steps):
        clock.advance(rng.random() * 100)
        step = rng.randrange(20)
        if step < 12:
            made += 1
            append(log, ledger, f"{seed}/{made}", 1 if step < 9 else rng.randrange(2, 6), rng)
        elif step == 12:
            with contextlib.suppress(DiskFullError):
                log.append(fragment(f"{seed}/given-up", rng.randbytes(700), last=False))
                log.abandon_open()
        elif step < 16:
            covered = log.commit(sync=True)
            ledger.synced = max(ledger.synced, covered)
        elif step < 18:
            log.commit(sync=False)
        elif step == 18:
            below = rng.randrange(log.visible_seqno + 1)
            hold(PATH, "pipe", Seqno(below), disk=disk, clock=clock)
            ledger.purged_below = max(ledger.purged_below, below)
            log.purge(below=Seqno(below))
        else:
            log.close()
            ledger.synced = max(ledger.synced, log.visible_seqno)
            log = open_log(disk, ledger, seed, clock)
    log.close()
    ledger.synced = max(ledger.synced, log.visible_seqno)


def append(log: Log, ledger: Ledger, event_id: str, fragments: int, rng: random.Random) -> None:
    parts = [rng.randbytes(rng.randrange(10, 900)) for _ in range(fragments)]
    for part in parts[:-1]:
        log.append(fragment(event_id, part, last=False))
    ledger.appended[log.last_seqno + 1] = (event_id, b"".join(parts))
    log.append(fragment(event_id, parts[-1]))


def fragment(event_id: str, payload: bytes, *, last: bool = True) -> Fragment:
    return Fragment(
        source_id="db",
        event_id=event_id,
        shard_id="a" if last else "#UNKNOWN",
        tstamp=1,
        tables=(("s", "t"),),
        payload=payload,
        last=last,
    )


def check(disk: SimDisk, ledger: Ledger, log: Log) -> None:
    """Everything that was promised holds for the log as it is open now."""
    held = log.first_seqno
    assert held <= max(ledger.purged_below, 0), "purged more than was asked for"
    assert log.visible_seqno == log.durable_seqno == log.last_seqno
    assert log.visible_seqno == ledger.synced
    expected = held
    epoch = Epoch(0)
    with log.cursor() as cursor:
        while (transaction := cursor.next()) is not None:
            header = transaction.header
            assert header.seqno == expected, "a hole in the row of seqnos"
            assert header.epoch >= epoch
            epoch = header.epoch
            compare(transaction, ledger)
            expected = Seqno(expected + 1)
    assert expected == log.last_seqno + 1


def compare(transaction: StoredTransaction, ledger: Ledger) -> None:
    """A transaction is what was handed over under its seqno, or the no-op of an open that was cut off."""
    seqno = transaction.header.seqno
    if transaction.is_noop():
        assert seqno not in ledger.appended or seqno > ledger.synced, "a no-op where an acknowledged transaction was"
    else:
        assert (transaction.header.event_id, b"".join(transaction.payloads())) == ledger.appended[seqno]


def look(disk: SimDisk, ledger: Ledger) -> None:
    """A reader before any writer sees no more than is whole, and takes no more for committed than was synced."""
    before = snapshot(disk)
    try:
        reader = LogReader.open(PATH, disk=disk, clock=ManualClock())
    except LogMissingError:
        assert ledger.synced == NO_SEQNO
        return
    with reader:
        found = reader.range()
        assert found.committed_seqno <= found.durable_seqno <= found.last_seqno
        assert found.last_seqno >= ledger.synced
        with reader.cursor() as cursor:
            for seqno in range(max(found.first_seqno, 0), found.last_seqno + 1):
                transaction = cursor.next()
                assert transaction is not None
                assert transaction.header.seqno == seqno
                compare(transaction, ledger)
            assert cursor.next() is None
    assert snapshot(disk) == before, "opening for reading changed a byte"


def snapshot(disk: SimDisk) -> dict[str, bytes]:
    if not disk.exists(PATH):
        return {}
    return {name: disk.content(f"{PATH}/{name}") for name in disk.list_dir(PATH) if "." in name or name == "positions"}


@contextlib.contextmanager
def replayable(seed: int, cut: int, fate: int, steps: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        print(f"replay: run_once(seed={seed}, cut={cut}, fate={fate}, steps={steps})")
        raise


def calls_of(seed: int, steps: int) -> int:
    disk = SimDisk()
    work(disk, Ledger(), seed, steps)
    return disk.calls


def run_once(seed: int, cut: int, fate: int, steps: int) -> None:
    """Cut the workload at call `cut`, then the reopening after it, by a kill or a loss of power; then it must hold."""
    disk = SimDisk()
    ledger = Ledger()
    disk.cut_at = cut
    with contextlib.suppress(PowerCut):
        work(disk, ledger, seed, steps)
    rng = random.Random(seed * 1_000_003 + cut * 101 + fate)
    disk = end(disk, rng)
    for _ in range(rng.randrange(3)):
        look(disk, ledger)
        disk.cut_at = disk.calls + rng.randrange(1, 20)
        with contextlib.suppress(PowerCut):
            append(open_log(disk, ledger, seed, ManualClock()), ledger, "between", 2, rng)
        disk = end(disk, rng)
    look(disk, ledger)
    log = open_log(disk, ledger, seed, ManualClock())
    assert log.epoch == max(ledger.epochs)
    assert ledger.epochs.count(log.epoch) == 1, "an epoch was given out twice"
    check(disk, ledger, log)
    append(log, ledger, "after", 3, rng)
    log.commit()
    log.close()
    log = open_log(disk, ledger, seed, ManualClock())
    assert log.recovered.clean
    check(disk, ledger, log)
    log.close()


def end(disk: SimDisk, rng: random.Random) -> SimDisk:
    """End the process, and mostly the machine with it."""
    if rng.random() < 0.3:
        disk.kill()
        return disk
    return disk.after_crash(rng)


STEPS = 40


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_at_a_sample_of_calls_loses_nothing(seed: int) -> None:
    """log-format.md, "Ends of a log"; conventions.md, tier crash, the short form."""
    total = calls_of(seed, STEPS)
    assert total > 100
    for cut in range(1 + seed, total + 2, 4):
        with replayable(seed, cut, 0, STEPS):
            run_once(seed, cut, 0, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_cut_at_every_call_loses_nothing(seed: int) -> None:
    """The same at every call, with several fates each."""
    total = calls_of(seed, STEPS)
    for cut in range(1, total + 2):
        for fate in range(3):
            with replayable(seed, cut, fate, STEPS):
                run_once(seed, cut, fate, STEPS)

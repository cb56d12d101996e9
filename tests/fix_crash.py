"""What the tests of crashes and failing disks share: a program's life on a log, and a ledger of what it was told.

The ledger is the other side of the promise: what was acknowledged, and what any reader was shown as committed,
must be in the log whatever happened since. Every promise is checked through the public interface alone.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tranlog.change import Fragment
from tranlog.errors import LogMissingError
from tranlog.ids import NO_SEQNO, Epoch, Seqno
from tranlog.log.files.positions import read_positions
from tranlog.log.reading.cursor import StoredTransaction
from tranlog.log.writing.log import Log, LogOptions, LogReader, hold
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

PATH = "/log"


@dataclass(slots=True)
class Ledger:
    """What the program was told, and what it handed over."""

    appended: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """Event id and joined payloads by seqno, noted before the last fragment is appended; no-ops are not in it."""
    synced: int = NO_SEQNO
    """The highest seqno whose commit with sync returned."""
    shown: int = NO_SEQNO
    """The highest seqno that a reader was told is committed."""
    proven: int = NO_SEQNO
    """The highest seqno that a scan took for committed, as the reader of a copy does."""
    epochs: list[int] = field(default_factory=list)
    """Epochs that an open returned."""
    may_go_below: int = 0
    """Nothing from here on was ever given up to purge."""

    def must_hold(self) -> int:
        """Return the highest seqno that may never be lost again."""
        return max(self.synced, self.shown, self.proven)


def options(seed: int) -> LogOptions:
    rng = random.Random(seed)
    return LogOptions(
        segment_bytes=rng.choice((1_000, 1_800, 4_000)),
        buffer_bytes=rng.choice((1, 600, 100_000)),
        retention_s=rng.choice((None, None, 200.0)),
        checksum=True,
        ahead_bytes=rng.choice((0, 3_000, 20_000)),
        index_flush_s=None,  # no thread, whose calls would come at another moment in each run; a life flushes itself
        spill_above=rng.choice((1_500, 1_000_000)),
        spill_buffer_bytes=rng.choice((1, 700)),
        spill_chunk_bytes=rng.choice((1, 600)),
        spill_segment_bytes=rng.choice((1_000, 4_000)),
        spill_compress=rng.choice((False, False, True)),
    )


def open_log(disk: SimDisk, ledger: Ledger, seed: int, clock: ManualClock | None = None) -> Log:
    """Open for writing, and hold what is there against the ledger."""
    clock = ManualClock() if clock is None else clock
    log = Log.open(PATH, source_id="db", options=options(seed), disk=disk, clock=clock)
    assert log.epoch not in ledger.epochs, "an epoch was given out twice"
    assert log.epoch > max(ledger.epochs, default=0)
    ledger.epochs.append(log.epoch)
    assert log.last_seqno > ledger.must_hold(), "lost what was acknowledged, or what a reader took for committed"
    note(log, ledger, log.last_seqno)
    ledger.synced = log.last_seqno
    return log


class Life:
    """One program's life: small and fragmented transactions, commits, rotation, reopening, holding and purging.

    A reader in another process looks on after every step.
    """

    def __init__(self, disk: SimDisk, ledger: Ledger, seed: int) -> None:
        self.disk = disk
        self.ledger = ledger
        self.seed = seed
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.made = 0
        self.held = 1 << 60
        self.log: Log
        self.reader: LogReader | None = None

    def live(self, steps: int) -> None:
        self.open()
        for _ in range(steps):
            self.step(self.rng.randrange(22))
            check_ladder(self.log)
            assert self.log.first_seqno <= self.held, "purged what a hold needs"
            self.watch()
        self.close()
        if self.reader is not None:
            self.reader.close()

    def step(self, step: int) -> None:
        self.clock.advance(self.rng.random() * 100)
        if step < 12:
            self.append(1 if step < 9 else self.rng.randrange(2, 6))
        elif step == 12:
            self.give_up()
        elif step < 16:
            self.commit()
        elif step < 18:
            self.log.commit(sync=False)
        elif step == 18:
            self.purge()
        elif step == 19:
            self.log.append(fragment(f"{self.seed}/open at the end", self.rng.randbytes(700), last=False))
            self.log.abandon_open()
            self.commit()
        elif step == 20:
            self.log.flush_index()
        else:
            self.close()
            self.open()

    def open(self) -> None:
        self.log = open_log(self.disk, self.ledger, self.seed, self.clock)

    def append(self, fragments: int) -> None:
        self.made += 1
        append(self.log, self.ledger, f"{self.seed}/{self.made}", fragments, self.rng)

    def give_up(self) -> None:
        self.log.append(fragment(f"{self.seed}/given-up", self.rng.randbytes(700), last=False))
        self.log.abandon_open()

    def commit(self) -> None:
        covered = self.log.commit(sync=True)
        self.ledger.synced = max(self.ledger.synced, covered)

    def purge(self) -> None:
        below = self.rng.randrange(self.log.visible_seqno + 1)
        self.ledger.may_go_below = max(self.ledger.may_go_below, below)
        wanted = max(below, self.log.first_seqno)  # what is gone already it comes too late for
        self.held = max(self.held, wanted)  # a hold whose writing fails may be there all the same
        hold(PATH, "pipe", Seqno(below), disk=self.disk, clock=self.clock)
        self.held = wanted
        self.log.purge(below=Seqno(below))

    def close(self) -> None:
        self.log.close()
        self.ledger.synced = max(self.ledger.synced, self.log.visible_seqno)

    def watch(self) -> None:
        """What another process sees is on the ladder, and is remembered as shown."""
        if self.reader is None:
            self.reader = LogReader.open(PATH, disk=self.disk, clock=self.clock)
        found = self.reader.range()
        assert found.committed_seqno <= found.durable_seqno <= found.last_seqno <= self.log.visible_seqno
        assert found.committed_seqno <= self.log.durable_seqno
        self.ledger.shown = max(self.ledger.shown, found.committed_seqno)


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


def check_ladder(log: Log) -> None:
    """ARCHITECTURE.md, "The ladder of positions", as far as one log knows it."""
    status = log.status()
    assert status.first_seqno <= status.visible_seqno <= status.last_seqno
    assert status.committed_seqno <= status.visible_seqno
    assert status.committed_seqno == status.durable_seqno <= status.last_seqno


def check(ledger: Ledger, log: Log) -> None:
    """Everything that was promised holds for the log as it is open now."""
    check_ladder(log)
    if log._options.retention_s is None:
        assert log.first_seqno <= ledger.may_go_below, "purged more than was asked for"
    assert log.visible_seqno == log.durable_seqno == log.last_seqno
    assert log.visible_seqno == ledger.must_hold()
    expected = log.first_seqno
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
        kept = seqno in ledger.appended and seqno <= ledger.must_hold()
        assert not kept, "a no-op where an acknowledged transaction was"
    else:
        assert (transaction.header.event_id, b"".join(transaction.payloads())) == ledger.appended[seqno]


def note(log: Log | LogReader, ledger: Ledger, last: Seqno) -> None:
    """Compare what came to be there for certain; a no-op among it stands where an unacknowledged one was lost."""
    if last <= ledger.must_hold():
        return
    with log.cursor() as cursor:
        cursor.seek(Seqno(max(ledger.must_hold() + 1, log.first_seqno if isinstance(log, Log) else 0)))
        while (transaction := cursor.next()) is not None and transaction.header.seqno <= last:
            compare(transaction, ledger)
            if transaction.is_noop():
                ledger.appended.pop(transaction.header.seqno, None)


def look(disk: SimDisk, ledger: Ledger) -> None:
    """A reader before any writer sees no more than is whole, and takes no more for committed than was synced."""
    before = snapshot(disk)
    try:
        reader = LogReader.open(PATH, disk=disk, clock=ManualClock())
    except LogMissingError:
        assert ledger.must_hold() == NO_SEQNO
        return
    with reader:
        found = reader.range()
        assert found.committed_seqno <= found.durable_seqno <= found.last_seqno
        # Until a writer has opened the log, a positions file of this boot may say less than a scan would find.
        assert found.last_seqno >= (ledger.must_hold() if found.scanned else max(ledger.synced, ledger.shown))
        note(reader, ledger, found.committed_seqno)
        if found.scanned:
            ledger.proven = max(ledger.proven, found.committed_seqno)
        else:
            ledger.shown = max(ledger.shown, found.committed_seqno)
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


def observe(disk: SimDisk, ledger: Ledger) -> None:
    """Note what readers were shown as committed at this very moment, by the positions file and by scanning a copy.

    The writer's process is dead then; the machine is not, yet.
    """
    disk.kill()
    disk.fail_at = {}
    if not disk.exists(PATH):
        return
    published = read_positions(PATH, disk)
    if published is not None and published.boot_id == disk.boot_id():
        with LogReader.open(PATH, disk=disk, clock=ManualClock()) as reader:
            note(reader, ledger, published.committed_seqno)
        ledger.shown = max(ledger.shown, published.committed_seqno)
    copy = f"/copy{disk.calls}"
    if not disk.exists(copy):
        disk.copy_files(PATH, copy)
    with contextlib.suppress(LogMissingError), LogReader.open(copy, disk=disk, clock=ManualClock()) as reader:
        found = reader.range()
        note(reader, ledger, found.committed_seqno)
        ledger.proven = max(ledger.proven, found.committed_seqno)


def end(disk: SimDisk, ledger: Ledger, rng: random.Random) -> SimDisk:
    """End the process, and mostly the machine with it."""
    observe(disk, ledger)
    return disk if rng.random() < 0.3 else disk.after_crash(rng)


def finish(disk: SimDisk, ledger: Ledger, seed: int, rng: random.Random) -> None:
    """Open what is left, hold it against the ledger, write on, close, open again."""
    look(disk, ledger)
    log = open_log(disk, ledger, seed)
    check(ledger, log)
    append(log, ledger, "after", 3, rng)
    ledger.synced = log.commit()
    log.close()
    log = open_log(disk, ledger, seed)
    assert log.recovered.clean
    check(ledger, log)
    log.close()


@contextlib.contextmanager
def replayable(call: str) -> Iterator[None]:
    """Print the line that repeats what failed."""
    try:
        yield
    except BaseException:
        print(f"replay: {call}")
        raise

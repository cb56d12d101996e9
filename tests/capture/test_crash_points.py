"""The capture loop over fakes of source, outbox and disk: stopped or failed at every call of each.

Afterwards the log is exactly the committed transactions, in order, none twice, none missing; for a
source with an outbox that is freed, and for one that goes on from the position which the log holds; and the notes that
a source has beside the log are never ahead of it. Item 5: the same when a call fails instead. A failing case prints the
line that replays it.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Iterator

import pytest

from fix_crash import replayable
from fix_effort import Effort
from tranlog.capture.capture import Capture, CaptureOptions
from tranlog.change import Fragment
from tranlog.errors import DiskFailedError, DiskFullError, LogError, PositionLostError, SourceUnavailableError
from tranlog.ids import NO_SEQNO
from tranlog.log.files.source_notes import read_source_notes
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.source.source import Source
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

PATH = "/log"
POINTS = "/points"
OPTIONS = CaptureOptions(batch_bytes=700)
ROUNDS = 4


class Database:
    """What the source's server holds: committed transactions, durable at once, and what of them is freed.

    Freeing survives the end of a process; it survives a loss of power from the next commit on (`synchronous=NORMAL`
    for capture's own writes, FULL for the writers').
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.committed: list[list[Fragment]] = []
        self.freed = 0
        self.freed_for_certain = 0

    def commit_some(self) -> None:
        for _ in range(self.rng.randrange(5)):
            event_id = f"gtid:{len(self.committed) + 1}"
            count = self.rng.choice((1, 1, 1, 2, 5))
            self.committed.append([make_fragment(event_id, n, last=n == count - 1) for n in range(count)])
        self.freed_for_certain = self.freed

    def lose_power(self) -> None:
        if self.rng.random() < 0.5:
            self.freed = self.freed_for_certain


def make_fragment(event_id: str, number: int, *, last: bool) -> Fragment:
    payload = f"{event_id}/{number};".encode() * (7 + number * 11)
    return Fragment(
        source_id="db",
        event_id=event_id,
        shard_id="s" if last else "#UNKNOWN",
        tstamp=1,
        tables=(),
        payload=payload,
        last=last,
    )


class Numbered:
    """The half of a fake source that is common to both: every call is one of the numbered calls of the disk."""

    source_id = "db"

    def __init__(self, database: Database, disk: SimDisk) -> None:
        self.database = database
        self.next = 0
        self._disk = disk

    def point(self) -> None:
        """A call of the source: here the power may go, or the line to the server."""
        try:
            self._disk.open(POINTS, write=True, create=True).pwrite(b".", 0)
        except OSError as exc:
            raise SourceUnavailableError(where="the server", why=str(exc)) from exc

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        self.point()
        while self.next < len(self.database.committed):
            transaction = self.database.committed[self.next]
            for fragment in transaction:
                self.point()
                yield fragment
            self.next += 1

    def start(self, event_id: str | None) -> None:
        raise NotImplementedError

    def release(self, event_id: str) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


class OutboxSource(Numbered):
    """As SQLite: what is freed is gone, and a position below that is lost."""

    def start(self, event_id: str | None) -> None:
        self.point()
        at = 0 if event_id is None else int(event_id.partition(":")[2])
        if event_id is None:
            at = self.database.freed
        if at < self.database.freed:
            raise PositionLostError(event_id=str(event_id), why="freed already")
        assert at <= len(self.database.committed)
        self.next = at

    def release(self, event_id: str) -> None:
        self.point()
        self.database.freed = max(self.database.freed, int(event_id.partition(":")[2]))
        self.point()


class BinlogSource(Numbered):
    """As MariaDB: everything stays, the position comes from the log alone."""

    def start(self, event_id: str | None) -> None:
        self.point()
        self.next = 0 if event_id is None else int(event_id.partition(":")[2])

    def release(self, event_id: str) -> None:
        self.point()


class SlotSource(BinlogSource):
    """As PostgreSQL: beside the log stands what it knew of its tables; here the number of the last transaction."""

    taken = noted = released = 0

    def take_notes(self, notes: bytes) -> None:
        self.taken = self.noted = int(notes)

    def start(self, event_id: str | None) -> None:
        super().start(event_id)
        assert self.taken <= self.next, "the notes are ahead of the log"

    def release(self, event_id: str) -> None:
        super().release(event_id)
        self.released = int(event_id.partition(":")[2])

    def notes(self) -> bytes | None:
        before, self.noted = self.noted, self.released
        return b"%d" % self.released if before != self.released else None


SOURCES: dict[str, type[Numbered]] = {"outbox": OutboxSource, "binlog": BinlogSource, "slot": SlotSource}


def live(kind: str, database: Database, disk: SimDisk, met: list[type[Exception]]) -> None:
    """One process: opens the log, captures while writers commit, closes. It ends at the first error of the disk."""
    source: Source = SOURCES[kind](database, disk)
    rng = database.rng
    buffer_bytes = rng.choice((1, 500, 100_000))
    # What fills and stores the index has threads of its own, which are not what is cut here.
    options = LogOptions(segment_bytes=1500, buffer_bytes=buffer_bytes, index_flush_s=None)
    try:
        with Log.open(PATH, source_id="db", options=options, disk=disk, clock=ManualClock()) as log:
            capture = Capture(source, log, options=OPTIONS, clock=ManualClock())
            for _ in range(ROUNDS):
                database.commit_some()
                for _ in range(2):
                    try:
                        status = capture.catch_up()
                    except SourceUnavailableError as error:  # the line is there again at once
                        met.append(type(error))
                        continue
                    assert status.last_seqno == NO_SEQNO or status.last_seqno <= log.durable_seqno
                    break
    except LogError as error:
        met.append(type(error))
        check_told(error)
    finally:
        source.close()


def check_told(error: LogError) -> None:
    assert isinstance(error, DiskFailedError | DiskFullError)
    assert PATH in str(error), "the error names the file"


def history(kind: str, call: int, seed: int, *, number: int = 0) -> tuple[bool, list[type[Exception]]]:
    """Stop, or fail with `number`, at call `call` and at up to three later ones; whether it came, and the errors."""
    rng = random.Random(f"{kind}/{call}/{seed}/{number}")
    database = Database(random.Random(seed))
    disk = SimDisk()
    met: list[type[Exception]] = []
    at, went = call, False
    for _ in range(1 + rng.randrange(4)):
        if number:
            disk.chance = rng
            lasting = rng.random() < 0.3
            disk.fail_at = dict.fromkeys(range(at, at + (100_000 if lasting else 1)), number)
        else:
            disk.cut_at = at
        with contextlib.suppress(PowerCut):
            live(kind, database, disk, met)
        went |= disk.calls >= at
        disk.kill()
        disk.fail_at = {}
        if rng.random() < 0.6:
            disk = disk.after_crash(rng)
            database.lose_power()
        assert_nothing_but_committed(disk, database)
        at = disk.calls + rng.randrange(1, 60)
    disk.cut_at = None
    live(kind, database, disk, met)
    assert logged(disk) == database.committed, "the log is not what was committed"
    if kind == "outbox":
        assert database.freed == len(database.committed), "the outbox was not freed"
    if kind == "slot" and database.committed:
        assert read_source_notes(PATH, disk) == b"%d" % len(database.committed), "the notes are behind the log"
    return went, met


def logged(disk: SimDisk) -> list[list[Fragment]]:
    """Return the log's transactions without the no-ops, as the fragments that they were."""
    found = []
    with LogReader.open(PATH, disk=disk, clock=ManualClock()) as reader, reader.cursor() as cursor:
        for transaction in iter(cursor.next, None):
            payloads = list(transaction.payloads())
            if not payloads[0].startswith(b"gtid:"):
                continue  # the no-op of an opening
            event_id, last = transaction.header.event_id, len(payloads) - 1
            found.append([make_fragment(event_id, n, last=n == last) for n in range(len(payloads))])
            assert [fragment.payload for fragment in found[-1]] == payloads
    return found


def assert_nothing_but_committed(disk: SimDisk, database: Database) -> None:
    """Between two lives, what a reader sees is how the history began, up to some place; what is freed is in it."""
    with contextlib.suppress(LogError):
        found = logged(disk)
        assert found == database.committed[: len(found)]
        assert len(found) >= database.freed, "freed what the log does not have"


def every_call(kind: str, seed: int, *, number: int = 0, step: int = 1, first: int = 1) -> list[type[Exception]]:
    """Run the history for each call that a life has; return the errors that were met."""
    met: list[type[Exception]] = []
    call = first
    while True:
        with replayable(f"history({kind!r}, {call}, {seed}, number={number})"):
            went, errors = history(kind, call, seed, number=number)
        met += errors
        if not went:
            assert call > 40, "a life has so many calls at least"
            return met
        call += step


@pytest.mark.long
@pytest.mark.parametrize("kind", SOURCES)
def test_stopped_at_any_call_the_log_is_what_was_committed(kind: str, effort: Effort) -> None:
    """Every second call on a push, fewer in `make unit`, each of them in the slow form."""
    assert every_call(kind, 1, step=effort(8, 2, 2)) == []


@pytest.mark.long
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", SOURCES)
def test_whatever_call_fails_the_log_is_what_was_committed(kind: str, number: int, effort: Effort) -> None:
    met = every_call(kind, 3, number=number, step=effort(24, 8, 8), first=1 + number % 8)
    assert SourceUnavailableError in met and DiskFailedError in met
    assert (DiskFullError in met) == (number == errno.ENOSPC)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", [0, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("kind", SOURCES)
def test_many_histories(kind: str, number: int) -> None:
    for seed in range(100, 200):
        every_call(kind, seed, number=number)

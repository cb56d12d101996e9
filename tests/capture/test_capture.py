"""The capture loop with a real log: order, groups, stops, and what stays when a side fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from fix_sqlite import Replica, content
from tranlog.capture.capture import Capture, CaptureOptions
from tranlog.change import Fragment, RowChange
from tranlog.clock import SystemClock
from tranlog.errors import ConfigError, DiskFullError, PositionLostError, SourceUnavailableError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.writing.log import Log, LogReader
from tranlog.payload import decode
from tranlog.source.source import Source
from tranlog.source.sqlite import SqliteConnection, SqliteSource, SqliteSourceOptions, connect
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


class Place:
    """A captured database and a log beside it."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "source.db")
        self.log_path = str(directory / "log")
        self.db: SqliteConnection = connect(self.path, fragment_bytes=2000)
        self.db.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, a)")

    def source(self) -> SqliteSource:
        return SqliteSource(SqliteSourceOptions(path=self.path, source_id="shop"))

    def catch_up(self) -> None:
        source = self.source()
        with Log.open(self.log_path, source_id="shop") as log:
            Capture(source, log).catch_up()
        source.close()

    def insert(self, *values: object) -> None:
        for value in values:
            self.db.execute("INSERT INTO t(a) VALUES(?)", (value,))

    def outbox(self) -> list[int]:
        return [number for (number,) in self.db.execute("SELECT id FROM _tranlog_outbox ORDER BY id")]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.db.close()


def logged(path: str) -> list[tuple[str, list[Any]]]:
    """Return each transaction's shard and the values of `a` that it inserted, without the no-ops."""
    with LogReader.open(path) as reader, reader.cursor() as cursor:
        found = []
        while (transaction := cursor.next()) is not None:
            if not transaction.is_noop():
                changes = [c for c in transaction.changes() if isinstance(c, RowChange) and c.after is not None]
                found.append((transaction.header.shard_id, [c.after[1] for c in changes if c.after is not None]))
        return found


def test_what_was_committed_is_in_the_log_and_freed(place: Place) -> None:
    place.insert("one", "two")
    with place.db:
        place.insert("three", "four")
    source = place.source()
    with Log.open(place.log_path, source_id="shop") as log:
        capture = Capture(source, log)
        assert capture.status().last_seqno == NO_SEQNO and capture.status().lag_ms is None
        status = capture.catch_up()
        assert status == capture.status()
        assert (status.transactions, status.fragments, status.source_id) == (4, 4, "shop")
        assert status.last_seqno == log.durable_seqno == 4
        assert status.last_event_id == log.last_event_id()
        assert status.payload_bytes > 100 and status.lag_ms is not None and 0 <= status.lag_ms < 60_000
        assert place.outbox() == [1, 2, 3, 4]  # the writers' to free
    source.close()
    connect(place.path).execute("INSERT INTO t(a) VALUES('five')")
    assert place.outbox() == [4, 5]
    assert logged(place.log_path)[1:] == [("main.t", ["one"]), ("main.t", ["two"]), ("main.t", ["three", "four"])]


def test_a_restart_goes_on_without_a_gap_or_a_repeat(place: Place) -> None:
    for number in range(4):
        place.insert(number)
        place.catch_up()
        place.catch_up()
    assert logged(place.log_path)[1:] == [("main.t", [number]) for number in range(4)]


def test_a_large_transaction_keeps_its_fragments(place: Place) -> None:
    with place.db:
        place.insert(*["x" * 500] * 100)
    place.catch_up()
    with LogReader.open(place.log_path) as reader, reader.cursor() as cursor:
        transactions = [t for t in iter(cursor.next, None) if not t.is_noop()]
        assert transactions[-1].fragments > 10
        assert transactions[-1].header.shard_id == "main.t"
        assert sum(1 for _ in transactions[-1].changes()) == 100


def test_a_replica_follows_the_log(place: Place) -> None:
    place.db.executescript("CREATE TABLE k(x, y); INSERT INTO k VALUES(1, 1), (1, 1); ALTER TABLE k ADD COLUMN z REAL;")
    place.insert(1, 2)
    place.db.execute("UPDATE k SET z = 2 WHERE rowid = 1")
    place.db.execute("DELETE FROM t WHERE id = 1")
    place.catch_up()
    replica = Replica()
    with LogReader.open(place.log_path) as reader, reader.cursor() as cursor:
        for transaction in iter(cursor.next, None):
            replica.apply(transaction.changes())
    source = apsw.Connection(place.path)
    assert content(replica.db) == content(source)
    source.close()


def test_run_captures_until_it_is_stopped(place: Place) -> None:
    source = place.source()
    with Log.open(place.log_path, source_id="shop") as log:
        capture = Capture(source, log, options=CaptureOptions(poll_s=30))
        thread = threading.Thread(target=capture.run)
        thread.start()
        cursor = log.cursor()
        cursor.seek(Seqno(2))
        place.insert("while it runs")
        transaction = cursor.next(30)
        assert transaction is not None
        assert [c.after for c in transaction.changes() if isinstance(c, RowChange)] == [(1, "while it runs")]
        capture.stop()
        thread.join(20)
        assert not thread.is_alive()
        assert capture.status().transactions == 2
        assert capture.run().transactions == 2  # it stays stopped
    source.close()


def test_run_looks_at_the_event_it_was_given(place: Place) -> None:
    stop = threading.Event()
    stop.set()
    place.insert(1)
    source = place.source()
    with Log.open(place.log_path, source_id="shop") as log:
        assert Capture(source, log).run(stop).transactions == 0
    source.close()


# --- a source that does as it is told --------------------------------------------------------------------


class Scripted:
    """A source over a list of fragments, an exception among them to be raised; checks what `release` promises."""

    source_id = "scripted"

    def __init__(self, script: list[Fragment | Exception]) -> None:
        self.script = script
        self.at = 0
        self.released: list[str] = []
        self.log: Log | None = None
        self.on_fragment: dict[int, object] = {}
        self.stopped = False

    def start(self, event_id: str | None) -> None:
        ids = [item.event_id for item in self.script if isinstance(item, Fragment)]
        self.at = 0 if event_id is None else len(ids) - ids[::-1].index(event_id)

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        while self.at < len(self.script):
            item = self.script[self.at]
            self.at += 1
            if isinstance(item, Exception):
                raise item
            if callable(action := self.on_fragment.get(self.at)):
                action()
            yield item

    def release(self, event_id: str) -> None:
        assert self.log is not None
        last = self.log.last()
        assert last is not None and last.event_id == event_id
        assert self.log.durable_seqno == last.seqno, "freed before it was durable"
        self.released.append(event_id)

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        pass


def fragment(event_id: str, *, last: bool = True, size: int = 10) -> Fragment:
    return Fragment(
        source_id="scripted", event_id=event_id, shard_id="s", tstamp=1, tables=(), payload=b"\x12" * size, last=last
    )


def open_log(tmp_path: Path, source: Source, **options: object) -> Log:
    log = Log.open(str(tmp_path / "log"), source_id="scripted", **options)  # type: ignore[arg-type]
    if isinstance(source, Scripted):
        source.log = log
    return log


def test_transactions_that_wait_share_a_sync(tmp_path: Path) -> None:
    source = Scripted([fragment(str(number)) for number in range(100)])
    with open_log(tmp_path, source) as log:
        status = Capture(source, log, clock=ManualClock()).catch_up()
        assert (status.transactions, status.syncs, source.released) == (100, 1, ["99"])


def test_a_batch_ends_by_its_bytes(tmp_path: Path) -> None:
    source = Scripted([fragment(str(number), size=100) for number in range(10)])
    with open_log(tmp_path, source) as log:
        status = Capture(source, log, options=CaptureOptions(batch_bytes=250), clock=ManualClock()).catch_up()
        assert (status.syncs, source.released) == (4, ["2", "5", "8", "9"])


def test_a_batch_ends_by_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    source = Scripted([fragment(str(number)) for number in range(10)])
    source.on_fragment = {number: lambda: clock.advance(0.02) for number in range(11)}
    with open_log(tmp_path, source) as log:
        status = Capture(source, log, options=CaptureOptions(batch_s=0.05), clock=clock).catch_up()
        assert source.released == ["2", "5", "8", "9"]
        assert status.lag_ms == clock.now_ms() - 1


def test_stopping_inside_a_large_transaction_leaves_it_to_the_next_time(tmp_path: Path) -> None:
    source = Scripted([fragment("1"), *[fragment("2", last=False)] * 5, fragment("2"), fragment("3")])
    with open_log(tmp_path, source) as log:
        capture = Capture(source, log)
        source.on_fragment = {4: capture.stop}
        assert capture.run().transactions == 1
        assert source.released == ["1"] and source.stopped
        again = Capture(source, log)
        source.on_fragment = {}
        assert again.catch_up().transactions == 2
    assert read_ids(tmp_path) == [("1", 1), ("2", 6), ("3", 1)]


def read_ids(tmp_path: Path) -> list[tuple[str, int]]:
    """Return event id and number of fragments of each transaction that is no no-op."""
    with LogReader.open(str(tmp_path / "log")) as reader, reader.cursor() as cursor:
        found = []
        for transaction in iter(cursor.next, None):
            payloads = list(transaction.payloads())
            if payloads[0].startswith(b"\x12\x12"):
                found.append((transaction.header.event_id, len(payloads)))
        return found


def test_a_source_that_fails_inside_a_transaction(tmp_path: Path) -> None:
    """Its fragments are cut, what came whole before it is durable, and the next start has no gap."""
    gone = SourceUnavailableError(where="somewhere", why="the line was cut")
    source = Scripted([fragment("1"), fragment("2", last=False), gone, fragment("2", last=False), fragment("2")])
    with open_log(tmp_path, source) as log:
        capture = Capture(source, log)
        with pytest.raises(SourceUnavailableError):
            capture.catch_up()
        assert (log.durable_seqno, log.last_event_id()) == (1, "1")
        source.script = [item for item in source.script if not isinstance(item, Exception)]
        source.script.pop(1)
        assert capture.catch_up().transactions == 1
    assert read_ids(tmp_path) == [("1", 1), ("2", 2)]


def test_a_full_disk_refuses_and_nothing_is_lost(tmp_path: Path) -> None:
    disk = SimDisk()
    source = Scripted([fragment(str(number), size=1000) for number in range(40)])
    log = Log.open("/log", source_id="scripted", disk=disk)
    source.log = log
    capture = Capture(source, log, options=CaptureOptions(batch_bytes=3000))
    disk.room = 10_000
    with pytest.raises(DiskFullError):
        capture.catch_up()
    before = capture.status().transactions
    assert 0 < before < 40 and source.released[-1] == log.last_event_id() == str(before - 1)
    with pytest.raises(DiskFullError):
        capture.catch_up()
    disk.room = None
    assert capture.catch_up().transactions == 40
    log.close()
    with LogReader.open("/log", disk=disk) as reader, reader.cursor() as cursor:
        ids = [transaction.header.event_id for transaction in iter(cursor.next, None)]
    assert ids[1:] == [str(number) for number in range(40)]


def test_a_source_behind_the_log_is_refused(place: Place) -> None:
    place.insert(1)
    place.catch_up()
    with place.db:  # as an older copy of the database has it
        place.db.execute("DELETE FROM _tranlog_outbox WHERE id = (SELECT max(id) FROM _tranlog_outbox)")
    source = place.source()
    with Log.open(place.log_path, source_id="shop") as log:
        with pytest.raises(PositionLostError, match="older copy"):
            Capture(source, log).run()
        assert log.last_seqno == 3  # two transactions, and a no-op for each opening
    source.close()


def test_another_database_is_refused(place: Place, tmp_path: Path) -> None:
    place.insert(1)
    place.catch_up()
    other = connect(tmp_path / "other.db")
    source = SqliteSource(SqliteSourceOptions(path=str(tmp_path / "other.db"), source_id="shop"))
    with Log.open(place.log_path, source_id="shop") as log, pytest.raises(PositionLostError, match="another database"):
        Capture(source, log).run()
    source.close()
    other.close()


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (CaptureOptions(batch_bytes=0), "batch_bytes"),
        (CaptureOptions(batch_s=-1), "batch_s"),
        (CaptureOptions(poll_s=0), "poll_s"),
    ],
)
def test_impossible_options_are_refused(options: CaptureOptions, option: str, tmp_path: Path) -> None:
    source = Scripted([])
    with open_log(tmp_path, source) as log, pytest.raises(ConfigError) as caught:
        Capture(source, log, options=options)
    assert caught.value.option == option


class Sending(Scripted):
    """A server: it has three transactions, of which the first comes late, and gets another with each read."""

    reads = 0

    def end(self) -> str:
        return "3"

    def has_given(self, end: str) -> bool:
        return self.at >= int(end)

    def read(self, timeout_s: float) -> Iterator[Fragment]:
        self.reads += 1
        if self.reads > 5:
            self.script.append(fragment(str(len(self.script) + 1)))
            yield from super().read(timeout_s)


def test_what_a_server_has_by_now_is_awaited_and_no_more(tmp_path: Path) -> None:
    source = Sending([])
    with open_log(tmp_path, source) as log:
        assert Capture(source, log, clock=ManualClock()).catch_up().transactions == 3


def test_the_real_clock_serves(tmp_path: Path) -> None:
    source = Scripted([fragment("1")])
    with open_log(tmp_path, source) as log:
        status = Capture(source, log, clock=SystemClock()).catch_up()
        assert status.lag_ms is not None and status.lag_ms > 10**12
    assert decode(b"").changes == ()


def test_a_heartbeat_is_answered_with_its_seqno_when_it_is_durable(place: Place) -> None:
    """Who goes on with it, online up to it or a wait for its seqno, may rely on it."""
    with closing(place.source()) as source, Log.open(place.log_path, source_id="shop") as log:
        capture = Capture(source, log, options=CaptureOptions(poll_s=0.01))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(capture.run)
            seqnos = [capture.heartbeat(name).result() for name in ("a", "b", "b")]
            place.insert("x")
            seqnos += [one.result() for one in [capture.heartbeat(name) for name in "cde"]]
            assert log.durable_seqno >= seqnos[-1]
            capture.stop()
            running.result()
        with log.cursor() as cursor:
            beats = {
                one.header.seqno: dict(one.payload().metadata).get("heartbeat", "") for one in cursor.scan(wait=False)
            }
        assert [beats[seqno] for seqno in seqnos] == ["a", "b", "b", "c", "d", "e"] and len(set(seqnos)) == 6


def test_a_heartbeat_that_a_capture_leaves_is_cancelled(place: Place) -> None:
    with closing(place.source()) as source, Log.open(place.log_path, source_id="shop") as log:
        capture = Capture(source, log)
        beat = capture.heartbeat("late")
        assert not beat.done()
        capture.stop()
        capture.run()
        assert beat.cancelled()

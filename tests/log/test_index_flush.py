"""log/writing/index_flush.py: the index is stored beside the commits, and opening goes on from there."""

from __future__ import annotations

import logging
import random
import threading

import pytest

from fix_log import (
    PATH,
    await_index,
    contents,
    fill,
    flip,
    forget_positions,
    make_fragment,
    make_payload,
    open_log,
    record_starts,
    segment_path,
)
from tranlog.errors import CorruptRecordError
from tranlog.ids import Seqno
from tranlog.log.files.index_table import INDEX_NAME, decode_table
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.writing import opening
from tranlog.log.writing.log import Log, LogOptions
from tranlog.lsn import lsn_offset
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk, SimFile

TABLE = f"{PATH}/{INDEX_NAME}"


def stored_last(disk: SimDisk) -> int:
    """Return the last seqno that the stored index covers; -1 without one."""
    if not disk.exists(TABLE):
        return -1
    return SeqnoIndex.restore(decode_table(disk.content(TABLE)))[0].range.last


def commit(log: Log, number: int, size: int = 100) -> None:
    log.append(make_fragment(f"e{number}", make_payload(number, size)))
    log.commit()


# --- when ----------------------------------------------------------------------------------------------------------


def test_a_flush_comes_after_so_many_bytes() -> None:
    """By a background flush every so many MiB."""
    disk = SimDisk()
    with open_log(disk, index_flush_bytes=2_000, index_flush_s=None) as log:
        while not disk.exists(TABLE):
            assert log._pending.start < 3_000
            commit(log, log.last_seqno + 1)
            await_index()
        assert log._pending.start > 2_000 and stored_last(disk) == log.durable_seqno
        commit(log, 100)
        await_index()
        assert stored_last(disk) == log.durable_seqno - 1, "not with every commit"


def test_a_flush_comes_after_so_many_seconds() -> None:
    """... or seconds: with the first commit behind them."""
    disk, clock = SimDisk(), ManualClock()
    options = LogOptions(index_flush_s=5.0)
    with Log.open(PATH, source_id="s", options=options, disk=disk, clock=clock) as log:
        for number in range(12):
            clock.advance(1.0)
            commit(log, number)
            await_index()
            assert stored_last(disk) == {True: -1, False: 5 if number < 9 else 10}[number < 4]


def test_what_is_not_synced_is_not_stored() -> None:
    disk = SimDisk()
    with open_log(disk, index_flush_bytes=1, index_flush_s=None) as log:
        for number in range(20):
            log.append(make_fragment(f"e{number}"))
            log.commit(sync=False)
        await_index()
        assert stored_last(disk) <= log.durable_seqno


# --- beside the commits -----------------------------------------------------------------------------------------------


class SlowTable(SimDisk):
    """A disk on which writes of the stored index wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.through = threading.Event()
        self.begun = threading.Event()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> SimFile:
        file = super().open(path, write=write, create=create)
        if write and path.startswith(TABLE):
            write_now = file.pwrite

            def pwrite(raw: bytes | memoryview, offset: int) -> None:
                self.begun.set()
                assert self.through.wait(60)
                write_now(raw, offset)

            file.pwrite = pwrite  # type: ignore[method-assign]
        return file


def test_a_flush_that_hangs_holds_up_no_commit_and_no_reader() -> None:
    disk = SlowTable()
    log = open_log(disk, index_flush_bytes=1_000, index_flush_s=None)
    fill(log, 20)
    assert disk.begun.wait(60)
    for number in range(20, 60):
        commit(log, number)
    with log.cursor() as cursor:
        cursor.seek(Seqno(30))
        assert cursor.next() is not None
    assert log.durable_seqno == 60 and not disk.through.is_set()
    assert not disk.exists(TABLE), "and it still hangs"
    disk.through.set()
    log.close()
    assert stored_last(disk) == 60
    with open_log(disk) as log:
        assert len(contents(log)) == 60


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Flushes do not run when they are started, but when the test says so."""
    started: list[threading.Thread] = []

    class Held(threading.Thread):
        def start(self) -> None:
            started.append(self)

        def is_alive(self) -> bool:
            return False

        def join(self, timeout: float | None = None) -> None:
            """It never got its turn."""

    monkeypatch.setattr("tranlog.log.writing.index_flush.threading.Thread", Held)
    return started


def test_a_view_that_was_overtaken_is_dropped(held: list[threading.Thread]) -> None:
    """I22: older frames never come behind younger ones, nor behind a truncation."""
    disk = SimDisk()
    log = open_log(disk, index_flush_bytes=400, index_flush_s=None)
    matchpoint = log.append(make_fragment("stays"))
    for number in range(40):
        commit(log, number)
    assert len(held) > 5
    log.rollback(matchpoint)
    after = disk.content(TABLE)
    for one in held:
        one.run()
    assert disk.content(TABLE) == after
    log.close()
    with open_log(disk) as log:
        assert [event_id for _, event_id, _ in contents(log)] == ["stays"]
        assert log.seqno_index.range.last == log.visible_seqno


def test_views_are_stored_as_they_were_taken(held: list[threading.Thread]) -> None:
    """What is registered behind a view, and what readers teach the index, does not get into it."""
    disk = SimDisk()
    log = open_log(disk, index_flush_bytes=3_000, index_flush_s=None, segment_bytes=9_000)
    rng = random.Random(4)
    for number in range(200):
        commit(log, number, 300)
        with log.cursor() as cursor:
            cursor.seek(Seqno(rng.randrange(log.visible_seqno + 1)))
            assert cursor.next() is not None
        if held and rng.random() < 0.2:
            held.pop(0).run()
            held.clear()
            index, built_from = SeqnoIndex.restore(decode_table(disk.content(TABLE)))
            place = index.exact(index.range.last)
            assert place is not None and place < built_from.end <= log._pending.start | log._end.journal.number << 32
    log.close()


def test_a_failing_flush_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """A failure costs a rebuild later, never an answer; when it works again, the next one is told again."""
    disk = SimDisk()
    disk.make_dir(PATH)
    disk.make_dir(TABLE + ".new")
    told = lambda: [one for one in caplog.records if "could not be stored" in one.message]  # noqa: E731
    with caplog.at_level(logging.WARNING), open_log(disk, index_flush_bytes=300, index_flush_s=None) as log:
        for number in range(30):
            commit(log, number)
            await_index()
        assert len(told()) == 1 and log.status().closed_because is None
        disk.unlink(TABLE + ".new")
        for number in range(30, 60):
            commit(log, number)
            await_index()
        assert len(told()) == 1 and stored_last(disk) > 50


# --- opening goes on from there ------------------------------------------------------------------------------------


def big_log(disk: SimDisk, *, close: bool) -> Log:
    """A segment of several MiB, its index stored at some place near the end; the writer is killed unless `close`."""
    log = open_log(disk, segment_bytes=20_000_000, index_flush_s=None, index_flush_bytes=3_000_000)
    for number in range(70):
        commit(log, number, 60_000)
        await_index()
    if close:
        log.close()
    else:
        disk.kill()
    return log


class CountingDisk(SimDisk):
    """Counts the bytes that are read of segments."""

    read = 0

    def open(self, path: str, *, write: bool = False, create: bool = False) -> SimFile:
        file = super().open(path, write=write, create=create)
        if "thl.data" in path:
            read = file.pread

            def pread(size: int, offset: int) -> bytes:
                found = read(size, offset)
                self.read += len(found)
                return found

            file.pread = pread  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("close", [True, False])
def test_opening_walks_only_what_came_behind_the_last_flush(close: bool) -> None:
    disk = CountingDisk()
    big_log(disk, close=close)
    flushed = stored_last(disk)
    assert flushed == 70 if close else 40 < flushed < 60
    whole = len(disk.content(segment_path(1)))
    disk.read = 0
    with open_log(disk, segment_bytes=20_000_000) as log:
        # Bytes are read for the walk, and once more for what no sync record proves.
        assert disk.read < 3 * (whole * (71 - flushed) // 71) + 1_000_000
        assert log.seqno_index.range.last == log.visible_seqno == 71
        assert len(contents(log)) == 70
        starts = log.seqno_index
        for seqno in range(71):
            place = starts.lte(Seqno(seqno))
            assert place is not None and place.seqno <= seqno
        fill(log, 5)


@pytest.mark.parametrize("harm", ["cut", "flipped", "another", "unwritten"])
def test_an_end_that_is_not_there_any_more_is_not_believed(harm: str) -> None:
    """The stored index names a record; where that does not stand, the whole segment is walked, as without one."""
    disk = SimDisk()
    log = big_log(disk, close=False)
    raw = disk.content(segment_path(1))
    index, built_from = SeqnoIndex.restore(decode_table(disk.content(TABLE)))
    place = index.exact(index.range.last)
    assert place is not None and opening.checkpoint_of(index, built_from) is not None
    at = lsn_offset(place)
    forget_positions(disk)
    match harm:
        case "cut":
            disk.set_content(segment_path(1), raw[: at - 100])
        case "flipped":
            flip(disk, segment_path(1), at + 3_000)
        case "another":
            twin = SimDisk()
            big_log(twin, close=True)
            with open_log(twin, segment_bytes=20_000_000) as log:
                fill(log, 1)
            disk.set_content(TABLE, twin.content(TABLE))
        case _:
            disk.set_content(segment_path(1), raw[:at] + bytes(len(raw) - at))
    if harm == "flipped":  # below a sync record: damage, found although the walk began behind it
        with pytest.raises(CorruptRecordError):
            open_log(disk, segment_bytes=20_000_000)
        return
    with open_log(disk, segment_bytes=20_000_000) as log:
        flushed = index.range.last
        kept = {"another": 71, "cut": flushed - 1}.get(harm, flushed)
        assert log.visible_seqno == log.seqno_index.range.last == kept
        assert len(contents(log)) == kept - 1


def test_damage_below_the_walk_is_found_when_it_is_read() -> None:
    """As in the segments before: held against its checksum at each read, and by thl verify."""
    disk = SimDisk()
    big_log(disk, close=True)
    starts = record_starts(disk, 1)
    flip(disk, segment_path(1), starts[4] + 500)
    with open_log(disk, segment_bytes=20_000_000) as log, pytest.raises(CorruptRecordError):
        contents(log)


def test_a_small_segment_is_walked_whole() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 30)
    flip(disk, segment_path(1), 600)
    with pytest.raises(CorruptRecordError):
        open_log(disk)

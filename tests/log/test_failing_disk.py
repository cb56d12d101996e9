"""A full disk and a failing one under the writer: refused whole, or closed; never half, never silently."""

from __future__ import annotations

import errno
import random

import pytest

from fix_log import (
    PATH,
    append_large,
    contents,
    fill,
    forget_positions,
    make_fragment,
    open_log,
    open_reader,
    segment_names,
    segment_path,
)
from tranlog.errors import (
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    PurgeFailedError,
)
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def commit_large(log: Log) -> None:
    append_large(log, "too much", [bytes(300)] * 4)
    log.commit()


def commit_one(log: Log) -> None:
    log.append(make_fragment("e1"))
    log.commit()


def test_a_full_disk_refuses_the_transaction_whole_and_takes_the_next() -> None:
    """The issue's bad input: refused, readable and, after space is made, writable."""
    for room in (0, 1, 30, 200, 500):
        for buffer_bytes in (1, 300, 100_000):
            disk = SimDisk()
            with open_log(disk, buffer_bytes=buffer_bytes) as log:
                fill(log, 3)
                disk.room = room
                with pytest.raises(DiskFullError, match="Free some space"):
                    commit_large(log)
                assert log.visible_seqno == log.last_seqno == 3
                assert log.last_event_id() == "e2"
                assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]
                with open_reader(disk) as reader:
                    assert reader.range().last_seqno == 3
                disk.room = None
                assert log.append(make_fragment("e3")).seqno == 4
                log.commit()
                assert [one[1] for one in contents(log)] == ["e0", "e1", "e2", "e3"]
            with open_log(disk) as log:
                assert log.recovered.clean
                assert [one[1] for one in contents(log)] == ["e0", "e1", "e2", "e3"]


def test_a_full_disk_refuses_everything_since_the_last_commit() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 1)
        log.append(make_fragment("e1"))
        log.append(make_fragment("e2"))
        disk.room = 100
        with pytest.raises(DiskFullError):
            log.commit()
        assert log.last_event_id() == "e0"
        disk.room = None
        log.commit()
        assert log.append(make_fragment("e1")).seqno == 2
        log.commit()


@pytest.mark.parametrize("room", range(0, 80, 7))
def test_a_full_disk_at_rotation(room: int) -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 1, size=1_000)
        disk.room = room
        for _ in range(2):
            with pytest.raises(DiskFullError):
                commit_one(log)
        assert [one[1] for one in contents(log)] == ["e0"]
        disk.room = None
        fill(log, 2, start=1)
        assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]
        assert len(segment_names(disk)) == 2
    with open_log(disk) as log:
        assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]


@pytest.mark.parametrize("room", [0, 10, 50, 90])
def test_a_full_disk_at_open_leaves_the_log_as_it_was(room: int) -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 2)
    before = disk.content(segment_path(1))
    disk.room = room
    with pytest.raises(DiskFullError):
        open_log(disk)
    assert disk.content(segment_path(1)) == before
    disk.room = None
    with open_log(disk) as log:
        assert len(contents(log)) == 2


def test_a_failed_write_closes_the_log() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 2)
    log.append(make_fragment("lost"))
    disk.fail_at[disk.calls + 1] = errno.EIO
    with pytest.raises(DiskFailedError, match="closed for writing"):
        log.commit()
    with pytest.raises(LogClosedError, match="injected"):
        log.append(make_fragment())
    assert "injected" in str(log.status().closed_because)
    assert [one[1] for one in contents(log)] == ["e0", "e1"], "it stays readable"
    log.close()
    log.close()
    with open_log(disk) as log:
        assert [one[1] for one in contents(log)] == ["e0", "e1"]
        assert log.recovered.cut is not None


def test_a_failed_sync_closes_the_log_and_proves_nothing() -> None:
    """Nothing after the last good sync is assumed durable: reopened, it is written and synced anew."""
    for seed in range(10):
        disk = SimDisk()
        log = open_log(disk)
        fill(log, 2)
        log.append(make_fragment("e2"))
        disk.fail_at[disk.calls + 2] = errno.EIO
        with pytest.raises(DiskFailedError, match="sync failed"):
            log.commit()
        assert log.durable_seqno == 2
        with open_reader(disk) as reader:
            assert reader.range().committed_seqno == 2
        for _ in range(2):
            with pytest.raises(LogClosedError):
                log.commit()
        log.close()
        with open_log(disk) as log:
            assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]
        # The system had taken the lost pages for written. A sync alone would not have brought them back.
        with open_log(disk.after_crash(random.Random(seed))) as log:
            assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_positions_that_cannot_be_written_close_the_log(number: int) -> None:
    """The error names the file that failed. A transaction that was synced by then is there, told or not."""
    for sync, call, kept in ((False, 2, 0), (True, 3, 1)):
        disk = SimDisk()
        log = open_log(disk)
        log.append(make_fragment())
        disk.fail_at[disk.calls + call] = number
        with pytest.raises(DiskFailedError, match=f"{PATH}/positions.*closed for writing"):
            log.commit(sync=sync)
        with pytest.raises(LogClosedError, match=f"{PATH}/positions"):
            log.append(make_fragment())
        log.close()
        with open_log(disk.after_crash(random.Random(call))) as log:
            assert len(contents(log)) >= kept


def test_the_positions_file_comes_back_when_somebody_removes_it() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        forget_positions(disk)
        fill(log, 1)
        with open_reader(disk) as reader:
            assert not reader.range().scanned


@pytest.mark.parametrize("room", range(0, 400, 9))
def test_a_full_disk_refuses_a_new_log(room: int) -> None:
    """Whatever is the first that does not fit, it is told as a full disk, and with room the log begins."""
    disk = SimDisk()
    disk.make_dir(PATH)
    disk.room = room
    try:
        open_log(disk).close()
    except DiskFullError:
        disk.room = None
        open_log(disk).close()
    with open_reader(disk) as reader:
        assert reader.range().first_seqno == 0


# --- a failed sync, and what stands on it ----------------------------------------------------------------


def test_a_header_that_a_failed_sync_lost_is_written_again() -> None:
    """It stands in memory, not on the disk. Taken for written, the whole segment would be unreadable some day."""
    for call in range(1, 11):
        disk = SimDisk()
        disk.fail_at[call] = errno.EIO
        with pytest.raises(DiskFailedError):
            open_log(disk)
        with open_log(disk) as log:
            fill(log, 3)
        for seed in range(3):
            with open_log(disk.after_crash(random.Random(seed))) as log:
                assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"], f"call {call}"


def test_a_header_that_a_failed_sync_lost_at_a_rotation_is_written_again() -> None:
    for call in range(1, 8):
        disk = SimDisk()
        log = open_log(disk, segment_bytes=1_000)
        fill(log, 1, size=1_000)
        disk.fail_at[disk.calls + call] = errno.EIO
        with pytest.raises(DiskFailedError):
            commit_one(log)
        log.close()
        with open_log(disk, segment_bytes=1_000) as log:
            fill(log, 2, start=2)
        with open_log(disk.after_crash(random.Random(call))) as log:
            assert [one[1] for one in contents(log) if one[1] != "e1"] == ["e0", "e2", "e3"], f"call {call}"


def test_what_was_cut_does_not_come_back_behind_a_failed_sync() -> None:
    """The cut was lost with the sync that failed: bytes of the refused transaction are still on the disk."""
    disk = SimDisk()
    log = open_log(disk, buffer_bytes=1)
    fill(log, 1)
    for part in range(4):
        log.append(make_fragment("given up", bytes(600 + part), last=False))
    log._end.journal.file.sync()  # as another thread's commit does meanwhile: the fragments are on the disk now
    disk.fail_at[disk.calls + 2] = errno.EIO  # the cut's sync
    with pytest.raises(DiskFailedError):
        log.abandon_open()
    log.close()
    open_log(disk).close()
    end = len(disk.content(segment_path(1)))
    assert len(disk.after_crash(random.Random(1)).content(segment_path(1))) == end


# --- a purge that fails ----------------------------------------------------------------------------------


def many(disk: SimDisk, **options: object) -> tuple[Log, ManualClock]:
    clock = ManualClock()
    log = open_log(disk, clock=clock, segment_bytes=1_000, **options)
    fill(log, 30)
    return log, clock


def removing(which: int) -> int:
    """Return the number of the purge's call that removes a segment, or makes that durable, counted from 0."""
    twin = SimDisk()
    log, _ = many(twin)
    numbers: list[int] = []
    changing = twin._changing

    def watch(kind: str, path: str) -> int:
        if kind in ("unlink", "sync_dir"):
            numbers.append(twin.calls + 1)
        return changing(kind, path)

    twin._changing = watch  # type: ignore[method-assign]
    log.purge(below=Seqno(15))
    return numbers[which + 1]  # the first one makes the note durable that says why


@pytest.mark.parametrize("call", range(4))
def test_a_purge_that_fails_leaves_no_hole(call: int) -> None:
    """The next one begins with what is left. Beginning behind it, it would leave a row that nobody opens again."""
    disk = SimDisk()
    log, _ = many(disk)
    before = segment_names(disk)
    disk.fail_at[removing(call)] = errno.EIO
    with pytest.raises(PurgeFailedError, match=rf"removing {PATH}/thl\.data\.\d+ failed.*stays open"):
        log.purge(below=Seqno(15))
    assert log.status().closed_because is None
    fill(log, 10, start=30)
    gone = log.purge(below=Seqno(25))
    left = segment_names(disk)
    assert left == [name for name in [*before, *left] if name in left][-len(left) :]
    assert int(left[-1][-10:]) - int(left[0][-10:]) == len(left) - 1, "a hole in the row of segments"
    assert left[0] > before[0] and left[0] not in gone
    log.close()
    with open_log(disk) as log:
        assert [one[1] for one in contents(log)][-1] == "e39"


def test_retention_that_fails_leaves_no_hole_and_the_log_goes_on() -> None:
    """At each call of the rotation that gives segments up: the log goes on, or says that it does not."""
    going_on = 0
    for call in range(1, 30):
        disk = SimDisk()
        log, clock = many(disk, retention_s=10.0)
        clock.advance(1_000)
        first = segment_names(disk)[0]
        disk.fail_at[disk.calls + call] = errno.EIO
        try:
            fill(log, 20, start=30, size=500)
        except DiskFailedError:
            log.close()
            continue
        names = segment_names(disk)
        assert int(names[-1][-10:]) - int(names[0][-10:]) == len(names) - 1, f"call {call}: a hole"
        assert names[0] > first
        going_on += 1
        log.close()
        with open_log(disk) as log:
            assert contents(log)[-1][1] == "e49"
    assert going_on > 5

"""A full disk and a failing one under the writer: refused whole, or closed; never half, never silently."""

from __future__ import annotations

import errno

import pytest

from fix_log import (
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
)
from tranlog.log.log import Log
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
                with pytest.raises(DiskFullError, match="Make room"):
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


@pytest.mark.parametrize("room", [0, 10, 50, 100])
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
    import random

    for seed in range(10):
        disk = SimDisk()
        log = open_log(disk)
        fill(log, 2)
        log.append(make_fragment("e2"))
        disk.fail_at[disk.calls + 3] = errno.EIO
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


def test_positions_that_cannot_be_written_close_the_log() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_fragment())
    disk.fail_at[disk.calls + 2] = errno.EIO
    with pytest.raises(DiskFailedError):
        log.commit()
    log.close()


def test_the_positions_file_comes_back_when_somebody_removes_it() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        forget_positions(disk)
        fill(log, 1)
        with open_reader(disk) as reader:
            assert not reader.range().scanned

"""log/writing/flushing.py: what is complete shows by itself: flushIntervalMillis, fsyncOnFlush."""

from __future__ import annotations

import errno
import threading

import pytest

from fix_log import contents, fill, make_fragment, open_log, open_reader
from tranlog.errors import DiskFailedError, DiskFullError, LogClosedError
from tranlog.ids import Seqno
from tranlog.log.writing.flushing import Flushing
from tranlog.testing.disk import SimDisk


def test_uncommitted_records_become_visible_by_themselves() -> None:
    """D: DiskLogTest.testImplicitCommit; with sync_on_flush they are durable then, as after a commit."""
    disk = SimDisk()
    with open_log(disk, flush_interval_s=0.001) as log, open_reader(disk) as reader:
        seqno = log.append(make_fragment("e1")).seqno
        assert log.gate().wait(seqno, 60) >= seqno
        assert log.gate(committed_only=True).wait(seqno, 60) >= seqno
        assert reader.range().committed_seqno == seqno


@pytest.mark.parametrize("interval_s", [0.001, 0.02])
@pytest.mark.parametrize("buffer_bytes", [1, 600, 65_536])
def test_whatever_buffer_and_interval_nothing_stays_unseen(buffer_bytes: int, interval_s: float) -> None:
    """D: DiskLogExtendedTest.testVaryingFsync."""
    disk = SimDisk()
    with open_log(disk, flush_interval_s=interval_s, buffer_bytes=buffer_bytes) as log:
        for number in range(40):
            seqno = log.append(make_fragment(f"e{number}")).seqno
        assert log.gate(committed_only=True).wait(seqno, 60) >= seqno
        assert len(contents(log)) == 40


def test_without_a_sync_they_are_visible_and_nothing_says_durable() -> None:
    """fsyncOnFlush = false: readers see them; no pipeline does, which goes by committed_seqno."""
    disk = SimDisk()
    with open_log(disk, flush_interval_s=0.001, sync_on_flush=False) as log, open_reader(disk) as reader:
        syncs = log.status().syncs
        seqno = log.append(make_fragment("e1")).seqno
        assert log.gate().wait(seqno, 60) >= seqno
        assert (log.durable_seqno, reader.range().last_seqno, reader.range().committed_seqno) == (0, 1, 0)
        assert log.status().syncs == syncs
        with reader.cursor(committed_only=True) as cursor:
            cursor.seek(Seqno(1))
            assert cursor.next() is None
        assert log.commit() == seqno and log.durable_seqno == seqno, "commit means what it always means"


def test_an_open_transaction_is_never_shown() -> None:
    disk = SimDisk()
    with open_log(disk, flush_interval_s=0.001) as log:
        done = log.append(make_fragment("e1")).seqno
        log.append(make_fragment("open", last=False))
        assert log.gate(committed_only=True).wait(done, 60) == done
        assert [one[1] for one in contents(log)] == ["e1"]
        log.append(make_fragment("open"))
        assert log.gate().wait(Seqno(done + 1), 60) == done + 1


def test_a_flush_that_is_refused_is_told_to_whom_it_hurts() -> None:
    """The next call of whoever appended says so, and what was acknowledged stays."""
    disk = SimDisk()
    with open_log(disk, flush_interval_s=0.001) as log:
        fill(log, 2)
        disk.room = 0
        log.append(make_fragment("lost", bytes(100)))

        def commit_on() -> None:
            while True:
                log.commit(sync=False)  # either of the two is refused; this thread hears it once

        with pytest.raises(DiskFullError):
            commit_on()
        disk.room = None
        fill(log, 1, start=2)
        assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]


def test_a_log_that_closed_itself_is_flushed_no_more() -> None:
    disk = SimDisk()
    log = open_log(disk, flush_interval_s=0.001)
    fill(log, 1)
    disk.fail_at = dict.fromkeys(range(disk.calls + 1, disk.calls + 50), errno.EIO)

    def go_on() -> None:
        while True:
            log.append(make_fragment("e", bytes(100)))
            log.commit()

    with pytest.raises((DiskFailedError, LogClosedError)):
        go_on()
    assert log._flushing is not None
    log._flushing.join()
    disk.fail_at = {}
    log.close()


def test_it_ends_with_the_log_and_twice_is_harmless() -> None:
    before = threading.active_count()
    log = open_log(SimDisk(), flush_interval_s=0.001)
    assert threading.active_count() == before + 1
    log.close()
    log.close()
    assert threading.active_count() == before


def test_it_can_be_stopped_before_it_began() -> None:
    one = Flushing(lambda: None, interval_s=1.0, name="x")
    one.stop()
    one.join()
    with open_log(SimDisk()) as log:
        assert log._flushing is None, "0 is the default: nothing is shown before its commit"

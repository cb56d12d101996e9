"""log/writing/log.py: the one writer. On a disk in memory unless a test needs the operating system's locks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fix_log import (
    HISTORY,
    PATH,
    after_kill,
    append_large,
    contents,
    fill,
    forget_positions,
    make_fragment,
    make_payload,
    open_log,
    open_reader,
    read_all,
    segment_names,
    segment_path,
)
from tranlog.errors import (
    ConfigError,
    LogClosedError,
    LogLockedError,
    LogMissingError,
    LogUnreadableError,
    RecordLimitError,
)
from tranlog.ids import NO_SEQNO, Epoch, Gtid, Seqno
from tranlog.log.files.segment import SegmentReader
from tranlog.log.records.format import SYNC_BYTES, SyncRecord
from tranlog.log.writing.log import Log, LogOptions, hold
from tranlog.lsn import lsn
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk, SimFile


def record_types(disk: SimDisk, number: int) -> str:
    """Return a segment's records by their first letters: e(vent), s(ync), r(otate)."""
    file = disk.open(segment_path(number))
    reader = SegmentReader(file, number)
    at, letters = 16, ""
    while hasattr(outcome := reader.read(at, verify=True), "record_length") and outcome.record_length:
        letters += {"RecordHeader": "e", "SyncRecord": "s", "RotateRecord": "r"}[type(outcome).__name__]
        at += outcome.record_length
    return letters


# --- opening ---------------------------------------------------------------------------------------------


def test_a_new_log_starts_at_seqno_0_epoch_1_with_a_noop() -> None:
    """data-model.md, "No-op"; D: testLogWritableNonExistent, testLogPreparation."""
    disk = SimDisk()
    clock = ManualClock(1_700_000_000_000)
    with open_log(disk, clock=clock) as log:
        assert log.epoch == 1
        assert log.recovered.created and log.recovered.clean
        assert (log.first_seqno, log.last_seqno, log.visible_seqno, log.durable_seqno) == (0, 0, 0, 0)
        last = log.last()
        assert last is not None
        assert (last.gtid, last.source_id, last.event_id) == (Gtid(Epoch(1), Seqno(0)), "db1", "")
        assert (last.shard_id, last.tables, last.tstamp) == ("#UNKNOWN", (), 1_700_000_000_000)
        assert log.last_event_id() is None
        assert [one.is_noop() for one in read_all(log.cursor())] == [True]
    assert disk.content(segment_path(1))[:16] == bytes.fromhex("c001cafe00010001ffffffffffffffff")


def test_each_open_is_a_new_epoch_that_carries_the_event_id_on() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        log.append(make_fragment("bin:42", source_id="elsewhere"))
        log.commit()
    with open_log(disk) as log:
        last = log.last()
        assert last is not None
        assert (last.gtid, last.source_id, last.event_id) == (Gtid(Epoch(2), Seqno(2)), "elsewhere", "bin:42")
        assert log.last_event_id() == "bin:42"
    with open_log(disk) as log:
        assert (log.epoch, log.last_event_id()) == (3, "bin:42")


def test_the_noop_is_synced_before_anything_is_shown() -> None:
    disk = SimDisk()
    open_log(disk).close()
    shown: list[int] = []
    disk.before_sync = lambda path: shown.append(open_reader(disk).range().last_seqno) if "thl" in path else None
    log = open_log(disk)
    disk.before_sync = None
    assert shown == [0] * len(shown) and shown
    assert log.durable_seqno == log.visible_seqno == 1
    log.close()


@pytest.mark.parametrize("positions", ["kept", "removed"])
def test_a_log_without_records_starts_behind_what_is_known(positions: str) -> None:
    """log-format.md, last paragraph; D: testLogNonZeroStart, testSeekGoodNonZeroFirst."""
    disk = SimDisk()
    with open_log(disk, start_after=Gtid(Epoch(7), Seqno(99))) as log:
        assert (log.epoch, log.first_seqno, log.last_seqno) == (8, 100, 100)
        fill(log, 3)
    if positions == "removed":
        forget_positions(disk)
    with open_log(disk, start_after=Gtid(Epoch(50), Seqno(500))) as log:
        assert (log.epoch, log.first_seqno, log.last_seqno) == (9, 100, 104), "it has records: nothing else counts"
    with open_reader(disk) as reader:
        assert (reader.range().first_seqno, reader.range().last_seqno) == (100, 104)


def test_a_cleared_log_never_hands_out_a_gtid_twice() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 5)
    disk.unlink(segment_path(1))
    with open_log(disk) as log:
        assert (log.epoch, log.last_seqno) == (2, 0)


def test_the_directory_is_created_and_its_parent_is_not(tmp_path: Path) -> None:
    """D: testLogDirectoryCreation."""
    Log.open(tmp_path / "log", source_id="db1").close()
    assert (tmp_path / "log" / "thl.data.0000000001").is_file()
    with pytest.raises(LogMissingError, match=r"the directory .*nowhere does not exist"):
        Log.open(tmp_path / "nowhere" / "log", source_id="db1")
    (tmp_path / "file").touch()
    with pytest.raises(LogMissingError, match="not a directory"):
        Log.open(tmp_path / "file", source_id="db1")


def test_an_unwritable_directory_is_named() -> None:
    disk = SimDisk()
    open_log(disk).close()
    disk.read_only = True
    with pytest.raises(LogUnreadableError, match="Read-only file system"):
        open_log(disk)
    disk.read_only = False
    disk.denied.add(segment_path(1))
    with pytest.raises(LogUnreadableError, match="Permission denied"):
        open_log(disk)
    disk.denied.clear()
    open_log(disk).close()


def test_an_unwritable_parent_is_named() -> None:
    disk = SimDisk()
    disk.read_only = True
    with pytest.raises(LogUnreadableError, match="Read-only"):
        open_log(disk)


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"segment_bytes": 10}, "segment_bytes"),
        ({"segment_bytes": (1 << 32) - 1}, "segment_bytes"),
        ({"segment_bytes": 1 << 31, "spill_above": 1 << 31}, "segment_bytes"),
        ({"buffer_bytes": 0}, "buffer_bytes"),
        ({"spill_above": 10}, "spill_above"),
        ({"retention_s": -1.0}, "retention_s"),
    ],
)
def test_impossible_options_are_refused(changed: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_log(SimDisk(), **changed)
    assert caught.value.option == option
    LogOptions().check()


# --- the lock --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_one_writer_in_a_process(tmp_path: Path) -> None:
    """D: testOneWriter, WriteLockTest. The same thread cannot open it twice either."""
    import os

    with Log.open(tmp_path / "log", source_id="db1") as log:
        fill(log, 1)
        for _ in range(2):
            with pytest.raises(LogLockedError, match=f"pid {os.getpid()}"):
                Log.open(tmp_path / "log", source_id="db1")
        fill(log, 1)
    Log.open(tmp_path / "log", source_id="db1").close()


def test_closing_another_descriptor_does_not_drop_the_lock(tmp_path: Path) -> None:
    """log-format.md: `lockf` falls when any descriptor of the file is closed; this lock does not."""
    with Log.open(tmp_path / "log", source_id="db1"):
        (tmp_path / "log" / "disklog.lck").open("r+b").close()
        with pytest.raises(LogLockedError):
            Log.open(tmp_path / "log", source_id="db1")


@pytest.mark.long
def test_one_writer_among_processes(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    script = (
        "import sys\nfrom tranlog.log.writing.log import Log\nfrom tranlog.errors import LogLockedError\n"
        "try:\n    Log.open(sys.argv[1], source_id='x').close()\n    print('opened')\n"
        "except LogLockedError as error:\n    print('locked', error)\n"
    )

    def other() -> str:
        return subprocess.run([sys.executable, "-c", script, path], check=True, capture_output=True, text=True).stdout

    with Log.open(path, source_id="db1") as log:
        assert other().startswith("locked")
        fill(log, 1)
    assert other() == "opened\n"


def test_a_replaced_lock_file_stops_the_writer() -> None:
    """log-format.md: a writer whose lock file was replaced under it stops."""
    for sync in (True, False):
        disk = SimDisk()
        log = open_log(disk)
        fill(log, 2)
        log.append(make_fragment())
        disk.unlink(f"{PATH}/disklog.lck")
        other = open_log(disk)
        before = disk.content(segment_path(1))
        with pytest.raises(LogLockedError, match="replaced"):
            log.commit(sync=sync)
        for _ in range(2):
            with pytest.raises(LogClosedError, match="replaced"):
                log.append(make_fragment())
            with pytest.raises(LogClosedError):
                log.commit()
        log.close()
        assert disk.content(segment_path(1)) == before, "it wrote after it had lost the log"
        fill(other, 1)
        other.close()


# --- append and commit -----------------------------------------------------------------------------------


def test_read_back_in_order() -> None:
    """D: testReadWriteBasic, testLogReadback."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 300)
        assert contents(log) == [(n + 1, f"e{n}", make_payload(n, 100)) for n in range(300)]
        assert log.last_event_id() == "e299"
        last = log.last()
        assert last is not None and last.seqno == 300


def test_a_reader_finds_each_record_where_the_writer_put_it() -> None:
    """D: LogFileTest.testReadWrite: offsets advance alike for both; what stands there is what was written."""
    disk = SimDisk()
    with open_log(disk) as log, open_reader(disk) as reader, reader.cursor() as cursor:
        assert cursor.next_header() is not None
        for number in range(30):
            log.append(make_fragment(f"e{number}", make_payload(number, 7 * number)))
            log.commit(sync=number % 3 == 0)
            header = cursor.next_header()
            assert header is not None and header.event_id == f"e{number}"
            assert header.lsn + header.record_length == lsn(1, len(disk.content(segment_path(1))))
            assert b"".join(cursor.current().payloads()) == make_payload(number, 7 * number)


def test_seqnos_are_given_out_densely() -> None:
    """B7-22 cannot happen: the log gives the numbers, in append order, one per transaction."""
    disk = SimDisk()
    with open_log(disk) as log:
        assert log.append(make_fragment()) == Gtid(Epoch(1), Seqno(1))
        append_large(log, "x", [b"a", b"b", b"c"])
        assert log.append(make_fragment()) == Gtid(Epoch(1), Seqno(3))
        log.commit()
    with open_log(disk) as log:
        assert log.append(make_fragment()) == Gtid(Epoch(2), Seqno(5))
        log.commit()
        seqnos = [one.header.seqno for one in read_all(log.cursor())]
        assert seqnos == [0, 1, 2, 3, 4, 5]
        assert [one.header.epoch for one in read_all(log.cursor())] == [1, 1, 1, 1, 2, 2]


def test_all_fragments_of_a_transaction_share_its_gtid() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        gtids = [log.append(make_fragment(last=last)) for last in (False, False, True)]
        assert len(set(gtids)) == 1


def test_nothing_is_visible_before_commit() -> None:
    """D: testCommitVisibility; B7-24: what is appended and not committed is in no seqno that others go by."""
    disk = SimDisk()
    with open_log(disk, buffer_bytes=1) as log, open_reader(disk) as reader:
        log.append(make_fragment())
        assert (log.visible_seqno, log.status().visible_seqno, reader.range().last_seqno) == (0, 0, 0)
        assert log.last_seqno == log.status().last_seqno == 1
        assert log.last_event_id() is None
        assert len(read_all(log.cursor())) == len(read_all(reader.cursor())) == 1
        forget_positions(disk)
        log.commit(sync=False)
        assert len(read_all(log.cursor())) == 2


def test_commit_without_sync_shows_at_once_and_is_not_durable() -> None:
    disk = SimDisk()
    with open_log(disk) as log, open_reader(disk) as reader:
        log.append(make_fragment())
        synced = disk.counts["sync"]
        assert log.commit(sync=False) == 1
        assert disk.counts["sync"] == synced
        assert (log.visible_seqno, log.durable_seqno) == (1, 0)
        found = reader.range()
        assert (found.last_seqno, found.durable_seqno, found.committed_seqno) == (1, 0, 0)
        assert len(read_all(reader.cursor(committed_only=True))) == 1
        assert len(read_all(log.cursor(committed_only=True))) == 1
        assert log.commit() == 1
        assert disk.counts["sync"] == synced + 1
        assert reader.range().committed_seqno == 1
        assert len(read_all(reader.cursor(committed_only=True))) == 2


def test_each_commit_with_sync_syncs() -> None:
    """B7-1: the ancestor's fsync never happened."""
    disk = SimDisk()
    with open_log(disk) as log:
        before = disk.counts["sync"]
        for _ in range(50):
            log.append(make_fragment())
            log.commit()
        assert disk.counts["sync"] == before + 50
        log.commit()
        assert disk.counts["sync"] == before + 50, "nothing new, nothing to sync"
    for _ in range(3):
        with open_log(disk, segment_bytes=1_000) as log:
            before = disk.counts["sync"]
            fill(log, 1, size=2_000)
            assert disk.counts["sync"] > before, "rotated files sync too"


def test_what_was_committed_with_sync_survives_a_crash() -> None:
    import random

    for seed in range(20):
        disk = SimDisk()
        log = open_log(disk)
        fill(log, 5)
        log.append(make_fragment("lost?"))
        log.commit(sync=False)
        after = disk.after_crash(random.Random(seed))
        with open_log(after) as log:
            assert contents(log)[:5] == [(n + 1, f"e{n}", make_payload(n, 100)) for n in range(5)]


def test_sync_records_stand_where_the_rules_put_them() -> None:
    """log-format.md: first in a segment, before the first record after a completed sync, and at a clean close."""
    disk = SimDisk()
    log = open_log(disk)
    assert record_types(disk, 1) == "se"
    log.append(make_fragment())
    log.append(make_fragment())
    log.commit()
    assert record_types(disk, 1) == "sesee"
    log.append(make_fragment())
    log.commit(sync=False)
    log.append(make_fragment())
    log.commit(sync=False)
    assert record_types(disk, 1) == "seseesee", "no sync ended in between"
    log.commit()
    log.close()
    assert record_types(disk, 1) == "seseesees"
    open_log(disk).close()
    assert record_types(disk, 1) == "seseesees" + "se" + "s"


def test_a_sync_record_proves_what_it_says() -> None:
    disk = SimDisk()
    clock = ManualClock(5_000)
    log = open_log(disk, clock=clock)
    end = len(disk.content(segment_path(1)))
    clock.set_ms(7_000)
    log.append(make_fragment())
    log.commit()
    file = disk.open(segment_path(1))
    reader = SegmentReader(file, 1)
    assert reader.read(16, verify=True) == SyncRecord(lsn(1, 16), 5_000, HISTORY, 58)
    assert reader.read(end, verify=True) == SyncRecord(lsn(1, end), 7_000, seqno=Seqno(0), h=log.h(Seqno(0)))
    log.close()
    size = len(disk.content(segment_path(1)))
    assert reader.read(size - SYNC_BYTES, verify=True) == SyncRecord(
        lsn(1, size - SYNC_BYTES), 7_000, seqno=Seqno(1), h=log.h(Seqno(1))
    )


def test_time_going_back_changes_nothing_but_stamps() -> None:
    disk = SimDisk()
    clock = ManualClock(1_000_000)
    with open_log(disk, clock=clock) as log:
        fill(log, 2)
        clock.set_ms(0)
        fill(log, 2, start=2)
        clock.set_ms(-5_000)
        fill(log, 2, start=4)
        log.append(make_fragment(tstamp=3))
        log.append(make_fragment(tstamp=1))
        log.commit()
    with open_log(disk, clock=clock) as log:
        assert [one[0] for one in contents(log)] == list(range(1, 9))


def test_large_transactions_are_written_before_they_are_complete_and_shown_whole() -> None:
    """data-model.md: no process holds one whole; no reader sees any before last_frag."""
    disk = SimDisk()
    with open_log(disk, buffer_bytes=1_000) as log, open_reader(disk) as reader:
        for number in range(50):
            log.append(make_fragment("big", bytes([number]) * 1_000, last=False, shard_id="#UNKNOWN"))
            assert len(log._pending) < 1_000
        log.commit()
        assert log.visible_seqno == 0
        assert len(read_all(reader.cursor())) == 1
        forget_positions(disk)
        with open_reader(disk) as scanning:
            assert scanning.range().last_seqno == 0, "a scan does not show it either"
        log.append(make_fragment("big", b"end"))
        log.commit()
        (_, transaction) = read_all(log.cursor())
        assert transaction.fragments == 51
        assert transaction.header.shard_id == "shop", "the last fragment speaks for the whole"
        assert list(transaction.payloads()) == [bytes([n]) * 1_000 for n in range(50)] + [b"end"]


def test_abandoned_fragments_leave_no_trace() -> None:
    """D: testSimpleFragmentCleanup, testComplexFragmentCleanup, within one opening."""
    for buffer_bytes in (1, 100_000):
        disk = SimDisk()
        with open_log(disk, buffer_bytes=buffer_bytes) as log:
            fill(log, 3)
            end = len(disk.content(segment_path(1)))
            log.abandon_open()
            log.append(make_fragment("gone", last=False))
            log.append(make_fragment("gone", last=False))
            log.commit()
            log.abandon_open()
            log.abandon_open()
            assert len(disk.content(segment_path(1))) <= end + SYNC_BYTES
            assert log.append(make_fragment("kept")).seqno == 4
            log.commit()
            assert [one[1] for one in contents(log)] == ["e0", "e1", "e2", "kept"]
        with open_log(disk) as log:
            assert log.recovered.clean
            assert [one[1] for one in contents(log)] == ["e0", "e1", "e2", "kept"]


def test_a_cut_is_synced_before_anything_stands_behind_it() -> None:
    """Else a loss of power could bring back what was cut, behind records that took its place."""
    disk = SimDisk()
    with open_log(disk, buffer_bytes=1) as log:
        log.append(make_fragment("gone", last=False))
        counts = dict(disk.counts)
        log.abandon_open()
        assert disk.counts["truncate"] == counts.get("truncate", 0) + 1
        assert disk.counts["sync"] == counts["sync"] + 1


def test_an_abandoned_transaction_that_a_sync_covered_is_cut_below_it() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 1)
    log.append(make_fragment("gone", b"x" * 500, last=False))
    log.append(make_fragment("gone", b"y" * 500, last=False))
    log._end.flush()
    with log._steps.lock:
        log._end.sync_now()
    log.abandon_open()
    fill(log, 2, start=1)
    import random

    with open_log(disk.after_crash(random.Random(1))) as again:
        assert [one[1] for one in contents(again)] == ["e0", "e1", "e2"]


# --- limits ----------------------------------------------------------------------------------------------


def test_what_the_format_cannot_hold_refuses_the_whole_transaction() -> None:
    disk = SimDisk()
    with open_log(disk, buffer_bytes=1) as log:
        fill(log, 1)
        with pytest.raises(RecordLimitError, match="NUL"):
            log.append(make_fragment("a\0b"))
        log.append(make_fragment("x", last=False))
        with pytest.raises(RecordLimitError, match="NUL"):
            log.append(make_fragment("x", shard_id="\0"))
        assert log.append(make_fragment("good")).seqno == 2
        log.commit()
        assert [one[1] for one in contents(log)] == ["e0", "good"]


def test_a_transaction_beyond_spill_above_spills_and_keeps_its_seqno() -> None:
    """data-model.md: "beyond it a captured transaction goes to spill segments"."""
    disk = SimDisk()
    with open_log(disk, spill_above=5_000, buffer_bytes=100) as log:
        assert log.append(make_fragment("one", bytes(6_000))).seqno == 1
        seqnos = {log.append(make_fragment("many", bytes(1_000), last=last)).seqno for last in [False] * 9 + [True]}
        assert seqnos == {2}
        fill(log, 1)
        assert contents(log) == [(1, "one", bytes(6_000)), (2, "many", bytes(10_000)), (3, "e0", make_payload(0, 100))]
        with log.cursor() as cursor:
            cursor.seek(Seqno(1))
            assert [(one.header.spilled, one.fragments) for one in read_all(cursor)] == [
                (True, 1),
                (True, 10),
                (False, 1),
            ]
    assert len(disk.content(segment_path(1))) < 1_000


@pytest.mark.long
def test_beyond_65536_fragments_a_transaction_spills() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fragment = make_fragment("x", b"", last=False, tables=(), shard_id="", source_id="")
        for _ in range(65_535):
            log.append(fragment)
        log.append(make_fragment("x", b""))
        log.commit()
        transaction = read_all(log.cursor())[-1]
        assert (transaction.fragments, transaction.header.fragno) == (65_536, 65_535)
        for _ in range(65_536):
            log.append(fragment)
        log.append(make_fragment("x", b"last"))
        log.commit()
        with log.cursor() as cursor:
            cursor.seek(Seqno(2))
            spilled = cursor.next()
        assert spilled is not None and spilled.header.spilled and spilled.fragments == 65_537
        assert [one.header.fragno for one in spilled.records()] == list(range(65_537))
        assert log.append(make_fragment("next")).seqno == 3


# --- rotation --------------------------------------------------------------------------------------------


def test_segments_rotate_before_a_transaction_that_finds_them_full() -> None:
    """D: testMultipleLogs."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=2_000) as log:
        fill(log, 60)
        names = segment_names(disk)
        assert len(names) > 4
        stats = log.segments()
        assert [one.name for one in stats] == names
        assert stats[0].first_seqno == 0
        assert stats[-1].last_seqno == 60
        for one, following in pairwise(stats):
            assert one.last_seqno + 1 == following.first_seqno
            assert record_types(disk, one.number).startswith("s")
            assert record_types(disk, one.number).endswith("r")
            assert 2_000 <= one.bytes < 2_400
        assert len(contents(log)) == 60
    with open_log(disk, segment_bytes=2_000) as log:
        assert len(contents(log)) == 60
        assert [one.name for one in log.segments()][: len(names)] == names


def test_rotation_never_splits_a_transaction() -> None:
    """D: testFragmentsAndRotation."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        for number in range(4):
            append_large(log, f"big{number}", [bytes(400)] * 6)
            log.commit()
        assert len(segment_names(disk)) == 4
        assert [one[2] for one in contents(log)] == [bytes(2_400)] * 4


def test_rotation_syncs_the_old_segment_and_the_directory_first() -> None:
    """log-format.md: before the new one takes a record."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1_000)
    log.append(make_fragment("big", bytes(1_000)))
    log.commit(sync=False)
    calls: list[str] = []
    changing = disk._changing

    def watch(kind: str, path: str) -> int:
        calls.append(f"{kind} {path.rpartition('/')[2]}")
        return changing(kind, path)

    disk._changing = watch  # type: ignore[method-assign]
    log.append(make_fragment("next"))
    log.commit(sync=False)
    wanted = [
        "pwrite thl.data.0000000001",
        "sync thl.data.0000000001",
        "open thl.data.0000000002",
        "truncate thl.data.0000000002",
        "pwrite thl.data.0000000002",
        "sync thl.data.0000000002",
        "sync_dir log",
        "pwrite positions",
        "pwrite thl.data.0000000002",
        "pwrite positions",
    ]
    assert [call for call in calls if "index.table" not in call] == wanted
    log.close()


def test_what_rotation_leaves_behind_is_committed() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        for _ in range(30):
            log.append(make_fragment())
        assert log.durable_seqno == log.visible_seqno > 0
        assert log.visible_seqno < log.last_seqno
        log.commit()


@pytest.mark.parametrize("left", [0, 5, 15, 16, "zeros", "missing"])
def test_a_rotation_that_was_cut_short_is_mended(left: int | str) -> None:
    """Zero-length or torn newest header. D: testEmptyFileCleanup, testZeroLengthTail, testTruncateEndFile."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1_000)
    fill(log, 1, size=1_200)
    log.append(make_fragment("second segment"))
    path = segment_path(2)
    header = disk.content(path)[:16]
    match left:
        case "zeros":
            disk.set_content(path, bytes(1_000))
        case "missing":
            disk.unlink(path)
        case int():
            disk.set_content(path, header[:left])
    del log
    disk = after_kill(disk)
    with open_reader(disk) as reader:
        assert [one[1] for one in contents(reader)] == ["e0"]
    with open_log(disk, segment_bytes=1_000) as log:
        assert log.recovered.kept_in is None
        fill(log, 2, start=1)
        assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]
    assert disk.content(path)[:16] == header


# --- closing ---------------------------------------------------------------------------------------------


def test_close_keeps_what_is_complete_and_forgets_what_is_open() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_fragment("complete"))
    log.append(make_fragment("open", last=False))
    log.close()
    log.close()
    for use in (log.commit, lambda: log.append(make_fragment())):
        with pytest.raises(LogClosedError, match="it was closed"):
            use()
    with open_log(disk) as log:
        assert log.recovered.clean
        assert [one[1] for one in contents(log)] == ["complete"]


def test_many_openings() -> None:
    """D: testStutteringLogReadback."""
    disk = SimDisk()
    for number in range(40):
        with open_log(disk, segment_bytes=1_500) as log:
            fill(log, number % 4, start=number * 10)
    with open_log(disk) as log:
        seqnos = [one.header.seqno for one in read_all(log.cursor())]
        assert seqnos == list(range(len(seqnos)))
        assert log.epoch == 41


def test_status_says_where_it_stands() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_fragment())
    log.commit(sync=False)
    status = log.status()
    assert (status.path, status.epoch, status.segments) == (PATH, 1, 1)
    assert (status.first_seqno, status.last_seqno, status.visible_seqno, status.durable_seqno) == (0, 1, 1, 0)
    assert status.committed_seqno == 0
    assert status.closed_because is None
    log.close()
    assert log.status().closed_because is not None


# --- purge -----------------------------------------------------------------------------------------------


def test_purge_removes_whole_segments_from_the_front() -> None:
    """D: testDeleteUp."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log, open_reader(disk) as reader:
        fill(log, 40)
        stats = log.segments()
        assert log.purge(below=Seqno(stats[2].first_seqno)) == [stats[0].name, stats[1].name]
        assert log.first_seqno == stats[2].first_seqno == reader.range().first_seqno
        assert log.purge(below=Seqno(stats[2].first_seqno)) == []
        log.purge(below=Seqno(1_000))
        assert segment_names(disk) == [stats[-1].name]
        assert read_all(reader.cursor())[0].header.seqno == log.first_seqno
        fill(log, 3, start=40)
    with open_log(disk) as log:
        assert not log.recovered.purged_by_hand
        assert log.last_event_id() == "e42"


def test_purge_minds_holds() -> None:
    disk = SimDisk()
    clock = ManualClock()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 40)
        stats = log.segments()
        hold(PATH, "pipe", stats[1].last_seqno, disk=disk, clock=clock)
        assert log.purge(below=Seqno(1_000)) == [stats[0].name]
        assert log.first_seqno <= stats[1].last_seqno


def test_a_hold_outlives_the_writer() -> None:
    """B7-19: the ancestor's bound was 0 after each opening, until the last stage had committed again."""
    disk = SimDisk()
    clock = ManualClock()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 40)
        hold(PATH, "pipe", log.segments()[1].last_seqno, disk=disk, clock=clock)
    clock.advance(1_000)
    with open_log(disk, clock=clock, segment_bytes=1_000, retention_s=1.0) as log:
        fill(log, 40, start=40)
        assert log.segments()[0].name == segment_names(disk)[0]
        assert log.purge(below=Seqno(1_000)) == []
        assert 0 < log.first_seqno <= 20, "the first segment went by age, the one with the held record stays"


def test_retention_goes_by_the_writers_clock_at_rotation() -> None:
    """thl-internals, logFileRetention: by the time log files are written, not the age of the transactions."""
    disk = SimDisk()
    clock = ManualClock(1_000_000)
    with open_log(disk, clock=clock, segment_bytes=1_000, retention_s=60.0) as log:
        for number in range(30):
            log.append(make_fragment(f"e{number}", bytes(300), tstamp=1))
            log.commit()
            clock.advance(10)
        stats = log.segments()
        assert stats[0].first_seqno > 0
        assert all(one.written_at is not None and one.written_at >= clock.now_ms() - 60_000 - 80_000 for one in stats)
        assert len(stats) >= 2
        kept = [one[1] for one in contents(log)]
        assert kept[-7:] == [f"e{number}" for number in range(23, 30)], "the last 60 s are there"


def test_retention_that_fails_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    clock = ManualClock()
    hold_path = f"{PATH}/holds"
    with open_log(disk, clock=clock, segment_bytes=1_000, retention_s=0.0) as log:
        hold(PATH, "pipe", Seqno(0), disk=disk, clock=clock)
        disk.denied.add(f"{hold_path}/pipe")
        fill(log, 30)
        assert "Retention could not remove segments" in caplog.text
        assert log.first_seqno == 0
        disk.denied.clear()
        disk.set_content(f"{hold_path}/pipe", b"damage")
        clock.advance(10)
        fill(log, 30, start=30)
        assert log.first_seqno == 0
        assert "A damaged hold keeps every segment" in caplog.text


def test_the_first_seqno_of_nothing() -> None:
    disk = SimDisk()
    disk.make_dir(PATH)
    disk.open(segment_path(1), write=True, create=True).pwrite(b"\xc0\x01\xca\xfe", 0)
    with pytest.raises(LogMissingError, match="no header yet"):
        open_reader(disk)
    with open_log(disk) as log:
        assert log.last_seqno == 0
        assert log.recovered.created
    assert NO_SEQNO == -1


# --- what a durable commit costs ---------------------------------------------------------------------------


def test_a_durable_commit_asks_the_system_seven_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writes, each with a look at the lock file; one sync, begun early; before it the directory, for its names."""
    asked: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def counting(*args: Any) -> Any:
            asked.append(name)
            return call(*args)

        return counting

    with Log.open(tmp_path / "log", source_id="db1") as log:
        now = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now() + 10**9)  # what has just changed is looked at again
        fill(log, 1)
        for name in ("fstat", "stat", "pwrite", "posix_fadvise", "fdatasync", "open"):
            monkeypatch.setattr(os, name, counted(name))
        log.append(make_fragment())
        log.commit()
        monkeypatch.undo()
    assert asked == ["fstat", "pwrite", "posix_fadvise", "stat", "fdatasync", "fstat", "pwrite"]


def test_the_disk_begins_early_where_the_file_has_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that the file system would give out blocks twice: once for this, once for what follows it."""
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(
        SimFile, "write_out", lambda file, size, offset, *, wait=True: begun.append((offset, offset + size))
    )
    disk = SimDisk()
    with open_log(disk, ahead_bytes=2_000) as log:
        for number in range(3):
            fill(log, 1, start=number)
            assert len(begun) == number
        fill(log, 5)
        before = begun[-1]
        log.append(make_fragment("large", bytes(3_000)))
        log.commit()
        assert begun[-1] == before
        ends = [*(start for start, _ in begun[1:]), before[1]]
        assert ends == [end for _, end in begun]


def test_the_first_append_behind_a_commit_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It differs by the sync record in front of it; so does each append where each is committed."""
    disk = SimDisk()
    with open_log(disk) as log:
        monkeypatch.setattr("tranlog.log.writing.appending.record_of", lambda *_: pytest.fail("encoded the long way"))
        for number in range(3):
            log.append(make_fragment(f"e{number}"))
            log.commit()
        assert record_types(disk, 1) == "se" * 4

"""Bad input for the log, item by item: a clear typed error, state unchanged.

What has a test elsewhere is named in PROVEN; what had none is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import gc
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fix_log import PATH, contents, fill, make_fragment, open_log, open_reader, segment_names, segment_path
from fix_tungsten import golden_segments
from tranlog.change import Fragment
from tranlog.disk import OsDisk
from tranlog.errors import (
    ConfigError,
    CorruptRecordError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogCodecError,
    LogError,
    LogLockedError,
    LogMissingError,
    LogUnreadableError,
    LogVersionError,
    RecordLimitError,
    SegmentGoneError,
)
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.aio import AsyncLog
from tranlog.log.records.format import MAGIC_NUMBER, SEGMENT_BYTES_MAX, encode_event, encode_header, encode_sync
from tranlog.log.rules.retention import LargerThan, OlderThan, UpToSeqno, UpToTime
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions, LogReader, hold
from tranlog.queues.store import MessageStore
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

TESTS = Path(__file__).parents[1]

PROVEN = {
    "a NUL in a string field": ("log/test_format.py::test_what_the_format_cannot_hold_is_refused",),
    "an oversize record": (
        "log/test_format.py::test_a_payload_of_four_gib_is_refused",
        "log/test_log.py::test_what_the_format_cannot_hold_refuses_the_whole_transaction",
    ),
    "too many fragments": ("log/test_log.py::test_beyond_65536_fragments_a_transaction_spills",),
    "a second writer": (
        "log/test_log.py::test_one_writer_in_a_process",
        "log/test_log.py::test_one_writer_among_processes",
        "capture/test_bad_input.py::test_a_log_that_another_writer_holds",
    ),
    "a lock file replaced": ("log/test_log.py::test_a_replaced_lock_file_stops_the_writer",),
    "a segment deleted under an open log": ("log/test_scan.py::test_a_segment_that_vanishes_meanwhile_is_named",),
    "a read-only directory": (
        "log/test_log.py::test_an_unwritable_directory_is_named",
        "log/test_reader.py::test_a_read_only_directory_works",
    ),
    "a clock that goes back": (
        "log/test_log.py::test_time_going_back_changes_nothing_but_stamps",
        "log/test_purging.py::test_a_clock_that_goes_back_closes_nothing_and_loses_nothing",
        "e2e/test_time_and_place.py::test_clocks_that_jump_back_an_hour_lose_nothing",
    ),
    "disk full at any write": (
        "log/test_failing_disk.py::test_a_full_disk_refuses_everything_since_the_last_commit",
        "log/test_failing_disk.py::test_a_full_disk_at_rotation",
        "log/test_failing_disk.py::test_a_full_disk_at_open_leaves_the_log_as_it_was",
        "crash/test_failing_calls.py::test_an_error_at_a_sample_of_calls_loses_nothing_acknowledged",
    ),
}


@pytest.mark.parametrize("item", PROVEN)
def test_what_is_proven_elsewhere_is_there(item: str) -> None:
    for name in PROVEN[item]:
        file, _, test = name.partition("::")
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), name


def state(disk: SimDisk) -> dict[str, bytes]:
    """Every byte of the log but the word that an opening leaves in its lock file."""
    names = [name for name in disk.list_dir(PATH) if name not in ("disklog.lck", "holds", "cut")]
    return {name: disk.content(f"{PATH}/{name}") for name in names}


def refused(disk: SimDisk, error: type[LogError], match: str) -> None:
    """Writer, reader and upkeep say the same, and no byte has changed."""
    before = state(disk)
    for opening in (
        lambda: open_log(disk),
        lambda: open_reader(disk),
        lambda: Log.open_for_upkeep(PATH, disk=disk, clock=ManualClock()),
    ):
        with pytest.raises(error, match=match):
            opening()
    assert state(disk) == before


def record(seqno: int, *, fragno: int = 0, last: bool = True, epoch: int = 1) -> bytes:
    head, trailer = encode_event(
        seqno=Seqno(seqno), fragno=fragno, last_frag=last, epoch=Epoch(epoch), source_id="db1", event_id=f"e{seqno}",
        shard_id="s", tstamp=1, tables=(), payload=b"p", checksum=True,
    )  # fmt: skip
    return head + b"p" + trailer


def segment_of(*records: bytes, prev_seqno: int = -1, number: int = 1) -> SimDisk:
    """A log of one segment with these records, and behind them a sync record that proves them durable."""
    disk = SimDisk()
    disk.make_dir(PATH)
    raw = encode_header(Seqno(prev_seqno)) + b"".join(records)
    file = disk.open(segment_path(number), write=True, create=True)
    file.pwrite(raw + encode_sync(number << 32 | len(raw), number << 32 | len(raw), 5), 0)
    return disk


# --- names, seqnos, fragments ---


@pytest.mark.parametrize("field", ["source_id", "event_id", "shard_id"])
def test_a_nul_in_a_text_leaves_the_log_as_it_was(field: str) -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
        before, status = state(disk), log.status()
        given = {"event_id": "e"} | {field: "a\0b"}
        fragment = Fragment(
            **{"source_id": "db1", "shard_id": "s", "tstamp": 1, "tables": (), "payload": b"", **given}  # type: ignore[arg-type]
        )
        with pytest.raises(RecordLimitError, match="NUL"):
            log.append(fragment)
        assert log.status() == status and state(disk) == before
        fill(log, 1, start=3)
        assert [one[0] for one in contents(log)] == [1, 2, 3, 4], "its seqno was not used up"


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([record(0), record(2)], "seqno"),
        ([record(0), record(0)], "seqno"),
        ([record(1), record(0)], "seqno"),
        ([record(0), record(1, fragno=1)], "frag"),
        ([record(0), record(1, last=False), record(1, fragno=2)], "frag"),
        ([record(0), record(1, last=False), record(1, last=False)], "frag"),
        ([record(0), record(1, last=False), record(2)], "frag|seqno"),
        ([record(0, epoch=2), record(1, epoch=1)], "epoch"),
    ],
)
def test_seqnos_out_of_order_and_gaps_between_fragments(records: list[bytes], why: str) -> None:
    """B7-22: the ancestor stores and reads them all."""
    refused(segment_of(*records), CorruptRecordError, why)


def test_nobody_can_put_a_fragment_into_anothers_transaction() -> None:
    """Seqno and fragno are given out by the log, so none can be asked for that is out of order."""
    disk = SimDisk()
    with open_log(disk) as log:
        log.append(make_fragment("open", last=False))
        log.abandon_open()
        gtids = [log.append(make_fragment(f"e{n}", last=n != 1)).seqno for n in range(4)]
        log.commit()
        assert gtids == [1, 2, 2, 3]


# --- sizes ---


@pytest.mark.parametrize("size", [SEGMENT_BYTES_MAX, 10**12])
def test_a_segment_may_not_be_set_to_pass_4_gib(size: int, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="a segment ends at 4 GiB"):
        Log.open(tmp_path / "log", source_id="x", options=LogOptions(segment_bytes=size))
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_segment_of_more_than_4_gib_is_named(number: int, tmp_path: Path) -> None:
    """A sparse file: its offsets have no LSN."""
    path = tmp_path / "log"
    with Log.open(path, source_id="x", options=LogOptions(segment_bytes=1_000)) as log:
        fill(log, 12)
        assert len(log.segments()) >= 3
        count = len(log.segments())
    name = f"thl.data.{number if number < 3 else count:010d}"
    os.truncate(path / name, SEGMENT_BYTES_MAX + 1)
    for opening in (lambda: Log.open(path, source_id="x"), lambda: Log.open_for_upkeep(path)):
        with pytest.raises(CorruptRecordError, match=rf"{name}, offset 0.*a segment ends at 4 GiB"):
            opening()
    assert (path / name).stat().st_size == SEGMENT_BYTES_MAX + 1


# --- writers and locks ---


@pytest.mark.long
def test_a_second_writer_changes_nothing() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
        before = state(disk)
        for opening in (lambda: open_log(disk), lambda: Log.open_for_upkeep(PATH, disk=disk, clock=ManualClock())):
            with pytest.raises(LogLockedError, match="held by another writer"):
                opening()
        assert state(disk) == before
        fill(log, 1, start=3)


@pytest.mark.long
def test_upkeep_in_another_process_is_kept_away(tmp_path: Path) -> None:
    path = tmp_path / "log"
    program = "import sys; from tranlog.log.writing.log import Log; Log.open_for_upkeep(sys.argv[1])"
    with Log.open(path, source_id="x") as log:
        fill(log, 3)
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and f"held by another writer (pid {os.getpid()})" in done.stderr
        fill(log, 1, start=3)


def test_a_replaced_lock_file_stops_adding_and_trimming_too() -> None:
    for act in (
        lambda log: log.add_segment(),
        lambda log: log.expire(),
        lambda log: log.append(make_fragment()) and log.commit(),
    ):
        disk, clock = SimDisk(), ManualClock()
        log = open_log(disk, clock=clock, segment_bytes=1_000)
        fill(log, 20)
        clock.advance(86_400 * 2)
        disk.unlink(f"{PATH}/disklog.lck")
        disk.open(f"{PATH}/disklog.lck", write=True, create=True).close()
        names = segment_names(disk)
        with pytest.raises(LogLockedError, match="was replaced or removed"):
            act(log)
        assert segment_names(disk) == names


# --- segments and directories ---


def test_a_segment_deleted_under_an_open_log_stops_neither_rotation_nor_purge() -> None:
    """Readers of it are told, see test_cursor; the writer goes on, and the next opening names a hole."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 20)
        disk.unlink(segment_path(1))
        fill(log, 20, start=20)
        log.trim(UpToSeqno(seqno=Seqno(15)))
        assert log.first_seqno > 0 and segment_path(1) not in segment_names(disk)
        disk.unlink(segment_path(log.segments()[1].number))
    with pytest.raises(CorruptRecordError, match="the segment is missing"):
        open_log(disk)


def test_a_read_only_disk_refuses_writer_and_upkeep() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 20)
    before = state(disk)
    disk.read_only = True
    for opening in (lambda: open_log(disk), lambda: Log.open_for_upkeep(PATH, disk=disk, clock=ManualClock())):
        with pytest.raises(LogUnreadableError, match="Read-only"):
            opening()
    with open_reader(disk) as reader:
        assert reader.range().last_seqno == 20
    assert state(disk) == before


@pytest.mark.parametrize("which", ["first", "middle", "newest", "all"])
@pytest.mark.parametrize("major", [2, 7, 4096])
def test_a_log_of_a_newer_major_version_is_named_and_left_alone(which: str, major: int) -> None:
    """Not damage: nobody is sent to repair what a newer release wrote."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 20)
    numbers = list(range(1, len(segment_names(disk)) + 1))
    chosen = {"first": numbers[:1], "middle": numbers[1:2], "newest": numbers[-1:], "all": numbers}[which]
    for number in chosen:
        raw = bytearray(disk.content(segment_path(number)))
        raw[4:6] = major.to_bytes(2, "big")
        disk.set_content(segment_path(number), bytes(raw))
    match = rf"thl\.data\.{chosen[0]:010d} of the log at {PATH} has format version {major}\.1, which is newer"
    refused(disk, LogVersionError, match)
    before = state(disk)
    for look in (lambda: verify(PATH, disk=disk), lambda: repair(PATH, disk=disk, clock=ManualClock())):
        with pytest.raises(LogVersionError):
            look()
    assert state(disk) == before


def test_one_wrong_bit_in_the_version_is_damage() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
    raw = bytearray(disk.content(segment_path(1)))
    raw[5] ^= 2  # 3
    disk.set_content(segment_path(1), bytes(raw))
    refused(disk, CorruptRecordError, "bad header: format version 3.1")
    assert raw[:4] == MAGIC_NUMBER.to_bytes(4, "big")


@pytest.mark.parametrize("tungsten", ["first", "newest"])
def test_a_directory_that_mixes_codecs_is_named(tungsten: str) -> None:
    """log-format.md: "A log directory holds one codec"."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 20)
    count = len(segment_names(disk))
    number = 1 if tungsten == "first" else count + 1
    ancestors = next(iter(golden_segments("simple-100").values()))
    disk.open(segment_path(number), write=True, create=True).close()
    disk.set_content(segment_path(number), ancestors)
    refused(
        disk, LogCodecError, rf"thl\.data\.{number:010d} of the log at {PATH} was written by the Tungsten replicator"
    )


# --- the clock, and the disk ---


def test_a_clock_before_1970_and_one_at_the_end_of_time() -> None:
    disk, clock = SimDisk(), ManualClock()
    for now in (-5_000, (1 << 62), 0):
        clock.set_ms(now)
        with open_log(disk, clock=clock, segment_bytes=1_000, retention_s=60.0) as log:
            hold(PATH, "p", Seqno(0), disk=disk, clock=clock)
            fill(log, 10)
            log.expire()
            assert log.first_seqno == 0


def outcomes(act: Callable[[Log], object], harm: Callable[[SimDisk, int], None]) -> set[str]:
    """Let `act` meet `harm` at each of its calls in turn; what was committed is there, and the log goes on."""
    met: set[str] = set()
    for call in range(1, 60):
        disk = SimDisk()
        log = open_log(disk, segment_bytes=1_000)
        fill(log, 30)
        kept = contents(log)
        start = disk.calls
        harm(disk, call)
        try:
            act(log)
            met.add("done")
        except LogError as exc:
            met.add(type(exc).__name__)
        reached = disk.calls >= start + call
        disk.fail_at, disk.room = {}, None
        if log.status().closed_because is None:
            fill(log, 2, start=30)
        try:
            log.close()
        except LogError as exc:
            met.add(type(exc).__name__)
        with open_log(disk) as log:
            found = contents(log)
            assert [one for one in found if one in kept] == [one for one in kept if one[0] >= log.first_seqno]
            numbers = [int(name[-10:]) for name in segment_names(disk)]
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
        if not reached:
            break
    return met


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_any_call_of_adding_and_trimming(number: int) -> None:
    def harm(disk: SimDisk, call: int) -> None:
        disk.fail_at = {disk.calls + call: number}

    added = outcomes(lambda log: log.add_segment(), harm)
    assert "done" in added
    assert added <= {"done", DiskFullError.__name__, DiskFailedError.__name__}
    trimmed = outcomes(lambda log: log.trim(UpToSeqno(seqno=Seqno(15))), harm)
    assert "done" in trimmed
    assert trimmed <= {"done", DiskFailedError.__name__, "PurgeFailedError"}


def test_a_disk_without_room_for_so_many_bytes() -> None:
    def harm(disk: SimDisk, call: int) -> None:
        disk.room = (call - 1) * 100

    added = outcomes(lambda log: log.add_segment(), harm)
    assert {"done", DiskFullError.__name__} <= added


def test_a_copy_with_a_foreign_file_is_no_other_log(tmp_path: Path) -> None:
    """Files that are no segments are nobody's business."""
    path = tmp_path / "log"
    with Log.open(path, source_id="x", options=LogOptions(segment_bytes=1_000)) as log:
        fill(log, 10)
    for name in ("thl.data.1", "thl.data.00000000001", "thl.data.0000000001.bak", "purged", "x"):
        (path / name).write_bytes(b"\0rubbish\xff\n")
    (path / "thl.data.backup").mkdir()
    copy = shutil.copytree(path, tmp_path / "copy")
    with Log.open_for_upkeep(copy) as log:
        log.trim(UpToSeqno(seqno=Seqno(4)))
        assert log.last_seqno == 10


# --- what an opener gives ---


@pytest.mark.parametrize("source_id", ["a\0b", "\udc80", "x" * (5 << 20)])
def test_a_source_id_that_no_record_can_hold_creates_nothing(source_id: str) -> None:
    disk = SimDisk()
    with pytest.raises(ConfigError, match="source_id") as refused_by:
        Log.open(PATH, source_id=source_id, disk=disk, clock=ManualClock())
    assert not disk.exists(PATH) and len(str(refused_by.value)) < 300


def test_a_path_with_a_nul_is_no_log(tmp_path: Path) -> None:
    path = f"{tmp_path}/a\0b"
    for opening in (lambda: Log.open(path, source_id="x"), lambda: Log.open_for_upkeep(path), lambda: verify(path)):
        with pytest.raises(LogMissingError, match="NUL"):
            opening()
    with pytest.raises(LogMissingError, match="NUL"):
        LogReader.open(path)


def test_an_empty_path_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes of a variable that is not set, and would be the folder in which the program happens to stand."""
    monkeypatch.chdir(tmp_path)
    for opening in (lambda: Log.open("", source_id="x"), lambda: LogReader.open(""), lambda: MessageStore.open("")):
        with pytest.raises(LogMissingError, match="an empty path names no directory"):
            opening()
    assert not [*tmp_path.iterdir()]


def test_a_path_of_bytes_is_a_path(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "log\udcff")
    with Log.open(path, source_id="x") as log, LogReader.open(path) as reader:  # type: ignore[arg-type]
        fill(log, 1)
        assert reader.range().last_seqno == 1


@pytest.mark.parametrize("value", [5, None, b"x"])
def test_a_name_that_is_no_text_is_refused(value: Any) -> None:
    disk = SimDisk()
    with pytest.raises(ConfigError, match=r"source_id.*: it is a text"):
        Log.open(PATH, source_id=value, disk=disk, clock=ManualClock())
    assert not disk.exists(PATH)
    odd: Any = value or 7
    with open_log(disk) as log:
        for hold_of in (lambda: log.cursor(hold=odd), lambda: hold(PATH, value, Seqno(0), disk=disk)):
            with pytest.raises(ConfigError, match="a hold's name is a plain file name"):
                hold_of()


def test_a_cursor_that_was_closed_reads_no_more() -> None:
    """It opened its files anew, for nobody to close them."""
    disk = SimDisk()
    with open_log(disk) as log, open_reader(disk) as reader:
        fill(log, 5)
        for cursor in (log.cursor(), reader.cursor()):
            assert cursor.next() is not None
            cursor.close()
            for call in (cursor.next, cursor.next_header, lambda cursor=cursor: next(cursor)):
                with pytest.raises(LogClosedError, match="this cursor was closed"):
                    call()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("segment_bytes", "100", "a whole number"),
        ("segment_bytes", None, "a whole number"),
        ("buffer_bytes", 1.5, "a whole number"),
        ("spill_above", True, "a whole number"),
        ("checksum", "no", "true or false"),
        ("sync_on_flush", 0, "true or false"),
        ("index_flush_s", float("nan"), "a number of seconds, or left out"),
        ("flush_interval_s", None, "a number of seconds"),
        ("retention_s", "7d", "a number of seconds, or left out"),
        ("retention_bytes", 1e9, "a whole number, or left out"),
    ],
)
def test_an_option_of_another_kind_is_named_before_anything_is_created(name: str, value: object, why: str) -> None:
    disk = SimDisk()
    with pytest.raises(ConfigError, match=rf"{name}.*: it is {why}\."):
        open_log(disk, **{name: value})  # type: ignore[arg-type]
    assert not disk.exists(PATH)


def test_a_message_stays_short_whatever_it_is_about() -> None:
    with open_log(SimDisk()) as log, pytest.raises(RecordLimitError) as refused_by:
        log.append(make_fragment("x" * (5 << 20)))
    assert len(str(refused_by.value)) < 300


# --- the newest segment is removed under its writer ---


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(
    "act",
    [
        lambda log: log.append(make_fragment("lost")) and log.commit(),
        lambda log: log.allocate([make_fragment("lost")]).complete(),
        lambda log: log.add_segment(),
        lambda log: log.close(),
        lambda log: log.rollback(Gtid(log.epoch, Seqno(3))),
    ],
    ids=["commit", "allocate", "add_segment", "close", "rollback"],
)
def test_nothing_is_acknowledged_into_a_segment_that_was_removed(act: Callable[[Log], object], replaced: bool) -> None:
    """A sync of a file that has no name any more succeeds, and keeps nothing."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    durable, raw = log.durable_seqno, disk.content(segment_path(1))
    disk.unlink(segment_path(1))
    if replaced:
        disk.open(segment_path(1), write=True, create=True).close()
        disk.set_content(segment_path(1), raw)
    with pytest.raises(SegmentGoneError, match=r"thl\.data\.0000000001 was removed while the log was open"):
        act(log)
    assert log.durable_seqno == durable
    with contextlib.suppress(SegmentGoneError):  # where only a reader met it so far
        log.close()
    if replaced:  # restored from a copy, as the message says; what was visible and not durable may lack
        repair(PATH, disk=disk)
        with open_log(disk) as log:
            assert [one[0] for one in contents(log)] == list(range(1, 6))


NO_GTIDS: tuple[Any, ...] = (7, None, "GTID(1, 2)", (1, 2), Gtid("1", 2), Gtid(1, None), Gtid(1.0, 2))  # type: ignore[arg-type]
NO_SEQNOS: tuple[Any, ...] = ("7", 1.5, [])
NO_LIMITS: tuple[Any, ...] = (
    7,
    None,
    "7d",
    OlderThan(ms="7d"),  # type: ignore[arg-type]
    LargerThan(bytes=None),  # type: ignore[arg-type]
    UpToSeqno(seqno=1.5),  # type: ignore[arg-type]
    UpToTime(at_ms="now"),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(
    "call",
    [
        *[lambda log, value=value: log.rollback(value) for value in NO_GTIDS],
        *[lambda log, value=value: log.trim(value) for value in NO_LIMITS],
        *[lambda log, value=value: log.trim(value, dry_run=True) for value in NO_LIMITS],
        *[lambda log, value=value: log.purge(below=value) for value in NO_SEQNOS],
        lambda log: log.append(7),
        lambda log: log.append_many([make_fragment(), 7]),
        lambda log: log.transact([7]),
    ],
)
def test_a_value_of_another_type_is_refused_and_the_log_goes_on(call: Callable[[Log], object]) -> None:
    log = open_log(SimDisk())
    fill(log, 3)
    with pytest.raises((TypeError, AttributeError)):
        call(log)
    fill(log, 1, start=3)
    log.close()


NO_TIMES = [float("nan"), -1.0, -1, float("-inf")]


@pytest.mark.parametrize("seconds", NO_TIMES)
def test_a_time_to_wait_that_is_none_is_refused_by_its_name(seconds: float) -> None:
    """Not a number is over at no moment, and what is negative is a mistake of the caller's; nothing is passed."""
    disk = SimDisk()
    with open_log(disk) as log, open_reader(disk) as reader:
        fill(log, 1)
        for cursor in (log.cursor(), reader.cursor()):
            for call in (cursor.next, cursor.next_header):
                with pytest.raises(ValueError, match="timeout_s is 0 seconds or more, not"):
                    call(seconds)
            with pytest.raises(TypeError, match="timeout_s is a number of seconds, not 'x'"):
                cursor.next("x")  # type: ignore[arg-type]
            assert cursor.next() is not None
        with pytest.raises(ValueError, match="timeout_s is 0 seconds or more, not"):
            reader.changed(reader.range(), seconds)

        async def play() -> None:
            aside = AsyncLog(log)
            with pytest.raises(ValueError, match="timeout_s is 0 seconds or more, not"):
                await aside.wait(Seqno(1), seconds)
            with pytest.raises(ValueError, match="timeout_s is 0 seconds or more, not"):
                await aside.cursor().next(seconds)

        asyncio.run(play())


def test_who_waits_without_end_in_the_writers_process_is_woken() -> None:
    with open_log(SimDisk()) as log, log.cursor() as cursor:
        cursor.seek(Seqno(log.last_seqno + 1))
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(cursor.next, float("inf"))
            fill(log, 1)
            transaction = found.result()
        assert transaction is not None


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_log_and_what_reads_it_cannot_be_copied(tmp_path: Path, duplicate: Callable[[Any], object]) -> None:
    """Its lock and files are its own. A copy of the lock would give it back."""
    with Log.open(tmp_path / "log", source_id="x") as log, LogReader.open(tmp_path / "log") as reader:
        fill(log, 1)
        for one in (log, log.cursor(), reader, reader.cursor()):
            with pytest.raises(TypeError, match=f"an open {type(one).__name__} cannot be copied or pickled"):
                duplicate(one)
        fill(log, 1, start=1)
    lock = OsDisk().lock(str(tmp_path / "lock"))
    with pytest.raises(TypeError, match="a lock cannot be copied"):
        duplicate(lock)
    gc.collect()
    assert lock.held(look=True)
    lock.release()

"""Clearing a log: issue 3, item 8, `reset`; log-format.md: a cleared log must never hand out a GTID twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tranlog.change import Fragment
from tranlog.errors import CorruptRecordError, LogLockedError, LogMissingError, LogUnreadableError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.log import Log, LogOptions, hold, read_holds
from tranlog.log.reader import LogReader
from tranlog.payload import Payload, encode
from tranlog.service.clearing import MARK_NAME, Mark, begin_after, clear_log, has_records, read_mark, removal_order
from tranlog.target.target import ChannelRow
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk

SMALL = LogOptions(segment_bytes=1000)


def write(path: Path | str, transactions: int, **options: object) -> Gtid:
    """Write so many transactions into several segments and return the last GTID."""
    with Log.open(path, source_id="till", options=SMALL, **options) as log:  # type: ignore[arg-type]
        gtid = Gtid(log.epoch, log.last_seqno)
        for number in range(transactions):
            gtid = log.append(
                Fragment(
                    source_id="till",
                    event_id=f"e:{number}",
                    shard_id="s",
                    tstamp=number,
                    tables=(),
                    payload=encode(Payload(metadata=(("filler", "x" * 200),))),
                )
            )
            log.commit()
        return gtid


def gtid(epoch: int, seqno: int) -> Gtid:
    return Gtid(Epoch(epoch), Seqno(seqno))


def row(epoch: int, seqno: int) -> ChannelRow:
    return ChannelRow(channel=0, epoch=Epoch(epoch), applied_seqno=Seqno(seqno))


MARK = Mark(epoch=3, seqno=500, event_id="e", cleared_at=0)


@pytest.mark.parametrize(
    ("mark", "rows", "after"),
    [
        (None, [], None),
        (None, [row(0, -1)], None),
        (MARK, [], gtid(3, 500)),
        (None, [row(2, 70), row(1, 80)], gtid(2, 80)),
        (MARK, [row(2, 600)], gtid(3, 600)),
        (MARK, [row(4, 70)], gtid(4, 500)),
        (None, [row(0, 499)], gtid(0, 499)),
    ],
)
def test_a_new_log_begins_behind_whatever_knows_a_position(
    mark: Mark | None, rows: list[ChannelRow], after: Gtid | None
) -> None:
    assert begin_after(mark, rows) == after


def test_a_cleared_log_goes_on_behind_itself(tmp_path: Path) -> None:
    path = tmp_path / "log"
    last = write(path, 10)
    hold(str(path), "shop", Seqno(3))
    assert clear_log(str(path), dry_run=True).mark.gtid == last
    assert has_records(str(path))
    clearing = clear_log(str(path))
    assert clearing.mark.gtid == last and clearing.mark.event_id == "e:9"
    assert clearing.bytes > 2000 and "thl.data.0000000001" in clearing.files
    assert {entry.name for entry in path.iterdir()} == {"disklog.lck", MARK_NAME, "holds"}
    assert read_holds(str(path)) == []
    with pytest.raises(LogMissingError, match="nothing to clear"):
        clear_log(str(path))
    mark = read_mark(str(path))
    assert mark is not None
    again = write(path, 1, start_after=begin_after(mark, []))
    assert again.epoch > last.epoch and again.seqno == last.seqno + 2  # a no-op stands between
    assert clear_log(str(path)).mark.gtid == again


def test_a_log_in_use_is_not_cleared(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log.open(path, source_id="till"):
        with pytest.raises(LogLockedError, match="held by another writer \\(pid"):
            clear_log(str(path))
    assert has_records(str(path))


def test_a_damaged_log_needs_to_be_told_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, 20)
    (path / "thl.data.0000000002").unlink()
    with pytest.raises(CorruptRecordError):
        clear_log(str(path))
    assert has_records(str(path)) and read_mark(str(path)) is None
    assert clear_log(str(path), after=gtid(7, 1000)).mark.gtid == gtid(7, 1000)
    assert not has_records(str(path))


def test_a_damaged_mark_is_no_mark_of_zero(tmp_path: Path) -> None:
    (tmp_path / MARK_NAME).write_text("{")
    with pytest.raises(LogUnreadableError, match="says which GTIDs were handed out"):
        read_mark(str(tmp_path))


def test_segments_go_from_the_front_and_before_what_derives_from_them() -> None:
    names = ["positions", "thl.data.0000000002", "cut", "holds", "disklog.lck", "thl.data.0000000001", "index.db", "x"]
    assert removal_order(names) == ["thl.data.0000000001", "thl.data.0000000002", "index.db", "positions"]


def test_a_loss_of_power_at_any_call_repeats_no_gtid() -> None:
    """Whatever the disk keeps of an interrupted clearing, the next writer goes on behind the last GTID."""
    calls = 0
    for point in range(1, 1000):
        disk = SimDisk()
        disk.make_dir("/log")
        disk.sync_dir("/")
        last = write("/log", 10, disk=disk, clock=ManualClock())
        before = disk.calls
        disk.cut_at = before + point
        try:
            clear_log("/log", disk=disk, clock=ManualClock())
        except PowerCut:
            pass
        else:
            calls = point
            break
        for seed in range(6):
            survived = disk.after_crash(random.Random(seed))
            mark = read_mark("/log", disk=survived)
            again = write("/log", 1, disk=survived, clock=ManualClock(), start_after=begin_after(mark, []))
            replay = f"crash at call {point}, seed {seed}"
            assert again.epoch > last.epoch and again.seqno > last.seqno, replay
            with LogReader.open("/log", disk=survived, clock=ManualClock()) as reader:
                assert reader.range().last_seqno == again.seqno, replay
    assert calls > 10, "the clearing makes that many calls, and each of them was a crash once"

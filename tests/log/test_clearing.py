"""Clearing a log, `reset`: a cleared log must never hand out a GTID twice."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tranlog.change import Fragment
from tranlog.disk import OsDisk
from tranlog.errors import CorruptRecordError, LogLockedError, LogMissingError, LogUnreadableError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files.cleared import MARK_NAME, behind_all, read_mark
from tranlog.log.reading.reader import LogReader
from tranlog.log.upkeep.clearing import clear_log, has_records, removal_order
from tranlog.log.writing.log import Log, LogOptions, hold, read_holds
from tranlog.payload import Payload, encode
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


@pytest.mark.parametrize(
    ("known", "after"),
    [
        ([], None),
        ([gtid(0, -1)], None),
        ([gtid(3, 500)], gtid(3, 500)),
        ([gtid(2, 70), gtid(1, 80)], gtid(2, 80)),
        ([gtid(3, 500), gtid(2, 600)], gtid(3, 600)),
        ([gtid(3, 500), gtid(4, 70)], gtid(4, 500)),
        ([gtid(0, 499)], gtid(0, 499)),
    ],
)
def test_a_new_log_begins_behind_whatever_knows_a_position(known: list[Gtid], after: Gtid | None) -> None:
    assert behind_all(known) == after


def test_any_writer_begins_behind_a_cleared_log(tmp_path: Path) -> None:
    """format.md, "The directory"; decision 0005: no GTID twice, by the public API too, and the source goes on."""
    path = tmp_path / "log"
    last = write(path, 198)
    with LogReader.open(path) as reader:
        history = reader.history
    clear_log(str(path))
    with Log.open(path, source_id="till") as log:
        assert (log.epoch, log.first_seqno) == (last.epoch + 1, last.seqno + 1)
        assert log.last_event_id() == "e:197", "where a source resumes behind"
        assert log.history == history
    with Log.open(path, source_id="till") as log:
        assert (log.epoch, log.history, log.last_event_id()) == (last.epoch + 2, history, "e:197")
    clear_log(str(path), keep_position=False)
    with Log.open(path, source_id="till", start_after=gtid(1, 1_000)) as log:
        assert (log.epoch, log.first_seqno) == (last.epoch + 3, 1_001)
        assert log.last_event_id() is None


def test_a_writer_that_was_cut_off_before_its_first_record_is_followed_by_one_that_begins_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    last = write(path, 5)
    clear_log(str(path))
    write(path, 0)
    segment = path / "thl.data.0000000001"
    raw = segment.read_bytes()
    (path / "positions").unlink()
    for end in (0, 10, 16, 30):
        segment.write_bytes(raw[:end])
        with Log.open(path, source_id="till") as log:
            assert (log.epoch, log.first_seqno, log.last_event_id()) == (last.epoch + 1, last.seqno + 1, "e:4"), end
        (path / "positions").unlink()


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
    again = write(path, 1)
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
    assert has_records(str(path)) and read_mark(str(path), disk=OsDisk()) is None
    assert clear_log(str(path), after=gtid(7, 1000)).mark.gtid == gtid(7, 1000)
    assert not has_records(str(path))


def test_an_end_that_is_told_too_low_is_not_believed(tmp_path: Path) -> None:
    """A GTID that the log still shows to be assigned is not assigned again."""
    path = tmp_path / "log"
    write(path, 5)
    last = write(path, 5)
    mark = clear_log(str(path), after=gtid(1, 3)).mark
    assert (mark.gtid, mark.event_id) == (last, "e:4")


def test_a_damaged_mark_is_no_mark_of_zero(tmp_path: Path) -> None:
    (tmp_path / MARK_NAME).write_text("{")
    with pytest.raises(LogUnreadableError, match="says which GTIDs were assigned"):
        read_mark(str(tmp_path), disk=OsDisk())


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
            again = write("/log", 1, disk=survived, clock=ManualClock())
            replay = f"crash at call {point}, seed {seed}"
            assert again.epoch > last.epoch and again.seqno > last.seqno, replay
            with LogReader.open("/log", disk=survived, clock=ManualClock()) as reader:
                assert reader.range().last_seqno == again.seqno, replay
    assert calls > 10, "the clearing makes that many calls, and each of them was a crash once"

"""The lock file is asked before every write (`log.ownership`): whoever has lost the log changes nothing of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_log import PATH, contents, fill, make_fragment, make_payload, open_log
from tranlog.errors import LogClosedError, LogLockedError, SegmentGoneError
from tranlog.log.writing.log import Log, LogOptions
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def many(log: Log) -> None:
    for number in range(50):
        log.append(make_fragment(f"late {number}", make_payload(number, 100)))


def spill(log: Log) -> None:
    with log.begin() as opened:
        for part in range(4):
            opened.add(make_fragment("late", bytes(500) + bytes([part])))


WRITES: dict[str, Callable[[Log], object]] = {
    "a full buffer": many,
    "many at once": lambda log: log.append_many([make_fragment(f"late {n}", bytes(200)) for n in range(30)]),
    "a commit": lambda log: log.append(make_fragment("late")) and log.commit(),
    "a commit without sync": lambda log: log.append(make_fragment("late")) and log.commit(sync=False),
    "an allocation": lambda log: log.allocate([make_fragment("late", bytes(900))]).write(),
    "a large transaction": lambda log: log.transact([make_fragment("late", bytes(3_000))]),
    "spill": spill,
    "a segment": lambda log: log.add_segment(),
    "a purge": lambda log: log.purge(below=log.visible_seqno),
    "a rollback": lambda log: log.rollback(log.cursor().next().header.gtid),  # type: ignore[union-attr]
    "a rotation": lambda log: (
        [log.append(make_fragment("late", bytes(900), last=n == 6)) for n in range(7)]
        + [log.append(make_fragment("late"))]
    ),
    "its end": lambda log: [log.append(make_fragment("late")), log.close()],  # type: ignore[func-returns-value]
    "its end, with nothing to write": lambda log: log.close(),
}


@pytest.mark.parametrize("write", WRITES)
def test_who_lost_the_lock_file_changes_no_byte(write: str) -> None:
    """Beside a second writer that found it missing: a buffer's flush and an allocation overwrote what that one had."""
    disk, clock = SimDisk(), ManualClock()
    given = {"segment_bytes": 4_000, "buffer_bytes": 1_000, "spill_buffer_bytes": 1, "spill_chunk_bytes": 1}
    log = open_log(disk, clock=clock, **given)
    fill(log, 45)
    disk.unlink(f"{PATH}/disklog.lck")
    other = open_log(disk, clock=clock, **given)
    fill(other, 5, start=45)
    before = {name: disk.content(f"{PATH}/{name}") for name in disk.list_dir(PATH)}
    with pytest.raises(LogLockedError, match="replaced or removed"):
        WRITES[write](log)
    with pytest.raises(LogClosedError, match=r"replaced or removed|it was closed"):
        log.append(make_fragment("later"))
    log.close()
    assert {name: disk.content(f"{PATH}/{name}") for name in disk.list_dir(PATH)} == before
    fill(other, 5, start=50)
    other.close()
    with open_log(disk) as again:
        assert again.recovered.clean
        assert [one[1] for one in contents(again)] == [f"e{number}" for number in range(55)]


def test_an_allocation_is_stopped_in_its_midst() -> None:
    """Each slice asks: the lock file may go while a large transaction is written."""
    disk = SimDisk()
    log = open_log(disk)
    allocation = log.allocate([make_fragment("large", bytes(300_000))])
    changing = disk._changing

    def watch(kind: str, path: str) -> int:
        if kind == "pwrite" and len(disk.content(path)) > 150_000:
            disk._changing = changing  # type: ignore[method-assign]
            disk.unlink(f"{PATH}/disklog.lck")
        return changing(kind, path)

    disk._changing = watch  # type: ignore[method-assign]
    with pytest.raises(LogLockedError):
        allocation.write()
    log.close()
    assert len(disk.content(f"{PATH}/thl.data.0000000001")) < 290_000


def test_a_commit_whose_lock_goes_during_its_sync_is_not_acknowledged() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 2)

    def steal(path: str) -> None:
        disk.before_sync = None
        disk.unlink(f"{PATH}/disklog.lck")

    disk.before_sync = steal
    log.append(make_fragment("e2"))
    with pytest.raises(LogLockedError):
        log.commit()
    log.close()


def test_a_directory_that_was_moved_away_is_another_one(tmp_path: Path) -> None:
    """What stands at the path then is not this writer's to make, remove or rename segments in."""
    path = tmp_path / "log"
    log = Log.open(path, source_id="db1", options=LogOptions(segment_bytes=4_000))
    fill(log, 3)
    os.rename(path, tmp_path / "away")
    with Log.open(path, source_id="db1", options=LogOptions(segment_bytes=4_000)) as other:
        fill(other, 200)
        other.add_segment()
        fill(other, 3, start=200)
        with pytest.raises((LogLockedError, SegmentGoneError)):  # its own segment is missed first, or its lock file
            fill(log, 200, start=3)
        log.close()
    with Log.open(path, source_id="db1") as again:
        assert [one[1] for one in contents(again)] == [f"e{number}" for number in range(203)]

"""log/writing/member.py: committed is what a group has told, and neither what is durable nor what a scan proves.

docs/format.md, "positions".
"""

from __future__ import annotations

import pytest

from fix_log import PATH, after_restart, forget_positions, make_fragment, open_reader, read_all
from tranlog.errors import RollbackError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files.commit_point import COMMIT_NAME, read_commit_point, write_commit_point
from tranlog.log.files.positions import read_positions
from tranlog.log.options import LogOptions
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.log.writing.member import MemberLog
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def gtid(epoch: int, seqno: int) -> Gtid:
    return Gtid(Epoch(epoch), Seqno(seqno))


def follow(disk: SimDisk, clock: ManualClock | None = None, **options: int) -> MemberLog:
    given = LogOptions(**options)  # type: ignore[arg-type]
    return MemberLog.follow(PATH, source_id="db1", options=given, disk=disk, clock=clock or ManualClock())


def give(log: MemberLog, epoch: int, *seqnos: int) -> None:
    for seqno in seqnos:
        log.append_given(make_fragment(f"e{seqno}", b"x" * 200), gtid(epoch, seqno))


def committed(view: Log | LogReader) -> list[int]:
    with view.cursor(committed_only=True) as cursor:
        return [one.header.seqno for one in read_all(cursor)]


def test_durable_is_not_committed() -> None:
    """Status, cursor, gate, positions and another process's reader stop at what was told; visible goes on."""
    disk = SimDisk()
    with follow(disk) as log, open_reader(disk) as reader:
        give(log, 1, 0, 1, 2, 3)
        log.commit()
        assert log.status().durable_seqno == 3 and log.status().committed_seqno == -1
        assert committed(log) == committed(reader) == []
        log.commit_to(gtid(1, 1))
        found = reader.range()
        assert (found.last_seqno, found.durable_seqno, found.committed_seqno) == (3, 3, 1)
        assert committed(log) == committed(reader) == [0, 1]
        assert log.gate(committed_only=True).wait(Seqno(2), 0.0) == 1
        assert log.gate().wait(Seqno(3), 0.0) == 3
        log.commit_to(gtid(1, 0))
        assert log.status().committed_seqno == 1, "a commit point never goes back"


def test_what_is_committed_and_not_durable_here_waits_for_the_sync() -> None:
    disk = SimDisk()
    with follow(disk) as log:
        give(log, 1, 0, 1)
        log.commit(sync=False)
        log.commit_to(gtid(1, 1))
        assert log.status().committed_seqno == -1
        log.commit()
        assert log.status().committed_seqno == 1 and committed(log) == [0, 1]


def test_nothing_committed_is_abandoned() -> None:
    disk = SimDisk()
    with follow(disk) as log:
        give(log, 1, 0, 1, 2, 3)
        log.commit()
        log.commit_to(gtid(1, 2))
        with pytest.raises(RollbackError, match="the group has committed everything up to seqno 2"):
            log.abandon_after(gtid(1, 1))
        log.abandon_after(gtid(1, 2))
        give(log, 2, 3)
        log.commit()
        assert log.status().committed_seqno == 2


def test_nothing_is_purged_before_it_is_committed() -> None:
    disk = SimDisk()
    with follow(disk, segment_bytes=1_000) as log:
        give(log, 1, *range(20))
        log.commit()
        assert log.purge(below=Seqno(19)) == []
        log.commit_to(gtid(1, 10))
        assert log.purge(below=Seqno(19)) != []
        assert 5 < log.first_seqno <= 10


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_the_next_opening_goes_on_where_it_was_told(how: str) -> None:
    disk, clock = SimDisk(), ManualClock()
    log = follow(disk, clock)
    give(log, 1, 0, 1, 2, 3)
    log.commit()
    log.commit_to(gtid(1, 1))
    log.commit_to(gtid(1, 2))
    if how == "killed":
        disk.kill()
    else:
        log.close()
    with follow(disk, clock) as log:
        assert log.status().committed_seqno == 2
    with Log.open_for_upkeep(PATH, disk=disk, clock=clock) as upkeep:
        assert upkeep.status().committed_seqno == 2, "nor does upkeep take what is durable for committed"


def test_without_positions_committed_is_what_the_member_kept() -> None:
    """After a start of the machine, and in a copy: once a second it is written down, and at the end."""
    disk, clock = SimDisk(), ManualClock()
    log = follow(disk, clock)
    give(log, 1, 0, 1, 2, 3)
    log.commit()
    for seqno in (0, 1):
        log.commit_to(gtid(1, seqno))
    assert read_commit_point(PATH, disk) == gtid(1, 0)
    clock.sleep(1.5)
    log.commit_to(gtid(1, 1))
    assert read_commit_point(PATH, disk) == gtid(1, 1)
    log.commit_to(gtid(1, 2))
    log.close()
    later = after_restart(disk)
    with open_reader(later) as reader:
        found = reader.range()
        assert found.scanned and (found.last_seqno, found.durable_seqno, found.committed_seqno) == (3, 3, 2)
        assert committed(reader) == [0, 1, 2]
    with follow(later) as log:
        assert log.status().committed_seqno == 2


def test_a_kept_commit_point_that_the_log_does_not_hold_says_nothing() -> None:
    """A copy may have been made while the log went back: its number alone would commit what was abandoned."""
    disk = SimDisk()
    with follow(disk) as log:
        give(log, 1, 0, 1)
        give(log, 3, 2)
        log.commit()
    forget_positions(disk)
    for point in (gtid(2, 2), gtid(3, 3), None):
        if point is None:
            disk.open(f"{PATH}/{COMMIT_NAME}", write=True).pwrite(b"epoch=3 seqno=2 crc=00000000", 0)
        else:
            write_commit_point(PATH, point, disk)
        with open_reader(disk) as reader:
            assert reader.range().committed_seqno == -1 and committed(reader) == []
        forget_positions(disk)
    write_commit_point(PATH, gtid(3, 2), disk)
    with open_reader(disk) as reader:
        assert committed(reader) == [0, 1, 2]


def test_a_log_without_a_group_commits_what_is_durable() -> None:
    disk = SimDisk()
    with Log.open(PATH, source_id="db1", disk=disk, clock=ManualClock()) as log:
        log.transact([make_fragment("a")])
        assert log.status().committed_seqno == log.status().durable_seqno == 1
    found = read_positions(PATH, disk)
    assert found is not None and found.committed_seqno == 1

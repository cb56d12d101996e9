"""log/writing/member.py: committed is what a group has told, and what a reign leaves behind.

docs/format.md, "positions".
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fix_log import (
    PATH,
    after_restart,
    append_large,
    contents,
    flip,
    forget_positions,
    make_fragment,
    open_log,
    open_reader,
    read_all,
    run_threads,
    segment_path,
)
from tranlog.change import Fragment
from tranlog.disk import DiskFile
from tranlog.errors import CorruptRecordError, DiskFullError, MemberLogError, NotPrimaryError, RollbackError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files.commit_point import COMMIT_NAME, MISSING_NAME, read_commit_point, write_commit_point, write_whose
from tranlog.log.files.positions import read_positions
from tranlog.log.options import LogOptions
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.format import CRC_NONE, HEADER, RecordHeader, SyncRecord, parse_record
from tranlog.log.rules.numbering import Numbering
from tranlog.log.upkeep.clearing import clear_log
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.allocation import records_of
from tranlog.log.writing.log import Log, hold, read_holds
from tranlog.log.writing.member import MemberLog
from tranlog.lsn import lsn, lsn_offset
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import PowerCut, SimDisk


def gtid(epoch: int, seqno: int) -> Gtid:
    return Gtid(Epoch(epoch), Seqno(seqno))


def follow(disk: SimDisk, clock: ManualClock | None = None, **options: int) -> MemberLog:
    given = LogOptions(**options)  # type: ignore[arg-type]
    return MemberLog.follow(PATH, source_id="db1", options=given, disk=disk, clock=clock or ManualClock())


def raw_of(fragment: Fragment, at: Gtid, *, checksum: bool = True) -> bytes:
    return b"".join(records_of([fragment], at, checksum=checksum))


def give(log: MemberLog, epoch: int, *seqnos: int) -> None:
    for seqno in seqnos:
        log.append_raw(raw_of(make_fragment(f"e{seqno}", b"x" * 200), gtid(epoch, seqno)))


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


@pytest.mark.parametrize(
    "opening",
    [
        lambda disk: Log.open(PATH, source_id="db1", disk=disk),
        lambda disk: Log.open(PATH, source_id="db1", disk=disk, numbering=Numbering.GIVEN),
        lambda disk: Log.open_for_upkeep(PATH, disk=disk),
    ],
    ids=["open", "given", "upkeep"],
)
def test_nobody_else_writes_the_log_of_a_member(opening: Callable[[SimDisk], object]) -> None:
    """The error says whose it is; the log may be read."""
    disk = SimDisk()
    with follow(disk) as log:
        give(log, 1, 0)
        log.commit()
    with pytest.raises(MemberLogError, match=r"belongs to a node of a group: only the node may write it. Nothing was"):
        opening(disk)
    write_whose(PATH, "node a of group shop", disk)
    with pytest.raises(MemberLogError, match="belongs to node a of group shop: only"):
        opening(disk)
    with open_reader(disk) as reader:
        assert reader.range().last_seqno == 0


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


# --- leading ------------------------------------------------------------------------------------------------


def own(log: Log) -> list[tuple[int, int, str, bool]]:
    with log.cursor() as cursor:
        return [(one.header.epoch, one.header.seqno, one.header.event_id, one.is_noop()) for one in read_all(cursor)]


def test_a_follower_takes_nothing_of_its_own() -> None:
    disk = SimDisk()
    with follow(disk) as log:
        give(log, 1, 0)
        calls: list[Callable[[], object]] = [
            lambda: log.append(make_fragment("a")),
            lambda: log.append_many([make_fragment("a")]),
            lambda: log.transact([make_fragment("a")]),
            lambda: log.allocate([make_fragment("a")]),
            log.begin,
        ]
        for call in calls:
            with pytest.raises(NotPrimaryError):
                call()
        give(log, 1, 1)
        log.commit()
        assert [one[:2] for one in own(log)] == [(1, 0), (1, 1)]


def test_a_leader_begins_the_epoch_that_it_was_told() -> None:
    disk = SimDisk()
    with follow(disk) as log:
        give(log, 1, 0)
        log.append_raw(raw_of(make_fragment("half", last=False), gtid(6, 1)))
        assert log.lead(Epoch(5)) == gtid(5, 1)
        assert log.status().durable_seqno == 1 and log.status().committed_seqno == -1
        assert log.transact([make_fragment("a")]) == gtid(5, 2)
        log.unlead()
        log.unlead()
        give(log, 5, 3)
        give(log, 7, 4)
        log.commit()
        assert [one[:2] for one in own(log)] == [(1, 0), (5, 1), (5, 2), (5, 3), (7, 4)]
        assert log.lead(Epoch(8)) == gtid(8, 5)
    with follow(disk) as log:
        assert log.last_seqno == 5 and log.epoch == 8


def test_a_leader_says_whether_its_own_records_have_checksums() -> None:
    """docs/format.md, "Sync record": those that it took over may have none."""
    disk = SimDisk()
    with follow(disk) as log:
        for seqno in range(3):
            log.append_raw(raw_of(make_fragment("a"), gtid(1, seqno), checksum=False))
        log.lead(Epoch(2))
        log.transact([make_fragment("b")])
        log.unlead()
        log.append_raw(raw_of(make_fragment("c"), gtid(3, 5), checksum=False))
        log.commit()
    report = verify(PATH, disk=disk)
    assert (report.problems, report.transactions, report.unchecked) == ((), 6, 4)
    raw, at, said, have = disk.content(segment_path(1)), HEADER.size, None, []
    while isinstance(record := parse_record(raw, at, lsn(1, at)), SyncRecord | RecordHeader):
        if isinstance(record, SyncRecord):
            said = record.checksums
        else:
            have.append(record.crc_method != CRC_NONE)
            assert said is have[-1]
        at += record.record_length
    assert have == [False, False, False, True, True, False]


@pytest.mark.parametrize("taken_by", ["abandon_open", "abandon_after", "full disk"])
def test_the_epoch_of_what_was_taken_back_does_not_count(taken_by: str) -> None:
    """A transaction of a later epoch came, in part or whole, and is gone: what follows may be of one between."""
    disk = SimDisk()
    with follow(disk, buffer_bytes=100) as log:
        give(log, 1, 0)
        log.commit()
        if taken_by == "full disk":
            disk.room = 0
            with pytest.raises(DiskFullError):
                give(log, 7, 1)
            disk.room = None
        else:
            log.append_raw(raw_of(make_fragment("half", last=False), gtid(7, 1)))
            if taken_by == "abandon_open":
                log.abandon_open()
            else:
                assert log.abandon_after(gtid(1, 0)) is None
        assert log.epoch == 1
        give(log, 3, 1)
        log.commit()
        published = read_positions(PATH, disk)
        assert published is not None and published.epoch == 3
        assert log.lead(Epoch(4)) == gtid(4, 2)
    assert verify(PATH, disk=disk).problems == ()


def test_a_leader_takes_no_records_of_another() -> None:
    with follow(SimDisk()) as log:
        log.lead(Epoch(1))
        with pytest.raises(AssertionError):
            give(log, 1, 1)


def test_what_is_open_when_a_reign_ends_is_nothing_in_the_next_one() -> None:
    """Each kind once, by one thread; the second reign begins before any of them goes on."""
    disk = SimDisk()
    with follow(disk, spill_buffer_bytes=100) as log:
        log.lead(Epoch(1))
        held, spilled = log.begin(), log.begin()
        held.add(make_fragment("held", b"x"))
        for _ in range(3):
            spilled.add(make_fragment("spilled", b"x" * 200))
        assert spilled.oid and not held.oid
        place = log.allocate([make_fragment("place", b"y" * 500)])
        written = log.allocate([make_fragment("written", b"y" * 500)])
        written.write()
        log.unlead()
        log.lead(Epoch(2))
        for call in (held.commit, spilled.commit, place.complete, written.complete):
            with pytest.raises(NotPrimaryError):
                call()
        assert log.transact([make_fragment("next")]) == gtid(2, 4)
        assert [(epoch, seqno, noop) for epoch, seqno, _, noop in own(log)] == [
            (1, 0, True),
            (1, 1, True),
            (1, 2, True),
            (2, 3, True),
            (2, 4, False),
        ]


@pytest.mark.long
def test_a_reign_ends_in_the_midst_of_eight_threads(tmp_path: Path) -> None:
    """What was acknowledged is there, whole; all else ended with NotPrimaryError, and is there whole or not at all."""
    log = MemberLog.follow(
        tmp_path / "log", source_id="db1", options=LogOptions(spill_above=4_000, segment_bytes=60_000)
    )
    going = threading.Event()
    going.set()
    done: dict[str, Gtid] = {}
    ended: list[int] = []

    def pieces(name: str, count: int, size: int) -> list[Fragment]:
        return [make_fragment(name, f"<{name}>".encode() * size, last=at == count - 1) for at in range(count)]

    def write(number: int) -> None:
        made = 0
        while going.is_set():
            made += 1
            name = f"{number}.{made}"
            try:
                kind = (number + made) % 4
                if kind == 0:
                    gtid = log.transact(pieces(name, 1, 5))
                elif kind == 1:
                    for fragment in pieces(name, 3, 20):
                        gtid = log.append(fragment)
                    log.commit()
                elif kind == 2:
                    with log.allocate(pieces(name, 2, 40)) as place:
                        gtid = place.gtid
                else:
                    with log.begin() as transaction:
                        for fragment in pieces(name, 3, 300):
                            transaction.add(fragment)
                        gtid = transaction.commit()
                done[name] = gtid
            except NotPrimaryError:
                ended.append(number)
                time.sleep(0.001)

    def reign() -> None:
        try:
            for epoch in range(1, 6):
                log.lead(Epoch(epoch))
                reached = len(done) + 40
                while len(done) < reached:
                    time.sleep(0.001)
                log.unlead()
                status = log.status()
                assert status.last_seqno == status.visible_seqno == status.durable_seqno
                assert log.abandon_after(last_of(log)) is None, "nothing is open"
        finally:
            going.clear()

    run_threads(reign, *(partial(write, number) for number in range(8)))
    assert ended
    found: dict[str, Gtid] = {}
    with log.cursor() as cursor:
        for one in read_all(cursor):
            if not one.is_noop():
                name = one.header.event_id
                assert name not in found
                found[name] = one.header.gtid
                parts = list(one.payloads())
                count = {5: 1, 20: 3, 40: 2, 300: 3}[parts[0].count(b"<")]
                assert len(parts) == count and set(parts) == {parts[0]} and parts[0].startswith(f"<{name}>".encode())
    assert {name: found.get(name) for name in done} == done
    log.close()
    assert verify(tmp_path / "log").sound


def last_of(log: Log) -> Gtid:
    header = log.last()
    assert header is not None
    return header.gtid


class SlowFile:
    """A file whose sync begins and ends when the test says so."""

    def __init__(self, file: DiskFile) -> None:
        self._file = file
        self.began, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self.began.set()
        assert self.go_on.wait(60)
        self._file.sync()


def test_a_commit_that_waits_when_a_reign_ends_is_told() -> None:
    with follow(SimDisk()) as log:
        log.lead(Epoch(1))
        end = log._end
        file = SlowFile(end.journal.file)
        end.journal.file = file  # type: ignore[assignment]
        reign = end.reign

        def commit() -> None:
            log.append(make_fragment("a"))
            with pytest.raises(NotPrimaryError):
                log.commit()

        def wait_beside() -> None:
            assert file.began.wait(60)
            log.append(make_fragment("b"))
            with pytest.raises(NotPrimaryError):
                log.commit()

        def unlead() -> None:
            while len(end.steps.commits) < 1:
                time.sleep(0.001)
            log.unlead()

        def let_go() -> None:
            while end.reign == reign:
                time.sleep(0.001)
            file.go_on.set()

        run_threads(commit, wait_beside, unlead, let_go)
        assert own(log) == [(1, 0, "", True), (1, 1, "a", False), (1, 2, "b", False)]
        assert log.status().durable_seqno == 2


# --- what comes as bytes --------------------------------------------------------------------------------------


def test_what_was_abandoned_comes_again_with_its_chunks_and_holds_go_back_with_it() -> None:
    """docs/format.md, "holds/NAME": a follower's is lowered to the seqno after the matchpoint."""
    source_disk, disk = SimDisk(), SimDisk()
    with open_log(source_disk, spill_above=2_000) as source, follow(disk) as log:
        for name in ("one", "two"):
            append_large(source, name, [name.encode() * 300] * 4)
        source.commit()
        for _ in range(2):
            with source.cursor() as cursor:
                cursor.seek(Seqno(log.last_seqno + 1))
                for stretch in cursor.stretches():
                    for chunk in stretch.chunks():
                        log.put_chunk(chunk)
                    log.append_raw(stretch.raw)
            log.commit()
            assert contents(log) == contents(source)
            hold(PATH, "node.db2", Seqno(log.last_seqno + 1), follower=True, disk=disk, clock=ManualClock())
            mark = log.abandon_after(gtid(1, 1))
            assert mark is not None and mark.last_seqno == 2
            assert [one.restart_seqno for one in read_holds(PATH, disk=disk)] == [2]
    report = verify(PATH, disk=disk)
    assert report.problems == () and report.transactions == 2


def test_a_log_whose_end_was_repaired_away_says_so_until_that_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    """format.md, "group/missing": a voter that forgot its log would elect anybody."""
    disk = SimDisk()
    with follow(disk) as log:
        give(log, 1, *range(6))
        log.commit()
        assert log.missing_seqno is None
        last = log.header(Seqno(3))
        assert last is not None
    flip(disk, segment_path(1), lsn_offset(last.lsn) + 30)
    with pytest.raises(CorruptRecordError, match="nothing was changed"):
        follow(disk)
    before = disk.after_crash(random.Random(1))
    calls = disk.calls
    assert repair(PATH, disk=disk).after is not None
    calls = disk.calls - calls
    for _ in range(2):
        caplog.clear()
        with follow(disk) as log:
            assert (log.visible_seqno, log.missing_seqno) == (2, 5)
        assert "tranlog group reconfigure --force" in caplog.text and "missing_seqno=5" in caplog.text
    with follow(disk) as log:
        log.missing_noted()
        assert log.missing_seqno is None
    with follow(disk.after_crash(random.Random(1))) as log:
        assert log.missing_seqno is None
    for cut in range(1, calls + 1, 3):
        disk = before.after_crash(random.Random(cut))
        disk.cut_at = disk.calls + cut
        with contextlib.suppress(PowerCut):
            repair(PATH, disk=disk)
        disk = disk.after_crash(random.Random(cut))
        repair(PATH, disk=disk)
        with follow(disk) as log:
            assert (log.visible_seqno, log.missing_seqno) == (2, 5), cut


def test_a_reset_takes_the_end_away_too_and_no_group_no_word() -> None:
    disk, alone = SimDisk(), SimDisk()
    with follow(disk) as log:
        give(log, 1, *range(4))
        log.commit()
    clear_log(PATH, disk=disk)
    with follow(disk) as log:
        assert log.missing_seqno == 3
    with open_log(alone) as ours:
        ours.commit()
    clear_log(PATH, disk=alone)
    assert not alone.exists(f"{PATH}/{MISSING_NAME}")

"""What a rollback keeps, and that a crash at any call of it, of a reign's beginning or of a vote is made good.

Proves docs/protocol.md, "Syncup"; conformance/tokumx.md A10, B16, B26, B27, B29.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fix_effort import Effort
from fix_group import gtid
from fix_log import HISTORY, PATH, append_large
from fix_replicated import bring, copied, cut_everywhere, follow, ops_of, reign, write
from tranlog.change import Payload, Statement
from tranlog.errors import DiskFailedError, DiskFullError
from tranlog.ids import Gtid, Seqno
from tranlog.log.options import LogOptions
from tranlog.log.upkeep.verify import verify
from tranlog.payload import decode, encode
from tranlog.replication.acting.following import LogChange, NodeLog
from tranlog.replication.acting.rollback import (
    discard,
    read_operations,
    read_rollback,
    read_transactions,
    save,
    saved_rollbacks,
)
from tranlog.replication.acting.state import StateFile
from tranlog.replication.rules.effects import BeginReign, Committed, EndReign, RollBack
from tranlog.replication.rules.packets import NO_GTID
from tranlog.replication.rules.stored import Stored
from tranlog.replication.rules.syncup import ROLLBACK_STEPS, Saved
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def roll_back(log: NodeLog, matchpoint: Gtid) -> None:
    assert log.carry_out(RollBack(matchpoint, log.last, ROLLBACK_STEPS)) is LogChange.ROLLED_BACK


def read_saved(disk: SimDisk) -> list[Saved]:
    return [row for rid in saved_rollbacks(PATH, disk) for row in read_operations(PATH, rid, disk)]


def told(disk: SimDisk) -> list[tuple[int, int, str, str]]:
    rows = read_saved(disk)
    assert all(row.gtid_string == str(row.gtid) for row in rows)
    found = []
    for row in rows:
        assert isinstance(row.op, dict)
        found.append((row.rid, row.seq, row.gtid_string, row.op.get("statement") or row.op["op"]))
    return found


def test_what_goes_is_saved_newest_first() -> None:
    disk, clock = SimDisk(), ManualClock(77)
    log = follow(disk, clock)
    reign(log, 1, "ab", "cd")
    reign(log, 3, "e")
    roll_back(log, gtid(1, 1))
    assert told(disk) == [
        (0, 0, "GTID(3, 4)", "e"),
        (0, 1, "GTID(3, 3)", "NOOP"),
        (0, 2, "GTID(1, 2)", "d"),
        (0, 3, "GTID(1, 2)", "c"),
    ]
    assert {row.time for row in read_saved(disk)} == {77}
    assert (log.last, log.mark, log.log.epoch) == (gtid(1, 1), 1, 1)
    reign(log, 5, "f")
    roll_back(log, gtid(1, 1))
    assert [row[0] for row in told(disk)[4:]] == [1, 1]
    for number in range(2):
        disk.unlink(f"{PATH}/rollback/{number}")
    reign(log, 6, "g")
    roll_back(log, gtid(1, 1))
    assert {row[0] for row in told(disk)} == {0}, "all discarded: rid begins at 0"


@pytest.mark.long
def test_a_million_operations_go(tmp_path: Path) -> None:
    """conformance/tokumx.md D, rollback4.js: no limit of size; each is there once, the newest first."""
    path = str(tmp_path / "log")
    log = NodeLog.follow(path, source_id="db1", history=HISTORY, options=LogOptions(spill_above=500_000))
    log.carry_out(BeginReign(1))
    changes = tuple([Statement(schema="s", sql=str(at), ddl=False) for at in range(1_000)])
    raw = encode(Payload(changes=changes))
    for _ in range(20):  # transactions of 50,000, which spill
        append_large(log.log, "large", [raw] * 50)
    log.sync()
    log.carry_out(EndReign())
    roll_back(log, gtid(1, 0))
    assert log.last == gtid(1, 0)
    log.close()
    with (tmp_path / "log" / "rollback" / "0").open("rb") as file:
        next(file)
        for seq, line in enumerate(file):
            if seq % 999 == 0 or seq == 999_999:
                row = msgspec.json.decode(line, type=Saved)
                assert isinstance(row.op, dict)
                assert (row.seq, row.op["statement"]) == (seq, str((999_999 - seq) % 1_000))
    assert seq == 999_999
    assert verify(path).problems == ()


def test_large_transactions_are_saved_whole() -> None:
    disk = SimDisk()
    log = follow(disk)
    reign(log, 1)
    log.carry_out(BeginReign(2))
    payload = encode(Payload(changes=(Statement(schema="s", sql="x" * 900, ddl=False),)))
    append_large(log.log, "spilled", [payload] * 6)
    log.sync()
    log.carry_out(EndReign())
    roll_back(log, gtid(1, 0))
    assert [row[:3] for row in told(disk)] == [(0, seq, "GTID(2, 2)") for seq in range(6)] + [(0, 6, "GTID(2, 1)")]


@pytest.mark.parametrize("segments", [1, 3])
def test_a_log_with_nothing_in_common_is_emptied(segments: int) -> None:
    disk, source = SimDisk(), follow(SimDisk())
    log = follow(disk, segment_bytes=1_000)
    reign(log, 1, *"abcdefgh" * segments)
    assert len(log.log.segments()) >= segments
    reign(source, 2, "other")
    mark = log.mark
    roll_back(log, NO_GTID)
    assert (log.first, log.last, log.mark > mark) == (0, NO_GTID, True)
    assert [row[3] for row in told(disk)] == ([*"abcdefgh"] * segments)[::-1] + ["NOOP"]
    bring(source, log)
    assert copied(log) == copied(source) and log.log.history == source.log.history
    log.close()
    assert verify(PATH, disk=disk).problems == ()


def test_what_was_saved_can_be_committed_again() -> None:
    """Oldest first, whole, and without no-ops; discarded, it is gone, and the next rollback is number 0."""
    disk, clock = SimDisk(), ManualClock(77)
    log = follow(disk, clock)
    reign(log, 1, "ab", "cd")
    before = [tuple(one.changes()) for one in log.log.cursor().scan(until=log.log.visible_seqno) if not one.is_noop()]
    roll_back(log, NO_GTID)
    found = list(read_transactions(PATH, 0, disk))
    assert [(one.gtid, one.event_id) for one in found] == [("GTID(1, 1)", "ab"), ("GTID(1, 2)", "cd")]
    assert [tuple(change for part in one.payloads for change in decode(part).changes) for one in found] == before
    summary = read_rollback(PATH, 0, lambda one: one == gtid(1, 1), disk)
    assert (summary.transactions, summary.operations, summary.time, summary.last) == (3, 5, 77, gtid(1, 2))
    assert summary.back == 1
    discard(PATH, 0, disk)
    assert saved_rollbacks(PATH, disk) == []
    reign(log, 2, "e")
    roll_back(log, NO_GTID)
    assert saved_rollbacks(PATH, disk) == [0]


def test_a_disk_that_is_full_abandons_nothing() -> None:
    disk = SimDisk()
    log = follow(disk)
    reign(log, 1, "a")
    last = log.last
    disk.room = 10
    with pytest.raises(DiskFullError):
        roll_back(log, gtid(1, 0))
    assert log.last == last and told(disk) == []
    disk.room = None
    roll_back(log, gtid(1, 0))
    assert [row[:2] for row in told(disk)] == [(0, 0)]


def test_a_harmed_file_is_named() -> None:
    disk = SimDisk()
    log = follow(disk)
    reign(log, 1, "a")
    save(log.log, gtid(1, 0), log.last, ManualClock())
    disk.set_content(f"{PATH}/rollback/0", b"?")
    with pytest.raises(DiskFailedError, match=r"rollback/0.*its first line does not say"):
        save(log.log, gtid(1, 0), log.last, ManualClock())
    head = b'{"rid":0,"matchpoint":{"epoch":1,"seqno":0},"last":{"epoch":1,"seqno":0}}'
    disk.set_content(f"{PATH}/rollback/0", head + b"\n{}\n")
    with pytest.raises(DiskFailedError, match=r"rollback/0.*the line at byte 74 is no operation"):
        list(read_operations(PATH, 0, disk))


# --- crashes ---------------------------------------------------------------------------------------------


LAST = gtid(3, 5)


def prepared(disk: SimDisk) -> NodeLog:
    log = follow(disk, segment_bytes=1_000)
    reign(log, 1, "ab", "cd", "ef")
    log.carry_out(Committed(gtid(1, 1)))
    reign(log, 3, "gh")
    assert log.last == LAST
    return log


@pytest.mark.parametrize("matchpoint", [gtid(1, 2), gtid(1, 1)])
@pytest.mark.long
def test_a_rollback_is_whole_after_a_crash_at_any_call(matchpoint: Gtid, effort: Effort) -> None:
    def act(disk: SimDisk) -> None:
        roll_back(follow(disk, segment_bytes=1_000), matchpoint)

    def check(disk: SimDisk) -> None:
        log = follow(disk, segment_bytes=1_000)
        rows = told(disk)
        assert log.last in (LAST, matchpoint)
        if log.last == matchpoint:
            assert rows, "abandoned before it was saved"
        else:
            roll_back(log, matchpoint)
        gone = [row.gtid.seqno for row in read_saved(disk)]
        assert gone == sorted(gone, reverse=True) and set(gone) == set(range(matchpoint.seqno + 1, 6))
        assert [row[:2] for row in told(disk)] == [(0, seq) for seq in range(len(gone))], "once, under one number"
        assert log.last == matchpoint and log.committed() in (NO_GTID, gtid(1, 1))
        reign(log, 4, "later")
        log.close()
        assert verify(PATH, disk=disk).problems == ()

    def before(disk: SimDisk) -> None:
        prepared(disk).close()

    assert cut_everywhere(before, act, check, effort(1, 5, 50)) > 20


@pytest.mark.long
def test_an_emptying_begins_again_after_a_crash_at_any_call(effort: Effort) -> None:
    def before(disk: SimDisk) -> None:
        log = follow(disk, segment_bytes=1_000)
        reign(log, 1, *"abcdefgh")
        log.close()

    def act(disk: SimDisk) -> None:
        roll_back(follow(disk, segment_bytes=1_000), NO_GTID)

    def check(disk: SimDisk) -> None:
        log = follow(disk, segment_bytes=1_000)
        assert log.first == 0, "what is left is a beginning"
        if log.last != NO_GTID:
            roll_back(log, NO_GTID)
        saved = [row for row in read_saved(disk) if row.rid == 0]
        assert [row.gtid.seqno for row in saved] == list(range(8, -1, -1))
        reign(log, 2, "other")
        assert log.last == gtid(2, 1)
        log.close()
        assert verify(PATH, disk=disk).problems == ()

    assert cut_everywhere(before, act, check, effort(1, 5, 50)) > 20


@pytest.mark.long
def test_a_reign_that_a_crash_cuts_off_has_its_no_op_or_nothing(effort: Effort) -> None:
    def act(disk: SimDisk) -> None:
        log = follow(disk, segment_bytes=1_000)
        log.carry_out(BeginReign(4))
        write(log, "mine")
        log.carry_out(EndReign())

    def check(disk: SimDisk) -> None:
        log = follow(disk, segment_bytes=1_000)
        assert log.last in (LAST, gtid(4, 6), gtid(4, 7)) and log.gtid(5) == LAST
        assert log.last.seqno < 6 or log.log.header(Seqno(6)).tables == ()  # type: ignore[union-attr]
        reign(log, 5)
        log.close()
        assert verify(PATH, disk=disk).problems == ()

    def before(disk: SimDisk) -> None:
        prepared(disk).close()

    assert cut_everywhere(before, act, check, effort(1, 5, 50)) > 10


@pytest.mark.long
def test_a_vote_that_a_crash_cuts_off_is_the_former_or_the_new_one(effort: Effort) -> None:
    """Two votes: before the first is told it is durable, and no crash takes it back."""
    group = "g"
    votes = [Stored(group=group, node="a", epoch=epoch) for epoch in (1, 2, 3)]  # type: ignore[arg-type]
    given: list[Stored] = []

    def act(disk: SimDisk) -> None:
        file = StateFile(disk, "/")
        file.load(group)
        given[:] = votes[:1]
        for vote in votes[1:]:
            file.store(vote)
            given.append(vote)

    def check(disk: SimDisk) -> None:
        found = StateFile(disk, "/").load(group)
        assert found in votes and found.epoch >= given[-1].epoch  # type: ignore[union-attr]

    calls = cut_everywhere(lambda disk: StateFile(disk, "/").store(votes[0]), act, check, effort(1, 20, 200))
    assert calls == 8


def test_ops_are_what_thl_shows() -> None:
    assert ops_of(Statement(schema="s", sql="x", ddl=True))["ddl"] is True

"""A node's log under its core's effects: the real one, on a disk in memory.

Proves docs/protocol.md, "The order of things"; conformance/tokumx.md A3.5, A4.3, A4.7, B2, B13, B33.
"""

from __future__ import annotations

import random

import pytest

from fix_group import gtid
from fix_log import HISTORY, PATH, append_large, fill, make_fragment
from fix_replicated import bring, copied, follow, ops_of
from tranlog.change import Payload, Statement
from tranlog.errors import NotPrimaryError
from tranlog.ids import NO_SEQNO, Gtid, Seqno
from tranlog.log.files.holds import read_holds
from tranlog.log.records.spill import RawChunk
from tranlog.log.rules.rollback import FOLLOWERS
from tranlog.payload import encode
from tranlog.replication.acting.following import LogChange, NodeLog, carries_out
from tranlog.replication.rules.effects import (
    BeginReign,
    Committed,
    DropChunks,
    EndReign,
    Fatal,
    KeepAlive,
    KeepFrom,
    Put,
    PutChunk,
    ReplicatedLog,
)
from tranlog.replication.rules.packets import NO_GTID
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk


def looked_up(log: ReplicatedLog) -> list[Gtid | None]:
    return [log.gtid(seqno) for seqno in range(-1, log.last.seqno + 2)]


def test_the_rules_see_the_log_as_it_is() -> None:
    """Any history of reigns: in memory as by reading every header, also after an opening that knows none of it."""
    rng = random.Random(5)
    disk = SimDisk()
    log = follow(disk, segment_bytes=1_500)
    assert (log.first, log.last, log.durable, log.mark) == (0, NO_GTID, NO_GTID, 0)
    assert log.last_of_epoch(9) == NO_GTID and log.gtid(0) is None and log.h(-1) == 0
    epoch = 0
    for _ in range(12):
        epoch += rng.randrange(1, 4)
        log.carry_out(BeginReign(epoch))
        fill(log.log, rng.randrange(4))
        log.log.commit(sync=rng.random() < 0.5)
        log.carry_out(EndReign())
        if rng.random() < 0.3:
            log.close()
            log = follow(disk, segment_bytes=1_500)
        with log.log.cursor() as cursor:
            held = [header.gtid for _ in range(log.last.seqno + 1) if (header := cursor.next_header()) is not None]
        again = NodeLog(log.log, disk, ManualClock(), {})
        for one in (log, again):
            assert looked_up(one) == [None, *held, None]
            for asked in range(epoch + 2):
                below = [found for found in held if found.epoch <= asked]
                assert one.last_of_epoch(asked) == (below[-1] if below else NO_GTID)
            assert one.durable == one.last == held[-1]
    assert log.h(3) == log.log.h(Seqno(3)) not in (0, log.h(2))


def test_a_reign_begins_with_its_no_op_and_ends_with_the_writers() -> None:
    log = follow(SimDisk())
    with pytest.raises(NotPrimaryError):
        log.log.append(make_fragment("a"))
    assert log.carry_out(BeginReign(3)) is LogChange.LOGGED
    assert log.last == log.durable == gtid(3, 0)
    assert log.carry_out(KeepAlive()) is LogChange.LOGGED
    assert (log.last, log.durable) == (gtid(3, 1), gtid(3, 0))
    log.sync()
    assert log.durable == gtid(3, 1)
    log.carry_out(EndReign())
    with pytest.raises(NotPrimaryError):
        log.carry_out(KeepAlive())


def test_a_follower_becomes_equal_chunk_by_chunk() -> None:
    source, log = follow(SimDisk()), follow(SimDisk(), segment_bytes=2_000)
    source.carry_out(BeginReign(1))
    for count in range(4):
        fill(source.log, 3)
        append_large(source.log, f"several{count}", [b"x" * 300] * 3)
        append_large(source.log, f"spilled{count}", [bytes([part]) * 900 for part in range(6)])
    source.log.commit()
    bring(source, log, limit=700)
    assert copied(source) == copied(log) and log.durable < log.last == source.last
    log.sync()
    assert log.durable == source.last and log.open_spills() == {}


def test_chunks_come_before_their_transaction_ends_and_go_with_it() -> None:
    source, log = follow(SimDisk(), spill_buffer_bytes=1_000, spill_chunk_bytes=1_000), follow(SimDisk())
    source.carry_out(BeginReign(1))
    bring(source, log)
    open_one, other = source.log.begin(), source.log.begin()
    for one in (open_one, other):
        for _ in range(4):
            one.add(make_fragment("large", b"y" * 900, last=False))
    for chunk in source.open_chunks({}):
        assert log.carry_out(PutChunk(chunk, 0, len(chunk.raw))) is LogChange.NOTHING
    assert log.open_spills() == source.open_spills() and len(log.open_spills()) == 2
    assert not list(source.open_chunks(source.open_spills()))
    for chunk in (kept := list(source.open_chunks({}))[-4:]):  # its next part, or another follower, is next
        assert next(source.open_chunks({**source.open_spills(), chunk.oid: chunk.seq})) is chunk, len(kept)
    (gone,) = source.open_spills().keys() - {chunk.oid for chunk in list(source.open_chunks({}))[:1]}
    log.carry_out(DropChunks(gone))
    assert len(log.open_spills()) == 1
    source.carry_out(EndReign())
    source.carry_out(BeginReign(2))
    bring(source, log)
    assert not log.open_spills() and not source.open_spills(), "nobody ends what an earlier reign began"


def test_what_cannot_be_put_is_asked_for_again() -> None:
    source, log = follow(SimDisk()), follow(SimDisk())
    source.carry_out(BeginReign(1))
    append_large(source.log, "spilled", [bytes([part]) * 900 for part in range(6)])
    source.log.commit()
    out = source.outgoing(-1, 1, 1)
    assert out.chunks is None and log.carry_out(Put(out.raw[:-1] + b"?")) is LogChange.UNUSABLE
    assert log.carry_out(Put(out.raw)) is LogChange.LOGGED
    out = source.outgoing(0, 1, 1)
    assert out.chunks is not None and log.carry_out(Put(out.raw)) is LogChange.UNUSABLE and log.last == gtid(1, 0)
    first = next(out.chunks(0))
    assert log.carry_out(PutChunk(RawChunk(first.oid, 1, 0, 3, b"abc"), 0, 3)) is LogChange.UNUSABLE
    bring(source, log)
    assert copied(source) == copied(log)


def test_committed_is_kept_for_the_next_opening_where_the_log_still_holds_it() -> None:
    disk = SimDisk()
    with follow(disk).log as _:
        pass
    log = follow(disk)
    log.carry_out(BeginReign(2))
    fill(log.log, 3)
    log.sync()
    assert log.committed() == NO_GTID
    log.carry_out(Committed(gtid(2, 2)))
    log.close()
    assert follow(disk).committed() == gtid(2, 2)


def test_holds_rise_once_a_second_and_searches_end_with_the_node() -> None:
    disk, clock = SimDisk(), ManualClock()
    log = follow(disk, clock)

    def held() -> dict[str, int | None]:
        return {one.name: one.restart_seqno for one in read_holds(PATH, disk=disk)}

    for name, seqno in (("node.b", 5), ("restore.b", 3), ("node.c", 1), ("node.b", 9), ("node.c", 0)):
        log.carry_out(KeepFrom(name, seqno))
    assert held() == {"node.b": 5, "restore.b": 3, "node.c": 0} and all(one.startswith(FOLLOWERS) for one in held())
    clock.advance(1)
    log.carry_out(KeepFrom("node.b", 9))
    log.carry_out(KeepFrom("node.c", None))
    assert held() == {"node.b": 9, "restore.b": 3}
    clock.advance(1)
    for name in ("node.b", "node.c"):
        moved = KeepFrom(name, 11, held=True)
        assert not log.waits(moved)
        log.carry_out(moved)
    assert held() == {"node.b": 11, "restore.b": 3}, "a hold that is there moves, and none is made"
    log.close()
    log = follow(disk, clock)
    assert held() == {"node.b": 11}
    clock.advance(1)
    log.carry_out(KeepFrom("node.b", 9, held=True))
    assert held() == {"node.b": 9}, "one that an earlier start made, too"
    log.forget_others({"b"})
    assert held() == {"node.b": 9}
    log.forget_others({"c"})
    assert held() == {}


def test_when_a_transaction_was_logged_is_known_after_a_restart() -> None:
    """The document's 30 minutes are those of this node's clock, not of the source's."""
    disk, clock = SimDisk(), ManualClock(0)
    log = follow(disk, clock, segment_bytes=1_000)
    log.carry_out(BeginReign(1))
    times = [0]
    for minute in range(1, 12):
        clock.set_ms(minute * 60_000)
        log.log.append(make_fragment(f"e{minute}", b"x" * 100))
        times.append(minute * 60_000)
        if minute % 3:
            log.log.commit()
    log.log.commit()
    assert [log.written_at(seqno) for seqno in range(12)][-1] <= times[-1]
    log.close()
    clock.set_ms(999_999_999)
    log = follow(disk, clock, segment_bytes=1_000)
    for seqno, at in enumerate(times):
        assert at - 60_000 <= log.written_at(seqno) <= at, seqno
    log.carry_out(BeginReign(2))
    assert log.written_at(12) == 999_999_999


def test_ddl_is_found_in_what_goes() -> None:
    log = follow(SimDisk())
    log.carry_out(BeginReign(1))
    statement = Statement(schema="s", sql="CREATE TABLE t (id int)", ddl=True)
    for payload in (encode(Payload()), encode(Payload(changes=(statement,))), encode(Payload())):
        log.log.append(make_fragment("e", payload))
    log.sync()
    assert [log.has_ddl(after) for after in range(NO_SEQNO, 3)] == [True, True, True, False]
    assert ops_of(statement)["statement"] == statement.sql


def test_what_is_the_nodes_own_is_not_the_logs() -> None:
    assert carries_out(KeepAlive()) and not carries_out(Fatal("why"))
    assert follow(SimDisk()).log.history == HISTORY

"""Large transactions go in parts: no frame is too large, and neither end holds more than a record.

Proves docs/protocol.md, "The order of things".
"""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_group import B, gtid
from fix_live_group import LONG_S, differences, live_group
from fix_log import HISTORY, PATH, append_large, fill, make_fragment
from fix_replicated import copied, follow
from tranlog.ids import Seqno
from tranlog.log.options import LogOptions
from tranlog.log.reading.reader import LogReader
from tranlog.log.records.spill import RawChunk
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log
from tranlog.replication.acting.following import LogChange, NodeLog
from tranlog.replication.rules.effects import BeginReign, DropChunks, DropParts, Put, PutChunk, Send
from tranlog.replication.rules.feed import CREDIT, Feeder
from tranlog.replication.rules.packets import (
    NO_GTID,
    RAW_BYTES,
    RAW_BYTES_MAX,
    Follow,
    Records,
    SpillChunk,
    encode,
    frame_size,
)
from tranlog.testing.disk import SimDisk

NO_SPILL = 1 << 30


def reigning(spill_above: int) -> NodeLog:
    log = follow(SimDisk(), spill_above=spill_above)
    log.carry_out(BeginReign(1))
    return log


def received(packet: Records | SpillChunk) -> Put | PutChunk:
    """Return what a follower's core makes of a packet that comes in its turn."""
    if isinstance(packet, Records):
        return Put(packet.raw, packet.part, packet.last > packet.after)
    chunk = RawChunk(packet.oid, packet.seq, packet.codec, packet.raw_length, packet.raw)
    return PutChunk(chunk, packet.offset, packet.size)


def fed(source: NodeLog, log: NodeLog) -> Iterator[Records | SpillChunk]:
    """Feed a log, acks and all; yield the packets."""
    feeder = Feeder()
    feeder.begin(B, Follow(number=1, after=log.last, credit=CREDIT), source)
    while log.last != source.last:
        credit = 0
        for one in feeder.pump(source, NO_GTID, 1, 0):
            if isinstance(one, Send):
                packet = one.packet
                assert isinstance(packet, Records | SpillChunk)
                frame = encode(packet)
                assert frame_size(frame[:8]) == len(frame)
                if isinstance(packet, Records):
                    assert packet.after == log.last
                assert log.carry_out(received(packet)) is not LogChange.UNUSABLE
                credit += len(packet.raw)
                yield packet
        assert credit
        feeder.acked(B, log.last, credit)


def bring_first(source: NodeLog, log: NodeLog) -> None:
    assert log.carry_out(Put(source.outgoing(-1, 0, 1).raw)) is LogChange.LOGGED and log.last == gtid(1, 0)


def test_captured_fragments_go_a_frame_at_a_time() -> None:
    """More than a frame may hold, in many fragments that were not spilled; others before and behind it."""
    source, log = reigning(spill_above=NO_SPILL), follow(SimDisk(), spill_above=NO_SPILL)
    fill(source.log, 3)
    append_large(source.log, "captured", [bytes([part]) * 400_000 for part in range(20)])
    fill(source.log, 3)
    source.log.commit()
    sent = list(fed(source, log))
    assert all(len(one.raw) <= RAW_BYTES for one in sent) and sum(len(one.raw) for one in sent) > RAW_BYTES_MAX
    large = [one for one in sent if isinstance(one, Records) and one.after == gtid(1, 3)]
    assert [one.part for one in large] == list(range(len(large))) and len(large) > 8_000_000 // RAW_BYTES
    assert [one.last for one in large] == [gtid(1, 3)] * (len(large) - 1) + [gtid(1, 4)]
    assert copied(source) == copied(log) and log.h(7) == source.h(7)
    log.sync()
    assert verify(PATH, disk=log.log.disk).problems == ()


@pytest.mark.parametrize("spilled", [False, True])
def test_a_row_may_be_larger_than_a_frame(spilled: bool) -> None:
    """As a record, or as the one chunk that it is of a spilled transaction."""
    source, log = reigning(spill_above=3_000 if spilled else NO_SPILL), follow(SimDisk())
    append_large(source.log, "row", [b"r" * (RAW_BYTES_MAX + 100_000)])
    fill(source.log, 1)
    source.log.commit()
    sent = list(fed(source, log))
    chunks = [(one.offset, one.size) for one in sent if isinstance(one, SpillChunk)]
    assert bool(chunks) is spilled and len(sent) >= 2
    assert [offset for offset, _ in chunks] == [at * RAW_BYTES for at in range(len(chunks))]
    assert copied(source) == copied(log)


@pytest.mark.long
def test_neither_end_holds_the_transaction(tmp_path: Path) -> None:
    """50 MB in fragments of 1 MB, from a log to another one on this machine's disk: a few records' worth of memory."""
    logs = []
    for name in ("source", "follower"):
        options = LogOptions(spill_above=NO_SPILL)
        logs.append(NodeLog.follow(str(tmp_path / name), source_id="db1", history=HISTORY, options=options))
    source, log = logs
    source.carry_out(BeginReign(1))
    append_large(source.log, "captured", [bytes([part]) * 1_000_000 for part in range(50)])
    source.log.commit()
    tracemalloc.start()
    assert sum(1 for _ in fed(source, log)) > 50_000_000 // RAW_BYTES
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000
    log.sync()
    for one in logs:
        one.close()
    assert verify(str(tmp_path / "follower")).problems == ()


def parts_of(source: NodeLog) -> list[Put]:
    """Return what a follower is told of the transaction after the no-op."""
    puts: list[Put] = []
    rest = None
    while not puts or rest is not None:
        out = source.outgoing(0, 1, 1, rest)
        rest = out.rest
        puts.append(Put(out.raw, len(puts), rest is None))
    return puts


def test_a_line_that_breaks_leaves_nothing_behind() -> None:
    """A source that goes away inside a transaction: another one begins it again, or never had it."""
    source = reigning(spill_above=NO_SPILL)
    source.part_bytes = 500
    append_large(source.log, "captured", [bytes([part]) * 900 for part in range(9)])
    source.log.commit()
    puts = parts_of(source)
    assert len(puts) > 15
    disk = SimDisk()
    log = follow(disk, spill_above=NO_SPILL, buffer_bytes=1_000)
    assert log.carry_out(puts[3]) is LogChange.UNUSABLE, "before the first"
    bring_first(source, log)
    for kept in (1, 4, 7, len(puts) - 1):
        for put in puts[:kept]:
            assert log.carry_out(put) is LogChange.LOGGED and log.last == gtid(1, 0)
        match kept:
            case 1:
                pass  # the next stream begins with the first part
            case 4:
                log.carry_out(DropParts())
                log.log.add_segment()  # nobody waits for what will not come
            case 7:
                log.sync()
                log.close()
                log = follow(disk, spill_above=NO_SPILL, buffer_bytes=1_000)
            case _:
                assert log.carry_out(Put(puts[-1].raw[:-1] + b"?", kept)) is LogChange.UNUSABLE
    for put in puts:
        log.carry_out(put)
    assert copied(log) == copied(source)
    log.sync()
    assert verify(PATH, disk=log.log.disk).problems == ()


def test_who_is_elected_inside_a_transaction_forgets_it() -> None:
    source, log = reigning(spill_above=NO_SPILL), follow(SimDisk(), spill_above=NO_SPILL)
    source.part_bytes = 500
    append_large(source.log, "captured", [bytes([part]) * 900 for part in range(9)])
    source.log.commit()
    bring_first(source, log)
    for put in parts_of(source)[:5]:
        log.carry_out(put)
    log.carry_out(BeginReign(2))
    assert log.last == gtid(2, 1)
    log.log.append(make_fragment("own", b"first", last=False))
    log.carry_out(DropParts())  # those are gone already, and this one is no follower's
    log.log.append(make_fragment("own", b"last"))
    log.log.commit()
    assert log.last == gtid(2, 2) and log.h(2) not in (0, log.h(1))


def test_a_chunk_that_lacks_a_part_is_not_put() -> None:
    log, oid = follow(SimDisk()), bytes(16)
    whole = b"abcdefgh"

    def put(offset: int, raw: bytes) -> LogChange:
        return log.carry_out(PutChunk(RawChunk(oid, 0, 0, len(whole), raw), offset, len(whole)))

    assert put(0, b"abc") is LogChange.NOTHING
    assert put(5, b"fgh") is LogChange.UNUSABLE
    assert put(0, b"abc") is put(3, b"de") is LogChange.NOTHING and not log.open_spills()
    log.carry_out(DropChunks(oid))
    assert put(5, b"fgh") is LogChange.UNUSABLE
    for offset in range(0, 8, 2):
        assert put(offset, whole[offset : offset + 2]) is LogChange.NOTHING
    assert log.open_spills() == {oid: 1}
    ((found,),) = [list(log.open_chunks({}))]
    assert found.raw == whole


def test_one_thread_goes_on_with_what_another_began() -> None:
    """One thread at a time, whichever has the turn: the fragments of one transaction are no thread's own."""
    source, log = reigning(spill_above=NO_SPILL), follow(SimDisk(), spill_above=NO_SPILL)
    append_large(source.log, "large", [bytes([part]) * 400_000 for part in range(8)])
    source.log.commit()
    packets = fed(source, log)
    sent: list[Records | SpillChunk | None] = [next(packets)]
    while sent[-1] is not None:
        other = threading.Thread(target=lambda: sent.append(next(packets, None)), daemon=True)
        other.start()
        other.join(LONG_S)
        assert not other.is_alive()
    assert len(sent) > 8 and copied(source) == copied(log)


@pytest.mark.long
def test_a_log_of_large_transactions_becomes_a_groups(tmp_path: Path) -> None:
    """In many fragments, and in one row: more than a frame holds, which no member would have written so."""
    with Log.open(tmp_path / "a", source_id="shop") as log:
        for fragments in ([b"f" * 900_000] * 12, [b"r" * (RAW_BYTES_MAX + 900_000)]):
            append_large(log, "large", fragments)
        log.commit()
    with live_group(tmp_path) as group:
        group.await_whole()
        assert all(len(node.standing.config.members) == 3 for node in group.nodes.values())
    for name in "bc":
        assert differences(tmp_path / "a", tmp_path / name) == ""
        with LogReader.open(tmp_path / name) as reader, reader.cursor() as cursor:
            sizes = [one.size_bytes for one in cursor.scan(until=Seqno(2), wait=False)]
        assert sizes[1] > 10_000_000 and sizes[2] > RAW_BYTES_MAX

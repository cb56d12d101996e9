"""A log that takes over records as the bytes that they are in another one: no number and no byte of its own."""

from __future__ import annotations

import random

import pytest

from fix_log import HISTORY, PATH, append_large, contents, fill, make_fragment, open_log, open_reader, read_all
from tranlog.errors import AppendOrderError, DiskFullError, RawRecordError
from tranlog.ids import NO_EPOCH, Epoch, Gtid, Seqno
from tranlog.log.reading.reader import LogRange
from tranlog.log.records.spill import RawChunk, parse_reference
from tranlog.log.rules.numbering import Numbering
from tranlog.log.rules.raw_records import RawFault, walk_raw
from tranlog.log.upkeep.diff import diff
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.allocation import records_of
from tranlog.log.writing.log import Log, LogOptions
from tranlog.log.writing.member import MemberLog
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk, SimFile


def follower(disk: SimDisk, **given: int | bool) -> Log:
    options = LogOptions(**({"ahead_bytes": 0} | given))  # type: ignore[arg-type]
    return Log.open(
        PATH,
        source_id="db1",
        disk=disk,
        clock=ManualClock(),
        options=options,
        history=HISTORY,
        numbering=Numbering.GIVEN,
    )


def gtid(epoch: int, seqno: int) -> Gtid:
    return Gtid(Epoch(epoch), Seqno(seqno))


def raw_of(event_id: str, at: Gtid, *payloads: bytes, checksum: bool = True) -> bytes:
    """Return a transaction's records, a fragment for each payload."""
    row = [make_fragment(event_id, one, last=number == len(payloads)) for number, one in enumerate(payloads, 1)]
    return b"".join(records_of(row, at, checksum=checksum))


def records(log: Log) -> tuple[list[tuple[int, bytes]], list[object]]:
    """Return a log's records, byte by byte, and of those that refer to spilled transactions what every copy has."""
    references: list[object] = []
    with log.cursor() as cursor:
        for transaction in read_all(cursor):
            if transaction.header.spilled:
                (record,) = transaction.in_log()
                reference = parse_reference(record.payload)
                assert reference is not None
                told = (reference.oid, reference.chunks, reference.fragments, reference.raw_bytes)
                references.append((record.header.gtid, record.header.tables, told, list(transaction.chunks())))
    with log.cursor() as cursor:
        return list(cursor.raw()), references


def copy(source: Log, log: Log) -> None:
    """Bring over what follows, chunks in front of what refers to them."""
    with source.cursor() as cursor:
        cursor.seek(Seqno(log.last_seqno + 1))
        for stretch in cursor.stretches():
            for chunk in stretch.chunks():
                log.put_chunk(chunk)
            log.append_raw(stretch.raw)
    log.commit()


def test_it_keeps_the_numbers_and_adds_none() -> None:
    disk = SimDisk()
    with follower(disk) as log:
        assert (log.epoch, log.last_seqno) == (NO_EPOCH, -1)
        assert log.append_raw(raw_of("a", gtid(1, 0), b"1", b"2") + raw_of("b", gtid(4, 1), b"3")) == gtid(4, 1)
        for wrong in (gtid(4, 1), gtid(4, 3), gtid(3, 2)):
            with pytest.raises(RawRecordError, match="offset 0, where seqno 2 belongs"):
                log.append_raw(raw_of("c", wrong, b""))
        log.commit()
    with follower(disk) as log:
        assert (log.epoch, log.last_seqno) == (4, 1)
        log.append_raw(raw_of("c", gtid(4, 2), b""))
        log.commit()
    with open_log(disk) as log:
        assert (log.epoch, log.last_seqno) == (5, 3), "its own epoch has a no-op"
        assert [one[1] for one in contents(log)][:3] == ["a", "b", "c"]


@pytest.mark.parametrize("checksum", [True, False])
def test_two_logs_are_equal_record_by_record(checksum: bool) -> None:
    """Padding and fragments stay as they came, and segments may differ."""
    rng = random.Random(4)
    disk, other = SimDisk(), SimDisk()
    for _ in range(2):  # epochs
        with open_log(disk, segment_bytes=4_000, checksum=checksum, spill_above=3_000) as log:
            for _ in range(4):
                fill(log, rng.randrange(1, 9), size=rng.randrange(300))
                append_large(log, "several", [bytes(rng.randrange(400)) for _ in range(3)])
                log.allocate([make_fragment("", b"")]).complete()  # padded
                append_large(log, "spilled", [bytes([part]) * 1_000 for part in range(5)])
                log.commit()
            with follower(other, segment_bytes=1_000 * rng.randrange(1, 9)) as held:
                copy(log, held)
                assert len(records(log)[1]) >= 4
                assert records(held) == records(log)
                with open_reader(disk) as one, open_reader(other) as two:
                    found = diff(one, two, full=True)
                    assert found.agree and not found.differing and found.only_one.count == found.only_other.count == 0
                assert held.history == log.history
    assert verify(PATH, disk=other).problems == ()
    with open_reader(disk) as one, open_reader(other) as two:
        assert contents(one) == contents(two)


def test_a_batch_may_end_inside_a_transaction() -> None:
    disk = SimDisk()
    raw = raw_of("a", gtid(2, 0), *(bytes([part]) * 50 for part in range(6)))
    size = len(raw) // 6
    with follower(disk) as log:
        log.append_raw(raw[: 4 * size])
        log.commit()
        assert log.visible_seqno == -1
        with pytest.raises(RawRecordError, match="seqno 0 fragment 5 in place of fragment 4"):
            log.append_raw(raw[5 * size :])
        log.abandon_open()
        log.append_raw(raw_of("b", gtid(1, 0), b"x"))  # another line, of an earlier epoch
        raw = raw_of("c", gtid(3, 1), b"x", b"y", b"z")
        for at in range(0, len(raw), len(raw) // 3):  # fragment by fragment, the first of an epoch
            log.append_raw(raw[at : at + len(raw) // 3])
        log.commit()
        assert [one[1] for one in contents(log)] == ["b", "c"] and log.epoch == 3
    assert verify(PATH, disk=disk).problems == ()


@pytest.mark.parametrize("spoil", ["flip", "cut", "sync", "epoch"])
def test_what_is_bad_is_named_and_nothing_of_it_is_put(spoil: str) -> None:
    good = raw_of("a", gtid(2, 0), b"x" * 30) + raw_of("b", gtid(2, 1), b"y" * 30)
    last = raw_of("c", gtid(1 if spoil == "epoch" else 2, 2), b"z" * 30)
    bad = {"flip": last[:-20] + b"?" + last[-19:], "cut": last[:-1], "sync": b"\0\0\0\x1a\x03" + bytes(21)}
    with follower(SimDisk()) as log:
        with pytest.raises(RawRecordError, match=f"offset {len(good)}, where seqno 2 belongs"):
            log.append_raw(good + bad.get(spoil, last))
        assert log.last_seqno == -1
        assert log.append_raw(good) == gtid(2, 1)


def test_epochs_without_checksums_are_told_of() -> None:
    """docs/format.md, "Sync record": one in front of an epoch says whether its records have checksums."""
    disk = SimDisk()
    with follower(disk) as log:
        for epoch in range(1, 5):
            for seqno in (epoch * 2 - 2, epoch * 2 - 1):
                log.append_raw(raw_of("e", gtid(epoch, seqno), b"x", checksum=epoch % 2 == 0))
    with follower(disk) as log:  # it goes on in the last one's
        log.append_raw(raw_of("e", gtid(4, 8), b"x"))
        log.append_raw(raw_of("e", gtid(5, 9), b"x", checksum=False))
        log.commit()
    report = verify(PATH, disk=disk)
    assert (report.problems, report.transactions, report.unchecked) == ((), 10, 5)


def test_what_a_full_disk_takes_comes_again() -> None:
    disk = SimDisk()
    with follower(disk, buffer_bytes=100) as log:
        log.append_raw(raw_of("a", gtid(1, 0), b"x"))
        log.commit()
        disk.room = 0
        with pytest.raises(DiskFullError):
            log.append_raw(raw_of("b", gtid(3, 1), b"y" * 5_000))
        disk.room = None
        assert log.append_raw(raw_of("c", gtid(2, 1), b"z")) == gtid(2, 1), "its epoch was taken back, too"
        log.commit()
    assert verify(PATH, disk=disk).problems == ()


def test_chunks_come_before_the_record_that_refers_to_them() -> None:
    """tokumx-replication, "Large Transactions": under the oid of the primary, also while the transaction is open."""
    disk, other = SimDisk(), SimDisk()
    with open_log(disk, spill_chunk_bytes=500, spill_buffer_bytes=500) as log, follower(other) as held:
        transaction = log.begin()
        for part in range(8):
            transaction.add(make_fragment("large", bytes([part]) * 300))
        early = list(log.open_chunks())
        assert [chunk.seq for chunk in early] == [0, 1, 2]
        for chunk in early * 2:  # once more, after a connection broke
            held.put_chunk(chunk)
        with pytest.raises(AppendOrderError, match="without the one before it"):
            held.put_chunk(RawChunk(early[0].oid, 4, 0, 1, b"x"))
        with pytest.raises(AppendOrderError, match="does not hold as much as it says"):
            held.put_chunk(RawChunk(early[0].oid, 3, 0, 2, b"x"))
        transaction.commit()
        assert list(log.open_chunks()) == []
        with log.cursor() as cursor, pytest.raises(RawRecordError, match="not all here"):
            held.append_raw(b"".join(one.raw for one in cursor.stretches()))
        copy(log, held)
        with held.cursor() as cursor:
            assert [list(one.chunks())[:3] for one in read_all(cursor)] == [[], early]
        assert records(held) == records(log) and contents(held) == contents(log)
        assert held.spill_segments()[0].referred_by == held.header(Seqno(1)).gtid  # type: ignore[union-attr]
        with log.cursor() as cursor:
            assert [one.last for one in cursor.stretches(until=Seqno(0))] == [0]
    assert verify(PATH, disk=other).problems == ()


def test_chunks_that_were_sent_are_not_walked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they stand is known: what is new costs as much after many chunks as after one."""
    disk = SimDisk()
    with open_log(disk, spill_chunk_bytes=100, spill_buffer_bytes=100) as log:
        transaction = log.begin()
        read, real = [0], SimFile.pread

        def pread(self: SimFile, size: int, offset: int) -> bytes:
            read[0] += 1
            return real(self, size, offset)

        monkeypatch.setattr(SimFile, "pread", pread)
        cost = set()
        for part in range(50):
            transaction.add(make_fragment("large", b"x" * 100, last=False))
            have = {oid: count - 1 for oid, count in log.open_spills().items()}
            read[0] = 0
            assert [chunk.seq for chunk in log.open_chunks(have)] == list(have.values())
            if part:
                cost.add(read[0])
        assert len(cost) == 1 and cost != {0}
        transaction.add(make_fragment("large", b"x"))
        transaction.commit()
        with log.cursor() as cursor:
            (large,) = [one for one in read_all(cursor) if one.header.spilled]
        list(large.chunks(48))
        read[0] = 0
        list(large.chunks(48))
        assert read[0] <= 4 * min(cost), "and not a look at each of 50"


def test_chunks_that_are_given_up_free_their_space() -> None:
    with follower(SimDisk()) as log:
        log.put_chunk(RawChunk(bytes(16), 0, 0, 100, bytes(100)))
        assert len(log.spill_segments()) == 1
        log.drop_chunks(bytes(16))
        log.drop_chunks(b"another one's ..")
        assert log.spill_segments() == []


def test_headers_of_a_log_that_is_open() -> None:
    """`header`, and `last_of_epoch` by halving."""
    with follower(SimDisk(), segment_bytes=1_000) as log:
        assert log.range() == LogRange()
        assert log.header(Seqno(0)) is None and log.last_of_epoch(9) is None
        seqno, ends = 0, {}
        for epoch in (2, 3, 7, 8):
            for _ in range(epoch):
                log.append_raw(raw_of("e", gtid(epoch, seqno), b"x" * 100))
                seqno += 1
            ends[epoch] = gtid(epoch, seqno - 1)
        log.commit()
        for epoch in range(1, 10):
            assert log.last_of_epoch(epoch) == max((end for end in ends.values() if end.epoch <= epoch), default=None)
        assert [header.seqno for at in range(seqno) if (header := log.header(Seqno(at)))] == list(range(seqno))
        assert log.header(Seqno(seqno)) is None
        held = log.range()
        assert (held.first_seqno, held.last_seqno, held.durable_seqno, held.epoch) == (0, seqno - 1, seqno - 1, 8)


def test_the_walk_takes_any_cut_or_says_what_is_wrong() -> None:
    """Records cut anywhere: whole ones are taken as far as they go, everything else is one fault."""
    raw = b"".join(raw_of("e", gtid(1, seqno), *[b"x" * 20] * (1 + seqno % 3)) for seqno in range(6))
    ends = {0}
    found = walk_raw(raw, gtid(1, -1))
    assert isinstance(found, list)
    ends |= {run.end for run in found} | {place for run in found for place in run.places}
    for cut in range(len(raw) + 1):
        taken = walk_raw(raw[:cut], gtid(1, -1))
        assert isinstance(taken, RawFault) is (cut not in ends)
        assert isinstance(taken, list) or taken.offset == max(end for end in ends if end <= cut)


def test_a_log_without_records_takes_over_whose_they_are() -> None:
    """format.md, "The identity of the history": with the first records, however often it was opened before."""
    disk, other = SimDisk(), SimDisk()
    with open_log(other, start_after=gtid(3, 6)) as source:
        fill(source, 3)
        source.transact([make_fragment("spilled", bytes(3_000), last=last) for last in (False, False, True)])
        for closed in (False, True, False):
            log = MemberLog.follow(PATH, source_id="db1", disk=disk, clock=ManualClock(), start_after=gtid(3, 6))
            assert log.history != HISTORY
            if closed:
                log.close()
            else:
                disk.kill()
                disk = disk.after_crash(random.Random(1))
        with MemberLog.follow(PATH, source_id="db1", disk=disk, clock=ManualClock(), start_after=gtid(3, 6)) as log:
            log.take_over(HISTORY, 77)
            log.take_over(HISTORY, source.h(Seqno(6)))
            copy(source, log)
            log.take_over(bytes(16), 5)
            assert (log.history, log.h(Seqno(6)), log.h(log.visible_seqno)) == (
                HISTORY,
                source.h(Seqno(6)),
                source.h(log.visible_seqno),
            )
            with open_reader(disk) as reader:
                assert reader.history == HISTORY
        with MemberLog.follow(PATH, source_id="db1", disk=disk, clock=ManualClock()) as log:
            assert (log.history, log.h(log.visible_seqno)) == (HISTORY, source.h(log.visible_seqno))
            assert verify(PATH, disk=disk).sound

"""The running hash: docs/format.md's formula over the bytes, whatever the log went through, and from any side."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from zlib import crc32

import pytest

from fix_log import PATH, append_large, contents, fill, make_fragment, open_log, open_reader, segment_path
from tranlog.errors import DiskFullError, PurgedError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.reading.cursor import Cursor
from tranlog.log.records.format import parse_record
from tranlog.log.records.record import SyncRecord
from tranlog.log.records.running_hash import after, before, fold, fold_span, signed, unsigned
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.log.writing.member import MemberLog
from tranlog.lsn import lsn_offset, lsn_segment
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk

M, S, E = 2862933555777941757, 2685821657736338717, 1983293846297651537


def step(h: int, record: bytes) -> int:
    """Return the hash behind a record, as the page says it."""
    length, header_length = int.from_bytes(record[:4], "big"), int.from_bytes(record[5:9], "big")
    assert length == len(record)
    seqno, epoch = int.from_bytes(record[9:17], "big"), int.from_bytes(record[20:28], "big")
    head, event = record[: 13 + header_length], record[13 + header_length : -5]
    if record[4] == 5:
        tag = crc32(head + event[:24] + event[40:48])
    else:
        tag = int.from_bytes(record[-4:], "big") if record[-5] == 1 else crc32(head)
    return (h + tag + seqno * S + epoch * E) * M % 2**64


def expected(disk: SimDisk, cursor: Cursor, h: int = 0) -> dict[Seqno, int]:
    """Return the hash up to each transaction of a log, from the bytes of its records."""
    found = {Seqno(cursor.next_seqno - 1): h}
    segments: dict[int, bytes] = {}
    for transaction in cursor.scan(wait=False):
        fragments = 0
        for record in transaction.in_log():
            at = lsn_offset(record.header.lsn)
            number = lsn_segment(record.header.lsn)
            raw = segments[number] = segments.get(number) or disk.content(segment_path(number))
            fragments = step(fragments, raw[at : at + record.header.record_length])
        h = found[transaction.header.seqno] = (h * M + fragments) % 2**64
    return found


def hold_against(log: Log | LogReader, disk: SimDisk, h: int = 0, every: int = 1) -> dict[Seqno, int]:
    with log.cursor() as cursor:
        wanted = expected(disk, cursor, h)
    looked = list(wanted)[::every]
    assert [log.h(seqno) for seqno in looked] == [wanted[seqno] for seqno in looked]
    return wanted


def sync_records(disk: SimDisk, number: int) -> Iterator[SyncRecord]:
    raw, at = disk.content(segment_path(number)), 16
    while hasattr(outcome := parse_record(raw, at, number << 32 | at), "record_length"):
        if isinstance(outcome, SyncRecord):
            yield outcome
        at += outcome.record_length


def test_a_step_is_affine_and_goes_both_ways() -> None:
    rng = random.Random(1)
    for _ in range(100):
        h, rows = (
            signed(rng.getrandbits(64)),
            [[rng.getrandbits(32), rng.getrandbits(60), rng.getrandbits(60)] for _ in range(5)],
        )
        behind, added, plain = h, 0, h
        for row in rows:
            behind, added = fold(behind, *row), fold(added, *row)
            plain = (plain + row[0] + row[1] * S + row[2] * E) * M
        assert unsigned(behind) == plain % 2**64
        assert after(h, added, 5) == behind and before(behind, added, 5) == h


@pytest.mark.parametrize("checksum", [True, False])
def test_it_is_known_up_to_every_transaction(checksum: bool) -> None:
    """format.md, "The running hash": of one fragment, of several, spilled, and allocated out of order."""
    disk = SimDisk()
    with open_log(disk, checksum=checksum, segment_bytes=3_000, spill_above=2_500) as log:
        fill(log, 20)
        append_large(log, "three", [b"1", b"2", b"3"])
        log.transact([make_fragment("spilled", bytes(3_000), last=last) for last in (False, False, True)])
        one, other = log.allocate([make_fragment("one", bytes(90))]), log.allocate([make_fragment("other")])
        fill_whole = log.append(make_fragment("behind"))
        other.complete(sync=False)
        with pytest.raises(ValueError, match="shows no seqno"):
            log.h(fill_whole.seqno)
        one.abandon()
        log.commit()
        before_close = hold_against(log, disk)
        assert len(log.segments()) > 1
        with open_reader(disk) as reader:
            assert hold_against(reader, disk) == before_close
    with open_log(disk, checksum=checksum) as log:
        assert hold_against(log, disk).items() > before_close.items()


def test_the_first_record_of_each_segment_says_it() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=2_000) as log:
        fill(log, 60)
        for segment in log.segments():
            first = next(sync_records(disk, segment.number))
            assert (first.seqno, first.h) == (segment.first_seqno - 1, log.h(first.seqno))
        log.purge(below=Seqno(30))
        first_seqno = log.first_seqno
        assert first_seqno > 1
        hold_against(log, disk, log.h(Seqno(first_seqno - 1)))
        with pytest.raises(PurgedError):
            log.h(Seqno(first_seqno - 2))


def test_one_interval_is_walked_at_most() -> None:
    """However little is synced: a sync record follows 4 MiB without one."""
    disk = SimDisk()
    with open_log(disk, buffer_bytes=65_536) as log:
        for number in range(150):
            log.append(make_fragment(f"e{number}", bytes(100_000)))
        log.commit(sync=False)
        places = [record.seqno for record in sync_records(disk, 1)]
        gaps = [two - one for one, two in pairwise(places)]
        assert len(places) > 3 and max(gaps) < 60
        assert len(hold_against(log, disk, every=10)) == 152


def test_what_is_taken_back_leaves_no_trace() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
        log.append(make_fragment("open", last=False))
        log.abandon_open()
        fill(log, 2, start=3)
        log.append(make_fragment("refused", bytes(900)))
        disk.room = 100
        with pytest.raises(DiskFullError):
            log.commit()
        disk.room = None
        fill(log, 2, start=5)
        hold_against(log, disk)
        assert len(contents(log)) == 7


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_loses_none(seed: int) -> None:
    disk, rng = SimDisk(), random.Random(seed)
    for _ in range(4):
        log = open_log(disk, segment_bytes=3_000)
        known = hold_against(log, disk)
        fill(log, rng.randrange(1, 20))
        known = hold_against(log, disk)
        log.append(make_fragment("lost?"))
        log.commit(sync=False)
        disk = disk.after_crash(rng)
    with open_log(disk) as log:
        assert hold_against(log, disk).items() >= known.items()


def follow(disk: SimDisk) -> MemberLog:
    options = LogOptions(ahead_bytes=0, segment_bytes=4_000)
    return MemberLog.follow(PATH, source_id="db1", disk=disk, clock=ManualClock(), options=options)


@pytest.mark.parametrize("changed", ["", "record", "sync"])
def test_an_opening_takes_it_from_the_last_sync_record_and_the_records_after_it(changed: str) -> None:
    """A tail that no sync record covers is folded anew from its records, which the opening has verified; so a tail that
    was replaced, checksums and all, has another hash. The sync record is believed: that it is wrong, verify finds.
    """
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 4)
    log.commit()
    fill(log, 3)
    log.commit(sync=False)
    wanted = [log.h(Seqno(seqno)) for seqno in range(8)]
    raw, places = bytearray(disk.content(segment_path(1))), {}
    at = 16
    while hasattr(found := parse_record(bytes(raw), at, 1 << 32 | at), "record_length"):
        places[found.h if isinstance(found, SyncRecord) else getattr(found, "seqno", -1)] = at, found.record_length
        at += found.record_length
    assert wanted[4] in places, "the last sync record is in front of what came after the last sync"
    if changed == "record":
        at, size = places[6]
        raw[at + size - 8] ^= 1
        raw[at + size - 4 : at + size] = crc32(raw[at : at + size - 4]).to_bytes(4, "big")
    elif changed == "sync":
        at, size = places[wanted[4]]
        raw[at + 36] ^= 1
        raw[at + size - 4 : at + size] = crc32(raw[at : at + size - 4] + struct.pack(">II", 1, at)).to_bytes(4, "big")
    other = SimDisk()
    other.make_dir(PATH)
    with closing(other.open(segment_path(1), write=True, create=True)) as file:
        file.pwrite(bytes(raw), 0)
    with open_log(other) as again:
        assert again.last_seqno == 8, "with the no-op of its own"
        told = [again.h(Seqno(seqno)) for seqno in range(8)]
    assert (told[5] == wanted[5], told[7] == wanted[7]) == (changed != "sync", not changed)
    assert bool(verify(PATH, disk=other).problems) is (changed == "sync")


def test_a_rollback_goes_back_to_the_matchpoints() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=2_000) as log:
        fill(log, 30)
        kept = log.h(Seqno(12))
        log.rollback(Gtid(Epoch(1), Seqno(12)))
        assert log.h(Seqno(12)) == kept
        fill(log, 5, start=100)
        known = hold_against(log, disk)
    with open_reader(disk) as reader:
        assert hold_against(reader, disk) == known


def test_a_mark_that_nothing_follows_goes_back_too() -> None:
    disk = SimDisk()
    with follow(disk) as log:
        log.lead(Epoch(1))
        fill(log, 20)
        log.unlead()
        kept = log.h(Seqno(7))
        log.abandon_after(Gtid(Epoch(1), Seqno(7)))
        assert log.h(Seqno(7)) == kept
        with follow(disk.after_crash(random.Random(1))) as again:
            assert (again.visible_seqno, again.h(Seqno(7))) == (7, kept)


@pytest.mark.parametrize("checksum", [True, False])
def test_copies_have_it_record_by_record(checksum: bool) -> None:
    """A spilled transaction stands elsewhere in each log, and puts the same into the hash."""
    disk, copied = SimDisk(), SimDisk()
    with open_log(disk, checksum=checksum, spill_above=4_000) as log, follow(copied) as member:
        for number in range(3):
            log.transact([make_fragment(f"s{number}", bytes(3_000), last=last) for last in (False, False, True)])
            fill(log, 10)
            append_large(log, "two", [b"1", b"2"])
            log.commit()
            with log.cursor() as cursor:
                cursor.seek(Seqno(member.last_seqno + 1))
                for stretch in cursor.stretches():
                    for chunk in stretch.chunks():
                        member.put_chunk(chunk)
                    member.append_raw(stretch.raw)
            member.commit()
            assert hold_against(member, copied) == hold_against(log, disk)


def test_a_span_is_folded_as_its_records_are() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        log.append(make_fragment("a"))
        log.append(make_fragment("b"))
        log.commit()
        with log.cursor() as cursor:
            raw = b"".join(record for _, record in cursor.raw())
        hashes: list[int] = []
        assert fold_span(raw, 0, len(raw), 0, hashes) == hashes[-1]
        assert [unsigned(h) for h in hashes] == [log.h(Seqno(seqno)) for seqno in range(3)]


def test_a_cursor_carries_it_on() -> None:
    """Transaction by transaction, from any place, and again behind a rollback."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=3_000, spill_above=2_500) as log:
        fill(log, 20)
        append_large(log, "two", [b"1", b"2"])
        log.transact([make_fragment("spilled", bytes(3_000), last=last) for last in (False, True)])
        known = hold_against(log, disk)
        for start in (0, 7, 21):
            with log.cursor() as cursor:
                cursor.seek(Seqno(start))
                for transaction in cursor.scan(wait=False):
                    if transaction.header.seqno != 9:
                        assert cursor.h() == known[transaction.header.seqno]
        with log.cursor() as cursor:
            cursor.seek(Seqno(12))
            assert cursor.next() is not None and cursor.h() == known[Seqno(12)]
            log.rollback(Gtid(Epoch(1), Seqno(12)))
            known = hold_against(log, disk)
            assert cursor.next() is not None and cursor.h() == known[Seqno(13)]

"""log/records/spill.py, spilling.py, spilled.py: large transactions beside the log, a small record in it.

Proves tokumx-replication, "Large Transactions", conformance/tokumx.md A3, A8.4-A8.6 and invariants 13 and 33, and
docs/decisions/0012.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fix_effort import Effort
from fix_log import (
    HISTORY,
    PATH,
    append_large,
    contents,
    fill,
    flip,
    forget_positions,
    make_fragment,
    make_payload,
    open_log,
    open_reader,
    read_all,
    record_starts,
    segment_names,
    segment_path,
)
from tranlog.change import Fragment
from tranlog.errors import (
    ConfigError,
    CorruptRecordError,
    DiskFailedError,
    DiskFullError,
    LogClosedError,
    LogError,
    LogLockedError,
    PurgedError,
    RecordLimitError,
)
from tranlog.ids import Epoch, Gtid, Lsn, Seqno
from tranlog.log.aio import AsyncLog
from tranlog.log.records.format import Impossible, encode_event, parse_event
from tranlog.log.records.spill import (
    CHUNK_HEADER_BYTES,
    REFERENCE,
    SPILL_HEADER_BYTES,
    Reference,
    SpillSegment,
    SpillTable,
    encode_chunk,
    encode_reference,
    encode_spill_header,
    encode_table,
    fragments_of,
    highest,
    may_go,
    open_chunk,
    pack_chunk,
    parse_chunk_header,
    parse_reference,
    parse_spill_header,
    parse_table,
    spill_name,
    spill_number,
)
from tranlog.log.rules.damage import Damage
from tranlog.log.rules.repair import Keep, RepairPlan
from tranlog.log.rules.retention import UpToSeqno
from tranlog.log.upkeep.diff import diff
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.log.writing.log import Log, LogOptions, LogReader, hold
from tranlog.log.writing.open_transaction import OpenTransaction
from tranlog.lsn import lsn, lsn_offset, lsn_segment
from tranlog.slices import SEND_BYTES
from tranlog.testing.disk import SimDisk, SimFile

SMALL: dict[str, Any] = {"spill_buffer_bytes": 500, "spill_chunk_bytes": 300, "spill_segment_bytes": 1_500}
"""Everything spills soon, into many segments."""


NAMES = ("sequence", "stream", "allocated", "begun")
SAME = ("gtid", "fragno", "last_frag", "source_id", "event_id", "shard_id", "tables", "tstamp", "data_length")
"""What a fragment's header says, wherever it stands."""


def spill_path(number: int) -> str:
    return f"{PATH}/{spill_name(number)}"


def spill_names(disk: SimDisk) -> list[str]:
    return [name for name in disk.list_dir(PATH) if spill_number(name) is not None]


def parts(event_id: str, count: int, size: int = 200) -> list[Fragment]:
    """Return the fragments of a transaction."""
    return [
        make_fragment(
            event_id,
            make_payload(number, size),
            last=number == count - 1,
            shard_id="a" if number == count - 1 else "#UNKNOWN",
        )
        for number in range(count)
    ]


def add_all(transaction: OpenTransaction, fragments: Iterable[Fragment]) -> None:
    for fragment in fragments:
        transaction.add(fragment)


def whole(fragments: Sequence[Fragment]) -> bytes:
    return b"".join(fragment.payload for fragment in fragments)


def spill_one(log: Log, event_id: str = "big", count: int = 20) -> Gtid:
    with log.begin() as transaction:
        add_all(transaction, parts(event_id, count))
        return transaction.commit()


def referred(log: Log | LogReader) -> dict[int, int | None]:
    return {one.number: None if one.referred_by is None else one.referred_by.seqno for one in log.spill_segments()}


# --- the decision, alone -----------------------------------------------------------------------------------------


def spill_segments_of(*seqnos: int | None) -> list[SpillSegment]:
    return [
        SpillSegment(number=number, referred_by=None if seqno is None else Gtid(Epoch(1), Seqno(seqno)))
        for number, seqno in enumerate(seqnos, 1)
    ]


@pytest.mark.parametrize(
    ("seqnos", "first", "pinned", "active", "gone"),
    [
        ((3, 5, 9), 6, [], None, [1, 2]),
        ((3, 6, 9), 6, [], None, [1]),
        ((None, 7, None, 9), 6, [], None, [1, 3]),
        ((None, 7, None, None), 6, [], 4, [1, 3]),
        ((None, None, None, None), 6, [2, 3], 4, [1]),
        ((3, 3, 3), 100, [1], 3, []),
        ((3, 3, 3), 100, [], 3, [1, 2]),
        ((), 0, [], None, []),
    ],
)
def test_what_may_go(
    seqnos: tuple[int | None, ...], first: int, pinned: list[int], active: int | None, gone: list[int]
) -> None:
    """A8.6, coupled by seqno: nothing that the log still refers to, nothing that may still be referred to."""
    assert may_go(spill_segments_of(*seqnos), first_seqno=Seqno(first), pinned=pinned, active=active) == gone


def test_the_highest_is_the_one_that_retention_waits_for() -> None:
    gtids = [Gtid(Epoch(1), Seqno(500)), Gtid(Epoch(2), Seqno(60)), Gtid(Epoch(2), Seqno(7))]
    assert highest(gtids) == gtids[0]
    assert highest([]) is None


# --- bytes -------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=500), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.booleans())
def test_a_chunk_comes_back(raw: bytes, seq: int, previous: int, compress: bool) -> None:
    cut = len(raw) // 3
    pieces: list[bytes | memoryview] = [raw[:cut], memoryview(raw)[cut:]]
    chunk = b"".join(encode_chunk(bytes(range(16)), seq, previous, 7, pack_chunk(pieces, compress=compress)))
    header = parse_chunk_header(chunk)
    assert not isinstance(header, Impossible)
    assert (header.oid, header.seq, header.previous, header.written_at) == (bytes(range(16)), seq, previous, 7)
    assert header.record_length == len(chunk)
    assert open_chunk(header, chunk) == raw


@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_bit_of_a_chunk_is_found(compress: bool) -> None:
    chunk = b"".join(encode_chunk(bytes(16), 3, 4, 5, pack_chunk([b"fragments " * 30], compress=compress)))
    for bit in range(len(chunk) * 8):
        raw = bytearray(chunk)
        raw[bit // 8] ^= 1 << bit % 8
        header = parse_chunk_header(bytes(raw))
        assert isinstance(header, Impossible) or isinstance(open_chunk(header, bytes(raw)), Impossible)
    for end in range(len(chunk)):
        header = parse_chunk_header(chunk[:end])
        assert isinstance(header, Impossible) or isinstance(open_chunk(header, chunk[:end]), Impossible)


def test_a_chunk_that_lies_about_its_content_is_impossible() -> None:
    """A checksum proves the bytes; what they mean is still held against what they say."""
    good = b"".join(encode_chunk(bytes(16), 0, 0, 0, pack_chunk([b"x" * 100], compress=True)))
    header = parse_chunk_header(good)
    assert not isinstance(header, Impossible) and header.codec == 1
    body = good[CHUNK_HEADER_BYTES:-5]
    for kept in (b"no zlib stream", body[:-4], zlib.compress(b"y" * 99)):
        head = struct.pack(">IB16sIQQBI", 55 + len(kept), 6, bytes(16), 0, 0, 0, 1, 100)
        head += struct.pack(">I", zlib.crc32(head))
        raw = head + kept + b"\x01"
        raw += struct.pack(">I", zlib.crc32(raw))
        told = parse_chunk_header(raw)
        assert not isinstance(told, Impossible)
        assert isinstance(open_chunk(told, raw), Impossible)


@given(st.binary(max_size=200), st.booleans())
def test_rubbish_is_refused_as_a_value(raw: bytes, proven: bool) -> None:
    """conventions.md, tier property: a decoder on arbitrary bytes ends in a value; with a true checksum as well."""
    assert parse_reference(raw) is None or len(raw) == REFERENCE.size
    assert parse_table(raw) is None and parse_spill_header(raw) is None
    verdict = parse_event(b"".join(encode_event_of()), 0, Lsn(7))
    assert verdict is not None
    found = fragments_of(raw, verdict, 0)
    assert isinstance(found, Impossible) or list(found)
    if proven and len(raw) > CHUNK_HEADER_BYTES:
        head = raw[: CHUNK_HEADER_BYTES - 4]
        raw = head + struct.pack(">I", zlib.crc32(head)) + raw[CHUNK_HEADER_BYTES:]
    header = parse_chunk_header(raw)
    assert isinstance(header, Impossible) or isinstance(open_chunk(header, raw), Impossible)


def encode_event_of() -> tuple[bytes, bytes, bytes]:
    head, trailer = encode_event(
        seqno=1,
        fragno=0,
        last_frag=True,
        epoch=1,
        source_id="s",
        event_id="e",
        shard_id="a",
        tstamp=0,
        tables=(),
        payload=b"p",
        checksum=False,
    )
    return head, b"p", trailer


def test_headers_references_and_tables_come_back_or_are_refused() -> None:
    header = encode_spill_header(1_700_000_000_000, HISTORY)
    assert (len(header), parse_spill_header(header)) == (SPILL_HEADER_BYTES, (1_700_000_000_000, HISTORY))
    one = Reference(bytes(16), 3, 7, lsn(1, 20), lsn(4, 9), 1_000, 2_000)
    assert parse_reference(encode_reference(one)) == one
    assert list(one.segments) == [1, 2, 3, 4]
    for wrong in (
        Reference(bytes(16), 0, 7, lsn(1, 20), lsn(4, 9), 0, 0),
        Reference(bytes(16), 8, 7, lsn(1, 20), lsn(4, 9), 0, 0),
        Reference(bytes(16), 3, 7, lsn(4, 9), lsn(1, 20), 0, 0),
        Reference(bytes(16), 1, 7, lsn(1, 20), lsn(4, 9), 0, 0),
    ):
        assert parse_reference(encode_reference(wrong)) is None
    assert parse_reference(encode_reference(one)[:-1]) is None
    gtids = (Gtid(Epoch(1), Seqno(3)), Gtid(Epoch(2), Seqno(4)))
    table = SpillTable(covers=4, next_number=9, referred_by={3: gtids, 5: gtids[1:]})
    raw = encode_table(table)
    assert parse_table(raw) == table == parse_table(raw + b"what an older, longer one left")
    for at in range(len(raw)):
        assert parse_table(raw[:at]) is None
        assert parse_table(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :]) is None
    for at in range(len(header)):
        assert parse_spill_header(header[:at] + bytes([header[at] ^ 4]) + header[at + 1 :]) is None


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("thl.spill.0000000007", 7),
        ("thl.spill.0000000000", None),
        ("thl.spill.9999999999", None),
        ("thl.data.0000000001", None),
    ],
)
def test_names(name: str, number: int | None) -> None:
    assert spill_number(name) == number


@pytest.mark.parametrize(
    "given",
    [
        {"spill_buffer_bytes": 0},
        {"spill_chunk_bytes": 0},
        {"spill_chunk_bytes": 1 << 32},
        {"spill_segment_bytes": 999},
        {"spill_segment_bytes": 1 << 32},
    ],
    ids=lambda given: str(given),
)
def test_options_that_cannot_work_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        open_log(SimDisk(), **given)
    assert caught.value.option in given


# --- writing and reading -----------------------------------------------------------------------------------------


def test_a_small_transaction_stays_in_memory_and_is_an_ordinary_one() -> None:
    disk = SimDisk()
    with open_log(disk) as log, log.begin() as transaction:
        add_all(transaction, parts("small", 3))
        assert not transaction.oid
        assert transaction.commit() == Gtid(Epoch(1), Seqno(1))
        with log.cursor() as cursor:
            cursor.seek(Seqno(1))
            found = cursor.next()
        assert found is not None and not found.header.spilled and found.fragments == 3
    assert spill_names(disk) == []


def test_what_spilled_reads_like_the_same_transaction_in_fragments() -> None:
    """Invariant 13: "spilled and unspilled encodings of the same txn give the same state"."""
    disk, other = SimDisk(), SimDisk()
    fragments = parts("big", 20)
    with open_log(disk, **SMALL) as log, open_log(other) as plain:
        for fragment in fragments:
            plain.append(fragment)
        plain.commit()
        spill_one(log)
        for reader in (log, plain):
            fill(reader, 1)
        found = [read_all(reader.cursor())[1] for reader in (log, plain)]
        assert [one.header.spilled for one in found] == [True, False]
        told = [
            [(*[getattr(one.header, name) for name in SAME], one.payload) for one in each.records()] for each in found
        ]
        assert told[0] == told[1]
        assert found[0].fragments == found[1].fragments == 20
        assert not found[0].is_noop()
        assert found[0].header.shard_id == "a"
        raw = [list(reader.cursor().raw()) for reader in (log, plain)]
        assert raw[0] == raw[1] and len(raw[0]) == 22
    with open_reader(disk) as one, open_reader(other) as two:
        assert diff(one, two, full=True).agree
    assert len(disk.content(segment_path(1))) < 700, "one small record stands in the log"


def test_the_reference_is_the_pages_own() -> None:
    """docs/format.md: by its numbers alone, from the referring record to the last fragment."""
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        spill_one(log)
    raw = disk.content(segment_path(1))
    at = next(start for start in record_starts(disk, 1) if raw[start + 4] == 5)
    length, header_length = struct.unpack_from(">IxI", raw, at)
    event = raw[at + 9 + header_length + 4 : at + length - 5]
    oid, chunks, fragments, first, last, raw_bytes, spilled_bytes = struct.unpack(">16sIIQQQQ", event)
    assert oid == struct.pack(">QQ", 1, 1)
    place = last
    found: list[bytes] = []
    sizes: list[tuple[int, int]] = []
    for seq in range(chunks - 1, -1, -1):
        spill = disk.content(spill_path(place >> 32))[place & 0xFFFFFFFF :]
        size, kind, its_oid, its_seq, previous, _, codec, raw_length = struct.unpack_from(">IB16sIQQBI", spill)
        assert (kind, its_oid, its_seq, codec) == (6, oid, seq, 0)
        assert struct.unpack_from(">I", spill, 46) == (zlib.crc32(spill[:46]),)
        assert struct.unpack_from(">BI", spill, size - 5) == (1, zlib.crc32(spill[: size - 4]))
        body = spill[50 : size - 5]
        assert len(body) == raw_length
        inside: list[bytes] = []
        while body:
            event_length, its_header = struct.unpack_from(">IxI", body)
            inside.append(body[9 + its_header + 4 : event_length - 5])
            body = body[event_length:]
        found[:0] = inside
        sizes.append((size, raw_length))
        place = previous
    assert place == 0 and first >> 32 == 1 and first & 0xFFFFFFFF == SPILL_HEADER_BYTES
    assert b"".join(found) == whole(parts("big", 20))
    assert (len(found), sum(size for size, _ in sizes), sum(size for _, size in sizes)) == (
        fragments,
        spilled_bytes,
        raw_bytes,
    )


def test_open_transactions_hold_up_nobody_and_come_in_the_order_of_their_commits() -> None:
    """replication.md: "so a transaction of any size blocks no other"."""
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        first, second = log.begin(), log.begin()
        for one, other in zip(parts("first", 20), parts("second", 20), strict=True):
            first.add(one)
            log.append(make_fragment(f"between {one.payload[:3]!r}"))
            assert log.commit() == log.durable_seqno == log.last_seqno
            second.add(other)
        assert first.oid and second.oid
        seqno = log.last_seqno
        assert second.commit().seqno == seqno + 1
        assert first.commit().seqno == seqno + 2
        assert log.durable_seqno == seqno + 2
        told = contents(log)[-2:]
        assert told == [
            (seqno + 1, "second", whole(parts("second", 20))),
            (seqno + 2, "first", whole(parts("first", 20))),
        ]
    with open_log(disk, **SMALL) as log:
        assert contents(log)[-2:] == told
    assert verify(PATH, disk=disk).sound


@pytest.mark.parametrize("compress", [False, True])
def test_every_way_of_writing_spills(compress: bool) -> None:
    disk = SimDisk()
    with open_log(
        disk, spill_above=3_000, buffer_bytes=400, segment_bytes=2_000, spill_compress=compress, **SMALL
    ) as log:
        fill(log, 3)
        append_large(log, "append", [one.payload for one in parts("append", 20)])
        log.append(make_fragment("one fragment", make_payload(5, 4_000)))
        log.commit()
        log.transact(parts("sequence", 20))
        log.transact(fragment for fragment in parts("stream", 20))
        with log.allocate(parts("allocated", 20)) as allocation:
            allocation.write()
        spill_one(log, "begun")
        log.append(make_fragment("last"))
        log.commit()
        expected = [
            *((number + 1, f"e{number}", make_payload(number, 100)) for number in range(3)),
            (4, "append", whole(parts("append", 20))),
            (5, "one fragment", make_payload(5, 4_000)),
            *((number, name, whole(parts(name, 20))) for number, name in zip(range(6, 10), NAMES, strict=True)),
            (10, "last", b"payload"),
        ]
        assert contents(log) == expected
        assert sum(one.raw_bytes for one in log.spill_segments()) > 20_000
        stats = log.spill_segments()
    with open_reader(disk) as reader:
        assert contents(reader) == expected
        assert reader.spill_segments() == stats
    forget_positions(disk)
    with open_reader(disk) as reader:
        assert contents(reader) == expected
    report = verify(PATH, disk=disk)
    assert report.sound and report.spilled == 6
    assert report.spill_bytes == sum(one.bytes - SPILL_HEADER_BYTES for one in stats)
    assert (sum(one.bytes for one in stats) < 15_000) is compress


def test_a_fragment_larger_than_a_chunk_is_a_chunk_of_its_own() -> None:
    with open_log(SimDisk(), **SMALL) as log:
        payloads = [b"a" * 50, b"b" * 5_000, b"", b"c" * 50]
        with log.begin() as transaction:
            for payload in payloads:
                transaction.add(make_fragment("x", payload))
        (found,) = read_all(log.cursor())[1:]
        assert list(found.payloads()) == payloads
        assert [record.header.last_frag for record in found.records()] == [False, False, False, True]


def test_rollback_marks_and_abandoned_spill() -> None:
    """index.md, "Abandoned records": what spilled is abandoned with its record, and shown while that is there."""
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        fill(log, 2)
        spill_one(log, "kept")
        spill_one(log, "abandoned")
        fill(log, 5)
        log.rollback(Gtid(Epoch(1), Seqno(3)))
        spill_one(log, "instead")
        log.purge(below=Seqno(2))
        expected = [(1, "e0"), (2, "e1"), (3, "kept"), (5, "instead")]
        assert [one[:2] for one in contents(log)] == expected
    with open_log(disk, **SMALL) as log:
        assert [one[:2] for one in contents(log)] == expected
    with open_reader(disk) as reader:
        shown = [(record.header.event_id, record.payload) for _, record in reader.abandoned()]
        assert b"".join(payload for event_id, payload in shown if event_id == "abandoned") == whole(parts("x", 20))
    assert verify(PATH, disk=disk).sound


# --- aborting ----------------------------------------------------------------------------------------------------


def test_an_aborted_transaction_leaves_nothing_that_counts() -> None:
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        fill(log, 1)
        before = log.status()
        transaction = log.begin()
        add_all(transaction, parts("gone", 20))
        with pytest.raises(ZeroDivisionError), transaction:
            raise ZeroDivisionError
        transaction.abort()
        with pytest.raises(LogClosedError):
            transaction.commit()
        with pytest.raises(LogClosedError):
            transaction.add(make_fragment())
        after = log.status()
        assert (after.last_seqno, after.visible_seqno, after.syncs) == (
            before.last_seqno,
            before.visible_seqno,
            before.syncs,
        )
        assert not referred(log) and not spill_names(disk)
        assert verify(PATH, disk=disk).sound
    with open_log(disk, **SMALL) as log:
        assert spill_names(disk) == []
        assert spill_one(log).seqno == log.last_seqno
        assert min(referred(log)) > 3, "numbers rise"


def test_chunks_of_the_aborted_go_without_a_purge_as_new_segments_begin() -> None:
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        for _ in range(20):
            transaction = log.begin()
            add_all(transaction, parts("gone", 20))
            transaction.abort()
            assert len(spill_names(disk)) < 6
        oldest = log.begin()
        add_all(oldest, parts("kept", 20))
        for _ in range(5):
            spill_one(log)
        oldest.commit()
        assert contents(log)[-1][2] == whole(parts("kept", 20))


def test_tasks_spill_without_blocking_the_loop() -> None:
    """ "A thin asyncio facade in `log/aio.py`"."""

    async def live(log: Log) -> list[int]:
        facade = AsyncLog(log)

        async def one(name: str) -> int:
            async with await facade.begin() as transaction:
                for fragment in parts(name, 8):
                    await transaction.add(fragment)
                return (await transaction.commit()).seqno

        gone = await facade.begin()
        for fragment in parts("gone", 8):
            await gone.add(fragment)
        gone.abort()
        return [*await asyncio.gather(*(one(f"t{number}") for number in range(4)))]

    with open_log(SimDisk(), **SMALL) as log:
        assert sorted(asyncio.run(live(log))) == [1, 2, 3, 4]
        assert {raw for _, _, raw in contents(log)} == {whole(parts("x", 8))}


def test_a_generator_that_fails_aborts_its_transaction() -> None:
    def failing() -> Iterator[Fragment]:
        yield from parts("gone", 20)
        raise ZeroDivisionError

    with open_log(SimDisk(), **SMALL) as log:
        with pytest.raises(ZeroDivisionError):
            log.transact(failing())
        assert log.last_seqno == 0
        assert not referred(log)


def test_an_open_append_that_spilled_is_abandoned_closed_and_refused() -> None:
    disk = SimDisk()
    with open_log(disk, spill_above=1_000, **SMALL) as log:
        for fragment in parts("open", 20)[:-1]:
            log.append(fragment)
        log.abandon_open()
        fill(log, 1)
        for fragment in parts("bad", 20)[:-1]:
            log.append(fragment)
        with pytest.raises(RecordLimitError, match="NUL"):
            log.append(make_fragment("a\0b"))
        fill(log, 1, start=1)
        for fragment in parts("open at the end", 20)[:-1]:
            log.append(fragment)
        log.commit()
        assert contents(log) == [(1, "e0", make_payload(0, 100)), (2, "e1", make_payload(1, 100))]
    with open_log(disk, spill_above=1_000, **SMALL) as log:
        assert [one[1] for one in contents(log)] == ["e0", "e1"]
        assert spill_names(disk) == []


def test_a_transaction_that_is_open_when_the_log_closes_is_gone() -> None:
    disk = SimDisk()
    log = open_log(disk, **SMALL)
    transaction = log.begin()
    add_all(transaction, parts("open", 10))
    late = log.begin()
    log.close()
    with pytest.raises(LogClosedError):
        transaction.commit()
    with pytest.raises(LogClosedError):
        add_all(late, parts("late", 10))
    with pytest.raises(LogClosedError):
        log.begin()
    with open_log(disk, **SMALL) as log:
        assert contents(log) == []


# --- retention ---------------------------------------------------------------------------------------------------


def test_spill_goes_with_the_last_transaction_that_refers_into_it() -> None:
    """Invariant 33: "No retained `ref` entry ever loses a refs document"."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        for number in range(30):
            spill_one(log, f"big{number}", count=3 + number % 5)
            fill(log, 3)
        while log.first_seqno < log.last_seqno - 30:
            log.purge(below=Seqno(log.first_seqno + 7))
            assert all(seqno is not None and seqno >= log.first_seqno for seqno in list(referred(log).values())[:-1])
            assert verify(PATH, disk=disk).sound
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        names = spill_names(disk)
        log.purge(below=log.first_seqno)
        assert spill_names(disk) == names
        contents(log)


def test_a_hold_keeps_the_spill_too() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        seqno = spill_one(log).seqno
        hold(PATH, "pipe", Seqno(seqno), disk=disk, clock=log._end.clock)  # type: ignore[arg-type]
        fill(log, 40)
        log.purge(below=log.visible_seqno)
        assert log.first_seqno <= seqno
        assert whole(parts("x", 20)) in [raw for _, _, raw in contents(log)]


@pytest.mark.parametrize("damage", ["missing", "damaged", "old"])
def test_the_table_is_a_cache(damage: str) -> None:
    """Without it, or with an old one, who refers to what is read from the log."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        for _ in range(3):
            spill_one(log)
        fill(log, 20)
        old = disk.content(f"{PATH}/spill.table")
        spill_one(log, "later")
        fill(log, 20)
        expected, told = referred(log), contents(log)
    path = f"{PATH}/spill.table"
    if damage == "missing":
        disk.unlink(path)
    elif damage == "damaged":
        flip(disk, path, 9)
    else:
        disk.set_content(path, old)
    with open_reader(disk) as reader:
        assert referred(reader) == expected
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        assert {number: seqno for number, seqno in referred(log).items() if number in expected} == expected
        assert contents(log) == told


def test_where_the_log_cannot_say_who_refers_nothing_is_removed() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        spill_one(log)
        fill(log, 30)
    starts = record_starts(disk, 1)
    flip(disk, segment_path(1), starts[-2] + 4, 0x40)
    disk.unlink(f"{PATH}/spill.table")
    names = spill_names(disk)
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        log.purge(below=log.visible_seqno)
        assert spill_names(disk) == names


def test_a_reader_that_retention_overtakes_hears_purged() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        seqno = spill_one(log).seqno
        fill(log, 40)
        with open_reader(disk) as reader, reader.cursor() as cursor:
            cursor.seek(seqno)
            transaction = cursor.next()
            assert transaction is not None
            assert transaction.fragments == 20
            log.roll_spill()
            log.purge(below=log.visible_seqno)
            with pytest.raises(PurgedError):
                list(transaction.payloads())


def test_trimming_by_hand_takes_the_spill_along() -> None:
    """tokumx.md A8.6: "then refs partitions drop while maxRefGTID <= greatest dropped oplog max"."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        for number in range(20):
            spill_one(log, f"big{number}", count=4)
            fill(log, 3)
        last = log.last_seqno
    disk.unlink(f"{PATH}/spill.table")
    with Log.open_for_upkeep(PATH, disk=disk) as log:
        log.add_segment()
        assert log.trim(UpToSeqno(seqno=Seqno(last // 2))).gone
        assert all(seqno is not None and seqno >= log.first_seqno for seqno in referred(log).values())
        assert min(referred(log)) > 5
    assert verify(PATH, disk=disk).sound
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        assert whole(parts("x", 4)) in [raw for _, _, raw in contents(log)]


def test_rolling_begins_another_segment() -> None:
    disk = SimDisk()
    with open_log(disk, spill_buffer_bytes=10) as log:
        spill_one(log)
        assert log.roll_spill() == 2
        spill_one(log)
        assert referred(log) == {1: 1, 2: 2}
        first = log.spill_segments()[0]
        assert first.chunks == 1
        assert first.bytes == len(disk.content(spill_path(1))) > first.raw_bytes > 4_000


# --- the world misbehaves ----------------------------------------------------------------------------------------


def test_a_full_disk_ends_the_transaction_that_spills_and_no_other() -> None:
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        transaction = log.begin()
        add_all(transaction, parts("first", 5))
        disk.room = 100
        other = log.begin()
        with pytest.raises(DiskFullError, match=r"thl\.spill"):
            add_all(other, parts("other", 20))
        disk.room = None
        with pytest.raises(LogClosedError):
            other.commit()
        add_all(transaction, parts("first", 5))
        transaction.commit()
        fill(log, 1)
        assert [one[1] for one in contents(log)] == ["first", "e0"]
    assert verify(PATH, disk=disk).sound


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("at", range(1, 12))
def test_a_disk_that_fails_while_an_append_spills_costs_that_transaction(at: int, number: int) -> None:
    """Whichever call fails, on the way out of the segment or later: the log holds whole transactions, and goes on."""
    disk = SimDisk()
    log = open_log(disk, spill_above=1_000, buffer_bytes=100, **SMALL)
    fill(log, 1)
    disk.fail_at[disk.calls + at] = number
    raised: LogError | None = None
    try:
        log.append(make_fragment("before"))
        for fragment in parts("big", 12):
            log.append(fragment)
        log.commit()
    except LogError as exc:
        raised = exc
        log.abandon_open()
    disk.fail_at = {}
    big = ("big", whole(parts("big", 12)))
    assert isinstance(raised, DiskFullError | DiskFailedError) or raised is None
    if log.status().closed_because is None:
        log.append(make_fragment("after"))
        log.commit()
        names = [one[1] for one in contents(log)]
        assert names in (["e0", "after"], ["e0", "before", "after"], ["e0", "before", "big", "after"])
        assert (raised is None) == ("big" in names)
    else:  # what was written could not be cut back, or nobody knows what is on the disk
        assert isinstance(raised, DiskFailedError)
    with contextlib.suppress(LogError):
        log.close()
    with open_log(disk, **SMALL) as log:
        assert all(one[1:] == big for one in contents(log) if one[1] == "big")
        assert all(one.referred_by is not None for one in log.spill_segments())
    assert verify(PATH, disk=disk).sound


def test_a_full_disk_at_the_commit_takes_the_reference_back() -> None:
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        transaction = log.begin()
        add_all(transaction, parts("x", 20))
        reference = transaction._spilled
        assert reference is not None
        reference.finish()
        disk.room = 10
        with pytest.raises(DiskFullError):
            transaction.commit()
        disk.room = None
        assert not referred(log) and not spill_names(disk)
        fill(log, 1)
        assert contents(log) == [(1, "e0", make_payload(0, 100))]


def test_a_failed_sync_ends_all_that_spilled_there() -> None:
    """After a sync that failed nobody knows what of a segment is on the disk: not of the others' chunks either."""
    disk = SimDisk()
    with open_log(disk, spill_buffer_bytes=100, spill_chunk_bytes=100) as log:
        one, other = log.begin(), log.begin()
        for fragment in parts("x", 5):
            one.add(fragment)
            other.add(fragment)
        disk.fail_at[disk.calls + 2] = errno.EIO  # behind the write of the last chunk
        with pytest.raises(DiskFailedError, match=r"thl\.spill"):
            one.commit()
        with pytest.raises(DiskFailedError, match=r"thl\.spill"):
            other.commit()
        spill_one(log, "later")
        assert [one[1] for one in contents(log)] == ["later"]
    with open_log(disk) as log:
        assert [one[1] for one in contents(log)] == ["later"]


def test_a_writer_whose_lock_was_replaced_begins_no_spill_segment() -> None:
    """log-format.md: "A writer whose lock file was replaced under it stops"; another one gives out the same numbers."""
    disk = SimDisk()
    log = open_log(disk, **SMALL)
    transaction = log.begin()
    add_all(transaction, parts("x", 3))
    disk.unlink(f"{PATH}/disklog.lck")
    names = spill_names(disk)
    with pytest.raises(LogLockedError):
        add_all(transaction, parts("x", 20))
    with pytest.raises(LogClosedError, match="was replaced or removed"):
        log.roll_spill()
    assert spill_names(disk) == names
    with pytest.raises(LogClosedError):
        log.begin()
    log.close()


def test_many_threads_spill_at_once() -> None:
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        committed: dict[int, str] = {}

        def spill(name: str) -> None:
            for number in range(5):
                event_id = f"{name}/{number}"
                transaction = log.begin()
                add_all(transaction, parts(event_id, 8))
                if number == 3:
                    transaction.abort()
                else:
                    committed[transaction.commit().seqno] = event_id

        threads = [threading.Thread(target=spill, args=(f"t{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(committed) == 16
        assert {seqno: event_id for seqno, event_id, _ in contents(log)} == committed
        assert {raw for _, _, raw in contents(log)} == {whole(parts("x", 8))}
    assert verify(PATH, disk=disk).sound


# --- damage ------------------------------------------------------------------------------------------------------


def spilled_log(**given: Any) -> SimDisk:
    disk = SimDisk()
    with open_log(disk, **SMALL, **given) as log:
        fill(log, 3)
        spill_one(log, "one", count=6)
        fill(log, 3)
        spill_one(log, "two", count=6)
        fill(log, 3)
    return disk


def test_flipped_bits_all_over_a_log_with_spill_are_found(effort: Effort) -> None:
    """Every flip is found or provably without effect: here, the mark of a clean close."""
    disk = spilled_log()
    rng = random.Random(1)
    flips = 0
    for name in [*segment_names(disk), *spill_names(disk)]:
        path = f"{PATH}/{name}"
        raw = disk.content(path)
        end = len(raw) if name.startswith("thl.spill") else record_starts(disk, 1)[-1]
        for at in range(rng.randrange(3), end, effort(12, 3, 3)):
            bit = 1 << rng.randrange(8)
            flip(disk, path, at, bit)
            report = verify(PATH, disk=disk)
            assert not report.sound, f"replay: byte {at} of {name}, bit {bit}"
            if name.startswith("thl.spill"):
                (problem,) = report.problems
                assert (problem.kind, problem.segment) == (Damage.SPILL, name)
                assert problem.offset <= at and problem.seqno in (4, 8)
            flips += 1
            disk.set_content(path, raw)
    assert flips > effort(250, 1_000, 1_000)
    assert verify(PATH, disk=disk).sound


@pytest.mark.slow
def test_every_single_bit_flipped_in_a_log_with_spill_is_found() -> None:
    disk = spilled_log(spill_compress=True)
    for name in [*segment_names(disk), *spill_names(disk)]:
        path = f"{PATH}/{name}"
        raw = disk.content(path)
        end = len(raw) if name.startswith("thl.spill") else record_starts(disk, 1)[-1]
        for bit in range(end * 8):
            flip(disk, path, bit // 8, 1 << bit % 8)
            assert not verify(PATH, disk=disk).sound, f"replay: bit {bit} of {name}"
            disk.set_content(path, raw)


@pytest.mark.parametrize("damage", ["flip", "missing", "short", "header", "another's"])
def test_damaged_spill_is_named_by_file_offset_and_seqno(damage: str) -> None:
    disk = spilled_log()
    number = 2
    path = spill_path(number)
    raw = disk.content(path)
    offset = SPILL_HEADER_BYTES
    if damage == "flip":
        flip(disk, path, offset + CHUNK_HEADER_BYTES + 30)
    elif damage == "missing":
        disk.unlink(path)
    elif damage == "short":
        disk.set_content(path, raw[: offset + 40])
    elif damage == "header":
        flip(disk, path, 3)
        offset = 0
    else:
        disk.set_content(path, disk.content(spill_path(1)))
    report = verify(PATH, disk=disk)
    named = {(one.kind, one.segment, one.seqno) for one in report.problems}
    assert named and {one[:2] for one in named} == {(Damage.SPILL, spill_name(number))}
    assert report.last_seqno == 11, "the rest is checked"
    seqnos = {one.seqno for one in report.problems}
    with open_reader(disk) as reader, reader.cursor() as cursor:
        for transaction in read_all(cursor):
            if transaction.header.seqno in seqnos:
                with pytest.raises(CorruptRecordError) as caught:
                    list(transaction.records())
                assert (caught.value.segment, caught.value.seqno) == (spill_name(number), transaction.header.seqno)
            else:
                list(transaction.records())
    if damage in ("flip", "header"):
        assert {one.offset for one in report.problems} == {offset}


def test_damage_to_chunks_that_nothing_refers_to_is_none() -> None:
    disk = SimDisk()
    log = open_log(disk, **SMALL)
    kept, gone = log.begin(), log.begin()
    add_all(kept, parts("kept", 4))
    add_all(gone, parts("gone", 20))
    place = Lsn(gone._spilled.places[0]) if gone._spilled is not None else Lsn(0)
    gone.abort()
    kept.commit()
    flip(disk, spill_path(lsn_segment(place)), lsn_offset(place) + 100)
    fill(log, 1)
    assert verify(PATH, disk=disk).sound
    log.close()


def test_repair_cuts_at_the_transaction_that_is_lost_and_keeps_what_it_cuts() -> None:
    disk = spilled_log()
    flip(disk, spill_path(1), 100)
    kept = {name: disk.content(f"{PATH}/{name}") for name in spill_names(disk)}
    before = disk.content(segment_path(1))
    outcome = repair(PATH, disk=disk)
    assert isinstance(outcome.decision, RepairPlan)
    lost = outcome.decision.lost
    assert (outcome.decision.last_seqno, lost.unreadable) == (3, ((4, 4),))
    assert [(span.first, span.last) for span in lost.gtids] == [(5, 11)]
    assert outcome.after is not None and outcome.after.sound and outcome.after.last_seqno == 3
    for name, raw in kept.items():
        assert disk.content(f"{PATH}/cut/{name}-0000000000") == raw
    end = len(disk.content(segment_path(1)))
    assert disk.content(f"{PATH}/cut/thl.data.0000000001-{end:010d}") == before[end:]
    with open_log(disk, **SMALL) as log:
        assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]
        assert spill_names(disk) == []
        spill_one(log)
    assert verify(PATH, disk=disk).sound


def test_repair_keeps_what_lies_behind() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        for number in range(8):
            spill_one(log, f"big{number}")
            fill(log, 4)
    flip(disk, spill_path(1), 100)
    outcome = repair(PATH, keep=Keep.BACK, disk=disk)
    assert outcome.after is not None and outcome.after.sound
    with open_log(disk, segment_bytes=1_000, **SMALL) as log:
        assert log.first_seqno > 1
        assert contents(log)[-5][1] == "big7"
    assert verify(PATH, disk=disk).sound


def test_a_fragment_in_a_chunk_is_a_whole_event_record() -> None:
    """docs/format.md: "whole fragments, with seqno, epoch_number and fragno 0 and crc_method 00"."""
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        spill_one(log)
    raw = disk.content(spill_path(1))
    header = parse_event(raw, SPILL_HEADER_BYTES + CHUNK_HEADER_BYTES, Lsn(0))
    assert header is not None
    assert (header.seqno, header.epoch, header.fragno, header.crc_method) == (0, 0, 0, 0)


def test_options_have_their_defaults() -> None:
    options = LogOptions()
    assert options.spill_chunk_bytes <= options.spill_buffer_bytes <= options.spill_segment_bytes <= options.spill_above


def test_what_spills_goes_to_the_disk_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte kept back until its sync would hold up the syncs of small commits."""
    sent: dict[str, list[tuple[int, int]]] = {}

    def write_out(file: SimFile, size: int, offset: int, *, wait: bool = True) -> None:
        sent.setdefault(file._path, []).append((offset, offset + size))

    monkeypatch.setattr(SimFile, "write_out", write_out)
    disk = SimDisk()
    with open_log(disk, spill_buffer_bytes=1, spill_chunk_bytes=1 << 18, spill_segment_bytes=5 << 20) as log:
        with log.begin() as transaction:
            for number in range(36):
                transaction.add(make_fragment(f"e{number}", bytes(1 << 18)))
        assert list(sent) == [spill_path(1), spill_path(2)]
        for path, ranges in sent.items():
            ends = [SPILL_HEADER_BYTES, *(end for _, end in ranges)]
            assert [start for start, _ in ranges] == ends[:-1]
            assert all(end - start <= SEND_BYTES for start, end in ranges)
            assert len(disk.content(path)) - ends[-1] < SEND_BYTES


def test_a_full_disk_gets_back_what_the_refused_transaction_had_spilled() -> None:
    """Disk full at any write leaves the state unchanged, so that small commits go on."""
    disk = SimDisk()
    with open_log(disk, spill_buffer_bytes=500, spill_chunk_bytes=300) as log:
        with log.begin() as transaction:
            add_all(transaction, parts("kept", 10))
        size = len(disk.content(spill_path(1)))
        other = log.begin()
        add_all(other, parts("other", 10))
        disk.room = 5_000
        with pytest.raises(DiskFullError):
            add_all(log.begin(), parts("gone", 100))
        assert len(disk.content(spill_path(1))) > size, "it lies behind what another open one needs"
        other.abort()
        assert len(disk.content(spill_path(1))) == size and disk.room is not None and disk.room > 4_000
        fill(log, 3)
        with log.begin() as transaction:
            add_all(transaction, parts("next", 5))
        assert verify(PATH, disk=disk).sound
        log.trim(UpToSeqno(seqno=log.visible_seqno))
    with open_log(disk) as log:
        assert {one[1] for one in contents(log)} >= {"kept", "next"}


@pytest.mark.parametrize("call", range(1, 5))
def test_a_disk_that_gives_no_space_back_stops_nothing(call: int) -> None:
    disk = SimDisk()
    with open_log(disk, **SMALL) as log:
        with log.begin() as transaction:
            add_all(transaction, parts("kept", 3))
        gone = log.begin()
        add_all(gone, parts("gone", 20))
        disk.fail_at = {disk.calls + call: errno.EIO}
        gone.abort()
        with log.begin() as transaction:
            add_all(transaction, parts("next", 3))
        assert verify(PATH, disk=disk).sound
        assert [one[1] for one in contents(log)] == ["kept", "next"]

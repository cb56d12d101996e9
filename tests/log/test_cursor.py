"""log/reading/cursor.py: seek, read, wait; headers without payloads; what is damaged is named."""

from __future__ import annotations

import random
import threading
import time
import tracemalloc

import pytest

from fix_log import (
    PATH,
    append_large,
    contents,
    fill,
    flip,
    make_fragment,
    make_payload,
    open_log,
    open_reader,
    read_all,
    record_starts,
    segment_path,
)
from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.errors import (
    CorruptRecordError,
    LogClosedError,
    LogUnreadableError,
    PayloadError,
    PurgedError,
    SegmentGoneError,
)
from tranlog.ids import Seqno
from tranlog.log.files.segment import WINDOW_BYTES
from tranlog.log.reading.cursor import Cursor
from tranlog.log.records.format import encode_header
from tranlog.log.writing.log import Log, LogReader
from tranlog.lsn import lsn_offset, lsn_segment
from tranlog.payload import Payload, encode
from tranlog.testing.clock import ManualClock
from tranlog.testing.disk import SimDisk
from tranlog.types import LogicalType


def seqnos(cursor: Cursor) -> list[int]:
    found: list[int] = []
    while (header := cursor.next_header()) is not None:
        found.append(header.seqno)
    return found


def mixed_log(disk: SimDisk, seed: int = 1) -> tuple[Log, list[bytes]]:
    """Return a log over many segments with small, large and fragmented transactions, and their contents by seqno."""
    rng = random.Random(seed)
    log = open_log(disk, segment_bytes=60_000, buffer_bytes=10_000)
    wanted: list[bytes] = [b""]
    for number in range(120):
        sizes = [rng.choice((0, 10, 300, 5_000, WINDOW_BYTES - 90, WINDOW_BYTES + 5)) if rng.random() < 0.1 else 200]
        if rng.random() < 0.15:
            sizes = [rng.randrange(2_000) for _ in range(rng.randrange(2, 30))]
            if rng.random() < 0.3:
                sizes[rng.randrange(len(sizes))] = 300_000
        parts = [make_payload(number, size) for size in sizes]
        for part in parts[:-1]:
            log.append(make_fragment(f"e{number}", part, last=False))
            if rng.random() < 0.1:
                log._end.flush()
                with log._steps.lock:
                    log._end.sync_now()  # so that sync records stand between fragments
        log.append(make_fragment(f"e{number}", parts[-1]))
        wanted.append(b"".join(parts))
        if rng.random() < 0.4:
            log.commit(sync=rng.random() < 0.5)
    log.commit()
    return log, wanted


# --- reading and seeking ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_every_transaction_is_read_from_every_place(seed: int) -> None:
    """D: testSeekFilteredEvent2, testFindNonExistent, testMultipleLogsBackwardScan: seek each, read all the rest."""
    disk = SimDisk()
    log, wanted = mixed_log(disk, seed)
    rng = random.Random(seed)
    with log, open_reader(disk) as reader:
        last = log.last_seqno
        assert last == len(wanted) - 1
        for owner in (log, reader):
            whole = read_all(owner.cursor())
            assert [one.header.seqno for one in whole] == list(range(last + 1))
            assert [b"".join(one.payloads()) for one in whole[1:]] == wanted[1:], "late, from a list, is fine"
            assert seqnos(owner.cursor()) == list(range(last + 1))
            with owner.cursor() as cursor:
                for seqno in [*reversed(range(last + 1)), *rng.sample(range(last + 1), 60)]:
                    cursor.seek(Seqno(seqno))
                    transaction = cursor.next()
                    assert transaction is not None and transaction.header.seqno == seqno
                    if seqno:
                        assert b"".join(transaction.payloads()) == wanted[seqno]
                    if rng.random() < 0.2 and seqno < last:
                        header = cursor.next_header()
                        assert header is not None and header.seqno == seqno + 1
                        assert b"".join(cursor.current().payloads()) == wanted[seqno + 1]
        for seqno in rng.sample(range(last + 1), 40):
            header = reader.header(Seqno(seqno))
            assert header is not None and header.seqno == seqno
        assert reader.header(Seqno(last + 1)) is None
        assert reader.header(Seqno(-1)) is None


@pytest.mark.parametrize("seed", range(3))
def test_passing_over_ends_where_reading_would(seed: int) -> None:
    """pipeline.md: a channel passes others' transactions by their record headers; in any mixture none is missed."""
    disk = SimDisk()
    log, _ = mixed_log(disk, seed)
    rng = random.Random(seed)
    with log, open_reader(disk) as reader:
        whole = [one.header for one in read_all(log.cursor())]
        passed_over = 0
        with reader.cursor() as cursor:
            at = 0
            while at < len(whole):
                upto = at + rng.choice((0, 1, 3, 50))
                passed = cursor.pass_over({b"shop"} if rng.random() < 0.9 else {b"depot"}, Seqno(upto))
                assert at - 1 <= passed <= upto
                if passed >= at:
                    passed_over += passed + 1 - at
                    assert cursor.passed() == whole[passed]
                    at = passed + 1
                if rng.random() < 0.5 or passed < at:
                    header = cursor.next_header()
                    assert header == (whole[at] if at < len(whole) else None)
                    at += 1
        assert passed_over > 30
        assert reader.cursor().pass_over({b"shop"}, Seqno(9)) == -1, "nothing was read yet"


def test_damage_behind_what_was_passed_is_named() -> None:
    """A length that lies is found at the record behind it, and blamed on the one that has it."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 6)
        third = log.cursor()
        third.seek(Seqno(3))
        header = third.next_header()
        assert header is not None
        place = lsn_offset(header.lsn)
    flip(disk, segment_path(1), place + 3)  # the length of seqno 3
    with open_reader(disk) as reader, reader.cursor() as cursor:
        cursor.seek(Seqno(1))
        assert cursor.next_header() is not None
        assert cursor.pass_over({b"shop"}, Seqno(6)) == 3, "its checksum is only looked at with its payload"
        with pytest.raises(CorruptRecordError) as caught:
            cursor.next_header()
        assert caught.value.offset == place


def test_records_are_shown_fragment_by_fragment() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        append_large(log, "x", [b"one", b"two", b"three"])
        fill(log, 1)
        shown = [
            (one.header.seqno, one.header.fragno, one.header.last_frag) for one in log.cursor().records(wait=False)
        ]
        assert shown == [(0, 0, True), (1, 0, False), (1, 1, False), (1, 2, True), (2, 0, True)]
        assert [one.payload for one in log.cursor().records(wait=False)][1:4] == [b"one", b"two", b"three"]


def test_large_transactions_stream(tmp_path: object) -> None:
    """Memory is a fragment, whatever the transaction."""
    log = Log.open(f"{tmp_path}/log", source_id="db1")
    with log:
        for _ in range(60):
            log.append(make_fragment("big", bytes(1 << 20), last=False))
        log.append(make_fragment("big", b"end"))
        log.commit()
        with log.cursor() as cursor:
            cursor.seek(Seqno(1))
            tracemalloc.start()
            transaction = cursor.next()
            assert transaction is not None
            total = sum(map(len, transaction.payloads()))
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert total == 60 * (1 << 20) + 3
    assert peak < 6 << 20


def test_headers_alone_read_little_of_large_payloads() -> None:
    """log-format.md: header fields are readable without touching the payload."""
    disk = SimDisk()
    with open_log(disk) as log:
        for _ in range(20):
            log.append(make_fragment("big", bytes(1 << 20)))
        log.commit()
        read = 0
        log._end.segments.recent = None
        log._end.segments.close()  # what the opening left open reads what is recent, too
        cursor = log.cursor()
        assert cursor.next_header() is not None
        reader = cursor._walk.reader
        assert reader is not None
        pread = reader.file.pread

        def count(size: int, offset: int) -> bytes:
            nonlocal read
            raw = pread(size, offset)
            read += len(raw)
            return raw

        reader.file.pread = count  # type: ignore[method-assign]
        assert seqnos(cursor) == list(range(1, 21))
        assert read < 20 * 1.1 * WINDOW_BYTES


def test_reading_stops_at_the_end_and_goes_on() -> None:
    """D: testBlockingNext, testSeekLast, testFirstRead."""
    disk = SimDisk()
    with open_log(disk) as log, log.cursor() as cursor:
        assert seqnos(cursor) == [0]
        assert cursor.next() is None
        assert cursor.next_seqno == 1
        for number in range(5):
            fill(log, 1, start=number)
            assert seqnos(cursor) == [number + 1]
            assert cursor.next(0.0) is None
        cursor.seek(Seqno(log.last_seqno + 1))
        assert cursor.next() is None
        fill(log, 1)
        assert seqnos(cursor) == [6]


def test_seeking_what_is_not_written_yet_waits_for_exactly_that() -> None:
    """D: testSeekNotArrivedEvent, testSeekGoodNonZeroFirst; also in an empty stretch far behind the end."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log, open_reader(disk) as reader:
        for owner in (log, reader):
            with owner.cursor() as cursor:
                target = log.last_seqno + 20
                cursor.seek(Seqno(target))
                assert cursor.next() is None
                fill(log, 19)
                assert cursor.next() is None
                fill(log, 5)
                transaction = cursor.next()
                assert transaction is not None and transaction.header.seqno == target


def test_seeking_before_the_first_is_an_error() -> None:
    """D: testNonexistingSeqno, testSeekBadNonZeroFirst."""
    disk = SimDisk()
    from tranlog.ids import Epoch, Gtid

    with open_log(disk, start_after=Gtid(Epoch(1), Seqno(9))) as log, log.cursor() as cursor:
        assert seqnos(cursor) == [10]
        with pytest.raises(PurgedError, match="starts at 10") as caught:
            cursor.seek(Seqno(9))
        assert (caught.value.seqno, caught.value.first) == (9, 10)
        cursor.seek(Seqno(10))
        assert seqnos(cursor) == [10]


def test_what_is_no_seqno_is_not_taken_for_damage() -> None:
    """1.5, which no record has; or 1.0, as pandas gives numbers."""
    with open_log(SimDisk()) as log, log.cursor() as cursor:
        fill(log, 3)
        for seqno in (1.5, 1.0, "1", None):
            with pytest.raises(TypeError, match="integer"):
                cursor.seek(seqno)  # type: ignore[arg-type]
        assert seqnos(cursor)[:2] == [0, 1]


def test_a_closed_cursor_says_so() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        cursor = log.cursor()
        cursor.close()
        cursor.close()
        with pytest.raises(LogClosedError, match="cursor"):
            cursor.next()
        with pytest.raises(LogClosedError, match="cursor"):
            cursor.seek(Seqno(0))


# --- content ---------------------------------------------------------------------------------------------


def a_change(number: int) -> RowChange:
    column = Column(name="id", source_type="int", logical=LogicalType.INTEGER)
    return RowChange(TableMap(schema="s", table="t", columns=(column,), primary_key=(0,)), Op.INSERT, None, (number,))


def test_changes_are_decoded_over_all_fragments() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        append_large(log, "x", [encode(Payload(changes=(a_change(n), a_change(n + 100)))) for n in range(3)])
        log.append(make_fragment("y", encode(Payload(metadata=(("a", "b"),), changes=(a_change(7),)))))
        log.commit()
        noop, large, small = read_all(log.cursor())
        wanted = [a_change(n) for n in (0, 100, 1, 101, 2, 102)]
        assert list(large.changes()) == wanted
        assert list(large.changes()) == wanted, "a fresh iteration each time"
        assert large.payload().changes == tuple(wanted)
        assert small.payload() == Payload(metadata=(("a", "b"),), changes=(a_change(7),))
        assert [one.is_noop() for one in (noop, large, small)] == [True, False, False]


def test_a_payload_that_cannot_be_decoded_names_its_seqno() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        log.append(make_fragment("x", b"\xff\xff"))
        log.commit()
        transaction = read_all(log.cursor())[1]
        with pytest.raises(PayloadError, match="of seqno 1 ") as caught:
            list(transaction.changes())
        assert caught.value.seqno == 1


# --- waiting ---------------------------------------------------------------------------------------------


def test_waiting_in_the_process_wakes_at_once() -> None:
    disk = SimDisk()
    with Log.open(PATH, source_id="db1", disk=disk) as log, log.cursor() as cursor:
        assert seqnos(cursor) == [0]
        got: list[tuple[int, float]] = []
        ready = threading.Event()

        def follow() -> None:
            ready.set()
            for _ in range(20):
                transaction = cursor.next(30.0)
                assert transaction is not None
                got.append((transaction.header.seqno, time.monotonic()))

        follower = threading.Thread(target=follow)
        follower.start()
        ready.wait()
        for number in range(20):
            fill(log, 1, start=number)
        follower.join(30)
        assert [one[0] for one in got] == list(range(1, 21))


def test_waiting_for_what_is_committed_wakes_by_the_sync() -> None:
    disk = SimDisk()
    with Log.open(PATH, source_id="db1", disk=disk) as log, log.cursor(committed_only=True) as cursor:
        assert seqnos(cursor) == [0]
        log.append(make_fragment())
        log.commit(sync=False)
        assert cursor.next(0.001) is None
        syncing = threading.Timer(0.01, log.commit)
        syncing.start()
        began = time.monotonic()
        assert cursor.next(60.0) is not None
        assert time.monotonic() - began < 30
        syncing.join()


def test_waiting_ends_with_its_time() -> None:
    """D: testReadTimeout, LogFileTest.testReadEmpty1."""
    disk = SimDisk()
    with Log.open(PATH, source_id="db1", disk=disk) as log, log.cursor() as cursor:
        assert seqnos(cursor) == [0]
        began = time.monotonic()
        assert cursor.next(0.02) is None
        assert 0.015 < time.monotonic() - began < 5


def test_waiting_ends_when_the_log_closes() -> None:
    disk = SimDisk()
    log = Log.open(PATH, source_id="db1", disk=disk)
    cursor = log.cursor()
    assert seqnos(cursor) == [0]
    closing = threading.Thread(target=log.close)
    closing.start()
    with pytest.raises(LogClosedError):
        cursor.next(30.0)
    closing.join()


def test_a_reader_polls_with_growing_pauses() -> None:
    disk, clock = SimDisk(), ManualClock()
    with open_log(disk), open_reader(disk, clock=clock) as reader, reader.cursor() as cursor:
        assert seqnos(cursor) == [0]
        assert cursor.next(1.0) is None
        assert clock.slept[:6] == [0.0005, 0.001, 0.002, 0.004, 0.008, 0.016]
        assert set(clock.slept[6:-1]) == {0.020}
        assert sum(clock.slept) == pytest.approx(1.0)


def test_many_cursors_in_one_process_follow_a_writer() -> None:
    """D: testCommitMultiReader, LogFileExtendedTest.testConcurrentReadWriteMulti, testConcurrentReadWrite."""
    disk = SimDisk()
    count = 300
    with Log.open(PATH, source_id="db1", disk=disk) as log, LogReader.open(PATH, disk=disk) as reader:
        got: dict[int, list[int]] = {}

        def follow(name: int, cursor: Cursor) -> None:
            with cursor:
                found = got[name] = []
                while len(found) <= count:
                    transaction = cursor.next(30.0)
                    assert transaction is not None
                    if not transaction.is_noop():
                        assert b"".join(transaction.payloads()) == make_payload(transaction.header.seqno - 1, 100)
                    found.append(transaction.header.seqno)

        cursors = [log.cursor() for _ in range(8)] + [log.cursor(committed_only=True) for _ in range(3)]
        cursors += [reader.cursor() for _ in range(2)]
        followers = [threading.Thread(target=follow, args=(n, cursor)) for n, cursor in enumerate(cursors)]
        for follower in followers:
            follower.start()
        for number in range(count):
            log.append(make_fragment(f"e{number}", make_payload(number, 100)))
            if number % 3 == 0:
                log.commit(sync=number % 2 == 0)
        log.commit()
        for follower in followers:
            follower.join(60)
        assert got == {n: list(range(count + 1)) for n in range(len(cursors))}


# --- damage and disappearance ----------------------------------------------------------------------------


def test_every_flipped_bit_is_found_and_named_by_file_and_offset() -> None:
    """log-format.md, "Rules": by whoever reads the payloads, at the record that is damaged."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 1, size=20)
        append_large(log, "x", [b"one", b"two"])
        fill(log, 2, size=20)
        raw = disk.content(segment_path(1))
        records = record_starts(disk, 1)
        for at in range(16, len(raw)):
            flip(disk, segment_path(1), at, 1 << at % 8)
            with open_reader(disk) as reader, pytest.raises(CorruptRecordError) as caught:
                contents(reader)
            disk.set_content(segment_path(1), raw)
            assert caught.value.segment == "thl.data.0000000001"
            assert caught.value.offset == max(start for start in records if start <= at), f"byte {at}: {caught.value}"


def test_damage_is_passed_over_without_checksums() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
        flip(disk, segment_path(1), len(disk.content(segment_path(1))) - 20)
        assert len(contents(log)) == 3, "what was just written is still in memory"
        log._end.recent.forget()
        with pytest.raises(CorruptRecordError, match="checksum"):
            contents(log)
        with open_reader(disk, checksum=False) as reader:
            assert len(contents(reader)) == 3


def test_a_log_without_checksums_is_read() -> None:
    disk = SimDisk()
    with open_log(disk, checksum=False) as log:
        fill(log, 3)
        assert {one.header.crc_method for one in log.cursor().records(wait=False)} == {0}
        assert len(contents(log)) == 3
    with open_log(disk) as log:
        fill(log, 2, start=3)
        assert [one[1] for one in contents(log)] == ["e0", "e1", "e2", "e3", "e4"]
    with open_log(disk, checksum=False) as log:
        fill(log, 1, start=5)
    with open_log(disk) as log:
        assert len(contents(log)) == 6


def test_a_hole_is_damage_and_never_the_record_before_it() -> None:
    """B7-23: a missing seqno was answered with the record before the hole."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 6)
        headers = [one.header for one in log.cursor().records(wait=False)]
        raw = disk.content(segment_path(1))
        start, end = lsn_offset(headers[3].lsn), lsn_offset(headers[4].lsn)
        disk.set_content(segment_path(1), raw[:start] + raw[end:])
        for wanted in (3, 4, 5):
            with open_reader(disk) as reader, reader.cursor() as cursor:
                cursor.seek(Seqno(wanted))
                if wanted == 3:
                    with pytest.raises(CorruptRecordError, match="seqno 4 fragment 0 where seqno 3 belongs"):
                        cursor.next()
                else:
                    assert cursor.next().header.seqno == wanted  # type: ignore[union-attr]
        with open_reader(disk) as reader, pytest.raises(CorruptRecordError, match="where seqno 3"):
            contents(reader)


def test_a_missing_middle_segment_is_damage() -> None:
    """B7-4: the list stopped there with exit code 0."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 40)
        with open_reader(disk) as reader, reader.cursor() as cursor:
            assert cursor.next() is not None
            disk.unlink(segment_path(3))
            with pytest.raises(SegmentGoneError, match=r"thl\.data\.0000000003"):
                seqnos(cursor)
        with open_reader(disk) as reader, reader.cursor() as cursor:
            read: list[int] = []
            with pytest.raises(CorruptRecordError, match=r"thl\.data\.0000000003, .*the segment is missing") as caught:
                read.extend(one.header.seqno for one in iter(cursor.next, None))
            assert caught.value.seqno is not None and caught.value.seqno > 0
            cursor.seek(Seqno(reader.range().last_seqno))
            assert cursor.next() is not None, "and what lies behind it"
            cursor.seek(Seqno(caught.value.seqno))
            with pytest.raises(CorruptRecordError, match="the segment is missing"):
                cursor.next()


def test_a_missing_segment_before_another_epoch_is_refused_at_once() -> None:
    """It may have begun with a rollback mark: what that abandoned would be read as living."""
    disk = SimDisk()
    for _ in range(2):
        with open_log(disk, segment_bytes=1_000) as log:
            fill(log, 20)
    with open_reader(disk) as reader:
        begun = next(one.header for one in reader.cursor() if one.header.epoch == 2)
    disk.unlink(segment_path(lsn_segment(begun.lsn)))
    with pytest.raises(CorruptRecordError, match=r"after seqno \d+: the segment is missing"):
        open_reader(disk)


def test_a_newest_segment_that_is_gone_is_no_end() -> None:
    """B7-3: 45 of 54 events were listed, exit code 0. D: testMissingLogFile."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=1_000)
    fill(log, 40)
    newest = log.segments()[-1]
    disk.unlink(segment_path(newest.number))
    with pytest.raises(SegmentGoneError, match=newest.name):
        open_reader(disk)
    with pytest.raises(SegmentGoneError, match=newest.name):
        seqnos(log.cursor())
    with pytest.raises(SegmentGoneError, match=newest.name):
        log.close()


def test_a_cursor_that_purge_overtook_says_so() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log, open_reader(disk) as reader:
        fill(log, 40)
        for owner in (log, reader):
            cursor = owner.cursor()
            waiting = owner.cursor()
            assert cursor.next() is not None
            first = log.first_seqno
            log.purge(below=Seqno(first + 20))
            with pytest.raises(PurgedError, match=f"starts at {log.first_seqno}"):
                seqnos(cursor)
            with pytest.raises(PurgedError):
                waiting.next()
            cursor.seek(log.first_seqno)
            assert seqnos(cursor)[-1] == log.last_seqno


def test_a_purged_transaction_that_was_kept_says_so() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        append_large(log, "x", [bytes(500)] * 3)
        fill(log, 30)
        kept = read_all(log.cursor())
        log.purge(below=Seqno(20))
        assert b"".join(kept[2].payloads()) == make_payload(0, 100), "its bytes are in memory still"
        with pytest.raises(PurgedError, match="seqno 1 is purged"):
            list(kept[1].payloads())


def test_a_segment_that_belongs_elsewhere_is_damage() -> None:
    """prev_seqno that does not fit the previous segment, found on the way."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 40)
        header = disk.content(segment_path(3))[:16]
        prev_seqno = int.from_bytes(header[8:], "big")
        raw = disk.content(segment_path(3))
        for wrong in (prev_seqno - 1, prev_seqno + 1):
            disk.set_content(segment_path(3), encode_header(wrong) + raw[16:])
            with open_reader(disk) as reader, reader.cursor() as cursor:
                with pytest.raises(CorruptRecordError, match="prev_seqno") as caught:
                    seqnos(cursor)
                assert (caught.value.segment, caught.value.offset) == ("thl.data.0000000003", 0)


def test_a_segment_that_lost_its_last_record_is_damage() -> None:
    """The next segment begins behind a hole: whoever wants what was there is not given what follows."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 40)
        raw = disk.content(segment_path(2))
        starts = record_starts(disk, 2)
        disk.set_content(segment_path(2), raw[: starts[-2]] + raw[starts[-1] :])
        lost = log.segments()[1].last_seqno
        for start in (lost, lost - 1):
            with open_reader(disk) as reader, reader.cursor() as cursor:
                cursor.seek(Seqno(start))
                with pytest.raises(CorruptRecordError, match="prev_seqno") as caught:
                    seqnos(cursor)
                assert (caught.value.segment, caught.value.offset) == ("thl.data.0000000003", 0)


def test_a_disk_that_cannot_be_read_is_named() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        log._end.segments.recent = None
        fill(log, 3)
        append_large(log, "x", [b"1", b"2"])
        log.commit()
        large = read_all(log.cursor())[-1]
        disk.broken.add(segment_path(1))
        with pytest.raises(LogUnreadableError, match="Input/output error"):
            log.cursor().next()
        with pytest.raises(LogUnreadableError, match="Input/output error"):
            list(large.payloads())
        disk.broken.clear()
        cursor = log.cursor()
        assert len(seqnos(cursor)) == 5
        disk.broken.add(segment_path(1))
        fill(log, 1)
        with pytest.raises(LogUnreadableError, match="Input/output error"):
            cursor.next()
        disk.broken.clear()
        assert seqnos(cursor)[-1] == log.last_seqno, "it goes on where it stood"


def test_what_was_cut_and_written_again_is_not_read_from_an_old_window() -> None:
    """The one hard idea of the module: a window is worth nothing behind the limit it was read at."""
    disk = SimDisk()
    with open_log(disk, buffer_bytes=1) as log, open_reader(disk) as reader:
        for owner in (log, reader):
            with owner.cursor() as cursor:
                cursor.seek(log.last_seqno)
                log.append(make_fragment("gone", b"x" * 90, last=False))
                log.append(make_fragment("gone", b"x" * 90, last=False))
                assert cursor.next() is not None, "its window holds the fragments now"
                log.abandon_open()
                fill(log, 3)
                found = read_all(cursor)
                assert [one.header.event_id for one in found] == ["e0", "e1", "e2"]
                assert [b"".join(one.payloads()) for one in found] == [make_payload(n, 100) for n in range(3)]


@pytest.mark.parametrize("seqno", [1, 2, 5])
def test_zeros_over_a_records_end_do_not_read_as_a_record_without_checksum(seqno: int) -> None:
    """Method 00 among records with 01 of one epoch: payload and trailer were lost; recovery refuses it as well."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 5, size=300)
    path = segment_path(1)
    raw = bytearray(disk.content(path))
    with open_reader(disk) as reader, reader.cursor() as cursor:
        header = next(one.header for one in read_all(cursor) if one.header.seqno == seqno)
    start = header.lsn & 0xFFFFFFFF
    raw[start + header.record_length - 100 : start + header.record_length] = bytes(100)
    disk.set_content(path, bytes(raw))
    with open_reader(disk) as reader, reader.cursor() as cursor:
        cursor.seek(header.seqno)
        found = cursor.next()
        assert found is not None
        with pytest.raises(CorruptRecordError, match="without a checksum after records with one"):
            found.payload()


# --- raw records -----------------------------------------------------------------------------------------


def test_raw_records_are_the_bytes_of_the_log() -> None:
    """architecture.md, decision 10: a cursor yields raw records as well; small ones, large ones and fragments."""
    disk = SimDisk()
    log, _ = mixed_log(disk)
    with log.cursor() as cursor, log.cursor() as other:
        expected = []
        for transaction in read_all(other):
            for record in transaction.records():
                offset = lsn_offset(record.header.lsn)
                content = disk.content(segment_path(record.header.lsn >> 32))
                expected.append((record.header.seqno, content[offset : offset + record.header.record_length]))
        assert list(cursor.raw()) == expected
        assert list(cursor.raw()) == []
        cursor.seek(Seqno(100))
        assert [seqno for seqno, _ in cursor.raw()] == [seqno for seqno, _ in expected if seqno >= 100]
        fill(log, 3)
        assert len(list(cursor.raw())) == 3
    log.close()


def test_raw_records_are_held_against_their_checksums() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 30)
    log.close()
    starts = record_starts(disk, 1)
    flip(disk, segment_path(1), starts[17] + 60, 1)
    with open_reader(disk) as reader, reader.cursor() as cursor:
        found: list[int] = []
        with pytest.raises(CorruptRecordError) as caught:
            found.extend(seqno for seqno, _ in cursor.raw())
        assert caught.value.offset == starts[17]
        assert found == list(range(caught.value.seqno or 0))

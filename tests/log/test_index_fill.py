"""log/writing/index_fill.py: an index that was lost becomes dense again in one writer's life, beside its commits."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from fix_log import (
    PATH,
    await_index,
    contents,
    fill,
    flip,
    index_threads,
    make_fragment,
    make_payload,
    open_log,
    open_reader,
    record_starts,
    segment_path,
)
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files.index_table import INDEX_NAME, decode_table
from tranlog.log.rules.bucket import Bucket
from tranlog.log.rules.index import SeqnoIndex
from tranlog.log.writing import index_fill
from tranlog.log.writing.log import Log
from tranlog.lsn import lsn_segment
from tranlog.testing.disk import SimDisk, SimFile

TABLE = f"{PATH}/{INDEX_NAME}"
SEGMENT = 60_000
Shape = tuple[int, Seqno, int, list[int], tuple[int, int]]


def shape(bucket: Bucket) -> Shape:
    return bucket.segment, bucket.first, bucket.stride, list(bucket.offsets), bucket.tail


def stored(disk: SimDisk) -> list[Shape]:
    """Return the buckets that are stored."""
    return [shape(one) for one in SeqnoIndex.restore(decode_table(disk.content(TABLE)))[0].mappings.buckets]


def places(shapes: list[Shape]) -> int:
    return sum(len(offsets) for _, _, _, offsets, _ in shapes)


def of_closed(shapes: list[Shape], newest: int) -> list[Shape]:
    return [one for one in shapes if one[0] < newest]


def a_log(disk: SimDisk, *, size: int = 300, count: int = 1_500, segment_bytes: int = SEGMENT) -> int:
    """Write a log of many segments; return the number of the newest."""
    with open_log(disk, segment_bytes=segment_bytes) as log:
        fill(log, count, size=size)
        return log.segments()[-1].number


def reopen(disk: SimDisk) -> Log:
    return open_log(disk, segment_bytes=SEGMENT, index_flush_s=10.0)


def filled(log: Log) -> None:
    """Wait until the writer has filled the gaps of its index; a commit begins it."""
    log.append(make_fragment("begins it"))
    log.commit()
    await_index()


class Segments:
    """What is read of segments, and what happens at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: Callable[[str], None] | None = None) -> None:
        self.bytes = 0
        pread = SimFile.pread

        def counted(file: SimFile, size: int, offset: int) -> bytes:
            raw = pread(file, size, offset)
            if "thl.data" in file._path:
                self.bytes += len(raw)
                if at is not None:
                    at(file._path)
            return raw

        monkeypatch.setattr(SimFile, "pread", counted)


def read_by_seeks(disk: SimDisk, newest: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many bytes random seeks read of the segments before `newest`, in a reader that has the index."""
    with open_reader(disk) as reader, reader.cursor() as cursor:
        before = reader.index()[newest - 1].first_seqno
        cursor.seek(reader.range().last_seqno)
        assert cursor.next_header() is not None
        with monkeypatch.context() as patch:
            reads = Segments(patch)
            for seqno in random.Random(2).sample(range(before), 40):
                cursor.seek(Seqno(seqno))
                header = cursor.next_header()
                assert header is not None and header.seqno == seqno
                cursor._walk.leave()
            return reads.bytes


@pytest.mark.parametrize(("size", "count", "segment_bytes"), [(300, 1_500, SEGMENT), (5_000, 700, 10 * SEGMENT)])
def test_a_lost_index_is_as_dense_as_before_after_one_writer(
    size: int, count: int, segment_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost index.table becomes dense again: deleting it costs one full scan."""
    disk = SimDisk()
    newest = a_log(disk, size=size, count=count, segment_bytes=segment_bytes)
    before, bytes_before = stored(disk), read_by_seeks(disk, newest, monkeypatch)
    assert newest > 5
    disk.unlink(TABLE)
    with reopen(disk) as log:
        rough = [shape(one) for one in log.seqno_index.mappings.buckets]
        assert places(rough) < places(before), "opening scans no old segment"
        filled(log)
        log.flush_index()
        assert of_closed(stored(disk), newest) == of_closed(before, newest)
        assert read_by_seeks(disk, newest, monkeypatch) <= bytes_before
    assert of_closed(stored(disk), newest) == of_closed(before, newest)


def test_without_it_seeks_read_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above counts is worth counting: the rough index leads to the start of each segment."""
    disk = SimDisk()
    newest = a_log(disk)
    dense = read_by_seeks(disk, newest, monkeypatch)
    disk.unlink(TABLE)
    with open_log(disk, segment_bytes=SEGMENT) as log:
        log.flush_index()
        assert read_by_seeks(disk, newest, monkeypatch) > 1.3 * dense


def test_a_reader_that_took_the_rough_one_takes_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    a_log(disk)
    disk.unlink(TABLE)
    with reopen(disk) as log:
        log.flush_index()
        with open_reader(disk) as reader, reader.cursor() as cursor:
            cursor.seek(reader.range().last_seqno)
            assert cursor.next() is not None
            rough = len(reader._segments.index.mappings)
            filled(log)
            log.flush_index()
            cursor.seek(Seqno(150))
            assert cursor.next() is not None
            assert len(reader._segments.index.mappings) >= rough
            assert [shape(one) for one in reader._segments.index.mappings.buckets] == stored(disk)


def test_it_is_stored_with_the_next_commit() -> None:
    """Nobody rotates, closes or asks for a flush."""
    disk = SimDisk()
    newest = a_log(disk)
    before = stored(disk)
    disk.unlink(TABLE)
    log = reopen(disk)
    filled(log)
    log.append(make_fragment("the next"))
    log.commit()
    await_index()
    disk.kill()
    assert of_closed(stored(disk), newest) == of_closed(before, newest)


def test_a_writer_that_is_idle_does_it_too() -> None:
    """Capture calls `expire` now and then while its source is idle."""
    disk = SimDisk()
    newest = a_log(disk)
    before = stored(disk)
    disk.unlink(TABLE)
    log = reopen(disk)
    for _ in range(2):
        log.expire()
        await_index()
    disk.kill()
    assert of_closed(stored(disk), newest) == of_closed(before, newest)


def test_a_walk_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never by an append. Nor does opening wait."""
    disk = SimDisk()
    a_log(disk)
    disk.unlink(TABLE)
    begun, through = threading.Event(), threading.Event()

    def wait_for(path: str) -> None:
        if threading.current_thread() is not threading.main_thread() and path == segment_path(1):
            begun.set()
            assert through.wait(60)

    with monkeypatch.context() as patch:
        log = reopen(disk)
        Segments(patch, wait_for)
        fill(log, 1)
        assert begun.wait(60)
        while log.status().segments < 8:
            fill(log, 20, size=1_000)
        log.add_segment()
        with log.cursor() as cursor:
            cursor.seek(Seqno(30))
            assert cursor.next() is not None
        assert log.durable_seqno == log.last_seqno and not through.is_set()
        through.set()
        log.close()


def test_each_writer_goes_on_where_the_one_before_it_was_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short their lives are: each clean end stores one step at least, and a kill costs what was not stored."""
    monkeypatch.setattr(index_fill, "STEP_BYTES", 20_000)
    disk = SimDisk()
    newest = a_log(disk)
    before = stored(disk)
    disk.unlink(TABLE)
    lives, known = 0, [0]
    rng = random.Random(1)
    while not lives or SeqnoIndex.restore(decode_table(disk.content(TABLE)))[0].mappings.gap():
        lives += 1
        assert lives < 200
        log = reopen(disk)
        log.append(make_fragment("one"))
        log.commit()
        if rng.random() < 0.3:
            log._end.index_flush.end_filling()  # or its thread would go on after the process was killed
            disk.kill()
        else:
            log.close()
            known.append(places(stored(disk)))
        if not disk.exists(TABLE):
            log = reopen(disk)
            log.close()
    assert known == sorted(known) and lives > 1
    assert of_closed(stored(disk), newest) == of_closed(before, newest)


def test_transactions_of_every_form_are_found() -> None:
    """Fragments, no checksums, references to spill, sync records between them, and empty ones."""
    disk = SimDisk()
    rng = random.Random(3)
    for checksum in (True, False, True):
        with open_log(disk, segment_bytes=SEGMENT, checksum=checksum, spill_buffer_bytes=2_000) as log:
            for number in range(200):
                fragments = rng.randrange(1, 4)
                for fragno in range(fragments):
                    log.append(make_fragment(f"e{number}", make_payload(number, 300), last=fragno == fragments - 1))
                if number % 7 == 0:
                    log.commit()
                if number % 50 == 0:
                    with log.begin() as large:
                        for fragno in range(5):
                            large.add(make_fragment("large", make_payload(number, 1_000), last=fragno == 4))
            newest = log.segments()[-1].number
    before = stored(disk)
    assert newest > 3
    disk.unlink(TABLE)
    with reopen(disk) as log:
        filled(log)
    assert of_closed(stored(disk), newest) == of_closed(before, newest)


def test_what_was_abandoned_is_not_filled_in() -> None:
    """After a rollback a segment lives up to the matchpoint; what it holds after that is no place of anything."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=SEGMENT) as log:
        fill(log, 400)
        log.rollback(Gtid(log.epoch, Seqno(250)))
        fill(log, 400)
    disk.unlink(TABLE)
    with reopen(disk) as log:
        filled(log)
        index = log.seqno_index
        assert index.mappings.gap() is None
        with log.cursor() as cursor:
            for seqno in range(log.visible_seqno + 1):
                transaction = cursor.next()
                assert transaction is not None
                assert index.exact(Seqno(seqno)) in (None, transaction.start)
                below = index.lte(Seqno(seqno))
                assert below is not None and lsn_segment(below.lsn) == lsn_segment(transaction.start)


@pytest.mark.parametrize("how", ["rolled back", "purged", "removed"])
def test_a_log_that_changed_during_the_walk(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    newest = a_log(disk)
    disk.unlink(TABLE)
    log = reopen(disk)
    matchpoint = Gtid(Epoch(log.epoch - 1), Seqno(100))
    below = log.segments()[3].first_seqno
    walk = index_fill.walk_gap
    came = False

    def changing(*given: object) -> object:
        nonlocal came
        found = walk(*given)  # type: ignore[arg-type]
        if not came:
            came = True
            match how:
                case "rolled back":
                    log.rollback(matchpoint)
                case "purged":
                    log.purge(below=below)
                case _:
                    disk.unlink(segment_path(newest - 2))
        return found

    monkeypatch.setattr(index_fill, "walk_gap", changing)
    log._end.index_flush._fill.run()
    assert came
    index = log.seqno_index
    assert (index.range.first, index.range.last) == (log.first_seqno, log.visible_seqno)
    if how == "removed":
        gap = index.mappings.gap()
        assert gap is not None and lsn_segment(gap.place.lsn) == newest - 2
        assert index.mappings.gap(Seqno(gap.upto + 1)) is None, "the others are filled"
        disk.kill()
        return
    assert index.mappings.gap() is None
    for bucket in index.mappings.buckets:
        assert log._end.segments.knows(bucket.segment)
    assert contents(log)
    log.close()


def test_a_segment_that_is_damaged_is_filled_up_to_there() -> None:
    """Who reads up to it is told, as without an index; the other segments are dense."""
    disk = SimDisk()
    newest = a_log(disk)
    disk.unlink(TABLE)
    with reopen(disk) as log:
        entry = log.segments()[2]
        starts = record_starts(disk, 3)
        flip(disk, segment_path(3), starts[len(starts) // 2], 0xFF)  # its length
        filled(log)
        index = log.seqno_index
        gap = index.mappings.gap()
        assert gap is not None and lsn_segment(gap.place.lsn) == 3 and gap.place.seqno > entry.first_seqno
        assert index.mappings.gap(Seqno(gap.upto + 1)) is None, "the others are filled"
        assert {bucket.segment for bucket in index.mappings.buckets} >= set(range(1, newest + 1))


def test_an_index_that_is_dense_starts_no_thread() -> None:
    disk = SimDisk()
    a_log(disk)
    with reopen(disk) as log:
        fill(log, 5)
        assert index_threads() == [] and log.seqno_index.mappings.gap() is None


def test_readers_of_the_writers_process_teach_its_index_nothing() -> None:
    """What they pass by is known, or being filled; learned places would leave holes that look dense."""
    disk = SimDisk()
    a_log(disk)
    disk.unlink(TABLE)
    with open_log(disk, segment_bytes=SEGMENT, index_flush_s=None) as log:
        before = [shape(one) for one in log.seqno_index.mappings.buckets]
        with log.cursor() as cursor:
            for seqno in range(0, 1_400, 90):
                cursor.seek(Seqno(seqno))
                assert cursor.next() is not None
        assert [shape(one) for one in log.seqno_index.mappings.buckets] == before

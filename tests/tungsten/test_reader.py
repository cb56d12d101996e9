"""Reading a Tungsten directory: conformance/tungsten.md A1, B4, B7; part D, thl/log/DiskLogTest."""

from __future__ import annotations

import random
import struct

import pytest

from fix_tungsten import (
    LOG,
    golden_segments,
    make_event,
    on_disk,
    open_log,
    read_places,
    segments_on,
    written,
)
from tranlog.errors import (
    CorruptRecordError,
    LogMissingError,
    LogUnreadableError,
    NativeLogError,
    PayloadError,
    PurgedError,
    SegmentGoneError,
)
from tranlog.ids import segment_name
from tranlog.testing.disk import SimDisk
from tranlog.tungsten.files.segments import WINDOW_BYTES
from tranlog.tungsten.reading.reader import Seek, TungstenReader
from tranlog.tungsten.records.codec import encode_event, encode_file_header, encode_rotate, parse_file_header
from tranlog.tungsten.records.event import Event, JavaObject
from tranlog.tungsten.records.record import EventRecord, FileHeader
from tranlog.tungsten.writing.directory import purge


def opened(disk: SimDisk, *, checked: bool = True) -> TungstenReader:
    return TungstenReader.open(LOG, disk=disk, checked=checked)


def rotated() -> dict[int, bytes]:
    return golden_segments("rotated-60")


def test_all_of_a_rotated_log() -> None:
    """D, testMultipleLogs: rotation over many files, all readable, the index right."""
    disk = on_disk(rotated())
    assert read_places(disk) == [(seqno, 0) for seqno in range(60)]
    reader = opened(disk)
    assert (reader.first_seqno, reader.last_seqno, reader.next_seqno) == (0, 59, 60)
    assert [(entry.first_seqno, entry.last_seqno) for entry in reader.index()] == [
        *((start, start + 8) for start in range(0, 54, 9)),
        (54, 59),
    ]
    assert reader.notes == ()


def test_reading_changes_nothing() -> None:
    disk = on_disk(golden_segments("recover-truncated-body"))
    before, calls = segments_on(disk), disk.calls
    read_places(disk)
    assert segments_on(disk) == before and disk.calls == calls


@pytest.mark.parametrize("seqno", [*range(0, 60, 7), 8, 9, 53, 54, 59])
def test_seek(seqno: int) -> None:
    """D, testMultipleLogsBackwardScan, testLogReadback."""
    with opened(on_disk(rotated())).cursor() as cursor:
        assert cursor.seek(seqno) is Seek.FOUND
        stored = cursor.next()
        assert stored is not None and stored.record.seqno == seqno


def test_seek_over_many_windows() -> None:
    """A segment wider than the window, records that lie across its ends, one wider than it."""
    rng = random.Random(3)
    disk = SimDisk()
    sizes = [rng.choice((100, 5000, 300_000)) for _ in range(20)]
    sizes[11] = WINDOW_BYTES + 1234
    with open_log(disk, segment_bytes=10**9) as log:
        for seqno, size in enumerate(sizes):
            log.append(make_event(seqno, text="x" * size))
    reader = opened(disk)
    assert reader.last_seqno == 19
    for seqno in rng.sample(range(20), 20):
        with reader.cursor() as cursor:
            assert cursor.seek(seqno) is Seek.FOUND
            stored = cursor.next()
            assert stored is not None and stored.record.seqno == seqno
            assert len(stored.payload) > sizes[seqno]


@pytest.mark.parametrize(
    ("seqno", "found"), [(1, 1), (3, 1), (5, 1), (6, 6), (7, 7), (8, 8), (10, 10), (12, 10), (14, 10)]
)
def test_seek_into_a_filtered_range(seqno: int, found: int) -> None:
    """D, testSeekFilteredEvent, testSeekFinalFilteredEvent: any seqno of a range finds it."""
    with opened(on_disk(golden_segments("filtered"))).cursor() as cursor:
        assert cursor.seek(seqno) is Seek.FOUND
        stored = cursor.next()
        assert stored is not None and stored.record.seqno == found


def test_seek_behind_the_end() -> None:
    """D, testSeekLast, testSeekAfterFinalFilteredEvent: then the next one written is delivered."""
    disk = on_disk(golden_segments("filtered"))
    reader = opened(disk)
    assert (reader.last_seqno, reader.next_seqno) == (10, 15)
    with reader.cursor() as cursor:
        assert cursor.seek(15) is Seek.NOT_YET
        assert cursor.next() is None
        with open_log(disk) as log:
            log.append(make_event(15))
        stored = cursor.next()
        assert stored is not None and stored.record.seqno == 15


def test_seek_inside_the_last_range_and_one_more_is_written() -> None:
    """D, testSeekAfterFinalFilteredEvent: the range is found, and what was appended since follows it."""
    disk = on_disk(golden_segments("filtered"))
    with opened(disk).cursor() as cursor:
        assert cursor.seek(12) is Seek.FOUND
        with open_log(disk) as log:
            log.append(make_event(15))
        found = [cursor.next() for _ in range(3)]
    assert [None if one is None else one.record.seqno for one in found] == [10, 15, None]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_ranges_are_read_back_and_found_from_every_seqno(share: float, seed: int) -> None:
    """D, testLogReadbackWithFiltering, testMultipleLogsFiltered, testSeekFilteredEvent2: many segments, some or all
    of whose events are filtered ranges."""
    rng = random.Random(seed)
    disk = SimDisk()
    places: list[int] = []
    holder: dict[int, int] = {}
    with open_log(disk, segment_bytes=900) as log:
        seqno = 0
        for _ in range(60):
            last = seqno + rng.randrange(6) if rng.random() < share else seqno
            log.append(make_event(seqno, end=(last, 0)) if last > seqno else make_event(seqno))
            places.append(seqno)
            holder |= dict.fromkeys(range(seqno, last + 1), seqno)
            seqno = last + 1
    assert len(segments_on(disk)) > 5
    assert read_places(disk) == [(place, 0) for place in places]
    reader = opened(disk)
    assert (reader.first_seqno, reader.last_seqno, reader.next_seqno) == (0, places[-1], seqno)
    with reader.cursor() as cursor:
        for asked in rng.sample(sorted(holder), len(holder)):
            assert cursor.seek(asked) is Seek.FOUND
            rest = [stored.record.seqno for stored in iter(cursor.next, None)]
            assert rest == [place for place in places if place >= holder[asked]]
        assert cursor.seek(seqno) is Seek.NOT_YET


def test_seek_before_the_first() -> None:
    """D, testNonexistingSeqno."""
    segments = rotated()
    del segments[1]
    reader = opened(on_disk(segments))
    assert reader.first_seqno == 9
    with reader.cursor() as cursor, pytest.raises(PurgedError, match="starts at 9"):
        cursor.seek(8)


def test_b7_23_a_hole_is_not_answered_with_its_neighbour() -> None:
    """B7-23: log 0, 5: the ancestor's seek(3) gives 0."""
    reader = opened(on_disk(golden_segments("odd-order")))
    with reader.cursor(strict=False) as cursor:
        for seqno in (1, 3, 4):
            assert cursor.seek(seqno) is Seek.MISSING
        assert cursor.seek(5) is Seek.FOUND


@pytest.mark.parametrize("case", ["recover-torn-header", "recover-zero-length-tail"])
def test_b7_3_an_unfinished_newest_segment_hides_nothing(case: str) -> None:
    """B7-3: the ancestor prints 45 of 54 events."""
    disk = on_disk(golden_segments(case))
    assert read_places(disk) == [(seqno, 0) for seqno in range(54)]
    reader = opened(disk)
    assert reader.last_seqno == 53
    assert "is skipped" in reader.notes[0]


def test_b7_3_a_missing_newest_segment() -> None:
    """D, testTruncateEndFile: after the rotate record the log ends for now."""
    segments = rotated()
    del segments[7]
    disk = on_disk(segments)
    assert len(read_places(disk)) == 54
    assert opened(disk).notes == (f"{segment_name(6)} leads to {segment_name(7)}, which is not there",)
    with open_log(disk) as log:
        assert log.last_seqno == 53
        log.append(make_event(54))
    assert len(read_places(disk)) == 55


@pytest.mark.parametrize("gone", [2, 4, 6])
def test_b7_4_a_missing_segment_is_named(gone: int) -> None:
    """B7-4: the ancestor merges the ranges and stops after what is before, exit 0; what lies around it is read."""
    segments = rotated()
    del segments[gone]
    before = parse_file_header(segments[gone - 1])
    assert isinstance(before, FileHeader)
    disk, first = on_disk(segments), 9 * (gone - 1)
    reader = opened(disk)
    missing = pytest.raises(CorruptRecordError, match=rf"{segment_name(gone)}.*missing")
    for strict in (False, True):
        read: list[int] = []
        with reader.cursor(strict=strict) as cursor, missing as refused:
            read.extend(stored.record.seqno for stored in iter(cursor.next, None))
        assert read == list(range(first)) and refused.value.seqno == first - 1
    with reader.cursor() as cursor:
        for seqno in (first, first + 8):
            with missing:
                cursor.seek(seqno)
        assert cursor.seek(first + 9) is Seek.FOUND
        assert [stored.record.seqno for stored in iter(cursor.next, None)] == list(range(first + 9, 60))
    held = {one.name: (one.first_seqno, one.last_seqno) for one in reader.index()}
    assert held[segment_name(gone - 1)] == (first - 9, first - 1), "what is missing is not given to the one before"
    for whole in (reader.check_whole, lambda: open_log(disk), lambda: purge(LOG, high=8, disk=disk)):
        with missing as refused:
            whole()
        assert refused.value.seqno == max(before.base_seqno, 0), "where it is in the log, for whoever reads the error"
    assert segments_on(disk) == segments


def test_b7_5_a_newest_segment_of_header_and_rotate_record() -> None:
    """B7-5: a phantom maximum at the ancestor's."""
    segments = rotated()
    segments[7] = encode_file_header(54) + encode_rotate(8, checksum=True)
    disk = on_disk(segments)
    assert opened(disk).last_seqno == 53
    with open_log(disk) as log:
        assert log.next_place is not None and log.next_place.seqno == 54
        log.append(make_event(54))
    assert [seqno for seqno, _ in read_places(disk)] == list(range(55))


@pytest.mark.parametrize("target", [1, 2, 3, 9])
def test_b7_12_a_rotate_record_that_leads_elsewhere(target: int) -> None:
    """B7-12: a backward one keeps the ancestor's reader in a loop for ever."""
    segments = rotated()
    segments[3] = segments[3][:-22] + encode_rotate(target, checksum=True)
    disk = on_disk(segments)
    with pytest.raises(CorruptRecordError, match=r"0000000003, offset 3139.*leads to segment"):
        read_places(disk)
    with pytest.raises(CorruptRecordError, match="leads to segment"):
        open_log(disk)


def test_b7_24_what_is_not_committed_is_not_shown() -> None:
    """B7-24, D testCommitVisibility: neither read nor counted before its commit."""
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_event(0))
    log.commit()
    log.append(make_event(1))
    assert opened(disk).last_seqno == 0 and read_places(disk) == [(0, 0)]
    log.commit()
    assert opened(disk).last_seqno == 1
    log.close()


def test_b7_22_events_out_of_order() -> None:
    """B7-22: shown as they are to who lists, an error to who goes by them."""
    disk = on_disk(golden_segments("odd-order"))
    assert len(read_places(disk, strict=False)) == 12
    with pytest.raises(CorruptRecordError, match=r"offset 213.*seqno 0 again"):
        read_places(disk)
    reader = opened(disk)
    assert "seqno 0 again" in reader.order_notes[0] and reader.notes == ()


def test_an_open_transaction_is_not_shown() -> None:
    """Golden recover-partial-transaction."""
    disk = on_disk(golden_segments("recover-partial-transaction"))
    assert max(read_places(disk))[0] == 2
    assert "last fragment is missing" in opened(disk).notes[0]


def test_fragments_come_when_the_last_is_there() -> None:
    disk = SimDisk()
    log = open_log(disk)
    log.append(make_event(0, 0, last=False))
    log.append(make_event(0, 1, last=False))
    log.commit()
    with opened(disk).cursor() as cursor:
        assert cursor.next() is None
        log.append(make_event(0, 2))
        log.commit()
        found = [cursor.next() for _ in range(3)]
        assert [stored.record.fragno for stored in found if stored is not None] == [0, 1, 2]
        assert cursor.next() is None
    log.close()


def test_following_a_writer_over_rotations() -> None:
    """D, testConcurrentReadWrite, testFirstRead: one that reads behind one that writes."""
    disk = SimDisk()
    log = open_log(disk, segment_bytes=500)
    cursor = opened(disk).cursor()
    seen = []
    for seqno in range(30):
        log.append(make_event(seqno))
        log.commit()
        while (stored := cursor.next()) is not None:
            seen.append(stored.record.seqno)
        assert seen == list(range(seqno + 1))
    assert len(segments_on(disk)) > 5
    cursor.close()
    log.close()


def test_half_a_record_is_an_end_and_then_read() -> None:
    """A1, next: a record is returned only when all its bytes are there."""
    whole = golden_segments("simple-100")[1]
    disk = on_disk({1: whole[:400]})
    with opened(disk).cursor() as cursor:
        assert cursor.next() is not None
        assert cursor.next() is None
        disk.set_content(f"{LOG}/{segment_name(1)}", whole[:616])
        stored = cursor.next()
        assert stored is not None and stored.record.seqno == 1
        assert cursor.next() is None


def test_half_a_record_in_an_older_segment_is_damage() -> None:
    segments = rotated()
    segments[3] = segments[3][:-40]
    disk = on_disk(segments)
    with pytest.raises(CorruptRecordError, match=r"0000000003.*bytes of a record, and segments follow"):
        read_places(disk)
    segments[3] = rotated()[3][:-22]
    with pytest.raises(CorruptRecordError, match=r"0000000003.*without a rotate record, and segments follow"):
        read_places(on_disk(segments))


def test_damage_is_named_when_it_is_read() -> None:
    """Golden fail-bad-body-first-file: the events before it are read, then file and offset."""
    reader = opened(on_disk(golden_segments("fail-bad-body-first-file")))
    with reader.cursor() as cursor:
        for seqno in range(4):
            stored = cursor.next()
            assert stored is not None and stored.record.seqno == seqno
        with pytest.raises(CorruptRecordError, match="0000000001, offset 1400, at or after seqno 3"):
            cursor.next()
        with pytest.raises(CorruptRecordError, match="offset 1400"):
            cursor.seek(6)
        assert cursor.seek(12) is Seek.FOUND


def test_b7_7_checksums_can_be_switched_off() -> None:
    """B7-7; golden fail-bad-crc, nochk-*: refused with them, read without."""
    disk = on_disk(golden_segments("fail-bad-crc"))
    with pytest.raises(CorruptRecordError, match="offset 2716"):
        opened(disk)
    reader = opened(disk, checked=False)
    assert reader.last_seqno == 9
    with reader.cursor() as cursor:
        assert sum(1 for _ in iter(cursor.next, None)) == 10


def test_an_empty_log() -> None:
    """D, testFirstRead; golden empty."""
    reader = opened(on_disk(golden_segments("empty")))
    assert (reader.first_seqno, reader.last_seqno, reader.next_seqno) == (-1, -1, 0)
    assert [(entry.first_seqno, entry.last_seqno) for entry in reader.index()] == [(-1, -1)]
    with reader.cursor() as cursor:
        assert cursor.next() is None
        assert cursor.seek(0) is Seek.NOT_YET


def test_a_first_segment_without_its_header() -> None:
    """An empty log for now, and one to follow."""
    disk = on_disk({1: encode_file_header(-1)[:9]})
    reader = opened(disk)
    assert (reader.first_seqno, reader.last_seqno, reader.index()) == (-1, -1, [])
    with reader.cursor() as cursor:
        assert cursor.next() is None and cursor.seek(0) is Seek.NOT_YET
        with open_log(disk) as log:
            log.append(make_event(0))
    assert read_places(disk) == [(0, 0)]


def test_no_log() -> None:
    """D, testLogReadonlyNonExistent."""
    disk = SimDisk()
    with pytest.raises(LogMissingError, match="does not exist"):
        opened(disk)
    disk.make_dir(LOG)
    with pytest.raises(LogMissingError, match="holds no segment"):
        opened(disk)
    disk = on_disk(rotated())
    disk.denied = {LOG}
    with pytest.raises(LogUnreadableError, match="permissions"):
        opened(disk)


def test_a_native_log_is_refused() -> None:
    """A directory with both codecs."""
    segments = rotated()
    segments[8] = encode_file_header(59) + struct.pack(">IBQQqQ16sBI", 58, 3, 1, 1, 0, 0, bytes(16), 1, 1)
    with pytest.raises(NativeLogError, match=r"thl.data.0000000008 .*tranlog's own format"):
        opened(on_disk(segments))
    with pytest.raises(NativeLogError):
        open_log(on_disk(segments))


def test_a_segment_removed_while_reading() -> None:
    """D, testMissingLogFile: a typed error that names the file."""
    disk = on_disk(rotated())
    reader = opened(disk)
    with reader.cursor() as cursor:
        assert cursor.next() is not None
        disk.unlink(f"{LOG}/{segment_name(4)}")
        with pytest.raises(CorruptRecordError, match=r"0000000004.*missing"):
            list(iter(cursor.next, None))
    with reader.cursor() as cursor, pytest.raises(SegmentGoneError, match="0000000004"):
        cursor.seek(30)


def test_seek_a_segment() -> None:
    """D, testLogFileRead, testNonexistingLogFile."""
    with opened(on_disk(rotated())).cursor() as cursor:
        cursor.seek_segment(3)
        stored = cursor.next()
        assert stored is not None and (stored.record.seqno, stored.segment) == (18, segment_name(3))
        rest = [(one.record.seqno, one.segment) for one in iter(cursor.next, None)]
        assert [seqno for seqno, segment in rest if segment == segment_name(3)] == list(range(19, 27))
        assert rest[8:][0] == (27, segment_name(4)), "each says which segment it came from"
        with pytest.raises(SegmentGoneError, match="0000000099"):
            cursor.seek_segment(99)


def test_java_objects_are_shown_by_their_header() -> None:
    with opened(on_disk(golden_segments("java-serializer"))).cursor() as cursor:
        found = [stored.event() for stored in iter(cursor.next, None)]
    assert len(found) == 3 and all(isinstance(event, JavaObject) for event in found)


def test_a_payload_that_is_none() -> None:
    """Its record is sound: the seqno is named, and reading can go on."""
    disk = written(make_event(0))
    path = f"{LOG}/{segment_name(1)}"
    bad = encode_event(
        seqno=1,
        fragno=0,
        last_frag=True,
        epoch=0,
        source_id="s",
        event_id="e",
        shard_id="d",
        tstamp=0,
        payload=b"\x05rubbish",
        checksum=True,
    )
    disk.set_content(path, disk.content(path) + bad)
    with open_log(disk) as log:
        log.append(make_event(2))
    with opened(disk).cursor() as cursor:
        first, second, third = (cursor.next() for _ in range(3))
    assert first is not None and second is not None and third is not None
    assert isinstance(first.event(), Event) and isinstance(third.event(), Event)
    with pytest.raises(PayloadError, match="of seqno 1 cannot"):
        second.event()


def test_minor_version_warns() -> None:
    """Golden warn-minor-version."""
    reader = opened(on_disk(golden_segments("warn-minor-version")))
    assert reader.last_seqno == 4
    assert "format 1.9" in reader.notes[0]


def test_zero_length_middle() -> None:
    """D, testZeroLengthMiddleFile; golden fail-zero-length-middle."""
    with pytest.raises(CorruptRecordError, match=r"0000000004, offset 0.*0 of the 16 bytes"):
        opened(on_disk(golden_segments("fail-zero-length-middle")))


def test_a_header_decides_what_is_read() -> None:
    """D, testReadFiltering: a predicate of the record's header limits what `next` returns."""
    disk = on_disk(golden_segments("metadata-shards"))
    shards = {stored.record.shard_id for stored in iter(opened(disk).cursor().next, None)}
    assert len(shards) > 3
    for shard in shards:

        def mine(record: EventRecord, shard: str = shard) -> bool:
            return record.shard_id == shard

        with opened(disk).cursor(only=mine) as cursor:
            found = list(iter(cursor.next, None))
        assert found and {stored.record.shard_id for stored in found} == {shard}
    with opened(disk).cursor(only=lambda record: record.seqno % 10 == 3) as cursor:
        assert [stored.record.seqno for stored in iter(cursor.next, None)] == [3, 13, 23, 33]

"""log/files/scan.py: what a walk finds, how it goes on, and what is proven behind a bad record."""

from __future__ import annotations

import contextlib
import time

import pytest

from fix_log import (
    PATH,
    append_large,
    contents,
    fill,
    flip,
    forget_positions,
    make_fragment,
    open_log,
    open_reader,
    read_all,
    record_starts,
    segment_path,
)
from tranlog.errors import LogError, SegmentGoneError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.scan import SegmentScanner, proof_behind, survey
from tranlog.log.files.segment import WINDOW_BYTES, SegmentReader, glance_at
from tranlog.log.records.format import SYNC_BYTES, encode_sync, parse_event
from tranlog.log.rules.recovery import SegmentScan
from tranlog.log.rules.repair import Keep
from tranlog.log.upkeep.repairing import repair
from tranlog.log.upkeep.verify import verify
from tranlog.lsn import lsn, lsn_offset
from tranlog.testing.disk import SimDisk


def scan(disk: SimDisk, number: int = 1) -> SegmentScan:
    file = disk.open(segment_path(number))
    glance = glance_at(file, number)
    assert glance.prev_seqno is not None
    scanner = SegmentScanner(SegmentReader(file, number), glance.prev_seqno)
    scanner.advance()
    return scanner.result()


def test_a_walk_counts_and_remembers() -> None:
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 3)
        append_large(log, "x", [b"1", b"2", b"3"])
        log.commit()
        last = log.last()
    found = scan(disk)
    size = len(disk.content(segment_path(1)))
    assert found.prev_seqno == NO_SEQNO
    assert (found.last_seqno, found.last_header) == (4, last)
    assert (found.records, found.fragments) == (len(record_starts(disk, 1)), 7)
    assert (found.end, found.good_end, found.size, found.proven) == (size, size, size, size - SYNC_BYTES)
    assert (found.proven_seqno, found.closed_cleanly, found.bad) == (4, True, None)
    assert (found.open_fragments, found.next_name, found.unchecked) == (0, None, 0)
    assert last is not None and found.last_first_lsn is not None and found.last_first_lsn < last.lsn


def test_the_fast_walk_and_the_careful_one_agree() -> None:
    """Over windows, with records of every size, flipped in every place of a stretch across a window's end."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=10_000_000) as log:
        for number in range(900):
            log.append(make_fragment(f"e{number}", bytes(number % 700)))
        log.append(make_fragment("large", bytes(WINDOW_BYTES + 100)))
        fill(log, 50)
    starts = record_starts(disk, 1)
    assert starts[-1] > 2 * WINDOW_BYTES
    assert scan(disk).records == len(starts)
    raw = disk.content(segment_path(1))
    for at in [*range(WINDOW_BYTES - 700, WINDOW_BYTES + 700, 13), starts[902] + 50_000]:
        flip(disk, segment_path(1), at)
        found = scan(disk)
        assert found.bad is not None
        assert found.bad.offset == max(start for start in starts if start <= at)
        assert found.end == found.bad.offset
        assert found.proven_behind == starts[-1]
        disk.set_content(segment_path(1), raw)


def test_the_start_of_each_complete_transaction_is_kept() -> None:
    """For the index: one start for each, whatever stands between, and none for a transaction that is still open."""
    disk = SimDisk()
    with open_log(disk, segment_bytes=10_000_000) as log:
        fill(log, 30, size=500)
        log.append(make_fragment("part", last=False))
        log.append(make_fragment("whole"))
        log.commit()
        log.append(make_fragment("open", last=False))
        log.commit()
    found = scan(disk)
    raw = disk.content(segment_path(1))
    assert found.prev_seqno + len(found.starts) == found.last_seqno
    for seqno, start in enumerate(found.starts, found.prev_seqno + 1):
        header = parse_event(raw, start, 0)
        assert header is not None and (header.seqno, header.fragno) == (seqno, 0)


def test_a_walk_goes_on_when_the_file_has_grown() -> None:
    disk = SimDisk()
    with open_log(disk, buffer_bytes=1) as log:
        file = disk.open(segment_path(1))
        scanner = SegmentScanner(SegmentReader(file, 1), NO_SEQNO)
        for number in range(40):
            if number % 5 == 4:
                log.append(make_fragment("part", last=False))
                scanner.advance()
                assert scanner.result().open_fragments == 1
            log.append(make_fragment(f"e{number}"))
            log.commit(sync=number % 2 == 0)
            scanner.advance()
            found = scanner.result()
            assert (found.last_seqno, found.bad, found.open_fragments) == (number + 1, None, 0)
            assert found.proven_seqno <= log.durable_seqno


def test_sync_records_prove_what_they_cover_and_no_more() -> None:
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 2)
    log.append(make_fragment("after the sync record"))
    log.append(make_fragment("and another"))
    log.commit(sync=False)
    found = scan(disk)
    assert (found.last_seqno, found.proven_seqno, found.closed_cleanly) == (4, 2, False)


def test_proof_is_found_across_windows_and_only_the_own() -> None:
    size = 2 * WINDOW_BYTES + 500
    for at in (WINDOW_BYTES - 25, WINDOW_BYTES - 1, WINDOW_BYTES, 2 * WINDOW_BYTES - 13, size - SYNC_BYTES):
        disk = SimDisk()
        file = disk.open("/file", write=True, create=True)
        file.pwrite(b"\x01" * size, 0)
        file.pwrite(encode_sync(lsn(7, at), lsn(7, 1_000), 1), at)
        assert proof_behind(file, 7, 100) == 1_000, at
        assert proof_behind(file, 8, 100) == 0, "another segment's"
        assert proof_behind(file, 7, at + 1) == 0, "it stands before"
        file.pwrite(encode_sync(lsn(7, at), lsn(7, at + 1), 1), at)
        assert proof_behind(file, 7, 100) == 0, "it cannot prove what stands behind it"


def test_a_first_record_whose_end_was_lost_is_judged_by_the_segment_before() -> None:
    """Zeros at the end of a segment's only event read as "no checksum"; the segment before it had them."""
    for checksum, last_seqno in ((True, 1), (False, 2)):
        disk = SimDisk()
        log = open_log(disk, segment_bytes=1_000, checksum=checksum)
        fill(log, 1, size=1_000)
        log.append(make_fragment("second segment"))
        log.commit(sync=False)
        raw = disk.content(segment_path(2))
        disk.set_content(segment_path(2), raw[:-8] + bytes(8))
        found = survey(PATH, disk)
        assert found.scans[-1].last_seqno == last_seqno
        assert (found.scans[-1].bad is None) == (not checksum)


def test_a_survey_walks_back_to_the_last_transaction_only() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 40)
        names = [one.name for one in log.segments()]
    found = survey(PATH, disk)
    assert [one.number for one in found.glances] == list(range(1, len(names) + 1))
    assert [one.number for one in found.scans] == [len(names)]
    disk.set_content(segment_path(len(names)), b"")
    found = survey(PATH, disk)
    assert found.glances[-1].torn_header
    assert [one.number for one in found.scans] == [len(names) - 1]


def test_a_segment_that_vanishes_meanwhile_is_named() -> None:
    disk = SimDisk()
    with open_log(disk, segment_bytes=1_000) as log:
        fill(log, 20)
    list_dir = disk.list_dir
    disk.list_dir = lambda path: [*list_dir(path), "thl.data.0000000099"]  # type: ignore[method-assign]
    with pytest.raises(SegmentGoneError, match=r"thl\.data\.0000000099"):
        survey(PATH, disk)


def test_scanning_from_the_middle() -> None:
    """As verify goes on behind a bad record."""
    disk = SimDisk()
    with open_log(disk) as log:
        fill(log, 2)
        append_large(log, "x", [b"1", b"2", b"3"])
        fill(log, 2)
        records = list(log.cursor().records(wait=False))
    second_fragment = records[4].header
    assert second_fragment.fragno == 1
    file = disk.open(segment_path(1))
    scanner = SegmentScanner(
        SegmentReader(file, 1),
        Seqno(2),
        before=records[3].header,
        offset=second_fragment.lsn & 0xFFFFFFFF,
        fragno=1,
    )
    scanner.advance()
    found = scanner.result()
    assert (found.fragments, found.last_seqno, found.bad) == (4, 5, None)


def test_the_bytes_of_a_sync_record_in_a_payload_prove_nothing() -> None:
    """A database may hold a copy of a log's segment: it stands elsewhere than it says."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 3)
    log.append(make_fragment("torn", b"torn"))
    log.commit(sync=False)
    place = log._pending.start
    blob = encode_sync(lsn(1, place), lsn(1, place), 1)
    log.append(make_fragment("blob", b"before" + blob * 3 + blob))
    log.commit(sync=False)
    path = segment_path(1)
    raw = disk.content(path)
    assert raw.count(blob) == 4
    torn = raw.index(b"torn")
    disk.set_content(path, raw[: torn + 4] + b"\xff" + raw[torn + 5 :])
    forget_positions(disk)
    assert verify(PATH, disk=disk).sound
    disk.kill()
    with open_log(disk) as log:
        assert [one[1] for one in contents(log)] == ["e0", "e1", "e2"]


@pytest.mark.long
def test_a_reference_in_a_bad_record_is_no_number_to_count_to(caplog: pytest.LogCaptureFixture) -> None:
    """Without checksums one wrong bit says that a transaction refers into 2^31 spill segments."""
    disk = SimDisk()
    with open_log(disk, checksum=False, spill_above=1_000, spill_buffer_bytes=300) as log:
        append_large(log, "spilled", [b"a" * 400, b"b" * 400, b"c" * 400])
        log.commit()
        fill(log, 2)
    raw = disk.content(segment_path(1))
    (header,) = [one.header for one in read_all(open_reader(disk).cursor()) if one.header.spilled]
    body = lsn_offset(header.lsn) + header.record_length - 5 - header.data_length
    for bit in range(0, 8 * header.data_length, 3):
        changed = bytearray(raw)
        changed[body + bit // 8] ^= 1 << bit % 8
        disk.set_content(segment_path(1), bytes(changed))
        for name in ("spill.table", "index.table"):
            if disk.exists(f"{PATH}/{name}"):
                disk.unlink(f"{PATH}/{name}")
        begun = time.process_time()
        verify(PATH, disk=disk)
        for keep in Keep:
            with contextlib.suppress(LogError):
                repair(PATH, disk=disk, keep=keep, dry_run=True)
        with contextlib.suppress(LogError):
            open_log(disk).close()
        assert time.process_time() - begun < 5, bit

"""log/rules/recovery.py: the table "Ends of a log" of log-format.md, case by case, on values alone."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from tranlog.ids import NO_SEQNO, Epoch, Seqno
from tranlog.log.records.format import RecordHeader
from tranlog.log.records.record import RollbackMark
from tranlog.log.rules.damage import Problem
from tranlog.log.rules.recovery import (
    BadRecord,
    Continue,
    NewLog,
    Published,
    SegmentGlance,
    SegmentScan,
    Survey,
    plan,
    suspicious,
)
from tranlog.lsn import lsn


def header(seqno: int) -> RecordHeader:
    return RecordHeader(Seqno(seqno), 0, True, Epoch(2), "db", "e", "s", 1, (), 60, 0, False, b"", lsn(2, 100), 1, 0)


def glance(number: int, prev_seqno: int | None, **changed: Any) -> SegmentGlance:
    fields: dict[str, Any] = {
        "number": number,
        "size": 1_000,
        "prev_seqno": prev_seqno,
        "first_seqno": None if prev_seqno is None else prev_seqno + 1,
        "next_name": f"thl.data.{number + 1:010d}",
        "written_at": 1,
    }
    return SegmentGlance(**(fields | changed))


def scan(number: int = 2, **changed: Any) -> SegmentScan:
    """A newest segment, closed cleanly, that holds seqnos 10 to 19."""
    fields: dict[str, Any] = {
        "number": number,
        "prev_seqno": 9,
        "size": 1_000,
        "records": 12,
        "fragments": 10,
        "good_end": 1_000,
        "end": 1_000,
        "last_seqno": 19,
        "last_first_lsn": lsn(number, 900),
        "last_header": header(19),
        "open_fragments": 0,
        "proven": 974,
        "proven_behind": 0,
        "proven_seqno": 19,
        "closed_cleanly": True,
        "bad": None,
        "next_name": None,
        "unchecked": 0,
        "starts": array("I"),
    }
    return SegmentScan(**(fields | changed))


ROW = (glance(1, -1), glance(2, 9, next_name=None))


def decide(last: SegmentScan, row: tuple[SegmentGlance, ...] = ROW) -> Continue | Problem | NewLog:
    return plan(Survey(glances=row, scans=(last,)))


def test_an_empty_directory_is_a_new_log() -> None:
    assert plan(Survey(glances=(), scans=())) == NewLog(number=1)


def test_a_first_segment_without_a_header_is_a_new_log() -> None:
    row = (glance(1, None, torn_header=True, first_seqno=None, next_name=None, size=5),)
    assert plan(Survey(glances=row, scans=())) == NewLog(number=1)


def test_clean_end() -> None:
    """Nothing is done."""
    found = decide(scan())
    assert isinstance(found, Continue)
    assert (found.segment, found.end, found.torn, found.next_segment, found.clean) == (2, 1_000, None, None, True)
    assert (found.last_seqno, found.last_header) == (19, header(19))


def test_zeros_behind_a_clean_end_are_no_tail() -> None:
    found = decide(scan(size=5_000))
    assert isinstance(found, Continue)
    assert found.torn is None


def test_torn_tail_above_what_is_proven_is_cut() -> None:
    bad = BadRecord(offset=950, why="its checksum does not match its bytes")
    found = decide(scan(bad=bad, good_end=900, end=950, proven=800, closed_cleanly=False))
    assert isinstance(found, Continue)
    assert (found.end, found.proven, found.clean) == (900, 800, False)
    assert found.torn == "torn tail: its checksum does not match its bytes"


def test_valid_records_behind_the_bad_one_do_not_matter() -> None:
    """Unsynced pages reach the disk in any order: only a sync record that proves the bad place counts."""
    bad = BadRecord(offset=950, why="x")
    assert isinstance(decide(scan(bad=bad, good_end=900, end=950, proven=800, proven_behind=950)), Continue)


def test_a_bad_record_that_a_later_sync_record_proves_is_corruption() -> None:
    bad = BadRecord(offset=950, why="its checksum does not match its bytes")
    found = decide(scan(bad=bad, good_end=900, end=950, last_seqno=18, proven=800, proven_behind=951))
    assert isinstance(found, Problem)
    assert (found.segment, found.offset, found.seqno) == ("thl.data.0000000002", 950, 18)
    assert "below a place that was proven durable" in found.why


def test_open_transaction_is_cut() -> None:
    found = decide(scan(open_fragments=3, good_end=600, end=900, closed_cleanly=False, proven=880))
    assert isinstance(found, Continue)
    assert (found.end, found.proven) == (600, 600)
    assert found.torn == "open transaction: 3 fragments of seqno 20 without a last one"


def test_a_bad_record_in_a_closed_segment_is_corruption() -> None:
    closed = scan(1, bad=BadRecord(offset=700, why="x"), prev_seqno=-1, last_seqno=5, next_name=None)
    found = plan(Survey(glances=ROW, scans=(closed, scan(last_header=None))))
    assert found == Problem(segment="thl.data.0000000001", offset=700, seqno=Seqno(5), why="x")


@pytest.mark.parametrize(
    ("row", "segment", "why"),
    [
        ((glance(1, -1), glance(3, 19)), 2, "the segment is missing"),
        ((glance(1, None, problem="bad header: magic"), glance(2, 9)), 1, "bad header: magic"),
        ((glance(1, -1), glance(2, None, problem="bad header: zeros, and more")), 2, "bad header: zeros"),
        ((glance(1, None, torn_header=True), glance(2, 9)), 1, "cut short or zeros"),
        ((glance(1, -1), glance(2, 9, first_seqno=11)), 2, "prev_seqno 9, but the segment begins with 11"),
    ],
)
def test_a_row_that_does_not_fit_is_corruption(row: tuple[SegmentGlance, ...], segment: int, why: str) -> None:
    """Bad header, hole in the row, prev_seqno that does not fit; conformance B7-4, B7-5, B7-12."""
    found = decide(scan(), row)
    assert isinstance(found, Problem)
    assert found.segment == f"thl.data.{segment:010d}"
    assert why in found.why


@pytest.mark.parametrize(
    ("first", "walked", "why"),
    [
        (glance(1, -1, next_name=None), {"next_name": None}, "ends without a rotate record"),
        (glance(1, -1, next_name=None), {"bad": BadRecord(offset=500, why="bytes after the rotate record")}, "bytes"),
        (glance(1, -1, next_name="thl.data.0000000001"), {"next_name": "thl.data.0000000001"}, "leads to thl.data."),
        (glance(1, 10), {"prev_seqno": 10, "last_seqno": 11}, "prev_seqno 9, but the previous segment ends at 11"),
        (glance(1, -1, bad=BadRecord(offset=42, why="x")), {"bad": BadRecord(offset=42, why="x")}, "x"),
        (glance(1, -1, first_seqno=5), {"bad": BadRecord(offset=42, why="x")}, "the segment begins with 5"),
    ],
)
def test_what_a_glance_finds_suspicious_a_walk_judges(first: SegmentGlance, walked: dict[str, Any], why: str) -> None:
    row = (first, glance(2, 9, next_name=None))
    assert suspicious(*row) and not suspicious(*ROW)
    fields = {"prev_seqno": -1, "last_seqno": 9, "next_name": "thl.data.0000000002"} | walked
    found = plan(Survey(glances=row, scans=(scan(),), suspects=(scan(1, **fields),)))
    assert isinstance(found, Problem) and why in found.why
    sound = scan(1, prev_seqno=-1, last_seqno=9, next_name="thl.data.0000000002")
    zeros_behind = Survey(glances=(glance(1, -1, next_name=None), ROW[1]), scans=(scan(),), suspects=(sound,))
    assert isinstance(plan(zeros_behind), Continue), "zeros behind a rotate record are nothing"


@pytest.mark.parametrize(
    ("published", "ends_early"),
    [
        (Published(), False),
        (Published(seqno=Seqno(19), epoch=Epoch(2)), False),
        (Published(seqno=Seqno(20), epoch=Epoch(2)), True),
        (Published(seqno=Seqno(10), epoch=Epoch(3)), True),
        (Published(seqno=Seqno(99), epoch=Epoch(1)), True),
        (Published(copied=True), False),
    ],
)
def test_a_log_that_ends_before_what_was_published_is_damaged(published: Published, ends_early: bool) -> None:
    """The epoch of an event takes nothing back: where events have no checksum it may be damage itself."""
    bad = BadRecord(offset=990, why="x")
    for last in (scan(epoch=2), scan(epoch=2, bad=bad, end=990), scan(epoch=2, open_fragments=1, good_end=900)):
        found = plan(Survey(glances=ROW, scans=(last,), published=published))
        assert isinstance(found, Problem) == ends_early


def test_a_later_mark_takes_back_what_was_published() -> None:
    mark = RollbackMark(2, Epoch(2), Epoch(1), Seqno(5), lsn(1, 500), lsn(1, 600), lsn(2, 42), Seqno(9), 0)
    for number, still, lost in ((1, 0, False), (2, 99, False), (3, 99, True)):
        published = Published(seqno=Seqno(99), epoch=Epoch(1), mark=number)
        found = published.beside([mark])
        assert (found.seqno, found.mark_lost) == (still or NO_SEQNO, lost)
        assert found.ends_later(Seqno(100), Epoch(9)) == lost
        assert published.beside([]) == published


def test_a_copy_that_was_made_while_the_log_was_written_ends_at_its_blank() -> None:
    """Zeros up to the end of a page, and behind them what was written since: in the log itself that is damage."""
    for blank, copied in ((True, True), (True, False), (False, True)):
        bad = BadRecord(offset=950, why="zeros where a record should be", blank=blank)
        last = scan(bad=bad, good_end=900, end=950, proven=800, proven_behind=5_000)
        found = plan(Survey(glances=ROW, scans=(last,), published=Published(copied=copied)))
        assert isinstance(found, Continue) == (blank and copied)


def test_prev_seqno_that_the_scan_contradicts_is_corruption() -> None:
    closed = scan(1, prev_seqno=-1, last_seqno=8, next_name="thl.data.0000000002")
    newest = scan(last_header=None, last_seqno=9)
    found = plan(Survey(glances=(glance(1, -1), glance(2, 9, first_seqno=None)), scans=(closed, newest)))
    assert isinstance(found, Problem)
    assert found.why == "bad header: prev_seqno 9, but the previous segment ends at 8"


def test_a_rotation_that_was_cut_short_goes_on() -> None:
    """Zero-length or torn newest header: the last complete transaction is the previous segment's."""
    closed = scan(1, prev_seqno=-1, last_seqno=9, next_name="thl.data.0000000002", closed_cleanly=False)
    row = (glance(1, -1), glance(2, None, torn_header=True, first_seqno=None, size=0))
    found = plan(Survey(glances=row, scans=(closed,)))
    assert isinstance(found, Continue)
    assert (found.segment, found.next_segment, found.last_seqno) == (1, 2, 9)


def test_a_rotate_record_at_the_very_end_starts_the_next_segment() -> None:
    found = decide(scan(next_name="thl.data.0000000003", closed_cleanly=False))
    assert isinstance(found, Continue)
    assert found.next_segment == 3


def test_purged_by_hand_is_no_error() -> None:
    row = (glance(7, 69), glance(8, 79, next_name=None))
    found = decide(scan(8, prev_seqno=79, last_seqno=89), row)
    assert isinstance(found, Continue)
    assert found.last_seqno == 89


def test_the_last_transaction_may_lie_in_an_earlier_segment() -> None:
    closed = scan(1, prev_seqno=-1, last_seqno=9, last_header=header(9), next_name="thl.data.0000000002")
    newest = scan(2, last_header=None, last_first_lsn=None, last_seqno=9, good_end=42, end=42)
    found = plan(Survey(glances=(glance(1, -1), glance(2, 9, first_seqno=None)), scans=(closed, newest)))
    assert isinstance(found, Continue)
    assert (found.segment, found.last_header, found.last_first_lsn) == (2, header(9), lsn(1, 900))

"""log/retention.py: what may go, and what never does."""

from __future__ import annotations

import pytest

from tranlog.ids import Seqno
from tranlog.log.retention import SegmentAge, purge_below, purge_by_age


def row(*ends: int | None, per_segment: int = 10) -> list[SegmentAge]:
    return [
        SegmentAge(number=at + 1, last_seqno=Seqno((at + 1) * per_segment - 1), ended_at=end)
        for at, end in enumerate(ends)
    ]


def by_age(segments: list[SegmentAge], holds: list[int | None] | None = None, now: int = 10_000) -> list[int]:
    wanted = [None if hold is None else Seqno(hold) for hold in holds or []]
    return purge_by_age(segments, now_ms=now, retention_ms=1_000, holds=wanted)


def test_old_segments_go_from_the_front() -> None:
    assert by_age(row(100, 200, 9_500, 9_600, None)) == [1, 2]


def test_the_newest_two_stay_however_old() -> None:
    """conformance D: DiskLogExtendedTest.testLogRetention."""
    assert by_age(row(1, 2, 3, 4, None)) == [1, 2, 3]
    assert by_age(row(1, None)) == []
    assert by_age(row(None)) == []
    assert by_age([]) == []


def test_a_young_segment_keeps_what_is_behind_it() -> None:
    """Time going back: no hole comes about."""
    assert by_age(row(100, 9_999, 100, 100, 100, None)) == [1]
    assert by_age(row(99_999, 100, 100, 100, None)) == []
    assert by_age(row(None, 100, 100, 100, None)) == [], "an unknown age is no age"


def test_exactly_the_retention_is_kept() -> None:
    assert by_age(row(9_000, 9_000, 9_000, None)) == []
    assert by_age(row(8_999, 9_000, 9_000, None)) == [1]


@pytest.mark.parametrize(
    ("holds", "gone"),
    [
        ([], [1, 2, 3]),
        ([100], [1, 2, 3]),
        ([20], [1, 2]),
        ([19], [1]),
        ([10], [1]),
        ([9], []),
        ([30, 9], []),
        ([-1], []),
    ],
)
def test_a_hold_keeps_the_record_at_its_own_position(holds: list[int | None], gone: list[int]) -> None:
    """glossary, low_water_seqno: purge may go up to here, not including it."""
    assert by_age(row(1, 2, 3, 4, None), holds) == gone


def test_a_damaged_hold_keeps_everything() -> None:
    assert by_age(row(1, 2, 3, 4, None), [100, None]) == []


@pytest.mark.parametrize(
    ("below", "gone"), [(0, []), (9, []), (10, [1]), (29, [1, 2]), (30, [1, 2, 3]), (999, [1, 2, 3])]
)
def test_purging_below_a_seqno(below: int, gone: list[int]) -> None:
    """conformance D: DiskLogTest.testDeleteUp."""
    assert purge_below(row(None, None, None, None, None), seqno=Seqno(below), holds=[]) == gone


def test_purging_below_a_seqno_minds_holds() -> None:
    assert purge_below(row(None, None, None, None), seqno=Seqno(999), holds=[Seqno(12)]) == [1]

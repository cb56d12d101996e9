"""The decisions about a Tungsten directory, alone: conformance/tungsten.md B4, B7."""

from __future__ import annotations

import random

import pytest

from tranlog.tungsten.records.record import FileHeader, ImpossibleEvent, PartialEvent, TungstenRotate
from tranlog.tungsten.rules.recovery import (
    DirectoryEntry,
    EventPlace,
    IndexEntry,
    NewDirectory,
    PurgeSegments,
    PurgeTail,
    Refuse,
    RefusePurge,
    Torn,
    TungstenContinue,
    TungstenScan,
    order_problem,
    place_behind,
    plan_open,
    plan_purge,
    reading_problem,
    row_problem,
)


def entry(number: int, base: int = 0, *, size: int = 1000) -> DirectoryEntry:
    return DirectoryEntry(number=number, size=size, header=FileHeader(major=1, minor=1, base_seqno=base))


def rotate(number: int) -> TungstenRotate:
    return TungstenRotate(offset=900, length=22, next_segment=number, crc_type=1, crc=0)


def test_nothing_there() -> None:
    assert plan_open([], {}) == NewDirectory()


def test_a_hole_in_the_row() -> None:
    """B7-4."""
    found = row_problem([entry(1), entry(2, 9), entry(4, 27)])
    assert found is not None and found.segment == "thl.data.0000000003"
    assert isinstance(plan_open([entry(1), entry(3, 9)], {}), Refuse)
    assert row_problem([entry(5, 40), entry(6, 50)]) is None  # purged at the front


def test_headers() -> None:
    """B4 3: an unfinished one is the newest's to have; another version is nobody's."""
    torn = DirectoryEntry(number=2, size=7, header=PartialEvent(7))
    assert row_problem([entry(1), torn]) is None
    found = row_problem([entry(1), torn, entry(3, 9)])
    assert found is not None and "7 of the 16 bytes" in found.why
    found = row_problem([DirectoryEntry(number=1, size=99, header=ImpossibleEvent("major version 2"))])
    assert found is not None and found.why == "major version 2"


def test_only_the_newest_may_be_torn() -> None:
    torn = TungstenScan(number=1, size=1000, base_seqno=-1, stop=Torn(500, "100 bytes of a record"), complete_end=500)
    newest = TungstenScan(number=2, size=1000, base_seqno=5, rotate=rotate(3), complete_end=900, records_end=1000)
    assert isinstance(plan_open([entry(1, -1)], {1: torn}), TungstenContinue)
    refused = plan_open([entry(1, -1), entry(2, 5)], {1: torn, 2: newest})
    # Segment 2 holds no transaction, so that it goes, and 1 is the newest.
    assert isinstance(refused, TungstenContinue)
    assert [(cut.number, cut.whole) for cut in refused.cuts] == [(2, True), (1, False)]


def test_a_newest_segment_that_goes_on_elsewhere() -> None:
    """After a rotate record the next segment is made, its number the record's."""
    scan = TungstenScan(
        number=4, size=922, base_seqno=27, rotate=rotate(5), complete_end=900, records_end=922, next_seqno=36
    )
    found = plan_open([entry(4, 27, size=922)], {4: scan})
    assert found == TungstenContinue(tail=5, create=5, next_seqno=36)


INDEX = [IndexEntry(number=n + 1, first_seqno=9 * n, last_seqno=9 * n + 8, bytes=3000) for n in range(6)]


def test_purges_against_a_model() -> None:
    """Every range: what is left is the log without it, or a beginning of it more, and never a hole."""
    for low in range(-1, 56):
        for high in range(-1, 56):
            plan = plan_purge(INDEX, None if low < 0 else low, None if high < 0 else high)
            first, last = max(low, 0), 53 if high < 0 else high
            left = [seqno for seqno in range(54) if not first <= seqno <= last]
            match plan:
                case PurgeSegments(numbers=numbers):
                    kept = [e for e in INDEX if e.number not in numbers]
                    assert [e.number for e in kept] == list(
                        range(*((kept and (kept[0].number, kept[-1].number + 1)) or (0,)))
                    )
                    held = {seqno for e in kept for seqno in range(e.first_seqno, e.last_seqno + 1)}
                    assert held >= set(left) and (first == 0 or held == set(left))
                case PurgeTail(numbers=numbers, cut=cut, seqno=seqno):
                    assert seqno == first and last >= 53
                    assert numbers == tuple(range(6, cut, -1)) and INDEX[cut - 1].first_seqno < first
                case RefusePurge():
                    inside = first > 0 and last < 53
                    assert inside or first > last or first > 53


def test_purging_an_empty_log() -> None:
    empty = [IndexEntry(number=1, first_seqno=-1, last_seqno=-1, bytes=16)]
    assert isinstance(plan_purge(empty, 0, 5), RefusePurge)
    assert plan_purge(empty, None, None) == PurgeSegments((1,))


def test_order_against_a_model() -> None:
    """What is accepted, one after the other, is every seqno once and every fragment in its place."""
    rng = random.Random(11)
    wanted: EventPlace | None = None
    stored: list[tuple[int, int, bool]] = []
    for _ in range(3000):
        base = 0 if wanted is None else wanted.seqno
        seqno, fragno = base + rng.choice((-1, 0, 0, 0, 1)), rng.choice((0, 0, 1, 2))
        if seqno < 0 or order_problem(wanted, seqno, fragno) is not None:
            continue
        last = fragno == 2 or rng.random() < 0.6
        stored.append((seqno, fragno, last))
        wanted = place_behind(seqno, fragno, last, None, None)
    assert len(stored) > 300
    expected = (stored[0][0], 0)
    for seqno, fragno, last in stored:
        assert (seqno, fragno) == expected
        expected = (seqno + 1, 0) if last else (seqno, fragno + 1)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ((3, 0, True, None, None), EventPlace(4)),
        ((3, 1, False, None, None), EventPlace(3, 2)),
        ((3, 0, True, 9, 0), EventPlace(10)),
        ((7, 0, True, 7, 3), EventPlace(8)),
        ((8, 1, False, 8, 2), EventPlace(8, 3)),
        ((8, 0, True, 2, 0), EventPlace(9)),
    ],
)
def test_places_behind(arguments: tuple[int, int, bool, int | None, int | None], place: EventPlace) -> None:
    """A filtered range moves the place to behind its end; an end below its start does not move it back."""
    assert place_behind(*arguments) == place


def test_reading_takes_a_gap_between_transactions() -> None:
    """A2, A3: `online -base-seqno` goes on higher; a duplicate, or a gap inside a transaction, is damage (B7-22)."""
    assert reading_problem(EventPlace(5), 9, 0) is None
    assert reading_problem(EventPlace(5), 4, 0) is not None
    assert reading_problem(EventPlace(5), 9, 1) is not None
    assert reading_problem(EventPlace(5, 1), 6, 0) is not None
    assert reading_problem(EventPlace(5, 1), 5, 2) is not None

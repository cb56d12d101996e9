"""From the ancestor's records to whole transactions without a gap: conformance/tungsten.md A2, B7-22."""

from __future__ import annotations

from fix_tungsten import golden_segments
from tranlog.tungsten.records.codec import scan
from tranlog.tungsten.records.record import EventRecord
from tranlog.tungsten.rules.arrange import Piece, arrange


def piece(seqno: int, fragno: int = 0, *, last: bool = True, end: tuple[int, int] | None = None) -> Piece:
    raw = golden_segments("simple-100")[1]
    record = next(one for one in scan(raw, checked=True) if isinstance(one, EventRecord))
    record = EventRecord(
        **{name: getattr(record, name) for name in record.__struct_fields__}
        | {"seqno": seqno, "fragno": fragno, "last_frag": last}
    )
    return Piece(record=record, segment=1, end=end)


def places(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(one.record.seqno, one.record.fragno) for one in pieces]


def test_a_transaction_of_fragments() -> None:
    run = [piece(5, 0, last=False), piece(5, 1, last=False), piece(5, 2)]
    (whole,), left_out = arrange(run, 5)
    assert left_out == [] and whole.seqno == whole.end_seqno == 5
    assert [fragno for fragno, _ in whole.fragments()] == [0, 1, 2]


def test_a_filtered_range_stands_for_fragments_and_seqnos() -> None:
    run = [piece(8, 0, last=False), piece(8, 1, last=False, end=(8, 3)), piece(8, 4, end=(11, 0))]
    (whole,), left_out = arrange(run, None)
    assert left_out == [] and whole.end_seqno == 11
    assert [(fragno, one is not None) for fragno, one in whole.fragments()] == [
        (0, True),
        (1, True),
        (2, False),
        (3, False),
        (4, True),
    ]


def test_what_does_not_follow_is_left_out() -> None:
    """B7-22: a seqno again, an open transaction that another follows, a missing fragment, one that begins at 3."""
    assert places(arrange([piece(4)], 5)[1]) == [(4, 0)]
    run = [piece(6, 0, last=False), piece(6, 2, last=False), piece(7)]
    found, left_out = arrange(run, 6)
    assert [whole.seqno for whole in found] == [7] and places(left_out) == [(6, 0), (6, 2)]
    assert places(arrange([piece(8, 3)], 8)[1]) == [(8, 3)]
    assert places(arrange([piece(9, 0, end=(14, 0)), piece(12)], 9)[1]) == [(12, 0)]
    run = [piece(9, 0, last=False), piece(9, 0, last=False), piece(9, 1)]
    found, left_out = arrange(run, 9)
    assert [len(whole.pieces) for whole in found] == [2] and places(left_out) == [(9, 0)]
    assert places(arrange([piece(9, 0, last=False)], 9)[1]) == [(9, 0)]

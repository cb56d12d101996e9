"""log/index.py: a place at or before what is wanted, whatever the index knows."""

from __future__ import annotations

import random

from tranlog.ids import Seqno, lsn, lsn_offset, lsn_segment
from tranlog.log.index import STRIDE_BYTES, Place, SeqnoIndex


def index_of(*prevs: int, first: int = 1) -> SeqnoIndex:
    index = SeqnoIndex(first_offset=16)
    for at, prev_seqno in enumerate(prevs):
        index.add_segment(first + at, Seqno(prev_seqno))
    return index


def test_an_empty_index_knows_nothing() -> None:
    index = index_of()
    assert (index.first_seqno(), index.first_number(), index.newest_number()) == (None, None, None)
    assert index.locate(Seqno(0)) is None
    assert index.prev_seqno(1) is None
    index.note(Seqno(1), lsn(1, 16))


def test_a_segment_alone_leads_to_its_start() -> None:
    index = index_of(-1, 99, 199)
    assert index.locate(Seqno(0)) == Place(Seqno(0), lsn(1, 16))
    assert index.locate(Seqno(99)) == Place(Seqno(0), lsn(1, 16))
    assert index.locate(Seqno(100)) == Place(Seqno(100), lsn(2, 16))
    assert index.locate(Seqno(1_000)) == Place(Seqno(200), lsn(3, 16))


def test_before_the_first_segment_there_is_no_place() -> None:
    index = index_of(99, 199, first=7)
    assert index.locate(Seqno(99)) is None
    assert index.first_seqno() == 100
    assert list(index.segments()) == [(7, 99), (8, 199)]
    assert 8 in index and 9 not in index


def test_places_closer_than_the_stride_are_not_kept() -> None:
    index = index_of(-1)
    index.note(Seqno(5), lsn(1, STRIDE_BYTES))
    assert index.locate(Seqno(5)) == Place(Seqno(0), lsn(1, 16))
    index.note(Seqno(6), lsn(1, STRIDE_BYTES + 16))
    index.note(Seqno(7), lsn(1, STRIDE_BYTES + 17))
    assert index.locate(Seqno(9)) == Place(Seqno(6), lsn(1, STRIDE_BYTES + 16))
    assert index.locate(Seqno(5)) == Place(Seqno(0), lsn(1, 16))


def test_places_may_be_learned_in_any_order() -> None:
    """A reader knows the end of the log before it knows the middle."""
    places = [(n * 10, lsn(1, 16 + n * STRIDE_BYTES)) for n in range(1, 40)]
    for seed in range(10):
        index = index_of(-1)
        index.note(Seqno(500), lsn(1, 16 + 50 * STRIDE_BYTES))
        for seqno, position in random.Random(seed).sample(places, len(places)):
            index.note(Seqno(seqno), position)
            index.note(Seqno(seqno + 1), position + 100)  # type: ignore[arg-type]
            index.note(Seqno(seqno - 1), position - 100)  # type: ignore[arg-type]
        for seqno, position in places:
            assert index.locate(Seqno(seqno + 5)) == Place(Seqno(seqno), position), f"seed {seed}"


def test_two_segments_with_one_start_lead_to_the_later() -> None:
    """A segment without a transaction in front of another one."""
    index = index_of(-1, 9, 9)
    assert index.locate(Seqno(10)) == Place(Seqno(10), lsn(3, 16))


def test_lookup_is_the_nearest_place_known() -> None:
    """Against a plain list, random shapes."""
    for seed in range(30):
        rng = random.Random(seed)
        index = SeqnoIndex(first_offset=16)
        places: list[tuple[int, int, int]] = []
        seqno = 0
        for number in range(1, rng.randrange(2, 6)):
            index.add_segment(number, Seqno(seqno - 1))
            places.append((seqno, number, 16))
            offset = 16
            for _ in range(rng.randrange(1, 20)):
                seqno += rng.randrange(1, 50)
                offset += STRIDE_BYTES + rng.randrange(10_000)
                index.note(Seqno(seqno), lsn(number, offset))
                places.append((seqno, number, offset))
            seqno += 1
        for wanted in range(0, seqno + 10, 3):
            best = max(place for place in places if place[0] <= wanted)
            found = index.locate(Seqno(wanted))
            assert found is not None, f"seed {seed}"
            assert (found.seqno, lsn_segment(found.lsn), lsn_offset(found.lsn)) == best, f"seed {seed}"


def test_dropping_the_front_and_the_end() -> None:
    index = index_of(-1, 99, 199)
    far = lsn(3, 16 + STRIDE_BYTES)
    index.note(Seqno(250), far)
    index.drop_front(2)
    assert index.first_seqno() == 100
    assert index.locate(Seqno(50)) is None
    index.drop_end(far)
    assert index.locate(Seqno(300)) == Place(Seqno(200), lsn(3, 16))
    index.drop_end(lsn(2, 500))
    assert list(index.segments()) == [(2, 99)]
    index.note(Seqno(120), lsn(2, 16 + STRIDE_BYTES))
    assert index.locate(Seqno(120)).lsn == lsn(2, 16 + STRIDE_BYTES)  # type: ignore[union-attr]

"""`ids`: a GTID's order, bytes and text; an LSN's parts."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.ids import Epoch, Gtid, Lsn, Seqno
from tranlog.lsn import lsn, lsn_offset, lsn_segment, lsn_text

NUMBERS = st.integers(min_value=0, max_value=2**63 - 1)
GTIDS = st.builds(lambda epoch, seqno: Gtid(Epoch(epoch), Seqno(seqno)), NUMBERS, NUMBERS)
U32 = st.integers(min_value=0, max_value=2**32 - 1)


def test_the_text_is_the_glossarys() -> None:
    assert str(Gtid(Epoch(1), Seqno(15))) == "GTID(1, 15)"


def test_the_bytes_are_two_big_endian_u64() -> None:
    assert Gtid(Epoch(1), Seqno(15)).to_bytes() == bytes.fromhex("0000000000000001 000000000000000f")


@given(GTIDS)
def test_bytes_text_and_pickle_read_back(gtid: Gtid) -> None:
    assert Gtid.from_bytes(gtid.to_bytes()) == gtid
    assert Gtid.parse(str(gtid)) == gtid
    assert pickle.loads(pickle.dumps(gtid)) == gtid


@given(GTIDS, GTIDS)
def test_the_order_of_the_pair_is_the_order_of_the_bytes(one: Gtid, other: Gtid) -> None:
    assert (one < other) == (one.to_bytes() < other.to_bytes()) == ((one.epoch, one.seqno) < (other.epoch, other.seqno))


def test_spaces_around_the_numbers_do_not_matter() -> None:
    assert Gtid.parse(" GTID( 2 ,7 ) ") == Gtid(Epoch(2), Seqno(7))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1, 15",
        "GTID(1)",
        "GTID(1, -1)",
        "GTID(1, 15) GTID(1, 15)",
        "GTID(1, 15)x",
        "GTID(x, 15)",
        "GTID(٣, 15)",
        f"GTID(1, {2**63})",
        f"GTID({2**64 - 1}, 1)",
        Gtid(Epoch(1), Seqno(2**63)).to_base64(),
        f'BinData(0, "{Gtid(Epoch(2**64 - 1), Seqno(0)).to_base64()}")',
        f"GTID({'9' * 5000}, 1)",
    ],
)
def test_another_text_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="not a GTID"):
        Gtid.parse(text)


def test_what_no_log_can_hold_is_named() -> None:
    """Text and bytes are 64 bits wide; a log's own numbers are 63."""
    wide = Gtid(Epoch(2**64 - 1), Seqno(2**63))
    assert Gtid.from_bytes(wide.to_bytes()) == wide
    for text in (str(wide), wide.to_base64()):
        with pytest.raises(ValueError, match=rf"GTID\({2**64 - 1}, {2**63}\) is above SEQNO_MAX, {2**63 - 1}"):
            Gtid.parse(text)
    most = Gtid(Epoch(2**63 - 1), Seqno(2**63 - 1))
    assert Gtid.parse(str(most)) == Gtid.parse(most.to_base64()) == most


@pytest.mark.parametrize("size", [0, 8, 15, 17])
def test_another_number_of_bytes_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"16 bytes, not {size}"):
        Gtid.from_bytes(bytes(size))


@given(U32, U32)
def test_an_lsn_has_a_segment_and_an_offset(segment: int, offset: int) -> None:
    position = lsn(segment, offset)
    assert (lsn_segment(position), lsn_offset(position)) == (segment, offset)
    assert lsn_text(position) == f"{segment}:{offset}"


@given(U32, U32, U32, U32)
def test_lsns_are_ordered_as_places_in_the_log(a: int, b: int, c: int, d: int) -> None:
    assert (lsn(a, b) < lsn(c, d)) == ((a, b) < (c, d))


def test_an_lsns_offset_is_below_four_gibibytes() -> None:
    """log-format.md: a segment has at most 4 GiB, so the offset of any record in it fits 32 bits."""
    assert lsn(1, 2**32 - 1) == Lsn(0x1_FFFF_FFFF)
    with pytest.raises(AssertionError):
        lsn(1, 2**32)

"""source/mariadb/position: event ids, start options, and positions that a server cannot go on from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tranlog.source.mariadb.position import (
    BinlogPosition,
    DomainGtid,
    LastTransaction,
    StartAtFile,
    StartAtGtids,
    StartEarliest,
    StartNow,
    is_newer_file,
    parse_gtids,
    parse_start,
    why_lost,
)

gtids = st.dictionaries(
    st.integers(0, (1 << 32) - 1),
    st.tuples(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)),
    max_size=4,
).map(lambda found: tuple(DomainGtid(domain, *found[domain]) for domain in sorted(found)))
files = st.from_regex(r"[a-z./_-]{1,10}\.[0-9]{6}", fullmatch=True)
numbers = st.integers(0, (1 << 32) - 1)
proofs = {
    "server": st.just("") | st.from_regex(r"[A-Za-z0-9+/=]{8}", fullmatch=True),
    "last": st.none() | st.builds(LastTransaction, numbers, numbers, numbers),
    "prepared": st.none() | gtids,
}
positions = st.builds(BinlogPosition, gtids=gtids, **proofs) | st.builds(
    BinlogPosition, gtids=gtids, file=files, offset=st.integers(4, 1 << 40), **proofs
)


@given(positions)
def test_an_event_id_reads_back(position: BinlogPosition) -> None:
    assert BinlogPosition.parse(str(position)) == position


def test_an_event_id_names_all_domains_in_their_order() -> None:
    """sources.md: the full GTID position list of all domains, plus file and offset."""
    position = BinlogPosition(gtids=parse_gtids("10-3-4, 1-1-7,0-1-42"), file="binlog.000003", offset=12345)
    assert str(position) == "0-1-42,1-1-7,10-3-4;binlog.000003:12345"
    assert str(BinlogPosition(file="binlog.000001", offset=325)) == ";binlog.000001:325"
    assert str(BinlogPosition()) == ""
    proven = BinlogPosition(
        gtids=parse_gtids("0-1-42"),
        file="binlog.000003",
        offset=12345,
        server="rLCTv1jW",
        last=LastTransaction(0, 378, 0xA),
    )
    assert str(proven) == "0-1-42;binlog.000003:12345;rLCTv1jW:0:378:0000000a"
    assert str(BinlogPosition(gtids=parse_gtids("0-1-42"), prepared=parse_gtids("0-1-40"))) == "0-1-42;xa=0-1-40"


@pytest.mark.parametrize(
    "text",
    ["0-1", "0-1-2-3", "a-b-c", "0-1-2;", "0-1-2;binlog.000001", "0-1-2;x:y", "0-1-2,0-1-3", "sqlite:5", "-1-1-1"],
)
def test_what_is_no_event_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"reads? |twice"):
        BinlogPosition.parse(text)


def test_start_options() -> None:
    """From GTID, from file and position, from now; the earliest beside."""
    assert parse_start("now") == StartNow()
    assert parse_start(" earliest ") == StartEarliest()
    assert parse_start("0-1-42") == StartAtGtids(gtids=(DomainGtid(0, 1, 42),))
    assert parse_start("1-1-7,0-1-42") == StartAtGtids(gtids=(DomainGtid(0, 1, 42), DomainGtid(1, 1, 7)))
    assert parse_start("binlog.000003:12345") == StartAtFile(file="binlog.000003", offset=12345)
    for text in ("", "tomorrow", "NOW", "binlog.000003", "0-1"):
        with pytest.raises(ValueError, match=r"reads|position"):
            parse_start(text)


def test_positions_that_are_lost() -> None:
    """A source whose position is behind the log's: it lost its tail, or was reset."""
    position = BinlogPosition(gtids=parse_gtids("0-1-42,7-1-3"))
    assert why_lost(position, server_state={0: 42, 7: 3, 9: 1}) is None
    assert why_lost(position, server_state={0: 100, 7: 3}) is None
    assert "ends at sequence 41" in str(why_lost(position, server_state={0: 41, 7: 3}))
    assert why_lost(position, server_state={0: 42}) is None, "a domain that ended may be deleted"
    assert "never held" in str(why_lost(position, server_state={9: 42}))
    assert why_lost(BinlogPosition(), server_state={}) is None


def test_a_newer_file_is_not_a_purged_one() -> None:
    assert is_newer_file("binlog.000010", "binlog.000009")
    assert not is_newer_file("binlog.000009", "binlog.000009")
    assert not is_newer_file("other.000010", "binlog.000009")
    assert not is_newer_file("binlog", "binlog.000009")

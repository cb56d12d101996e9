"""`online --until-…` and `--skip-seqno`; conformance/tungsten.md A6, "watches", "skip list", B7-16."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tranlog.errors import ConfigError
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.pipeline.rules.limits import (
    Content,
    SeqnoRanges,
    UntilEvent,
    UntilHeartbeat,
    UntilTime,
    Watched,
    limit_text,
    needs_every_header,
    reached,
)


@dataclass(frozen=True, kw_only=True)
class Header:
    seqno: Seqno = NO_SEQNO
    event_id: str = "0-1-9"
    shard_id: str = "#UNKNOWN"
    tstamp: int = 1000


@pytest.mark.parametrize(
    ("limit", "beat", "expected"),
    [
        (UntilTime(tstamp=1000), None, None),
        (UntilTime(tstamp=999), None, 6),
        (UntilTime(tstamp=999), "x", None),  # its time is when it was written into the log
        (UntilEvent(event_id="0-1-9"), None, 7),
        (UntilEvent(event_id="0-1-10"), None, None),  # as text "0-1-9" is behind it
        (UntilEvent(event_id="0-1"), None, None),
        (UntilHeartbeat(), "x", 7),
        (UntilHeartbeat(name="x"), "x", 7),
        (UntilHeartbeat(name="y"), "x", None),
        (UntilHeartbeat(), None, None),
    ],
)
def test_a_limit_is_told_by_a_header(limit: Watched, beat: str | None, expected: int | None) -> None:
    assert reached(limit, Header(seqno=Seqno(7)), lambda: Content(heartbeat=beat, empty=beat is not None)) == expected


def test_a_payload_is_read_only_where_a_heartbeat_can_be() -> None:
    def never() -> Content:
        raise AssertionError("the payload of a shard's transaction was read")

    assert reached(UntilHeartbeat(), Header(seqno=Seqno(7), shard_id="north"), never) is None
    assert reached(UntilTime(tstamp=1), Header(seqno=Seqno(7), shard_id="north"), never) == 6
    assert not needs_every_header(UntilHeartbeat())
    assert needs_every_header(UntilTime(tstamp=1)) and needs_every_header(UntilEvent(event_id="x"))


def test_a_time_is_told_as_a_time() -> None:
    assert limit_text(UntilTime(tstamp=1_893_456_000_500)) == "time 2030-01-01 00:00:00.5 UTC"


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("5", ((5, 5),)),
        ("5, 7,9-12", ((5, 5), (7, 7), (9, 12))),
        ("9-12,5,10-20,6", ((5, 6), (9, 20))),
        ("0-999999999999999999", ((0, 999999999999999999),)),
    ],
)
def test_a_list_of_seqnos(text: str, ranges: tuple[tuple[int, int], ...]) -> None:
    found = SeqnoRanges.parse(text)
    assert found.ranges == ranges
    assert SeqnoRanges.parse(found.text()) == found
    for first, last in ranges:
        assert first in found and last in found and first - 1 not in found and last + 1 not in found


@pytest.mark.parametrize("text", ["", "a", "1,,2", "5-3", "-1", "1.5", "9" * 19, "1-"])
def test_what_is_no_list_of_seqnos(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SeqnoRanges.parse(text)
    assert caught.value.option == "--skip-seqno"


def test_what_lies_behind_a_position() -> None:
    ranges = SeqnoRanges.parse("2-4,8,10-12")
    assert ranges.after(Seqno(3)).ranges == ((4, 4), (8, 8), (10, 12))
    assert ranges.after(Seqno(8)).ranges == ((10, 12),)
    assert not ranges.after(Seqno(12))

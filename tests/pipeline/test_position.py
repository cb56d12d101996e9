"""Positions that an operator names: a claim about history, checked against the log."""

from __future__ import annotations

import pytest

from tranlog.errors import ConfigError
from tranlog.header import TransactionHeader
from tranlog.ids import Epoch, Seqno
from tranlog.log.reading.reader import LogRange
from tranlog.pipeline.upkeep.position import Move, position_rows
from tranlog.target.target import ChannelRow

HELD = LogRange(
    first_seqno=Seqno(10),
    last_seqno=Seqno(20),
    durable_seqno=Seqno(20),
    committed_seqno=Seqno(20),
    epoch=Epoch(3),
    scanned=False,
)
HEADER = TransactionHeader(
    seqno=Seqno(15),
    fragno=0,
    last_frag=True,
    epoch=Epoch(2),
    source_id="till",
    event_id="e:15",
    shard_id="s",
    tstamp=99,
    tables=(),
    record_length=0,
    data_length=0,
    spilled=False,
    write_set=b"",
)


def row(channel: int, seqno: int, **fields: object) -> ChannelRow:
    return ChannelRow(channel=channel, applied_seqno=Seqno(seqno), **fields)  # type: ignore[arg-type]


STORED = [row(0, 12, epoch=2, event_id="e:12", stats='{"transactions": 5}', token=9), row(1, 13, epoch=2)]


def test_a_position_carries_what_the_log_says_of_it() -> None:
    rows = position_rows(Seqno(15), HEADER, HELD, STORED, channels=2)
    assert rows == [
        row(0, 15, epoch=2, source_id="till", event_id="e:15", tstamp=99, stats='{"transactions": 5}'),
        row(1, 15, epoch=2, source_id="till", event_id="e:15", tstamp=99),
    ]


def test_one_channel_alone() -> None:
    rows = position_rows(Seqno(15), HEADER, HELD, STORED, channels=2, only=1)
    assert rows[0] == STORED[0] and rows[1].applied_seqno == 15
    one = position_rows(Seqno(15), HEADER, HELD, STORED[:1], channels=3, only=1)
    assert [(row.channel, row.applied_seqno) for row in one] == [(0, 12), (1, 15)], "one after the other"
    with pytest.raises(ConfigError, match=r"--channel = 7: the pipeline has channels 0 to 1"):
        position_rows(Seqno(15), HEADER, HELD, STORED, channels=2, only=7)


def test_right_before_the_log_nothing_is_applied() -> None:
    """Such a row has no epoch and no event id: only the transactions behind it must be there."""
    rows = position_rows(Seqno(9), None, HELD, STORED, channels=2)
    assert [(one.epoch, one.applied_seqno, one.event_id) for one in rows] == [(0, 9, ""), (0, 9, "")]


@pytest.mark.parametrize("seqno", [8, 21, -1])
def test_a_seqno_that_the_log_does_not_hold_is_refused(seqno: int) -> None:
    with pytest.raises(ConfigError, match="the log holds 10 to 20; name one of those, or 9 for"):
        position_rows(Seqno(seqno), None, HELD, [], channels=4)


def test_what_a_move_means_is_said_beforehand() -> None:
    move = Move(before=(row(0, 12), row(1, 18), row(2, 15)), after=(row(0, 15), row(1, 15), row(2, 15), row(3, 15)))
    assert move.consequences() == [
        "channel 0 skips its transactions of seqno 13 to 15",
        "channel 1 applies its transactions from seqno 16 on again",
    ]

"""A log whose transactions come with their numbers: a copy, which begins no epoch of its own."""

from __future__ import annotations

import pytest

from fix_log import PATH, contents, make_fragment, open_log
from tranlog.errors import AppendOrderError
from tranlog.ids import NO_EPOCH, Epoch, Gtid, Seqno
from tranlog.log.rules.numbering import Numbering, follows
from tranlog.log.writing.log import Log, LogOptions
from tranlog.testing.disk import SimDisk


def given(disk: SimDisk, spill_above: int = 1 << 30) -> Log:
    return Log.open(
        PATH, source_id="db1", disk=disk, options=LogOptions(spill_above=spill_above), numbering=Numbering.GIVEN
    )


def gtid(epoch: int, seqno: int) -> Gtid:
    return Gtid(Epoch(epoch), Seqno(seqno))


def test_a_transaction_follows_the_last_one() -> None:
    """design/architecture.md, decision 2: the next seqno, and no earlier epoch."""
    assert follows(gtid(3, 8), gtid(3, 7)) and follows(gtid(5, 8), gtid(3, 7))
    assert not follows(gtid(2, 8), gtid(3, 7)) and not follows(gtid(3, 9), gtid(3, 7))


def test_it_keeps_the_numbers_and_adds_none() -> None:
    disk = SimDisk()
    with given(disk) as log:
        assert (log.epoch, log.last_seqno) == (NO_EPOCH, -1)
        log.append_given(make_fragment("a", last=False), gtid(1, 0))
        log.append_given(make_fragment("a"), gtid(1, 0))
        log.append_given(make_fragment("b"), gtid(4, 1))
        for wrong in (gtid(4, 1), gtid(4, 3), gtid(3, 2)):
            with pytest.raises(AppendOrderError, match="after"):
                log.append_given(make_fragment("c"), wrong)
        log.commit()
    with given(disk) as log:
        assert (log.epoch, log.last_seqno) == (4, 1)
        log.append_given(make_fragment("c"), gtid(4, 2))
        log.commit()
    with open_log(disk) as log:
        assert (log.epoch, log.last_seqno) == (5, 3), "its own epoch has a no-op"
        assert [one[1] for one in contents(log)][:3] == ["a", "b", "c"]


def test_a_large_transaction_is_spilled_under_its_number() -> None:
    disk = SimDisk()
    with given(disk, spill_above=3_000) as log:
        for part in range(5):
            log.append_given(make_fragment("large", bytes(1_000), last=part == 4), gtid(2, 0))
        log.append_given(make_fragment("small"), gtid(2, 1))
        log.commit()
        assert log.spill_segments() and [one[1] for one in contents(log)] == ["large", "small"]

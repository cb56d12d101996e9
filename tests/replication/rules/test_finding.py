"""Which part of a log says what became of a transaction: docs/protocol.md, "Looking for a transaction"."""

from __future__ import annotations

import pytest

from fix_group import gtid, log_of
from tranlog.ids import Gtid
from tranlog.replication.rules.finding import LogPart, part_to_walk
from tranlog.replication.rules.packets import NO_GTID


@pytest.mark.parametrize(
    ("after", "first"),
    [
        (gtid(1, 1), 2),
        (gtid(1, 2), 3),
        (gtid(1, 9), 3),  # of a reign whose end was rolled back
        (gtid(2, 9), 3),  # of a reign of which nothing stayed
        (gtid(3, 3), 4),
        (gtid(3, 5), 6),
        (gtid(9, 9), 6),
        (NO_GTID, 0),
    ],
)
def test_all_that_may_have_a_greater_gtid_is_looked_at(after: Gtid, first: int) -> None:
    log = log_of(1, 1, 1, 3, 3, 3)
    assert part_to_walk(log, after) == LogPart(first, 5, complete=True, is_last=True)
    looked_at = {log.gtid(seqno) for seqno in range(first, 6)}
    assert {one.gtid for one in log.entries if one.gtid > after} == looked_at


def test_a_long_log_is_looked_at_in_parts() -> None:
    log, after = log_of(*[1] * 7), gtid(1, 0)
    found: list[int] = []
    while True:
        part = part_to_walk(log, after, most=4)
        found += range(part.first, part.upto + 1)
        if part.is_last:
            break
        upto = log.gtid(part.upto)
        assert upto is not None and part.upto - part.first == 3
        after = upto
    assert found == [1, 2, 3, 4, 5, 6]


def test_what_was_purged_or_lies_further_back_is_not_complete() -> None:
    log = log_of(*[1] * 7, begin=3)
    assert part_to_walk(log, gtid(1, 1)) == LogPart(3, 6, complete=False, is_last=True)
    assert part_to_walk(log, gtid(1, 2)).complete
    assert part_to_walk(log, None) == LogPart(3, 6, complete=False, is_last=True)
    assert part_to_walk(log, None, most=2) == LogPart(5, 6, complete=False, is_last=True)
    assert part_to_walk(log_of(1, 1), None) == LogPart(0, 1, complete=True, is_last=True)

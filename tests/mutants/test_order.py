"""The check of the order at the target finds each way in which it can be wrong, and nothing else."""

from __future__ import annotations

import pytest

from mutants.order import Logged, Trace, find_fault


def logged(number: int, *shards: str, rows: int = 1, listed: bool = False, section: int = 0) -> Logged:
    return Logged(number=number, shards=shards, rows=rows, listed=listed, section=section)


def trace(place: int, number: int, xact: int, snapshot: str) -> Trace:
    return Trace(place=place, number=number, xact=xact, snapshot=snapshot)


A1, B2, A3 = logged(1, "a"), logged(2, "b"), logged(3, "a")


def test_order_is_asked_of_one_shard_only() -> None:
    late = [trace(1, 2, 50, "50:50:"), trace(2, 1, 51, "50:52:50"), trace(3, 3, 52, "52:52:")]
    assert find_fault([A1, B2, A3], late) is None
    assert find_fault([A1, logged(9, rows=0), A3], [trace(1, 1, 50, "50:50:"), trace(2, 3, 50, "50:50:")]) is None


@pytest.mark.parametrize(
    ("log", "trail", "told"),
    [
        ([A1], [], "lost: 1 has 0 rows of 1"),
        ([logged(1, "a", rows=2)], [trace(1, 1, 5, "5:5:")], "lost: 1 has 1 rows of 2"),
        ([A1], [trace(1, 1, 5, "5:5:"), trace(2, 1, 6, "6:6:")], "doubled: 1 has 2 rows of 1"),
        ([A1], [trace(1, 1, 5, "5:5:"), trace(2, 7, 6, "6:6:")], "out of nowhere: [7]"),
        ([logged(1, "a", rows=2)], [trace(1, 1, 5, "5:5:"), trace(2, 1, 6, "6:6:")], "torn: 1"),
        ([A1, A3], [trace(2, 1, 5, "5:5:"), trace(1, 3, 5, "5:5:")], "wrong order: 3"),
        # Later by its place, and its transaction began while the one that it must follow was still open.
        ([A1, A3], [trace(1, 1, 5, "5:5:"), trace(2, 3, 6, "5:7:5")], "wrong order: 3"),
        ([A1, A3], [trace(1, 1, 9, "9:9:"), trace(2, 3, 8, "8:9:")], "wrong order: 3"),
        # A serial one has its order with all: by its shards, or by the user's list.
        ([A1, logged(2, "b", "c")], [trace(2, 1, 6, "6:6:"), trace(1, 2, 5, "5:5:")], "wrong order: 2"),
        ([logged(1, "b", "c"), A3], [trace(2, 1, 6, "6:6:"), trace(1, 3, 5, "5:5:")], "wrong order: 3"),
        ([A1, logged(2, "b", listed=True)], [trace(2, 1, 6, "6:6:"), trace(1, 2, 5, "5:5:")], "wrong order: 2"),
        # Another plan begins where everything in front of it is applied.
        ([A1, logged(2, "b", section=1)], [trace(2, 1, 6, "6:6:"), trace(1, 2, 5, "5:5:")], "wrong order: 2"),
        # All rows of the one stand before the first of the other.
        (
            [logged(1, "a", rows=2), A3],
            [trace(1, 1, 5, "5:5:"), trace(2, 3, 5, "5:5:"), trace(3, 1, 5, "5:5:")],
            "wrong order: 3",
        ),
    ],
)
def test_each_fault_is_found(log: list[Logged], trail: list[Trace], told: str) -> None:
    fault = find_fault(log, trail)
    assert fault is not None
    assert fault.startswith(told)

"""The check of `make group-kill` that what programs were told is one order: each wrong is found, and nothing else."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_history import CommitOp, Entry, Fate, Op, ReadOp, one_order_exists, violations
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.replication.rules.packets import NO_GTID


def at(seqno: int, epoch: int = 1) -> Gtid:
    return Gtid(Epoch(epoch), Seqno(seqno)) if seqno >= 0 else NO_GTID


def commit(event: str, seqno: int, began: float, returned: float, fate: Fate = Fate.STANDS) -> CommitOp:
    return CommitOp(event, 7, fate, began, returned, at(seqno))


def log(*events: str) -> list[Entry]:
    """A log of one epoch; "" is the group's own."""
    return [Entry(at(seqno), event, 7 if event else 0) for seqno, event in enumerate(events)]


FIRST, SECOND = commit("first", 1, 0, 1), commit("second", 2, 2, 3)
GOOD: list[tuple[str, list[Op], list[Entry]]] = [
    ("nothing", [], []),
    ("two in their order", [FIRST, SECOND], log("", "first", "second")),
    ("under way together", [commit("a", 2, 0, 9), commit("b", 1, 1, 2)], log("", "b", "a")),
    ("what fewer have goes", [commit("a", 1, 0, 1, Fate.MAY_GO), SECOND], [Entry(at(0)), Entry(at(2), "second", 7)]),
    ("what fewer have is not shown yet", [commit("a", 1, 0, 1, Fate.MAY_GO), ReadOp(2, 3, at(0))], log("", "a")),
    ("unknown stands", [CommitOp("a", 7, Fate.UNKNOWN, 0), SECOND], log("", "a", "second")),
    ("unknown does not stand", [CommitOp("a", 7, Fate.UNKNOWN, 0), commit("b", 1, 2, 3)], log("", "b")),
    ("unknown comes late", [CommitOp("a", 7, Fate.UNKNOWN, 0), commit("b", 1, 2, 3)], log("", "b", "a")),
    ("refused", [CommitOp("a", 7, Fate.REFUSED, 0, 1)], log("")),
    ("a read of the group's own", [FIRST, ReadOp(2, 3, at(2))], log("", "first", "")),
    ("a read beside a commit", [FIRST, ReadOp(0.5, 3, at(0))], log("", "first")),
    ("reads that go on", [FIRST, ReadOp(2, 3, at(1)), SECOND, ReadOp(4, 5, at(2))], log("", "first", "second")),
]
WRONG: list[tuple[str, list[Op], list[Entry]]] = [
    ("lost", [FIRST, SECOND], log("", "first")),
    ("doubled", [CommitOp("a", 7, Fate.UNKNOWN, 0)], log("", "a", "a")),
    ("written", [CommitOp("a", 7, Fate.REFUSED, 0, 1)], log("", "a")),
    ("written", [], log("", "a")),
    ("moved", [FIRST], log("", "", "first")),
    ("moved", [commit("a", 1, 0, 1, Fate.MAY_GO)], log("", "", "a")),
    ("changed", [FIRST], [Entry(at(0)), Entry(at(1), "first", 8)]),
    ("disordered", [commit("first", 2, 0, 1), commit("second", 1, 2, 3)], log("", "second", "first")),
    ("disordered", [commit("a", 2, 0, 1, Fate.MAY_GO), commit("b", 1, 2, 3)], log("", "b", "a")),
    ("disordered", [FIRST, CommitOp("a", 7, Fate.UNKNOWN, 2)], log("a", "first")),
    ("disordered", [FIRST, ReadOp(2, 3, at(2)), commit("late", 2, 4, 5)], log("", "first", "late")),
    ("stale", [FIRST, ReadOp(2, 3, at(0))], log("", "first")),
    ("stale", [ReadOp(0, 1, at(1)), ReadOp(2, 3, at(0))], log("", "")),
    ("unheld", [ReadOp(0, 1, at(1, epoch=2))], log("", "")),
]


@pytest.mark.parametrize(("ops", "entries"), [pytest.param(*rest, id=name) for name, *rest in GOOD])
def test_one_order_is_found_good(ops: list[Op], entries: list[Entry]) -> None:
    assert violations(ops, entries) == {} and one_order_exists(ops, entries)


@pytest.mark.parametrize(
    ("kind", "ops", "entries"),
    [pytest.param(*wrong, id=f"{wrong[0]}-{number}") for number, wrong in enumerate(WRONG)],
)
def test_each_wrong_is_found(kind: str, ops: list[Op], entries: list[Entry]) -> None:
    assert violations(ops, entries).keys() == {kind} and not one_order_exists(ops, entries)


TIMES = st.integers(0, 9)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Op], list[Entry]]:
    """Up to eight operations, played one after the other at moments of their own, and then harmed in some places."""
    entries = [Entry(at(0))] if draw(st.booleans()) else []
    ops: list[Op] = []
    now = 0
    for number in range(draw(st.integers(0, 8))):
        now += draw(st.integers(1, 2))
        began, returned = max(0, now - draw(st.integers(0, 3))), now + draw(st.integers(0, 3))
        if draw(st.integers(0, 4)) == 0:
            entries.append(Entry(at(len(entries))))
        if draw(st.integers(0, 3)) == 0:
            ops.append(ReadOp(began, returned, entries[-1].gtid if entries else NO_GTID))
            continue
        event, fate = f"e{number}", draw(st.sampled_from([Fate.STANDS, Fate.STANDS, *Fate]))
        said: Gtid | None = at(len(entries))
        if fate is Fate.REFUSED or (fate is not Fate.STANDS and draw(st.booleans())):
            said = None if fate is not Fate.MAY_GO else at(99)  # it was rolled back
        else:
            entries.append(Entry(at(len(entries)), event, 7))
        unknown = fate is Fate.UNKNOWN
        said = None if unknown and draw(st.booleans()) else said
        ops.append(CommitOp(event, 7, fate, began, inf if unknown else returned, said))
    for _ in range(draw(st.integers(0, 2)) if ops else 0):
        number = draw(st.integers(0, len(ops) - 1))
        ops[number] = _harmed(draw, ops[number])
    if len(entries) > 1 and draw(st.integers(0, 5)) == 0:
        number = draw(st.integers(0, len(entries) - 1))
        other = draw(st.sampled_from(["", "e0", "nobody's"]))
        entries[number] = Entry(entries[number].gtid, other, draw(st.sampled_from([7, 8])))
    return ops, entries


def _harmed(draw: st.DrawFn, one: Op) -> Op:
    began = draw(TIMES)
    returned = began + draw(TIMES)
    if isinstance(one, ReadOp):
        return ReadOp(began, returned, at(draw(st.integers(-1, 9))))
    fate = draw(st.sampled_from(Fate))
    said = at(draw(st.integers(0, 9))) if fate in (Fate.STANDS, Fate.MAY_GO) and draw(st.booleans()) else one.gtid
    return CommitOp(one.event, 7, fate, began, inf if fate is Fate.UNKNOWN else returned, said)


@given(histories())
def test_the_one_pass_agrees_with_trying_every_order(history: tuple[list[Op], list[Entry]]) -> None:
    ops, entries = history
    assert (violations(ops, entries) == {}) == one_order_exists(ops, entries)

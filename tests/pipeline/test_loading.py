"""The rule by which a change counts while its table is loading, walked over everything that can happen in the small.

Proves: two keys, one chunk border, updates that cross it, a kill of capture or
of the reader between any two steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import pytest

from tranlog.change import Change, Column, ForeignKey, Op, RowChange, TableMap
from tranlog.errors import TargetTableError
from tranlog.ids import Seqno
from tranlog.loads import (
    KeyRange,
    LoadBegin,
    LoadChunk,
    LoadEnd,
    LoadMark,
    LoadProgress,
    key_text,
    mark_of,
    parents_first,
    parse_key,
)
from tranlog.pipeline.rules import loading
from tranlog.types import UNCHANGED, LogicalType

TABLE = TableMap(
    schema="s",
    table="t",
    columns=tuple(Column(name=name, source_type="int", logical=LogicalType.INTEGER) for name in ("id", "n")),
    primary_key=(0,),
)
Rows = tuple[tuple[int, int], ...]
KEYS = (1, 2)
"""The border of the chunks lies between the two."""


def changes_of(rows: Rows) -> Iterator[tuple[RowChange, Rows]]:
    """Yield each change that fits the rows, with the rows after it."""
    have = dict(rows)
    for key in KEYS:
        if key not in have:
            yield RowChange(TABLE, Op.INSERT, None, (key, 0)), tuple(sorted([*rows, (key, 0)]))
            continue
        rest = tuple(row for row in rows if row[0] != key)
        yield RowChange(TABLE, Op.DELETE, (key, have[key]), None), rest
        changed = (key, (have[key] + 1) % 3)
        yield RowChange(TABLE, Op.UPDATE, (key, have[key]), changed), tuple(sorted([*rest, changed]))
        other = 3 - key
        if other not in have:
            moved = (other, have[key])
            yield RowChange(TABLE, Op.UPDATE, (key, have[key]), moved), tuple(sorted([*rest, moved]))


def mark(step: LoadBegin | LoadChunk | LoadEnd) -> LoadMark:
    found = mark_of(LoadMark(load="1", pipeline="*", step=step).metadata())
    assert found is not None
    return found


def chunk(after: int | None, upto: int | None, rows: int) -> LoadMark:
    keys = KeyRange(
        after=None if after is None else key_text((after,)), upto=None if upto is None else key_text((upto,))
    )
    return mark(LoadChunk(table=("s", "t"), key=("id",), keys=keys, rows=rows))


Entry = tuple[LoadMark | None, tuple[Change, ...]]


class Capture:
    """What stands in the log: changes as they were committed, and chunks where they were read.

    A kill of capture between a snapshot and its chunk is a chunk that is not there: the next is read anew.
    """

    @staticmethod
    def step(log: tuple[Entry, ...], rows: Rows) -> Entry | None:
        """Return the load's next transaction, from what the log says of it; None at its end."""
        progress = LoadProgress()
        for found, _ in log:
            if found is not None:
                progress = progress.follow(found.step)
        if not progress.begun:
            return mark(LoadBegin(tables=(TABLE,), replace=False)), ()
        if progress.left:
            after = None if progress.after is None else parse_key(progress.after)[0]
            assert after is None or isinstance(after, int)
            upto = 1 if after is None else None
            taken = [row for row in rows if (row[0] == 1 if upto else row[0] > (after or 0))]
            return chunk(after, upto, len(taken)), tuple(RowChange(TABLE, Op.INSERT, None, row) for row in taken)
        return None if progress.ended else (mark(LoadEnd()), ())


@cache
def all_logs(rows: Rows, changes: int) -> tuple[tuple[tuple[Entry, ...], Rows], ...]:
    """Return every log of a load of these rows with up to so many changes between its steps, with the rows after."""
    found = []

    def walk(log: tuple[Entry, ...], rows: Rows, left: int) -> None:
        step = Capture.step(log, rows)
        if step is None:
            found.append((log, rows))
        else:
            walk((*log, step), rows, left)
        if left and log:  # the load begins before anything else
            for change, after in changes_of(rows):
                walk((*log, (None, (change,))), after, left - 1)

    walk((), rows, changes)
    return tuple(found)


def apply(rows: dict[int, int], change: Change) -> None:
    """Apply strictly: what does not fit is a defect."""
    assert isinstance(change, RowChange)
    if change.before is not None:
        key, n = change.before
        assert isinstance(key, int)
        assert rows.pop(key) == n
    if change.after is not None:
        key, n = change.after
        assert key not in rows
        assert isinstance(key, int)
        assert isinstance(n, int)
        rows[key] = n


Counting = Callable[[loading.Loads, tuple[Change, ...], Seqno], Iterator[Change]]


def read(log: tuple[Entry, ...], dies_at: int, counting: Counting = loading.counting) -> dict[int, int]:
    """Return a target's rows after the log, for a reader that dies at a transaction and goes on from the target."""
    rows: dict[int, int] = {}
    target: Mapping[str, str] = {}  # tranlog_load
    loads = loading.read_stored(target)
    for seqno, (found, changes) in enumerate(log):
        if seqno == dies_at:
            loads = loading.read_stored(target)
        before = loads
        if found is None:
            changes = tuple(counting(loading.loading(loads), changes, Seqno(seqno)))
        else:
            loads, verdict = loading.step(loads, found, "p")
            if isinstance(verdict, loading.NotForUs):
                changes = ()
            target = {**target, **dict(loading.stored(before, loads))}
        for change in changes:
            apply(rows, change)
    return rows


BEGINNINGS: tuple[Rows, ...] = ((), ((1, 0),), ((2, 0),), ((1, 0), (2, 1)))


@pytest.mark.long
@pytest.mark.parametrize("rows", BEGINNINGS, ids=str)
def test_every_order_of_changes_and_steps_leads_to_the_source_s_rows(rows: Rows) -> None:
    logs = all_logs(rows, 3)
    for log, after in logs:
        for dies_at in range(len(log)):
            assert read(log, dies_at) == dict(after), log
    assert len(logs) > 100


def _never(loads: loading.Loads, changes: tuple[Change, ...], seqno: Seqno) -> Iterator[Change]:
    del loads, seqno
    return iter(changes)


def _whole_updates(loads: loading.Loads, changes: tuple[Change, ...], seqno: Seqno) -> Iterator[Change]:
    """An update that crosses the border as it is."""
    for change in changes:
        if list(loading.counting(loads, [change], seqno)):
            yield change


@pytest.mark.parametrize("wrong", [_never, _whole_updates])
def test_the_walk_finds_a_wrong_rule(wrong: Counting) -> None:
    failed = 0
    for log, after in all_logs(((1, 0), (2, 1)), 2):
        try:
            failed += read(log, 0, wrong) != dict(after)
        except (AssertionError, KeyError):
            failed += 1
    assert failed


def test_a_chunk_without_its_beginning_does_not_count() -> None:
    assert loading.step({}, chunk(None, None, 1), "p") == ({}, loading.NotForUs())
    begun, _ = loading.step({}, mark(LoadBegin(tables=(TABLE,), replace=True)), "p")
    other = LoadMark(load="2", pipeline="*", step=chunk(None, None, 1).step)
    assert loading.step(begun, other, "p") == (begun, loading.NotForUs())


def test_keys_come_back_from_their_text() -> None:
    values: tuple[int | bytes, ...] = (0, -1, 1 << 63, b"", b"\0\xff")
    for key in itertools.product(values, repeat=2):
        assert parse_key(key_text(key)) == key


def test_parents_come_before_their_children() -> None:
    def table(name: str, *refers: str) -> TableMap:
        keys = tuple(ForeignKey(columns=(0,), ref_schema="s", ref_table=to, ref_columns=("id",)) for to in refers)
        return TableMap(schema="s", table=name, columns=TABLE.columns, primary_key=(0,), foreign_keys=keys)

    found = parents_first([table("a", "b", "a"), table("b", "c"), table("c"), table("x", "y"), table("y", "x")])
    beside = {("s.a", "s.b"), ("s.b", "s.b"), ("s.b", "s.none")}  # those that a target alone has
    assert [one.table for one in parents_first([table("a"), table("b")], beside)] == ["b", "a"]
    names = [one.table for one in found]
    assert sorted(names) == ["a", "b", "c", "x", "y"]
    assert names.index("c") < names.index("b") < names.index("a")


def test_a_row_that_moves_in_without_all_its_values_is_refused_by_name() -> None:
    """docs/sources-postgresql.md, "What comes": with `identity = "key"` a value may be UNCHANGED."""
    state = loading.TableLoad(schema="s", table="t", load="1", key=("id",), upto=key_text((1,)))
    moved = RowChange(TABLE, Op.UPDATE, (2, UNCHANGED), (1, UNCHANGED))
    with pytest.raises(TargetTableError, match="did not send the values that stayed"):
        list(loading.counting({("s", "t"): state}, [moved], Seqno(7)))
    known = RowChange(TABLE, Op.UPDATE, (2, 5), (1, UNCHANGED))
    (found,) = loading.counting({("s", "t"): state}, [known], Seqno(7))
    assert isinstance(found, RowChange) and (found.op, found.after) == (Op.INSERT, (1, 5))

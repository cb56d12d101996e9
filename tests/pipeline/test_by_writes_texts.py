"""docs/decisions/0033: what the assignment makes of keys with texts, where a target takes more of them for one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from mutants.keyed_rows import LOOSE_CODES, loose
from tranlog.change import Column, ForeignKey, Op, TableMap
from tranlog.ids import Seqno
from tranlog.pipeline.rules.by_writes import Assignment, PlannedTable, WritesBounds, WritesPlan, planned_table
from tranlog.pipeline.rules.channels import SERIAL
from tranlog.row_bytes import encode_row
from tranlog.row_touches import RowTouches
from tranlog.target.target import TargetKeys, TextEquality
from tranlog.types import LogicalType, Value
from tranlog.write_item import encode_write_set
from tranlog.write_set import WriteSet, parse_write_set

TEXT = Column(name="code", source_type="varchar(20)", logical=LogicalType.TEXT, nullable=False)
NUMBER = Column(name="n", source_type="bigint", logical=LogicalType.INTEGER)
PARENT = TableMap(schema="s", table="parent", columns=(TEXT, NUMBER), primary_key=(0,))
TO_PARENT = ForeignKey(columns=(1,), ref_schema="s", ref_table="parent", ref_columns=("code",))
CHILD = TableMap(schema="s", table="child", columns=(NUMBER, TEXT), primary_key=(0,), foreign_keys=(TO_PARENT,))
NAMES = (("s", "parent"), ("s", "child"))

Changed = tuple[TableMap, tuple[Value, ...] | None, tuple[Value, ...] | None]


def writes(table: TableMap, before: tuple[Value, ...] | None, after: tuple[Value, ...] | None) -> WriteSet:
    touches = RowTouches()
    op = Op.INSERT if before is None else Op.DELETE if after is None else Op.UPDATE
    touches.rows(table, op, [encode_row(before or ()) + encode_row(after or ())])
    names = ((table.schema, table.table),)
    found = parse_write_set(touches.take(names), names)
    assert found is not None
    return found


def planned(equality: TextEquality | None) -> tuple[PlannedTable, ...]:
    """Return both tables as a target has them; None: its column `code` holds no texts."""
    texts = {} if equality is None else {"code": equality}
    at_target = {
        NAMES[0]: TargetKeys(name=NAMES[0], texts=texts, unique=(("code",),)),
        NAMES[1]: TargetKeys(
            name=NAMES[1], texts=texts, unique=(("n",),), references=((("code",), NAMES[0], ("code",)),)
        ),
    }
    return tuple([planned_table(name, at_target, {name: name for name in NAMES}, ()) for name in NAMES])


def waits(tables: tuple[PlannedTable, ...], one: Changed, other: Changed) -> bool:
    """Whether the second waits for the first, by two channels that take turns."""
    plan = WritesPlan(from_seqno=Seqno(0), channels=2, tables=tables, bounds=WritesBounds(lead=-1))
    assignment = Assignment(plan)
    first, second = assignment.assign(Seqno(1), writes(*one)), assignment.assign(Seqno(2), writes(*other))
    assert (first.owner, second.owner) == (0, 1)
    return bool(second.waits)


def changes(code: str, n: int) -> list[Changed]:
    """What may be done about a code: it comes, goes, is updated, is referred to."""
    row = (code, n)
    return [(PARENT, None, row), (PARENT, row, None), (PARENT, row, (code, n + 1)), (CHILD, None, (n, code))]


def matters(one: int, other: int) -> bool:
    """Whether the order of two such changes of one code may matter: a reference waits for neither it nor an update."""
    return not {one, other} <= {2, 3} or one == other == 2


EQUAL = {TextEquality.FOLDED: lambda text: text.rstrip(" ").lower(), TextEquality.ASCII: loose}


@pytest.mark.parametrize("equality", EQUAL)
def test_what_a_target_takes_for_one_text_waits(equality: TextEquality) -> None:
    tables, same = planned(equality), EQUAL[equality]
    texts = (*LOOSE_CODES, "x", "X  ", "stra\u00dfe")
    parallel = 0
    for one, other in itertools.product(texts, repeat=2):
        for (at, first), (to, second) in itertools.product(enumerate(changes(one, 1)), enumerate(changes(other, 2))):
            found = waits(tables, first, second)
            if same(one) == same(other):
                assert found == matters(at, to) or (found and not (one + other).isascii()), (first, second)
            elif (one + other).isascii() or equality == TextEquality.FOLDED:
                assert not found, (first, second)
            parallel += not found
    assert parallel > 400


def test_where_equality_is_not_known_a_table_keeps_its_order_and_its_references_are_parallel() -> None:
    tables = planned(TextEquality.UNKNOWN)
    for (at, first), (to, second) in itertools.product(enumerate(changes("a", 1)), enumerate(changes("b", 2))):
        assert waits(tables, first, second) == matters(at, to), (first, second)


def test_what_its_source_holds_as_numbers_and_its_target_as_texts_keeps_its_order() -> None:
    number = TableMap(schema="s", table="parent", columns=(Column(**{**_fields(NUMBER), "name": "code"}), NUMBER),
                      primary_key=(0,))  # fmt: skip
    tables = planned(TextEquality.FOLDED)
    assert waits(tables, (number, None, (1, 1)), (number, None, (2, 2)))
    assert not waits(planned(None), (number, None, (1, 1)), (number, None, (2, 2)))


def _fields(column: Column) -> dict[str, Any]:
    return {name: getattr(column, name) for name in Column.__struct_fields__}


def test_what_its_source_holds_as_texts_and_its_target_does_not_runs_alone() -> None:
    plan = WritesPlan(from_seqno=Seqno(0), channels=2, tables=planned(None))
    assigned = Assignment(plan).assign(Seqno(1), writes(PARENT, None, ("1", 1)))
    assert assigned.owner == SERIAL and assigned.why == "s.parent: a key of the target that the source does not tell"


def test_a_plan_with_texts_is_stored_as_text() -> None:
    plan = WritesPlan(from_seqno=Seqno(0), channels=2, tables=planned(TextEquality.ASCII))
    assert WritesPlan.parse(plan.text()) == plan
    without = plan.text().replace('"texts":', '"other":')
    assert WritesPlan.parse(without).tables[0].texts == (), "an earlier one"


def test_what_touches_more_is_passed_over_by_its_bytes_as_it_is_assigned() -> None:
    """A text beyond ASCII waits for the one before it, whatever that is, also where bytes alone are looked at."""
    plan = WritesPlan(from_seqno=Seqno(0), channels=2, tables=planned(TextEquality.ASCII), bounds=WritesBounds(lead=-1))
    log = [writes(PARENT, None, (code, 1)) for code in ("a", "b", "\u00e1", "c", "\u00e9", "d", "e")]
    every, one = Assignment(plan), Assignment(plan)
    passing = one.passing(1, frozenset())
    assert passing is not None
    passed = 0
    for at, its in enumerate(log, 1):
        seqno = Seqno(at)
        item = encode_write_set(
            its.kind, its.changes, [(int(it.operations), it.keys) for it in its.tables], its.touches
        )
        expected = every.assign(seqno, its)
        passing.published = at  # as if it were all at the target
        if passing.passes(seqno, b"", (NAMES[0],), item):
            assert expected.owner == 0
            passed += 1
        else:
            known = passing.assign(seqno, b"", (NAMES[0],), item)
            if known is None:
                assert one.assign(seqno, its) == expected, seqno
            else:
                assert known == (expected.owner, expected.waits), seqno
            passing.learn((NAMES[0],), item, expected.more)
    assert passed == 2 and every.order.entries == one.order.entries

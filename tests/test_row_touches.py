"""docs/format.md, "Write sets": what of rows counts as touched, and that what is equal in a database is equal here."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Sequence
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from mutants import touches_rounds
from mutants.rewriting import Mutant
from mutants.rounds import run_rounds
from mutants.write_set_rules import TOUCHES
from tranlog.change import Column, ForeignKey, Op, TableMap
from tranlog.row_bytes import encode_row
from tranlog.row_touches import RowTouches, holds_texts
from tranlog.types import F32, UNCHANGED, CharsetBytes, Datetime, LogicalType, Value
from tranlog.write_item import encode_write_set
from tranlog.write_set import (
    TOUCHES_MAX,
    Operations,
    Use,
    WriteKind,
    WriteSet,
    ascii_id,
    key_id,
    parse_write_set,
    reference_id,
    text_id,
    write_set_text,
)


def column(name: str, *, nullable: bool = True) -> Column:
    return Column(name=name, source_type="bigint", logical=LogicalType.INTEGER, nullable=nullable)


def text_column(name: str) -> Column:
    return Column(name=name, source_type="varchar(20)", logical=LogicalType.TEXT, nullable=False)


PARENT = TableMap(
    schema="shop",
    table="parent",
    columns=(column("id"), column("code"), column("note")),
    primary_key=(0,),
    unique_keys=((1,),),
)
CHILD = TableMap(
    schema="shop",
    table="child",
    columns=(column("note"), column("id"), column("of")),
    primary_key=(1,),
    foreign_keys=(ForeignKey(columns=(2,), ref_schema="shop", ref_table="parent", ref_columns=("id",)),),
)
Row = tuple[Value, ...]
Changed = tuple[TableMap, Row | None, Row | None]


def touch(*changes: Changed, distinct_nulls: bool = True) -> WriteSet:
    touches = RowTouches(distinct_nulls)
    touches.begin()
    for table, before, after in changes:
        op = Op.INSERT if before is None else Op.DELETE if after is None else Op.UPDATE
        touches.rows(table, op, [encode_row(before or ()) + encode_row(after or ())])
    tables = tuple(dict.fromkeys((table.schema, table.table) for table, _, _ in changes))
    found = parse_write_set(touches.take(tables), tables)
    assert found is not None
    return found


def uses(found: WriteSet) -> list[Use]:
    return [use for use, hashes in zip(Use, found.touches, strict=True) for _ in hashes]


def values(found: WriteSet, use: Use) -> set[int]:
    return set(found.touches[use - 1])


def test_a_row_that_comes_or_goes_touches_its_keys_and_what_it_refers_to() -> None:
    parent = touch((PARENT, None, (1, 10, 5)))
    assert uses(parent) == [Use.KEY, Use.KEY] and parent.changes == 1
    assert parent == touch((PARENT, None, (1, 10, 6))), "what is in no key is not told"
    gone = touch((PARENT, (1, 10, 5), None))
    assert gone.touches == parent.touches
    assert (parent.tables[0].operations, gone.tables[0].operations) == (Operations.INSERT, Operations.DELETE)
    child = touch((CHILD, None, (9, 7, 1)))
    assert uses(child) == [Use.KEY, Use.REFERENCE]
    assert values(child, Use.REFERENCE) < values(parent, Use.KEY), "the reference is to the parent's key, by value"
    assert not values(touch((CHILD, None, (9, 7, 2))), Use.REFERENCE) & values(parent, Use.KEY)


def test_an_update_that_leaves_the_keys_touches_the_row() -> None:
    found = touch((PARENT, (1, 10, 5), (1, 10, 6)))
    assert uses(found) == [Use.ROW] and found.tables[0].operations == Operations.UPDATE
    assert values(found, Use.ROW) < values(touch((PARENT, None, (1, 10, 6))), Use.KEY)
    assert uses(touch((CHILD, (1, 7, 1), (2, 7, 1)))) == [Use.ROW]


def test_a_changed_key_or_reference_touches_its_old_and_its_new_value() -> None:
    """A swap, and a row that follows another into its place, both see it."""
    moved = touch((PARENT, (1, 10, 5), (2, 10, 5)))
    old, new = touch((PARENT, None, (1, 11, 0))), touch((PARENT, None, (2, 12, 0)))
    assert uses(moved) == [Use.KEY, Use.KEY]
    assert values(moved, Use.KEY) & values(old, Use.KEY) and values(moved, Use.KEY) & values(new, Use.KEY)
    assert moved.tables[0].operations == Operations.UPDATE | Operations.REKEY
    code = touch((PARENT, (1, 10, 5), (1, 11, 5)))
    assert sorted(uses(code)) == [Use.KEY, Use.KEY, Use.ROW] and Operations.REKEY in code.tables[0].operations
    turned = touch((CHILD, (1, 7, 1), (1, 7, 2)))
    assert sorted(uses(turned)) == [Use.ROW, Use.REFERENCE, Use.REFERENCE]
    for one in (1, 2):
        assert values(turned, Use.REFERENCE) & values(touch((PARENT, None, (one, 0, 0))), Use.KEY)


def test_one_value_is_told_once_with_its_strongest_use() -> None:
    row, other = (1, 10, 5), (1, 10, 6)
    for changes in (((PARENT, None, row), (PARENT, row, other)), ((PARENT, other, row), (PARENT, row, None))):
        assert values(touch(*changes), Use.ROW) == set()
    assert uses(touch((PARENT, row, other), (PARENT, other, row))) == [Use.ROW]


def test_null_in_a_unique_key_or_a_reference_touches_nothing() -> None:
    assert uses(touch((PARENT, None, (1, None, 5)))) == [Use.KEY]
    assert uses(touch((PARENT, None, (1, None, 5)), distinct_nulls=False)) == [Use.KEY, Use.KEY]
    assert uses(touch((CHILD, None, (9, 7, None)), distinct_nulls=False)) == [Use.KEY]
    left = touch((CHILD, (9, 7, 1), (9, 7, None)))
    assert len(values(left, Use.REFERENCE)) == 1


def test_a_table_whose_rows_no_key_tells_apart_has_none() -> None:
    bare = TableMap(schema="s", table="bare", columns=(column("a"),))
    loose = TableMap(schema="s", table="loose", columns=(column("a"),), unique_keys=((0,),))
    tight = TableMap(schema="s", table="tight", columns=(column("a", nullable=False),), unique_keys=((0,),))
    assert [bool(touch((one, None, (1,))).tables[0].keys) for one in (bare, loose, tight)] == [False, False, True]
    holds_null = touch((PARENT, None, (None, 1, 1)), (PARENT, None, (1, 1, 1)))
    assert holds_null.tables[0].keys == frozenset(), "SQLite lets a primary key hold NULL"


def test_a_reference_to_nothing_is_not_told() -> None:
    """SQLite lets a table refer to one that is not there, or that has no such key."""
    lost = ForeignKey(columns=(2,), ref_schema="shop", ref_table="nowhere", ref_columns=())
    table = TableMap(schema="shop", table="c", columns=CHILD.columns, primary_key=(1,), foreign_keys=(lost,))
    found = touch((table, None, (9, 7, 1)))
    assert uses(found) == [Use.KEY] and found.tables[0].keys == {key_id(("shop", "c"), ["id"])}


def test_a_key_whose_old_value_was_not_sent_is_not_told() -> None:
    """PostgreSQL with the replica identity of the key: all else of the row before is UNCHANGED."""
    ids = touch((PARENT, None, (1, 10, 5))).tables[0].keys
    code, key = key_id(("shop", "parent"), ["code"]), key_id(("shop", "parent"), ["id"])
    assert ids == {code, key}
    assert touch((PARENT, (1, UNCHANGED, UNCHANGED), None)).tables[0].keys == {key}
    assert touch((PARENT, (1, UNCHANGED, UNCHANGED), (1, 10, 5))).tables[0].keys == {key}
    assert touch((PARENT, (1, UNCHANGED, 5), (1, UNCHANGED, 6))).tables[0].keys == {code, key}, "nor changed"
    assert touch((PARENT, (1, 10, 5), None), (PARENT, (2, UNCHANGED, 5), None)).tables[0].keys == {key}


@pytest.mark.parametrize(
    "equal",
    [
        (1, 1.0, Decimal(1), Decimal("1.00"), True, Decimal("0.1E1")),
        (0, 0.0, -0.0, Decimal("-0"), False),
        (-5, -5.0, Decimal("-5.0")),
        (1 << 60, 2.0**60, Decimal(1 << 60)),
        (-(1 << 63), -(2.0**63)),
        (1 << 63, 2.0**63, Decimal(1 << 63)),
        (Decimal("1.10"), Decimal("1.1")),
        ("Straße", "STRASSE", "strasse ", "a\u0301"),
        (float("nan"), struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]),
        (Decimal("NaN"), Decimal("sNaN")),
    ],
)
def test_what_may_be_equal_in_a_database_is_equal_here(equal: Sequence[Value]) -> None:
    assert len({touch((PARENT, None, (one, 1, 1))).touches for one in equal}) == 1


TEXTS = TableMap(
    schema="shop",
    table="texts",
    columns=(text_column("a"), column("n"), text_column("b")),
    primary_key=(0, 1),
    unique_keys=((2,),),
    foreign_keys=(ForeignKey(columns=(2,), ref_schema="shop", ref_table="texts", ref_columns=("b",)),),
)
A_N = text_id(key_id(("shop", "texts"), ["a", "n"]), ["a"])
B = text_id(key_id(("shop", "texts"), ["b"]), ["b"])
B_TO_B = text_id(reference_id(("shop", "texts"), ["b"], ("shop", "texts"), ["b"]), ["b"])


def test_texts_of_a_key_are_hashed_without_case_of_ascii_and_spaces_at_the_end() -> None:
    def touched(one: Value) -> set[int]:
        return values(touch((TEXTS, None, (one, 1, "x"))), Use.KEY)

    assert touched("ab") == touched("AB") == touched("aB  ")
    apart = [
        "",
        "ab",
        "a",
        "b",
        " a",
        "a b",
        "a\t",
        "\u00e1",
        "\u00c1",
        "a\u0301",
        "stra\u00dfe",
        "strasse",
        "1",
        "1.0",
    ]
    assert len({frozenset(touched(one)) for one in apart}) == len(apart)
    refers = touch((TEXTS, None, ("a", 1, "X ")))
    assert values(refers, Use.REFERENCE) < values(refers, Use.KEY), "as the key that it refers to"


def test_a_key_with_texts_has_ids_of_its_own_one_of_them_where_all_are_ascii() -> None:
    def told(a: Value, b: Value) -> set[int]:
        return set(touch((TEXTS, None, (a, 1, b))).tables[0].keys)

    ascii_ids = {ascii_id(one) for one in (A_N, B, B_TO_B)}
    assert told("a", "~ b") == {A_N, B, B_TO_B, *ascii_ids}
    assert told("\u00e1", "b") == {A_N, B, B_TO_B, *ascii_ids} - {ascii_id(A_N)}
    assert told("a", "b\t") == told("a", "\x7f") == {A_N, B, B_TO_B, ascii_id(A_N)}
    updated = touch((TEXTS, ("a", 1, "\u00e1"), ("a", 1, "b")))
    assert updated.tables[0].keys == {A_N, B, B_TO_B, ascii_id(A_N)}, "the old value counts too"
    assert told("a", CharsetBytes("latin1", b"\xe4")) == {A_N, ascii_id(A_N)}, "not known as a text"


def test_in_a_sqlite_database_the_affinity_says_what_holds_texts() -> None:
    declared = ("TEXT", "varchar(9)", "INTEGER", "", "charint")
    found = [Column(name="c", source_type=one, logical=LogicalType.ANY) for one in declared]
    assert [holds_texts(one) for one in found] == [True, True, False, False, False]


def test_what_is_not_equal_is_told_apart() -> None:
    """Of whole numbers, of binary content, of UUIDs; of times, and of texts among other values, nothing is hashed."""
    apart: list[Value] = [
        *range(-300, 300),
        1 << 40,
        Decimal("1.5"),
        b"",
        b"\0",
        b"1",
        UUID(int=1),
        UUID(int=2),
        (1 << 63) + 1,
    ]
    assert len({touch((PARENT, None, (one, None, 1))).touches for one in apart}) == len(apart)
    same: list[Value] = ["a", "b", Datetime(1), Datetime(2), F32(1.5), 1.5, float("inf")]
    assert len({touch((PARENT, None, (one, None, 1))).touches for one in same}) == 1


def test_the_hash_of_a_decimal_does_not_hang_on_the_callers_context() -> None:
    row = (PARENT, None, (Decimal("123456.789"), 1, 1))
    found = touch(row)
    with localcontext() as context:
        context.prec = 3
        assert touch(row) == found


def test_keys_are_known_by_their_names_in_any_order_and_case() -> None:
    assert key_id(("S", "t"), ["a", "B"]) == key_id(("s", "T"), ["b", "A"]) != key_id(("s", "t"), ["a"])
    pair = ForeignKey(columns=(2, 1), ref_schema="S", ref_table="Pair", ref_columns=("y", "X"))
    child = TableMap(
        schema="s", table="c", columns=(column("id"), column("a"), column("b")), primary_key=(0,), foreign_keys=(pair,)
    )
    parent = TableMap(schema="s", table="pair", columns=(column("x"), column("Y")), primary_key=(1, 0))
    assert values(touch((child, None, (1, 8, 9))), Use.REFERENCE) == values(touch((parent, None, (8, 9))), Use.KEY)
    one, other = (
        reference_id(("s", "c"), ("b", "a"), ("s", "p"), ("y", "x")),
        reference_id(("s", "c"), ("a", "b"), ("s", "p"), ("x", "y")),
    )
    assert one == other != reference_id(("s", "c"), ("a", "b"), ("s", "p"), ("y", "x"))


def test_many_values_are_not_told() -> None:
    rows = [(PARENT, (number, 1, 1), (number, 1, 2)) for number in range(TOUCHES_MAX + 1)]
    assert touch(*rows[:-1]).kind is WriteKind.ROWS
    assert touch(*rows) == WriteSet(changes=TOUCHES_MAX + 1, kind=WriteKind.MANY)


def test_the_first_transaction_after_another_key_became_the_main_one_tells_none() -> None:
    """Updates before it and after it tell a row by different keys, so it is serial between them."""
    by_code = replace(PARENT, primary_key=(1,), unique_keys=((0,),))
    touches, name = RowTouches(), ("shop", "parent")

    def told(table: TableMap, *, taken: bool = True) -> bool | None:
        touches.begin()
        touches.rows(table, Op.UPDATE, [encode_row((1, 10, 5)) + encode_row((1, 10, 6))])
        if not taken:
            return None
        found = parse_write_set(touches.take([name]), [name])
        assert found is not None
        return bool(found.tables[0].keys)

    assert [told(PARENT), told(PARENT)] == [True, True]
    assert told(by_code, taken=False) is None, "dropped, and read again"
    assert [told(by_code), told(by_code)] == [False, True]
    assert [told(PARENT), told(PARENT), told(by_code)] == [False, True, False], "one that comes back is another one"
    renamed = replace(by_code, columns=(*by_code.columns[:2], column("comment")))
    assert told(by_code) and told(renamed), "the same key"


def test_whoever_goes_on_does_not_know_which_key_was_the_main_one() -> None:
    touches, name = RowTouches(goes_on=True), ("shop", "parent")
    told = []
    for _ in range(2):
        touches.begin()
        touches.rows(PARENT, Op.INSERT, [encode_row((1, 10, 5))])
        found = parse_write_set(touches.take([name]), [name])
        assert found is not None
        told.append(bool(found.tables[0].keys))
    assert told == [False, True]


def test_a_statement_tells_nothing() -> None:
    touches = RowTouches()
    touches.begin()
    touches.rows(PARENT, Op.INSERT, [encode_row((1, 1, 1))])
    touches.statement()
    touches.rows(PARENT, Op.INSERT, [encode_row((2, 2, 2))])
    assert parse_write_set(touches.take(()), ()) == WriteSet(changes=2, kind=WriteKind.STATEMENT)
    touches.begin()
    assert parse_write_set(touches.take(()), ()) == WriteSet(changes=0)


def test_the_bytes_of_a_write_set() -> None:
    """docs/format.md has the same example."""
    item = encode_write_set(WriteKind.ROWS, 300, [(5, frozenset({1, 0xFFFFFFFF}))], ([2], [], [3, 4]))
    assert item.hex(" ") == "01 ac 02 01 05 02 00 00 00 01 ff ff ff ff 01 00 00 00 02 00 02 00 00 00 03 00 00 00 04"
    found = parse_write_set(item, [("s", "t")])
    assert found is not None and found.changes == 300 and found.tables[0].keys == {1, 0xFFFFFFFF}
    assert found.tables[0].operations == Operations.INSERT | Operations.DELETE
    assert found.touches == ((2,), (), (3, 4))
    assert write_set_text(item, [("s", "t")]) == "writes ROWS changes=300 KEY=1 ROW=0 REFERENCE=2 s.t:INSERT|DELETE:2"
    assert write_set_text(b"", ()) == ""
    assert write_set_text(b"\x09\x01", ()) == "write set of a later release" and parse_write_set(b"\x09", ()) is None
    assert write_set_text(item, ()) == "write set damaged"
    assert encode_write_set(WriteKind.ROWS, 1, [(1, frozenset(range(20_000)))], ((), (), ()))[0] == WriteKind.MANY


def test_rubbish_is_no_write_set() -> None:
    item = encode_write_set(WriteKind.ROWS, 3, [(5, frozenset({1, 2})), (2, frozenset({3}))], ([2, 9], [7], [3, 4]))
    tables = [("s", "t"), ("s", "u")]
    chance = random.Random(7)
    for cut in range(1, len(item)):
        with pytest.raises(ValueError, match=r"."):
            parse_write_set(item[:cut], tables)
    for _ in range(2_000):
        broken = bytearray(item)
        broken[chance.randrange(len(item))] = chance.randrange(256)
        with contextlib.suppress(ValueError):
            parse_write_set(bytes(broken), tables)


def test_where_the_order_of_two_transactions_matters_they_touch_the_same(effort: Any) -> None:
    """At a real SQLite with foreign keys, done both ways round."""
    for seed in range(effort(60, 1_000, 50_000)):
        assert touches_rounds.play(seed) is None, seed


@pytest.mark.long
@pytest.mark.parametrize("mutant", [pytest.param(one, id=one.name) for one in TOUCHES])
def test_without_a_rule_something_is_missed(mutant: Mutant, tmp_path: Path) -> None:
    found = run_rounds("touches_rounds", mutant, tmp_path, rounds=1_000)
    assert found.what.startswith("missed"), found

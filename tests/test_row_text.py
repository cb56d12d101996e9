"""The table in `row_text`: each value's JSON text, one row of the table after the other."""

from __future__ import annotations

import json
from decimal import Decimal
from uuid import UUID

import pytest

from tranlog.change import Column, TableMap
from tranlog.row_text import key_text, pairs_text, row_text
from tranlog.types import (
    F32,
    UNCHANGED,
    Bit,
    CharsetBytes,
    Date,
    Datetime,
    EnumLabel,
    InfiniteDate,
    Instant,
    Json,
    LogicalType,
    Other,
    SetLabels,
    Time,
    Value,
    ZeroDate,
)


def table(*names: str, key: tuple[int, ...] = ()) -> TableMap:
    columns = tuple(Column(name=name, source_type="x", logical=LogicalType.ANY) for name in names)
    return TableMap(schema="s", table="t", columns=columns, primary_key=key)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (UNCHANGED, '{"unchanged":true}'),
        (True, "true"),
        (1, "1"),
        (2**64 - 1, "18446744073709551615"),
        (0.1, "0.1"),
        (-0.0, "-0.0"),
        (float("nan"), '"NaN"'),
        (float("-inf"), '"-Infinity"'),
        (F32(0.5), "0.5"),
        (F32(float("inf")), '"Infinity"'),
        (Decimal("1.20"), '"1.20"'),
        ('é "quoted"\n', '"é \\"quoted\\"\\n"'),
        (b"\x00\xff", '{"bytes":"AP8="}'),
        (CharsetBytes("cp932", b"\xfe"), '{"bytes":"/g==","charset":"cp932"}'),
        (Date(19_782), '"2024-02-29"'),
        (Time(-(838 * 3600 + 59 * 60 + 59) * 1_000_000), '"-838:59:59"'),
        (Datetime(500_000), '"1970-01-01 00:00:00.500000"'),
        (Instant(0), '"1970-01-01 00:00:00+00"'),
        (ZeroDate("0000-00-00"), '"0000-00-00"'),
        (InfiniteDate(True), '"-infinity"'),
        (Bit(5, 3), '"00011"'),
        (Bit(0, 0), '""'),
        (EnumLabel("red"), '"red"'),
        (SetLabels(("a", "b")), '["a","b"]'),
        (Json('{"a": 1}'), '"{\\"a\\": 1}"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Other("inet", "::1"), '{"type":"inet","text":"::1"}'),
    ],
)
def test_each_value_has_its_text(value: Value, text: str) -> None:
    assert row_text(table("c"), (value,)) == f'{{"c":{text}}}'
    json.loads(text)


def test_rows_and_keys_are_objects() -> None:
    with_key = table("b", "a", key=(1, 0))
    assert row_text(with_key, (1, "x")) == '{"b":1,"a":"x"}'
    assert key_text(with_key, (1, "x")) == '{"a":"x","b":1}'
    assert key_text(table("b"), (1,)) is None


def test_of_equal_names_the_first_counts() -> None:
    assert pairs_text((("a", "1"), ("b", "2"), ("a", "3"))) == {"a": "1", "b": "2"}

"""The table in `row_text`: each value's JSON text, one row of the table after the other."""

from __future__ import annotations

import json
from decimal import Decimal
from uuid import UUID

import pytest

from tranlog.row_text import pairs_text, value_json
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
    Other,
    SetLabels,
    Time,
    Value,
    ZeroDate,
)


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
    assert value_json(value) == text
    json.loads(text)


def test_of_equal_names_the_first_counts() -> None:
    assert pairs_text((("a", "1"), ("b", "2"), ("a", "3"))) == {"a": "1", "b": "2"}

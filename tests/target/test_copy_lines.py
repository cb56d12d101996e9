"""copy_lines: what PostgreSQL reads of a line is what was in the row."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from tranlog.target.copy_lines import OF_FLOATS, OF_INTEGERS, OF_TEXTS, copy_lines
from tranlog.types import Value

FORMS = bytes([OF_INTEGERS, OF_FLOATS, OF_TEXTS, 0])
_READ = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
values = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), texts)


def write(value: Value) -> str | None:
    """A column's writer, which takes everything."""
    return None if value is None else "<" + str(value) + ">"


def read(line: str) -> list[str | None]:
    """Read a line as the manual says."""
    return [
        None if cell == "\\N" else re.sub(r"\\(.)", lambda one: _READ.get(one[1], one[1]), cell, flags=re.DOTALL)
        for cell in line.split("\t")
    ]


@given(st.lists(st.tuples(values, values, values, values), max_size=5))
def test_a_line_is_read_as_its_row(rows: list[tuple[Value, ...]]) -> None:
    """What is of its column's frequent type is written as it is, everything else by its writer."""
    lines = copy_lines(rows, [3, 2, 1, 0], FORMS, [write] * 4).decode().split("\n")
    assert lines.pop() == ""
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        for kind, value, text in zip((int, float, str, None), reversed(row), read(line), strict=True):
            if value is None:
                assert text is None
            elif type(value) is not kind:
                assert text == write(value)
            elif isinstance(value, float):
                assert text is not None
                assert float(text) == value or (math.isnan(float(text)) and math.isnan(value))
            else:
                assert text == str(value)


def test_a_text_with_nul_is_its_writers() -> None:
    """It refuses it, and names the column."""
    assert copy_lines([("a\0b\\",)], [0], bytes([OF_TEXTS]), [write]) == b"<a\0b\\\\>\n"


def test_numbers_of_every_length() -> None:
    """Those of many digits, too."""
    numbers = [sign * (10**digits + add) for digits in range(25) for add in (-1, 0, 1) for sign in (1, -1)]
    assert copy_lines([(one,) for one in numbers], [0], bytes([OF_INTEGERS]), [write]) == b"".join(
        b"%d\n" % one for one in numbers
    )

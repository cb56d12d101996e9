"""Rows as PostgreSQL's COPY takes them: a line for each, its values apart by tabs.

Owns the text of the frequent types, and what of a text COPY takes for something else. Pure; compiled, see
`tranlog.compiled`. Whatever is not of its column's frequent type is left to the column's writer.

Source: PostgreSQL's manual, "COPY", Text Format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from librt.strings import BytesWriter
from mypy_extensions import i64

from tranlog.types import Value
from tranlog.varint import BYTES

TextWriter: TypeAlias = Callable[[Value], str | None]

# What a column holds mostly; 0: something that only its writer knows.
OF_INTEGERS: Final = 1
OF_FLOATS: Final = 2
OF_TEXTS: Final = 3

_ESCAPES: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_SPECIAL: Final = re.compile(r"[\\\t\n\r]")
_SMALL: Final = 1_000_000_000_000_000


def copy_lines(
    rows: Sequence[tuple[Value, ...]], places: Sequence[int], forms: bytes, writers: Sequence[TextWriter]
) -> bytes:
    """Return the lines of some rows: in each the values at `places`, by the form and the writer of each of these.

    Raises what a writer raises.
    """
    out = BytesWriter()
    columns: i64 = len(forms)
    for row in rows:
        column: i64 = 0
        while column < columns:
            if column:
                out.append(0x09)
            value = row[places[column]]
            if value is None:
                out.write(b"\\N")
            elif not _put(forms[column], value, out):
                out.write(_escaped(writers[column](value)))
            column += 1
        out.append(0x0A)
    return out.getvalue()


def _put(form: i64, value: Value, out: BytesWriter) -> bool:
    """Write a value of the form; say whether it is one."""
    if form == OF_INTEGERS:
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        if -_SMALL < value < _SMALL:
            _put_number(value, out)
        else:
            out.write(str(value).encode())
        return True
    if form == OF_FLOATS:
        if not isinstance(value, float):
            return False
        out.write(repr(value).encode())
        return True
    if form == OF_TEXTS and isinstance(value, str):
        raw = value.encode()
        at: i64 = 0
        end: i64 = len(raw)
        while at < end:
            byte: i64 = raw[at]
            if byte < 0x20 or byte == 0x5C:
                if byte == 0:
                    return False
                if byte == 0x5C or byte == 0x09 or byte == 0x0A or byte == 0x0D:
                    out.write(_escaped(value))
                    return True
            at += 1
        out.write(raw)
        return True
    return False


def _put_number(number: i64, out: BytesWriter) -> None:
    """Write the digits of a number of at most fifteen."""
    byte = BYTES
    if number < 0:
        out.append(0x2D)
        number = -number
    digits: i64 = 0
    count: i64 = 0
    while True:
        rest = number // 10
        digits = digits << 4 | (number - rest * 10)
        count += 1
        number = rest
        if not number:
            break
    while count:
        out.append(byte[0x30 | digits & 0x0F])
        digits >>= 4
        count -= 1


def _escaped(text: str | None) -> bytes:
    if text is None:
        return b"\\N"
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], text).encode()

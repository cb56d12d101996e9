"""Rows that a server sends as text, straight into the payload's form, without a value in between.

Owns the walk over the cells of a query's rows, as libpq and as MariaDB's packets have them, and how the text of the
frequent types is written. Pure; compiled, see `tranlog.compiled`. The hard idea: whatever has an unusual text is left
to the column's encoder, which knows every form; so the two never differ.

Source: MariaDB's manual, "Resultset row", "Protocol data types".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from librt.strings import BytesWriter, write_f64_be
from mypy_extensions import i64

from tranlog.varint import BYTES

ValueEncoder: TypeAlias = Callable[[bytes], bytes]

# How a column's text is written; 0: by its encoder.
AS_INTEGER: Final = 1
AS_TEXT: Final = 2
AS_DECIMAL: Final = 3
AS_DATETIME: Final = 4
AS_INSTANT: Final = 5
AS_BARE_INSTANT: Final = 6
"""In UTC, without saying so."""
AS_BOOL: Final = 7
AS_BYTES: Final = 8
AS_REAL: Final = 9

_NULL_CELL: Final = 0xFB
_OTHER_PACKET: Final = 0xFE
"""What begins a packet that is an end or an error, or a row so long that it takes several packets."""
_LONG_PACKET: Final = 0xFFFFFF
_HEADER: Final = 4


def encode_cells(
    get: Callable[[int, int], bytes | None], rows: int, forms: bytes, encoders: Sequence[ValueEncoder]
) -> list[bytes]:
    """Return rows, each as `row_bytes.encode_row` writes it; `get` gives the text of a row's column, None for NULL."""
    found: list[bytes] = []
    columns: i64 = len(forms)
    row: i64 = 0
    count: i64 = rows
    while row < count:
        out = BytesWriter()
        column: i64 = 0
        while column < columns:
            raw = get(row, column)
            if raw is None:
                out.append(0)
            else:
                put_text(forms[column], encoders[column], raw, 0, len(raw), out)
            column += 1
        found.append(out.getvalue())
        row += 1
    return found


def encode_packets(
    raw: bytes, start: int, number: int, forms: bytes, encoders: Sequence[ValueEncoder], into: list[bytes]
) -> tuple[int, int, bool]:
    """Put the rows of a MariaDB's packets from `start` on to `into`, each as `row_bytes.encode_row` writes it.

    `number` is the first packet's. Return where and at which number it stopped, and whether that is before a packet
    which is not one plain row, but an end, an error, one out of order, or a part of a row; else there is no whole one
    more. Raises IndexError, ValueError for a row of other columns.
    """
    at: i64 = start
    due: i64 = number
    end: i64 = len(raw)
    columns: i64 = len(forms)
    while end - at > _HEADER:
        low: i64 = raw[at]
        middle: i64 = raw[at + 1]
        high: i64 = raw[at + 2]
        size = low | middle << 8 | high << 16
        its: i64 = raw[at + 3]
        first: i64 = raw[at + 4]
        if size == 0 or size == _LONG_PACKET or its != due or first >= _OTHER_PACKET:
            return at, due, True
        behind = at + _HEADER + size
        if behind > end:
            break
        into.append(_encode_packet(raw, at + _HEADER, behind, columns, forms, encoders))
        at = behind
        due = (due + 1) & 0xFF
    return at, due, False


def _encode_packet(
    raw: bytes, start: i64, end: i64, columns: i64, forms: bytes, encoders: Sequence[ValueEncoder]
) -> bytes:
    out = BytesWriter()
    at = start
    column: i64 = 0
    while column < columns:
        size: i64 = raw[at]
        at += 1
        if size == _NULL_CELL:
            out.append(0)
            column += 1
            continue
        if size > _NULL_CELL:
            width = size - 0xFA if size < 0xFE else 8
            size = 0
            shift: i64 = 0
            while width > 0:
                byte: i64 = raw[at]
                size |= byte << shift
                shift += 8
                at += 1
                width -= 1
        if size < 0 or size > end - at:
            raise ValueError("a value passes the end of its row")
        behind = at + size
        put_text(forms[column], encoders[column], raw, at, behind, out)
        at = behind
        column += 1
    if at != end:
        raise ValueError(f"a row of more than {columns} columns")
    return out.getvalue()


def put_text(form: i64, encoder: ValueEncoder, raw: bytes, begin: i64, end: i64, out: BytesWriter) -> None:
    """Write the value whose text stands from `begin` to `end`, by its column's form and encoder."""
    if form == AS_INTEGER:
        if _put_integer(raw, begin, end, out):
            return
    elif AS_TEXT <= form <= AS_DECIMAL:
        if form == AS_TEXT or _is_plain(raw, begin, end):
            chunk = raw[begin:end]
            if chunk.isascii():
                out.append(9 if form == AS_TEXT else 8)
                _put_size(end - begin, out)
                out.write(chunk)
                return
    elif AS_DATETIME <= form <= AS_BARE_INSTANT:
        behind = end
        if form == AS_INSTANT:
            behind = end - 3 if end - begin > 3 and raw[end - 3 : end] == b"+00" else begin
        if _put_moment(raw, begin, behind, 14 if form == AS_DATETIME else 15, out):
            return
    elif form == AS_BYTES:
        out.append(10)
        _put_size(end - begin, out)
        out.write(raw[begin:end])
        return
    elif form == AS_REAL:
        number = float(raw[begin:end])
        out.append(7)
        write_f64_be(out, number)
        return
    elif form == AS_BOOL and end - begin == 1:
        letter: i64 = raw[begin]
        if letter == 0x74 or letter == 0x66:
            out.append(3 if letter == 0x74 else 2)
            return
    out.write(encoder(raw[begin:end]))


def _put_size(size: i64, out: BytesWriter) -> None:
    byte = BYTES
    rest = size
    while rest >= 0x80:
        out.append(byte[rest & 0x7F | 0x80])
        rest >>= 7
    out.append(byte[rest])


def _put_folded(number: i64, out: BytesWriter) -> None:
    """Write a signed number of less than 63 bits."""
    _put_size(number << 1 if number >= 0 else -(number << 1) - 1, out)


def _put_integer(raw: bytes, begin: i64, end: i64, out: BytesWriter) -> bool:
    """Write an integer; say whether its text is one of at most 18 digits."""
    at = begin
    negative = end > begin and raw[begin] == 0x2D
    if negative:
        at += 1
    if not 0 < end - at <= 18:
        return False
    number: i64 = 0
    while at < end:
        digit: i64 = raw[at]
        if digit < 0x30 or digit > 0x39:
            return False
        number = number * 10 + digit - 0x30
        at += 1
    out.append(4)
    _put_folded(-number if negative else number, out)
    return True


def _is_plain(raw: bytes, begin: i64, end: i64) -> bool:
    """Whether a number's text is the one that `str` of its Decimal has: digits, one point, no millionths alone."""
    at = begin
    if at < end and raw[at] == 0x2D:
        at += 1
    digits = at
    if end - at > 1 and raw[at] == 0x30 and raw[at + 1] != 0x2E:  # ZEROFILL
        return False
    point: i64 = -1
    while at < end:
        letter: i64 = raw[at]
        if letter == 0x2E and point < 0:
            point = at
        elif letter < 0x30 or letter > 0x39:
            return False
        at += 1
    if point < 0:
        return end > digits
    if point == digits or point == end - 1:
        return False
    # `str` writes an exponent for numbers of more than six zeros behind the point.
    return not (point == digits + 1 and raw[digits] == 0x30 and raw[point + 1 : point + 7] == b"000000")


def _digits(raw: bytes, at: i64, count: i64) -> i64:
    """Return the number that so many digits are; below 0 for what is none."""
    number: i64 = 0
    end = at + count
    while at < end:
        digit: i64 = raw[at]
        if digit < 0x30 or digit > 0x39:
            return -1
        number = number * 10 + digit - 0x30
        at += 1
    return number


def _days_of(year: i64, month: i64) -> i64:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


def _put_moment(raw: bytes, begin: i64, end: i64, tag: i64, out: BytesWriter) -> bool:
    """Write a moment of the years 1 to 9999; say whether it is one."""
    if end - begin < 19 or end - begin > 26 or end - begin == 20:
        return False
    if (
        raw[begin + 4] != 0x2D
        or raw[begin + 7] != 0x2D
        or raw[begin + 10] != 0x20
        or raw[begin + 13] != 0x3A
        or raw[begin + 16] != 0x3A
    ):
        return False
    year, month, day = _digits(raw, begin, 4), _digits(raw, begin + 5, 2), _digits(raw, begin + 8, 2)
    hour, minute, second = _digits(raw, begin + 11, 2), _digits(raw, begin + 14, 2), _digits(raw, begin + 17, 2)
    if year < 1 or month < 1 or month > 12 or day < 1 or (day > 28 and day > _days_of(year, month)):
        return False
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return False
    micros: i64 = 0
    if end - begin > 19:
        micros = _digits(raw, begin + 20, end - begin - 20)
        if micros < 0 or raw[begin + 19] != 0x2E:
            return False
        missing = 26 - (end - begin)
        while missing > 0:
            micros *= 10
            missing -= 1
    # Days since 1970, with years that begin in March, so that a leap day is a year's last.
    months = month - 3
    if months < 0:
        months += 12
        year -= 1
    days = year * 365 + year // 4 - year // 100 + year // 400 + (months * 153 + 2) // 5 + day - 719_469
    out.append(BYTES[tag])
    _put_folded(((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros, out)
    return True

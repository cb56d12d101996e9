"""MariaDB's values: the stored bytes of each type, and what they are worth.

Owns the conversions that the binlog's rows and the rows of a SELECT share, so that `tranlog verify` compares like with
like. Which bytes of a row belong to which column is `rows`'s. Pure. The hard idea: MariaDB stores dates that
no calendar has; those keep the server's own text, in the column's own number of digits.

Source: MariaDB's manual, "Data types".
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from tranlog.types import Bit, Date, Datetime, Instant, Other, Time, Value, ZeroDate, date_from_civil

_MEMO_LIMIT: Final = 1 << 16
_DAY_MICROS: Final = 86_400_000_000
_DAYS_IN_MONTH: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

FromBytes = Callable[[bytes], Value]


class Memo(dict[bytes, Value]):
    """Remembers what a conversion of few distinct inputs returned; forgets all when it has grown large."""

    __slots__ = ("_convert",)

    def __init__(self, convert: FromBytes) -> None:
        super().__init__()
        self._convert = convert

    def __missing__(self, raw: bytes) -> Value:
        value = self._convert(raw)
        if len(self) >= _MEMO_LIMIT:
            self.clear()
        self[raw] = value
        return value


# --- dates and times -------------------------------------------------------------------------------------


def _is_date(year: int, month: int, day: int) -> bool:
    if not (1 <= month <= 12 and 1 <= day <= _DAYS_IN_MONTH[month]):
        return False
    return not (month == 2 and day == 29 and (year % 4 or (year % 100 == 0 and year % 400)))


def _check_year(year: int) -> None:
    if year > 9999:
        raise ValueError(f"the year {year}")


def date_value(year: int, month: int, day: int) -> Date | ZeroDate:
    """Return a date, or a ZeroDate for one that no calendar has. Raises ValueError for a year that no server writes."""
    _check_year(year)
    if _is_date(year, month, day):
        return date_from_civil(year, month, day)
    return ZeroDate(f"{year:04d}-{month:02d}-{day:02d}")


def _fraction(micros: int, decimals: int) -> str:
    return f".{micros:06d}"[: decimals + 1] if decimals else ""


def datetime_value(year: int, month: int, day: int, micros: int, decimals: int) -> Datetime | ZeroDate:
    """Return a wall-clock time from its date and the microseconds of its day; ZeroDate as for a date."""
    _check_year(year)
    if _is_date(year, month, day):
        return Datetime(date_from_civil(year, month, day).days * _DAY_MICROS + micros)
    seconds, rest = divmod(micros, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{_fraction(rest, decimals)}"
    return ZeroDate(f"{year:04d}-{month:02d}-{day:02d} {clock}")


def instant_value(seconds: int, micros: int, decimals: int) -> Instant | ZeroDate:
    """Return a TIMESTAMP from its seconds since 1970; its 0 is no time at all."""
    if seconds == 0 and micros == 0:
        return ZeroDate("0000-00-00 00:00:00" + _fraction(0, decimals))
    return Instant(seconds * 1_000_000 + micros)


def date3(raw: bytes) -> Value:
    """Read a DATE of three bytes."""
    packed = int.from_bytes(raw, "little")
    return date_value(packed >> 9, packed >> 5 & 15, packed & 31)


def time2(decimals: int) -> tuple[int, FromBytes]:
    """Return the size of a TIME of so many decimals and its conversion."""
    fraction_bytes = (decimals + 1) // 2
    bits = fraction_bytes * 8
    zero = 0x800000 << bits
    mask = (1 << bits) - 1
    unit = 10 ** (6 - 2 * fraction_bytes)

    def convert(raw: bytes) -> Value:
        packed = int.from_bytes(raw, "big") - zero
        size = abs(packed)
        clock = size >> bits
        seconds = (clock >> 12 & 0x3FF) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
        micros = seconds * 1_000_000 + (size & mask) * unit
        return Time(-micros if packed < 0 else micros)

    return 3 + fraction_bytes, convert


def datetime2(
    decimals: int, made: Callable[[int], Value], made_zero: Callable[[ZeroDate], Value]
) -> tuple[int, FromBytes]:
    """Return the size of a DATETIME of so many decimals and its conversion.

    `made` and `made_zero` give the result, of the microseconds and of what no calendar has.
    """
    fraction_bytes = (decimals + 1) // 2
    bits = fraction_bytes * 8
    zero = 0x8000000000 << bits
    mask = (1 << bits) - 1
    unit = 10 ** (6 - 2 * fraction_bytes)
    day_start: dict[int, int] = {}  # of true dates only

    def convert(raw: bytes) -> Value:
        packed = int.from_bytes(raw, "big") - zero
        whole = packed >> bits
        seconds = (whole >> 12 & 31) * 3600 + (whole >> 6 & 63) * 60 + (whole & 63)
        micros = seconds * 1_000_000 + (packed & mask) * unit
        date = whole >> 17
        start = day_start.get(date)
        if start is not None:
            return made(start + micros)
        months, day = date >> 5, date & 31
        value = datetime_value(months // 13, months % 13, day, micros, decimals)
        if isinstance(value, ZeroDate):
            return made_zero(value)
        if len(day_start) >= _MEMO_LIMIT:
            day_start.clear()
        day_start[date] = value.micros - micros
        return made(value.micros)

    return 5 + fraction_bytes, convert


def timestamp2(decimals: int) -> tuple[int, FromBytes]:
    """Return the size of a TIMESTAMP of so many decimals and its conversion."""
    fraction_bytes = (decimals + 1) // 2
    unit = 10 ** (6 - 2 * fraction_bytes)

    def convert(raw: bytes) -> Value:
        return instant_value(
            int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big") * unit if fraction_bytes else 0, decimals
        )

    return 4 + fraction_bytes, convert


# MariaDB 5.3's own formats, which tables keep until they are rebuilt with mysql56_temporal_format=ON.

_OLD_TIME_BYTES: Final = (3, 4, 4, 5, 5, 5, 6)
_OLD_DATETIME_BYTES: Final = (8, 6, 6, 7, 7, 7, 8)
_OLD_TIMESTAMP_BYTES: Final = (4, 5, 5, 6, 6, 7, 7)
_OLD_TIME_ZERO: Final = (838 * 3600 + 59 * 60 + 59 + 1) * 1_000_000


def old_time(decimals: int) -> tuple[int, FromBytes]:
    """Return the size and the conversion of a TIME in MariaDB 5.3's format."""
    unit = 10 ** (6 - decimals)

    def plain(raw: bytes) -> Value:
        packed = int.from_bytes(raw, "little", signed=True)
        digits = abs(packed)
        micros = (digits // 10_000 * 3600 + digits // 100 % 100 * 60 + digits % 100) * 1_000_000
        return Time(-micros if packed < 0 else micros)

    def precise(raw: bytes) -> Value:
        return Time(int.from_bytes(raw, "big") * unit - _OLD_TIME_ZERO)

    return _OLD_TIME_BYTES[decimals], precise if decimals else plain


def old_datetime(decimals: int) -> tuple[int, FromBytes]:
    """Return the size and the conversion of a DATETIME in MariaDB 5.3's format."""
    unit = 10 ** (6 - decimals)

    def plain(raw: bytes) -> Value:
        date, clock = divmod(int.from_bytes(raw, "little"), 1_000_000)
        seconds = clock // 10_000 * 3600 + clock // 100 % 100 * 60 + clock % 100
        return datetime_value(date // 10_000, date // 100 % 100, date % 100, seconds * 1_000_000, 0)

    def precise(raw: bytes) -> Value:
        days, micros = divmod(int.from_bytes(raw, "big") * unit, _DAY_MICROS)
        months, day = divmod(days, 32)
        return datetime_value(months // 13, months % 13, day, micros, decimals)

    return _OLD_DATETIME_BYTES[decimals], precise if decimals else plain


def old_timestamp(decimals: int) -> tuple[int, FromBytes]:
    """Return the size and the conversion of a TIMESTAMP in MariaDB 5.3's format."""
    unit = 10 ** (6 - decimals)

    def plain(raw: bytes) -> Value:
        return instant_value(int.from_bytes(raw, "little"), 0, 0)

    def precise(raw: bytes) -> Value:
        return instant_value(int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big") * unit, decimals)

    return _OLD_TIMESTAMP_BYTES[decimals], precise if decimals else plain


# --- numbers and bits ------------------------------------------------------------------------------------

_DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_text(precision: int, scale: int) -> tuple[int, Callable[[bytes], str]]:
    """Return the size of a DECIMAL(precision, scale) and the conversion to its digits, the scale kept."""
    whole_words, whole_rest = divmod(precision - scale, 9)
    part_words, part_rest = divmod(scale, 9)
    widths = [whole_rest] * bool(whole_rest) + [9] * whole_words + [9] * part_words + [part_rest] * bool(part_rest)
    groups = []
    at = 0
    for width in widths:
        groups.append((at, at + _DIGIT_BYTES[width], width))
        at += _DIGIT_BYTES[width]
    size = at
    sign_bit = 1 << (8 * size - 1)
    all_bits = (1 << 8 * size) - 1

    def convert(raw: bytes) -> str:
        number = int.from_bytes(raw, "big")
        negative = not number & sign_bit
        number ^= sign_bit
        if negative:
            number ^= all_bits
        plain = number.to_bytes(size, "big")
        digits = "".join([f"{int.from_bytes(plain[start:end], 'big'):0{width}d}" for start, end, width in groups])
        split = len(digits) - scale
        text = digits[:split].lstrip("0") or "0"
        if scale:
            text = f"{text}.{digits[split:]}"
        return "-" + text if negative else text

    if not (0 < scale <= 9 and 0 < precision - scale <= 9):
        return size, convert

    part_bits = 8 * _DIGIT_BYTES[scale]
    part_mask = (1 << part_bits) - 1
    form = f"%d.%0{scale}d"

    def convert_two_groups(raw: bytes) -> str:
        number = int.from_bytes(raw, "big") ^ sign_bit
        if number & sign_bit:
            number ^= all_bits
            return "-" + form % (number >> part_bits, number & part_mask)
        return form % (number >> part_bits, number & part_mask)

    return size, convert_two_groups


def decimal_bytes(precision: int, scale: int) -> tuple[int, FromBytes]:
    """Return the size of a DECIMAL(precision, scale) and its conversion: exact, with the scale kept."""
    size, text = decimal_text(precision, scale)
    return size, lambda raw: Decimal(text(raw))


def bit_bytes(width: int) -> tuple[int, FromBytes]:
    """Return the size of a BIT(width) and its conversion."""

    def convert(raw: bytes) -> Value:
        bits = int.from_bytes(raw, "big")
        if bits >> width:
            raise ValueError(f"a BIT({width}) with more bits")
        return Bit(width, bits)

    return (width + 7) // 8, convert


def year_value(stored: int) -> int:
    """Return a YEAR from its byte: 0, or 1901 to 2155."""
    return stored + 1900 if stored else 0


# --- addresses, compressed columns -----------------------------------------------------------------------


def inet4_text(raw: bytes) -> str:
    """Return an INET4's four bytes as the server prints them."""
    return ".".join(map(str, raw))


def inet6_text(raw: bytes) -> str:
    """Return an INET6's sixteen bytes as the server prints them.

    Source: RFC 5952, but that the server shortens a single zero too, and writes `::1.2.3.4` for IPv4-compatible
    addresses.
    """
    groups = [raw[at] << 8 | raw[at + 1] for at in range(0, 16, 2)]
    start, length = _longest_gap(groups)
    if start == 0 and (length == 6 or (length == 5 and groups[5] == 0xFFFF)):
        return f"::{'ffff:' if length == 5 else ''}{inet4_text(raw[12:])}"
    if length == 0:
        return ":".join(f"{group:x}" for group in groups)
    before = ":".join(f"{group:x}" for group in groups[:start])
    after = ":".join(f"{group:x}" for group in groups[start + length :])
    return f"{before}::{after}"


def _longest_gap(groups: list[int]) -> tuple[int, int]:
    """Return the first of the longest runs of zeros, as (start, length); length 0 for none."""
    best, length, at = 0, 0, 0
    while at < 8:
        end = at
        while end < 8 and groups[end] == 0:
            end += 1
        if end - at > length:
            best, length = at, end - at
        at = end + 1
    return best, length


def inet_value(type_name: str, raw: bytes) -> Other:
    """Return an INET4 or INET6 value."""
    return Other(type_name, inet4_text(raw) if type_name == "inet4" else inet6_text(raw))


def uncompressed(raw: bytes) -> bytes:
    """Return the content of a value of a COMPRESSED column. Raises ValueError for what the server cannot have written.

    The first byte is 0 before plain content; else the method in the high half, whether zlib's frame is left out
    in bit 3, and the number of bytes of the content's length, which follow, in the rest.
    """
    if not raw:
        return b""
    first = raw[0]
    if first == 0:
        return raw[1:]
    length_bytes = first & 7
    if first >> 4 != 8 or not length_bytes:
        raise ValueError(f"a compressed value that starts with {first}")
    size = int.from_bytes(raw[1 : 1 + length_bytes], "big")
    inflater = zlib.decompressobj(-15 if first & 8 else 15)
    try:
        content = inflater.decompress(raw[1 + length_bytes :], size + 1)
    except zlib.error as exc:
        raise ValueError(f"a compressed value that does not inflate: {exc}") from exc
    if len(content) != size:
        raise ValueError(f"a compressed value of {len(content)} bytes that announces {size}")
    return content

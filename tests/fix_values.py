"""Values of every kind for tests of targets, by column; and those that one kind of target refuses."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID

from fix_target import ANY, column
from tranlog.change import Column
from tranlog.types import (
    F32,
    Bit,
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
    canonical,
    date_from_civil,
)

DAY = 86_400_000_000
HOUR = 3_600_000_000
FLT_MAX, FLT_TINY = (struct.unpack(">f", raw)[0] for raw in (b"\x7f\x7f\xff\xff", b"\x00\x00\x00\x01"))


def day(year: int, month: int, day: int) -> int:
    return date_from_civil(year, month, day).days


L = LogicalType
CASES: dict[str, tuple[Column, Sequence[Value]]] = {
    "bool": (column("v", L.BOOL, "boolean"), [True, False]),
    "tinyint": (column("v", L.INTEGER, "tinyint(4)"), [-128, 127, 0]),
    "tinyint unsigned": (column("v", L.INTEGER, "tinyint(3) unsigned", unsigned=True), [0, 255]),
    "smallint": (column("v", L.INTEGER, "smallint(6)"), [-(1 << 15), (1 << 15) - 1]),
    "smallint unsigned": (column("v", L.INTEGER, "smallint(5) unsigned", unsigned=True), [(1 << 16) - 1]),
    "mediumint": (column("v", L.INTEGER, "mediumint(9)"), [-(1 << 23), (1 << 23) - 1]),
    "mediumint unsigned": (column("v", L.INTEGER, "mediumint(8) unsigned", unsigned=True), [(1 << 24) - 1]),
    "int": (column("v", L.INTEGER, "int(11)"), [-(1 << 31), (1 << 31) - 1]),
    "int unsigned": (column("v", L.INTEGER, "int(10) unsigned", unsigned=True), [(1 << 32) - 1]),
    "bigint": (column("v", L.INTEGER, "bigint(20)"), [-(1 << 63), (1 << 63) - 1]),
    "bigint unsigned": (
        column("v", L.INTEGER, "bigint(20) unsigned", unsigned=True),
        [0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1],
    ),
    "year": (column("v", L.INTEGER, "year(4)", unsigned=True), [0, 1901, 2155]),
    "float": (
        column("v", L.F32, "float"),
        [F32(x) for x in (0.0, -0.0, FLT_MAX, -FLT_MAX, FLT_TINY, struct.unpack(">f", struct.pack(">f", 0.1))[0])]
        + [F32(math.nan), F32(math.inf), F32(-math.inf)],
    ),
    "double": (
        column("v", L.F64, "double"),
        [0.0, -0.0, 0.1, 1.7976931348623157e308, -5e-324, 2.2250738585072014e-308, math.nan, math.inf, -math.inf, 1e22],
    ),
    "decimal": (
        column("v", L.DECIMAL, "decimal(65,30)"),
        [Decimal(sign + "9" * 35 + "." + "9" * 30) for sign in ("", "-")] + [Decimal("0." + "0" * 30)],
    ),
    "decimal without a scale": (column("v", L.DECIMAL, "decimal(10,0)"), [Decimal("-9999999999"), Decimal(0)]),
    "money": (column("v", L.DECIMAL, "decimal(10,2) unsigned", unsigned=True), [Decimal("1.50"), Decimal("0.00")]),
    "any decimal": (
        column("v", L.DECIMAL, "numeric"),
        [Decimal("1.0"), Decimal("1.00"), Decimal("1" + "0" * 200 + "." + "0" * 99 + "1"), Decimal("NaN")],
    ),
    "text": (
        column("v", L.TEXT, "longtext", charset="utf8mb4"),
        [
            "",
            " ",
            "a ",
            "NULL",
            "null",
            "é",
            "🦆",
            "a\nb\tc\r",
            "\\",
            '"',
            '\\"',
            "{}",
            "{a,b}",
            "'",
            "%s $1",
            "\x01",
            "0012",
            "1e5",
            "x" * 100_000,
        ],
    ),
    "char": (column("v", L.TEXT, "char(120)", length=120), ["a" * 119, ""]),
    "bytes": (
        column("v", L.BYTES, "longblob"),
        [b"", b"\0", b"a\0\0", bytes(range(256)), b"\\x00", b"\xff" * 70_000],
    ),
    "date": (
        column("v", L.DATE, "date"),
        [
            date_from_civil(*d)
            for d in ((1000, 1, 1), (9999, 12, 31), (1970, 1, 1), (1, 1, 1), (2000, 2, 29), (-43, 3, 15))
        ],
    ),
    "time": (
        column("v", L.TIME, "time(6)"),
        [
            Time(x)
            for x in (0, 1, -1, 838 * HOUR + 59 * 60_000_000 + 59_999_999, -(839 * HOUR - 1), 12 * HOUR, 24 * HOUR)
        ],
    ),
    "datetime": (
        column("v", L.DATETIME, "datetime(6)"),
        [
            Datetime(day(*d) * DAY + micros)
            for d, micros in (((1000, 1, 1), 0), ((9999, 12, 31), DAY - 1), ((1, 1, 1), 1))
        ]
        + [Datetime(-1), Datetime(0), Datetime(day(0, 1, 1) * DAY)],
    ),
    "timestamp": (
        column("v", L.INSTANT, "timestamp(6)"),
        [Instant(x) for x in (0, 1_000_000, ((1 << 31) - 1) * 1_000_000 + 999_999, -1)]
        + [Instant(day(9999, 12, 31) * DAY), Instant(day(-43, 3, 15) * DAY + 1)],
    ),
    "infinite date": (column("v", L.DATE, "date"), [InfiniteDate(False), InfiniteDate(True)]),
    "infinite timestamp": (column("v", L.INSTANT, "timestamptz"), [InfiniteDate(False), InfiniteDate(True)]),
    "bit": (column("v", L.BIT, "bit(9)", length=9), [Bit(9, 0), Bit(9, 1), Bit(9, 511)]),
    "wide bit": (column("v", L.BIT, "bit(64)", length=64), [Bit(64, (1 << 64) - 1), Bit(64, 1)]),
    "varying bit": (column("v", L.BIT, "bit varying"), [Bit(1, 1), Bit(3, 1), Bit(0, 0), Bit(100, 1 << 99)]),
    "enum": (
        column("v", L.ENUM, "enum('a','b,c','')"),
        [EnumLabel("a"), EnumLabel("b,c"), EnumLabel(""), EnumLabel("1")],
    ),
    "set": (column("v", L.SET, "set('a','b','é')"), [SetLabels(()), SetLabels(("a",)), SetLabels(("a", "b", "é"))]),
    "json": (
        column("v", L.JSON, "json"),
        [Json('{"b": 1,  "a":[1.0, null], "b": 2}'), Json("null"), Json('"\\u0000"'), Json("1"), Json('"é🦆"')],
    ),
    "uuid": (column("v", L.UUID, "uuid"), [UUID(int=0), UUID(int=(1 << 128) - 1), UUID(int=0x1E5)]),
    "other": (column("v", L.OTHER, "inet6"), [Other("inet6", "::1"), Other("inet6", ""), Other("inet6", "12")]),
}
MARIADB_HAS_NO: dict[str, Sequence[Value]] = {
    "float": [F32(-0.0), F32(math.nan), F32(math.inf), F32(-math.inf)],
    "double": [-0.0, math.nan, math.inf, -math.inf],
    "date": [date_from_civil(-43, 3, 15)],
    "timestamp": [Instant(0), Instant(-1), Instant(day(9999, 12, 31) * DAY), Instant(day(-43, 3, 15) * DAY + 1)],
    "infinite date": [InfiniteDate(False), InfiniteDate(True)],
    "infinite timestamp": [InfiniteDate(False), InfiniteDate(True)],
    "enum": [EnumLabel("1")],
    "REAL": [math.inf, -math.inf],
}
"""What a column as it is made there refuses: never as another value, which `'1'` would be in an ENUM, or -0.0."""


def fitting(kind: str, name: str, values: Sequence[Value]) -> list[Value]:
    refused = [canonical(value) for value in MARIADB_HAS_NO.get(name, ())] if kind == "mariadb" else []
    return [value for value in values if canonical(value) not in refused]


ANY_CASES: dict[str, tuple[Column, Sequence[Value]]] = {
    "INTEGER": (column("v", ANY, "INTEGER"), [0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1]),
    "TEXT": (column("v", ANY, "TEXT"), ["", "a", "1", "1.0", "🦆"]),
    "REAL": (column("v", ANY, "REAL"), [1.0, 0.1, 1e300, 5e-324, math.inf, -math.inf]),
    "BLOB": (column("v", ANY, "BLOB"), [b"", b"\0\xff"]),
    "NUMERIC": (column("v", ANY, "NUMERIC"), [1, 1.5, -7, 1e300, 4.9e-324, 9.3e18, 1 << 62]),
    "VARCHAR(20)": (column("v", ANY, "VARCHAR(20)"), ["x", "12"]),
    "no type": (column("v", ANY, ""), ["x", "12"]),
}

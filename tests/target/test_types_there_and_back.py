"""Every kind of value, written and read back as the same value. design/data-model.md, "Values"."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID

import pytest

from fix_target import ANY, Bench, Row, column, content, delete, insert, table, update
from tranlog.change import Column
from tranlog.errors import ConflictError, TargetTableError
from tranlog.types import (
    F32,
    Bit,
    CharsetBytes,
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
ANY_CASES: dict[str, tuple[Column, Sequence[Value]]] = {
    "INTEGER": (column("v", ANY, "INTEGER"), [0, -1, 1 << 62, -(1 << 63), (1 << 63) - 1]),
    "TEXT": (column("v", ANY, "TEXT"), ["", "a", "1", "1.0", "🦆"]),
    "REAL": (column("v", ANY, "REAL"), [1.0, 0.1, 1e300, 5e-324, math.inf, -math.inf]),
    "BLOB": (column("v", ANY, "BLOB"), [b"", b"\0\xff"]),
    "NUMERIC": (column("v", ANY, "NUMERIC"), [1, 1.5, -7, 1e300, 4.9e-324, 9.3e18, 1 << 62]),
    "VARCHAR(20)": (column("v", ANY, "VARCHAR(20)"), ["x", "12"]),
    "no type": (column("v", ANY, ""), ["x", "12"]),
}
ID = column("id", L.INTEGER, "int(11)", nullable=False)


@pytest.fixture(params=["by key", "without a key"])
def keyed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "by key")


@pytest.mark.parametrize("group", ["typed", "untyped"])
def test_every_value_comes_back_as_it_was(bench: Bench, keyed: bool, group: str) -> None:
    """Each value is inserted, updated to NULL, updated back, compared; and the row is found again by its values."""
    for number, (name, (col, values)) in enumerate((CASES if group == "typed" else ANY_CASES).items()):
        tab = table(f"t{number}", ID, col, key=(0,) if keyed else ())
        assert bench.target.create_table(tab), name
        rows = [(i, value) for i, value in enumerate([*values, None])]
        bench.apply([insert(tab, row) for row in rows])
        assert bench.rows(tab) == content(rows), name
        bench.apply([update(tab, row, (row[0], None)) for row in rows], [update(tab, (r[0], None), r) for r in rows])
        assert bench.rows(tab) == content(rows), name
        bench.apply([delete(tab, row) for row in rows])
        assert not bench.rows(tab), name


NO_KEYS = ("any decimal", "json")  # 1.0 and 1.00 are one key; PostgreSQL knows no order of json


@pytest.mark.parametrize("name", [name for name in CASES if name not in NO_KEYS])
def test_every_value_serves_as_a_key(bench: Bench, name: str) -> None:
    col, values = CASES[name]
    tab = table("t", col, column("n", L.INTEGER, "int"))
    bench.target.create_table(tab)
    distinct = [value for value in values if str(value) not in ("-0.0", "F32(value=-0.0)")]  # one key with 0.0
    bench.apply([insert(tab, (v, 1)) for v in distinct])
    bench.apply([update(tab, (v, 1), (v, 2)) for v in distinct])
    assert bench.rows(tab) == content([(v, 2) for v in distinct])
    bench.apply([delete(tab, (v, 2)) for v in distinct])
    assert not bench.rows(tab)


def test_rows_that_are_merely_equal_are_told_apart(bench: Bench) -> None:
    """A keyless table: 1.0 and 1.00, and at PostgreSQL 0.0 and -0.0, are different rows."""
    decimals = table("decimals", CASES["any decimal"][0], key=())
    bench.target.create_table(decimals)
    bench.apply([insert(decimals, (Decimal(text),)) for text in ("1.0", "1.00", "1.000")])
    bench.apply([delete(decimals, (Decimal("1.00"),))])
    assert bench.rows(decimals) == content([(Decimal("1.0"),), (Decimal("1.000"),)])
    if bench.target.kind == "sqlite":
        mixed = table("mixed", column("v", ANY, ""), schema="main", key=())
        bench.target.create_table(mixed)
        rows: list[tuple[Value, ...]] = [(1,), (1.0,), ("1",), (b"1",), (None,)]
        bench.apply([insert(mixed, row) for row in rows])
        for kind in (float, bytes, int):
            at = [type(value) for (value,) in rows].index(kind)
            bench.apply([delete(mixed, rows.pop(at))])
            assert bench.rows(mixed) == content(rows)
    else:
        zeros = table("zeros", CASES["double"][0], column("g", L.F32, "float"), key=())
        bench.target.create_table(zeros)
        bench.apply([insert(zeros, (a, F32(b))) for a in (0.0, -0.0) for b in (0.0, -0.0)])
        bench.apply([delete(zeros, (-0.0, F32(0.0))), update(zeros, (0.0, F32(-0.0)), (0.0, F32(5.0)))])
        assert bench.rows(zeros) == content([(0.0, F32(0.0)), (0.0, F32(5.0)), (-0.0, F32(-0.0))])


def test_a_change_of_sign_or_scale_alone_is_a_change(bench: Bench) -> None:
    """Python calls them equal."""
    tab = table("t", ID, CASES["double"][0], column("d", L.DECIMAL, "numeric"))
    bench.target.create_table(tab)
    bench.apply([insert(tab, (1, 0.0, Decimal("1.0")))])
    bench.apply([update(tab, (1, 0.0, Decimal("1.0")), (1, -0.0, Decimal("1.00")))])
    assert bench.rows(tab) == content([(1, -0.0, Decimal("1.00"))])


ZERO_DATES: list[Value] = [
    ZeroDate("0000-00-00"),
    ZeroDate("2024-00-15"),
    ZeroDate("2024-02-31"),
    date_from_civil(2024, 2, 29),
]


def test_zero_dates(bench: Bench) -> None:
    """Kept as text; a date column of PostgreSQL's refuses them by name."""
    tab = table("dates", ID, column("d", L.DATE, "date"), column("t", L.DATETIME, "datetime"))
    rows: list[Row] = [(i, value, None) for i, value in enumerate(ZERO_DATES)]
    rows += [(9, None, ZeroDate("0000-00-00 00:00:00"))]
    bench.target.create_table(tab)
    if bench.target.kind == "postgres":
        with pytest.raises(ConflictError, match="column d: '0000-00-00' is a date that PostgreSQL does not have"):
            bench.apply([insert(tab, row) for row in rows])
        bench.session.run_script("ALTER TABLE shop.dates ALTER d TYPE text, ALTER t TYPE text")
    bench.apply([insert(tab, row) for row in rows])
    assert bench.rows(tab) == content(rows)


def test_text_that_is_no_text(bench: Bench) -> None:
    """NUL characters and bytes that do not decode: kept by SQLite, refused by PostgreSQL with seqno and column."""
    tab = table("t", ID, column("v", L.TEXT, "text", charset="latin2"))
    bench.target.create_table(tab)
    wrong: list[tuple[Value, str]] = [
        ("a\0b", "column v: the text holds a NUL"),
        (CharsetBytes("latin2", b"\xff\0"), "no text in latin2"),
    ]
    for seqno, (value, why) in enumerate(wrong):
        if bench.target.kind == "postgres":
            with pytest.raises(ConflictError, match=why) as caught:
                bench.apply([insert(tab, (100, "fine")), insert(tab, (seqno, value))])
            assert (caught.value.seqno, caught.value.key) == (0, f"(id={seqno})")
        else:
            bench.apply([insert(tab, (seqno, value))])
            assert bench.rows(tab)[content([(seqno, value)]).most_common(1)[0][0]] == 1


def test_a_value_that_does_not_fit_stops_by_name(bench: Bench) -> None:
    tab = table("t", ID, column("v", ANY, "INTEGER"))
    bench.target.create_table(tab)
    wrong: Value = UUID(int=1) if bench.target.kind == "sqlite" else "text"
    with pytest.raises(ConflictError, match=r"seqno 0, table shop\.t, key \(id=2\)"):
        bench.apply([insert(tab, (1, 1)), insert(tab, (2, wrong))])
    assert not bench.rows(tab)


@pytest.mark.parametrize(
    ("declared", "col"),
    [
        ({"sqlite": "INTEGER", "postgres": "integer"}, column("v", L.TEXT, "varchar(9)")),
        ({"sqlite": "NUMERIC", "postgres": "date"}, column("v", L.DECIMAL, "decimal(5,2)")),
        ({"sqlite": "TEXT", "postgres": "real"}, column("v", L.F64, "double")),
        ({"sqlite": "INT", "postgres": "integer"}, column("v", L.BIT, "bit(8)", length=8)),
    ],
)
def test_a_column_of_a_type_that_changes_values_is_refused(bench: Bench, declared: dict[str, str], col: Column) -> None:
    tab = table("t", ID, col, schema="main")
    sql = f"CREATE TABLE t (id INTEGER PRIMARY KEY, v {declared[bench.target.kind]})"
    if bench.target.kind == "postgres":
        sql = sql.replace("TABLE t", "TABLE main.t").replace("CREATE", "CREATE SCHEMA main; CREATE", 1)
    bench.session.run_script(sql)
    with pytest.raises(TargetTableError, match=r"main\.t \(seqno 0\): column v is (declared )?"):
        bench.apply([insert(tab, (1, None))])

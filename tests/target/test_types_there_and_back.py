"""Every kind of value, written and read back as the same value."""

from __future__ import annotations

import re
from decimal import Decimal
from uuid import UUID

import pytest

from fix_target import ANY, ID, Bench, Row, column, content, databases, delete, insert, table, update
from fix_values import ANY_CASES, CASES, MARIADB_HAS_NO, fitting
from tranlog.change import Column
from tranlog.errors import ConflictError, TargetTableError
from tranlog.types import (
    F32,
    CharsetBytes,
    LogicalType,
    Value,
    ZeroDate,
    date_from_civil,
)

L = LogicalType


@pytest.fixture(params=["by key", "without a key"])
def keyed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "by key")


@pytest.mark.long
@pytest.mark.parametrize("group", ["typed", "untyped"])
def test_every_value_comes_back_as_it_was(bench: Bench, keyed: bool, group: str) -> None:
    """Each value is inserted, updated to NULL, updated back, compared; and the row is found again by its values."""
    for number, (name, (col, values)) in enumerate((CASES if group == "typed" else ANY_CASES).items()):
        tab = table(f"t{number}", ID, col, key=(0,) if keyed else ())
        assert bench.target.rows.create_table(tab), name
        kind = bench.target.kind
        rows = [(i, value) for i, value in enumerate([*fitting(kind, name, values), None])]
        bench.apply([insert(tab, row) for row in rows])
        assert bench.rows(tab) == content(rows), name
        bench.apply([update(tab, row, (row[0], None)) for row in rows], [update(tab, (r[0], None), r) for r in rows])
        assert bench.rows(tab) == content(rows), name
        bench.apply([delete(tab, row) for row in rows])
        assert not bench.rows(tab), name


NO_KEYS = ("any decimal", "json")  # 1.0 and 1.00 are one key; PostgreSQL knows no order of json


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if name not in NO_KEYS])
def test_every_value_serves_as_a_key(bench: Bench, name: str) -> None:
    col, values = CASES[name]
    tab = table("t", col, column("n", L.INTEGER, "int"))
    bench.target.rows.create_table(tab)
    distinct = [value for value in values if str(value) not in ("-0.0", "F32(value=-0.0)")]  # one key with 0.0
    if bench.target.kind == "mariadb":  # its keys end at 3072 bytes
        distinct = [v for v in fitting("mariadb", name, distinct) if not (isinstance(v, str | bytes) and len(v) > 768)]
    bench.apply([insert(tab, (v, 1)) for v in distinct])
    bench.apply([update(tab, (v, 1), (v, 2)) for v in distinct])
    assert bench.rows(tab) == content([(v, 2) for v in distinct])
    bench.apply([delete(tab, (v, 2)) for v in distinct])
    assert not bench.rows(tab)


def test_rows_that_are_merely_equal_are_told_apart(bench: Bench) -> None:
    """A keyless table: 1.0 and 1.00, and at PostgreSQL 0.0 and -0.0, are different rows."""
    decimals = table("decimals", CASES["any decimal"][0], key=())
    bench.target.rows.create_table(decimals)
    bench.apply([insert(decimals, (Decimal(text),)) for text in ("1.0", "1.00", "1.000")])
    bench.apply([delete(decimals, (Decimal("1.00"),))])
    assert bench.rows(decimals) == content([(Decimal("1.0"),), (Decimal("1.000"),)])
    if bench.target.kind == "sqlite":
        mixed = table("mixed", column("v", ANY, ""), schema="main", key=())
        bench.target.rows.create_table(mixed)
        rows: list[tuple[Value, ...]] = [(1,), (1.0,), ("1",), (b"1",), (None,)]
        bench.apply([insert(mixed, row) for row in rows])
        for kind in (float, bytes, int):
            at = [type(value) for (value,) in rows].index(kind)
            bench.apply([delete(mixed, rows.pop(at))])
            assert bench.rows(mixed) == content(rows)
    elif bench.target.kind == "postgres":
        zeros = table("zeros", CASES["double"][0], column("g", L.F32, "float"), key=())
        bench.target.rows.create_table(zeros)
        bench.apply([insert(zeros, (a, F32(b))) for a in (0.0, -0.0) for b in (0.0, -0.0)])
        bench.apply([delete(zeros, (-0.0, F32(0.0))), update(zeros, (0.0, F32(-0.0)), (0.0, F32(5.0)))])
        assert bench.rows(zeros) == content([(0.0, F32(0.0)), (0.0, F32(5.0)), (-0.0, F32(-0.0))])


def test_a_change_of_sign_or_scale_alone_is_a_change(bench: Bench) -> None:
    """Python calls them equal."""
    tab = table("t", ID, CASES["double"][0], column("d", L.DECIMAL, "numeric"))
    bench.target.rows.create_table(tab)
    bench.apply([insert(tab, (1, 0.0, Decimal("1.0")))])
    new = 0.0 if bench.target.kind == "mariadb" else -0.0
    bench.apply([update(tab, (1, 0.0, Decimal("1.0")), (1, new, Decimal("1.00")))])
    assert bench.rows(tab) == content([(1, new, Decimal("1.00"))])


@pytest.mark.parametrize("options", [pytest.param("mariadb", marks=pytest.mark.integration)], indirect=True)
def test_what_mariadb_would_change_is_refused(bench: Bench) -> None:
    """Each value by itself, with its column in the error; a column of text takes them all."""
    cases = CASES | ANY_CASES
    for number, (name, refused) in enumerate(MARIADB_HAS_NO.items()):
        tab, asked = table(f"t{number}", ID, cases[name][0]), table(f"text{number}", ID, cases[name][0])
        bench.target.rows.create_table(tab)
        bench.session.run_script(f"CREATE TABLE shop.text{number} (id int PRIMARY KEY, v longtext)")
        for value in refused:
            with pytest.raises(ConflictError, match=r"key \(id=1\): (column v|Incorrect .* column .*`v`)"):
                bench.apply([insert(tab, (1, value))])
        assert not bench.rows(tab)
        if name != "REAL":
            rows = list(enumerate(refused))
            bench.apply([insert(asked, row) for row in rows])
            assert bench.rows(asked) == content(rows)


ZERO_DATES: list[Value] = [
    ZeroDate("0000-00-00"),
    ZeroDate("2024-00-15"),
    ZeroDate("2024-02-31"),
    date_from_civil(2024, 2, 29),
]


def test_zero_dates(bench: Bench) -> None:
    """Kept as text, at MariaDB as they are; a date column of PostgreSQL's refuses them by name."""
    tab = table("dates", ID, column("d", L.DATE, "date"), column("t", L.DATETIME, "datetime"))
    rows: list[Row] = [(i, value, None) for i, value in enumerate(ZERO_DATES)]
    rows += [(9, None, ZeroDate("0000-00-00 00:00:00"))]
    bench.target.rows.create_table(tab)
    if bench.target.kind == "postgres":
        with pytest.raises(ConflictError, match="column d: '0000-00-00' is a date that PostgreSQL does not have"):
            bench.apply([insert(tab, row) for row in rows])
        bench.session.run_script("ALTER TABLE shop.dates ALTER d TYPE text, ALTER t TYPE text")
    bench.apply([insert(tab, row) for row in rows])
    assert bench.rows(tab) == content(rows)
    keyless = table("dates", *tab.columns, key=())
    bench.apply([delete(keyless, row) for row in rows])
    assert not bench.rows(tab)


def test_text_that_is_no_text(bench: Bench) -> None:
    """NUL characters and bytes that do not decode: kept by SQLite, refused with seqno and column where they must be."""
    tab = table("t", ID, column("v", L.TEXT, "text", charset="latin2"))
    bench.target.rows.create_table(tab)
    wrong: list[tuple[Value, str]] = [
        ("a\0b", "column v: the text holds a NUL"),
        (CharsetBytes("latin2", b"\xff\0"), "no text in latin2"),
    ]
    for seqno, (value, why) in enumerate(wrong):
        if bench.target.kind == "postgres" or (bench.target.kind == "mariadb" and isinstance(value, CharsetBytes)):
            with pytest.raises(ConflictError, match=why) as caught:
                bench.apply([insert(tab, (100, "fine")), insert(tab, (seqno, value))])
            assert (caught.value.seqno, caught.value.key) == (bench.applied + 1, f"(id={seqno})")
        else:
            bench.apply([insert(tab, (seqno, value))])
            assert bench.rows(tab)[content([(seqno, value)]).most_common(1)[0][0]] == 1


@databases
def test_a_value_that_does_not_fit_stops_by_name(bench: Bench) -> None:
    tab = table("t", ID, column("v", ANY, "INTEGER"))
    bench.target.rows.create_table(tab)
    wrong: Value = UUID(int=1) if bench.target.kind == "sqlite" else "text"
    with pytest.raises(ConflictError, match=r"seqno 0, table shop\.t, key \(id=2\)"):
        bench.apply([insert(tab, (1, 1)), insert(tab, (2, wrong))])
    assert not bench.rows(tab)


@databases
@pytest.mark.parametrize(
    ("declared", "col"),
    [
        ({"sqlite": "INTEGER", "": "integer"}, column("v", L.TEXT, "varchar(9)")),
        ({"sqlite": "NUMERIC", "": "date"}, column("v", L.DECIMAL, "decimal(5,2)")),
        ({"sqlite": "TEXT", "postgres": "real", "mariadb": "float"}, column("v", L.F64, "double")),
        ({"sqlite": "INT", "": "integer"}, column("v", L.BIT, "bit(8)", length=8)),
        ({"": "double precision"}, column("v", L.INTEGER, "bigint")),
    ],
)
def test_a_column_of_a_type_that_changes_values_is_refused(bench: Bench, declared: dict[str, str], col: Column) -> None:
    tab = table("t", ID, col, schema="main")
    named = "t" if bench.target.kind == "sqlite" else "main.t"
    shape = declared.get(bench.target.kind) or declared[""]
    sql = f"CREATE TABLE {named} (id INTEGER PRIMARY KEY, v {shape})"
    if bench.target.kind != "sqlite":
        bench.session.run_script("CREATE SCHEMA main")
    bench.session.run_script(sql)
    with pytest.raises(TargetTableError, match=r"main\.t \(seqno 0\): column v is (declared )?") as caught:
        bench.apply([insert(tab, (1, None))])
    told = re.fullmatch("Make the column (.+) here, and start again", caught.value.remedy)
    assert told is not None
    bench.session.run_script(f"DROP TABLE {named}; {sql.replace(shape, told[1])}")
    bench.apply([insert(tab, (1, None))])

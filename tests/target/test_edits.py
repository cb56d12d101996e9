"""edits: which type a column here needs, to hold all that the source's does."""

from __future__ import annotations

import pytest

from fix_target import column, table
from tranlog.change import Column, TableName
from tranlog.target.binding import TargetColumn, TargetTable
from tranlog.target.dialect import Dialect
from tranlog.target.edits import Behind, behind, emptying, widened
from tranlog.target.mariadb_dialect import MARIADB
from tranlog.target.postgres_dialect import POSTGRES
from tranlog.target.sqlite_dialect import SQLITE
from tranlog.types import LogicalType

INTEGER, DECIMAL, TEXT = LogicalType.INTEGER, LogicalType.DECIMAL, LogicalType.TEXT
F32, F64, ANY = LogicalType.F32, LogicalType.F64, LogicalType.ANY


def wider(dialect: Dialect, source: str, logical: LogicalType, here: str, *, retypes: bool = True) -> str:
    """Ask for a column; its length is what stands in the parentheses of a text."""
    length = source.partition("(")[2].partition(")")[0]
    column = Column(
        name="c",
        source_type=source,
        logical=logical,
        unsigned="unsigned" in source,
        length=int(length) if logical == TEXT and length else 0,
    )
    there = TargetColumn(name="c", type_name="", category="", declared=here, retypes=retypes)
    return widened(dialect, table("t", column, key=()), 0, there)


@pytest.mark.parametrize(
    ("dialect", "source", "logical", "here", "made"),
    [
        (POSTGRES, "bigint(20)", INTEGER, "integer", "bigint"),
        (POSTGRES, "int(10) unsigned", INTEGER, "integer", "bigint"),
        (POSTGRES, "bigint(20) unsigned", INTEGER, "bigint", "numeric(20)"),
        (POSTGRES, "decimal(12,4)", DECIMAL, "numeric(10,2)", "numeric(12, 4)"),
        (POSTGRES, "decimal(10,4)", DECIMAL, "numeric(10,2)", "numeric(12, 4)"),
        (POSTGRES, "numeric", DECIMAL, "numeric(10,2)", "numeric"),
        (POSTGRES, "varchar(40)", TEXT, "character varying(10)", "text"),
        (POSTGRES, "double", F64, "real", "double precision"),
        (MARIADB, "bigint", INTEGER, "int(11)", "bigint"),
        (MARIADB, "character varying(40)", TEXT, "varchar(10)", "varchar(40)"),
        (MARIADB, "text", TEXT, "varchar(10)", "longtext"),
        (MARIADB, "numeric(12,4)", DECIMAL, "decimal(10,2)", "decimal(12,4)"),
        (MARIADB, "double precision", F64, "float", "double"),
        (MARIADB, "bigint unsigned", INTEGER, "int(10) unsigned", "bigint unsigned"),
    ],
)
def test_a_column_here_needs_a_wider_type(
    dialect: Dialect, source: str, logical: LogicalType, here: str, made: str
) -> None:
    assert wider(dialect, source, logical, here) == made
    assert wider(dialect, source, logical, made) == ""  # and then it has it
    assert wider(dialect, source, logical, here, retypes=False) == ""


@pytest.mark.parametrize(
    ("dialect", "source", "logical", "here"),
    [
        (POSTGRES, "int(11)", INTEGER, "integer"),
        (POSTGRES, "int(11)", INTEGER, "bigint"),
        (POSTGRES, "decimal(8,2)", DECIMAL, "numeric(10,2)"),
        (POSTGRES, "varchar(40)", TEXT, "text"),
        (POSTGRES, "float", F32, "double precision"),
        (POSTGRES, "bigint(20)", INTEGER, "text"),
        (POSTGRES, "bigint(20)", INTEGER, "a_domain"),
        (POSTGRES, "INTEGER", ANY, "smallint"),
        (MARIADB, "text", TEXT, "text"),
        (MARIADB, "bigint(20)", INTEGER, "int(10) unsigned"),
        (MARIADB, "int(10) unsigned", INTEGER, "int(11)"),
        (MARIADB, "numeric", DECIMAL, "decimal(10,2)"),
        (MARIADB, "numeric(80,2)", DECIMAL, "decimal(10,2)"),
        (SQLITE, "bigint(20)", INTEGER, "INTEGER"),
    ],
)
def test_a_column_here_stays_as_it_is(dialect: Dialect, source: str, logical: LogicalType, here: str) -> None:
    """It holds all that; or none is known that does; or SQLite says it, whose columns hold numbers of any size."""
    assert wider(dialect, source, logical, here) == ""


def test_a_table_that_keeps_old_versions_gets_no_columns() -> None:
    """The server's own period is not among its columns; the refusal that says what to do comes after this."""
    names = ("id", "row_start", "row_end")
    versioned = table("t", *[column(name, INTEGER, "int(11)") for name in names])
    there = TargetTable(
        columns={"id": TargetColumn(name="id", type_name="int", category="integer", declared="int(11)")},
        unique=frozenset(),
        place="",
        period=frozenset({"row_start", "row_end"}),
    )
    assert behind(MARIADB, versioned, there, lambda: None) == Behind()


A, B, C, D = (("s", name) for name in "abcd")
UNCHECKED = "SET STATEMENT foreign_key_checks = 0 FOR "


@pytest.mark.parametrize(
    ("references", "wanted"),
    [
        ([], "a b c"),
        ([(B, A), (C, B)], "c b a"),
        ([(D, A), (A, D)], "a b c"),  # of another table, and to it: the server judges
        ([(A, A)], "b c !a"),
        ([(A, B), (B, A)], "c !a !b"),
        ([(A, B), (B, A), (B, C)], "!a !b !c"),
        ([(A, A), (D, B), (B, B)], "c !a b"),
        ([(A, A), (D, A)], "b c a"),
    ],
)
def test_tables_are_emptied_in_an_order_that_their_foreign_keys_take(
    references: list[tuple[TableName, TableName]], wanted: str
) -> None:
    """In a circle no key is checked, unless a table that keeps its rows refers to one of it."""
    found = emptying(MARIADB, (A, B, C), references)
    names = [sql.replace(UNCHECKED, "!").replace("DELETE FROM `s`.", "").replace("`", "") for sql in found]
    assert " ".join(names) == wanted


def test_one_statement_empties_tables_where_keys_are_checked_at_its_end() -> None:
    assert emptying(POSTGRES, [A], ()) == ['DELETE FROM "s"."a"']
    assert emptying(POSTGRES, [A, B], ()) == ['WITH emptied_0 AS (DELETE FROM "s"."a") DELETE FROM "s"."b"']

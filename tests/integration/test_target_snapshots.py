"""Snapshots that a target holds for a verification: what is written behind one is not in it.

Proves: rows are those of the moment, while others write, and a table that was emptied or altered behind the snapshot is
refused and not taken for an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tranlog.change import Column, TableMap
from tranlog.errors import TargetError
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Target
from tranlog.types import LogicalType


def table_of(schema: str) -> TableMap:
    columns = tuple([Column(name=name, source_type="bigint", logical=LogicalType.INTEGER) for name in ("id", "n")])
    return TableMap(schema=schema, table="item", columns=columns, primary_key=(0,))


@pytest.fixture(params=["sqlite", "mariadb", "postgres"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TargetOptions, TableMap]:
    value = request.getfixturevalue
    if request.param == "sqlite":
        return TargetOptions(kind="sqlite", path=str(tmp_path / "target.db")), table_of("main")
    if request.param == "mariadb":
        database = value("mariadb_target_database")
        return TargetOptions(kind="mariadb", dsn=value("mariadb_target").dsn(database)), table_of(database)
    return TargetOptions(kind="postgres", dsn=value("postgres").dsn(value("postgres_database"))), table_of("public")


@pytest.fixture
def both(options: tuple[TargetOptions, TableMap]) -> Iterator[tuple[Target, Target, TableMap]]:
    """One that writes, one that holds a snapshot of three rows."""
    made, table = options
    with closing(open_target(made)) as writer, closing(open_target(made)) as reader:
        writer.rows.create_table(table)
        run(writer, "INSERT INTO item VALUES (1, 1), (2, 2), (3, 3)")
        reader.rows.hold_snapshot()
        yield writer, reader, table


def run(target: Target, sql: str) -> None:
    target.rows.session.run(sql)  # type: ignore[attr-defined]


@pytest.mark.integration
def test_what_is_written_behind_a_snapshot_is_not_in_it(both: tuple[Target, Target, TableMap]) -> None:
    writer, reader, table = both
    run(writer, "DELETE FROM item WHERE id = 1")
    rows = reader.rows.read(table)
    first = next(rows)
    run(writer, "UPDATE item SET n = 7")
    run(writer, "INSERT INTO item VALUES (4, 4)")
    assert sorted([first, *rows]) == [(1, 1), (2, 2), (3, 3)]  # type: ignore[type-var]
    assert sorted(reader.rows.read(table)) == [(1, 1), (2, 2), (3, 3)]  # type: ignore[type-var]


@pytest.mark.integration
def test_a_table_that_was_emptied_behind_a_snapshot_is_no_empty_one(both: tuple[Target, Target, TableMap]) -> None:
    writer, reader, table = both
    if writer.kind == "sqlite":
        run(writer, "DELETE FROM item")
        assert len(list(reader.rows.read(table))) == 3
        return
    assert len(list(reader.rows.read(table))) == 3
    run(writer, "TRUNCATE TABLE item")  # which waits for no lock of the snapshot's
    with pytest.raises(TargetError, match=r"emptied or rewritten|definition has changed"):
        list(reader.rows.read(table))

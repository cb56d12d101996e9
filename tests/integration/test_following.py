"""Tables at the target that follow the source's, and what each change of a table comes to: docs/following.md.

With `TRANLOG_WRITE_DOCS=1` in front of pytest this file writes the page anew.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pytest

from fix_mariadb_source import options_for, run
from fix_pipeline import run_threads, take, tasks_for
from fix_postgres_source import options_for as postgres_options
from fix_postgres_source import run as postgres_run
from fix_target import (
    ID,
    INTEGER,
    ITEMS,
    MOVES,
    PIPELINE,
    TEXT,
    Bench,
    claim_again,
    column,
    content,
    delete,
    insert,
    session_of,
    unit_of,
)
from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import LoadRequest, ask, give_order, read_requests
from tranlog.change import Change, Column, Fragment, Op, Options, RowChange, Statement, TableMap
from tranlog.errors import ConflictError, DdlStopError, TargetTableError, TranlogError
from tranlog.ids import Gtid, Seqno
from tranlog.loads import LoadChunk, mark_of
from tranlog.log.writing.log import Log
from tranlog.payload import decode
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.source import sqlite
from tranlog.source.kinds import SourceOptions, source_kind
from tranlog.source.mariadb import MariadbSourceOptions
from tranlog.source.sqlite import SqliteSourceOptions
from tranlog.table_notes import held_here, notes_of
from tranlog.target.database import SqlRows
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import LoadUnit, Target
from tranlog.testing.servers import MariaDbServer, PostgresAddress, PostgresServer
from tranlog.types import F32, EnumLabel, LogicalType, Value

pytestmark = pytest.mark.integration

PAGE: Final = Path(__file__).parents[2] / "docs" / "following.md"
WRITE: Final = "TRANLOG_WRITE_DOCS"
TARGETS: Final = ("sqlite", "postgres", "mariadb")
DDL: Final = ("stop", "ignore", "follow")
NOTE = column("note", TEXT, "varchar(20)", length=20)


@pytest.fixture
def targets(
    tmp_path: Path,
    postgres: PostgresAddress,
    postgres_database: str,
    mariadb_target: MariaDbServer,
    mariadb_target_database: str,
) -> dict[str, TargetOptions]:
    return {
        "sqlite": TargetOptions(kind="sqlite", path=str(tmp_path / "target.db")),
        "postgres": TargetOptions(kind="postgres", dsn=postgres.dsn(postgres_database)),
        "mariadb": TargetOptions(kind="mariadb", dsn=mariadb_target.dsn(mariadb_target_database)),
    }


def columns_of(target: Target, of: TableMap) -> list[str]:
    """Return the names of a table's columns here; none where it is not there."""
    with suppress(Exception):
        return list(session_of(target).table(of).columns)
    return []


def shape_of(target: Target, of: TableMap) -> list[tuple[str, str, bool]]:
    """Return what a table's columns are here: name, type, whether NULL is refused by word; none where it is not."""
    with suppress(Exception):
        return [(one.name, one.declared, one.loosens) for one in session_of(target).table(of).columns.values()]
    return []


def with_columns(of: TableMap, *columns: Column) -> TableMap:
    return msgspec.structs.replace(of, columns=columns)


def replace_name(of: TableMap, name: str) -> TableMap:
    return msgspec.structs.replace(of, table=name)


# --- what following does, step by step ---------------------------------------------------------------------


@pytest.fixture(params=TARGETS)
def following(request: pytest.FixtureRequest, targets: dict[str, TargetOptions]) -> Iterator[Bench]:
    bench = Bench(replace(targets[request.param], ddl="follow"))
    yield bench
    bench.close()


def test_a_table_is_made_by_its_first_change(following: Bench) -> None:
    """Its rows and the position come after it, in one target transaction; what has no row yet is not made."""
    other = replace_name(ITEMS, "other")
    applied = following.apply([insert(ITEMS, (1, "a", 1)), insert(other, (2, "b", 2))], [insert(ITEMS, (3, "c", None))])
    assert applied.changes == 3 and following.stored_seqno() == 1
    assert following.rows(ITEMS) == content([(1, "a", 1), (3, "c", None)])
    assert following.rows(other) == content([(2, "b", 2)])
    assert not columns_of(following.target, replace_name(ITEMS, "third"))


def test_a_table_that_somebody_dropped_is_not_made_anew(following: Bench) -> None:
    """Its next row would begin it without the others, and nobody be told. What the source renamed may begin anew."""

    def drop() -> None:
        assert isinstance(following.target.rows, SqlRows)
        following.session.run_script(f"DROP TABLE {following.target.rows.dialect.table_name(ITEMS)}")
        following.target.rows.discard()

    following.apply([insert(ITEMS, (1, "a", 1))])
    drop()
    with pytest.raises(TargetTableError, match=r"\(seqno 1\): it had rows of the source, and there is no such table"):
        following.apply([insert(ITEMS, (2, "b", 2))])
    following.target.rows.create_table(ITEMS)
    following.apply([insert(ITEMS, (2, "b", 2))])
    following.apply([said("ALTER TABLE items RENAME TO sold")], metadata=of_another_kind(following))
    following.apply([insert(ITEMS, (3, "c", 3))])
    assert following.rows(ITEMS) == content([(3, "c", 3)])
    drop()
    begun = msgspec.structs.replace(unit_of(following.applied + 1, ()), load=LoadUnit(states=(), begun=(ITEMS,)))
    following.target.apply([begun], following.advance(1))
    following.applied = Seqno(following.applied + 1)
    following.apply([insert(ITEMS, (4, "d", 4))])
    assert following.rows(ITEMS) == content([(4, "d", 4)])


def test_a_kill_after_a_table_was_made_leaves_it_empty(following: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt goes on with it: once, and whole."""
    assert isinstance(following.target.rows, SqlRows)
    make = SqlRows._make

    class KilledError(Exception):
        pass

    def killed(self: SqlRows, of: TableMap, statements: Sequence[str]) -> None:
        make(self, of, statements)
        raise KilledError

    monkeypatch.setattr(SqlRows, "_make", killed)
    with pytest.raises(KilledError):
        following.apply([insert(ITEMS, (1, "a", 1))])
    monkeypatch.undo()
    assert following.stored_seqno() == -1
    with closing(open_target(following.options)) as again:
        assert columns_of(again, ITEMS) == ["id", "name", "n"]
    following.apply([insert(ITEMS, (1, "a", 1))])
    assert following.rows(ITEMS) == content([(1, "a", 1)])


def test_two_channels_make_one_table(following: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes second finds it made, or the column added, between its look and its statement."""
    make = SqlRows._make

    def overtaken(self: SqlRows, of: TableMap, statements: Sequence[str]) -> None:
        with closing(open_target(following.options)) as other:
            assert isinstance(other.rows, SqlRows)
            make(other.rows, of, statements)
        make(self, of, statements)

    monkeypatch.setattr(SqlRows, "_make", overtaken)
    following.apply([insert(ITEMS, (1, "a", 1))])
    assert following.rows(ITEMS) == content([(1, "a", 1)])
    following.apply([delete(ITEMS, (1, "a", 1))])
    wider = with_columns(ITEMS, *ITEMS.columns, NOTE)
    following.apply([insert(wider, (1, "a", 1, "x"))])
    assert following.rows(wider) == content([(1, "a", 1, "x")])


def test_a_column_takes_null_where_the_source_has_it(following: Bench) -> None:
    """With the rows that are here. What the primary key has stays, and so does a default that would be lost."""
    strict = with_columns(ITEMS, ID, *[msgspec.structs.replace(one, nullable=False) for one in ITEMS.columns[1:]])
    following.target.rows.create_table(strict)
    following.apply([insert(strict, (1, "a", 1))])
    loose = with_columns(ITEMS, msgspec.structs.replace(ID, nullable=True), *ITEMS.columns[1:])
    if following.target.kind == "sqlite":
        with pytest.raises(ConflictError, match="NOT NULL"):
            following.apply([insert(loose, (2, None, None))])
        return
    following.apply([insert(loose, (2, None, None))])
    assert following.rows(loose) == content([(1, "a", 1), (2, None, None)])
    assert not any(refuses for _, _, refuses in shape_of(following.target, loose))
    if following.target.kind == "mariadb":
        told = with_columns(replace_name(ITEMS, "told"), *strict.columns)
        following.target.rows.create_table(told)
        session_of(following.target).run("ALTER TABLE shop.told MODIFY COLUMN n INT NOT NULL DEFAULT 7")
        with pytest.raises(ConflictError, match="cannot be null"):
            following.apply([insert(with_columns(told, *loose.columns), (2, None, None))])


def test_a_column_gets_a_wider_type(following: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """With the rows that are here; where that cannot be, it stays, that is said, and values that fit go in."""
    small = with_columns(ITEMS, ID, NAME, column("n", INTEGER, "smallint"))
    large = with_columns(ITEMS, ID, NAME, column("n", INTEGER, "bigint"))
    following.target.rows.create_table(small)
    following.apply([insert(small, (1, "a", 1))])
    following.apply([insert(large, (2, "b", 1 << 40))])
    assert following.rows(large) == content([(1, "a", 1), (2, "b", 1 << 40)])
    if following.target.kind == "sqlite":
        return
    assert "bigint" in [declared.partition("(")[0] for _, declared, _ in shape_of(following.target, ITEMS)]
    bound = {
        "postgres": "CREATE VIEW shop.seen AS SELECT n FROM shop.bound",
        "mariadb": "ALTER TABLE shop.bound MODIFY COLUMN n SMALLINT DEFAULT 7",
    }
    small, large = replace_name(small, "bound"), replace_name(large, "bound")
    following.target.rows.create_table(small)
    session_of(following.target).run(bound[following.target.kind])
    following.apply([insert(large, (1, "a", 1))])
    with pytest.raises(ConflictError, match=r"shop\.bound"):
        following.apply([insert(large, (2, "b", 1 << 40))])
    assert following.rows(large) == content([(1, "a", 1)])
    assert ("used by a view" in caplog.text) == (following.target.kind == "postgres")


def test_a_column_is_added_while_there_are_no_rows(following: Bench) -> None:
    """With rows, nobody knows what it holds in them: that stops, with the statement and the command that go on."""
    wider = with_columns(ITEMS, *ITEMS.columns, NOTE)
    following.target.rows.create_table(ITEMS)
    following.apply([insert(wider, (1, "a", 1, "x"))])
    assert following.rows(wider) == content([(1, "a", 1, "x")])
    widest = with_columns(wider, *wider.columns, column("more", INTEGER, "int(11)"))
    with pytest.raises(TargetTableError, match=r"seqno 1\): column more is missing.*tranlog load --replace") as stopped:
        following.apply([insert(widest, (2, "b", 2, "y", 7))])
    session_of(following.target).run(stopped.value.remedy.partition(" here")[0])
    following.apply([insert(widest, (2, "b", 2, "y", 7))])
    assert following.rows(widest) == content([(1, "a", 1, "x", None), (2, "b", 2, "y", 7)])


def test_a_table_that_cannot_be_made_stops(following: Bench) -> None:
    """And is tried once."""
    two = with_columns(replace_name(ITEMS, "two"), ID, ID)
    with pytest.raises(TargetTableError, match=r"shop\.two: it cannot be made"):
        following.apply([insert(two, (1, 1))])
    assert following.stored_seqno() == -1


def test_what_a_look_before_a_start_says(following: Bench) -> None:
    """A table that will be made is nothing wrong, one that cannot follow is."""
    following.target.rows.check_table(ITEMS)
    following.apply([insert(ITEMS, (1, "a", 1))])
    following.target.rows.check_table(ITEMS)
    with pytest.raises(TargetTableError, match="column note is missing"):
        following.target.rows.check_table(with_columns(ITEMS, *ITEMS.columns, NOTE))


OF_MARIADB, OF_SQLITE = (("dbms_type", "mariadb"),), (("dbms_type", "sqlite"),)


def said(sql: str, **more: object) -> Statement:
    return Statement(schema="shop", sql=sql, ddl=True, **more)  # type: ignore[arg-type]


def of_another_kind(bench: Bench) -> Options:
    """Metadata of a source whose statements a bench's target does not run."""
    return OF_SQLITE if bench.target.kind == "mariadb" else OF_MARIADB


def test_names_follow_a_statement(following: Bench) -> None:
    """Rows stay; names that no server takes plainly are quoted, and the case of a column's name is no matter."""
    labelled = with_columns(ITEMS, ID, msgspec.structs.replace(NAME, name='Order "by`'), N)
    moved = replace_name(labelled, "sold items")
    following.apply([insert(ITEMS, (1, "a", 1))])
    column, name = '"Order ""by`"', '"sold items"'
    following.apply([said(f"ALTER TABLE items RENAME COLUMN NAME TO {column}")], metadata=of_another_kind(following))
    following.apply([insert(labelled, (2, "b", 2))])
    following.apply([said(f"ALTER TABLE `shop`.items RENAME TO {name}")], metadata=of_another_kind(following))
    following.apply([insert(moved, (3, "c", 3))])
    assert following.rows(moved) == content([(1, "a", 1), (2, "b", 2), (3, "c", 3)])
    assert not columns_of(following.target, ITEMS)


def test_a_table_that_is_not_here_yet_is_renamed_by_its_first_row(following: Bench) -> None:
    following.apply([said("ALTER TABLE items RENAME TO sold")], metadata=of_another_kind(following))
    sold = replace_name(ITEMS, "sold")
    following.apply(
        [said("ALTER TABLE sold RENAME COLUMN a TO b"), insert(sold, (1, "a", 1))], metadata=of_another_kind(following)
    )
    assert following.rows(sold) == content([(1, "a", 1)])


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("ALTER TABLE items RENAME COLUMN name TO n", "there is a column n here already"),
        ("ALTER TABLE items RENAME TO moves", "there is a table shop.moves here already"),
        ("ALTER TABLE items RENAME COLUMN name TO label, DROP PRIMARY KEY", "and this target is"),
    ],
)
def test_a_name_that_is_taken_here_stops(following: Bench, sql: str, why: str) -> None:
    for one in (ITEMS, replace_name(ITEMS, "moves")):
        following.apply([insert(one, (1, "a", 1))])
    with pytest.raises(DdlStopError, match=f"seqno 2, statement 'ALTER TABLE items .*{why}"):
        following.apply([said(sql)], metadata=of_another_kind(following))
    assert following.rows(ITEMS) == content([(1, "a", 1)])


def test_a_name_that_has_followed_is_not_changed_again(following: Bench) -> None:
    """Exactly once: what stands after it does not fit, so its target transaction comes again. A swap would undo itself.

    At a MariaDB the DDL is done by then, and noted; elsewhere it is taken back with the rest.
    """
    other = replace_name(ITEMS, "other")
    following.apply([insert(ITEMS, (1, "item", 1)), insert(other, (1, "other", 1))])
    swap = [
        said(f"ALTER TABLE {old} RENAME TO {new}")
        for old, new in (("items", "third"), ("other", "items"), ("third", "other"))
    ]
    for _ in range(2):
        with pytest.raises(ConflictError):
            following.apply([*swap, delete(ITEMS, (7, "none", 7))], metadata=of_another_kind(following))
        committed = following.target.kind == "mariadb"
        assert following.rows(ITEMS) == content([(1, "other" if committed else "item", 1)])
        following.target.reconnect()
        claim_again(following)
    following.apply(swap, metadata=of_another_kind(following))
    assert following.rows(ITEMS) == content([(1, "other", 1)])
    assert following.rows(other) == content([(1, "item", 1)])


def noted(bench: Bench) -> list[str]:
    """Return what `status` says of what is held."""
    return list(held_here(notes_of(bench.target.positions.read_loads(PIPELINE))))


MORE_STRICT = with_columns(ITEMS, ID, *[msgspec.structs.replace(one, nullable=False) for one in ITEMS.columns[1:]])
LESS = with_columns(ITEMS, *ITEMS.columns[:2])


def test_a_dropped_column_is_held(following: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """With its values; it takes NULL from then on where the kind can do that. It is said, and stops a new one."""
    sqlite = following.target.kind == "sqlite"
    strict = ITEMS if sqlite else MORE_STRICT
    following.target.rows.create_table(strict)
    following.apply([insert(strict, (1, "a", 1))])
    of = of_another_kind(following)
    following.apply([said("ALTER TABLE items DROP N")], metadata=of)
    following.apply([insert(LESS, (2, "b"))])
    assert following.rows(ITEMS) == content([(1, "a", 1), (2, "b", None)])
    assert noted(following) == ["shop.items: column n was dropped at the source at seqno 1, and stays here"]
    assert "the column n stays" in caplog.text
    way_on = r"and all other changes of its transaction \(.*\), then `tranlog position set \d+`$"
    with pytest.raises(DdlStopError, match=rf"a column n that the source dropped is still here.*{way_on}"):
        following.apply([said("ALTER TABLE items ADD n INT")], metadata=of)
    following.apply([said("ALTER TABLE items RENAME TO sold")], metadata=of)
    assert noted(following) == ["shop.sold: column n was dropped at the source at seqno 1, and stays here"]


@pytest.mark.parametrize("sql", ["ALTER TABLE items DROP n", "DROP TABLE items", "ALTER TABLE items MODIFY n TINYINT"])
def test_what_loses_data_stops_by_the_option(
    following: Bench, sql: str, open_bench: Callable[[TargetOptions], Bench]
) -> None:
    if following.target.kind == "mariadb" and "MODIFY" in sql:
        return  # only a MariaDB has that statement
    following.apply([insert(ITEMS, (1, "a", 1))])
    following.target.positions.forget(pipeline=PIPELINE, token=following.driver_token)
    for loss in ("stop", "ignore"):
        bench = open_bench(replace(following.options, ddl_loss=loss))  # type: ignore[arg-type]
        if loss == "stop":
            with pytest.raises(DdlStopError, match=r'ddl_loss = "stop" does not pass over that'):
                bench.apply([said(sql)], metadata=of_another_kind(bench))
        else:
            shape = shape_of(bench.target, ITEMS)
            bench.apply([said(sql)], metadata=of_another_kind(bench))
            assert shape_of(bench.target, ITEMS) == shape and len(noted(bench)) == 1
        assert bench.rows(ITEMS) == content([(1, "a", 1)])
        bench.target.positions.forget(pipeline=PIPELINE, token=bench.driver_token)


def test_a_dropped_table_is_held_until_a_new_one_comes(following: Bench) -> None:
    """Then it stops: their rows would mix. Out of the way, the new one is made."""
    following.apply([insert(ITEMS, (1, "a", 1))])
    of = of_another_kind(following)
    for sql in ("DROP TABLE items", "CREATE TABLE IF NOT EXISTS items (id INT)"):
        following.apply([said(sql)], metadata=of)
    assert noted(following) == ["shop.items was dropped at the source at seqno 1, and stays here"]
    with pytest.raises(TargetTableError, match=r"the source dropped it at seqno 1.*rows of a new one come") as stopped:
        following.apply([insert(ITEMS, (1, "b", 1))])
    session_of(following.target).run(stopped.value.remedy.partition(" here")[0])
    following.apply([insert(ITEMS, (1, "b", 1))])
    following.target.reconnect()
    claim_again(following)
    following.apply([insert(ITEMS, (2, "c", 1))])
    assert following.rows(ITEMS) == content([(1, "b", 1), (2, "c", 1)]) and not noted(following)


def test_a_column_that_is_null_in_every_row_is_added_by_the_next(following: Bench) -> None:
    """Under the name that it has by then, after a restart in between; a look before that start finds nothing wrong."""
    following.apply([insert(ITEMS, (1, "a", 1))])
    of = of_another_kind(following)
    for sql in ("ADD COLUMN Remark VARCHAR(20)", "RENAME COLUMN remark TO note", "RENAME TO items", "RENAME TO sold"):
        following.apply([said(f"ALTER TABLE items {sql}")], metadata=of)
    sold = with_columns(replace_name(ITEMS, "sold"), *ITEMS.columns, NOTE)
    assert columns_of(following.target, sold) == ["id", "name", "n"]
    with closing(open_target(following.options)) as look:
        look.rows.check_table(sold)
    following.target.reconnect()
    claim_again(following)
    following.apply([insert(sold, (2, "b", 2, "x"))])
    assert following.rows(sold) == content([(1, "a", 1, None), (2, "b", 2, "x")])


def test_a_column_with_a_literal_default_is_added_with_it(following: Bench) -> None:
    """Rows that were there have it as at the source; no default stays where the kind can take it back."""
    following.apply([insert(ITEMS, (1, "a", 1)), insert(ITEMS, (2, "b", 2))])
    of = of_another_kind(following)
    more = "ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'it''s', ADD COLUMN Pieces INT DEFAULT -5"
    following.apply([said(f"ALTER TABLE items {more}")], metadata=of)
    following.apply([said("ALTER TABLE items RENAME COLUMN pieces TO many")], metadata=of)
    strict = column("note", TEXT, "varchar(20)", length=20, nullable=False)
    wider = with_columns(ITEMS, *ITEMS.columns, strict, column("many", INTEGER, "int(11)"))
    following.target.reconnect()
    claim_again(following)
    following.apply([RowChange(wider, Op.UPDATE, (1, "a", 1, "it's", -5), (1, "c", 1, "y", None))])
    assert following.rows(wider) == content([(1, "c", 1, "y", None), (2, "b", 2, "it's", -5)])
    following.apply([insert(wider, (3, "d", 3, "z", 7))])
    if following.target.kind != "sqlite":
        here = following.target.rows.session.table(wider)  # type: ignore[attr-defined]
        assert all(here.columns[name].retypes for name in ("note", "many"))


def test_a_check_of_a_column_that_follows_stays(targets: dict[str, TargetOptions]) -> None:
    """MariaDB forgets it with a MODIFY that does not repeat it."""
    with closing(Bench(replace(targets["mariadb"], ddl="follow"))) as bench:
        bench.session.run("CREATE DATABASE shop")
        bench.session.run("CREATE TABLE shop.items (id int PRIMARY KEY, name json NOT NULL, n tinyint CHECK (n > 0))")
        bench.apply([insert(ITEMS, (1, None, 1000))])
        for wrong in ((2, None, 0), (2, "{", 1)):
            with pytest.raises(ConflictError, match="CONSTRAINT"):
                bench.apply([insert(ITEMS, wrong)])


@pytest.mark.parametrize(
    "sql",
    [
        "ADD COLUMN note VARCHAR(20) DEFAULT (lower('X'))",
        "ADD COLUMN note VARCHAR(20) DEFAULT 5",
        "ADD COLUMN note INT DEFAULT 5; MODIFY note VARCHAR(20)",
        "ADD COLUMN note VARCHAR(20) DEFAULT 'x'; DROP COLUMN note",
    ],
)
def test_a_column_that_is_filled_stops_at_the_next_row(following: Bench, sql: str) -> None:
    following.apply([insert(ITEMS, (1, "a", 1))])
    for one in sql.split("; "):
        following.apply([said(f"ALTER TABLE items {one}")], metadata=of_another_kind(following))
    with pytest.raises(TargetTableError, match="column note is missing"):
        following.apply([insert(with_columns(ITEMS, *ITEMS.columns, NOTE), (2, "b", 2, "x"))])


def test_a_sqlite_does_not_tell_the_case_of_a_tables_name(following: Bench) -> None:
    if following.target.kind == "sqlite":
        return
    following.apply([insert(replace_name(ITEMS, "Items"), (1, "a", 1))])
    following.apply([said("ALTER TABLE ITEMS RENAME TO sold")], metadata=OF_SQLITE)
    assert following.rows(replace_name(ITEMS, "sold")) == content([(1, "a", 1)])


# --- TRUNCATE ----------------------------------------------------------------------------------------------


def truncated(bench: Bench, names: str, then: Sequence[Change] = (), **more: object) -> None:
    """Apply a TRUNCATE of a source of another kind, and changes after it, as one transaction."""
    of = "mariadb" if bench.target.kind == "postgres" else "postgres"
    statement = Statement(schema="shop", sql=f"TRUNCATE TABLE {names}", ddl=False, **more)  # type: ignore[arg-type]
    bench.apply([statement, *then], metadata=(("dbms_type", of),))


OTHER = replace_name(ITEMS, "Or ders")


def test_a_truncate_empties_tables_in_the_target_transaction(following: Bench) -> None:
    """With rows before and after it; one that is not here has none. Taken back with what does not fit, and once."""
    both = content([(1, "a", 1)])
    following.apply([insert(ITEMS, (1, "a", 1)), insert(OTHER, (1, "a", 1)), insert(MOVES, (1, "a", 1))])
    for then in ([delete(ITEMS, (7, "none", 7))], [insert(ITEMS, (1, "b", 1))] * 2):
        with pytest.raises(ConflictError):
            truncated(following, 'items, "Or ders", none', then)
        assert following.rows(ITEMS) == following.rows(OTHER) == both
        following.target.reconnect()
        claim_again(following)
    truncated(following, 'items, "shop"."Or ders", none RESTART IDENTITY CASCADE', [insert(ITEMS, (1, "b", 2))])
    assert following.rows(ITEMS) == content([(1, "b", 2)]) and not following.rows(OTHER)
    assert following.rows(MOVES) == both and following.stored_seqno() == 1
    following.target.reconnect()
    claim_again(following)
    following.apply([insert(OTHER, (1, "c", 1)), delete(ITEMS, (1, "b", 2))])
    assert not following.rows(ITEMS) and following.rows(OTHER) == content([(1, "c", 1)])


def test_rows_before_a_truncate_in_its_transaction_go_with_it(following: Bench) -> None:
    """A PostgreSQL source has such transactions, and a pipeline may collapse the changes of a key."""
    for net_effect in (False, True):
        following.target.rows.options = replace(following.options, net_effect=net_effect)  # type: ignore[attr-defined]
        statement = Statement(schema="shop", sql='TRUNCATE TABLE "shop"."items"', ddl=False)
        of = "mariadb" if following.target.kind == "postgres" else "postgres"
        changes: list[Change] = [insert(ITEMS, (1, "a", 1)), statement, insert(ITEMS, (1, "b", 1)), statement]
        following.apply([*changes, insert(ITEMS, (1, "c", 1))], metadata=(("dbms_type", of),))
        assert following.rows(ITEMS) == content([(1, "c", 1)])
        following.apply([delete(ITEMS, (1, "c", 1))])


def test_a_truncate_is_no_loss_by_the_schema(
    targets: dict[str, TargetOptions], open_bench: Callable[[TargetOptions], Bench]
) -> None:
    for options in targets.values():
        bench = open_bench(replace(options, ddl="follow", ddl_loss="stop"))
        bench.apply([insert(ITEMS, (1, "a", 1))])
        truncated(bench, "items")
        assert not bench.rows(ITEMS)


def test_a_table_that_the_source_dropped_keeps_its_rows(following: Bench) -> None:
    """The TRUNCATE is of the new one, which has no row here."""
    if following.target.kind != "postgres":
        return  # of what is not PostgreSQL only a MariaDB has both statements, and it is no source of another kind
    following.apply([insert(ITEMS, (1, "a", 1))])
    following.apply([said("DROP TABLE items")], metadata=OF_MARIADB)
    following.apply([said("CREATE TABLE IF NOT EXISTS items (id INT)")], metadata=OF_MARIADB)
    truncated(following, "items")
    assert following.rows(ITEMS) == content([(1, "a", 1)]) and len(noted(following)) == 1


def test_a_column_of_which_nothing_is_known_follows_once_the_rows_are_gone(following: Bench) -> None:
    following.apply([insert(ITEMS, (1, "a", 1))])
    wider = with_columns(ITEMS, *ITEMS.columns, NOTE)
    truncated(following, "items", [insert(wider, (1, "a", 1, "x"))])
    assert following.rows(wider) == content([(1, "a", 1, "x")])


def refer(bench: Bench, child: str, parent: str, rule: str = "") -> None:
    """Make a foreign key of the target's own, from the column n."""
    named = bench.target.rows.dialect.table_name  # type: ignore[attr-defined]
    child, parent = (named(replace_name(ITEMS, one)) for one in (child, parent))
    bench.session.run(f"ALTER TABLE {child} ADD FOREIGN KEY (n) REFERENCES {parent} (id) {rule}")


@pytest.mark.parametrize("rule", ["ON DELETE CASCADE", "ON DELETE SET NULL", ""])
def test_rows_of_other_tables_stand_against_a_truncate(following: Bench, rule: str) -> None:
    """None of them is lost; when they are gone the statement is carried out. SQLite checks no foreign keys here."""
    if following.target.kind == "sqlite":
        return
    lines = replace_name(ITEMS, "lines")
    following.apply([insert(ITEMS, (1, "a", None)), insert(ITEMS, (2, "b", 1)), insert(lines, (7, "x", 1))])
    for child in ("items", "lines"):
        refer(following, child, "items", rule)
    said = "foreign keys here would delete or change rows of shop.lines with it" if rule else "cannot be emptied here"
    why = rf"seqno 1, statement 'TRUNCATE TABLE items': .*{said}.*start again; .*other changes .*position set 1`"
    with pytest.raises(DdlStopError, match=why):
        truncated(following, "items")
    assert len(following.rows(ITEMS)) == 2 and following.rows(lines) == content([(7, "x", 1)])
    following.session.run("DELETE FROM shop.lines")
    if rule or following.target.kind == "postgres":
        truncated(following, "items")
        assert not following.rows(ITEMS)
        return
    with pytest.raises(DdlStopError, match="cannot be emptied here"):  # a MariaDB may not leave out its own key then
        truncated(following, "items")
    truncated(following, "items, lines")
    assert not following.rows(ITEMS)


@pytest.mark.parametrize("rule", ["", "ON DELETE CASCADE", "ON DELETE SET NULL"])
def test_tables_that_refer_to_each_other_are_emptied_together(following: Bench, rule: str) -> None:
    """In whatever order the statement names them, to themselves and in a circle."""
    if following.target.kind == "sqlite":
        return
    others = [replace_name(ITEMS, name) for name in ("lines", "parts")]
    following.apply([insert(one, (id, "a", id - 1 or None)) for one in (ITEMS, *others) for id in (1, 2, 3)])
    for child, parent in (("lines", "items"), ("parts", "lines")):
        refer(following, child, parent, rule)
    truncated(following, "items, lines, parts")
    for child, parent in (("items", "parts"), ("parts", "parts")):
        refer(following, child, parent, rule)
    rows = [insert(one, (1, "a", None)) for one in (ITEMS, *others)]
    circle = [RowChange(one, Op.UPDATE, (1, "a", None), (1, "a", 1)) for one in (ITEMS, *others)]
    following.apply([*rows, *circle, insert(others[1], (2, "b", 1))])
    truncated(following, "items, lines, parts", rows)
    assert all(following.rows(one) == content([(1, "a", None)]) for one in (ITEMS, *others))


def test_a_table_without_transactions_is_not_emptied(targets: dict[str, TargetOptions]) -> None:
    with closing(Bench(replace(targets["mariadb"], ddl="follow"))) as bench:
        bench.session.run("CREATE DATABASE shop")
        bench.session.run("CREATE TABLE shop.items (id int PRIMARY KEY) ENGINE = MyISAM")
        with pytest.raises(TargetTableError, match=r"shop\.items \(seqno 0\): its engine is MyISAM"):
            truncated(bench, "items")


# --- from real sources -------------------------------------------------------------------------------------


class Flow:
    """Tables of a real source, captured into a log and applied to a target of another kind that follows."""

    def __init__(self, options: SourceOptions, target: TargetOptions, log: Path) -> None:
        self.options, self.target, self.log = options, replace(target, ddl="follow"), log
        self.plan = ShardPlan(channels=2)
        with closing(open_target(self.target)) as opened:
            opened.positions.ensure_tables()

    def carry(self, load: LoadRequest | None = None) -> TranlogError | None:
        """Capture what is there, a load with it, and apply it; return what the pipeline ends with."""
        plan = self.plan
        kind = source_kind(self.options.kind)
        with closing(kind.open(self.options)) as source, Log.open(str(self.log), source_id="shop") as log:
            if load is not None:
                ask(str(self.log), load)
            Capture(source, log).catch_up(wait_s=1.0)
            until = log.last_seqno
        tasks = tasks_for(self.target, self.log, plan, take(self.target, plan), until=until)
        return next((one.error for one in run_threads(tasks) if one.error is not None), None)

    def assert_equal(self) -> None:
        """Hold the rows of both sides against each other."""
        with closing(source_kind(self.options.kind).tables(self.options)) as reader:
            wanted = {of: content(reader.rows(of)) for of in reader.tables()}
        with closing(open_target(self.target)) as target:
            assert {of: content(target.rows.read(of)) for of in wanted} == wanted != {}


FIRST = ("CREATE TABLE t (id INT PRIMARY KEY, n INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
LATER = (
    "ALTER TABLE t ADD COLUMN c INT DEFAULT 5",
    "ALTER TABLE t ADD COLUMN d VARCHAR(9) NOT NULL DEFAULT 'it''s'",
    "INSERT INTO t VALUES (3, 3, 7, 'y')",
    "UPDATE t SET n = 8 WHERE id = 1",
)
UNTOLD = ("ALTER TABLE t ADD COLUMN c NUMERIC DEFAULT 0.5", LATER[1].replace("it''s", "it "), *LATER[2:])
"""Other defaults are not carried."""


def test_rows_that_were_there_get_a_mariadbs_default(
    mariadb: MariaDbServer, mariadb_database: str, targets: dict[str, TargetOptions], tmp_path: Path
) -> None:
    options = options_for(mariadb, source_id="shop", databases=(mariadb_database,))
    flow = Flow(options, targets["postgres"], tmp_path / "log")
    run(mariadb, mariadb_database, *FIRST)
    assert flow.carry(LoadRequest(load="1", asked_at=0)) is None
    run(mariadb, mariadb_database, *LATER)
    assert flow.carry() is None
    flow.assert_equal()


def test_rows_that_were_there_get_a_sqlites_default(targets: dict[str, TargetOptions], tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    flow = Flow(SqliteSourceOptions(path=path, source_id="shop"), targets["mariadb"], tmp_path / "log")
    for statements in (FIRST, LATER):
        with closing(sqlite.connect(path)) as shop:
            for statement in statements:
                shop.execute(statement)
        assert flow.carry() is None
    flow.assert_equal()


def test_a_default_that_no_statement_tells_stops_and_a_load_brings_it(
    postgres_source: PostgresServer, postgres_source_database: str, targets: dict[str, TargetOptions], tmp_path: Path
) -> None:
    """A PostgreSQL source: the statement that the error names, then the load."""
    options = postgres_options(postgres_source, postgres_source_database, source_id="shop", identity="set")
    flow = Flow(options, targets["sqlite"], tmp_path / "log")
    postgres_run(postgres_source, postgres_source_database, *FIRST)
    assert flow.carry(LoadRequest(load="1", asked_at=0)) is None
    postgres_run(postgres_source, postgres_source_database, *UNTOLD)
    for name in "cd":
        error = flow.carry()
        assert isinstance(error, TargetTableError) and f"column {name} is missing" in str(error)
        assert error.remedy.endswith("`tranlog load --replace --tables public.t`")
        with closing(open_target(flow.target)) as target:
            session_of(target).run(error.remedy.partition(" here, and start again")[0])
    load = LoadRequest(load="2", tables=("public.t",), replace=True, asked_at=0)
    assert flow.carry(load) is None
    flow.assert_equal()


@dataclass
class Running:
    """A capture from a PostgreSQL that goes on, with a table of two rows at a target before its columns change."""

    flow: Flow
    run: Callable[..., None]
    catch_up: Callable[[], int]

    def apply(self, *statements: str) -> TranlogError | None:
        """Run these at the source, and return what the pipeline ends with."""
        self.run(*statements)
        until, plan = Seqno(self.catch_up()), ShardPlan(channels=2)
        tasks = tasks_for(self.flow.target, self.flow.log, plan, take(self.flow.target, plan), until=until)
        return next((one.error for one in run_threads(tasks) if one.error is not None), None)


@pytest.fixture
def running(
    postgres_source: PostgresServer, postgres_source_database: str, targets: dict[str, TargetOptions], tmp_path: Path
) -> Iterator[Running]:
    options = postgres_options(postgres_source, postgres_source_database, source_id="shop", identity="set")
    flow = Flow(options, targets["mariadb"], tmp_path / "log")
    postgres_run(postgres_source, postgres_source_database, *FIRST)
    with closing(source_kind("postgres").open(options)) as source, Log.open(str(flow.log), source_id="shop") as log:

        def catch_up() -> int:
            Capture(source, log).catch_up(wait_s=1.0)
            return log.last_seqno

        ask(str(flow.log), LoadRequest(load="1", asked_at=0))
        there = Running(flow, partial(postgres_run, postgres_source, postgres_source_database), catch_up)
        assert there.apply() is None
        yield there


def test_while_a_postgres_is_captured_its_catalogue_says_what_older_rows_hold(running: Running) -> None:
    assert running.apply(*LATER) is None
    running.flow.assert_equal()
    assert running.apply("ALTER TABLE t ADD COLUMN e TEXT", "UPDATE t SET e = 'new' WHERE id = 2") is None
    running.flow.assert_equal()


def test_what_a_postgres_did_while_capture_was_away_is_seen(
    postgres_source: PostgresServer,
    postgres_source_database: str,
    targets: dict[str, TargetOptions],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A column with a literal default; then a column's name and a table's that were another's; each once."""
    options = postgres_options(postgres_source, postgres_source_database, source_id="shop", identity="set")
    flow = Flow(options, targets["mariadb"], tmp_path / "log")
    at_source = partial(postgres_run, postgres_source, postgres_source_database)
    at_source(*FIRST)
    assert flow.carry(LoadRequest(load="1", asked_at=0)) is None
    at_source(*LATER)
    assert flow.carry() is None
    flow.assert_equal()
    assert "was another one's before" not in caplog.text
    for load, (statements, name) in enumerate(
        (
            (("ALTER TABLE t DROP COLUMN n", "ALTER TABLE t RENAME c TO n"), "column n of public.t"),
            (("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, n INT, d TEXT DEFAULT '')"), "public.t"),
        ),
        start=2,
    ):
        caplog.clear()
        at_source(*statements, f"INSERT INTO t (id, n) VALUES ({load * 10}, 1)")
        assert flow.carry() is None
        assert caplog.text.count(f"the name of {name} was another one's before") == 1
        assert flow.carry(LoadRequest(load=str(load), tables=("public.t",), replace=True, asked_at=0)) is None
        caplog.clear()
        at_source(f"INSERT INTO t (id, n) VALUES ({load * 10 + 1}, 1)")
        assert flow.carry() is None
        assert "was another one's before" not in caplog.text
        flow.assert_equal()


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t DROP COLUMN n", "ALTER TABLE t RENAME e TO n"),
        ("ALTER TABLE t RENAME n TO x", "ALTER TABLE t RENAME e TO n", "ALTER TABLE t RENAME x TO e"),
        ("ALTER TABLE t DROP COLUMN n", "ALTER TABLE t ADD COLUMN n INT"),
    ],
)
def test_a_name_that_another_column_had_at_a_postgres_is_a_gap_of_the_table(
    running: Running, caplog: pytest.LogCaptureFixture, statements: Sequence[str]
) -> None:
    """Older rows kept what the other column held, and nothing said so."""
    assert running.apply("ALTER TABLE t ADD COLUMN e INT", "UPDATE t SET e = n * 10") is None
    running.flow.assert_equal()
    assert "was another one's before" not in caplog.text
    assert running.apply(*statements, "UPDATE t SET id = 9 WHERE id = 1") is None
    assert re.search(r"the name of column [ne] of public\.t was another one's before", caplog.text)
    ask(str(running.flow.log), LoadRequest(load="2", tables=("public.t",), replace=True, asked_at=0))
    assert running.apply() is None
    running.flow.assert_equal()


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, n INT)"),
        ("ALTER TABLE t RENAME TO t_old", "ALTER TABLE t_new RENAME TO t"),
    ],
)
def test_a_name_that_another_table_had_at_a_postgres_is_a_gap_of_it(
    running: Running, caplog: pytest.LogCaptureFixture, statements: Sequence[str]
) -> None:
    """The other one's rows stayed at the target among its own, and nothing said so."""
    new = ("CREATE TABLE t_new (LIKE t INCLUDING ALL)", "ALTER TABLE t_new REPLICA IDENTITY FULL")
    assert running.apply(*new, "INSERT INTO t_new VALUES (7, 7)", "UPDATE t_new SET n = 8") is None
    running.flow.assert_equal()
    assert "was another one's before" not in caplog.text
    assert running.apply(*statements, "INSERT INTO t VALUES (9, 9)") is None
    assert "the name of public.t was another one's before" in caplog.text
    ask(str(running.flow.log), LoadRequest(load="2", tables=("public.t",), replace=True, asked_at=0))
    assert running.apply("DROP TABLE IF EXISTS t_new, t_old") is None
    running.flow.assert_equal()


def test_a_large_transaction_of_a_postgres_adds_a_column_and_fills_it(running: Running) -> None:
    assert running.apply("INSERT INTO t SELECT n, n FROM generate_series(10, 9000) n") is None
    running.run("BEGIN; ALTER TABLE t ADD COLUMN e TEXT; UPDATE t SET e = repeat('x', 200) WHERE id > 99; COMMIT")
    assert running.apply() is None
    running.flow.assert_equal()


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t RENAME COLUMN n TO e",),
        ("ALTER TABLE t ADD COLUMN e DOUBLE PRECISION DEFAULT random()",),
        ("ALTER TABLE t ADD COLUMN e NUMERIC DEFAULT 0.5",),
        ("ALTER TABLE t ADD COLUMN e INT DEFAULT 5", "ALTER TABLE t ALTER e DROP DEFAULT", "VACUUM FULL t"),
    ],
    ids=["renamed", "of each row", "no literal", "written anew"],
)
def test_where_a_postgres_catalogue_does_not_say_it_the_row_stops(
    running: Running, statements: tuple[str, ...]
) -> None:
    error = running.apply(*statements, "INSERT INTO t (id) VALUES (9)")
    assert isinstance(error, TargetTableError) and "column e is missing" in str(error)


PAIRS: Final = (("mariadb", "postgres"), ("mariadb", "sqlite"), ("postgres", "mariadb"), ("postgres", "sqlite"))


@dataclass
class Shop:
    """A MariaDB or PostgreSQL with tables that refer to each other, loaded into a target of another kind."""

    kind: str
    flow: Flow
    run: Callable[..., None]


@pytest.fixture
def shop(
    request: pytest.FixtureRequest, source: str, target: str, targets: dict[str, TargetOptions], tmp_path: Path
) -> Shop:
    names = ("mariadb", "mariadb_database") if source == "mariadb" else ("postgres_source", "postgres_source_database")
    server, database = (request.getfixturevalue(name) for name in names)
    there: SourceOptions = (
        options_for(server, source_id="shop", databases=(database,))
        if source == "mariadb"
        else postgres_options(server, database, source_id="shop", identity="set")
    )
    one = Shop(
        source,
        Flow(there, targets[target], tmp_path / "log"),
        partial(run if source == "mariadb" else postgres_run, server, database),
    )
    one.run(
        "CREATE TABLE area (id INT PRIMARY KEY, n INT)",
        "CREATE TABLE line (id INT PRIMARY KEY, up INT REFERENCES area (id))",
        "CREATE TABLE noted (a INT, b VARCHAR(20))",
        "INSERT INTO area VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO line VALUES (1, 1), (2, 1), (3, 2)",
        "INSERT INTO noted VALUES (1, 'x'), (1, 'x'), (2, NULL)",
    )
    assert one.flow.carry(LoadRequest(load="1", asked_at=0)) is None
    one.flow.assert_equal()
    return one


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_tables_that_a_source_empties_are_emptied(shop: Shop) -> None:
    """With rows of the same keys before and after it, and after a restart of capture and pipeline."""
    shop.run("INSERT INTO area VALUES (4, 4)", "INSERT INTO noted VALUES (3, 'y')")
    if shop.kind == "mariadb":
        shop.run("SET foreign_key_checks = 0", "TRUNCATE TABLE area WAIT 5", "truncate /* both */ `line`")
        shop.run("TRUNCATE noted")
    else:
        again = "INSERT INTO area VALUES (1, 5); INSERT INTO line VALUES (9, 1)"
        shop.run(f"BEGIN; {again.replace('1', '7')}; TRUNCATE area, noted RESTART IDENTITY CASCADE; {again}; COMMIT")
        shop.run("TRUNCATE line")
        shop.run("DELETE FROM area")
    shop.run(
        "INSERT INTO area VALUES (1, 6), (2, 7)", "INSERT INTO line VALUES (1, 2)", "INSERT INTO noted VALUES (1, 'z')"
    )
    assert shop.flow.carry() is None
    shop.flow.assert_equal()
    shop.run("UPDATE area SET n = 8 WHERE id = 1", "DELETE FROM noted", "INSERT INTO line VALUES (2, 1)")
    assert shop.flow.carry() is None
    shop.flow.assert_equal()


@pytest.mark.parametrize("by", [ShardBy.SCHEMA, ShardBy.TABLE, ShardBy.WRITES, ShardBy.KEY])
@pytest.mark.parametrize(("source", "target"), [("mariadb", "postgres"), ("postgres", "mariadb")])
def test_a_truncate_runs_alone_whatever_makes_a_shard(shop: Shop, by: ShardBy) -> None:
    """Rows of the same keys before it and after it are other channels'."""
    with closing(source_kind(shop.kind).tables(shop.flow.options)) as reader:
        keys = tuple((of.name, "id") for of in reader.tables() if of.table == "area")
    shop.flow.plan = ShardPlan(channels=2, by=by, keys=keys if by is ShardBy.KEY else ())
    rows = [f"INSERT INTO area VALUES ({number}, 1)" for number in range(1, 30)]
    no_checks = ["SET foreign_key_checks = 0"] if shop.kind == "mariadb" else []
    empties = ["TRUNCATE line", "TRUNCATE area"] if shop.kind == "mariadb" else ["TRUNCATE area CASCADE"]
    shop.run(*no_checks, *(empties + rows) * 3)
    assert shop.flow.carry() is None
    shop.flow.assert_equal()
    with closing(open_target(shop.flow.target)) as target:
        applied = [row.applied_seqno for row in target.positions.read_channels("p")]
    assert len(applied) == 2 and min(applied) > 90


@pytest.mark.parametrize(("source", "target"), [("mariadb", "postgres"), ("postgres", "mariadb")])
def test_a_foreign_key_of_the_target_stands_against_a_source_s_truncate(shop: Shop) -> None:
    """Nothing of it is applied; when the rows that refer are gone, the pipeline goes on."""
    with closing(open_target(shop.flow.target)) as target:
        rows = target.rows
        assert isinstance(rows, SqlRows)
        with closing(source_kind(shop.kind).tables(shop.flow.options)) as reader:
            area = rows.dialect.table_name(next(of for of in reader.tables() if of.table == "area"))
        rows.session.run(f"CREATE TABLE own (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES {area} (id))")
        rows.session.run("INSERT INTO own VALUES (1, 3)")
        shop.run(*(["SET foreign_key_checks = 0"] if shop.kind == "mariadb" else []), "DELETE FROM line")
        shop.run(
            *(["SET foreign_key_checks = 0", "TRUNCATE area"] if shop.kind == "mariadb" else ["TRUNCATE area CASCADE"]),
            "INSERT INTO area VALUES (3, 9)",
        )
        error = shop.flow.carry()
        assert isinstance(error, DdlStopError) and "cannot be emptied here" in str(error)
        rows.session.run("DELETE FROM own")
        assert shop.flow.carry() is None
        shop.flow.assert_equal()


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_table_that_is_emptied_in_the_middle_of_its_load_comes_out_equal(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that were read before it are emptied with the rest, those after it have what came since."""
    for name in ("FIRST", "MOST", "LEAST"):
        monkeypatch.setattr(f"tranlog.capture.loading._ROWS_{name}", 10)
    numbers = "seq, seq FROM seq_1_to_60" if shop.kind == "mariadb" else "g, g FROM generate_series(1, 60) g"
    shop.run("CREATE TABLE large (id INT PRIMARY KEY, n INT)", f"INSERT INTO large SELECT {numbers}")
    assert shop.flow.carry() is None
    append = Log.append

    def appended(self: Log, fragment: Fragment) -> Gtid:
        mark = mark_of(decode(fragment.payload).metadata)
        if mark is not None and isinstance(mark.step, LoadChunk):
            give_order(self.path, "2", paused=True)  # while a chunk is read, a TRUNCATE waits
        return append(self, fragment)

    monkeypatch.setattr(Log, "append", appended)
    options = shop.flow.options
    databases = options.databases if isinstance(options, MariadbSourceOptions) else None
    (schema,) = databases or ("public",)
    load = LoadRequest(load="2", tables=(f"{schema}.large",), replace=True, asked_at=0)
    assert shop.flow.carry(load) is None
    monkeypatch.undo()
    (request,) = read_requests(str(shop.flow.log))
    assert 0 < request.progress.rows < 60
    shop.run("UPDATE large SET n = n + 1", "TRUNCATE large", "INSERT INTO large VALUES (5, 0), (15, 0), (55, 0)")
    assert shop.flow.carry() is None
    give_order(str(shop.flow.log), "2", paused=False)
    shop.run("UPDATE large SET n = n + 1")
    assert shop.flow.carry() is None
    assert read_requests(str(shop.flow.log)) == []
    shop.flow.assert_equal()


@pytest.mark.parametrize(("source", "target"), [("mariadb", "postgres")])
def test_a_temporary_table_is_not_the_table_of_its_name(shop: Shop) -> None:
    """A session that logs no rows records it."""
    made = ("SET binlog_format = MIXED", "CREATE TEMPORARY TABLE noted (a INT)")
    shop.run(*made, "TRUNCATE noted", "DROP TABLE noted")
    assert shop.flow.carry() is None
    shop.flow.assert_equal()


def test_names_of_a_mariadb_that_folds_them(
    start_mariadb: Callable[..., MariaDbServer], targets: dict[str, TargetOptions], tmp_path: Path
) -> None:
    """lower_case_table_names = 1: rows come under `items`, however a statement spells it."""
    server = start_mariadb(options={"lower_case_table_names": 1})
    server.execute("CREATE DATABASE shop")
    flow = Flow(options_for(server, source_id="shop", databases=("shop",)), targets["postgres"], tmp_path / "log")
    run(server, "shop", "CREATE TABLE Items (id INT PRIMARY KEY)", "INSERT INTO Items VALUES (1), (2)")
    assert flow.carry(LoadRequest(load="1", asked_at=0)) is None
    for statement in ("TRUNCATE Shop.ITEMS", "ALTER TABLE Items RENAME Sold"):
        name = "items" if "TRUNCATE" in statement else "sold"
        run(server, "shop", statement, f"INSERT INTO {name} VALUES ({len(name)})")
        assert flow.carry() is None
        flow.assert_equal()


@pytest.mark.parametrize("target", ["postgres", "sqlite"])
def test_characters_labels_and_defaults_of_a_mariadb(
    start_mariadb: Callable[..., MariaDbServer], targets: dict[str, TargetOptions], tmp_path: Path, target: str
) -> None:
    server = start_mariadb()
    server.execute("CREATE DATABASE shop CHARACTER SET latin1")
    flow = Flow(options_for(server, source_id="shop", databases=("shop",)), targets[target], tmp_path / "log")
    run(
        server,
        "shop",
        "CREATE TABLE items (id INT PRIMARY KEY, state ENUM('new','sold') DEFAULT 'new', tags SET('a','b'), "
        "note VARCHAR(20), n INT DEFAULT 1)",
        "INSERT INTO items VALUES (1, 'sold', 'a,b', 'grün', 1)",
    )
    assert flow.carry(LoadRequest(load="1", asked_at=0)) is None
    for number, statement in enumerate(
        (
            "ALTER TABLE items MODIFY state ENUM('old','new','sold') DEFAULT 'old' AFTER id",
            "ALTER TABLE items CHANGE tags tags SET('a','b','c') NULL, ALTER n SET DEFAULT 5",
            "ALTER TABLE items CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, DEFAULT COLLATE latin1_bin",
            "ALTER TABLE items MODIFY note VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL",
        ),
        start=2,
    ):
        run(server, "shop", statement, f"INSERT INTO items (id, note) VALUES ({number}, 'mü')")
        assert flow.carry() is None
        flow.assert_equal()
    run(server, "shop", "ALTER TABLE items CONVERT TO CHARACTER SET latin1")
    assert isinstance(flow.carry(), DdlStopError)


# --- the matrix --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One change of a table: the statements that sources record, with braces for its name.

    A statement is empty where there is none. `columns` and `row` come afterwards; no columns: no row does. `empties`:
    the statement is no DDL, and takes the rows away.
    """

    name: str
    mariadb: str
    sqlite: str
    columns: tuple[Column, ...] = ITEMS.columns
    row: tuple[Value, ...] = (5, "e", 5)
    before: tuple[Column, ...] = ITEMS.columns
    rows: tuple[tuple[Value, ...], ...] = ((1, "a", 1),)
    postgres: str = ""
    empties: bool = False


NAME, N = ITEMS.columns[1:]
MORE = (ID, NAME, N, NOTE)
WIDE = (ID, column("name", TEXT, "varchar(200)", length=200), N)
STRICT = (ID, column("name", TEXT, "varchar(20)", length=20, nullable=False), N)
SMALL, BIG = column("n", INTEGER, "smallint(6)"), column("n", INTEGER, "bigint(20)")
AMOUNT, LONGER = [column("n", LogicalType.DECIMAL, f"decimal({size})") for size in ("10,2", "14,4")]
TWO, THREE = [column("name", LogicalType.ENUM, f"enum('a','b'{more})") for more in ("", ",'e'")]
SINGLE, DOUBLE = column("n", LogicalType.F32, "float"), column("n", LogicalType.F64, "double")
RENAMED = (ID, column("label", TEXT, "varchar(20)", length=20), N)
MADE = "CREATE TABLE {} (id INT PRIMARY KEY, name VARCHAR(20), n INT)"
ADDED, LABEL = "ALTER TABLE {} ADD note VARCHAR(20)", "ALTER TABLE {} RENAME COLUMN name TO label"
LITERAL = f"{ADDED} NOT NULL DEFAULT 'x'"
DROPPED, MOVED = "ALTER TABLE {} DROP COLUMN n", "ALTER TABLE {} RENAME TO {}_new"
FREED = "ALTER TABLE {} MODIFY name VARCHAR(20) NULL"
TRUNCATE = "TRUNCATE TABLE shop.{}"
INDEX, VIEW = "CREATE INDEX {}_i ON {} (n)", "CREATE VIEW {}_v AS SELECT 1"
CASES: Final = (
    Case("a new table", MADE, MADE, before=(), rows=()),
    Case("a new column, no rows", ADDED, ADDED, MORE, (5, "e", 5, "x"), rows=()),
    Case("a new column, with rows", ADDED, ADDED, MORE, (5, "e", 5, "x")),
    Case("a new column with a default, with rows", LITERAL, LITERAL, MORE, (5, "e", 5, "y")),
    Case("a longer text", "ALTER TABLE {} MODIFY name VARCHAR(200)", "", WIDE, (5, "e" * 100, 5)),
    Case(
        "a new label of an ENUM",
        "ALTER TABLE {} MODIFY name ENUM('a','b','e')",
        "",
        (ID, THREE, N),
        (5, EnumLabel("e"), 5),
        before=(ID, TWO, N),
        rows=((1, EnumLabel("a"), 1),),
    ),
    Case("the character set utf8mb4", "ALTER TABLE {} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", ""),
    Case("another default", "ALTER TABLE {} ALTER COLUMN n SET DEFAULT 7", ""),
    Case("a wider integer", "ALTER TABLE {} MODIFY n BIGINT", "", (ID, NAME, BIG), (5, "e", 1 << 40)),
    Case(
        "more digits",
        "ALTER TABLE {} MODIFY n DECIMAL(14,4)",
        "",
        (ID, NAME, LONGER),
        (5, "e", Decimal("1234567890.1234")),
        before=(ID, NAME, AMOUNT),
        rows=((1, "a", Decimal("1.25")),),
    ),
    Case(
        "a double",
        "ALTER TABLE {} MODIFY n DOUBLE",
        "",
        (ID, NAME, DOUBLE),
        (5, "e", 0.1),
        before=(ID, NAME, SINGLE),
        rows=((1, "a", F32(0.5)),),
    ),
    Case("a narrower type", "ALTER TABLE {} MODIFY n SMALLINT", "", (ID, NAME, SMALL)),
    Case(
        "a column that may be NULL", "ALTER TABLE {} MODIFY name VARCHAR(20) NULL", "", row=(5, None, 5), before=STRICT
    ),
    Case("a renamed column", LABEL, LABEL, RENAMED),
    Case("a dropped column", DROPPED, DROPPED, (ID, NAME), (5, "e")),
    Case("a renamed table", MOVED, MOVED, columns=()),
    Case("a dropped table, with rows", "DROP TABLE {}", "DROP TABLE {}", columns=()),
    Case("a dropped table, no rows", "DROP TABLE {}", "DROP TABLE {}", columns=(), rows=()),
    Case("an index", INDEX, INDEX),
    Case("a view", VIEW, VIEW),
    Case("TRUNCATE, with rows", TRUNCATE, "", postgres=TRUNCATE, empties=True, row=(1, "e", 5)),
    Case("TRUNCATE, no rows", TRUNCATE, "", postgres=TRUNCATE, empties=True, rows=()),
)


def outcome(bench: Bench, case: Case, source: str) -> str:
    """Apply a case as a source has it in the log, and say in a word what came of it."""
    name = f"t{uuid.uuid4().hex[:8]}"
    schema = "main" if source == "sqlite" and bench.target.kind == "sqlite" else "shop"
    before = TableMap(schema=schema, table=name, columns=case.before, primary_key=(0,))
    if case.before:
        bench.target.rows.create_table(before)
    if case.rows:
        bench.apply([insert(before, one) for one in case.rows])
    shape, stood = shape_of(bench.target, before), bench.applied
    transactions: list[list[Change]] = []
    if sql := {"mariadb": case.mariadb, "sqlite": case.sqlite, "postgres": case.postgres}[source]:
        transactions.append([Statement(schema=schema, sql=sql.replace("{}", name), ddl=not case.empties)])
    if case.columns:
        after = with_columns(before, *case.columns)
        if source == "postgres" and ADDED in case.mariadb:
            after = msgspec.structs.replace(after, older=(("note", "'x'" if case.mariadb == LITERAL else ""),))
        transactions.append([insert(after, case.row)])
    if not transactions or (not sql and (source == "sqlite" or case.empties)):
        return "not there"
    try:
        for changes in transactions:
            bench.apply(changes, metadata=(("dbms_type", source),))
    except DdlStopError:
        return "stops at the statement"
    except TargetTableError:
        return "stops at the row: table"
    except ConflictError:
        return "stops at the row: value"
    finally:
        bench.target.rows.discard()
    assert bench.applied == stood + len(transactions)
    if case.columns and case.columns == case.before:
        assert len(list(bench.target.rows.read(before))) == (0 if case.empties else len(case.rows)) + 1
    if case.empties:
        return "follows"
    if any(name in line for line in noted(bench)):
        return "held"
    return "follows" if shape_of(bench.target, before) != shape else "goes on"


SOURCES: Final = ("mariadb", "sqlite", "postgres")


TEXT_OF_PAGE: Final = """# Tables that change

Written by `tests/integration/test_following.py` from what it saw; `TRANLOG_WRITE_DOCS=1` in front of pytest writes it
anew.

What a change of a table at the source comes to at a target, by the option `ddl` of `[target]`. A MariaDB and a SQLite
source record the statement, a PostgreSQL source sends none, and the next row shows the table as it is then. A target of
the source's own kind (MariaDB, SQLite) runs the statement, unless the option is `ignore`.

- **follows**: the table at the target has changed, or lost its rows, as the source's has.
- **goes on**: nothing changed there, and what comes after is applied.
- **held**: the source took something away, and here it stays. A warning and `tranlog status` name it.
- **stops at the statement**: nothing of it was applied. The error has the statement, its seqno and the reason. Do by
  hand what it did, and all other changes of its transaction, which `thl list -seqno SEQNO` shows: rows that a SQLite or
  PostgreSQL source changed in it would be left out with it. Then `tranlog position set SEQNO`, or where the process has
  stayed `tranlog online --skip-seqno SEQNO`. DDL that takes rows away, and is not held, stops while they are here;
  TRUNCATE, at another kind and without `follow`, in any case.
- **stops at the row**: the table or the value does not fit. The error has the seqno and, for a column that is missing,
  the statement that adds it. Run it, start again, and bring what it holds in older rows by
  `tranlog load --replace --tables TABLE`.
- **not there**: such a source has no such statement, or no row tells of it.

A PostgreSQL source sends no word of a renamed table: with `follow` its next row makes a new one under the new name,
without the rows that were there. Rename the table at the target while the pipeline is stopped. Where capture knows the
name as another table's (two swapped their names; one was dropped and made again), that row is a gap of the table, and a
load follows (docs/operations.md). Capture need not have run when it changed: the log's directory keeps what it knew.

With `ddl = "follow"` a column takes NULL where the source's does, unless it is in the primary key, and at a MariaDB has
a default or a comment of its own, which the statement would take away. SQLite cannot do that to a table that is there.

With `ddl = "follow"` a column gets the type that the source's has where that is wider: an integer of more bytes, a
longer text, more digits before or after the point, a double for a float. Rows that are here stay. A table map that
comes with a row says it, so a source that says nothing else (PostgreSQL) does too. It is left out where one statement
cannot say it without changing more: at a MariaDB a column with a default or comment of its own, or with another sign;
and where the server refuses it, at a PostgreSQL a column of a view: that is warned of, and what does not fit stops.
PostgreSQL and MariaDB may write a table anew for it, and nothing else reaches it meanwhile. A SQLite's columns hold
numbers and texts of any size; where it has the source write its values in another way (decimals, floats), a statement
stops.

With `ddl = "follow"` a statement that gives a column or a table another default, or the character set utf8mb4 (CONVERT
TO, or with a column's type), goes on: no value changes by it. Another character set may lack characters: that stops.
At a PostgreSQL and a SQLite a text has no length and an ENUM or SET is a text, so that nothing here tells whether the
source cut values off where a column becomes a VARCHAR(n), an ENUM or a SET: that goes on with a warning, and stops with
`ddl_loss = "stop"`.

With `ddl = "follow"` tables and columns are renamed by a statement of a MariaDB or SQLite source. Where the new name is
taken here, that stops. At a MariaDB target each edit of a statement commits by itself, and is run once.

With `ddl = "follow"` a column that a statement of a MariaDB or SQLite source adds, and that is NULL in every row that
was there (no NOT NULL, no DEFAULT, not generated, no TIMESTAMP of MariaDB's without NULL), is added by the next row.
So is one with a literal as its DEFAULT, also NOT NULL: a whole number for an integer, a string of ASCII without a
backslash or a space at its end for a text. Rows that are here get that value, and at a PostgreSQL or MariaDB the column
keeps no default. A column whose type changes before its first row is not known any more.

A PostgreSQL source sends no statement. Capture knows a new column by its first row, and asks the catalogue what older
rows hold: NULL where no row of the table was ever written anew, or such a literal. Then it follows
too, in a transaction before which all channels meet. A column that was added to a partitioned table, or to one that
was written anew (VACUUM FULL, TRUNCATE) without such a literal as its default, and one that the load at hand has passed
over, is not known: that stops, as what any other column holds in older rows does.
Where a name is another column's than before (a column was dropped and one of its name added, or another one renamed to
it; two swapped their names), the next row of the table is a gap of it, and a load follows (docs/operations.md).

What takes data away is decided by `ddl_loss`, `hold` in these tables. A dropped column stays with its values, and takes
NULL where the kind can do that: SQLite cannot, and refuses the next row of a column that is NOT NULL. A dropped table
stays with its rows until rows of a new one come: that stops. Of a type that may be narrower than the one here, what the
source cut off stays. With `ignore` not even NULL is let in; with `stop` each of them stops at the statement.
Nothing says so where a type is no narrower and the source changed values all the same: without strict mode negative
numbers for UNSIGNED and NULL for NOT NULL, spaces at the end of a VARCHAR that becomes a CHAR, and at a SQLite, whose
column is TEXT before and after it, a TIMESTAMP, BIT, or TIME or DATETIME with digits of a second that becomes a text:
older rows keep the text that they have here. `tranlog verify` names them.

With `ddl = "follow"` a TRUNCATE of a MariaDB or PostgreSQL source deletes all rows of the same tables at a target of
another kind, in the target transaction that moves the position: once, and as other changes of rows do, whatever
`ddl_loss` says. A PostgreSQL source names each table that was emptied, those of CASCADE too, as far as its publication
has them. A table that is not here has nothing to delete. The DELETE is one transaction: of a table with millions of
rows it takes as long as a DELETE of them all does, and the server keeps them until it ends. The target's triggers on
DELETE run, and counters of the target's own columns are not set back.

Foreign keys of the target hold. Tables that one statement empties may refer to themselves and to each other, in a
circle too; at a MariaDB a circle, or a table that refers to itself, is emptied only where no other table refers to it.
The statement stops where ON DELETE would delete or change rows of another table, and where the server refuses the
DELETE since rows of another table refer to these. Delete those rows, or drop the foreign key, and start again.

A TRUNCATE stops as before where it is not certain what it emptied: with an error code, of one partition (ALTER TABLE),
after SET STATEMENT, or where the log was not captured from one of these kinds. Of a temporary table, which a session
with `binlog_format = MIXED` or `STATEMENT` records, it is passed over. A filter that changes tables or rows stops at it
as at any statement, by its option `statements`; with `"pass"` the tables are looked for by the source's names.

With `ddl = "follow"` a table is made as `tranlog tables create` makes it: columns, primary key and unique keys, no
DEFERRABLE ones beside the primary key, no foreign keys, no other indexes.
"""


def page(found: Mapping[tuple[str, str, str, str], str]) -> str:
    """Return the page."""
    text = TEXT_OF_PAGE
    for target in TARGETS:
        head = " | ".join(f"`{one}`" for one in DDL)
        text += f"\n## Target: {target}\n\n| change | source | {head} |\n{'|---' * 5}|\n"
        for case in CASES:
            for source in SOURCES:
                cells = " | ".join(found[case.name, source, target, ddl] for ddl in DDL)
                text += f"| {case.name} | {source} | {cells} |\n"
    return text


@pytest.mark.timeout(600)
def test_the_page_says_what_each_change_comes_to(targets: dict[str, TargetOptions]) -> None:
    found: dict[tuple[str, str, str, str], str] = {}
    for kind, options in targets.items():
        for ddl in DDL:
            with closing(Bench(replace(options, ddl=ddl))) as bench:  # type: ignore[arg-type]
                for case in CASES:
                    for source in SOURCES:
                        found[case.name, source, kind, ddl] = outcome(bench, case, source)
                for name in ("tranlog_channel", "tranlog_pipeline"):
                    bench.session.run(f"DELETE FROM {name}")
    for (name, source, kind, ddl), came in found.items():
        if ddl == "follow" and came != "not there":
            always = ("a new table", "a new column, no rows", "TRUNCATE, with rows", "TRUNCATE, no rows")
            assert came == "follows" or name not in always, (source, kind)
            assert came != "goes on" or name not in ("a renamed table", "a dropped table, with rows"), (source, kind)
    text = page(found)
    if os.environ.get(WRITE):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, f"run this test once with {WRITE}=1"

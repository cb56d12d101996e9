"""Tables at the target that follow the source's, and what each change of a table comes to: docs/following.md.

With `TRANLOG_WRITE_DOCS=1` in front of pytest this file writes the page anew.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import pytest

from fix_target import (
    ID,
    INTEGER,
    ITEMS,
    TEXT,
    Bench,
    column,
    content,
    delete,
    insert,
    session_of,
)
from tranlog.change import Change, Column, Statement, TableMap
from tranlog.errors import ConflictError, DdlStopError, TargetTableError
from tranlog.target.database import SqlRows
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Target
from tranlog.testing.servers import MariaDbServer, PostgresAddress
from tranlog.types import Value

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


def with_columns(of: TableMap, *columns: Column) -> TableMap:
    return msgspec.structs.replace(of, columns=columns)


def replace_name(of: TableMap, name: str) -> TableMap:
    return msgspec.structs.replace(of, table=name)


# --- the matrix --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One change of a table: the statements that a MariaDB and a SQLite source record, with braces for its name.

    A statement is empty where there is none. `columns` and `row` come afterwards; no columns: no row does.
    """

    name: str
    mariadb: str
    sqlite: str
    columns: tuple[Column, ...] = ITEMS.columns
    row: tuple[Value, ...] = (5, "e", 5)
    before: tuple[Column, ...] = ITEMS.columns
    rows: tuple[tuple[Value, ...], ...] = ((1, "a", 1),)


NAME, N = ITEMS.columns[1:]
MORE = (ID, NAME, N, NOTE)
WIDE = (ID, column("name", TEXT, "varchar(200)", length=200), N)
STRICT = (ID, column("name", TEXT, "varchar(20)", length=20, nullable=False), N)
RENAMED = (ID, column("label", TEXT, "varchar(20)", length=20), N)
MADE = "CREATE TABLE {} (id INT PRIMARY KEY, name VARCHAR(20), n INT)"
ADDED, LABEL = "ALTER TABLE {} ADD note VARCHAR(20)", "ALTER TABLE {} RENAME COLUMN name TO label"
DROPPED, MOVED = "ALTER TABLE {} DROP COLUMN n", "ALTER TABLE {} RENAME TO {}_new"
FREED = "ALTER TABLE {} MODIFY name VARCHAR(20) NULL"
INDEX, VIEW = "CREATE INDEX {}_i ON {} (n)", "CREATE VIEW {}_v AS SELECT 1"
CASES: Final = (
    Case("a new table", MADE, MADE, before=(), rows=()),
    Case("a new column, no rows", ADDED, ADDED, MORE, (5, "e", 5, "x"), rows=()),
    Case("a new column, with rows", ADDED, ADDED, MORE, (5, "e", 5, "x")),
    Case("a wider type", "ALTER TABLE {} MODIFY name VARCHAR(200)", "", WIDE, (5, "e" * 100, 5)),
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
    shape, stood = columns_of(bench.target, before), bench.applied
    transactions: list[list[Change]] = []
    if sql := {"mariadb": case.mariadb, "sqlite": case.sqlite}.get(source, ""):  # a PostgreSQL's stream has no DDL
        transactions.append([Statement(schema=schema, sql=sql.replace("{}", name), ddl=True)])
    if case.columns:
        transactions.append([insert(with_columns(before, *case.columns), case.row)])
    if not transactions or (source == "sqlite" and not sql):
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
        assert len(list(bench.target.rows.read(before))) == len(case.rows) + 1
    return "follows" if columns_of(bench.target, before) != shape else "goes on"


SOURCES: Final = ("mariadb", "sqlite", "postgres")


TEXT_OF_PAGE: Final = """# Tables that change

Written by `tests/integration/test_following.py` from what it saw; `TRANLOG_WRITE_DOCS=1` in front of pytest writes it
anew.

What a change of a table at the source comes to at a target, by the option `ddl` of `[target]`. A MariaDB and a SQLite
source record the statement, a PostgreSQL source sends none, and the next row shows the table as it is then. A target of
the source's own kind (MariaDB, SQLite) runs the statement, unless the option is `ignore`.

- **follows**: the table at the target has changed as the source's has.
- **goes on**: nothing changed there, and what comes after is applied.
- **stops at the statement**: nothing of it was applied. The error has the statement, its seqno and the reason. Do by
  hand what it did, then `tranlog online --skip-seqno SEQNO`. DDL that takes rows away stops while they are here.
- **stops at the row**: the table or the value does not fit. The error has the seqno and, for a column that is missing,
  the statement that adds it. Run it, start again, and bring what it holds in older rows by
  `tranlog load --replace --tables TABLE`.
- **not there**: such a source has no such statement, or no row tells of it.

A PostgreSQL source sends no word of a renamed table: with `follow` its next row makes a new one under the new name,
without the rows that were there. Rename the table at the target while the pipeline is stopped.

With `ddl = "follow"` a table is made as `tranlog tables create` makes it: columns, primary key and unique keys, no
foreign keys, no other indexes.
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
            assert came == "follows" or name not in ("a new table", "a new column, no rows"), (source, kind)
            assert came != "goes on" or name not in ("a renamed table", "a dropped table, with rows"), (source, kind)
    text = page(found)
    if os.environ.get(WRITE):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, f"run this test once with {WRITE}=1"

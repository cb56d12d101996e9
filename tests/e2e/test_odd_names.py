"""Names that hurt, from each source into each target: carried, or refused before anything is done.

Capture, log and apply are the real ones; the channel's task runs in this process, without Spark.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import apsw
import psycopg
import pymysql
import pytest

from fix_mariadb_source import options_for
from fix_pipeline import positions, run_threads, take, tasks_for
from tranlog.capture.capture import Capture
from tranlog.change import TableMap
from tranlog.errors import TargetTableError
from tranlog.log.writing.log import Log, LogReader
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.upkeep.tables import tables_in_log
from tranlog.source.mariadb import MariadbSource
from tranlog.source.mariadb.position import BinlogPosition, DomainGtid, parse_gtids
from tranlog.source.mariadb.tables import MariadbTables
from tranlog.source.source import Source, TableReader
from tranlog.source.sqlite import SqliteSource, SqliteSourceOptions, SqliteTables, connect
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.postgres_dialect import NAME_BYTES, fit_name
from tranlog.testing.servers import MariaDbAddress, PostgresAddress
from tranlog.types import canonical

NAMES: Final = (
    *("it's", 'say "hi"', "a`b", "``", "'", "two words", " leading", "dot.dot", "back\\slash", "100%", "%s", "{0}"),
    *("$1", "?", ":name", "a;b", "--", "/*", "(", "tab\there", "line\nbreak", "select", "SELECT", "order", "rowid"),
    *("ctid", "xmin", "null", "1st", "123", "é", "日本語", "x" * 63, "y" * 64, "Mixed", "tranlog_position", "pg_class"),
)
EMOJI: Final = ("😀", "a😀b")
LONG: Final = ("日" * 20 + "abc", "日" * 21, "日" * 22, "é" * 32, "日" * 63 + "é", "日" * 64)
"""By their bytes in UTF-8: 63, 63, 66, 64, 191, 192."""
COLUMNS_THAT_ARE_TAKEN: Final = ("ctid", "xmin")
"""PostgreSQL's own columns: a table with one of these names cannot be made there."""


@dataclass
class Pair:
    """A source database, a log, and a target."""

    kind: Literal["sqlite", "mariadb"]
    target: TargetOptions
    path: Path
    schema: str
    database: Any
    source: Source
    open_tables: Callable[[], TableReader]

    @property
    def quote_mark(self) -> str:
        return '"' if self.kind == "sqlite" else "`"

    def quote(self, name: str) -> str:
        return self.quote_mark + name.replace(self.quote_mark, self.quote_mark * 2) + self.quote_mark

    def run(self, sql: str, *values: object) -> None:
        if self.kind == "sqlite":
            self.database.execute(sql, values)
        else:
            self.database.cursor().execute(sql.replace("?", "%s") if values else sql, values or None)

    def make(self, schema: str, table: str, column: str) -> None:
        """Make a table whose second column has the name, and change its rows."""
        name = self.quote(table) if self.kind == "sqlite" else f"{self.quote(schema)}.{self.quote(table)}"
        other = self.quote(column)
        text = "TEXT" if self.kind == "sqlite" else "VARCHAR(300)"
        self.run(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, {other} {text})")
        self.fill(schema, table, column)

    def fill(self, schema: str, table: str, column: str) -> None:
        name = self.quote(table) if self.kind == "sqlite" else f"{self.quote(schema)}.{self.quote(table)}"
        # A name with a mark for a parameter in it must stand beside none.
        text = "'" + table.replace("\\", "\\\\" if self.kind == "mariadb" else "\\").replace("'", "''") + "'"
        self.run(f"INSERT INTO {name} VALUES (1, {text}), (2, 'two'), (3, NULL)")
        self.run(f"UPDATE {name} SET {self.quote(column)} = {text} WHERE id = 3")
        self.run(f"DELETE FROM {name} WHERE id = 2")

    def capture(self) -> None:
        """Capture up to where the source is now; a server sends when it likes, so its position is what tells."""
        wanted: dict[int, DomainGtid] = {}
        if self.kind == "mariadb" and (self.path / "log").exists():
            with self.database.cursor() as cursor:
                cursor.execute("SELECT @@global.gtid_binlog_pos")
                wanted = {gtid.domain: gtid for gtid in parse_gtids(cursor.fetchone()[0])}
        deadline = time.monotonic() + 60
        while True:
            with Log.open(str(self.path / "log"), source_id="odd") as log:
                Capture(self.source, log).catch_up(wait_s=0.1 if wanted else 0.0)
                last = log.last_event_id() if wanted else None
            here = BinlogPosition.parse(last).by_domain() if last else {}
            if all(one in here and here[one].sequence >= gtid.sequence for one, gtid in wanted.items()):
                return
            assert time.monotonic() < deadline, f"at {here}, not yet at {wanted}"

    def captured(self) -> list[TableMap]:
        with LogReader.open(str(self.path / "log")) as reader:
            return tables_in_log(reader, report=lambda at, last: None)

    def create(self, tables: list[TableMap]) -> None:
        target = open_target(self.target)
        try:
            target.positions.ensure_tables()
            for table in tables:
                target.rows.create_table(table)
        finally:
            target.close()

    def apply(self) -> TaskEnd:
        """Apply the whole log on one channel; raise what the task met."""
        with LogReader.open(str(self.path / "log")) as reader:
            last = reader.range().committed_seqno
        target = open_target(self.target)
        target.positions.ensure_tables()
        target.close()
        plan = ShardPlan(channels=1)
        token = take(self.target, plan)
        (result,) = run_threads(tasks_for(self.target, self.path / "log", plan, token, until=last))
        if result.error is not None:
            raise result.error
        assert positions(self.target) == {0: last}
        return result.end

    def held(self, table: TableMap) -> Counter[tuple[object, ...]]:
        target = open_target(self.target)
        try:
            return Counter(tuple(map(canonical, row)) for row in target.rows.read(table))
        finally:
            target.close()

    def originals(self) -> dict[str, Counter[tuple[object, ...]]]:
        """Return the rows of each table of the source, as `tranlog verify` reads them."""
        with contextlib.closing(self.open_tables()) as reader:
            return {
                one.name: Counter(tuple(map(canonical, row)) for row in reader.rows(one)) for one in reader.tables()
            }

    def names_at_target(self) -> set[tuple[str, str]]:
        """Return (table, column) of every column, as the target's catalogue has them."""
        if self.target.kind == "sqlite":
            with contextlib.closing(apsw.Connection(self.target.path)) as db:
                sql = "SELECT t.name, c.name FROM pragma_table_list t, pragma_table_info(t.name) c"
                return {(str(table), str(column)) for table, column in db.execute(sql)}
        with psycopg.connect(self.target.dsn) as connection:
            return {
                (f"{schema}.{table}", column)
                for schema, table, column in connection.execute(
                    "SELECT table_schema, table_name, column_name FROM information_schema.columns"
                )
            }


SQLITE_TO_SQLITE: Final = pytest.param(("sqlite", "sqlite"), id="sqlite-sqlite")
SQLITE_TO_POSTGRES: Final = pytest.param(("sqlite", "postgres"), id="sqlite-postgres")
MARIADB_TO_SQLITE: Final = pytest.param(("mariadb", "sqlite"), id="mariadb-sqlite")
MARIADB_TO_POSTGRES: Final = pytest.param(("mariadb", "postgres"), id="mariadb-postgres")
FROM_MARIADB: Final = [MARIADB_TO_SQLITE, MARIADB_TO_POSTGRES]
INTO_POSTGRES: Final = [SQLITE_TO_POSTGRES, MARIADB_TO_POSTGRES]
PAIRS: Final = [SQLITE_TO_SQLITE, SQLITE_TO_POSTGRES, *FROM_MARIADB]


@pytest.fixture(params=PAIRS)
def pair(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    mariadb: MariaDbAddress,
    mariadb_database: str,
    postgres: PostgresAddress,
    postgres_database: str,
) -> Iterator[Pair]:
    source_kind, target_kind = request.param
    if target_kind == "sqlite":
        target = TargetOptions(kind="sqlite", path=str(tmp_path / "target.db"), ddl="ignore")
    else:
        target = TargetOptions(kind="postgres", dsn=postgres.dsn(postgres_database), ddl="ignore")
    source: Source
    open_tables: Callable[[], TableReader]
    with contextlib.ExitStack() as stack:
        if source_kind == "sqlite":
            path = str(tmp_path / "source.db")
            database: Any = stack.enter_context(contextlib.closing(connect(path)))
            source = SqliteSource(SqliteSourceOptions(path=path, source_id="odd"))
            open_tables = lambda: SqliteTables(path)  # noqa: E731
            schema = "main"
        else:
            database = stack.enter_context(contextlib.closing(mariadb.connect(mariadb_database)))
            database.autocommit(True)
            options = options_for(mariadb, databases=(mariadb_database,), source_id="odd")
            source, schema = MariadbSource(options), mariadb_database
            open_tables = lambda: MariadbTables(options)  # noqa: E731
        stack.callback(source.close)
        made = Pair(source_kind, target, tmp_path, schema, database, source, open_tables)
        if source_kind == "mariadb":
            made.capture()  # from here on
        yield made


pytestmark = [pytest.mark.integration]


def test_names_are_carried(pair: Pair) -> None:
    """Each odd name is a table's and a column's; its rows arrive, and the target's catalogue shows the very name."""
    made: list[tuple[str, str]] = []
    refused_by_source = []
    for name in (*NAMES, *EMOJI, *(LONG if pair.target.kind == "sqlite" else LONG[:2])):
        small = {one.lower() for one, _ in made}
        if name.lower() in small and "sqlite" in (pair.kind, pair.target.kind):
            continue  # twins have a test of their own
        column = f"{name}2" if pair.target.kind == "postgres" and name in COLUMNS_THAT_ARE_TAKEN else name
        if len(name) > (NAME_BYTES if pair.target.kind == "postgres" else 64):
            continue
        try:
            pair.make(pair.schema, name, column)
        except (pymysql.err.MySQLError, apsw.SQLError) as exc:
            refused_by_source.append((name, str(exc)))
            continue
        made.append((name, column))
    refused = {name for name, _ in refused_by_source}
    # MariaDB's names are of the basic plane, and those of its files end at 255 bytes.
    assert refused <= ({*EMOJI, *LONG[4:]} if pair.kind == "mariadb" else set()), refused_by_source
    pair.capture()
    tables = pair.captured()
    assert {(table.table, table.columns[1].name) for table in tables} == set(made)
    pair.create(tables)
    assert pair.apply() is TaskEnd.LIMIT
    found = pair.names_at_target()
    originals = pair.originals()
    for table in tables:
        here = table.table if table.schema == "main" and pair.target.kind == "sqlite" else table.name
        assert (here, table.columns[1].name) in found, table.name
        assert originals[table.name].total() == 2
        assert pair.held(table) == originals[table.name], table.name


@pytest.mark.parametrize("pair", INTO_POSTGRES, indirect=True)
def test_names_beyond_postgresqls_limit_stay_apart(pair: Pair) -> None:
    """PostgreSQL would cut these to one name of 63 bytes. Theirs end in a hash of the whole, and each has its table."""
    long = "n" * 63 if pair.kind == "mariadb" else "n" * 70
    names = [long + "a", long + "b", *(LONG[2:4] if pair.kind == "mariadb" else LONG[2:])]
    for name in names:
        pair.make(pair.schema, name, name)
    pair.capture()
    tables = pair.captured()
    assert {table.table for table in tables} == set(names)
    pair.create(tables)
    pair.apply()
    found, originals = pair.names_at_target(), pair.originals()
    for table in tables:
        assert len(fit_name(table.table).encode()) <= NAME_BYTES
        assert (f"{table.schema}.{fit_name(table.table)}", fit_name(table.table)) in found
        assert pair.held(table) == originals[table.name]


def _refused(pair: Pair, tables: list[TableMap], told: str) -> None:
    """Nothing can be made of these, nothing is applied, and the target is as it was."""
    with pytest.raises(TargetTableError, match=told):
        pair.create(tables)
    before = pair.names_at_target()
    with pytest.raises(TargetTableError) as caught:
        pair.apply()
    assert caught.value.seqno is not None
    assert pair.names_at_target() == before


@pytest.mark.parametrize("pair", FROM_MARIADB, indirect=True)
def test_twins_are_refused_where_they_would_be_one(pair: Pair) -> None:
    """A target that tells names apart less well than the source must not mix the rows of two tables."""
    pair.make(pair.schema, "twin", "x")
    pair.make(pair.schema, "TWIN", "x")
    pair.capture()
    tables = pair.captured()
    assert [table.table for table in tables] == ["TWIN", "twin"]
    if pair.target.kind == "postgres":
        pair.create(tables)
        pair.apply()
        originals = pair.originals()
        for table in tables:
            assert pair.held(table) == originals[table.name]
        return
    # One of the two is there, as if made by hand: the other must not be written into it.
    with pytest.raises(TargetTableError, match="would be the one of"):
        pair.create(tables)
    with pytest.raises(
        TargetTableError, match=r"(?i)twin.*would be the one of .*their rows would mix.*Rename one of them"
    ):
        pair.apply()
    held = {pair.held(table).total() for table in tables}
    assert held <= {2, 3}, "what came before it is there, and nothing of it"


@pytest.mark.parametrize("pair", [MARIADB_TO_SQLITE], indirect=True)
def test_a_dot_does_not_make_one_of_two_tables(pair: Pair) -> None:
    """SQLite has no schemas: `a`.`b.c` and `a.b`.`c` would be one name there."""
    target = open_target(pair.target)
    try:
        pair.make(pair.schema, "x.y", "v")
        pair.capture()
        (table,) = pair.captured()
        target.rows.create_table(table)
        other = replace_schema(table, f"{pair.schema}.x", "y")
        with pytest.raises(TargetTableError, match="would be the one of"):
            target.rows.create_table(other)
    finally:
        target.close()


def replace_schema(table: TableMap, schema: str, name: str) -> TableMap:
    return TableMap(schema=schema, table=name, columns=table.columns, primary_key=table.primary_key)


def test_a_table_named_like_ours_is_refused(pair: Pair) -> None:
    """The positions that make exactly once must not be somebody's rows."""
    pair.make(pair.schema, "TRANLOG_Channel" if pair.kind == "sqlite" else "tranlog_pipeline", "v")
    pair.capture()
    _refused(pair, pair.captured(), "tranlog keeps its own positions in a table of this name")

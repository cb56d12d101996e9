"""SQLite, MariaDB and PostgreSQL as sources, each into each: equal by canonical values, exactly once by audit.

Capture, log and apply are the real ones; two channels' tasks run in this process, without Spark. The SQLite source is
written by a foreign program, under triggers.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

import fix_mariadb_source
import fix_postgres_source
from fix_pipeline import MariadbTarget, PostgresTarget, SqliteTarget, positions, run_threads, take, tasks_for
from tranlog.capture.capture import Capture
from tranlog.change import RowChange, TableMap
from tranlog.log.writing.log import Log, LogReader
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.upkeep.verify import verify_tables
from tranlog.source.kinds import source_kind
from tranlog.source.source import TableReader
from tranlog.source.sqlite import SqliteSourceOptions
from tranlog.target.options import open_target

pytestmark = pytest.mark.integration
KINDS = ("sqlite", "mariadb", "postgres")
TRANSACTIONS = 40
TABLES = ("item", "ledger")
_COLUMNS = "id INTEGER PRIMARY KEY, name VARCHAR(40), pieces BIGINT, price NUMERIC(10,2), note TEXT, raw {bytes}"


class Writer:
    """A source database with two tables, and somebody who writes them by the same statements at all three."""

    def __init__(self, kind: str, options: Any, execute: Callable[[str], object], prefix: str) -> None:
        self.kind = source_kind(kind)
        self.options = options
        self.audit: Counter[tuple[str, int, str]] = Counter()
        self._execute = execute
        self._prefix = prefix
        of_bytes = {"sqlite": "BLOB", "mariadb": "VARBINARY(20)", "postgres": "BYTEA"}[kind]
        self._bytes = "'\\x00ff'" if kind == "postgres" else "x'00ff'"
        for table in TABLES:
            execute(f"CREATE TABLE {prefix}{table} ({_COLUMNS.format(bytes=of_bytes)})")
            if kind == "postgres":
                execute(f"ALTER TABLE {prefix}{table} REPLICA IDENTITY FULL")

    def write(self) -> None:
        """Write transactions, of which some are rolled back."""
        chance, there = random.Random(29), {table: set[int]() for table in TABLES}
        for number in range(TRANSACTIONS):
            self._execute("BEGIN")
            done: list[tuple[str, int, str]] = []
            for _ in range(chance.randrange(1, 6)):
                table = chance.choice(TABLES)
                rows = there[table]
                key = chance.randrange(30)
                op = "INSERT" if key not in rows else chance.choice(("UPDATE", "DELETE"))
                if op == "INSERT":
                    values = f"{key}, 'näme {number}', {number << 40}, {number}.25, NULL, {self._bytes}"
                    self._execute(f"INSERT INTO {self._prefix}{table} VALUES ({values})")
                    rows.add(key)
                elif op == "UPDATE":
                    sets = f"name = NULL, price = {number}.50, note = 'n{number}x{len(done)}'"
                    self._execute(f"UPDATE {self._prefix}{table} SET {sets} WHERE id = {key}")
                else:
                    self._execute(f"DELETE FROM {self._prefix}{table} WHERE id = {key}")
                    rows.discard(key)
                done.append((table, key, op))
            if number % 7 == 6:
                self._execute("ROLLBACK")
                for table, key, op in reversed(done):
                    if op == "INSERT":
                        there[table].discard(key)
                    elif op == "DELETE":
                        there[table].add(key)
                continue
            self._execute("COMMIT")
            self.audit.update(done)


@pytest.fixture
def writer(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Writer]:
    options: Any
    if kind == "sqlite":
        path = str(tmp_path / "source.db")
        with closing(apsw.Connection(path)) as db:
            options = SqliteSourceOptions(path=path, source_id="s", foreign_writes="capture_by_trigger")
            yield Writer(kind, options, db.execute, "")
    elif kind == "mariadb":
        server, database = (request.getfixturevalue(name) for name in ("mariadb", "mariadb_database"))
        with closing(server.connect()) as session, session.cursor() as cursor:
            options = fix_mariadb_source.options_for(server, databases=(database,))
            yield Writer(kind, options, cursor.execute, f"{database}.")
    else:
        server, database = (request.getfixturevalue(name) for name in ("postgres_source", "postgres_source_database"))
        with psycopg.connect(server.dsn(database), autocommit=True) as session:
            session.execute("CREATE SCHEMA shop")
            options = fix_postgres_source.options_for(server, database)
            yield Writer(kind, options, lambda sql: session.execute(sql.encode()), "shop.")


@pytest.fixture
def into(target: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[TableMap]], Any]:
    if target == "sqlite":
        return lambda tables: SqliteTarget(tmp_path / "target.db", tables)
    names = {"mariadb": ("mariadb_target", "mariadb_target_database"), "postgres": ("postgres", "postgres_database")}
    server, database = (request.getfixturevalue(name) for name in names[target])
    kind = MariadbTarget if target == "mariadb" else PostgresTarget
    return lambda tables: kind(server.dsn(database), tables)


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_source_into_each_target(
    kind: str, target: str, writer: Writer, into: Callable[[list[TableMap]], Any], tmp_path: Path
) -> None:
    directory = tmp_path / "log"
    with Log.open(str(directory), source_id="s") as log, closing(writer.kind.open(writer.options)) as source:
        capture = Capture(source, log)
        capture.catch_up(wait_s=writer.kind.once_wait_s)
        with closing(writer.kind.tables(writer.options)) as reader:
            there = into(of_ours(reader))
        writer.write()
        deadline = time.monotonic() + 100
        while (changes := captured(directory)) < writer.audit.total():
            assert time.monotonic() < deadline, f"{changes} of {writer.audit.total()}"
            capture.catch_up(wait_s=0.2)
        last = log.last_seqno
    plan = ShardPlan(channels=2)
    token = take(there.options, plan)
    results = run_threads(tasks_for(there.options, directory, plan, token, until=last))
    assert [result.error for result in results] == [None, None]
    assert positions(there.options) == {0: last, 1: last}
    opened = open_target(there.options)
    with closing(opened), closing(writer.kind.tables(writer.options)) as reader:
        tables = of_ours(reader)
        verdicts = [*verify_tables(reader, opened.rows, tables=tables, differences=3, report=lambda *_: None)]
    assert [(one.table.rpartition(".")[2], one.equal) for one in verdicts] == [(table, True) for table in TABLES]
    assert min(one.source_rows for one in verdicts) > 3
    assert Counter({(name.rpartition(".")[2], *rest): n for (name, *rest), n in there.audit().items()}) == writer.audit


def of_ours(reader: TableReader) -> list[TableMap]:
    return [table for table in reader.tables() if table.table in TABLES]


def captured(directory: Path) -> int:
    """Return how many changes of rows the log holds."""
    with LogReader.open(str(directory)) as log, log.cursor() as cursor:
        return sum(isinstance(one, RowChange) for found in iter(cursor.next, None) for one in found.payload().changes)

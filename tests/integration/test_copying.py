"""`tranlog copy` from each kind of database into each, with no more than SELECT, and what it leaves: nothing.

docs/operations.md, "Copying tables without a log".
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from tranlog.clock import SystemClock
from tranlog.pipeline.upkeep.copying import CopyResult, copy_tables
from tranlog.service.commands.cli import main
from tranlog.service.config.urls import source_url, target_url
from tranlog.service.frame.exits import ExitCode
from tranlog.source.kinds import source_kind
from tranlog.target.options import open_target
from tranlog.testing.servers import Address, MariaDbAddress, MariaDbServer, PostgresAddress

pytestmark = pytest.mark.integration

KINDS = ("sqlite", "mariadb", "postgres")
Line = tuple[int, str, str]


class Origin:
    """A source that nothing was prepared at: `run` runs a statement as its owner, `url` is of a user who may SELECT."""

    def __init__(self, url: str, schema: str, run: Callable[[str], object]) -> None:
        self.url = url
        self.schema = schema
        self.run = run

    def table(self, name: str) -> str:
        return f"{self.schema}.{name}"


def of_user(server: Address, database: str, user: str) -> str:
    scheme, _, rest = server.dsn(database).partition("://")
    return f"{scheme}://{user}@{rest.partition('@')[2]}"


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def origin(request: pytest.FixtureRequest, tmp_path: Path, undo: ExitStack) -> Origin:
    """Three tables: of types, without a key, and one that refers to the first."""
    user = f"reader_{uuid.uuid4().hex[:8]}"
    match request.param:
        case "sqlite":
            path = tmp_path / "source.db"

            def at_file(sql: str) -> object:
                with closing(apsw.Connection(str(path))) as db:
                    return db.execute(sql).fetchall()

            at_file("PRAGMA journal_mode = WAL")
            found = Origin(f"sqlite:///{path}", "main", at_file)
        case "mariadb":
            server: MariaDbAddress = request.getfixturevalue("mariadb")
            name: str = request.getfixturevalue("mariadb_database")
            server.execute(f"CREATE USER {user}@'%'")
            server.execute(f"GRANT SELECT ON {name}.* TO {user}@'%'")
            undo.callback(lambda: server.execute(f"DROP USER {user}@'%'"))
            found = Origin(of_user(server, name, user), name, lambda sql: server.execute(sql, database=name))
        case _:
            other: PostgresAddress = request.getfixturevalue("postgres")
            base: str = request.getfixturevalue("postgres_database")
            other.execute(f"CREATE ROLE {user} LOGIN")
            other.execute(f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {user}", database=base)
            undo.callback(lambda: other.execute(f"DROP ROLE {user}"))
            found = Origin(of_user(other, base, user), "public", lambda sql: other.execute(sql, database=base))
    found.run("CREATE TABLE items(id INTEGER PRIMARY KEY, name VARCHAR(20), price DECIMAL(10, 2), at DATE)")
    found.run("CREATE TABLE notes(body TEXT)")
    found.run("CREATE TABLE parts(n INTEGER PRIMARY KEY, item INTEGER REFERENCES items(id))")
    found.run("INSERT INTO items VALUES(1, 'a', 1.50, '2026-01-02'), (2, NULL, NULL, NULL), (-3, 'é', 0, '1999-12-31')")
    found.run("INSERT INTO notes VALUES('x'), ('x'), (NULL)")
    found.run("INSERT INTO parts VALUES(1, 2), (2, -3)")
    return found


@pytest.fixture
def into(request: pytest.FixtureRequest, tmp_path: Path, undo: ExitStack) -> str:
    """The URL of an empty target; not the one whose server is a source."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'target.db'}"
        case "mariadb":
            server: MariaDbServer = request.getfixturevalue("mariadb_target")
            return server.dsn(request.getfixturevalue("mariadb_target_database"))
    other: PostgresAddress = request.getfixturevalue("postgres")
    name = f"target_{uuid.uuid4().hex[:8]}"
    other.execute(f"CREATE DATABASE {name}")
    undo.callback(lambda: other.execute(f"DROP DATABASE {name} WITH (FORCE)"))
    return other.dsn(name)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Line:
    code = main(["copy", *words])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return int(code), told.out, told.err


def left_at_target(url: str) -> list[str]:
    """Return the names of the tables of ours that are there."""
    with closing(open_target(target_url(url).target())) as target:
        return target.positions.pipelines()


@pytest.mark.parametrize("into", KINDS, indirect=True)
@pytest.mark.parametrize("origin", KINDS, indirect=True)
def test_each_kind_into_each(origin: Origin, into: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, origin.url, into, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["equal"] and found["rows"] == 8
    assert {one["table"]: (one["rows"], one["made"]) for one in found["tables"]} == {
        origin.table(name): (rows, True) for name, rows in (("items", 3), ("notes", 3), ("parts", 2))
    }
    assert left_at_target(into) == []
    code, _, err = run(capsys, origin.url, into)
    assert code == 3 and f"{origin.table('items')}: it has rows already" in err


@pytest.mark.parametrize("into", ["sqlite"], indirect=True)
@pytest.mark.parametrize("origin", KINDS, indirect=True)
def test_all_tables_are_of_one_moment(origin: Origin, into: str) -> None:
    """While the source is written to between two tables, and before both sides are compared."""
    writes = [
        "INSERT INTO parts VALUES(3, NULL)",
        "DELETE FROM notes",
        "UPDATE items SET name = 'late'",
    ]

    def report(what: str, done: int) -> None:
        if writes:
            origin.run(writes.pop())

    source = source_url(origin.url).source()
    kind = source_kind(source.kind)
    target = open_target(target_url(into).target())
    with closing(target), closing(kind.at_once(source, [])) as reader:
        result: CopyResult = copy_tables(
            reader, target, origin="here", wanted=[], holder="test", clock=SystemClock(), report=report
        )
    assert not writes and result.equal
    assert {one.table: one.rows for one in result.tables} == {
        origin.table("items"): 3,
        origin.table("notes"): 3,
        origin.table("parts"): 2,
    }


@pytest.mark.parametrize("into", ["sqlite"], indirect=True)
@pytest.mark.parametrize("origin", KINDS, indirect=True)
def test_some_tables(origin: Origin, into: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--tables", f"{origin.table('parts')},{origin.table('notes')}", origin.url, into)
    assert code == 0 and out.splitlines()[-1] == "copied 2 tables, 5 rows"
    code, _, err = run(capsys, "--tables", "no.such", origin.url, into)
    assert code == 2 and "--tables = 'no.such'" in err


@pytest.mark.parametrize("into", ["sqlite"], indirect=True)
@pytest.mark.parametrize("origin", ["postgres"], indirect=True)
def test_a_postgres_is_left_as_it_was(
    origin: Origin, into: str, capsys: pytest.CaptureFixture[str], postgres: PostgresAddress, tmp_path: Path
) -> None:
    """Neither slot nor publication, also after a run that failed; wal_level and identity untouched."""

    def seen() -> Any:
        return origin.run(
            "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication), "
            "(SELECT string_agg(relname || relreplident::text, ',' ORDER BY relname) FROM pg_class "
            "WHERE relkind = 'r'), "
            "current_setting('wal_level')"
        )

    before = seen()
    origin.run("INSERT INTO items VALUES(4, 'b', 'NaN', NULL)")
    with closing(apsw.Connection(str(tmp_path / "target.db"))) as db:
        db.execute('CREATE TABLE "public.items"(id INTEGER PRIMARY KEY, name TEXT NOT NULL, price TEXT, at DATE)')
    code, _, err = run(capsys, origin.url, into)
    assert code == 3 and "public.items: the row (id=2): NOT NULL constraint failed" in err
    with closing(apsw.Connection(str(tmp_path / "target.db"))) as db:
        db.execute('DROP TABLE "public.items"')
    assert run(capsys, origin.url, into)[0] == 0
    assert seen() == before


@pytest.mark.parametrize("into", ["sqlite"], indirect=True)
@pytest.mark.parametrize("origin", ["postgres"], indirect=True)
def test_tables_that_may_not_be_read(origin: Origin, into: str, capsys: pytest.CaptureFixture[str]) -> None:
    user = origin.url.partition("://")[2].partition("@")[0]
    origin.run(f"REVOKE SELECT ON notes FROM {user}")
    code, _, err = run(capsys, origin.url, into)
    assert code == 4 and f'GRANT SELECT ON "public"."notes" TO {user}' in err
    assert run(capsys, "--tables", "public.items", origin.url, into)[0] == 0


@pytest.mark.parametrize("into", ["sqlite"], indirect=True)
@pytest.mark.parametrize("origin", ["mariadb"], indirect=True)
def test_a_table_without_transactions(origin: Origin, into: str, capsys: pytest.CaptureFixture[str]) -> None:
    origin.run("ALTER TABLE notes ENGINE = MyISAM")
    code, _, err = run(capsys, origin.url, into)
    assert code == 4 and f"ALTER TABLE `{origin.schema}`.`notes` ENGINE = InnoDB" in err
    assert run(capsys, "--tables", origin.table("items"), origin.url, into)[0] == 0


@pytest.mark.parametrize("into", ["sqlite"], indirect=True)
@pytest.mark.parametrize("origin", ["postgres"], indirect=True)
def test_a_partitioned_table_is_one_table(origin: Origin, into: str, capsys: pytest.CaptureFixture[str]) -> None:
    origin.run("CREATE TABLE split(id INT PRIMARY KEY) PARTITION BY RANGE (id)")
    origin.run("CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (10)")
    origin.run("CREATE TABLE split_2 PARTITION OF split FOR VALUES FROM (10) TO (20)")
    origin.run("INSERT INTO split VALUES (1), (11), (12)")
    code, out, _ = run(capsys, origin.url, into, "--json")
    assert code == 0
    assert {one["table"]: one["rows"] for one in json.loads(out)["tables"]}["public.split"] == 3


@pytest.mark.parametrize("origin", KINDS, indirect=True)
def test_the_target_is_the_source(origin: Origin, capsys: pytest.CaptureFixture[str]) -> None:
    same = origin.url.replace("127.0.0.1", "localhost") if "postgres" in origin.url else origin.url
    code, _, err = run(capsys, origin.url, same)
    other = "server, since tables keep their database" if "mariadb" in origin.url else "database"
    assert code == 2 and f"TARGET_URL: it is the source; name another {other}. " in err


@pytest.mark.parametrize("into", ["mariadb", "postgres"], indirect=True)
@pytest.mark.parametrize("origin", ["sqlite"], indirect=True)
def test_a_database_that_is_not_there(origin: Origin, into: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"none_{uuid.uuid4().hex[:8]}"
    code, _, err = run(capsys, origin.url, into.rpartition("/")[0] + f"/{name}")
    assert code == 4 and f"run there: CREATE DATABASE {name}. Fix that" in err


@pytest.mark.parametrize("into", KINDS, indirect=True)
@pytest.mark.parametrize("origin", ["sqlite"], indirect=True)
def test_a_target_that_a_pipeline_fills(origin: Origin, into: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = open_target(target_url(into).target())
    with closing(target):
        target.positions.ensure_tables()
        target.positions.take(
            pipeline="shop",
            expected_token=0,
            holder="test",
            channels=1,
            shard_rule="",
            rows=[],
            keep_assignment=False,
        )
    code, _, err = run(capsys, origin.url, into)
    assert code == 2 and "it is filled by shop" in err
    assert left_at_target(into) == ["shop"]


@pytest.mark.parametrize("into", ["postgres"], indirect=True)
@pytest.mark.parametrize("origin", ["sqlite"], indirect=True)
def test_a_copy_killed_in_the_middle(origin: Origin, into: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By kill -9, with rows at the target."""
    origin.run(
        "INSERT INTO items WITH RECURSIVE n(n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM n LIMIT 50000) "
        "SELECT n, 'name', n, '2026-01-01' FROM n"
    )
    command = [sys.executable, "-m", "tranlog", "copy", origin.url, into]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as copying:
        deadline = time.monotonic() + 60
        while left_at_target(into) == [] and copying.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        copying.send_signal(signal.SIGKILL)
    assert copying.returncode == -signal.SIGKILL, "killed before its end"
    assert left_at_target(into) == ["tranlog_copy"]
    code, out, err = run(capsys, origin.url, into)
    assert code == 0, err
    assert out.splitlines()[-1] == "copied 3 tables, 50008 rows"
    assert left_at_target(into) == []


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("oracle://h/x", "sqlite:///t.db"), "SOURCE_URL = 'oracle'"),
        (("sqlite:///s.db", "t.db"), "TARGET_URL: a database is named by"),
        (("sqlite://host/s.db", "sqlite:///t.db"), "SOURCE_URL: reads sqlite:///"),
        (("mariadb://h", "sqlite:///t.db"), "SOURCE_URL: names no database"),
        (("mariadb://h/d?ssl_ca=x", "sqlite:///t.db"), "a MariaDB source has no ssl_ca"),
        (("sqlite:///s.db", "mariadb://h/d?x=1"), "TARGET_URL: has x, which is not known"),
    ],
)
def test_urls_that_name_no_database(words: tuple[str, str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2 and what in err, err


def test_a_copy_of_fewer_tables_empties_one_whose_schema_has_a_dot(
    postgres: PostgresAddress, postgres_database: str, postgres_source: PostgresAddress, postgres_source_database: str
) -> None:
    """The second copy wants another table alone, and what the first one left of this one is not taken for whole."""
    source = postgres_source.dsn(postgres_source_database)
    for sql in (
        'CREATE SCHEMA "A.b"; CREATE TABLE "A.b".c AS VALUES (1), (2)',
        "CREATE SCHEMA z; CREATE TABLE z.z AS SELECT 1 AS n",
    ):
        postgres_source.execute(sql, database=postgres_source_database)
    target = postgres.dsn(postgres_database)
    postgres.execute("CREATE SCHEMA z; CREATE TABLE z.z (n int CHECK (n > 1))", database=postgres_database)
    assert main(["copy", source, target]) == ExitCode.DATA
    copied = 'SELECT count(*) FROM "A.b".c'
    assert postgres.execute(copied, database=postgres_database) == [(2,)]
    postgres.execute("ALTER TABLE z.z DROP CONSTRAINT z_n_check", database=postgres_database)
    assert main(["copy", "--tables", "z.z", source, target]) == ExitCode.DONE
    assert postgres.execute(copied, database=postgres_database) == [(0,)]


def test_a_copy_of_fewer_tables_empties_first_what_refers_to_others(
    postgres: PostgresAddress, postgres_database: str, postgres_source: PostgresAddress, postgres_source_database: str
) -> None:
    """Foreign keys of the target's own tables hold, between tables that are wanted and those that are not any more."""
    source, target = postgres_source.dsn(postgres_source_database), postgres.dsn(postgres_database)
    tables = "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY, up int REFERENCES p)"
    rows = "INSERT INTO p VALUES (1), (2); INSERT INTO c VALUES (1, 1), (2, 2)"
    postgres_source.execute(f"{tables}; {rows}", database=postgres_source_database)
    postgres.execute(
        f"{tables}; CREATE RULE r AS ON INSERT TO c DO ALSO UPDATE c SET up = 1", database=postgres_database
    )
    assert main(["copy", source, target]) == ExitCode.CHECK_FAILED
    postgres.execute("DROP RULE r ON c", database=postgres_database)
    assert main(["copy", "--tables", "public.c", source, target]) == ExitCode.DATA  # its parents are not copied
    assert postgres.execute("SELECT * FROM c, p", database=postgres_database) == []
    assert main(["copy", source, target]) == ExitCode.DONE

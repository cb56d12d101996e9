"""`tranlog verify --live` with capture, pipeline and writers at work: all kinds of sources and targets.

Proves: both sides busy, the command says equal; a row that was changed, one that was deleted and one that was added at
the target are named with both values, and `--repair` brings them back while all goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pymysql
import pytest

from fix_pipeline import Threads, take, tasks_for
from tranlog.ids import NO_SEQNO
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.service.commands.cli import main
from tranlog.service.config.config import load
from tranlog.service.process.capturing import CaptureThread, open_capture
from tranlog.source.sqlite import connect, install
from tranlog.target.options import open_target
from tranlog.testing.servers import MariaDbServer, PostgresServer

KINDS = ("sqlite", "mariadb", "postgres")
EACH_ONCE = (("sqlite", "mariadb"), ("mariadb", "postgres"), ("postgres", "sqlite"))
PLAN = ShardPlan(channels=2)
TABLES = (
    "CREATE TABLE item (id INTEGER PRIMARY KEY, n INTEGER, note VARCHAR(40))",
    "CREATE TABLE line (a INTEGER, b VARCHAR(40))",
)
BUSY_KEYS = 200
"""Rows with keys below are written all the time; the others rest."""
Run = Callable[[str], None]


class Place:
    """A database: what a configuration has of it as a source or a target, its schema, and its sessions."""

    def __init__(self, kind: str, keys: str, schema: str, session: Callable[[], contextlib.closing[Any]]) -> None:
        self.kind, self.keys, self.schema, self.session = kind, keys, schema, session

    def run(self, *statements: str) -> None:
        with self.session() as session:
            for sql in statements:
                execute(session, sql)


def execute(session: Any, sql: str) -> None:
    if isinstance(session, pymysql.connections.Connection):
        with session.cursor() as cursor:
            cursor.execute(sql)
    else:
        session.execute(sql)


def sqlite_place(path: Path, open_at: Callable[[str], Any]) -> Place:
    return Place("sqlite", f'path = "{path}"', "main", lambda: contextlib.closing(open_at(str(path))))


def at_target(path: str) -> apsw.Connection:
    connection = apsw.Connection(path)
    connection.set_busy_timeout(60_000)
    return connection


def mariadb_place(server: MariaDbServer, database: str, *, source: bool) -> Place:
    keys = f'port = {server.port}\ndatabases = ["{database}"]' if source else f'dsn = "{server.dsn(database)}"'
    return Place("mariadb", keys, database, lambda: contextlib.closing(server.connect(database=database)))


def postgres_place(server: PostgresServer, database: str, *, source: bool) -> Place:
    keys = f'dsn = "{server.dsn(database)}"' + ('\nidentity = "set"' if source else "")
    session = lambda: contextlib.closing(psycopg.connect(server.dsn(database), autocommit=True))  # noqa: E731
    return Place("postgres", keys, "public", session)


class Job:
    """Source and target, capture and two channels in threads, and a writer on each side, until it is closed."""

    def __init__(self, folder: Path, source: Place, target: Place, *, more: tuple[str, ...] = ()) -> None:
        self.source, self.target = source, target
        self.file = folder / "tranlog.toml"
        renamed = f'[[filter]]\nkind = "rename"\nschema = "{source.schema}"\nto = "{target.schema}"\n'
        self.file.write_text(
            f'[source]\nkind = "{source.kind}"\n{source.keys}\n[log]\ndir = "{folder / "log"}"\n[target]\n'
            f'kind = "{target.kind}"\n{target.keys}\nddl = "follow"\n[pipeline]\nname = "p"\n'
            + (renamed if source.schema != target.schema else "")
        )
        self.config = load(str(self.file), environ={})
        filled = [f"INSERT INTO item VALUES ({key}, 0, 'é {key}')" for key in range(0, 600, 2)]
        source.run(*TABLES, *more, *filled, *["INSERT INTO line VALUES (1, 'x')"] * 3)
        target.run("CREATE TABLE beside (n INTEGER)")
        if source.kind == "sqlite":
            install(str(self.config.wanted_source().where))
        self._stop = threading.Event()
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(place, do), daemon=True)
            for place, do in ((source, self._at_source), (target, self._at_target))
        ]
        self._opened = contextlib.ExitStack()
        capture, log = self._opened.enter_context(open_capture(self.config, new_log=False))
        self._capture = CaptureThread(capture, ended=lambda: None)
        self._capture.start()
        while not capture.begun and self._capture.error is None:  # a PostgreSQL has no publication before
            time.sleep(0.01)
        options = self.config.apply_options()
        with contextlib.closing(open_target(self.config.wanted_target())) as opened:
            opened.positions.ensure_tables()
        self._token = take(options.target, PLAN)
        tasks = tasks_for(options.target, Path(log.path), PLAN, self._token, until=None, filters=options.filters)
        self._channels = Threads(tasks)
        for thread in self._threads:
            thread.start()

    def _write(self, place: Place, do: Callable[[int], str]) -> None:
        try:
            with place.session() as session:
                for number in itertools.count():
                    if self._stop.wait(0.01):
                        return
                    execute(session, do(number))
        except BaseException as exc:
            self.failures.append(exc)
            raise

    def _at_source(self, number: int) -> str:
        key = number * 7 % BUSY_KEYS
        match number % 4:
            case 0:
                return f"DELETE FROM item WHERE id = {key}"
            case 1:
                return f"INSERT INTO item SELECT {key}, 1, 'new' WHERE NOT EXISTS (SELECT 1 FROM item WHERE id = {key})"
            case 2:
                return f"INSERT INTO line VALUES ({number}, 'line')"
            case _:
                return f"UPDATE item SET n = n + 1 WHERE id BETWEEN {key} AND {min(key + 20, BUSY_KEYS - 1)}"

    def _at_target(self, number: int) -> str:
        return f"INSERT INTO beside VALUES ({number})"

    def close(self) -> None:
        self._stop.set()
        with contextlib.closing(open_target(self.config.wanted_target())) as target:
            target.positions.request_stop(pipeline="p", token=self._token, stop_at_seqno=NO_SEQNO)
        results = self._channels.join()
        self._capture.stop()
        self._opened.close()
        for thread in self._threads:
            thread.join()
        assert self._capture.error is None
        assert [result.error for result in results] == [None] * PLAN.channels
        assert self.failures == []

    def verify(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(["--conf", str(self.file), "verify", "--live", "--json", "--timeout", "90", *words])
        out, err = capsys.readouterr()
        assert out, (code, err)
        return code, json.loads(out)


def places(request: pytest.FixtureRequest, source: str, target: str, folder: Path) -> tuple[Place, Place]:
    value = request.getfixturevalue
    match source:
        case "sqlite":
            first = sqlite_place(folder / "source.db", _source_of)
        case "mariadb":
            first = mariadb_place(value("mariadb"), value("mariadb_database"), source=True)
        case _:
            first = postgres_place(value("postgres_source"), value("postgres_source_database"), source=True)
    match target:
        case "sqlite":
            second = sqlite_place(folder / "target.db", at_target)
        case "mariadb":
            second = mariadb_place(value("mariadb_target"), value("mariadb_target_database"), source=False)
        case _:
            second = postgres_place(value("postgres"), value("postgres_database"), source=False)
    return first, second


def _source_of(path: str) -> Any:
    """Return a connection that is captured, once there is a source."""
    if os.path.exists(path):
        return connect(path)
    return apsw.Connection(path)


def live(request: pytest.FixtureRequest, source: str, target: str, folder: Path, capsys: Any) -> None:
    job = Job(folder, *places(request, source, target, folder))
    with contextlib.closing(job):
        deadline = time.monotonic() + 90
        code, first = job.verify(capsys)
        while code:  # until the first load has come to the target
            assert time.monotonic() < deadline, first
            assert {one["verdict"] for one in first["tables"]} <= {"equal", "not judged"}, first
            code, first = job.verify(capsys)
        assert (first["equal"], len(first["tables"])) == (True, 2)
        assert first["verified_through"] == max(one["seqno"] for one in first["tables"])
        job.target.run(
            "UPDATE item SET n = 77 WHERE id = 500",
            "DELETE FROM item WHERE id = 502",
            "INSERT INTO item VALUES (503, 0, 'stray')",
        )
        code, found = job.verify(capsys, "--repair", "--rows", "5")
        (differed,) = found["repaired"]
        assert differed["table"] == f"{job.source.schema}.item"
        assert dict(differed["detail"]["differences"]) == {
            "id=500": "n: 0 at the source, 77 at the target",
            "id=502": "missing at the target",
            "id=503": "only at the target",
        }
        assert (code, found["equal"], len(found["tables"])) == (0, True, 2), found
        assert found["verified_through"] > first["verified_through"] > 0


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("source", "target"), EACH_ONCE)
def test_a_difference_is_found_and_repaired_while_both_sides_are_written(
    request: pytest.FixtureRequest, source: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live(request, source, target, tmp_path, capsys)


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("source", "target"), [("mariadb", "postgres"), ("postgres", "mariadb"), ("postgres", "sqlite")]
)
def test_tables_that_are_emptied_meanwhile_are_equal(
    request: pytest.FixtureRequest, source: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A TRUNCATE between what is read at the source and what is read at the target; the schema keeps its name."""
    first, second = places(request, source, target, tmp_path)
    second.schema = first.schema
    with contextlib.closing(Job(tmp_path, first, second)) as job:
        deadline = time.monotonic() + 90
        while job.verify(capsys)[0]:
            assert time.monotonic() < deadline
        stop = threading.Event()

        def empty() -> None:
            for number in itertools.count(1000):
                if stop.wait(0.2):
                    return
                job.source.run("TRUNCATE line", "TRUNCATE item", f"INSERT INTO item VALUES ({number}, 1, 'new')")

        emptying = threading.Thread(target=empty, daemon=True)
        emptying.start()
        for _ in range(3):
            _, found = job.verify(capsys)
            assert {one["verdict"] for one in found["tables"]} <= {"equal", "not judged"}, found
        stop.set()
        emptying.join()
        code, found = job.verify(capsys)
        assert (code, found["equal"]) == (0, True), found


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", ["mariadb", "postgres"])
def test_a_repair_brings_again_what_foreign_keys_at_the_target_take_along(
    request: pytest.FixtureRequest, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source has no such key, and the table that refers stands first by its name."""
    first, second = places(request, "sqlite", target, tmp_path)
    child = "CREATE TABLE a_child (id INTEGER PRIMARY KEY, up INTEGER)"
    filled = [f"INSERT INTO a_child VALUES ({number}, {200 + 2 * number})" for number in range(100)]
    with contextlib.closing(Job(tmp_path, first, second, more=(child, *filled))) as job:
        deadline = time.monotonic() + 90
        while job.verify(capsys)[0]:
            assert time.monotonic() < deadline
        job.target.run(
            "ALTER TABLE a_child ADD FOREIGN KEY (up) REFERENCES item (id) ON DELETE CASCADE",
            "UPDATE item SET n = 77 WHERE id = 500",
        )
        code, found = job.verify(capsys, "--repair", "--tables", "main.item")
        assert [one["table"] for one in found["repaired"]] == ["main.item"]
        assert found["loaded"] == ["main.item", "main.a_child"]
        assert [(one["table"], one["verdict"]) for one in found["tables"]] == [
            ("main.item", "equal"),
            ("main.a_child", "equal"),
        ]
        assert (code, found["tables"][1]["detail"]["target_rows"]) == (0, 100)
        # A table of somebody else's would lose its rows, so the one that differs stays as it is.
        job.target.run(
            "CREATE TABLE theirs AS SELECT id FROM item WHERE id >= 300",
            "ALTER TABLE theirs ADD FOREIGN KEY (id) REFERENCES item (id) ON DELETE CASCADE",
            "UPDATE item SET n = 78 WHERE id = 500",
        )
        code, found = job.verify(capsys, "--repair")
        assert (code, found["repaired"], found["loaded"]) == (1, [], [])
        assert [one["table"] for one in found["tables"] if one["verdict"] == "differs"] == ["main.item"]


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_schema_and_a_table_may_have_dots_in_their_names(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = (
        'CREATE SCHEMA "Sel.ect"',
        'CREATE TABLE "Sel.ect"."Ta.ble" (id INTEGER PRIMARY KEY)',
        'INSERT INTO "Sel.ect"."Ta.ble" VALUES (1), (2)',
    )
    with contextlib.closing(Job(tmp_path, *places(request, "postgres", "postgres", tmp_path), more=more)) as job:
        deadline = time.monotonic() + 90
        code, found = job.verify(capsys)
        while code and time.monotonic() < deadline:
            code, found = job.verify(capsys)
        (dotted,) = [one for one in found["tables"] if one["table"] == "Sel.ect.Ta.ble"]
        assert (code, dotted["verdict"], dotted["detail"]["source_rows"]) == (0, "equal", 2)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("source", "target"), [pair for pair in itertools.product(KINDS, KINDS) if pair not in EACH_ONCE]
)
def test_each_kind_is_verified_against_each_other(
    request: pytest.FixtureRequest, source: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live(request, source, target, tmp_path, capsys)

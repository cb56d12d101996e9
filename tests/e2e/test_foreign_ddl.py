"""A plain program changes the tables of a SQLite that triggers capture, and a PostgreSQL that follows has all of it.

docs/sources-sqlite.md, "Tables that such a program changes".
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tranlog.testing.servers import PostgresAddress

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(400)]

WAIT_S = 150.0
CONFIG = """\
[service]
name = "shop"
[source]
kind = "sqlite"
path = "shop.db"
foreign_writes = "capture_by_trigger"
load = "all"
[log]
dir = "log"
[target]
kind = "postgres"
dsn = "{dsn}"
ddl = "follow"
"""


def until(look: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert process.poll() is None and time.monotonic() < deadline, (folder / "run.err").read_text()
        time.sleep(0.2)


def test_what_a_plain_program_does_to_the_tables_arrives(
    postgres: PostgresAddress, postgres_database: str, tmp_path: Path
) -> None:
    dsn = postgres.dsn(postgres_database)
    (tmp_path / "tranlog.toml").write_text(CONFIG.format(dsn=dsn))

    def program(*statements: str) -> None:
        with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None, timeout=60)) as db:
            for sql in statements:
                db.execute(sql)

    def target(sql: str) -> list[tuple[object, ...]]:
        try:
            with psycopg.connect(dsn) as db:
                return db.execute(sql.encode()).fetchall()
        except psycopg.Error:  # not made yet
            return []

    program(
        "CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT)",
        "CREATE TABLE parts(id INTEGER PRIMARY KEY, item INT)",
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
        "INSERT INTO items SELECT i, 'i' || i FROM n",
    )
    with (tmp_path / "run.err").open("wb") as errors:
        run = subprocess.Popen([sys.executable, "-m", "tranlog", "run"], cwd=tmp_path, stderr=errors)
    try:
        until(lambda: target("SELECT count(*) FROM main.items") == [(500,)], run, tmp_path)
        program(
            "ALTER TABLE items ADD COLUMN size INT DEFAULT 4",
            "UPDATE items SET size = id WHERE id > 490",
            "INSERT INTO items VALUES(1000, 'last', NULL)",
            "ALTER TABLE parts RENAME COLUMN item TO of_item",
            "INSERT INTO parts VALUES(1, 1000)",
        )
        until(lambda: target("SELECT size FROM main.items WHERE id IN (1, 500)") == [(4,), (500,)], run, tmp_path)
        program("ALTER TABLE items ADD COLUMN note TEXT", "UPDATE items SET note = 'of ' || name WHERE id < 3")
        until(lambda: target("SELECT note FROM main.items WHERE id = 2") == [("of i2",)], run, tmp_path)
        until(lambda: target("SELECT of_item FROM main.parts") == [(1000,)], run, tmp_path)
    finally:
        run.send_signal(signal.SIGTERM)
        code = run.wait(WAIT_S)
    assert code == 0, (tmp_path / "run.err").read_text()
    verify = [sys.executable, "-m", "tranlog", "verify"]
    done = subprocess.run(verify, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0 and "source and target are equal" in done.stdout, done.stdout + done.stderr

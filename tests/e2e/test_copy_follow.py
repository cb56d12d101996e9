"""`tranlog copy --follow` from a PostgreSQL as `CREATE TABLE` leaves it into a MariaDB: what it lacks, load, stream.

docs/operations.md, "Copying tables without a log".
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tranlog.testing.servers import MariaDbServer, PostgresServer

pytestmark = [pytest.mark.e2e, pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(400)]

WAIT_S = 150.0


class Copying:
    """The command in a folder, with the same words each time."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.command = [sys.executable, "-m", "tranlog", "copy", "--follow", *words]

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "copy.err").open("ab") as errors:
            return subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=errors)

    def said(self) -> str:
        return (self.folder / "copy.err").read_text()

    def refused(self) -> str:
        done = subprocess.run(self.command, cwd=self.folder, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 4, done.stderr
        assert "nothing was made" in done.stderr and "`tranlog init --from SOURCE_URL" in done.stderr
        return done.stdout


def until(look: Callable[[], bool], process: subprocess.Popen[bytes], said: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert process.poll() is None, said()
        assert time.monotonic() < deadline, said()
        time.sleep(0.2)


def test_a_postgres_is_followed_into_a_mariadb(
    start_postgres: Callable[..., PostgresServer],
    mariadb_target: MariaDbServer,
    mariadb_target_database: str,
    tmp_path: Path,
) -> None:
    source = start_postgres()

    def at_source(*statements: str) -> None:
        for statement in statements:
            source.execute(statement)

    at_source(
        "CREATE TABLE items(id INT PRIMARY KEY, name TEXT)",
        "CREATE TABLE parts(n INT PRIMARY KEY, item INT REFERENCES items)",
        "INSERT INTO items SELECT n, 'name ' || n FROM generate_series(1, 5000) n",
        "INSERT INTO parts SELECT n, n FROM generate_series(1, 100) n",
    )
    copying = Copying(tmp_path, source.dsn(), mariadb_target.dsn(mariadb_target_database))

    # What it lacks, all of it at once, and nothing is made.
    told = copying.refused()
    assert "ALTER SYSTEM SET wal_level = 'logical'" in told
    for table in ("items", "parts"):
        assert f'ALTER TABLE "public"."{table}" REPLICA IDENTITY FULL' in told
    assert not list(tmp_path.glob("copy-of-*")) and source.execute("SELECT * FROM pg_publication") == []
    source.options = {**source.options, "wal_level": "logical"}
    source.restart()
    told = copying.refused()
    assert "wal_level" not in told and "REPLICA IDENTITY FULL" in told
    at_source("ALTER TABLE items REPLICA IDENTITY FULL", "ALTER TABLE parts REPLICA IDENTITY FULL")

    def at_target(sql: str) -> list[tuple[object, ...]]:
        try:
            return mariadb_target.execute(sql)
        except Exception:  # not made yet
            return []

    # The rows that are there; kill -9; what came meanwhile, and an added column.
    process = copying.start()
    try:
        until(lambda: at_target("SELECT count(*) FROM public.items") == [(5000,)], process, copying.said)
    finally:
        process.kill()
        process.wait()
    at_source("UPDATE items SET name = 'new' WHERE id = 7", "DELETE FROM parts WHERE n > 50")
    at_source("CREATE TABLE late(id INT PRIMARY KEY, n INT)", "ALTER TABLE late REPLICA IDENTITY FULL")
    at_source("ALTER TABLE late ADD COLUMN more TEXT", "INSERT INTO late VALUES(1, 2, 'three')")
    process = copying.start()
    try:
        until(lambda: at_target("SELECT more FROM public.late") == [("three",)], process, copying.said)
        # A column of a table with rows.
        at_source("ALTER TABLE items ADD COLUMN size INT DEFAULT 4", "UPDATE items SET size = 5 WHERE id = 8")
        until(lambda: at_target("SELECT size FROM public.items WHERE id = 8") == [(5,)], process, copying.said)
        at_source("CREATE TABLE empty(id INT PRIMARY KEY)", "ALTER TABLE empty REPLICA IDENTITY FULL")
        conf = next(tmp_path.glob("copy-of-*/tranlog.toml"))
        assert conf.stat().st_mode & 0o077 == 0
        verify = [sys.executable, "-m", "tranlog", "--conf", str(conf), "verify", "--live", "--timeout", "100"]
        done = subprocess.run(verify, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0 and "source and target are equal" in done.stdout, done.stdout + done.stderr
        assert at_target("SELECT name FROM public.items WHERE id = 7") == [("new",)]
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(WAIT_S)
    assert code == 0, copying.said()

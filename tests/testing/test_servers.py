"""Private servers: they start, answer, survive a kill with what they had, and leave nothing behind.

Proves "Starting servers in tests, as root or not" of the design's sources.md.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tranlog.testing import servers
from tranlog.testing.servers import (
    MariaDbAddress,
    MariaDbServer,
    PostgresAddress,
    PostgresServer,
    ServerFailedError,
    ServerMissingError,
    free_port,
)

KINDS = pytest.mark.parametrize("kind", [MariaDbServer, PostgresServer], ids=["mariadb", "postgres"])

# Starts a server, says where, and waits to be killed.
ORPHANED = """
import sys, time
from tranlog.testing import servers
server = getattr(servers, sys.argv[1])()
server.start()
print(server.pid, server.directory, flush=True)
time.sleep(600)
"""


def processes_in(directory: Path) -> list[int]:
    """Return the processes that stand in a server's directory. A zombie stands nowhere."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if where == str(directory) or where.startswith(f"{directory}/"):
                found.append(int(entry.name))
    return found


def wait_until_empty(directory: Path) -> None:
    deadline = time.monotonic() + 30
    while processes_in(directory):
        assert time.monotonic() < deadline, f"processes left in {directory}: {processes_in(directory)}"
        time.sleep(0.02)


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory that a server which root starts as another user can reach; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="tranlog-test-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.integration
@KINDS
def test_start_kill_start_stop_and_nothing_is_left(kind: type[MariaDbServer] | type[PostgresServer]) -> None:
    """A committed row survives kill -9; after close neither a process nor the directory is there."""
    with kind() as server:
        assert server.execute("SELECT 1") == [(1,)]
        server.execute("CREATE DATABASE shop")
        server.execute("CREATE TABLE item (id INTEGER PRIMARY KEY)", database="shop")
        server.execute("INSERT INTO item VALUES (%s)", (7,), database="shop")
        first = server.pid
        assert first in processes_in(server.directory)

        server.kill()
        assert not server.running
        assert processes_in(server.directory) == []

        server.start()
        assert server.pid != first
        assert server.execute("SELECT id FROM item", database="shop") == [(7,)]

        server.stop()
        assert not server.running
        assert processes_in(server.directory) == []
    assert not server.directory.exists()


@pytest.mark.integration
@KINDS
def test_a_server_ends_with_the_program_that_started_it(
    kind: type[MariaDbServer] | type[PostgresServer], passable: Path
) -> None:
    """kill -9 of the parent ends the server, with nobody there to clean up."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANED, kind.__name__],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(passable)},
    )
    with parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert int(pid) in processes_in(Path(directory))
        parent.send_signal(signal.SIGKILL)
    wait_until_empty(Path(directory))


@pytest.mark.integration
@KINDS
def test_a_given_directory_is_kept_and_found_again(
    kind: type[MariaDbServer] | type[PostgresServer], passable: Path
) -> None:
    """What a server holds outlives the server object when the directory was the caller's."""
    with kind(directory=passable / "server") as server:
        server.execute("CREATE DATABASE shop")
    with kind(directory=passable / "server") as server:
        server.execute("CREATE TABLE item (id INTEGER)", database="shop")
    assert processes_in(passable) == []


@pytest.mark.integration
def test_mariadb_writes_the_binlog_that_capture_wants() -> None:
    """sources.md, "MariaDB": ROW, FULL, FULL; an option replaces one of them, and a restart takes it up."""
    query = "SELECT @@log_bin, @@binlog_format, @@binlog_row_image, @@binlog_row_metadata"
    with MariaDbServer() as server:
        assert server.execute(query) == [(1, "ROW", "FULL", "FULL")]
        server.options["binlog_format"] = "MIXED"
        server.options["binlog_row_metadata"] = None
        server.restart()
        assert server.execute(query) == [(1, "MIXED", "FULL", "NO_LOG")]
        server.options["log_bin"] = None
        server.restart()
        assert server.execute("SELECT @@log_bin") == [(0,)]


@pytest.mark.integration
def test_postgres_keeps_fsync_unless_asked() -> None:
    with PostgresServer() as server:
        assert server.execute("SHOW fsync") == [("on",)]
        server.options["fsync"] = False
        server.restart()
        assert server.execute("SHOW fsync") == [("off",)]


@pytest.mark.integration
@KINDS
def test_an_impossible_option_ends_in_the_servers_own_words(
    kind: type[MariaDbServer] | type[PostgresServer],
) -> None:
    server = kind(options={"no_such_option": 1})
    try:
        with pytest.raises(ServerFailedError, match=r"ended while starting[\s\S]*no[_-]such[_-]option"):
            server.start()
        assert not server.running
    finally:
        server.close()


@pytest.mark.integration
@KINDS
def test_a_taken_port_is_told(kind: type[MariaDbServer] | type[PostgresServer]) -> None:
    """The second server on one port does not pass itself off as started."""
    with kind() as first:
        second = kind()
        second.port = first.port
        try:
            with pytest.raises(ServerFailedError, match=r"ended while starting|taken by another server"):
                second.start()
        finally:
            second.close()
        assert first.execute("SELECT 1") == [(1,)]


@pytest.mark.integration
def test_fixtures_give_each_test_a_database_of_its_own(
    mariadb: MariaDbAddress, mariadb_database: str, postgres: PostgresAddress, postgres_database: str
) -> None:
    mariadb.execute("CREATE TABLE item (id INT)", database=mariadb_database)
    postgres.execute("CREATE TABLE item (id int)", database=postgres_database)
    assert mariadb.dsn(mariadb_database).endswith(f":{mariadb.port}/{mariadb_database}")
    with postgres.connect(postgres_database) as connection:
        assert connection.info.dbname == postgres_database


@KINDS
def test_a_missing_server_names_the_packages(
    kind: type[MariaDbServer] | type[PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test without its server fails with what to install; it is never skipped."""
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(Path, "glob", lambda *_: [])
    with pytest.raises(ServerMissingError, match=r"Install Debian's packages (mariadb-server-core|postgresql)"):
        kind()


def test_an_address_goes_through_its_url() -> None:
    """What a URL must escape comes back as it was."""
    address = MariaDbAddress(host="127.0.0.1", port=3307, user="o'neil@home", password="p/w:%")
    again = MariaDbAddress.from_dsn(address.dsn("shop"))
    assert vars(again) == vars(address)
    assert vars(PostgresAddress.from_dsn("postgresql://127.0.0.1")) == {
        "host": "127.0.0.1",
        "port": 5432,
        "user": "postgres",
        "password": "",
    }
    with pytest.raises(ValueError, match="not a server's URL"):
        MariaDbAddress.from_dsn("/var/run/server.sock")


def test_a_free_port_is_free_and_below_the_ports_of_outgoing_connections() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    assert all(port in servers.PORTS for port in ports)
    assert max(servers.PORTS) < low

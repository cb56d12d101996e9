"""A real MariaDB for tests: one shared by the whole run, a database of it per test, and private ones to kill.

`TRANLOG_TEST_MARIADB=mariadb://user:password@host:port/` puts a server of one's own in the place of the shared one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tranlog.testing.servers import MariaDbAddress, MariaDbServer, OptionValue


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbAddress]:
    """The run's shared MariaDB, binary log on (ROW, FULL, FULL). Never stop it: `start_mariadb` is for that."""
    dsn = os.environ.get("TRANLOG_TEST_MARIADB")
    if dsn:
        yield MariaDbAddress.from_dsn(dsn)
        return
    with MariaDbServer() as server:
        yield server


@pytest.fixture
def mariadb_database(mariadb: MariaDbAddress) -> Iterator[str]:
    """The name of an empty database on the shared MariaDB, dropped after the test."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    mariadb.execute(f"CREATE DATABASE {name}")
    yield name
    mariadb.execute(f"DROP DATABASE {name}")


@pytest.fixture
def start_mariadb() -> Iterator[Callable[..., MariaDbServer]]:
    """Start private servers, for tests that stop, kill or misconfigure one: `start_mariadb(options={...})`."""
    with ExitStack() as servers:

        def start(**arguments: object) -> MariaDbServer:
            return servers.enter_context(MariaDbServer(**arguments))  # type: ignore[arg-type]

        yield start


@pytest.fixture(scope="session")
def mariadb_target() -> Iterator[MariaDbServer]:
    """The run's shared MariaDB to apply into, apart from the one that is captured: their databases have equal names."""
    quick: dict[str, OptionValue] = {  # its own durability is not what is tested
        "innodb_flush_log_at_trx_commit": 0,
        "innodb_flush_method": "nosync",
        "innodb_file_per_table": 0,
        "sync_frm": 0,
    }
    with MariaDbServer(options={"log_bin": None, "max_allowed_packet": 64 << 20, **quick}) as server:
        yield server


@pytest.fixture
def mariadb_target_database(mariadb_target: MariaDbServer) -> Iterator[str]:
    """An empty database there; after the test it is dropped, with every other one that the test made."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with closing(mariadb_target.connect()) as session, session.cursor() as cursor:
        cursor.execute("SHOW DATABASES")
        before = set(cursor.fetchall())
        cursor.execute(f"CREATE DATABASE {name}")
        yield name
        cursor.execute("SET foreign_key_checks = 0")  # they may refer to each other
        cursor.execute("SHOW DATABASES")
        for (made,) in set(cursor.fetchall()) - before:
            cursor.execute("DROP DATABASE `" + made.replace("`", "``") + "`")

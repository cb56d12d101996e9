"""A real MariaDB for tests: one shared by the whole run, a database of it per test, and private ones to kill.

`TRANLOG_TEST_MARIADB=mariadb://user:password@host:port/` puts a server of one's own in the place of the shared one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tranlog.testing.servers import MariaDbAddress, MariaDbServer


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

"""A real PostgreSQL for tests: one shared by the whole run, a database of it per test, and private ones to kill.

`TRANLOG_TEST_POSTGRES=postgresql://user:password@host:port/` puts a server of one's own in the place of the shared
one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tranlog.testing.servers import PostgresAddress, PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresAddress]:
    """The run's shared PostgreSQL. Never stop it: `start_postgres` is for that."""
    dsn = os.environ.get("TRANLOG_TEST_POSTGRES")
    if dsn:
        yield PostgresAddress.from_dsn(dsn)
        return
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_database(postgres: PostgresAddress) -> Iterator[str]:
    """The name of an empty database on the shared PostgreSQL, dropped after the test with whoever is in it."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres.execute(f"CREATE DATABASE {name}")
    yield name
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def start_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Start private servers, for tests that stop, kill or misconfigure one: `start_postgres(options={...})`."""
    with ExitStack() as servers:

        def start(**arguments: object) -> PostgresServer:
            return servers.enter_context(PostgresServer(**arguments))  # type: ignore[arg-type]

        yield start

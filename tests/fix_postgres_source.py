"""Following a PostgreSQL in tests: a server with logical decoding, and transactions put together from fragments."""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fix_mariadb_source import Transaction, comparable
from tranlog.change import Fragment, TableMap
from tranlog.source.postgres import PostgresSource, PostgresSourceOptions, PostgresTables
from tranlog.source.postgres.position import WalPosition, parse_lsn
from tranlog.testing.servers import OptionValue, PostgresAddress, PostgresServer

LOGICAL: dict[str, OptionValue] = {
    "wal_level": "logical",
    "logical_decoding_work_mem": "64kB",
    "max_replication_slots": 40,
    "max_wal_senders": 40,
    "max_prepared_transactions": 4,
    "fsync": False,
}


@pytest.fixture(scope="session")
def postgres_source() -> Iterator[PostgresServer]:
    """The run's shared PostgreSQL to capture from. Never stop it: `start_postgres` is for that."""
    with PostgresServer(options=LOGICAL) as server:
        yield server


@pytest.fixture
def postgres_source_database(postgres_source: PostgresServer) -> Iterator[str]:
    """The name of an empty database there, dropped after the test with its slots and whoever is in it."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    postgres_source.execute(f"CREATE DATABASE {name}")
    yield name
    postgres_source.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
    )
    deadline = time.monotonic() + 20
    while slots := postgres_source.execute(
        f"SELECT slot_name, active FROM pg_replication_slots WHERE database = '{name}'"
    ):
        for slot, active in slots:
            if not active:
                postgres_source.execute(f"SELECT pg_drop_replication_slot('{slot}')")
        assert time.monotonic() < deadline, f"slots in use: {slots}"
    postgres_source.execute(f"DROP DATABASE {name} WITH (FORCE)")


def options_for(server: PostgresAddress, database: str, **changes: object) -> PostgresSourceOptions:
    settings: dict[str, object] = {
        "dsn": server.dsn(database),
        "source_id": f"test-{random.SystemRandom().getrandbits(32):08x}",
        "feedback_s": 0.1,
        **changes,
    }
    return PostgresSourceOptions(**settings)  # type: ignore[arg-type]


class PostgresFollower:
    """A source with what it handed out, put together to transactions; the "log" has all of it at once."""

    def __init__(self, options: PostgresSourceOptions, *, releases: bool = True) -> None:
        self.source = PostgresSource(options)
        self.transactions: list[Transaction] = []
        self._open: list[Fragment] = []
        self._releases = releases

    def read(self, timeout_s: float) -> list[Transaction]:
        """Read once; return the new transactions with content."""
        before = len(self.transactions)
        for fragment in self.source.read(timeout_s):
            self._open.append(fragment)
            if fragment.last:
                self.transactions.append(Transaction(self._open))
                self._open = []
        assert not self._open, "a read ended inside a transaction"
        if self._releases and len(self.transactions) > before:
            self.source.release(self.transactions[-1].event_id)
        return [transaction for transaction in self.transactions[before:] if not transaction.is_noop]

    def wait_for(self, count: int) -> list[Transaction]:
        """Read until so many transactions with content came; return them."""
        found: list[Transaction] = []
        deadline = time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} transactions of {count}"
            found += self.read(0.5)
        assert len(found) == count
        return found

    @property
    def event_id(self) -> str:
        return self.transactions[-1].event_id

    @property
    def lsn(self) -> int:
        return WalPosition.parse(self.event_id).lsn


@pytest.fixture
def follow_postgres() -> Iterator[Callable[..., PostgresFollower]]:
    """Start following a server: `follow(options)`, from now or after an event id."""
    with contextlib.ExitStack() as stack:

        def start(
            options: PostgresSourceOptions, event_id: str | None = None, *, releases: bool = True
        ) -> PostgresFollower:
            follower = PostgresFollower(options, releases=releases)
            stack.callback(follower.source.close)
            follower.source.start(event_id)
            if event_id is None:
                follower.read(0)
            return follower

        yield start


def run(server: PostgresAddress, database: str, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    with server.connect(database) as session:
        for statement in statements:
            session.execute(statement)  # type: ignore[call-overload]


def slot_lsn(server: PostgresAddress, slot: str) -> int:
    """Return what a slot has confirmed."""
    ((lsn,),) = server.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    return parse_lsn(lsn)


def selected(options: PostgresSourceOptions) -> dict[str, tuple[TableMap, Counter[tuple[object, ...]]]]:
    """Return each table's map and rows as SELECT gives them, in canonical form."""
    with contextlib.closing(PostgresTables(options)) as reader:
        return {
            table.table: (table, Counter(comparable(row) for row in reader.rows(table))) for table in reader.tables()
        }

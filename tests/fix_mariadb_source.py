"""Following a MariaDB in tests: transactions put together from fragments, and a replica that must find its rows.

What the binlog gave is held against what a SELECT gives; both are read by code of ours, but from different bytes.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tranlog.change import Change, Fragment, RowChange, Statement, TableMap
from tranlog.clock import Clock, SystemClock
from tranlog.payload import decode
from tranlog.source.mariadb import MariadbSource
from tranlog.source.mariadb.connection import Control, MariadbSourceOptions
from tranlog.source.mariadb.position import BinlogPosition, parse_gtids
from tranlog.source.mariadb.tables import MariadbTables
from tranlog.testing.servers import MariaDbAddress
from tranlog.types import Value, canonical

Row = tuple[Value, ...]


def options_for(server: MariaDbAddress, **changes: object) -> MariadbSourceOptions:
    settings: dict[str, object] = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "source_id": f"test-{random.SystemRandom().getrandbits(32):08x}",
        **changes,
    }
    return MariadbSourceOptions(**settings)  # type: ignore[arg-type]


class ClockAhead(SystemClock):
    """The system's clock, some seconds ahead for whoever waits."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


class Transaction:
    """One whole transaction, as its fragments gave it."""

    def __init__(self, fragments: list[Fragment]) -> None:
        self.fragments = fragments
        self.last = fragments[-1]
        self.event_id = self.last.event_id
        self.shard = self.last.shard_id
        payloads = [decode(fragment.payload) for fragment in fragments]
        self.changes: list[Change] = [change for payload in payloads for change in payload.changes]
        self.metadata = dict(payloads[-1].metadata)
        self.is_noop = payloads[-1].is_noop()

    @property
    def rows(self) -> list[RowChange]:
        return [change for change in self.changes if isinstance(change, RowChange)]

    @property
    def statements(self) -> list[Statement]:
        return [change for change in self.changes if isinstance(change, Statement)]

    @property
    def texts(self) -> list[str | bytes]:
        return [statement.sql for statement in self.statements]


class Follower:
    """A source with what it handed out, put together to transactions."""

    def __init__(self, options: MariadbSourceOptions, clock: Clock | None = None) -> None:
        self.source = MariadbSource(options, clock=clock)
        self.transactions: list[Transaction] = []
        self._open: list[Fragment] = []

    def start(self, event_id: str | None = None) -> Follower:
        self.source.start(event_id)
        return self

    def read(self, timeout_s: float) -> list[Transaction]:
        """Read once; return the new transactions with content."""
        before = len(self.transactions)
        for fragment in self.source.read(timeout_s):
            self._open.append(fragment)
            if fragment.last:
                self.transactions.append(Transaction(self._open))
                self._open = []
        assert not self._open, "a read ended inside a transaction"
        return [transaction for transaction in self.transactions[before:] if not transaction.is_noop]

    def catch_up(self) -> list[Transaction]:
        """Read up to where the server now stands; return the new transactions with content."""
        control = Control(self.source.options)
        try:
            text = control.rows("SELECT @@global.gtid_binlog_pos")[0][0]
        finally:
            control.close()
        wanted = BinlogPosition(gtids=parse_gtids(text)).by_domain()
        found: list[Transaction] = []
        deadline = time.monotonic() + 60
        while True:
            here = BinlogPosition.parse(self.source.status().position).by_domain()
            if all(domain in here and here[domain].sequence >= gtid.sequence for domain, gtid in wanted.items()):
                return found
            assert time.monotonic() < deadline, f"at {here}, not yet at {wanted}"
            found += self.read(1.0)

    def close(self) -> None:
        self.source.close()


def run(server: MariaDbAddress, database: str, *statements: str) -> None:
    """Run statements in one session."""
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def of(database: str, transactions: list[Transaction]) -> list[Transaction]:
    """Leave out the statements that other tests' databases still cause on the shared server."""
    return [t for t in transactions if t.rows or any(s.schema == database for s in t.statements)]


def selected(server: MariaDbAddress, database: str) -> dict[str, tuple[TableMap, Counter[tuple[object, ...]]]]:
    """Return each table's map and rows as SELECT gives them, in canonical form."""
    reader = MariadbTables(options_for(server, databases=(database,)))
    try:
        return {
            table.table: (table, Counter(comparable(row) for row in reader.rows(table))) for table in reader.tables()
        }
    finally:
        reader.close()


def comparable(row: Row) -> tuple[object, ...]:
    return tuple(canonical(value) for value in row)


class Replica:
    """Applies row changes to multisets of rows, and insists that each finds its row."""

    def __init__(self) -> None:
        self.tables: dict[str, Counter[tuple[object, ...]]] = {}

    def apply(self, transaction: Transaction) -> None:
        for change in transaction.rows:
            rows = self.tables.setdefault(change.table.table, Counter())
            if change.before is not None:
                assert rows[comparable(change.before)] > 0, f"{change.op.name} finds no {change.before}"
                rows[comparable(change.before)] -= 1
            if change.after is not None:
                rows[comparable(change.after)] += 1

    def assert_equals(self, tables: dict[str, tuple[TableMap, Counter[tuple[object, ...]]]]) -> None:
        for name, (table, rows) in tables.items():
            ours = +self.tables.get(name, Counter())
            if ours == rows:
                continue
            only_ours, only_theirs = sorted(ours - rows, key=repr), sorted(rows - ours, key=repr)
            for one, other in zip(only_ours, only_theirs, strict=False):
                for column, here, there in zip(table.columns, one, other, strict=True):
                    assert here == there, (
                        f"{name}.{column.name} {column.source_type}: the binlog says {here}, SELECT {there}"
                    )
            assert (only_ours, only_theirs) == ([], []), name


def followers() -> Iterator[Callable[..., Follower]]:
    """Yield `follow(options)`: start following a server, from now or after an event id. The body of a fixture."""
    with contextlib.ExitStack() as stack:

        def start(
            options: MariadbSourceOptions, event_id: str | None = None, *, clock: Clock | None = None
        ) -> Follower:
            follower = Follower(options, clock)
            stack.callback(follower.close)
            follower.start(event_id)
            if event_id is None:
                follower.read(0)
            if event_id is not None or options.start != "now":
                follower.catch_up()
            return follower

        yield start

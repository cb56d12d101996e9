"""Many channels inside one schema: what does `[shards] by = "writes"` bring a load like TPC-C's?

Eight warehouses in one schema, with composite and foreign keys, at the target too: new orders, payments and deliveries,
about nine row changes a transaction. The same transactions go to a target that does nothing, to PostgreSQL beside its
own logical subscription, and to MariaDB beside its own replica, with one thread and, for information, with four. One
more load updates one row in each transaction, which no channels can divide, and one has a single warehouse. Rates are
counted without a start, as in `apply_postgres`; how parallel the load is at best is computed from its log, as
`tranlog log critical-path` does.
"""

from __future__ import annotations

import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from frame import Bench, Must, Question, at_least, run
from shop import CatchUp, applied, configure, python, watch

from tranlog.change import Change, Column, ForeignKey, Op, RowChange, TableMap
from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.upkeep.critical_path import critical_path
from tranlog.row_touches import RowTouches
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import MariaDbServer, PostgresServer
from tranlog.types import LogicalType

TRANSACTIONS = 20_000
TRY_TRANSACTIONS = 6_000
CHANNELS = 4
SCHEMA = "tpcc"
WAREHOUSES, DISTRICTS, CUSTOMERS, ITEMS = 8, 10, 100, 200
PATIENCE_S = 900.0
LOOK_S = 0.02
BY_WRITES = '[shards]\nby = "writes"\n'

QUESTION = Question(
    name="by_writes",
    text="How fast does `tranlog apply` catch up with a TPC-C-like load in one schema, by write sets?",
    peer="in each row the one that it names",
)


def _table(name: str, columns: str, key: int, references: Sequence[tuple[str, str, str]] = ()) -> TableMap:
    """Return a table of integers, of which the first `key` columns are the primary key; `x` at the end is a text."""
    names = columns.split()
    made = [Column(name=one, source_type="bigint", logical=LogicalType.INTEGER, nullable=False) for one in names]
    if names[-1] == "x":
        made[-1] = Column(name="x", source_type="varchar(50)", logical=LogicalType.TEXT, length=50)
    foreign = [
        ForeignKey(
            columns=tuple(map(names.index, own.split())),
            ref_schema=SCHEMA,
            ref_table=to,
            ref_columns=tuple(there.split()),
        )
        for own, to, there in references
    ]
    return TableMap(
        schema=SCHEMA,
        table=name,
        columns=tuple(made),
        primary_key=tuple(range(key)),
        foreign_keys=tuple(foreign),
    )


WAREHOUSE = _table("warehouse", "w ytd x", 1)
DISTRICT = _table("district", "w d ytd next_o", 2, [("w", "warehouse", "w")])
CUSTOMER = _table("customer", "w d c balance payments x", 3, [("w d", "district", "w d")])
HISTORY = _table("history", "h w d c amount", 1, [("w d c", "customer", "w d c")])
STOCK = _table("stock", "w i quantity ytd orders x", 2, [("w", "warehouse", "w")])
ORDERS = _table("orders", "w d o c carrier", 3, [("w d c", "customer", "w d c")])
ORDER_LINE = _table("order_line", "w d o number i amount", 4, [("w d o", "orders", "w d o"), ("w i", "stock", "w i")])
TABLES = (WAREHOUSE, DISTRICT, CUSTOMER, HISTORY, STOCK, ORDERS, ORDER_LINE)


class Tpcc:
    """Makes transactions at so many warehouses, replayable by the seed; `hot`: all of them payments at one."""

    tables = TABLES

    def __init__(self, *, hot: bool = False, used: int = WAREHOUSES) -> None:
        self._used = used
        self._random = random.Random(1)
        self._hot = hot
        self._numbers = itertools.count(1)
        self._undelivered: list[tuple[int, int, int, int]] = []
        self._rows: dict[tuple[str, tuple[Any, ...]], tuple[Any, ...]] = {}
        warehouses, districts = range(1, WAREHOUSES + 1), range(1, DISTRICTS + 1)
        self.first: list[RowChange] = [self._insert(WAREHOUSE, (w, 0, "here")) for w in warehouses]
        for w, d in itertools.product(warehouses, districts):
            self.first.append(self._insert(DISTRICT, (w, d, 0, 1)))
        for w, d, c in itertools.product(warehouses, districts, range(1, CUSTOMERS + 1)):
            self.first.append(self._insert(CUSTOMER, (w, d, c, 0, 0, "somebody of that name")))
        for w, i in itertools.product(warehouses, range(1, ITEMS + 1)):
            self.first.append(self._insert(STOCK, (w, i, 1_000, 0, 0, "d" * 40)))

    def _insert(self, table: TableMap, row: tuple[Any, ...]) -> RowChange:
        self._rows[table.table, row[: len(table.primary_key)]] = row
        return RowChange(table, Op.INSERT, None, row)

    def _update(self, table: TableMap, *key: int, **added: int) -> RowChange:
        before = self._rows[table.table, key]
        names = [column.name for column in table.columns]
        after = tuple(
            [value + added.get(name, 0) if name in added else value for name, value in zip(names, before, strict=True)]
        )
        self._rows[table.table, key] = after
        return RowChange(table, Op.UPDATE, before, after)

    def transaction(self) -> list[Change]:
        """Return the changes of the next one: half new orders, half payments, and some deliveries."""
        choose = self._random
        number = next(self._numbers)
        w, d, c = choose.randint(1, self._used), choose.randint(1, DISTRICTS), choose.randint(1, CUSTOMERS)
        if self._hot:
            return [self._update(WAREHOUSE, 1, ytd=5), self._insert(HISTORY, (number, w, d, c, 5))]
        kind = choose.random()
        if kind < 0.05 and self._undelivered:
            w, d, o, c = self._undelivered.pop(0)
            return [self._update(ORDERS, w, d, o, carrier=3), self._update(CUSTOMER, w, d, c, balance=7)]
        if kind < 0.5:
            return [
                self._update(WAREHOUSE, w, ytd=5),
                self._update(DISTRICT, w, d, ytd=5),
                self._update(CUSTOMER, w, d, c, balance=-5, payments=1),
                self._insert(HISTORY, (number, w, d, c, 5)),
            ]
        self._undelivered.append((w, d, number, c))
        changes: list[Change] = [
            self._update(DISTRICT, w, d, next_o=1),
            self._insert(ORDERS, (w, d, number, c, 0)),
        ]
        for line, i in enumerate(choose.sample(range(1, ITEMS + 1), choose.randint(3, 9))):
            changes.append(self._update(STOCK, w, i, quantity=-1, ytd=1, orders=1))
            changes.append(self._insert(ORDER_LINE, (w, d, number, line, i, 2)))
        return changes

    @property
    def lines(self) -> int:
        """How many rows the tables of orders, lines and payments have together."""
        return sum(table in ("orders", "order_line", "history") for table, _ in self._rows)


DONE = " + ".join(f"(SELECT count(*) FROM {SCHEMA}.{table})" for table in ("orders", "order_line", "history"))


def ddl() -> Iterator[str]:
    """Yield the statements that make the tables, for PostgreSQL and MariaDB."""
    for table in TABLES:
        columns = [f"{one.name} {one.source_type} NOT NULL" for one in table.columns]
        names = [one.name for one in table.columns]
        columns.append(f"PRIMARY KEY ({', '.join(names[at] for at in table.primary_key)})")
        columns += [
            f"FOREIGN KEY ({', '.join(names[at] for at in one.columns)}) REFERENCES {SCHEMA}.{one.ref_table} "
            f"({', '.join(one.ref_columns)})"
            for one in table.foreign_keys
        ]
        yield f"CREATE TABLE {SCHEMA}.{table.table} ({', '.join(columns)})"


def statement(change: Change) -> tuple[str, tuple[Any, ...]]:
    """Return what makes a change at a source."""
    assert isinstance(change, RowChange) and change.after is not None
    table, after = change.table, change.after
    name = f"{SCHEMA}.{table.table}"
    if change.before is None:
        return f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(after))})", after
    names = [column.name for column in table.columns]
    changed = [at for at, value in enumerate(after) if value != change.before[at]]
    given = ", ".join(f"{names[at]} = %s" for at in changed)
    key = " AND ".join(f"{names[at]} = %s" for at in table.primary_key)
    return f"UPDATE {name} SET {given} WHERE {key}", (
        *[after[at] for at in changed],
        *[after[at] for at in table.primary_key],
    )


def write_log(folder: Path, transactions: int, *, hot: bool = False, used: int = WAREHOUSES) -> Tpcc:
    """Write a log of so many transactions, without the first rows."""
    load = Tpcc(hot=hot, used=used)
    rule = ShardRule(kind=ShardRuleKind.SCHEMA)
    packer = TransactionPacker(source_id="tpcc", rule=rule, touches=RowTouches())
    with Log.open(str(folder), source_id="tpcc") as log:
        for number in range(transactions):
            packer.begin(rule)
            event_id, tstamp = f"0-1-{number};", time.time_ns() // 1_000_000
            for change in load.transaction():
                assert packer.add(change, event_id=event_id, tstamp=tstamp) is None
            log.append(packer.finish(event_id=event_id, tstamp=tstamp))
        log.commit()
    return load


# --- servers ---------------------------------------------------------------------------------------------


def prepare(server: PostgresServer | MariaDbServer, database: str) -> None:
    """Make schema and tables in a database of a server, with the first rows."""
    with closing(server.connect(database)) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE {'SCHEMA' if isinstance(server, PostgresServer) else 'DATABASE'} {SCHEMA}")
        for sql in ddl():
            cursor.execute(sql)
        for table, rows in itertools.groupby(Tpcc().first, lambda one: one.table.table):
            values = [one.after for one in rows]
            marks = ", ".join(["%s"] * len(values[0] or ()))
            cursor.executemany(f"INSERT INTO {SCHEMA}.{table} VALUES ({marks})", values)  # type: ignore[arg-type]
        session.commit()


def catch_up(folder: Path, options: TargetOptions, transactions: int, *, channels: int, more: str = "") -> CatchUp:
    """Apply the whole log."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place, closing(open_target(options)) as target:
        conf = Path(place) / "tranlog.toml"
        configure(conf, folder, options, channels=channels, more=more)
        target.positions.ensure_tables()
        with python(["-m", "tranlog", "--conf", str(conf), "apply", "--until", "now", "--json"]) as running:
            return watch(lambda: applied(target), running, transactions, also=())


@contextmanager
def nothing() -> Iterator[TargetOptions]:
    """A target that does nothing."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        yield TargetOptions(kind="null", path=str(Path(place) / "positions.db"), lock_timeout_s=60.0)


@contextmanager
def fresh_postgres(server: PostgresServer, triggers: Literal["fire", "off"] = "fire") -> Iterator[TargetOptions]:
    """A database of its own, with the first rows. A subscription lets no trigger run, so it checks no foreign key."""
    name = f"bench{server.execute('SELECT count(*) FROM pg_database')[0][0]}"
    server.execute(f"CREATE DATABASE {name}")
    prepare(server, name)
    server.execute("CHECKPOINT")
    yield TargetOptions(kind="postgres", dsn=server.dsn(name), triggers=triggers)


@contextmanager
def fresh_mariadb(server: MariaDbServer) -> Iterator[TargetOptions]:
    """The schema anew, with the first rows."""
    server.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")
    server.execute("DROP DATABASE IF EXISTS own")
    server.execute("CREATE DATABASE own")
    prepare(server, "own")
    yield TargetOptions(kind="mariadb", dsn=server.dsn("own"))


def wait_for(server: PostgresServer | MariaDbServer, database: str, rows: int) -> float:
    """Return the seconds until so many rows of orders, lines and payments are there."""
    began = time.perf_counter()
    while (found := server.execute(f"SELECT {DONE}", database=database)[0][0]) != rows:
        if time.perf_counter() - began > PATIENCE_S:
            raise SystemExit(f"{found} rows of {rows} after {PATIENCE_S:.0f} s")
        time.sleep(LOOK_S)
    return time.perf_counter() - began


def commit_all(session: Any, transactions: int) -> Tpcc:
    """Commit the load at a source."""
    load = Tpcc()
    with session.cursor() as cursor:
        for _ in range(transactions):
            for change in load.transaction():
                cursor.execute(*statement(change))
            session.commit()
    return load


def subscription(publisher: PostgresServer, subscriber: PostgresServer, transactions: int) -> float:
    """Return the transactions per second of PostgreSQL's own subscription."""
    name = f"tpcc{publisher.execute('SELECT count(*) FROM pg_database')[0][0]}"
    for server in (publisher, subscriber):
        server.execute(f"CREATE DATABASE {name}")
        prepare(server, name)
    publisher.execute("CREATE PUBLICATION tpcc FOR ALL TABLES", database=name)
    publisher.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')", database=name)
    at = f"host={publisher.host} port={publisher.port} user=postgres dbname={name}"
    options = f"copy_data = false, enabled = false, create_slot = false, slot_name = '{name}'"
    subscriber.execute(f"CREATE SUBSCRIPTION {name} CONNECTION '{at}' PUBLICATION tpcc WITH ({options})", database=name)
    with closing(publisher.connect(name)) as session:
        session.execute("SET synchronous_commit = off")
        load = commit_all(session, transactions)
    for server in (publisher, subscriber):
        server.execute("CHECKPOINT")
    subscriber.execute(f"ALTER SUBSCRIPTION {name} ENABLE", database=name)
    try:
        return transactions / wait_for(subscriber, name, load.lines)
    finally:
        for what in ("DISABLE", "SET (slot_name = NONE)"):
            subscriber.execute(f"ALTER SUBSCRIPTION {name} {what}", database=name)
        subscriber.execute(f"DROP SUBSCRIPTION {name}", database=name)
        while publisher.execute(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{name}'") == [(True,)]:
            time.sleep(LOOK_S)
        publisher.execute(f"SELECT pg_drop_replication_slot('{name}')", database=name)


def replica(source: MariaDbServer, copy: MariaDbServer, rows: int, transactions: int, threads: int, mode: str) -> float:
    """Return the transactions per second of MariaDB's own replica, which begins after the first rows."""
    copy.execute(f"DROP DATABASE IF EXISTS {SCHEMA}")
    prepare(copy, "")
    for sql in (
        f"SET GLOBAL gtid_slave_pos = '{FIRST_GTID[source.port]}'",
        f"SET GLOBAL slave_parallel_threads = {threads}",
        f"SET GLOBAL slave_parallel_mode = '{mode}'",
        f"CHANGE MASTER TO MASTER_HOST='{source.host}', MASTER_PORT={source.port}, MASTER_USER='root', "
        "MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
        "START SLAVE",
    ):
        copy.execute(sql)
    try:
        return transactions / wait_for(copy, "", rows)
    finally:
        copy.execute("STOP SLAVE")
        copy.execute("RESET SLAVE ALL")


FIRST_GTID: dict[int, str] = {}
"""By port of a source: where it stood after the first rows."""


# --- the questions ---------------------------------------------------------------------------------------


def measure(bench: Bench) -> None:
    """The log and what it allows, then each target by turns with its anchor."""
    transactions = bench.size(TRANSACTIONS, trying=TRY_TRANSACTIONS)
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        folder, hot, single = Path(place) / "log", Path(place) / "hot", Path(place) / "single"
        load = write_log(folder, transactions)
        write_log(hot, transactions, hot=True)
        write_log(single, transactions, used=1)
        with LogReader.open(str(folder)) as log:
            path = critical_path(log, Seqno(1), log.range().last_seqno, bench.say)
        bench.say(f"{path.transactions} transactions, {path.changes} row changes")
        bench.add("at best, any number of channels", ours=[path.best], unit="x of one")
        for channels, times in path.at_once.items():
            bench.add(f"computed, {channels} channels", ours=[times], unit="x of one")

        def rate(
            target: Callable[[], Any], log: Path = folder, *, channels: int = CHANNELS, more: str = BY_WRITES
        ) -> Callable[[], float]:
            def measured() -> float:
                with target() as options:
                    return catch_up(log, options, transactions, channels=channels, more=more).rate

            return measured

        def compare(name: str, ours: Callable[[], float], peer: Callable[[], float], must: Must | None = None) -> None:
            bench.compare(name, ours=ours, peer=peer, unit="transactions/s", must=must, rounds=3, warm_up=False)

        compare(
            "nothing, 4 channels / 1",
            rate(nothing),
            rate(nothing, channels=1, more=""),
            at_least(1.2, stretch=1.4),
        )
        with PostgresServer(options={"wal_level": "logical"}) as publisher, PostgresServer() as target:
            place_of = partial(fresh_postgres, target)
            ours = rate(place_of)
            compare("PostgreSQL, 4 channels / 1", ours, rate(place_of, channels=1, more=""), at_least(1.3, stretch=1.6))
            theirs = partial(subscription, publisher, target, transactions)
            compare("PostgreSQL, 4 channels / subscription", ours, theirs, at_least(1.0, stretch=1.3))
            unchecked = rate(partial(fresh_postgres, target, triggers="off"))
            compare("PostgreSQL, 4 channels without triggers / subscription", unchecked, theirs)
            one = rate(place_of, hot, channels=1, more="")
            compare("PostgreSQL, hot row, 4 channels / 1", rate(place_of, hot), one, at_least(0.85, stretch=0.95))
            one = rate(place_of, single, channels=1, more="")
            compare("PostgreSQL, one warehouse, 4 channels / 1", rate(place_of, single), one)
        quick: dict[str, Any] = {"innodb_flush_log_at_trx_commit": 0, "sync_binlog": 0}
        with (
            MariaDbServer(options=quick) as source,
            MariaDbServer(options={**quick, "log_bin": None, "server_id": 2}) as copy,
            MariaDbServer(options={**quick, "log_bin": None, "server_id": 3}) as target_server,
        ):
            prepare(source, "")
            FIRST_GTID[source.port] = source.execute("SELECT @@global.gtid_binlog_pos")[0][0]
            with closing(source.connect("", autocommit=False)) as session:
                commit_all(session, transactions)
            ours = rate(partial(fresh_mariadb, target_server))
            for threads, mode, must in (
                (0, "none", at_least(0.8, stretch=1.1)),
                (4, "conservative", None),
                (4, "optimistic", None),
            ):
                theirs = partial(replica, source, copy, load.lines, transactions, threads, mode)
                compare(f"MariaDB, 4 channels / replica, {max(1, threads)} thread(s), {mode}", ours, theirs, must)


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))

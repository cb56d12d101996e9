"""The load that the programs about applying share: a shop's orders, in shards, and a look at how far a target is."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from start import below

from tranlog.change import Change, Column, Op, RowChange, TableMap
from tranlog.log.writing.log import Log, drop_hold
from tranlog.shard import UNKNOWN_SHARD, ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Target
from tranlog.testing.servers import Address, PostgresServer
from tranlog.types import LogicalType

SHARDS = 16
SKEW = 0.6
"""The part of the first shard where shards are skewed."""
LOOK_S = 0.02
"""How often a target is asked how far it is."""
PIPELINE = "bench"
_TICKS = os.sysconf("SC_CLK_TCK")

_CONFIG = """\
[service]
name = "bench"

[log]
dir = "{log}"

[target]
kind = "{kind}"
{where} = "{place}"
triggers = "{triggers}"

[pipeline]
channels = {channels}
"""


def orders(shard: int) -> TableMap:
    """A table of six columns, one in each of the shards."""
    return TableMap(
        schema=f"shop{shard:02}",
        table="orders",
        columns=(
            Column(name="id", source_type="bigint(20)", logical=LogicalType.INTEGER, nullable=False),
            Column(name="customer", source_type="int(11)", logical=LogicalType.INTEGER, nullable=False),
            Column(name="state", source_type="varchar(20)", logical=LogicalType.TEXT, length=20),
            Column(name="pieces", source_type="int(11)", logical=LogicalType.INTEGER),
            Column(name="price", source_type="double", logical=LogicalType.F64),
            Column(name="note", source_type="varchar(200)", logical=LogicalType.TEXT, length=200),
        ),
        primary_key=(0,),
    )


CREATE_ORDERS = (
    "CREATE TABLE {schema}.orders (id bigint NOT NULL PRIMARY KEY, customer int NOT NULL, state varchar(20), "
    "pieces int, price double precision, note varchar(200))"
)
"""The same table at a source, MariaDB's or PostgreSQL's."""


class Shop:
    """Makes transactions of one to four changes within one shard, replayable by its seed; `rows` is what is left."""

    def __init__(self, *, seed: int, skewed: bool = False) -> None:
        self._random = random.Random(seed)
        self._skewed = skewed
        self.tables = tuple([orders(shard) for shard in range(SHARDS)])
        self.rows: list[list[tuple[Any, ...]]] = [[] for _ in self.tables]
        self._next = 0
        self.transactions = 0
        self.changes = 0

    def transaction(self) -> list[Change]:
        """Return the changes of the next transaction: half of them updates, four in ten inserts, one in ten deletes."""
        choose = self._random.random
        shard = 0 if self._skewed and choose() < SKEW else int(choose() * len(self.tables))
        table, rows = self.tables[shard], self.rows[shard]
        changes: list[Change] = []
        for _ in range(1 + int(choose() * 4)):
            kind = choose()
            if kind < 0.4 or not rows:
                self._next += 1
                row = (self._next, self._next % 1_000, "new", 1, 9.99, f"order {self._next} " * 4)
                rows.append(row)
                changes.append(RowChange(table, Op.INSERT, None, row))
                continue
            place = int(choose() * len(rows))
            before = rows[place]
            if kind < 0.9:
                after = (*before[:2], "sent" if choose() < 0.5 else "paid", before[3] + 1, *before[4:])
                rows[place] = after
                changes.append(RowChange(table, Op.UPDATE, before, after))
            else:
                rows[place] = rows[-1]
                rows.pop()
                changes.append(RowChange(table, Op.DELETE, before, None))
        self.transactions += 1
        self.changes += len(changes)
        return changes

    def equals(self, server: Address, *, database: str = "") -> bool:
        """Whether a PostgreSQL database holds the rows that are left, and no others."""
        return all(
            set(server.execute(f"SELECT * FROM {table.schema}.orders", database=database)) == set(rows)
            for table, rows in zip(self.tables, self.rows, strict=True)
        )

    def count(self, server: Address, *, database: str = "") -> tuple[int, ...]:
        """Return how many rows each table of a PostgreSQL database has."""
        each = [f"(SELECT count(*) FROM {table.schema}.orders)" for table in self.tables]
        return server.execute(f"SELECT {', '.join(each)}", database=database)[0]

    def counts(self, server: Address, *, database: str = "") -> bool:
        """Whether each table has as many rows as are left: a cheap look before `equals`."""
        return self.count(server, database=database) == tuple(map(len, self.rows))


def statements(changes: Iterable[Change]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield what makes the changes of a transaction at a source: statements with %s, which both servers take."""
    for change in changes:
        assert isinstance(change, RowChange)
        name = f"{change.table.schema}.orders"
        if change.before is None:
            assert change.after is not None
            yield f"INSERT INTO {name} VALUES (%s, %s, %s, %s, %s, %s)", change.after
        elif change.after is None:
            yield f"DELETE FROM {name} WHERE id = %s", change.before[:1]
        else:
            yield f"UPDATE {name} SET state = %s, pieces = %s WHERE id = %s", (*change.after[2:4], change.after[0])


def write_log(
    folder: Path,
    transactions: int,
    *,
    seed: int,
    skewed: bool = False,
    serial: Callable[[int], bool] = lambda number: False,
) -> Shop:
    """Write a log of so many transactions; return the shop that made them.

    `serial`: which of them, counted from 0, are recorded as belonging to no shard; their changes are the same.
    """
    shop = Shop(seed=seed, skewed=skewed)
    rule = ShardRule(kind=ShardRuleKind.SCHEMA)
    packer = TransactionPacker(source_id="shop", rule=rule)
    with Log.open(str(folder), source_id="shop") as log:
        for number in range(transactions):
            packer.begin(rule)
            event_id, tstamp = f"0-1-{number};", time.time_ns() // 1_000_000
            for change in shop.transaction():
                fragment = packer.add(change, event_id=event_id, tstamp=tstamp)
                assert fragment is None, "a few small rows fit one fragment"
            last = packer.finish(event_id=event_id, tstamp=tstamp)
            log.append(msgspec.structs.replace(last, shard_id=UNKNOWN_SHARD) if serial(number) else last)
            if number % 1_000 == 999:
                log.commit()
        log.commit()
    return shop


# --- a target, and how far it is -------------------------------------------------------------------------


def fresh_target(server: PostgresServer, shop: Shop) -> TargetOptions:
    """Make a database with the shop's tables, empty, and nothing of the run before still to be written."""
    name = f"bench{server.execute('SELECT count(*) FROM pg_database')[0][0]}"
    server.execute("CHECKPOINT")
    server.execute(f"CREATE DATABASE {name}")
    options = TargetOptions(kind="postgres", dsn=server.dsn(name))
    target = open_target(options)
    for table in shop.tables:
        target.rows.create_table(table)
    target.close()
    return options


def configure(conf: Path, log: Path, options: TargetOptions, *, channels: int, more: str = "") -> None:
    """Write a configuration for `tranlog apply`, of a log that may have gone to other targets before this new one."""
    where, place = ("path", options.path) if options.path else ("dsn", options.dsn)
    text = _CONFIG.format(
        log=log, kind=options.kind, where=where, place=place, triggers=options.triggers, channels=channels
    )
    conf.write_text(text + more)
    drop_hold(str(log), PIPELINE)  # else the new target would be taken for one that lost its position


@contextmanager
def python(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python with these arguments; it is gone at the end of the block."""
    running = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds that processes have taken, with all below them, dead children too."""
    ticks = 0
    for root in pids:
        for pid in (root, *below(root)):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended, and counts with its parent
            ticks += sum(map(int, fields[11:15]))
    return ticks / _TICKS


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """One run: transactions and seconds between the first and the last look that saw progress, seconds before.

    `cpu_seconds`: of everybody, the target's server too, between the same looks.
    """

    transactions: int
    seconds: float
    cpu_seconds: float
    start_seconds: float

    @property
    def rate(self) -> float:
        """Transactions per second."""
        return self.transactions / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time of a transaction, in microseconds."""
        return self.cpu_seconds / self.transactions * 1e6


def watch(done: Callable[[], int], running: subprocess.Popen[bytes], total: int, *, also: Sequence[int]) -> CatchUp:
    """Look at how many transactions are done until all are; `also`: processes whose CPU time counts too."""
    began = time.perf_counter()
    pids = (running.pid, *also)
    first: tuple[float, int, float] | None = None
    while True:
        ended = running.poll() is not None
        seen = done()
        now = time.perf_counter()
        if seen and first is None:
            first = now, seen, cpu_seconds(pids)
        if seen >= total and first is not None:
            cpu = cpu_seconds(pids)
            return CatchUp(
                transactions=seen - first[1],
                seconds=now - first[0],
                cpu_seconds=cpu - first[2],
                start_seconds=first[0] - began,
            )
        if ended:
            raise SystemExit(f"it ended with exit code {running.returncode} after {seen} of {total} transactions")
        time.sleep(LOOK_S)


def applied(target: Target) -> int:
    """Return how many transactions the channels have applied."""
    return sum([json.loads(row.stats).get("transactions", 0) for row in target.positions.read_channels(PIPELINE)])

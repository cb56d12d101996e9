"""How fast is catching up into PostgreSQL: `tranlog apply` on 1 and on 4 channels, against a plain loop?

The loop is one process without Spark, channels or a driver: it reads the same log by the same cursor and applies it by
the same statements through the same driver, as many source transactions to a target transaction, with the position in
it. So the ratio is what channels bring, on however many cores this machine has. Counted from the first applied
transaction that is seen at the target to the last; how long the start took is printed beside it.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frame import Bench, Question, at_least, run

from tranlog.change import Change, Column, Op, RowChange, TableMap
from tranlog.log.log import Log
from tranlog.log.reader import LogReader
from tranlog.pipeline.channel import GroupBounds
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Advance, ChannelRow, Target, Unit
from tranlog.testing.servers import PostgresServer
from tranlog.types import LogicalType

TRANSACTIONS = 200_000
SHARDS = 16
CHANNELS = 4
PLAIN = "plain"
LOOK_S = 0.02
"""How often the target is asked how far it is."""

QUESTION = Question(
    name="apply_postgres",
    text=f"How fast does `tranlog apply` catch up with {TRANSACTIONS:,} transactions into PostgreSQL, start apart?",
    peer="one process that applies the same log by the same statements in the same groups, without Spark or channels",
)

CONFIG = """\
[service]
name = "bench"

[log]
dir = "{log}"

[target]
kind = "postgres"
dsn = "{dsn}"

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


class Shop:
    """Makes transactions of one to four changes within one shard, all shards alike; replayable by its seed."""

    def __init__(self, *, seed: int, shards: int = SHARDS) -> None:
        self._random = random.Random(seed)
        self.tables = tuple([orders(shard) for shard in range(shards)])
        self._rows: list[list[tuple[Any, ...]]] = [[] for _ in self.tables]
        self._next = 0
        self.changes = 0

    def transaction(self) -> list[Change]:
        """Return the changes of the next transaction: half of them updates, four in ten inserts, one in ten deletes."""
        choose = self._random.random
        shard = int(choose() * len(self.tables))
        table, rows = self.tables[shard], self._rows[shard]
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
        self.changes += len(changes)
        return changes


def write_log(folder: Path, transactions: int, *, seed: int) -> Shop:
    """Write a log of so many transactions; return the shop that made them."""
    shop = Shop(seed=seed)
    rule = ShardRule(kind=ShardRuleKind.SCHEMA)
    packer = TransactionPacker(source_id="shop", rule=rule)
    with Log.open(str(folder), source_id="shop") as log:
        for number in range(transactions):
            packer.begin(rule)
            event_id, tstamp = f"0-1-{number};", time.time_ns() // 1_000_000
            for change in shop.transaction():
                fragment = packer.add(change, event_id=event_id, tstamp=tstamp)
                assert fragment is None, "a few small rows fit one fragment"
            log.append(packer.finish(event_id=event_id, tstamp=tstamp))
            if number % 1_000 == 999:
                log.commit()
        log.commit()
    return shop


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """One run: transactions and seconds between the first and the last look that saw progress, seconds before."""

    transactions: int
    seconds: float
    start_seconds: float

    @property
    def rate(self) -> float:
        """Transactions per second."""
        return self.transactions / self.seconds


def watch(target: Target, running: subprocess.Popen[bytes], total: int) -> CatchUp:
    """Look at the channels' counters until all is applied."""
    began = time.perf_counter()
    first: tuple[float, int] | None = None
    while True:
        ended = running.poll() is not None
        done = sum([json.loads(row.stats).get("transactions", 0) for row in target.read_channels("bench")])
        now = time.perf_counter()
        if done and first is None:
            first = now, done
        if done >= total and first is not None:
            running.wait()
            return CatchUp(transactions=done - first[1], seconds=now - first[0], start_seconds=first[0] - began)
        if ended:
            raise SystemExit(f"it ended with exit code {running.returncode} after {done} of {total} transactions")
        time.sleep(LOOK_S)


def apply_plainly(folder: Path, options: TargetOptions) -> None:
    """The loop that ours is held against: read, collect a group, apply it, again."""
    bounds = GroupBounds()
    with LogReader.open(str(folder)) as reader:
        target = open_target(options)
        token = target.take(
            pipeline="bench",
            expected_token=0,
            holder="a plain loop",
            channels=1,
            shard_rule="",
            rows=[ChannelRow(channel=0)],
            keep_assignment=False,
        )
        row = target.claim(pipeline="bench", channel=0, driver_token=token)
        applied = row.applied_seqno
        done = 0
        with reader.cursor(committed_only=True) as cursor:
            while True:
                units: list[Unit] = []
                changes = size = 0
                while (
                    len(units) < bounds.transactions
                    and changes < bounds.changes
                    and size < bounds.bytes
                    and (header := cursor.next_header()) is not None
                ):
                    payload = cursor.current().payload()
                    changes += len(payload.changes)
                    size += header.data_length
                    units.append(
                        Unit(
                            seqno=header.seqno,
                            epoch=header.epoch,
                            source_id=header.source_id,
                            event_id=header.event_id,
                            tstamp=header.tstamp,
                            metadata=payload.metadata,
                            changes=payload.changes.__iter__,
                        )
                    )
                if not units:
                    break
                last = units[-1]
                done += len(units)
                target.apply(
                    units,
                    Advance(
                        pipeline="bench",
                        channel=0,
                        token=row.token,
                        old_seqno=applied,
                        new_seqno=last.seqno,
                        epoch=last.epoch,
                        source_id=last.source_id,
                        event_id=last.event_id,
                        tstamp=last.tstamp,
                        stats=json.dumps({"transactions": done}),
                    ),
                )
                applied = last.seqno
        target.close()


def catch_up(server: PostgresServer, folder: Path, shop: Shop, *, channels: int) -> CatchUp:
    """Apply the whole log into a fresh database: on so many channels, or on 0 by the plain loop."""
    name = f"bench{server.execute('SELECT count(*) FROM pg_database')[0][0]}"
    server.execute("CHECKPOINT")
    server.execute(f"CREATE DATABASE {name}")
    options = TargetOptions(kind="postgres", dsn=server.dsn(name))
    target = open_target(options)
    target.ensure_tables()
    for table in shop.tables:
        target.create_table(table)
    if channels:
        conf = folder.with_name(f"{name}.toml")
        conf.write_text(CONFIG.format(log=folder, dsn=options.dsn, channels=channels))
        command = ["-m", "tranlog", "--conf", str(conf), "apply", "--until", "now", "--json"]
    else:
        command = [__file__, PLAIN, str(folder), options.dsn]
    running = subprocess.Popen([sys.executable, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        return watch(target, running, TRANSACTIONS)
    finally:
        running.kill()
        running.wait()
        target.close()


def measure(bench: Bench) -> None:
    """Catch up by turns: the plain loop, one channel, four channels."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place, PostgresServer() as server:
        folder = Path(place) / "log"
        shop = write_log(folder, TRANSACTIONS, seed=1)
        bench.say(f"{TRANSACTIONS} transactions, {shop.changes} changes in {SHARDS} shards are in the log")
        runs: dict[int, list[CatchUp]] = {0: [], 1: [], CHANNELS: []}
        for turn in range(bench.rounds()):
            for channels in sorted(runs, reverse=bool(turn % 2)):
                run = catch_up(server, folder, shop, channels=channels)
                runs[channels].append(run)
                bench.say(
                    f"{channels or 'no'} channel(s): {run.rate:.0f} transactions/s, start {run.start_seconds:.1f} s"
                )
        plain = [run.rate for run in runs[0]]
        for channels, must in ((1, None), (CHANNELS, at_least(1.2, stretch=1.5))):
            rates = [run.rate for run in runs[channels]]
            bench.add(f"catch-up, channels: {channels}", ours=rates, anchor=plain, unit="transactions/s", must=must)
        bench.add("start to first applied", ours=[run.start_seconds for run in runs[CHANNELS]], unit="s")


if __name__ == "__main__":
    if sys.argv[1:2] == [PLAIN]:
        apply_plainly(Path(sys.argv[2]), TargetOptions(kind="postgres", dsn=sys.argv[3]))
        sys.exit()
    sys.exit(run(QUESTION, measure))

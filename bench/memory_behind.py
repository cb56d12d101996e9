"""How much memory does each process take while one channel is a million transactions behind the others?

A log holds inserts into four shards, of which one has a hundredth and a channel of its own. Its table at the target has
a trigger that sleeps a tenth of a second, so that its channel gets through ten transactions a second while the others
go on. Each process is asked for its own peak of resident memory (VmHWM) again and again, until the slow channel's
position is that far behind those of all others. Were what lies between kept anywhere but in the log, it would show: a
million transactions are 400 MB in the log, and more as objects.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from frame import Bench, Question, at_most, run
from memory import JVM_MOST_MB, LOOK_S, MB, PYTHON_MOST_MB, Peaks
from shop import PIPELINE, configure, python

from tranlog.change import Column, Op, RowChange, TableMap
from tranlog.log.writing.log import Log
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions, open_target
from tranlog.testing.servers import PostgresServer
from tranlog.types import LogicalType

BEHIND = 1_000_000
TRY_BEHIND = 50_000
SLOW = 1
CHANNELS = 4
SLOW_EVERY = 100
"""One transaction in so many is the slow shard's."""
NOTE = "a note of some length, since what waits in memory should weigh something there. " * 3
SLOW_GROUP = 50
"""Transactions to a target transaction: the slow channel is to commit every few seconds."""

QUESTION = Question(
    name="memory_behind",
    text=f"How much memory does each process take while one channel is {BEHIND:,} transactions behind the others?",
    peer="none, these are absolute: 500 MB for a Python process and 1,200 MB for the JVM are what a pipeline may take",
)


def notes(channel: int) -> TableMap:
    """The table of the shard that a channel has."""
    return TableMap(
        schema=f"shard{channel}",
        table="notes",
        columns=(
            Column(name="id", source_type="bigint", logical=LogicalType.INTEGER, nullable=False),
            Column(name="note", source_type="text", logical=LogicalType.TEXT),
        ),
        primary_key=(0,),
    )


def write(folder: Path, transactions: int) -> None:
    """Write a log of so many inserts."""
    rule = ShardRule(kind=ShardRuleKind.SCHEMA)
    packer = TransactionPacker(source_id="bench", rule=rule)
    slow, fast = notes(SLOW), [notes(channel) for channel in range(CHANNELS) if channel != SLOW]
    with Log.open(str(folder), source_id="bench") as log:
        for number in range(transactions):
            table = fast[number % len(fast)] if number % SLOW_EVERY else slow
            event_id, tstamp = f"{number};", time.time_ns() // 1_000_000
            packer.begin(rule)
            packer.add(RowChange(table, Op.INSERT, None, (number, NOTE)), event_id=event_id, tstamp=tstamp)
            log.append(packer.finish(event_id=event_id, tstamp=tstamp))
            if number % 1_000 == 999:
                log.commit(sync=False)
        log.commit()


def measure_once(server: PostgresServer, log: Path, folder: Path, behind: int) -> tuple[Peaks, int]:
    """Apply until the slow channel is that far behind; return the peaks, and how far it was."""
    database = f"behind{server.execute('SELECT count(*) FROM pg_database')[0][0]}"
    server.execute(f"CREATE DATABASE {database}")
    options = TargetOptions(kind="postgres", dsn=server.dsn(database))
    conf = folder / "tranlog.toml"
    shards = [f"shard{channel} = {channel}\n" for channel in range(CHANNELS)]
    more = f"group_transactions = {SLOW_GROUP}\n\n[shards.channels]\n{''.join(shards)}"
    configure(conf, log, options, channels=CHANNELS, more=more)
    peaks = Peaks()
    with closing(open_target(options)) as target:
        for channel in range(CHANNELS):
            target.rows.create_table(notes(channel))
        server.execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$",
            database=database,
        )
        server.execute(
            f"CREATE TRIGGER dawdle BEFORE INSERT ON shard{SLOW}.notes FOR EACH ROW EXECUTE FUNCTION dawdle()",
            database=database,
        )
        with python(["-m", "tranlog", "--conf", str(conf), "apply", "--json"]) as running:
            apart = 0
            while apart < behind:
                if running.poll() is not None:
                    raise SystemExit(f"it ended with exit code {running.returncode}, {apart} transactions apart")
                peaks.look(running.pid, "driver")
                at = {row.channel: row.applied_seqno for row in target.positions.read_channels(PIPELINE)}
                if len(at) == CHANNELS:
                    apart = min([seqno for channel, seqno in at.items() if channel != SLOW]) - at[SLOW]
                time.sleep(LOOK_S)
            peaks.look(running.pid, "driver")
            running.terminate()
            running.wait(60)
    return peaks, apart


def measure(bench: Bench) -> None:
    """Let one channel fall behind, once a round."""
    behind = bench.size(BEHIND, trying=TRY_BEHIND)
    rounds: list[Peaks] = []
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as name, PostgresServer() as server:
        folder = Path(name)
        write(folder / "log", behind * 5 // 4)
        size = sum([file.stat().st_size for file in (folder / "log").glob("thl.data.*")])
        bench.say(f"{behind * 5 // 4} transactions, {size / MB:.0f} MB, are in the log")
        for _ in range(bench.rounds(1)):
            peaks, apart = measure_once(server, folder / "log", folder, behind)
            rounds.append(peaks)
            bench.say(f"{apart} transactions apart")
    for what, must in (("driver", PYTHON_MOST_MB), ("JVM", JVM_MOST_MB), ("Python daemon", PYTHON_MOST_MB)):
        bench.add(what, ours=[one.of(what)[0] / MB for one in rounds], unit="MB", must=at_most(must))
    for place in range(min([len(one.of("worker")) for one in rounds])):
        figures = [one.of("worker")[place] / MB for one in rounds]
        bench.add(f"worker {place + 1}", ours=figures, unit="MB", must=at_most(PYTHON_MOST_MB))
    bench.add("driver to workers, all together", ours=[one.together / MB for one in rounds], unit="MB")
    bench.add("log", ours=[size / MB for _ in rounds], unit="MB")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))

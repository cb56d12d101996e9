"""How fast is catching up: `tranlog apply` on 1, 4 and 10 channels, into PostgreSQL and into no database at all?

The loop that it is held against is one process without Spark, channels or a driver: it reads the same log by the same
cursor and applies it by the same statements through the same driver, as many source transactions to a target
transaction, with the position in it. So the ratio is what channels bring, on however many cores this machine has. Into
no database (`kind = "null"`) it is what reading, decoding and Spark cost by themselves. Counted from the first applied
transaction that is seen at the target to the last; how long the start took is printed beside it. CPU time is that of
everybody, the target's server too: where other programs run, it says more than seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from frame import Bench, Question, at_least, run
from shop import PIPELINE, SHARDS, CatchUp, Shop, applied, configure, fresh_target, python, watch, write_log

from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Advance, ApplyUnit, ChannelRow
from tranlog.testing.servers import PostgresServer

TRANSACTIONS = 200_000
TRY_TRANSACTIONS = 20_000
CHANNELS = (1, 4, 10)
MUST_CHANNELS = 4
PLAIN = "plain"

QUESTION = Question(
    name="apply_postgres",
    text=f"How fast does `tranlog apply` catch up with {TRANSACTIONS:,} transactions, start apart, into PostgreSQL "
    "and into nothing?",
    peer="one process that applies the same log by the same statements in the same groups, without Spark or channels",
)


def apply_plainly(folder: Path, options: TargetOptions) -> None:
    """The loop that ours is held against: read, collect a group, apply it, again."""
    bounds = GroupBounds()
    with LogReader.open(str(folder)) as reader, closing(open_target(options)) as target:
        target.positions.ensure_tables()
        token = target.positions.take(
            pipeline=PIPELINE,
            expected_token=0,
            holder="a plain loop",
            channels=1,
            shard_rule="",
            rows=[ChannelRow(channel=0)],
            keep_assignment=False,
        )
        row = target.positions.claim(pipeline=PIPELINE, channel=0, driver_token=token)
        stored = row.applied_seqno
        done = 0
        with reader.cursor(committed_only=True) as cursor:
            while True:
                units: list[ApplyUnit] = []
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
                        ApplyUnit(
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
                        pipeline=PIPELINE,
                        channel=0,
                        token=row.token,
                        old_seqno=stored,
                        new_seqno=last.seqno,
                        epoch=last.epoch,
                        source_id=last.source_id,
                        event_id=last.event_id,
                        tstamp=last.tstamp,
                        stats=json.dumps({"transactions": done}),
                    ),
                )
                stored = last.seqno


def catch_up(server: PostgresServer, folder: Path, shop: Shop, *, kind: str, channels: int) -> CatchUp:
    """Apply the whole log into a fresh target: on so many channels, or on 0 by the plain loop."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place:
        if kind == "null":
            options = TargetOptions(kind="null", path=str(Path(place) / "positions.db"), lock_timeout_s=60.0)
        else:
            options = fresh_target(server, shop)
        if channels:
            conf = Path(place) / "tranlog.toml"
            configure(conf, folder, options, channels=channels)
            arguments = ["-m", "tranlog", "--conf", str(conf), "apply", "--until", "now", "--json"]
        else:
            arguments = [__file__, PLAIN, str(folder), options.kind, options.path or options.dsn]
        with closing(open_target(options)) as target:
            target.positions.ensure_tables()  # which are looked at from the first moment on
            with python(arguments) as running:
                taken = watch(lambda: applied(target), running, shop.transactions, also=(server.pid,))
                running.wait(60)
                return taken


def measure(bench: Bench) -> None:
    """Catch up by turns, for each load and each target: the plain loop, then on channels."""
    transactions = bench.size(TRANSACTIONS, trying=TRY_TRANSACTIONS)
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as place, PostgresServer() as server:
        starts: list[float] = []
        for load in ("uniform", "skewed"):
            folder = Path(place) / load
            shop = write_log(folder, transactions, seed=1, skewed=load == "skewed")
            bench.say(f"{load}: {transactions} transactions, {shop.changes} changes in {SHARDS} shards are in the log")
            for kind, name in (("postgres", "PostgreSQL"), ("null", "nothing")):
                runs: dict[int, list[CatchUp]] = {channels: [] for channels in (0, *CHANNELS)}
                for turn in range(bench.rounds(3)):
                    for channels in sorted(runs, reverse=bool(turn % 2)):
                        taken = catch_up(server, folder, shop, kind=kind, channels=channels)
                        runs[channels].append(taken)
                        bench.say(
                            f"{name}, {load}, {channels or 'no'} channel(s): {taken.rate:.0f} transactions/s, "
                            f"{taken.cpu_us:.0f} us CPU each, start {taken.start_seconds:.1f} s"
                        )
                starts += [one.start_seconds for one in runs[MUST_CHANNELS]]
                report(bench, f"{name}, {load}", runs, rows=shop.changes / transactions)
        bench.add("start to first applied", ours=starts, unit="s")


def report(bench: Bench, name: str, runs: dict[int, list[CatchUp]], *, rows: float) -> None:
    """Add the rows of one load at one target; `rows`: changes of a transaction."""
    plain = runs[0]
    for channels in CHANNELS:
        ours = runs[channels]
        must = at_least(1.2, stretch=1.5) if (channels, name) == (MUST_CHANNELS, "PostgreSQL, uniform") else None
        row = f"{name}, channels: {channels}"
        rates, anchor = [one.rate for one in ours], [one.rate for one in plain]
        bench.add(row, ours=rates, anchor=anchor, unit="transactions/s", must=must)
        bench.add(f"{row}, rows", ours=[r * rows for r in rates], anchor=[r * rows for r in anchor], unit="rows/s")
        cpu = [one.cpu_us for one in ours]
        bench.add(f"{row}, CPU", ours=cpu, anchor=[one.cpu_us for one in plain], unit="us/transaction")


if __name__ == "__main__":
    if sys.argv[1:2] == [PLAIN]:
        given, place = sys.argv[3:]
        apply_plainly(
            Path(sys.argv[2]),
            TargetOptions(kind="null", path=place) if given == "null" else TargetOptions(kind="postgres", dsn=place),
        )
        sys.exit()
    sys.exit(run(QUESTION, measure))

"""Where the time goes when a log is written, read and applied: profiles as tables, for docs/performance.md.

    python bench/profiles.py

No question is answered and nothing can fail, so `make bench` leaves it out. The deterministic profiler makes calls of
Python functions dearer than they are; compiled code shows as one built-in.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from shop import PIPELINE, fresh_target, write_log

from tranlog import compiled
from tranlog.change import Change, Column, Fragment, Op, Payload, RowChange, TableMap
from tranlog.ids import NO_SEQNO, Epoch, Seqno
from tranlog.log.writing.log import Log, LogReader
from tranlog.payload import encode
from tranlog.pipeline.applying.channel import run_task
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.target import Advance, ApplyUnit, ChannelRow
from tranlog.testing.servers import PostgresServer
from tranlog.types import LogicalType

TRANSACTIONS = 10_000
BATCH = 100
LINES = 9
TABLE = TableMap(
    schema="shop",
    table="orders",
    columns=(
        Column(name="id", source_type="bigint", logical=LogicalType.INTEGER, nullable=False),
        Column(name="name", source_type="text", logical=LogicalType.TEXT),
        Column(name="note", source_type="text", logical=LogicalType.TEXT),
    ),
    primary_key=(0,),
)


def profile(title: str, work: Callable[[], object], timer: Callable[[], float] = time.process_time) -> None:
    """Run it under the profiler and print where its time went, by function."""
    profiler = cProfile.Profile(timer)
    profiler.runcall(work)
    stats = pstats.Stats(profiler)
    total: float = stats.total_tt  # type: ignore[attr-defined]
    print(f"\n{title}: {total / TRANSACTIONS * 1e6:.1f} us a transaction under the profiler\n")
    print("| share | calls a transaction | function |\n|---|---|---|")
    rows = sorted(stats.stats.items(), key=lambda row: -row[1][2])  # type: ignore[attr-defined]
    for (file, _, name), (_, calls, own, _, _) in rows[:LINES]:
        where = Path(file).stem if file not in ("~", "") else ""
        print(f"| {own / total:.0%} | {calls / TRANSACTIONS:.2f} | `{where}{':' if where else ''}{name}` |")


def main() -> int:
    """Write a log, read it, apply it to a SQLite target."""
    print(f"The hot modules are {compiled.form()}.")
    rows = [(number, f"customer {number}", "x" * 70) for number in range(TRANSACTIONS * 4)]
    payloads = [
        encode(Payload(changes=tuple([RowChange(TABLE, Op.INSERT, None, row) for row in rows[at : at + 4]])))
        for at in range(0, len(rows), 4)
    ]
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here:
        log = Log.open(Path(here, "log"), source_id="bench")

        fragments = [
            Fragment(
                source_id="bench",
                event_id=f"0-1-{number};binlog.000001:{number * 1100}",
                shard_id="shop",
                tstamp=1_800_000_000_000,
                tables=(("shop", "orders"),),
                payload=payload,
            )
            for number, payload in enumerate(payloads)
        ]

        def write() -> None:
            for number, fragment in enumerate(fragments):
                log.append(fragment)
                if number % BATCH == BATCH - 1:
                    log.commit(sync=False)

        def write_many() -> None:
            for at in range(0, TRANSACTIONS, BATCH):
                log.append_many(fragments[at : at + BATCH])
                log.commit(sync=False)

        profile("Write: append, a commit without sync every 100", write)
        profile("Write: append_many of 100, a commit without sync", write_many)
        log.close()
        reader = LogReader.open(Path(here, "log"))

        def read() -> None:
            with reader.cursor() as cursor:
                while (transaction := cursor.next()) is not None:
                    transaction.payload()

        profile("Read: cursor, payload decoded", read)
        target = open_target(TargetOptions(kind="sqlite", path=str(Path(here, "target.db"))))
        target.positions.ensure_tables()
        token = target.positions.take(
            pipeline="bench",
            expected_token=0,
            holder="bench",
            channels=1,
            shard_rule="all",
            rows=[ChannelRow(channel=0)],
            keep_assignment=False,
        )
        token = target.positions.claim(pipeline="bench", channel=0, driver_token=token).token
        target.rows.create_table(TABLE)

        def apply() -> None:
            applied = NO_SEQNO
            units: list[ApplyUnit] = []
            with reader.cursor() as cursor:
                while (transaction := cursor.next()) is not None:
                    header, payload = transaction.header, transaction.payload()

                    def changes(of: Payload = payload) -> Iterator[Change]:
                        return iter(of.changes)

                    units.append(
                        ApplyUnit(
                            seqno=header.seqno,
                            epoch=header.epoch,
                            source_id=header.source_id,
                            event_id=header.event_id,
                            tstamp=header.tstamp,
                            metadata=payload.metadata,
                            changes=changes,
                        )
                    )
                    if len(units) == BATCH:
                        last = units[-1]
                        target.apply(
                            units,
                            Advance(
                                pipeline="bench",
                                channel=0,
                                token=token,
                                old_seqno=applied,
                                new_seqno=last.seqno,
                                epoch=Epoch(last.epoch),
                                source_id=last.source_id,
                                event_id=last.event_id,
                                tstamp=last.tstamp,
                                stats="{}",
                            ),
                        )
                        applied = Seqno(last.seqno)
                        units = []

        profile("Apply: cursor, decode, a SQLite target, 100 source transactions in one of its own", apply)
        target.close()
        reader.close()
    profile_channel()
    return 0


def profile_channel() -> None:
    """Profile a channel itself, as Spark runs it: into PostgreSQL, into nothing, and where all is another channel's."""
    with tempfile.TemporaryDirectory(prefix="tranlog-bench-") as here, PostgresServer() as server:
        shop = write_log(Path(here, "log"), TRANSACTIONS, seed=1)
        nothing, others = (TargetOptions(kind="null", path=str(Path(here, name))) for name in ("nothing", "others"))
        for title, options, plan in (
            ("Channel: the log into PostgreSQL", fresh_target(server, shop), ShardPlan(channels=1)),
            ("Channel: the log into nothing", nothing, ShardPlan(channels=1)),
            ("Channel: passing over what is another's", others, ShardPlan(channels=2, default=0)),
        ):
            target = open_target(options)
            target.positions.ensure_tables()
            last = plan.channels - 1
            token = target.positions.take(
                pipeline=PIPELINE,
                expected_token=0,
                holder="bench",
                channels=plan.channels,
                shard_rule=plan.text(),
                rows=[
                    ChannelRow(channel=one, applied_seqno=NO_SEQNO if one == last else Seqno(TRANSACTIONS))
                    for one in range(plan.channels)
                ],
                keep_assignment=False,
            )
            target.close()
            task = ChannelTask(
                options=ApplyOptions(pipeline=PIPELINE, log_dir=str(Path(here, "log")), target=options),
                driver_token=token,
                channel=last,
                plan=plan,
                until=Seqno(TRANSACTIONS - 1),
            )

            def work(task: ChannelTask = task) -> None:
                result = run_task(task)
                assert result.end is TaskEnd.LIMIT, result

            profile(title, work, time.process_time)  # not what it waits for the server


if __name__ == "__main__":
    sys.exit(main())

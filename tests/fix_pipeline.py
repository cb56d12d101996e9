"""A workload for pipelines: a real log, the rows it must lead to, and a target that counts what is done to it.

Random and replayable by its seed. Transactions stay in one shard, span several (serial), have no content (no-ops and
heartbeats), or come in several fragments. At the target, triggers write one audit row per change, so that "nothing
twice, nothing lost" is counted and not concluded from equal rows.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from fix_folder import open_target
from tranlog.change import HEARTBEAT, Change, Column, Op, Options, RowChange, TableMap
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log, LogOptions
from tranlog.pipeline.applying.channel import run_task
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.applying.task import ChannelTask, TaskResult
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.progress import Counters, totals
from tranlog.row_touches import RowTouches
from tranlog.servers.mariadb_address import read_url
from tranlog.shard import ShardRule, ShardRuleKind
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import TargetOptions
from tranlog.target.target import ChannelRow
from tranlog.testing.servers import MariaDbAddress
from tranlog.types import LogicalType

BY_SCHEMA = ShardRule(kind=ShardRuleKind.SCHEMA)
Rows = dict[int, tuple[int, int, str]]


def items(schema: str, table: str = "items") -> TableMap:
    """A table with a key, a number that counts its changes, and a text."""
    return TableMap(
        schema=schema,
        table=table,
        columns=(
            Column(name="id", source_type="bigint", logical=LogicalType.INTEGER, nullable=False),
            Column(name="n", source_type="bigint", logical=LogicalType.INTEGER, nullable=False),
            Column(name="note", source_type="text", logical=LogicalType.TEXT),
        ),
        primary_key=(0,),
    )


@dataclass
class Workload:
    """Makes transactions and remembers what a target must hold after them."""

    seed: int
    shards: tuple[str, ...] = ("north", "east", "south", "west")
    serial: float = 0.06
    """Chance of a transaction that spans shards, or has no content."""
    large: float = 0.0
    """Chance of one in several fragments."""
    write_sets: bool = False
    """Whether headers say what each transaction touched."""
    rows: dict[TableMap, Rows] = field(default_factory=dict)
    audit: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    transactions: int = 0
    changes: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.next_id = 0
        for shard in self.shards:
            self.rows[items(shard)] = {}

    @property
    def tables(self) -> tuple[TableMap, ...]:
        return tuple(self.rows)

    def one_change(self, table: TableMap) -> Change:
        """Make a change that fits the rows as they are now."""
        rows, choose = self.rows[table], self.random
        op = choose.choice((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE)) if len(rows) > 3 else Op.INSERT
        if op is Op.INSERT:
            self.next_id += 1
            key = self.next_id
            before, after = None, (key, 0, f"{table.schema} {key}")
            rows[key] = after
        else:
            key = choose.choice(list(rows))
            before = rows.pop(key)
            after = None
            if op is Op.UPDATE:
                after = rows[key] = (key, before[1] + 1, before[2] + "." if len(before[2]) < 30 else "short")
        self.audit[table.name, key, op.name] += 1
        self.changes += 1
        return RowChange(table, op, before, after)

    def one_transaction(self) -> tuple[list[Change], Options]:
        """Make the changes of one transaction, and its metadata."""
        choose = self.random
        if choose.random() < self.serial:
            if choose.random() < 0.3:
                return [], ((HEARTBEAT, "pulse"),)
            tables = choose.sample(self.tables, min(2, len(self.tables)))
            return [self.one_change(table) for table in tables for _ in range(choose.randint(1, 2))], ()
        table = choose.choice(self.tables)
        number = 400 if choose.random() < self.large else choose.randint(1, 4)
        return [self.one_change(table) for _ in range(number)], ()

    def write(self, log: Log, number: int, *, sync_every: int = 50) -> None:
        """Append so many transactions."""
        touches = RowTouches() if self.write_sets else None
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, fragment_bytes=4_000, touches=touches)
        for _ in range(number):
            changes, metadata = self.one_transaction()
            self.append(log, packer, changes, metadata)
            if self.transactions % sync_every == 0:
                log.commit()
        log.commit()

    def append(self, log: Log, packer: TransactionPacker, changes: Sequence[Change], metadata: Options = ()) -> None:
        """Append one transaction."""
        self.transactions += 1
        event_id, tstamp = f"event {self.transactions}", 1_700_000_000_000 + self.transactions
        packer.begin(BY_SCHEMA)
        for change in changes:
            fragment = packer.add(change, event_id=event_id, tstamp=tstamp)
            if fragment is not None:
                log.append(fragment)
        log.append(packer.finish(event_id=event_id, tstamp=tstamp, metadata=metadata))


def write_log(path: Path, workload: Workload, number: int, **options) -> Seqno:
    """Write a log of so many transactions behind the writer's no-op; return the last seqno."""
    with Log.open(str(path), source_id="test", options=LogOptions(**options)) as log:
        workload.write(log, number)
        return log.last_seqno


class SqliteTarget:
    """A SQLite database as target, with audit triggers."""

    def __init__(self, path: Path, tables: Sequence[TableMap]) -> None:
        self.path = path
        self.tables = tuple(tables)
        self.options = TargetOptions(kind="sqlite", path=str(path))
        target = open_target(self.options)
        target.positions.ensure_tables()
        for table in tables:
            target.rows.create_table(table)
        target.close()
        with self.connect() as connection:
            connection.execute("CREATE TABLE audit (tab TEXT, id INTEGER, op TEXT)")
            for table in tables:
                own = table.table if table.schema == "main" else table.name
                for op, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
                    connection.execute(
                        f'CREATE TRIGGER "{table.name} {op}" AFTER {op} ON "{own}" '
                        f"BEGIN INSERT INTO audit VALUES ('{table.name}', {row}.id, '{op}'); END"
                    )

    def connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        connection.set_busy_timeout(10_000)
        return connection

    def query(self, sql: str) -> list[tuple]:
        connection = self.connect()
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def audit(self) -> Counter[tuple[str, int, str]]:
        return Counter(self.query("SELECT tab, id, op FROM audit"))


class PostgresTarget:
    """A PostgreSQL database as target, with the same audit triggers."""

    def __init__(self, dsn: str, tables: Sequence[TableMap]) -> None:
        self.tables = tuple(tables)
        self.options = TargetOptions(kind="postgres", dsn=dsn)
        target = open_target(self.options)
        target.positions.ensure_tables()
        for table in tables:
            target.rows.create_table(table)
        target.close()
        self.query("CREATE TABLE public.audit (tab text, id bigint, op text)")
        self.query(
            "CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO public.audit VALUES "
            "(TG_TABLE_SCHEMA || '.' || TG_TABLE_NAME, coalesce(NEW.id, OLD.id), TG_OP); RETURN NULL; END $$"
        )
        for table in tables:
            self.query(
                f'CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON "{table.schema}"."{table.table}" '
                "FOR EACH ROW EXECUTE FUNCTION public.audit()"
            )

    def query(self, sql: str) -> list[tuple]:
        import psycopg

        with psycopg.connect(self.options.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def audit(self) -> Counter[tuple[str, int, str]]:
        return Counter(self.query("SELECT tab, id, op FROM public.audit"))


class MariadbTarget:
    """A MariaDB database as target, with the same audit triggers."""

    def __init__(self, dsn: str, tables: Sequence[TableMap]) -> None:
        self.tables = tuple(tables)
        self.options = TargetOptions(kind="mariadb", dsn=dsn)
        target = open_target(self.options)
        target.positions.ensure_tables()
        for table in tables:
            target.rows.create_table(table)
        target.close()
        self.query("CREATE TABLE audit (tab varchar(99), id bigint, op varchar(9))")
        own = read_url(dsn).database
        for table in tables:
            for op, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
                name = f"`{table.schema}`.`{table.table}"
                self.query(
                    f"CREATE TRIGGER {name} {op}` AFTER {op} ON {name}` "
                    f"FOR EACH ROW INSERT INTO `{own}`.audit VALUES ('{table.name}', {row}.id, '{op}')"
                )

    def query(self, sql: str) -> list[tuple]:
        url = read_url(self.options.dsn)
        address = MariaDbAddress(host=url.host, port=url.port, user=url.user, password=url.password)
        return address.execute(sql, database=url.database)

    def audit(self) -> Counter[tuple[str, int, str]]:
        return Counter(self.query("SELECT tab, id, op FROM audit"))


AnyTarget = SqliteTarget | PostgresTarget | MariadbTarget


def check_equal(target: AnyTarget, workload: Workload) -> None:
    """Rows as at the source, and each change done exactly once."""
    assert read_back(target.options, workload.tables) == workload.rows
    done = target.audit()
    assert done == workload.audit, f"seed {workload.seed}: {(done - workload.audit) or (workload.audit - done)}"


def read_back(options: TargetOptions, tables: Sequence[TableMap]) -> dict[TableMap, Rows]:
    """Return the target's rows in the form of `Workload.rows`."""
    target = open_target(options)
    try:
        return {table: {row[0]: row for row in target.rows.read(table)} for table in tables}  # type: ignore[misc]
    finally:
        target.close()


def positions(options: TargetOptions, pipeline: str = "p") -> dict[int, int]:
    """Return each channel's applied_seqno."""
    target = open_target(options)
    try:
        return {row.channel: row.applied_seqno for row in target.positions.read_channels(pipeline)}
    finally:
        target.close()


def counters(options: TargetOptions, pipeline: str = "p") -> Counters:
    """Return the sum of all channels' counters."""
    target = open_target(options)
    try:
        return totals(target.positions.read_channels(pipeline))
    finally:
        target.close()


def take(
    options: TargetOptions,
    plan: ShardPlan,
    *,
    begin: int = 0,
    pipeline: str = "p",
) -> int:
    """Become the driver of a pipeline, as `apply` does, keeping the positions that there are; return the token."""
    target = open_target(options)
    try:
        row = target.positions.read_pipeline(pipeline)
        stored = target.positions.read_channels(pipeline)
        fresh = [ChannelRow(channel=channel, applied_seqno=Seqno(begin - 1)) for channel in range(plan.channels)]
        return target.positions.take(
            pipeline=pipeline,
            expected_token=0 if row is None else row.token,
            holder="test",
            channels=plan.channels,
            shard_rule=plan.text(),
            rows=None if stored else fresh,
            keep_assignment=True,
        )
    finally:
        target.close()


def tasks_for(
    options: TargetOptions,
    log_dir: Path,
    plan: ShardPlan,
    token: int,
    *,
    until: int | None,
    pipeline: str = "p",
    bounds: GroupBounds | None = None,
    **more,
) -> list[ChannelTask]:
    """Return the tasks of a plan; `more` are fields of theirs, or of ApplyOptions."""
    own = {name: more.pop(name) for name in ("watch", "watch_after") if name in more}
    given = ApplyOptions(
        pipeline=pipeline,
        log_dir=str(log_dir),
        target=options,
        group=bounds or GroupBounds(transactions=7),
        **more,
    )
    return [
        ChannelTask(
            options=given,
            driver_token=token,
            channel=channel,
            plan=plan,
            until=None if until is None else Seqno(until),
            **own,
        )
        for channel in range(plan.channels)
    ]


class Threads:
    """Runs tasks in threads of this process: everything but Spark is real."""

    def __init__(self, tasks: Sequence[ChannelTask]) -> None:
        self.results: list[TaskResult | None] = [None] * len(tasks)
        self._threads = [
            threading.Thread(target=self._run, args=(number, task), daemon=True) for number, task in enumerate(tasks)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int, task: ChannelTask) -> None:
        self.results[number] = run_task(task)

    def join(self, timeout_s: float = 60.0) -> list[TaskResult]:
        for thread in self._threads:
            thread.join(timeout_s)
        assert None not in self.results, f"still running, or failed: {self.results}"
        return [result for result in self.results if result is not None]


def run_threads(tasks: Sequence[ChannelTask]) -> list[TaskResult]:
    return Threads(tasks).join()

"""docs/decisions/0033: channels that meet by write sets, on a real log and a real target.

A row counts its changes, so that another order of two that touch it conflicts; an audit row stands for each change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fix_effort import Effort
from fix_pipeline import (
    BY_SCHEMA,
    SqliteTarget,
    Threads,
    Workload,
    check_equal,
    counters,
    items,
    positions,
    run_threads,
    take,
    tasks_for,
    write_log,
)
from tranlog.change import Change, Fragment, Op, RowChange, Statement, TableName
from tranlog.errors import ConfigError, ConflictError, PurgedError, TargetPositionError
from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying import write_owners
from tranlog.pipeline.applying.task import TaskEnd, TaskResult
from tranlog.pipeline.applying.write_owners import planned_tables
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import DropColumns, Filter, MaskBy, MaskColumns, Rename
from tranlog.pipeline.rules.by_writes import WritesBounds, WritesPlan
from tranlog.pipeline.rules.channels import ShardBy, ShardPlan
from tranlog.pipeline.rules.progress import ChannelStats
from tranlog.row_touches import RowTouches
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import open_target
from tranlog.target.target import TargetKeys
from tranlog.write_set import key_id

NORTH = ("north", "items")
AUDITS = tuple(f"north.items {op}" for op in ("DELETE", "INSERT", "UPDATE"))


def by_writes(channels: int, **given: Any) -> ShardPlan:
    return ShardPlan(**{"channels": channels, "by": ShardBy.WRITES, "triggers": AUDITS, **given})


def one_schema(**given: Any) -> Workload:
    return Workload(**{"seed": 21, "shards": ("north",), "serial": 0.02, "write_sets": True, **given})


@pytest.fixture
def close_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans begin often, and a channel gives up early what depends on it."""
    monkeypatch.setattr(write_owners, "BOUNDS", WritesBounds(every=50, lead=4, serial_in=5))


def stored_plans(target: SqliteTarget) -> dict[int, WritesPlan]:
    opened = open_target(target.options)
    try:
        return {begin: WritesPlan.parse(text) for begin, text in opened.positions.read_plans("p").items()}
    finally:
        opened.close()


def stats(target: SqliteTarget) -> list[ChannelStats]:
    opened = open_target(target.options)
    try:
        return [ChannelStats.parse(row.stats) for row in opened.positions.read_channels("p")]
    finally:
        opened.close()


def run(target: SqliteTarget, log: Path, plan: ShardPlan, until: int, **more: Any) -> list[TaskResult]:
    return run_threads(tasks_for(target.options, log, plan, take(target.options, plan), until=until, **more))


def check_ended(results: list[TaskResult], until: int) -> None:
    assert [(one.end, one.applied_seqno, one.error) for one in results] == [(TaskEnd.LIMIT, until, None)] * len(results)


@pytest.mark.long
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_everything_lands_once_and_in_order(tmp_path: Path, close_plans: None, channels: int, effort: Effort) -> None:
    workload = one_schema(large=0.01)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, effort(200, 600, 2_000))
    check_ended(run(target, tmp_path / "log", by_writes(channels), last), last)
    check_equal(target, workload)
    done = counters(target.options)
    assert done.missed == 0 and (done.depended > 20) == (channels > 1)


@pytest.mark.long
@pytest.mark.parametrize(("touches", "knows"), [(50_000, True), (100, False)])
def test_a_plan_knows_what_the_next_transactions_touch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touches: int, knows: bool
) -> None:
    """Not of those that touch too much, which would take long."""
    monkeypatch.setattr(write_owners, "LOOK_AHEAD_TOUCHES", touches)
    workload = one_schema(serial=0.0)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 400)
    check_ended(run(target, tmp_path / "log", by_writes(3), last), last)
    check_equal(target, workload)
    first, *_ = stored_plans(target).values()
    assert bool(first.homes) == knows


@pytest.mark.long
def test_a_start_goes_on_by_the_plan_that_is_stored(tmp_path: Path, close_plans: None) -> None:
    """Ended at limits between and at plan points, and started again; the target's triggers change meanwhile."""
    workload = one_schema()
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 330)
    for until in (*range(13, last, 29), 100, last):
        if until > min(positions(target.options).values(), default=-1):
            check_ended(run(target, tmp_path / "log", by_writes(3), until), until)
        with target.connect() as connection:
            connection.execute("DROP TRIGGER IF EXISTS other")
            if until % 2:
                connection.execute('CREATE TRIGGER other AFTER UPDATE ON "north.items" BEGIN SELECT 1; END')
    check_equal(target, workload)
    assert counters(target.options).missed == 0


@pytest.mark.long
def test_replaced_tasks_write_nothing_more(tmp_path: Path, close_plans: None) -> None:
    workload = one_schema()
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 300)
    plan = by_writes(3)
    token = take(target.options, plan)
    twins = [Threads(tasks_for(target.options, tmp_path / "log", plan, token, until=last)) for _ in range(2)]
    results = run(target, tmp_path / "log", plan, last)
    check_ended(results, last)
    for one in twins:
        assert {result.end for result in one.join()} <= {TaskEnd.REPLACED, TaskEnd.LIMIT}
    check_equal(target, workload)


def append(log: Log, *transactions: list[Change], touches: bool = True) -> None:
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, touches=RowTouches() if touches else None)
    for number, changes in enumerate(transactions):
        packer.begin(BY_SCHEMA)
        for change in changes:
            assert packer.add(change, event_id="", tstamp=1) is None
        metadata = (("dbms_type", "sqlite"),) if any(isinstance(one, Statement) for one in changes) else ()
        log.append(packer.finish(event_id=f"event {log.last_seqno} {number}", tstamp=1, metadata=metadata))
    log.commit()


def insert(key: int, n: int = 0) -> Change:
    return RowChange(items("north"), Op.INSERT, None, (key, n, "x"))


def update(key: int, n: int) -> Change:
    return RowChange(items("north"), Op.UPDATE, (key, n, "x"), (key, n + 1, "x"))


def test_a_plan_says_what_the_target_holds_rows_to(tmp_path: Path) -> None:
    """A trigger that nobody named, a key that the source lacks; each with the transactions that ran alone for it."""
    target = SqliteTarget(tmp_path / "target.db", [items("north")])
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        append(log, [insert(1)], [insert(2)], [Statement(schema="main", sql="CREATE TABLE t (a)", ddl=True)])
        first = log.last_seqno
        append(log, [insert(3)], [update(1, 0)])
        last = log.last_seqno
    plan = by_writes(2, triggers=AUDITS[1:])
    check_ended(run(target, tmp_path / "log", plan, first), first)
    (_, made), *_ = sorted(stored_plans(target).items(), reverse=True)
    (table,) = made.tables
    assert (table.table, table.keys, table.why) == (NORTH, (key_id(NORTH, ["id"]),), "trigger north.items DELETE")
    assert made.serial_tables() == {"north.items": "trigger north.items DELETE"}
    check_ended(run(target, tmp_path / "log", plan, last), last)
    assert stats(target)[0].reasons == {
        "there is no plan yet": 1,
        "north.items: trigger north.items DELETE": 4,
        "a statement": 1,
    }
    opened = open_target(target.options)
    target.query('CREATE UNIQUE INDEX one ON "north.items" (n, id)')
    keys = opened.rows.keys(NORTH)
    assert keys is not None and keys.unique == (("id",), ("n", "id")) and keys.triggers == AUDITS
    target.query('CREATE UNIQUE INDEX two ON "north.items" (note) WHERE n > 1')
    keys = opened.rows.keys(NORTH)
    assert keys is not None and keys.why == "a partial or expression index"
    assert opened.rows.keys(("north", "other")) is None
    opened.close()


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (DropColumns(table="north.*", columns=("note",)), ""),
        (MaskColumns(table="north.items", columns=("note",), by=MaskBy.NULL), ""),
        (DropColumns(table="south.*", columns=("n",)), ""),
        (DropColumns(table="north.*", columns=("note", "N")), "a filter changes its keys"),
        (MaskColumns(table="north.items", columns=("up",), by=MaskBy.NULL), "a filter changes its keys"),
        (Rename(table="north.items", column="note", to="text"), "a filter changes its keys"),
    ],
)
def test_a_filter_makes_a_table_run_alone_where_it_changes_a_key(one: Filter, why: str) -> None:
    """Which columns are one's, the target says."""

    def keys(home: TableName) -> TargetKeys:
        return TargetKeys(
            name=home, unique=(("id",), ("n", "id")), references=((("up",), ("north", "other"), ("id",)),)
        )

    (planned,) = planned_tables([NORTH], keys, Chain([one]), ())
    assert planned.why == why and bool(planned.keys) == (not why)


def test_a_critical_shard_runs_alone(tmp_path: Path) -> None:
    target = SqliteTarget(tmp_path / "target.db", [items("north")])
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        append(log, [insert(1)], [insert(2)])
        last = log.last_seqno
    check_ended(run(target, tmp_path / "log", by_writes(2, serial=frozenset({"north"})), last), last)
    assert stats(target)[0].reasons == {"there is no plan yet": 1, "critical shard north": 2}


def test_a_log_without_write_sets_ends_on_channel_0(tmp_path: Path, close_plans: None) -> None:
    workload = one_schema(write_sets=False)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 60)
    check_ended(run(target, tmp_path / "log", by_writes(3), last), last)
    check_equal(target, workload)
    assert max(stored_plans(target).items())[1].alone
    assert counters(target.options).sections < 20


def test_a_missed_dependency_is_found_and_its_table_runs_alone_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header that does not tell all costs time; what it hides is not applied before what it depends on."""
    monkeypatch.setattr(write_owners, "BOUNDS", WritesBounds(every=8, lead=0))
    target = SqliteTarget(tmp_path / "target.db", [items("north")])

    def packed(change: Change) -> Fragment:
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, touches=RowTouches())
        packer.begin(BY_SCHEMA)
        assert packer.add(change, event_id="", tstamp=1) is None
        return packer.finish(event_id=f"event {change}", tstamp=1)

    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        append(log, [insert(9)])
        first = log.last_seqno
        append(log, [insert(1)])
        log.append(msgspec.structs.replace(packed(update(1, 0)), write_set=packed(update(2, 0)).write_set))
        append(log, *[[insert(key)] for key in range(20, 30)])
        last = log.last_seqno
    plan = by_writes(2)
    check_ended(run(target, tmp_path / "log", plan, first), first)
    token = take(target.options, plan)
    tasks = tasks_for(target.options, tmp_path / "log", plan, token, until=last, sync_interval_s=0.1)
    quick = Threads(tasks[:1])
    wait_until(lambda: stats(target)[0].waiting is not None)  # for channel 1, before which it tried
    results = [*run_threads(tasks[1:]), *quick.join()]
    check_ended(results, last)
    assert counters(target.options).missed == 1 and stats(target)[0].missed_at == (NORTH,)
    assert stored_plans(target)[8].serial_tables() == {"north.items": "a dependency was missed"}
    assert target.query('SELECT n FROM "north.items" WHERE id = 1') == [(1,)]


def wait_until(true: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def test_a_conflict_that_is_none_of_others_stops_at_its_transaction(tmp_path: Path) -> None:
    target = SqliteTarget(tmp_path / "target.db", [items("north")])
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        append(log, [insert(1)], *[[insert(key)] for key in range(10, 20)], [update(5, 0)], [insert(2)])
        last = log.last_seqno
    results = run(target, tmp_path / "log", by_writes(2), last, sync_interval_s=0.05)
    errors = [one.error for one in results if one.error is not None]
    assert len(errors) == 1 and isinstance(errors[0], ConflictError) and errors[0].seqno == last - 1
    assert [one.missed_at for one in stats(target)] == [(), ()]


def test_a_plan_that_is_gone_or_anothers_is_told(tmp_path: Path, close_plans: None) -> None:
    workload = one_schema()
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 80)
    plan = by_writes(2)
    check_ended(run(target, tmp_path / "log", plan, 60), 60)
    target.query("UPDATE tranlog_plan SET plan = replace(plan, '\"channels\":2', '\"channels\":3')")
    for result in run(target, tmp_path / "log", plan, last):
        assert isinstance(result.error, TargetPositionError) and "is another one's" in str(result.error)
    target.query("DELETE FROM tranlog_plan")
    # One behind: what comes after it was divided by a plan.
    target.query("UPDATE tranlog_channel SET applied_seqno = 59, event_id = 'event 59' WHERE channel = 1")
    errors = [str(result.error) for result in run(target, tmp_path / "log", plan, last)]
    assert any("has no plan for what comes after seqno 59" in error for error in errors), errors
    target.query("UPDATE tranlog_channel SET applied_seqno = 60, event_id = 'event 60'")
    check_ended(run(target, tmp_path / "log", plan, last), last)  # all at one seqno: another one is made
    check_equal(target, workload)


def test_headers_that_a_restart_needs_and_that_are_purged_are_named(tmp_path: Path) -> None:
    workload = one_schema()
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 300, segment_bytes=4_096)
    plan = by_writes(2)
    check_ended(run(target, tmp_path / "log", plan, 250), 250)
    begin = max(stored_plans(target))
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        log.purge(below=Seqno(200))
    with LogReader.open(str(tmp_path / "log")) as reader:
        assert begin + 1 < reader.range().first_seqno <= 250
    for result in run(target, tmp_path / "log", plan, last):
        assert isinstance(result.error, PurgedError) and result.error.seqno == begin + 1


def test_what_gives_shards_channels_is_refused() -> None:
    for given in ({"mapping": (("north", 1),)}, {"default": 0}):
        with pytest.raises(ConfigError, match="gives no shard a channel"):
            by_writes(2, **given).check()
    with pytest.raises(ConfigError, match="independent_triggers"):
        ShardPlan(channels=2, triggers=("audit",)).check()
    plan = by_writes(3, filters="abc")
    assert ShardPlan.parse(plan.text(), channels=3) == plan

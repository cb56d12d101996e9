"""Channels at work on a real log and a real target.

Spark only starts these tasks; here threads do, so that what is tested is the channel. tests/spark has the rest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fix_effort import Effort, few_of
from fix_pipeline import (
    BY_SCHEMA,
    SqliteTarget,
    Threads,
    Workload,
    check_equal,
    counters,
    items,
    positions,
    read_back,
    run_threads,
    take,
    tasks_for,
    write_log,
)
from tranlog.change import Change, Op, RowChange, Statement
from tranlog.errors import (
    ConfigError,
    ConflictError,
    LogMissingError,
    PurgedError,
    ReplacedError,
    TargetAheadError,
    TargetTableError,
)
from tranlog.ids import Seqno
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log, hold
from tranlog.pipeline.applying.channel import Channel
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.rules.channels import AssignmentRule, ShardBy, ShardPlan
from tranlog.pipeline.rules.progress import ChannelStats, Waiting
from tranlog.pipeline.status.status import waits_of
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import open_target
from tranlog.target.target import ChannelRow

FOUR = ShardPlan(channels=4)


@pytest.fixture
def workload(request: pytest.FixtureRequest) -> Workload:
    return Workload(seed=getattr(request, "param", 1))


@pytest.fixture
def target(tmp_path: Path, workload: Workload) -> SqliteTarget:
    return SqliteTarget(tmp_path / "target.db", workload.tables)


KEYS = tuple((f"{shard}.items", "id") for shard in ("east", "north", "south", "west"))


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    few_of(
        [
            FOUR,
            ShardPlan(channels=3, by=ShardBy.TABLE, rule=AssignmentRule.HASH, serial=frozenset({"north.items"})),
            ShardPlan(channels=3, by=ShardBy.KEY, keys=KEYS[:2]),
            ShardPlan(channels=1),
            ShardPlan(channels=3, rule=AssignmentRule.HASH),
            ShardPlan(channels=3, mapping=(("east", 2),), default=1),
            ShardPlan(channels=3, by=ShardBy.SCHEMA),
            ShardPlan(channels=3, by=ShardBy.KEY, keys=KEYS),
        ],
        3,
    ),
    ids=["recorded", "table", "keys of some", "one", "hash", "default", "schema", "key"],
)
@pytest.mark.parametrize("seed", [11])
def test_everything_lands_once_and_in_order(tmp_path: Path, plan: ShardPlan, seed: int, effort: Effort) -> None:
    """Rows depend on each other within a shard and, through serial transactions, across; a wrong order conflicts."""
    workload = Workload(seed=seed, large=0.01)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, effort(150, 400, 400), segment_bytes=20_000)
    results = run_threads(tasks_for(target.options, tmp_path / "log", plan, take(target.options, plan), until=last))
    assert [(result.end, result.applied_seqno, result.error) for result in results] == [
        (TaskEnd.LIMIT, last, None)
    ] * plan.channels
    check_equal(target, workload)
    done = counters(target.options)
    assert (done.transactions, done.changes) == (last + 1, workload.changes)
    assert 0 < done.sections <= done.serial
    assert done.skipped == (last + 1) * (plan.channels - 1)


def test_with_an_interval_all_lands_as_without(tmp_path: Path) -> None:
    """`max_offline_interval`, 20 ms where the commit times are 1 ms apart: nobody hangs, nobody loses order."""
    workload = Workload(seed=12, serial=0.02)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 400)
    token = take(target.options, FOUR)
    given = tasks_for(target.options, tmp_path / "log", FOUR, token, until=last, max_offline_interval_s=0.02)
    assert {result.end for result in run_threads(given)} == {TaskEnd.LIMIT}
    check_equal(target, workload)


def test_spilled_transactions_land_once_and_in_order(tmp_path: Path) -> None:
    """replication.md, "Large transactions": a channel streams them like fragments, in their place among the others."""
    workload = Workload(seed=12, large=0.15)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 200, segment_bytes=20_000, spill_above=1_500, spill_chunk_bytes=5_000)
    with LogReader.open(str(tmp_path / "log")) as log:
        spilled = [header.spilled for header in map(log.header, map(Seqno, range(last + 1))) if header is not None]
    assert 10 < sum(spilled) < len(spilled)
    results = run_threads(tasks_for(target.options, tmp_path / "log", FOUR, take(target.options, FOUR), until=last))
    assert [(result.end, result.applied_seqno, result.error) for result in results] == [(TaskEnd.LIMIT, last, None)] * 4
    check_equal(target, workload)
    done = counters(target.options)
    assert (done.transactions, done.changes) == (last + 1, workload.changes)


def test_two_that_depend_on_each_other_one_of_them_serial(tmp_path: Path) -> None:
    """A chain east -> serial -> west -> serial -> east, applied over several channels, keeps order.

    Each step updates rows as the step before has left them, so any other order hits no row.
    """
    east, west = items("east"), items("west")
    target = SqliteTarget(tmp_path / "target.db", [east, west])
    workload = Workload(seed=0, shards=("east", "west"))
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)

    def update(table, before, after):
        return RowChange(table, Op.UPDATE, (1, before, "x"), (1, after, "x"))

    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        first = [RowChange(table, Op.INSERT, None, (1, 0, "x")) for table in (east, west)]
        workload.append(log, packer, first)
        for step in range(0, 120, 3):
            workload.append(log, packer, [update(east, step, step + 1)])
            workload.append(log, packer, [update(west, step, step + 1)])
            workload.append(log, packer, [update(east, step + 1, step + 2), update(west, step + 1, step + 2)])
            workload.append(log, packer, [update(west, step + 2, step + 3)])
            workload.append(log, packer, [update(east, step + 2, step + 3)])
        log.commit()
        last = log.last_seqno
    plan = ShardPlan(channels=3, mapping=(("east", 1), ("west", 2)))  # channel 0 has the serial ones alone
    results = run_threads(tasks_for(target.options, tmp_path / "log", plan, take(target.options, plan), until=last))
    assert [result.error for result in results] == [None] * 3
    assert read_back(target.options, [east, west]) == {table: {1: (1, 120, "x")} for table in (east, west)}
    done = counters(target.options)
    assert done.sections == 41, "the no-op and the first are one run, then one for each step"
    assert done.waits > 0


def test_no_ops_and_empty_transactions_move_positions(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    """B7-8: the ancestor throws an empty event at the tail away, and its position waits for the next one."""
    write_log(tmp_path / "log", workload, 20)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:  # this start leaves a no-op behind
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
        for _ in range(3):
            workload.append(log, packer, [])
        log.commit()
        last = log.last_seqno
        token = take(target.options, FOUR)
        running = Threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=None, sync_interval_s=0.2))
        wait_until(lambda: set(positions(target.options).values()) == {last})
        stop(target, token)
        assert {result.end for result in running.join()} == {TaskEnd.STOPPED}
    check_equal(target, workload)


def wait_until(true, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def stop(target: SqliteTarget, token: int, at: int = -1) -> None:
    opened = open_target(target.options)
    opened.positions.request_stop(pipeline="p", token=token, stop_at_seqno=Seqno(at))
    opened.close()


def test_a_log_that_grows_is_followed(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        token = take(target.options, FOUR)
        running = Threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=None))
        for _ in range(20):
            workload.write(log, 5, sync_every=2)
        last = log.last_seqno
        wait_until(lambda: min(positions(target.options).values()) == last)
        stop(target, token)
        running.join()
    check_equal(target, workload)


def test_idle_channels_publish_their_position(tmp_path: Path) -> None:
    """ "every so many transactions and every second": one shard is busy, and the other channels do not hold it up."""
    workload = Workload(seed=3, shards=("north",), serial=0.0)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 300)
    token = take(target.options, FOUR)
    run_threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=last, idle_every=100))
    rows = read_rows(target)
    assert {row.applied_seqno for row in rows} == {last}
    assert {row.event_id for row in rows} == {"event 300"}, "the event id is the position's own"


@pytest.mark.parametrize(
    ("bounds", "groups"),
    [
        ({"transactions": 7}, -(-600 // 7)),
        ({"changes": 5}, 600 // 5),
        ({"seconds": 1e-9}, -(-600 // 256)),  # the clock is looked at every so many headers
        ({}, 1),
    ],
    ids=["by number", "by changes", "by time", "by none of these"],
)
def test_groups_end_at_the_first_bound(tmp_path: Path, bounds: dict, groups: int) -> None:
    """conformance A6, blockCommitRowCount and blockCommitInterval; what is under way at the end is committed too."""
    table = items("north")
    workload = Workload(seed=0)
    target = SqliteTarget(tmp_path / "target.db", [table])
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
        for key in range(600):
            workload.append(log, packer, [RowChange(table, Op.INSERT, None, (key, 0, "x"))])
        log.commit()
        last = log.last_seqno
    one = ShardPlan(channels=1)
    given = {"transactions": 10_000, "changes": 10_000, "bytes": 1 << 30, "seconds": 3600.0, **bounds}
    tasks = tasks_for(
        target.options,
        tmp_path / "log",
        one,
        take(target.options, one),
        until=last,
        bounds=GroupBounds(**given),
        sync_interval_s=3600.0,
    )
    run_threads(tasks)
    assert counters(target.options).groups == groups
    assert target.audit().total() == 600


def test_a_statement_is_a_group_of_its_own(tmp_path: Path) -> None:
    """What a target may be unable to roll back shares no transaction there: conformance A6, unsafe_for_block_commit."""
    table = items("north")
    workload = Workload(seed=0)
    target = SqliteTarget(tmp_path / "target.db", [table])
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
        for key in range(9):
            change: Change = RowChange(table, Op.INSERT, None, (key, 0, "x"))
            if key in (3, 4):
                change = Statement(schema="main", sql=f'CREATE TABLE "more{key}" (id)', ddl=True)
            workload.append(log, packer, [change], (("dbms_type", "sqlite"),))
        log.commit()
        last = log.last_seqno
    one = ShardPlan(channels=1)
    run_threads(tasks_for(target.options, tmp_path / "log", one, take(target.options, one), until=last))
    assert counters(target.options).groups == 4, "rows, a statement, a statement, rows"
    assert target.audit().total() == 7
    assert target.query("SELECT name FROM sqlite_master WHERE name LIKE 'more%' ORDER BY name") == [
        ("more3",),
        ("more4",),
    ]


def read_rows(target: SqliteTarget):
    opened = open_target(target.options)
    try:
        return opened.positions.read_channels("p")
    finally:
        opened.close()


def test_a_drain_ends_all_channels_at_one_seqno(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    """`stop_at_seqno`: apply up to it, inclusive, and end; the log has more."""
    last = write_log(tmp_path / "log", workload, 200)
    token = take(target.options, FOUR)
    stop(target, token, at=77)
    results = run_threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=last))
    assert {(result.end, result.applied_seqno) for result in results} == {(TaskEnd.LIMIT, 77)}
    assert set(positions(target.options).values()) == {77}


def test_a_start_goes_on_behind_each_position(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    """Stopped many times, at limits inside serial runs too, and started again by tasks that know nothing of it."""
    workload.serial = 0.5
    last = write_log(tmp_path / "log", workload, 150)
    for until in [*range(15, last, 15), last]:
        token = take(target.options, FOUR)
        results = run_threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=until))
        assert {result.end for result in results} == {TaskEnd.LIMIT}
    check_equal(target, workload)
    assert counters(target.options).transactions == last + 1, "counters go on as well"


def test_tasks_that_are_replaced_in_the_middle_write_nothing_more(
    tmp_path: Path, workload: Workload, target: SqliteTarget
) -> None:
    """Two sets of tasks of one driver, then a new driver: the guarded update lets one of each pair write."""
    last = write_log(tmp_path / "log", workload, 300)
    one = GroupBounds(transactions=1)
    first = take(target.options, FOUR)
    early = Threads(tasks_for(target.options, tmp_path / "log", FOUR, first, until=last, bounds=one))
    twins = Threads(tasks_for(target.options, tmp_path / "log", FOUR, first, until=last, bounds=one))
    wait_until(lambda: min(positions(target.options).values()) > 20)
    second = take(target.options, FOUR)
    results = run_threads(tasks_for(target.options, tmp_path / "log", FOUR, second, until=last, bounds=one))
    assert {result.end for result in results} == {TaskEnd.LIMIT}
    replaced = [*early.join(), *twins.join()]
    assert {result.end for result in replaced} == {TaskEnd.REPLACED}
    assert all(isinstance(result.error, ReplacedError) for result in replaced)
    check_equal(target, workload)


def test_a_conflict_stops_at_its_transaction(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    """ "roll back, apply the group singly, name seqno, table and key"; the other channels are told to stop."""
    north = items("north")
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        for key in (1, 2, 3, 4):
            workload.append(log, packer, [RowChange(north, Op.INSERT, None, (key, 0, "x"))])
        log.commit()
        token = take(target.options, FOUR)
        target.query("INSERT INTO \"north.items\" VALUES (3, 9, 'mine')")
        tasks = tasks_for(target.options, tmp_path / "log", FOUR, token, until=None, sync_interval_s=0.1)
        results = run_threads(tasks)
    failed = [result for result in results if result.end is TaskEnd.FAILED]
    assert len(failed) == 1
    error = failed[0].error
    assert isinstance(error, ConflictError)
    assert (error.seqno, error.table) == (3, "north.items") and "3" in error.key
    assert failed[0].applied_seqno == 2, "all before the one at fault are in the target"
    assert {result.end for result in results if result is not failed[0]} == {TaskEnd.STOPPED}
    assert read_back(target.options, [north]) == {north: {1: (1, 0, "x"), 2: (2, 0, "x"), 3: (3, 9, "mine")}}
    # Mended, it goes on.
    target.query('DELETE FROM "north.items" WHERE id = 3')
    token = take(target.options, FOUR)
    results = run_threads(tasks_for(target.options, tmp_path / "log", FOUR, token, until=4))
    assert {result.end for result in results} == {TaskEnd.LIMIT}
    assert len(read_back(target.options, [north])[north]) == 4


def test_a_missing_table_is_named(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    last = write_log(tmp_path / "log", workload, 50)
    target.query('DROP TABLE "east.items"')
    results = run_threads(tasks_for(target.options, tmp_path / "log", FOUR, take(target.options, FOUR), until=last))
    errors = [result.error for result in results if result.error is not None]
    assert errors and all(isinstance(error, TargetTableError) for error in errors)
    assert "east.items" in str(errors[0])


def test_another_log_is_refused(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    last = write_log(tmp_path / "log", workload, 50)
    run_threads(tasks_for(target.options, tmp_path / "log", FOUR, take(target.options, FOUR), until=last))
    write_log(tmp_path / "other", Workload(seed=2), 20)
    token = take(target.options, FOUR)
    results = run_threads(tasks_for(target.options, tmp_path / "other", FOUR, token, until=None))
    assert all(isinstance(result.error, TargetAheadError) for result in results if result.end is TaskEnd.FAILED)
    assert any(result.end is TaskEnd.FAILED for result in results)
    check_equal(target, workload)


def test_a_pipeline_that_a_hard_limit_passed_hears_so(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    """Whoever is passed by a hard limit "hears it in a clear error" when it comes back."""
    path = tmp_path / "log"
    last = write_log(path, workload, 10)
    run_threads(tasks_for(target.options, path, FOUR, take(target.options, FOUR), until=last))
    hold(str(path), "p", Seqno(last))
    write_log(path, workload, 200, segment_bytes=4_000, hard_retention_bytes=12_000)
    token = take(target.options, FOUR)
    results = run_threads(tasks_for(target.options, path, FOUR, token, until=None))
    errors = [result.error for result in results if result.end is TaskEnd.FAILED]
    assert errors and all(isinstance(error, PurgedError) for error in errors)
    assert "hard_retention_bytes = 12000 removed everything up to seqno" in str(errors[0])
    assert "although p still needed it" in str(errors[0])


def test_no_log_tells_the_others_to_stop(tmp_path: Path, target: SqliteTarget) -> None:
    tasks = tasks_for(target.options, tmp_path / "nowhere", FOUR, take(target.options, FOUR), until=None)
    results = run_threads(tasks)
    assert all(isinstance(result.error, LogMissingError) for result in results)
    opened = open_target(target.options)
    assert opened.positions.meet("p").stop_at_seqno == -1
    opened.close()


def test_a_locked_target_is_waited_for(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    """ "roll back, read the position, go on": somebody keeps the write lock longer than a task waits for it."""
    last = write_log(tmp_path / "log", workload, 60)
    token = take(target.options, FOUR)
    options = replace(target.options, lock_timeout_s=0.05)
    blocker = target.connect()
    blocker.execute("BEGIN IMMEDIATE")
    running = Threads(tasks_for(options, tmp_path / "log", FOUR, token, until=last))
    time.sleep(0.6)
    assert set(positions(target.options).values()) == {-1}
    blocker.execute("COMMIT")
    assert {result.end for result in running.join()} == {TaskEnd.LIMIT}
    check_equal(target, workload)
    assert counters(target.options).retries > 0


@pytest.mark.parametrize("replaced", [True, False])
def test_an_assignment_of_another_plan(
    tmp_path: Path, workload: Workload, target: SqliteTarget, replaced: bool
) -> None:
    """A row beyond the task's channels is an operator's only if no later driver with a larger plan has put it there."""
    last = write_log(tmp_path / "log", workload, 20)
    two = ShardPlan(channels=2)
    task, _ = tasks_for(target.options, tmp_path / "log", two, take(target.options, two), until=last)
    opened = open_target(target.options)
    read_assignment = opened.positions.read_assignment

    def read_later(pipeline: str) -> dict[str, int]:
        if replaced:
            take(target.options, FOUR)
        target.query("INSERT INTO tranlog_shard VALUES ('p', 'north', 3)")
        return read_assignment(pipeline)

    opened.positions.read_assignment = read_later  # type: ignore[method-assign]
    with contextlib.closing(Channel(task, lambda: opened, lambda: LogReader.open(tmp_path / "log"))) as channel:
        result = channel.run()
    assert result.end is (TaskEnd.REPLACED if replaced else TaskEnd.FAILED)
    assert isinstance(result.error, ReplacedError if replaced else ConfigError)


def test_a_wait_is_told_beside_the_position(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    """Who waits for whom, at a serial section on both of its sides; and it is told no more behind it.

    A position that nothing was applied up to stays one: the log's first transaction is serial, and applied by nobody.
    """
    last = write_log(tmp_path / "log", workload, 60)
    tasks = tasks_for(target.options, tmp_path / "log", FOUR, take(target.options, FOUR), until=last)

    def told(channel: int) -> Waiting | None:
        rows = look(target)
        return ChannelStats.parse(rows[channel].stats).waiting

    first = Threads(tasks[1:3])
    wait_for(lambda: told(1) is not None and told(2) is not None)
    assert told(1) == told(2) == Waiting(0, True, (0,))
    row = look(target)[1]
    assert (row.applied_seqno, row.epoch, row.event_id) == (-1, 0, "")
    assert waits_of(list(look(target).values())).keys() == {1, 2}
    serial = Threads(tasks[:1])
    wait_for(lambda: told(0) is not None)
    waiting = told(0)
    assert waiting is not None and waiting.serial and 3 in waiting.channels and waiting.seqno > 0
    third = Threads(tasks[3:])
    for threads in (first, serial, third):
        assert {result.end for result in threads.join()} == {TaskEnd.LIMIT}
    check_equal(target, workload)
    assert waits_of(list(look(target).values())) == {}
    assert {channel: told(channel) for channel in range(4)} == dict.fromkeys(range(4))


@pytest.mark.long
def test_whoever_waits_outlasts_a_locked_target(tmp_path: Path, workload: Workload, target: SqliteTarget) -> None:
    """A serial transaction may take longer than retry_s, and in SQLite nobody else can write a word meanwhile."""
    last = write_log(tmp_path / "log", workload, 60)
    token = take(target.options, FOUR)
    options = replace(target.options, lock_timeout_s=0.1)
    # Long enough for the blocker's own COMMIT on a busy disk, during which SQLite lets nobody read.
    tasks = tasks_for(options, tmp_path / "log", FOUR, token, until=last, retry_s=1.5, sync_interval_s=0.02)
    others = Threads(tasks[1:])
    wait_for(lambda: len(waits_of(list(look(target).values()))) == 3)
    blocker = target.connect()
    blocker.execute("BEGIN IMMEDIATE")
    until = time.monotonic() + 3
    wait_for(lambda: time.monotonic() > until)
    blocker.execute("COMMIT")
    assert {result.end for result in [*run_threads(tasks[:1]), *others.join()]} == {TaskEnd.LIMIT}
    check_equal(target, workload)


def look(target: SqliteTarget) -> dict[int, ChannelRow]:
    opened = open_target(target.options)
    try:
        return {row.channel: row for row in opened.positions.read_channels("p")}
    finally:
        opened.close()


def wait_for(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)

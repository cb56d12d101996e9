"""Channels with filters, on a real log and a real target; threads do what Spark's tasks do.

conformance/tungsten.md A6, "filters": null is a drop, and a run of what was dropped moves the position.
"""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fix_pipeline import (
    BY_SCHEMA,
    Rows,
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
from tranlog.change import Change, Fragment, Op, RowChange, Statement, TableMap
from tranlog.errors import FilterError, TargetTableError
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.applying.task import ChannelTask, TaskEnd, TaskResult
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import (
    Delay,
    DropColumns,
    EachBatch,
    EachTransaction,
    Exclude,
    Filter,
    MaskBy,
    MaskColumns,
    OnStatement,
    Rename,
)
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import open_target

pytestmark = pytest.mark.long

FOUR = ShardPlan(channels=4)
RENAMED: tuple[Filter, ...] = (
    Exclude(tables=("west.*",), statements=OnStatement.PASS),
    Rename(schema="north", to="polar"),
    Rename(table="east.items", to="things"),
    Rename(table="polar.*", column="n", to="number"),
    MaskColumns(table="south.items", columns=("note",), by=MaskBy.KEEP_LAST, keep=1),
    DropColumns(table="east.*", columns=("note",)),
)


class Filtered:
    """A workload in a log, and a target with the tables that filters leave of it."""

    def __init__(self, path: Path, filters: Sequence[Filter], workload: Workload) -> None:
        self.path, self.filters, self.workload = path, tuple(filters), workload
        found = [Chain(filters).table(table) for table in workload.tables]
        tables = [one.table for one in found if one is not None]
        self.target = SqliteTarget(path / "target.db", tables)

    def write(self, number: int, **options: Any) -> Seqno:
        return write_log(self.path / "log", self.workload, number, **options)

    def tasks(self, *, until: int | None, filters: Sequence[Filter] | None = None, **more: Any) -> list[ChannelTask]:
        plan = more.pop("plan", FOUR)
        token = take(self.target.options, plan)
        given = self.filters if filters is None else tuple(filters)
        return tasks_for(self.target.options, self.path / "log", plan, token, until=until, filters=given, **more)

    def run(self, *, until: int | None, **more: Any) -> list[TaskResult]:
        return run_threads(self.tasks(until=until, **more))

    def expected(self) -> dict[TableMap, Rows]:
        """What the rows at the source become, said without the filters' own code; for RENAMED."""
        made: dict[TableMap, Any] = {}
        for table, rows in self.workload.rows.items():
            found = Chain(self.filters).table(table)
            if table.schema == "west":
                assert found is None
                continue
            assert found is not None
            match table.schema:
                case "south":
                    made[found.table] = {
                        key: (row[0], row[1], "*" * (len(row[2]) - 1) + row[2][-1]) for key, row in rows.items()
                    }
                case "east":
                    made[found.table] = {key: row[:2] for key, row in rows.items()}
                case _:
                    made[found.table] = dict(rows)
        return made

    def check(self) -> None:
        expected = self.expected()
        assert sorted(table.name for table in expected) == ["east.things", "polar.items", "south.items"]
        assert read_back(self.target.options, tuple(expected)) == expected
        kept = {(schema, table.name) for table in expected for schema in [table.schema]}
        names = {"north.items": "polar.items", "east.items": "east.things", "south.items": "south.items"}
        audit = {(names[name], key, op): n for (name, key, op), n in self.workload.audit.items() if name in names}
        assert kept and dict(self.target.audit()) == audit, "each change exactly once"


def ends(results: Sequence[TaskResult]) -> list[tuple[TaskEnd, object]]:
    return [(result.end, result.error) for result in results]


@contextlib.contextmanager
def looking(options: Any) -> Iterator[Any]:
    target = open_target(options)
    try:
        yield target
    finally:
        target.close()


def wait_until(true: Any, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def test_what_filters_leave_lands_once_and_in_order(tmp_path: Path) -> None:
    """Transactions over several shards, in several fragments and spilled ones among them."""
    found = Filtered(tmp_path, RENAMED, Workload(seed=41, large=0.02))
    last = found.write(300, segment_bytes=20_000, spill_above=9_000, spill_chunk_bytes=5_000)
    assert ends(found.run(until=last)) == [(TaskEnd.LIMIT, None)] * 4
    found.check()
    done = counters(found.target.options)
    assert done.transactions == last + 1 and done.filtered > 20
    assert done.changes == sum(n for (name, _, _), n in found.workload.audit.items() if name != "west.items")


def test_stopped_in_many_places_it_goes_on(tmp_path: Path) -> None:
    found = Filtered(tmp_path, RENAMED, Workload(seed=42, serial=0.3))
    last = found.write(120)
    for until in [*range(10, last, 22), last]:
        assert ends(found.run(until=until)) == [(TaskEnd.LIMIT, None)] * 4
    found.check()
    assert counters(found.target.options).transactions == last + 1


KILLED = """
import pickle, sys, threading
from tranlog.pipeline.applying.channel import run_task
tasks = pickle.loads(bytes.fromhex(sys.stdin.read()))
threads = [threading.Thread(target=run_task, args=(task,)) for task in tasks]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_killed_in_the_middle_it_goes_on(tmp_path: Path) -> None:
    found = Filtered(tmp_path, RENAMED, Workload(seed=43))
    last = found.write(400)
    for bound in (40, 150):
        tasks = found.tasks(until=last, bounds=GroupBounds(transactions=1))
        with subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            process.stdin.write(pickle.dumps(tasks).hex())
            process.stdin.close()
            wait_until(lambda bound=bound: min(positions(found.target.options).values()) > bound)
            process.kill()
    assert ends(found.run(until=last)) == [(TaskEnd.LIMIT, None)] * 4
    found.check()


def test_all_dropped_positions_move(tmp_path: Path) -> None:
    """ "a filter that drops a whole transaction leaves positions moving": also at the end, also while following."""
    found = Filtered(tmp_path, (Exclude(tables=("*.*",)),), Workload(seed=44))
    last = found.write(150)
    running = Threads(found.tasks(until=None, sync_interval_s=0.1))
    wait_until(lambda: set(positions(found.target.options).values()) == {last})
    with looking(found.target.options) as target:
        assert {(row.epoch, row.event_id) for row in target.positions.read_channels("p")} == {(1, "event 150")}
        row = target.positions.read_pipeline("p")
        assert row is not None
        target.positions.request_stop(pipeline="p", token=row.token, stop_at_seqno=Seqno(-1))
    assert ends(running.join()) == [(TaskEnd.STOPPED, None)] * 4
    done = counters(found.target.options)
    assert (done.transactions, done.changes, done.groups) == (last + 1, 0, 0)
    assert done.filtered > 100


def test_what_the_header_excludes_is_not_decoded(tmp_path: Path) -> None:
    """Its payload is no payload at all, and nobody finds out."""
    workload = Workload(seed=45)
    found = Filtered(tmp_path, (Exclude(tables=("secret.*",)),), workload)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        workload.write(log, 20)
        log.append(
            Fragment(
                source_id="test",
                event_id="odd",
                shard_id="secret",
                tstamp=1,
                tables=(("secret", "t"), ("secret", "u")),
                payload=b"\xff no payload",
            )
        )
        workload.write(log, 20)
        last = log.last_seqno
    assert ends(found.run(until=last)) == [(TaskEnd.LIMIT, None)] * 4
    check_equal(found.target, workload)
    assert counters(found.target.options).filtered == 1


def fail_at(key: int) -> EachTransaction:
    def poisonous(changes: list[Change]) -> list[Change]:
        for change in changes:
            if isinstance(change, RowChange) and change.after is not None and change.after[0] == key:
                raise ValueError(f"no {key}")
        return changes

    return EachTransaction(function=poisonous)


@pytest.mark.parametrize("size", [1, 400])
def test_a_function_that_raises_stops_the_pipeline(tmp_path: Path, size: int) -> None:
    """One clear error with filter, seqno, event id; nothing of that transaction, all of those before it."""
    workload = Workload(seed=46)
    found = Filtered(tmp_path, (), workload)
    north = items("north")
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA, fragment_bytes=4_000)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        for first in (1000, 2000, 3000, 4000):
            workload.append(
                log, packer, [RowChange(north, Op.INSERT, None, (first + n, 0, "note")) for n in range(size)]
            )
        log.commit()
    failing = (Delay(delay_s=0.001), fail_at(3000 + size - 1))
    results = found.run(until=None, filters=failing, sync_interval_s=0.1)
    (failed,) = [result for result in results if result.end is TaskEnd.FAILED]
    error = failed.error
    assert isinstance(error, FilterError)
    assert (error.seqno, error.event_id) == (3, "event 3")
    assert error.filter == "filter 2 (transaction poisonous)" and f"ValueError: no {2999 + size}" in str(error)
    assert failed.applied_seqno == 2, "all before it are in the target"
    assert {result.end for result in results if result is not failed} == {TaskEnd.STOPPED}
    assert len(read_back(found.target.options, [north])[north]) == 2 * size
    assert ends(found.run(until=4, filters=(fail_at(-1),))) == [(TaskEnd.LIMIT, None)] * 4
    assert len(read_back(found.target.options, [north])[north]) == 4 * size


def test_functions_run_in_the_channels(tmp_path: Path) -> None:
    """On transactions and on Arrow batches, large transactions too; a table of updates only is left as it was."""

    def count_from_100(batch: Any) -> Any:
        import pyarrow.compute as pc

        for side in ("before", "after"):
            at = batch.schema.get_field_index(f"{side}.n")
            batch = batch.set_column(at, f"{side}.n", pc.add(batch.column(at), 100))
        return batch

    def without_east(changes: list[Change]) -> list[Change] | None:
        return [one for one in changes if isinstance(one, RowChange) and one.table.schema != "east"] or None

    filters = (EachTransaction(function=without_east), EachBatch(function=count_from_100, rows=50))
    workload = Workload(seed=47, large=0.02)
    found = Filtered(tmp_path, (), workload)
    last = found.write(150)
    assert ends(found.run(until=last, filters=filters)) == [(TaskEnd.LIMIT, None)] * 4
    expected: dict[TableMap, Any] = {
        table: {} if table.schema == "east" else {key: (row[0], row[1] + 100, row[2]) for key, row in rows.items()}
        for table, rows in workload.rows.items()
    }
    assert read_back(found.target.options, workload.tables) == expected
    assert counters(found.target.options).filtered > 10


def test_a_delay_waits_outside_and_stops_while_it_waits(tmp_path: Path) -> None:
    """ "not before commit time + d": what is due lands, what is not does not, and the target's lock is free."""
    now = time.time_ns() // 1_000_000
    workload = Workload(seed=48, serial=0.0)
    found = Filtered(tmp_path, (), workload)
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
    north = items("north")
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        for number, tstamp in enumerate((now - 7_200_000, now - 7_200_000, now, now - 7_200_000), start=1):
            packer.begin(BY_SCHEMA)
            packer.add(RowChange(north, Op.INSERT, None, (number, 0, "x")), event_id=str(number), tstamp=tstamp)
            log.append(packer.finish(event_id=str(number), tstamp=tstamp))
        log.commit()
        first = log.last_seqno - 3
    one = ShardPlan(channels=1)
    with looking(found.target.options) as target:
        # The log's own no-op at its start is as young as now: begin behind it.
        take(found.target.options, one, begin=first)
        running = Threads(found.tasks(until=None, filters=(Delay(delay_s=3600),), plan=one, sync_interval_s=0.05))
        wait_until(lambda: positions(found.target.options) == {0: first + 1})
        before = [row.updated_at for row in target.positions.read_channels("p")]
        writer = found.target.connect()
        writer.set_busy_timeout(5_000)
        writer.execute("BEGIN IMMEDIATE; ROLLBACK")
        writer.close()
        row = target.positions.read_pipeline("p")
        assert row is not None and before
        target.positions.request_stop(pipeline="p", token=row.token, stop_at_seqno=Seqno(-1))
    assert ends(running.join()) == [(TaskEnd.STOPPED, None)]
    assert sorted(read_back(found.target.options, [north])[north]) == [1, 2]
    # With a shorter one they land, in the log's order, and not before their time.
    delay_s = (time.time_ns() // 1_000_000 - now) / 1000 + 0.3
    results = found.run(until=first + 3, filters=(Delay(delay_s=delay_s),), plan=one, sync_interval_s=0.05)
    assert ends(results) == [(TaskEnd.LIMIT, None)]
    assert time.time_ns() // 1_000_000 >= now + delay_s * 1000
    assert sorted(read_back(found.target.options, [north])[north]) == [1, 2, 3, 4]


def test_two_tables_that_become_one_over_two_channels(tmp_path: Path) -> None:
    """Each channel has one of them only; the headers tell both."""
    workload = Workload(seed=49, serial=0.0)
    found = Filtered(tmp_path, (), workload)
    found.write(100)
    one = Rename(schema="north", to="south")
    results = found.run(until=None, filters=(one,), sync_interval_s=0.1)
    errors = [result.error for result in results if result.end is TaskEnd.FAILED]
    assert errors and all(isinstance(error, TargetTableError) for error in errors)
    assert "their rows would mix" in str(errors[0]) and "south.items (seqno " in str(errors[0])


@pytest.mark.parametrize("choice", OnStatement)
def test_a_statement_and_a_rename(tmp_path: Path, choice: OnStatement) -> None:
    """A rename does not rewrite SQL: it stops at it, by name, or does as it is told."""
    workload = Workload(seed=50, serial=0.0)
    one = Rename(table="north.items", to="things", statements=choice)
    found = Filtered(tmp_path, (one,), workload)
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        workload.write(log, 20)
        workload.append(
            log,
            packer,
            [Statement(schema="north", sql='CREATE TABLE "more" (id)', ddl=True)],
            (("dbms_type", "sqlite"),),
        )
        at = log.last_seqno
        workload.write(log, 20)
        last = log.last_seqno
    results = found.run(until=None if choice is OnStatement.STOP else last, sync_interval_s=0.1)
    made = found.target.query("SELECT count(*) FROM sqlite_schema WHERE name = 'more'")
    if choice is OnStatement.STOP:
        (error,) = [result.error for result in results if result.end is TaskEnd.FAILED]
        assert isinstance(error, FilterError) and error.seqno == at and 'CREATE TABLE "more"' in str(error)
        assert max(positions(found.target.options).values()) < at
    else:
        assert ends(results) == [(TaskEnd.LIMIT, None)] * 4
    assert made == [(int(choice is OnStatement.PASS),)]


def test_what_is_dropped_ends_no_group(tmp_path: Path) -> None:
    """Ancestor's PipelineTest: filtering does not commit. Seven that are kept share a target transaction."""
    workload = Workload(seed=51)
    found = Filtered(tmp_path, (Exclude(tables=("west.*",)),), workload)
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        for key in range(14):
            for schema in ("north", "west"):
                workload.append(log, packer, [RowChange(items(schema), Op.INSERT, None, (key, 0, "x"))])
        log.commit()
        last = log.last_seqno
    bounds = GroupBounds(transactions=7, seconds=60)
    results = found.run(until=last, plan=ShardPlan(channels=1), bounds=bounds, sync_interval_s=60)
    assert ends(results) == [(TaskEnd.LIMIT, None)]
    done = counters(found.target.options)
    assert (done.groups, done.filtered, done.changes) == (2, 14, 14)

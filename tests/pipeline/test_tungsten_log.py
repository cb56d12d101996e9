"""Channels on a Java replicator's directory. Threads do what Spark does, as in test_channel."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import msgspec
import pytest

from fix_pipeline import (
    SqliteTarget,
    Threads,
    Workload,
    check_equal,
    counters,
    positions,
    run_threads,
    take,
    tasks_for,
    write_log,
)
from fix_tungsten import GOLDEN, make_event
from tranlog import Pipeline
from tranlog.change import Op, RowChange
from tranlog.codecs.converting import convert
from tranlog.codecs.opening import open_readable
from tranlog.errors import DdlStopError, PayloadError, TargetAheadError
from tranlog.log.options import LogOptions
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.upkeep.tables import tables_in_log
from tranlog.target.options import TargetOptions, open_target
from tranlog.tungsten.records.event import ColumnSpec, Event, RowChanges, TableChange
from tranlog.tungsten.records.values import Long
from tranlog.tungsten.writing.directory import TungstenLog
from tranlog.types import canonical

PLAN = ShardPlan(channels=3)


@pytest.mark.long
def test_everything_lands_once_and_in_order(tmp_path: Path) -> None:
    """The same workload and checks as for a native log, read from the ancestor's form of it."""
    workload = Workload(seed=7, large=0.01)
    last = write_log(tmp_path / "log", workload, 250)
    convert(str(tmp_path / "log"), str(tmp_path / "thl"), segment_bytes=20_000)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    results = run_threads(tasks_for(target.options, tmp_path / "thl", PLAN, take(target.options, PLAN), until=last))
    assert [(result.end, result.applied_seqno, result.error) for result in results] == [(TaskEnd.LIMIT, last, None)] * 3
    check_equal(target, workload)
    assert not (tmp_path / "thl" / "holds").exists()
    pipeline = Pipeline(tmp_path / "thl", target=target.options, channels=3, name="p")
    status = pipeline.status(watch_s=0, log_options=LogOptions())
    assert status.log is not None and status.log.storeClass == "tranlog.tungsten.reading.translated.TranslatedReader"
    assert (status.log.activeSeqno, status.log.maximumStoredSeqNo) == (-1, last), "nothing is held in it"
    assert (status.pipeline.appliedLastSeqno, status.queue.headSeqno) == (last, last)


def prepare(path: Path, thl: Path) -> TargetOptions:
    """Make the tables that a directory's changes name, in a new SQLite target."""
    options = TargetOptions(kind="sqlite", path=str(path))
    target = open_target(options)
    target.positions.ensure_tables()
    with open_readable(thl) as log:
        for table in tables_in_log(log, report=lambda at, last: None):
            if table.name not in ("db1.acct", "db1.specs_only"):
                columns = tuple(msgspec.structs.replace(column, nullable=True) for column in table.columns)
                target.rows.create_table(msgspec.structs.replace(table, columns=columns))
    target.close()
    return options


def test_a_golden_directory_with_rows(tmp_path: Path) -> None:
    """All 45 kinds of values reach SQLite, together and each in a table of its own."""
    options = prepare(
        tmp_path / "target.db",
        GOLDEN / "rows-crc" / "log",
    )
    token = take(options, PLAN)
    results = run_threads(tasks_for(options, GOLDEN / "rows-crc" / "log", PLAN, token, until=45))
    assert [(result.end, result.error) for result in results] == [(TaskEnd.LIMIT, None)] * 3
    target = open_target(options)
    with open_readable(GOLDEN / "rows-crc" / "log") as log, log.cursor() as cursor:
        assert cursor.next_header() is not None
        (change,) = cursor.current().changes()
        assert isinstance(change, RowChange) and change.after is not None
        (row,) = target.rows.read(change.table)
        pairs = zip(change.table.columns, row, change.after, strict=True)
        told = {column.name: (canonical(one), canonical(other)) for column, one, other in pairs}
        del told["vchr_bytes"]  # the ancestor does not name the charset of bytes that it did not decode
        assert len(told) == 44 and {name for name, (a, b) in told.items() if a != b} == set()
    target.close()
    assert counters(options).changes == 90, "one row of all columns, and what the directory has of each alone"


def test_a_statement_is_refused_by_name(tmp_path: Path) -> None:
    options = prepare(tmp_path / "target.db", GOLDEN / "statements-crc" / "log")
    (failed, *others) = run_threads(
        tasks_for(options, GOLDEN / "statements-crc" / "log", PLAN, take(options, PLAN), until=5)
    )
    assert isinstance(failed.error, DdlStopError), "statements are serial, so channel 0 has them"
    assert failed.error.seqno == 0
    assert {result.end for result in others} == {TaskEnd.STOPPED}


def test_a_java_object_is_refused_by_name(tmp_path: Path) -> None:
    options = prepare(tmp_path / "target.db", GOLDEN / "simple-100" / "log")
    plan = ShardPlan(channels=1)
    (failed,) = run_threads(tasks_for(options, GOLDEN / "java-serializer" / "log", plan, take(options, plan), until=2))
    assert isinstance(failed.error, PayloadError) and "JavaSerializer" in str(failed.error)


SPECS = (
    ColumnSpec(index=1, name="id", sql_type=4, length=8, description="BIGINT"),
    ColumnSpec(index=2, name="n", sql_type=4, length=8, description="BIGINT"),
)


def rows_event(seqno: int, op: int, keys: list[tuple[int, int]], rows: list[tuple[int, int]]) -> Event:
    def cells(given: list[tuple[int, int]]) -> tuple[tuple[Long, ...], ...]:
        return tuple((Long(one), Long(other)) for one, other in given)

    part = TableChange(
        schema="db",
        table="t",
        op=Op(op),
        key_specs=SPECS if keys else (),
        column_specs=SPECS if rows else (),
        keys=cells(keys),
        rows=cells(rows),
    )
    base = make_event(seqno)
    return Event(header=base.header, changes=(RowChanges(tables=(part,)),), metadata=base.metadata)


def test_rows_as_a_replicator_writes_them_while_it_writes(tmp_path: Path) -> None:
    """Full images, filtered ranges between; the pipeline follows, is stopped, goes on, and knows its directory."""
    thl = tmp_path / "thl"
    with TungstenLog.open(str(thl)) as log:
        log.append(rows_event(0, 1, [], [(number, 0) for number in range(5)]))
    options = prepare(tmp_path / "target.db", thl)
    token = take(options, PLAN)
    running = Threads(tasks_for(options, thl, PLAN, token, until=None, sync_interval_s=0.05))
    with TungstenLog.open(str(thl), segment_bytes=2000, gaps=True) as log:
        for seqno in range(1, 30):
            log.append(rows_event(seqno, 3, [(seqno % 5, (seqno - 1) // 5)], [(seqno % 5, (seqno - 1) // 5 + 1)]))
            log.commit()
        log.append(make_event(30, end=(34, 0)))
        log.append(rows_event(40, 2, [(0, 5)], []))
        log.append(make_event(41, end=(44, 0)))  # B7-8: the ancestor's position stays before a range at the end
    wait_until(lambda: set(positions(options).values()) == {44})
    target = open_target(options)
    target.positions.request_stop(pipeline="p", token=token, stop_at_seqno=-1)  # type: ignore[arg-type]
    target.close()
    assert [(result.end, result.error) for result in running.join()] == [(TaskEnd.STOPPED, None)] * 3
    with open_readable(thl) as reader, reader.cursor() as cursor:
        cursor.next_header()
        table = next(iter(cursor.current().changes())).table  # type: ignore[union-attr]
    target = open_target(options)
    assert sorted(target.rows.read(table)) == [(1, 6), (2, 6), (3, 6), (4, 6)]
    target.close()
    shutil.rmtree(thl)  # reset: the epoch is the same, 0, and the event id tells
    with TungstenLog.open(str(thl)) as log:
        for seqno in range(60):
            event = make_event(seqno)
            log.append(Event(header=msgspec.structs.replace(event.header, event_id=f"again {seqno}")))
    results = run_threads(tasks_for(options, thl, PLAN, take(options, PLAN), until=50))
    assert {type(result.error) for result in results} <= {TargetAheadError, type(None)}
    assert any(isinstance(result.error, TargetAheadError) for result in results)


def wait_until(true, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)

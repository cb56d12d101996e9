"""Issue "pipeline", Speed: "a no-op target". It is a target like the others, but for the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_pipeline import Workload, counters, positions, run_threads, take, tasks_for, write_log
from fix_target import ITEMS, Bench, insert
from tranlog.change import Statement
from tranlog.errors import ReplacedError, TargetTableError
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.target.options import TargetOptions, create_statements, open_target


@pytest.fixture
def options(tmp_path: Path) -> TargetOptions:
    return TargetOptions(kind="null", path=str(tmp_path / "positions.db"), lock_timeout_s=5)


def test_channels_pass_the_whole_log_once(tmp_path: Path, options: TargetOptions) -> None:
    """Every change is read, serial sections meet, and a start after the end finds nothing left to do."""
    workload = Workload(seed=3, large=0.01)
    last = write_log(tmp_path / "log", workload, 300)
    plan = ShardPlan(channels=3)
    target = open_target(options)
    target.positions.ensure_tables()
    for _ in range(2):
        tasks = tasks_for(options, tmp_path / "log", plan, take(options, plan), until=last)
        assert [(result.end, result.error) for result in run_threads(tasks)] == [(TaskEnd.LIMIT, None)] * 3
        assert positions(options) == dict.fromkeys(range(3), last)
        done = counters(options)
        assert (done.transactions, done.changes) == (last + 1, workload.changes)
    for table in workload.tables:
        assert target.rows.create_table(table) == ""
        assert create_statements("null", table) == []
        with pytest.raises(TargetTableError, match="keeps no rows"):
            next(target.rows.read(table))
    target.close()


def test_a_replaced_task_moves_nothing(options: TargetOptions) -> None:
    """The guarded update is that of every target."""
    bench = Bench(options)
    statement = Statement(sql="DROP TABLE items", schema="shop", ddl=True)
    applied = bench.apply([insert(ITEMS, (1, "one", 1))], [statement])
    assert (applied.transactions, applied.changes, applied.ddl_ignored) == (2, 1, 1)
    bench.target.positions.claim(pipeline="shop", channel=0, driver_token=bench.driver_token)
    with pytest.raises(ReplacedError):
        bench.apply([insert(ITEMS, (1, "one", 1))])
    assert bench.stored_seqno() == 1
    bench.target.close()

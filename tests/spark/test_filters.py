"""`Pipeline(source, filters, target, channels)` on Spark, with functions that travel to the tasks."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fix_driver import wait_until
from fix_pipeline import SqliteTarget, Workload, positions, read_back, write_log
from tranlog import Pipeline
from tranlog.change import Change, RowChange
from tranlog.errors import FilterError
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.driving.apply import ApplyResult
from tranlog.pipeline.filters.filter_chain import Chain
from tranlog.pipeline.filters.filters import DropColumns, EachBatch, EachTransaction, Exclude, Filter, Rename

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_filtered_pipeline_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    """Functions of this test, which no module of the workers' has, on transactions and on Arrow batches."""
    without = "south"

    def leave_out(changes: list[Change]) -> list[Change] | None:
        return [one for one in changes if isinstance(one, RowChange) and one.table.schema != without] or None

    def negate(batch: Any) -> Any:
        import pyarrow.compute as pc

        for name in ("before.n", "after.n"):
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, name, pc.negate(batch.column(at)))
        return batch

    filters: list[Filter] = [
        Exclude(tables=("west.*",)),
        Rename(schema="north", to="polar"),
        DropColumns(table="*.items", columns=("note",)),
        EachTransaction(function=leave_out),
        EachBatch(function=negate),
    ]
    workload = Workload(seed=61, large=0.01)
    found = [Chain(filters).table(table) for table in workload.tables]
    tables = [one.table for one in found if one is not None]
    target = SqliteTarget(tmp_path / "target.db", tables)
    last = write_log(tmp_path / "log", workload, 300)
    pipeline = Pipeline(
        source=tmp_path / "log", filters=filters, target=target.options, channels=3, name="p", sync_interval_s=0.1
    )
    result = pipeline.run("now", spark=spark.sparkContext)
    assert result.end is TaskEnd.LIMIT and result.status.total.transactions == last + 1
    assert result.status.total.filtered > 50
    at_source = {table.schema: rows for table, rows in workload.rows.items()}
    expected: dict[str, Any] = {
        "polar.items": {key: (key, -row[1]) for key, row in at_source["north"].items()},
        "east.items": {key: (key, -row[1]) for key, row in at_source["east"].items()},
        "south.items": {},
    }
    assert {table.name: rows for table, rows in read_back(target.options, tables).items()} == expected

    # It follows, and ends when it is told to.
    ended: list[ApplyResult] = []
    thread = threading.Thread(target=lambda: ended.append(pipeline.run(spark=spark.sparkContext)), daemon=True)
    thread.start()
    last = write_log(tmp_path / "log", workload, 20)
    wait_until(lambda: set(positions(target.options).values()) == {last})
    pipeline.stop()
    thread.join(100)
    assert [one.end for one in ended] == [TaskEnd.STOPPED]


def test_a_function_that_raises_ends_the_run(tmp_path: Path, spark: SparkSession) -> None:
    """The error keeps its type and fields on its way from the task."""
    workload = Workload(seed=62)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 30)

    def fails(changes: list[Change]) -> list[Change]:
        raise ArithmeticError("never")

    pipeline = Pipeline(tmp_path / "log", [EachTransaction(function=fails)], str(target.path), 2, name="p")
    with pytest.raises(FilterError, match="ArithmeticError: never") as caught:
        pipeline.run("now", spark=spark.sparkContext)
    assert caught.value.seqno is not None and caught.value.event_id == f"event {caught.value.seqno}"
    assert all(rows == {} for rows in read_back(target.options, workload.tables).values())

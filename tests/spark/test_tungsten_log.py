"""`apply` on Spark, pointed at a Java replicator's directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fix_driver import options
from fix_pipeline import SqliteTarget, Workload, check_equal, write_log
from tranlog.codecs.converting import convert
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.driving.apply import run_apply

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_target_and_directory_are_equal(tmp_path: Path, spark: SparkSession) -> None:
    workload = Workload(seed=61, large=0.01)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "native", workload, 150)
    convert(str(tmp_path / "native"), str(tmp_path / "log"), segment_bytes=20_000)
    before = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir() if path.is_file()}
    result = run_apply(options(tmp_path, target), spark=spark.sparkContext)
    assert (result.end, result.status.restart_seqno) == (TaskEnd.LIMIT, last)
    assert result.status.notes == ("retention will not wait for this pipeline: a Java replicator purges what it likes",)
    check_equal(target, workload)
    after = {path.name: path.read_bytes() for path in (tmp_path / "log").iterdir()}
    assert after == before, "nothing is written into a replicator's directory, no hold either"
    assert run_apply(options(tmp_path, target), spark=spark.sparkContext).end is TaskEnd.LIMIT
    check_equal(target, workload)

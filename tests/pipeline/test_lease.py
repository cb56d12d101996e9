"""Two drivers that begin one pipeline at once: what either applied is applied once.

The other driver begins just before one of the reads by which this one decides, and applies something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fix_pipeline import SqliteTarget, Workload, check_equal, positions, run_threads, tasks_for, write_log
from tranlog.clock import SystemClock
from tranlog.errors import PipelineHeldError, ReplacedError
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.driving.lease import Lease
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.progress import Run
from tranlog.target.options import open_target
from tranlog.target.target import Target

CHANNELS = 2
READS = ("read_pipeline", "read_channels", "read_assignment")


@dataclass
class Between:
    """Stands between a lease and the target's reads, and calls `then` before one of them."""

    positions: Any
    at: int
    then: Callable[[], None]
    reads: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            self.reads.append(name)
            if len(self.reads) == self.at:
                self.then()
        return getattr(self.positions, name)


@pytest.fixture
def workload() -> Workload:
    return Workload(seed=41, serial=0.0)


@pytest.fixture
def target(tmp_path: Path, workload: Workload) -> SqliteTarget:
    return SqliteTarget(tmp_path / "target.db", workload.tables)


@pytest.fixture
def reader(tmp_path: Path, workload: Workload) -> Iterator[LogReader]:
    write_log(tmp_path / "log", workload, 20)
    with LogReader.open(tmp_path / "log") as reader:
        yield reader


def lease_at(target: Target, reader: LogReader, holder: str, given: SqliteTarget, **more: Any) -> Lease:
    options = ApplyOptions(pipeline="p", log_dir=reader.path, target=given.options, channels=CHANNELS, **more)
    return Lease(options, target, reader, holder=holder, clock=SystemClock(), note=lambda note: None)


@pytest.mark.parametrize("at", range(2, 7))  # the first read is `find`'s, from which a run looks whether it is alive
@pytest.mark.parametrize("take_over", [False, True])
def test_who_begins_beside_another_repeats_nothing(
    workload: Workload, target: SqliteTarget, reader: LogReader, at: int, take_over: bool
) -> None:
    plan = ShardPlan(channels=CHANNELS)
    log, last = Path(reader.path), reader.range().last_seqno

    def begin_and_apply() -> None:
        with (
            closing(open_target(target.options)) as opened,
            closing(lease_at(opened, reader, "another", target)) as lease,
        ):
            lease.take(plan)
            run_threads(tasks_for(target.options, log, plan, lease.token, until=5))

    with closing(open_target(target.options)) as opened:
        between = Between(opened.positions, at, begin_and_apply)
        opened.positions = between  # type: ignore[assignment]
        with closing(lease_at(opened, reader, "this", target, take_over=take_over)) as lease:
            lease.find()
            if at == 6 or not take_over:  # or it came after all reads: this one's own take finds it
                with pytest.raises(ReplacedError if at == 6 else PipelineHeldError, match="another"):
                    lease.take(plan)
                assert set(positions(target.options).values()) == {5}
                return
            taken = lease.take(plan)
    assert isinstance(taken, Run)
    assert {row.applied_seqno for row in taken.rows} == {5}
    run_threads(tasks_for(target.options, log, plan, lease.token, until=last))
    check_equal(target, workload)

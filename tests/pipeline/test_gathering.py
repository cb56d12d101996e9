"""A status of what can be read: what cannot is a problem beside it, and only what needs it is without an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fix_pipeline import SqliteTarget, Workload, take, write_log
from tranlog.clock import SystemClock
from tranlog.errors import LogMissingError, TargetUnavailableError
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.status import Status, at, picked
from tranlog.pipeline.status.view import needed_for


@pytest.fixture
def options(tmp_path: Path) -> ApplyOptions:
    target = SqliteTarget(tmp_path / "t.db", ())
    take(target.options, ShardPlan(channels=2), begin=5)
    write_log(tmp_path / "log", Workload(seed=1), 9)
    return ApplyOptions(pipeline="p", log_dir=str(tmp_path / "log"), target=target.options, channels=2)


def look(options: ApplyOptions) -> Status:
    return gather(options.log_dir, options, clock=SystemClock())


def test_what_can_be_read_is_there(options: ApplyOptions) -> None:
    status = look(options)
    assert status.problems == {} and status.log is not None and status.pipeline is not None
    assert (status.log.first_seqno, status.log.committed_seqno) == (0, 9)
    assert status.pipeline.lag is not None and status.pipeline.lag.seqnos == 5
    assert [one.behind for one in status.pipeline.channels] == [5, 5]
    assert (status.process, status.in_state_ms, status.uptime_ms, status.relative_latency_ms) == (None,) * 4


def test_without_the_log_there_are_positions_and_no_lag(options: ApplyOptions, tmp_path: Path) -> None:
    (tmp_path / "log").rename(tmp_path / "away")
    status = look(options)
    assert isinstance(status.problems["log"], LogMissingError) and status.log is None
    assert status.pipeline is not None and status.pipeline.restart_seqno == 4
    assert status.pipeline.lag is None and [one.behind for one in status.pipeline.channels] == [None, None]
    assert needed_for("tasks", status) is status
    for name in ("pipeline", "stores", None):
        with pytest.raises(LogMissingError):
            needed_for(name, status)  # type: ignore[arg-type]


def test_without_the_target_there_is_the_log(options: ApplyOptions, tmp_path: Path) -> None:
    (tmp_path / "t.db").write_bytes(b"no database at all" * 100)
    status = look(options)
    assert list(status.problems) == ["target"] and status.pipeline is None
    assert status.log is not None and status.log.last_seqno == 9
    with pytest.raises(TargetUnavailableError):
        needed_for("tasks", status)


def test_a_path_ends_where_nothing_is_known(options: ApplyOptions) -> None:
    status = look(options)
    assert at(status, "log.last_seqno") == 9 and at(status, "process.state.value") is None and at(7, "") == 7
    assert picked(status, "log.last_seqno size=log.segments process.slots") == {
        "last_seqno": 9,
        "size": 1,
        "slots": None,
    }

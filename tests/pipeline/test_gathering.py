"""A status of what can be read: what cannot is a problem beside it, and only what needs it is without an answer."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from fix_pipeline import SqliteTarget, Workload, take, write_log
from tranlog.clock import SystemClock
from tranlog.errors import LogMissingError, PayloadError, TargetUnavailableError
from tranlog.ids import Seqno
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules import loading
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.loading import TableLoad
from tranlog.pipeline.status.gathering import gather
from tranlog.pipeline.status.status import Status, at, picked
from tranlog.pipeline.status.view import needed_for
from tranlog.table_notes import WHOLE, TableNote, stored
from tranlog.target.options import open_target
from tranlog.target.target import DIFFERS, EQUAL, OPEN, VerdictRow


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


def test_what_the_target_holds_back_is_said(options: ApplyOptions) -> None:
    """`ddl_loss = "hold"`: "`tranlog status` names them"; a row that nobody can read is a problem, and no end."""
    with closing(open_target(options.target)) as target:
        note = TableNote().with_dropped("n", 3).with_dropped(WHOLE, 4).with_retyped("m", 5)
        load = TableLoad(schema="main", table="t", load="1")
        loads = loading.stored({}, {("main", "t"): load})
        target.positions.store_loads("p", (stored(("main", "t"), note), *loads))
        status = look(options)
        assert status.problems == {} and status.pipeline is not None
        assert status.pipeline.notes == (
            "main.t: column n was dropped at the source at seqno 3, and stays here",
            "main.t was dropped at the source at seqno 4, and stays here",
            "main.t: column m has a narrower type at the source since seqno 5, and not here",
        )
        target.positions.store_loads("p", ((stored(("main", "t"), note)[0], "harmed"),))
        assert isinstance(look(options).problems["target"], PayloadError)


def test_how_far_tables_are_verified_is_said(options: ApplyOptions) -> None:
    """The last verdict on each, and up to where it was equal before that."""
    with closing(open_target(options.target)) as target:
        assert look(options).pipeline.verdicts == ()  # type: ignore[union-attr]
        for verify, seqno, verdicts in (("1", 3, (EQUAL, EQUAL, EQUAL)), ("2", 5, (EQUAL, DIFFERS, OPEN))):
            for table, verdict in zip("abc", verdicts, strict=True):
                row = VerdictRow(table=f"s.{table}", verify=verify, seqno=Seqno(seqno), token=1)
                target.positions.begin_verdicts("p", [row])
                if verdict != OPEN:
                    target.positions.judge("p", msgspec.structs.replace(row, verdict=verdict))
        target.positions.begin_verdicts("p", [VerdictRow(table="s.d", verify="2", seqno=Seqno(5), token=1)])
    pipeline = look(options).pipeline
    assert pipeline is not None
    assert [(one.table, one.verdict, one.seqno, one.verified_through) for one in pipeline.verdicts] == [
        ("s.a", EQUAL, 5, 5),
        ("s.b", DIFFERS, 5, 3),
        ("s.c", OPEN, 5, 3),
        ("s.d", OPEN, 5, -1),
    ]


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

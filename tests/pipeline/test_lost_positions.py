"""A target that lost or changed its position table, at every kind of target. Without Spark.

Before a start and while the pipeline runs: one clear error, nothing changed at the target; and after a repair, by hand
or by a command, it goes on exactly once. The table of all decisions is in test_progress.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fix_effort import few_of
from fix_operated import ThreadContext, operation_of, options_of, running, without_java
from fix_pipeline import (
    AnyTarget,
    MariadbTarget,
    PostgresTarget,
    SqliteTarget,
    Workload,
    check_equal,
    positions,
    run_threads,
    take,
    tasks_for,
    write_log,
)
from tranlog.clock import SystemClock
from tranlog.errors import TargetAheadError, TargetError, TargetPositionError
from tranlog.ids import Seqno
from tranlog.log.files.holds import read_hold
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.driving.apply import ApplyResult, run_apply
from tranlog.pipeline.driving.operation import OnError, OnlineOrder
from tranlog.pipeline.filters.filters import Exclude
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.upkeep.position import reset_position, set_position
from tranlog.service.frame.exits import exit_code_of
from tranlog.target.options import TargetOptions, open_target
from tranlog.target.position import OUR_TABLES

pytestmark = pytest.mark.long

KINDS = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.integration),
    pytest.param("mariadb", marks=pytest.mark.integration),
]
PLAN = ShardPlan(channels=3)


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)


@pytest.fixture
def workload() -> Workload:
    return Workload(seed=7)


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path, workload: Workload) -> AnyTarget:
    return target_of(request, request.param, tmp_path, workload)


def target_of(request: pytest.FixtureRequest, kind: str, tmp_path: Path, workload: Workload) -> AnyTarget:
    if kind == "sqlite":
        return SqliteTarget(tmp_path / "target.db", workload.tables)
    if kind == "postgres":
        server, database = (request.getfixturevalue(name) for name in ("postgres", "postgres_database"))
        return PostgresTarget(server.dsn(database), workload.tables)
    server, database = (request.getfixturevalue(name) for name in ("mariadb_target", "mariadb_target_database"))
    return MariadbTarget(server.dsn(database), workload.tables)


def go(options: ApplyOptions) -> ApplyResult:
    """Apply what there is."""
    return run_apply(replace(options, until_seqno="now"), spark=ThreadContext())  # type: ignore[arg-type]


def our_tables(target: AnyTarget) -> list[str]:
    """Return which of our tables there are."""
    names = []
    for name in sorted(OUR_TABLES):
        with contextlib.suppress(Exception):
            target.query(f"SELECT 1 FROM {name} LIMIT 0")
            names.append(name)
    return names


def everything(target: AnyTarget) -> dict[str, list[tuple]]:
    """Return all that our tables and the audit hold."""
    return {name: sorted(target.query(f"SELECT * FROM {name}"), key=repr) for name in (*our_tables(target), "audit")}


def away(table: str) -> str:
    return f"ALTER TABLE {table} RENAME TO saved_{table}"


def back(table: str) -> str:
    return f"ALTER TABLE saved_{table} RENAME TO {table}"


def drop_all(target: AnyTarget) -> None:
    for name in our_tables(target):
        target.query(f"DROP TABLE {name}")


def by_command(target: AnyTarget, options: ApplyOptions, seqno: int, channel: int | None = None) -> None:
    """Do as `tranlog position set` does."""
    opened = open_target(target.options)
    with LogReader.open(options.log_dir) as reader:
        set_position(
            opened,
            reader,
            pipeline="p",
            seqno=Seqno(seqno),
            channel=channel,
            plan=options.shard_plan(),
            clock=SystemClock(),
            watch_s=0.0,
            take_over=True,
            agree=lambda move: None,
        )
    opened.close()


def by_reset(options: TargetOptions) -> bool:
    """Do as `tranlog position reset` does."""
    opened = open_target(options)
    found = reset_position(opened, pipeline="p", plan=PLAN, clock=SystemClock(), watch_s=0.0, take_over=True)
    opened.close()
    return found


@dataclass(frozen=True)
class Harm:
    """What is done to a target, what is said then, and how it is undone: by statements, or by a position set."""

    name: str
    do: tuple[str, ...]
    why: str
    undo: tuple[str, ...] = ()
    channel: int | None = None


SAVE = "CREATE TABLE saved AS SELECT * FROM {0}"
RESTORE = ("INSERT INTO {0} SELECT * FROM saved WHERE {1}", "DROP TABLE saved")


def deleted(table: str, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    do = SAVE.format(table), f"DELETE FROM {table} WHERE {where}"
    return do, tuple(one.format(table, where) for one in RESTORE)


ROWS, ONE, PIPELINE = (
    deleted("tranlog_channel", "1 = 1"),
    deleted("tranlog_channel", "channel = 1"),
    deleted("tranlog_pipeline", "1 = 1"),
)
RENAMED = "ALTER TABLE tranlog_channel RENAME COLUMN {} TO {}"
COLUMN = (RENAMED.format("applied_seqno", "applied"),), (RENAMED.format("applied", "applied_seqno"),)
GONE = (away("tranlog_channel"),), (back("tranlog_channel"),)
ALL = (
    tuple(map(away, ("tranlog_channel", "tranlog_pipeline", "tranlog_shard"))),
    tuple(map(back, ("tranlog_channel", "tranlog_pipeline", "tranlog_shard"))),
)
HARMS = [
    Harm("all tables", ALL[0], r"it has no position of it any more; the log's hold .* up to seqno {last}\.", ALL[1]),
    Harm("table of channels", GONE[0], "no row of its channels 0, 1, 2, of 3", GONE[1]),
    Harm("rows of channels", ROWS[0], "no row of its channels 0, 1, 2, of 3", ROWS[1]),
    Harm("one row", ONE[0], "no row of its channel 1, of 3", ONE[1]),
    Harm("row of the pipeline", PIPELINE[0], "tranlog_pipeline, which tells by what plan, has no row", PIPELINE[1]),
    Harm("a column", COLUMN[0], "tranlog_channel was changed: .*applied_seqno", COLUMN[1]),
    Harm("all tables, set", ALL[0], "run `tranlog position set SEQNO`; or"),
    Harm("rows of channels, set", ROWS[0], "run `tranlog position set SEQNO`; or"),
    Harm("one row, set", ONE[0], "run `tranlog position set SEQNO --channel 1`", channel=1),
    Harm("row of the pipeline, set", PIPELINE[0], "`tranlog position set SEQNO --channel 0`", channel=0),
]


@pytest.mark.parametrize("harm", few_of(HARMS, 4), ids=lambda harm: harm.name)
def test_a_target_that_lost_its_position_is_refused(
    tmp_path: Path, target: AnyTarget, workload: Workload, harm: Harm
) -> None:
    """Nothing is applied, nothing is changed, not even a missing table made; and the step that it names is right."""
    options = options_of(tmp_path, target)
    last = write_log(tmp_path / "log", workload, 60)
    go(options)
    write_log(tmp_path / "log", workload, 40)
    for statement in harm.do:
        target.query(statement)
    before = everything(target)
    with contextlib.closing(open_target(target.options)) as opened:
        where = opened.where
    for start_seqno in (None, 5):
        with pytest.raises(TargetPositionError, match=harm.why.format(last=last)) as found:
            go(replace(options, start_seqno=start_seqno))
    assert exit_code_of(found.value) == 3
    assert "pipeline 'p'" in str(found.value) and where in str(found.value)
    assert everything(target) == before
    for statement in harm.undo:
        target.query(statement)
    if not harm.undo:
        by_command(target, options, last, harm.channel)
    end = go(options).status.restart_seqno
    assert end > last and set(positions(target.options).values()) == {end}
    check_equal(target, workload)


RUNNING = [
    Harm("rows of channels", ROWS[0], "tranlog_channel", ROWS[1]),
    Harm("one row", ONE[0], "tranlog_channel", ONE[1]),
    Harm("row of the pipeline", PIPELINE[0], "tranlog_pipeline", PIPELINE[1]),
    Harm("table of channels", GONE[0], "tranlog_channel", GONE[1]),
    Harm("all tables", ALL[0], "tranlog_", ALL[1]),
    Harm("a column", COLUMN[0], "applied_seqno", COLUMN[1]),
]


@pytest.mark.parametrize("harm", RUNNING, ids=lambda harm: harm.name)
@pytest.mark.parametrize("more", few_of([40, 0]), ids=["busy", "idle"])
def test_a_running_pipeline_whose_position_is_taken_away_goes_offline(
    tmp_path: Path, target: AnyTarget, workload: Workload, harm: Harm, more: int
) -> None:
    """Not retried as if the server had been away, whether or not there is anything to apply; repaired, it goes on."""
    options = options_of(tmp_path, target)
    last = write_log(tmp_path / "log", workload, 60)
    with running(operation_of(options, on_error=OnError.OFFLINE)) as operated:
        operated.come_to(State.ONLINE, last)
        for statement in harm.do:
            target.query(statement)
        if more:
            write_log(tmp_path / "log", workload, more)
        operated.come_to(State.OFFLINE_ERROR)
        pending = operated.operation.state().pending
        assert pending is not None and pending.type == "TargetPositionError", pending
        assert harm.why in pending.message
        assert "Nothing more is applied" in pending.message
        done = target.audit()
        for statement in harm.undo:
            target.query(statement)
        assert target.audit() == done
        end = write_log(tmp_path / "log", workload, 20)
        operated.operation.online(OnlineOrder())
        operated.come_to(State.ONLINE, end)
    check_equal(target, workload)


def test_a_position_beyond_the_log_is_refused(tmp_path: Path, target: AnyTarget, workload: Workload) -> None:
    options = options_of(tmp_path, target)
    write_log(tmp_path / "log", workload, 60)
    go(options)
    target.query("UPDATE tranlog_channel SET applied_seqno = 99999 WHERE channel = 1")
    before = everything(target)
    with pytest.raises(TargetAheadError, match=r"channel 1 is at .*99999.*this log does not reach that far"):
        go(options)
    assert everything(target) == before


@pytest.mark.parametrize("apart", [True, False])
def test_lost_assignments(tmp_path: Path, target: AnyTarget, apart: bool) -> None:
    """Divided anew only where all channels stand at one seqno; else some transactions would come twice, some never."""
    workload = Workload(seed=8, serial=0.0)
    options = options_of(tmp_path, target)
    last = write_log(tmp_path / "log", workload, 80)
    run_apply(replace(options, until_seqno=60), spark=ThreadContext())  # type: ignore[arg-type]
    if apart:  # channel 0 alone comes to the end
        first, *_ = tasks_for(target.options, tmp_path / "log", PLAN, take(target.options, PLAN), until=last)
        run_threads([first])
        assert len(set(positions(target.options).values())) == 2
    target.query("DELETE FROM tranlog_shard WHERE channel = 0")
    before = everything(target)
    if apart:
        with pytest.raises(TargetPositionError, match=r"tranlog_shard has the channels of \d shards, of 4"):
            go(options)
        assert everything(target) == before
        return
    notes = go(options).status.notes
    assert any(note.startswith("tranlog_shard is not whole") for note in notes)
    assert len(target.query("SELECT * FROM tranlog_shard")) == 4
    check_equal(target, workload)


def test_another_target_under_the_same_name(tmp_path: Path, workload: Workload, request: pytest.FixtureRequest) -> None:
    """It is told from one that lost its position; a name of its own serves it, or a reset where it took the place."""
    first = target_of(request, "sqlite", tmp_path, workload)
    (tmp_path / "b").mkdir()
    second = target_of(request, "sqlite", tmp_path / "b", workload)
    options = options_of(tmp_path, first)
    last = write_log(tmp_path / "log", workload, 60)
    go(options)
    other = replace(options, target=second.options)
    said = rf"for another target, sqlite .*/target\.db, which has everything up to seqno {last}\. .*--pipeline NAME"
    with pytest.raises(TargetPositionError, match=said):
        go(other)
    assert second.audit().total() == 0 and everything(second)["tranlog_pipeline"] == []
    go(replace(other, pipeline="q"))
    check_equal(second, workload)
    (tmp_path / "c").mkdir()
    third = target_of(request, "sqlite", tmp_path / "c", workload)
    assert not by_reset(third.options)
    go(replace(options, target=third.options))
    check_equal(third, workload)
    found = read_hold(str(tmp_path / "log"), "p")
    assert found is not None and found.holder == f"sqlite {tmp_path / 'c' / 'target.db'}"


def test_another_pipeline_of_the_same_log_applies_nothing_again(tmp_path: Path, workload: Workload) -> None:
    """A service that was given another name begins under it: refused, before anything is changed."""
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    options = options_of(tmp_path, target)
    last = write_log(tmp_path / "log", workload, 60)
    go(options)
    other, before = replace(options, pipeline="q"), everything(target)
    with pytest.raises(TargetPositionError, match=rf"pipeline 'p' has applied this log there, up to seqno {last}\. "):
        go(other)
    assert everything(target) == before
    go(replace(other, beside=("p",), filters=(Exclude(tables=("*.*",)),)))
    go(other)  # which has a position now
    check_equal(target, workload)


def test_a_target_in_which_nothing_was_applied_may_be_made_anew(tmp_path: Path, workload: Workload) -> None:
    """A first start that failed at its first transaction is no reason to refuse the second, at a target made anew."""
    write_log(tmp_path / "log", workload, 60)
    full = SqliteTarget(tmp_path / "target.db", workload.tables)
    options = options_of(tmp_path, full)
    full.query("CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'it is full'); END")
    with pytest.raises(TargetError, match="it is full"):
        go(options)
    found = read_hold(str(tmp_path / "log"), "p")
    assert found is not None and found.holder.startswith("nothing applied at sqlite ")
    for path in tmp_path.glob("target.db*"):
        path.unlink()
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    go(options)
    check_equal(target, workload)


def test_a_null_target_may_be_made_anew(tmp_path: Path, workload: Workload) -> None:
    """It keeps no rows, so nothing can come twice; nor to the target that is taken after it was tried out so."""
    last = write_log(tmp_path / "log", workload, 60)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    null = TargetOptions(kind="null", path=str(tmp_path / "positions.db"))
    options = replace(options_of(tmp_path, target), target=null)
    for _ in range(2):
        assert go(options).status.total.transactions == last + 1
        for path in tmp_path.glob("positions.db*"):
            path.unlink()
    go(replace(options, target=target.options))
    check_equal(target, workload)


def test_the_log_knows_of_a_pipeline_before_its_first_task(tmp_path: Path, workload: Workload) -> None:
    """So a target that loses its position within the first second is noticed too."""
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    options = options_of(tmp_path, target)
    write_log(tmp_path / "log", workload, 60)
    found: list[tuple[int | None, str]] = []

    class LookingContext(ThreadContext):
        def parallelize(self, *arguments: Any) -> Any:
            hold = read_hold(options.log_dir, "p")
            assert hold is not None
            found.append((hold.restart_seqno, hold.holder))
            return super().parallelize(*arguments)

    run_apply(replace(options, until_seqno="now"), spark=LookingContext())  # type: ignore[arg-type]
    assert set(found) == {(-1, f"sqlite {target.path}")}, "each channel is submitted by itself"

"""Another channel count or rule while it runs, while it rests, and what stands in its way.

The driver, the channels and the target are real, threads stand in the place of Spark's tasks; `tests/spark` has Spark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fix_effort import few_of
from fix_operated import WAIT_S, operation_of, options_of, run_in_threads, running, without_java
from fix_pipeline import SqliteTarget, Workload, check_equal, positions, run_threads, take, tasks_for, write_log
from tranlog.errors import ConfigError, EngineError, StateError
from tranlog.ids import Seqno
from tranlog.log.writing.log import Log
from tranlog.pipeline.driving import apply
from tranlog.pipeline.driving.apply import ApplyResult
from tranlog.pipeline.driving.operation import OnlineOrder, Operation, ReplanEnd
from tranlog.pipeline.driving.replanning import PlanOrder, PlanOrders, check_running
from tranlog.pipeline.driving.report import ApplyStatus
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import AssignmentRule, Parallelization, PlanOptions, ShardBy, ShardPlan
from tranlog.pipeline.rules.limits import Limit, UntilEvent, UntilSeqno
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.spark import engine
from tranlog.target.options import open_target

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(monkeypatch)


@pytest.fixture
def workload() -> Workload:
    return Workload(seed=6)


@pytest.fixture
def target(tmp_path: Path, workload: Workload) -> SqliteTarget:
    return SqliteTarget(tmp_path / "target.db", workload.tables)


@pytest.fixture
def options(tmp_path: Path, target: SqliteTarget) -> ApplyOptions:
    return options_of(tmp_path, target)


Change = Callable[[ApplyOptions], ApplyOptions]


def to(**fields: object) -> Change:
    return lambda options: replace(options, **fields)  # type: ignore[arg-type]


def plan_at(target: SqliteTarget) -> ShardPlan:
    opened = open_target(target.options)
    row = opened.positions.read_pipeline("p")
    opened.close()
    assert row is not None
    return ShardPlan.parse(row.shard_rule, channels=row.channels)


@pytest.mark.parametrize("how", few_of([Parallelization.DISK, Parallelization.MEMORY]))
def test_another_plan_while_it_runs(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions, how: Parallelization
) -> None:
    """ "changing the channel count or the rule, online … drains to one seqno and re-plans without loss or repeat"."""
    options = replace(options, parallelization=how, window_bytes=20_000)
    with Log.open(options.log_dir, source_id="test") as log:
        workload.write(log, 150)
        with running(operation_of(options)) as operated:
            operated.come_to(State.ONLINE)
            for change in (
                to(channels=2),
                to(channels=10, plan=PlanOptions(by=ShardBy.TABLE)),
                to(channels=3, plan=PlanOptions(assignment=AssignmentRule.HASH, serial=("north",), by=ShardBy.SCHEMA)),
            ):
                done = operated.operation.replan(change, timeout_s=WAIT_S)
                assert done.end is ReplanEnd.CHANGED and 0 <= done.seqno <= log.last_seqno
                assert done.after == plan_at(target) == operated.operation.options.shard_plan() != done.before
                assert set(positions(target.options)) == set(range(done.after.channels))
                assert operated.operation.state().state is State.ONLINE
                workload.write(log, 150)
            again = operated.operation.replan(lambda options: options, timeout_s=WAIT_S)
            assert (again.end, again.before) == (ReplanEnd.UNCHANGED, again.after)
            operated.come_to(State.ONLINE, log.last_seqno)
            operated.operation.offline()
            operated.come_to(State.OFFLINE_NORMAL)
            workload.write(log, 20)
            operated.operation.online(OnlineOrder())
            operated.come_to(State.ONLINE, log.last_seqno)
            assert plan_at(target) == done.after, "the next online keeps the plan"
    assert operated.error is None
    check_equal(target, workload)


def test_another_plan_while_it_rests(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions
) -> None:
    last = write_log(tmp_path / "log", workload, 60)
    with running(operation_of(options), online=False) as operated:
        operated.come_to(State.OFFLINE_NORMAL)
        done = operated.operation.replan(to(channels=5), timeout_s=0)
        assert (done.end, done.before.channels, done.after.channels) == (ReplanEnd.AT_ONLINE, 3, 5)
        with pytest.raises(ConfigError, match=r"local\[16\].*17 channels need 17 slots"):
            operated.operation.replan(to(channels=17), timeout_s=0)
        with pytest.raises(ConfigError, match="channels are numbered 0 to 4"):
            operated.operation.replan(to(plan=PlanOptions(channels={"north": 5})), timeout_s=0)
        operated.operation.online(OnlineOrder())
        operated.come_to(State.ONLINE, last)
        assert set(positions(target.options)) == set(range(5))
    check_equal(target, workload)


def test_more_channels_than_the_running_spark_has_slots(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions
) -> None:
    """ "refused with a clear error and next step"; the old plan goes on."""
    last = write_log(tmp_path / "log", workload, 60)
    with running(operation_of(replace(options, master=None))) as operated:
        operated.come_to(State.ONLINE, last)
        with pytest.raises(EngineError) as refused:
            operated.operation.replan(to(channels=17), timeout_s=WAIT_S)
        said = str(refused.value)
        assert "local[16] offers 16 slots, and each of 17 channels needs one" in said
        assert "Nothing has changed. Run `tranlog offline`, `tranlog reload` and `tranlog online`" in said
        assert operated.operation.options.channels == 3
        last = write_log(tmp_path / "log", workload, 20)
        operated.come_to(State.ONLINE, last)
        done = operated.operation.replan(to(channels=16), timeout_s=WAIT_S)
        assert done.end is ReplanEnd.CHANGED, "what was refused is in nobody's way"
    check_equal(target, workload)


def test_a_cluster_says_what_it_lacks() -> None:
    """Of a cluster another advice: workers, not a number in the master's name."""
    spark = SimpleNamespace(
        maxNumConcurrentTasks=lambda profile: 4,
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
    )
    context = SimpleNamespace(master="spark://127.0.0.1:7077", _jsc=SimpleNamespace(sc=lambda: spark))
    check_running(ShardPlan(channels=4), context)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"offers 4 slots.*Start workers until there are 5.*tranlog reload"):
        check_running(ShardPlan(channels=5), context)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [UntilSeqno(seqno=Seqno(40)), UntilEvent(event_id="event 40")], ids=str)
def test_a_limit_in_front_of_where_the_channels_meet(
    tmp_path: Path, target: SqliteTarget, options: ApplyOptions, limit: Limit
) -> None:
    """The drain ends at the limit, and the run with it; the new plan waits for the next online."""
    workload = Workload(seed=9, serial=0.0)
    last = write_log(tmp_path / "log", workload, 100)
    old = options.shard_plan()
    token = take(target.options, old)
    ahead = tasks_for(target.options, tmp_path / "log", old, token, until=60)
    run_threads(ahead[:2])
    run_threads(tasks_for(target.options, tmp_path / "log", old, token, until=20)[2:])
    assert set(positions(target.options).values()) == {60, 20}
    with running(operation_of(replace(options, channels=2)), online=False) as operated:
        operated.come_to(State.OFFLINE_NORMAL)
        operated.operation.online(OnlineOrder(limit=limit))
        operated.come_to(State.OFFLINE_NORMAL, 40)
        assert sorted(positions(target.options).values()) == [40, 60, 60]
        operated.operation.online(OnlineOrder())
        operated.come_to(State.ONLINE, last)
        assert set(positions(target.options)) == {0, 1}
    check_equal(target, workload)


class Held:
    """A run that goes on until it is stopped, and shows the orders that it was given."""

    def __init__(self) -> None:
        self.plans: PlanOrders | None = None
        self.begun = threading.Event()
        self.limit = threading.Event()

    def __call__(
        self,
        options: ApplyOptions,
        *,
        stop: threading.Event,
        report: Callable[[ApplyStatus], None],
        abort: threading.Event,
        keep_spark: bool,
        plans: PlanOrders,
    ) -> ApplyResult:
        self.plans = plans
        self.begun.set()
        while not self.limit.wait(0.005) and not stop.is_set():
            pass
        return run_in_threads(
            replace(options, until_seqno=0), stop=stop, report=report, abort=abort, keep_spark=keep_spark, plans=plans
        )

    def order(self) -> PlanOrder:
        assert self.begun.wait(WAIT_S) and self.plans is not None
        return self.plans.get(timeout=WAIT_S)


def test_who_does_not_wait_for_the_drain(tmp_path: Path, workload: Workload, options: ApplyOptions) -> None:
    """What was asked for once is waited for when it is asked again; another wish has to wait for it."""
    write_log(tmp_path / "log", workload, 5)
    held = Held()
    operation = Operation(options, run_pipeline=held, stop_engine=lambda: None)
    with running(operation) as operated:
        operated.come_to(State.GOING_ONLINE)
        assert operation.replan(to(channels=2), timeout_s=0).end is ReplanEnd.DRAINING
        order = held.order()
        with pytest.raises(StateError, match=r"drain to one seqno.*again when it is done"):
            operation.replan(to(channels=4), timeout_s=0)
        assert operation.options.channels == 3
        order.settle(Seqno(3))
        assert operation.options.channels == 2
        assert operation.replan(to(channels=2), timeout_s=0).end is ReplanEnd.UNCHANGED
        assert operation.replan(to(channels=4), timeout_s=0).end is ReplanEnd.DRAINING
        held.limit.set()
        operated.join()
    assert operation.options.channels == 4, "its run ended before: it is the plan at the next online"


def test_slots_for_the_plan_that_has_to_drain(
    tmp_path: Path, workload: Workload, target: SqliteTarget, options: ApplyOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels beyond the slots never start, and others wait for them at the next serial section: for ever."""
    write_log(tmp_path / "log", workload, 60)
    old = options.shard_plan()
    token = take(target.options, old)
    run_threads(tasks_for(target.options, tmp_path / "log", old, token, until=1))
    asked: list[str] = []

    def build(master: str, *more: object) -> None:
        asked.append(master)
        raise EngineError(why="no Spark here", remedy="")

    monkeypatch.setattr(engine, "run_context", build)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    target.query("UPDATE tranlog_channel SET applied_seqno = 0, event_id = '', epoch = 0 WHERE channel = 2")
    with pytest.raises(EngineError, match="no Spark here"):
        apply.run_apply(replace(options, channels=1, master=None))
    assert asked == ["local[3]"]
    with pytest.raises(ConfigError, match=r"had 3 channels, which first have to come to one seqno.*local\[3\] or more"):
        apply.run_apply(replace(options, channels=1, master="local[2]"))

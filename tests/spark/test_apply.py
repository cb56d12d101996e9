"""Whole runs on a real Spark into real targets, with tasks and drivers that are killed."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fix_driver import SMALL, Driver, Run, alive, options, program, wait_until
from fix_pipeline import (
    BY_SCHEMA,
    MariadbTarget,
    PostgresTarget,
    SqliteTarget,
    Workload,
    check_equal,
    counters,
    items,
    positions,
    write_log,
)
from tranlog.change import Op, RowChange
from tranlog.clock import SystemClock
from tranlog.codecs.converting import convert
from tranlog.errors import (
    ConfigError,
    ConflictError,
    CorruptRecordError,
    EngineError,
    TargetAheadError,
    TargetPositionError,
)
from tranlog.ids import NO_SEQNO, Seqno
from tranlog.log.files.holds import read_holds
from tranlog.log.reading.reader import LogReader
from tranlog.log.writing.log import Log
from tranlog.lsn import lsn_offset
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.applying.task import TaskEnd
from tranlog.pipeline.driving import apply
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.driving.replanning import PlanOrder, PlanOrders
from tranlog.pipeline.driving.report import ApplyStatus
from tranlog.pipeline.rules.channels import (
    AssignmentRule,
    CommitOrder,
    Parallelization,
    PlanOptions,
    ShardBy,
    ShardPlan,
)
from tranlog.pipeline.rules.progress import totals
from tranlog.pipeline.spark.session import build_session
from tranlog.pipeline.upkeep.position import set_position
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import open_target

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Some start a JVM of their own, which takes its time on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def context(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


@pytest.mark.parametrize(
    ("seed", "more"),
    [
        (21, {}),
        (22, {}),
        (23, {"parallelization": Parallelization.MEMORY, "window_bytes": 60_000}),
        (
            24,
            {
                "parallelization": Parallelization.MEMORY,
                "plan": PlanOptions(by=ShardBy.TABLE),
                "max_offline_interval_s": 0.05,
            },
        ),
        (25, {"parallelization": Parallelization.NONE, "channels": 3}),
    ],
)
def test_target_and_source_are_equal(tmp_path: Path, context: SparkContext, seed: int, more: dict) -> None:
    """ "disk", "memory" in one window and in many, "none"."""
    workload = Workload(seed=seed, large=0.005)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 500, segment_bytes=50_000)
    reports: list[ApplyStatus] = []
    result = run_apply(options(tmp_path, target, **more), report=reports.append, spark=context)
    assert (result.end, result.resubmissions) == (TaskEnd.LIMIT, 0)
    check_equal(target, workload)
    status = result.status
    assert status == reports[-1]
    assert status.restart_seqno == status.committed_seqno == last and status.lag.seqnos == 0
    assert (status.total.transactions, status.total.changes) == (last + 1, workload.changes)
    assert [(hold.name, hold.restart_seqno) for hold in read_holds(str(tmp_path / "log"))] == [("p", last)]
    # A second run has nothing to do.
    again = run_apply(options(tmp_path, target, **more), spark=context)
    assert again.end is TaskEnd.LIMIT
    check_equal(target, workload)


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_server_and_source_are_equal(
    tmp_path: Path, context: SparkContext, request: pytest.FixtureRequest, kind: str
) -> None:
    workload = Workload(seed=31, large=0.005, serial=0.03)
    target: PostgresTarget | MariadbTarget
    if kind == "postgres":
        server, database = (request.getfixturevalue(name) for name in ("postgres", "postgres_database"))
        target = PostgresTarget(server.dsn(database), workload.tables)
    else:
        server, database = (request.getfixturevalue(name) for name in ("mariadb_target", "mariadb_target_database"))
        target = MariadbTarget(server.dsn(database), workload.tables)
    last = write_log(tmp_path / "log", workload, 1500)
    result = run_apply(options(tmp_path, target, group=GroupBounds()), spark=context)
    assert result.status.total.transactions == last + 1
    check_equal(target, workload)


def test_a_session_of_the_programs_own_outlives_a_run(tmp_path: Path, spark: SparkSession) -> None:
    """It is used where it has the run's master, and may be given as a session; its cached rows are there afterwards."""
    workload = Workload(seed=1)
    last = write_log(tmp_path / "log", workload, 30)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    kept = spark.range(7).cache()
    assert kept.count() == 7
    for seqno, given in ((10, None), (20, spark), (last, None)):
        run_apply(options(tmp_path, target, master=spark.sparkContext.master, until_seqno=seqno), spark=given)
        assert kept.count() == 7
    check_equal(target, workload)
    kept.unpersist()


def test_one_schema_on_many_channels_and_back(tmp_path: Path, context: SparkContext) -> None:
    """By write sets: the plan changes at one seqno, and the log is kept from where the stored plan begins."""
    workload = Workload(seed=77, shards=("north",), serial=0.01, write_sets=True)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    triggers = tuple(f"north.items {op}" for op in ("DELETE", "INSERT", "UPDATE"))
    writes = PlanOptions(by=ShardBy.WRITES, independent_triggers=triggers)
    ordered = replace(writes, commit_order=CommitOrder.SOURCE)
    for channels, plan in ((2, PlanOptions()), (3, writes), (4, writes), (3, ordered), (3, writes), (2, PlanOptions())):
        last = write_log(tmp_path / "log", workload, 100)
        result = run_apply(options(tmp_path, target, channels=channels, plan=plan), spark=context)
        assert result.status.restart_seqno == last
        check_equal(target, workload)
        held = read_holds(str(tmp_path / "log"))
        plans = [begin for (begin,) in target.query("SELECT from_seqno FROM tranlog_plan ORDER BY 1")]
        assert [one.restart_seqno for one in held] == ([min(plans)] if plans else [last])
        assert bool(plans) == (plan is writes)
    opened = open_target(target.options)
    assert totals(opened.positions.read_channels("p")).missed == 0
    opened.close()


def test_what_cannot_run_by_write_sets_is_refused(tmp_path: Path) -> None:
    target = SqliteTarget(tmp_path / "target.db", [])
    given = options(tmp_path, target, plan=PlanOptions(by=ShardBy.WRITES), parallelization=Parallelization.MEMORY)
    with pytest.raises(ConfigError, match="splits the log by shard"):
        given.check()
    write_log(tmp_path / "log", Workload(seed=78), 5)
    convert(str(tmp_path / "log"), str(tmp_path / "thl"))
    with pytest.raises(ConfigError, match="has no write sets"):
        run_apply(replace(given, parallelization=Parallelization.DISK, log_dir=str(tmp_path / "thl")))


@pytest.mark.parametrize("kind", [Parallelization.DISK, Parallelization.MEMORY])
def test_a_pipeline_follows_until_it_is_stopped(tmp_path: Path, context: SparkContext, kind: Parallelization) -> None:
    """Stops of the driver: each task ends after its target transaction, and the next start goes on."""
    workload = Workload(seed=41)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        for _ in range(2):
            run = Run(options(tmp_path, target, until_seqno=None, parallelization=kind), context)
            workload.write(log, 100, sync_every=3)
            wait_until(lambda: min(positions(target.options).values(), default=-1) > log.last_seqno - 50)
            run.stop.set()
            assert run.join().end is TaskEnd.STOPPED
        last = log.last_seqno
    run_apply(options(tmp_path, target), spark=context)
    assert set(positions(target.options).values()) == {last}
    check_equal(target, workload)


def test_a_stop_that_the_user_did_not_ask_for_is_no_end(tmp_path: Path, context: SparkContext) -> None:
    """A task that cannot go on asks all to stop; if its job then fails, as when a worker is killed, its reason is lost.

    What is left is its wish in the target. Taken for the user's it would end the run with exit code 0.
    """
    workload = Workload(seed=43)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    opened = open_target(target.options)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        run = Run(options(tmp_path, target, until_seqno=None), context)
        workload.write(log, 20)
        wait_until(lambda: set(positions(target.options).values()) == {log.last_seqno})
        row = opened.positions.read_pipeline("p")
        assert row is not None
        opened.positions.request_stop(pipeline="p", token=row.token, stop_at_seqno=NO_SEQNO)
        opened.close()
        wait_until(lambda: any("asked all others to stop" in note for one in run.reports for note in one.notes))
        workload.write(log, 20)
        wait_until(lambda: set(positions(target.options).values()) == {log.last_seqno})
        run.stop.set()
        result = run.join()
    assert result.end is TaskEnd.STOPPED
    assert 1 <= result.resubmissions <= 4, "each channel once that saw the wish before it was taken back"
    check_equal(target, workload)


@pytest.mark.parametrize(
    "change",
    [{"channels": 2}, {"plan": PlanOptions(assignment=AssignmentRule.HASH)}, {"plan": PlanOptions(serial=("north",))}],
    ids=str,
)
def test_another_plan_drains_first(tmp_path: Path, context: SparkContext, change: dict) -> None:
    """ "A changed channel count or shard rule is adopted only when all channels stand at one seqno"."""
    workload = Workload(seed=71, serial=0.0, shards=("north", "east"))
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 400)
    opened = open_target(target.options)
    try:
        run_apply(options(tmp_path, target, until_seqno=100, channels=3), spark=context)
        # What an interrupted run leaves: one channel behind. It had applied nothing of its own since.
        target.query("UPDATE tranlog_channel SET applied_seqno = 0, event_id = '', epoch = 0 WHERE channel = 2")
        result = run_apply(
            options(tmp_path, target, channels=3, until_seqno=50, plan=PlanOptions(serial=("x",))), spark=context
        )
        assert opened.positions.read_pipeline("p").channels == 3, "the limit lies before the drain's end"  # type: ignore[union-attr]
        assert set(positions(target.options).values()) == {100, 50}
        result = run_apply(options(tmp_path, target, **change), spark=context)
    finally:
        opened.close()
    assert result.end is TaskEnd.LIMIT
    assert any("the plan changed at seqno 100" in note for note in result.status.notes)
    wanted = options(tmp_path, target, **change).shard_plan()
    assert set(positions(target.options)) == set(range(wanted.channels))
    assert set(positions(target.options).values()) == {last}
    check_equal(target, workload)
    assert counters(target.options).changes == workload.changes


def test_a_stop_at_the_end_of_a_drain_is_no_limit(
    tmp_path: Path, context: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old plan's channels have reached the drain's seqno when the stop comes, and the new plan has not begun."""
    workload = Workload(seed=72, serial=0.0, shards=("north", "east"))
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 200)
    run_apply(options(tmp_path, target, until_seqno=100, channels=3), spark=context)
    target.query("UPDATE tranlog_channel SET applied_seqno = 0, event_id = '', epoch = 0 WHERE channel = 2")
    stop = threading.Event()
    run_plan = apply._Driver._run

    def run_and_stop(driver: apply._Driver, plan: ShardPlan, until: Seqno | None) -> TaskEnd:
        end = run_plan(driver, plan, until)
        stop.set()
        return end

    monkeypatch.setattr(apply._Driver, "_run", run_and_stop)
    result = run_apply(options(tmp_path, target, until_seqno=None, channels=2), spark=context, stop=stop)
    assert set(positions(target.options).values()) == {100}, "the drain was whole"
    assert result.end is TaskEnd.STOPPED


def test_a_running_pipeline_takes_another_plan(tmp_path: Path, context: SparkContext) -> None:
    """ "changing the channel count or the rule, online": by a plan that comes while it follows."""
    workload = Workload(seed=73)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    plans: PlanOrders = queue.SimpleQueue()
    orders = []
    given = options(tmp_path, target, until_seqno=None, channels=3, group=SMALL)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        workload.write(log, 300)
        run = Run(given, context, plans)
        for plan in (
            ShardPlan(channels=4, rule=AssignmentRule.HASH),
            ShardPlan(channels=2, by=ShardBy.TABLE, serial=frozenset({"north.items"})),
            ShardPlan(channels=9),
        ):
            wait_until(lambda: min(positions(target.options).values(), default=-1) > log.last_seqno - 200)
            orders.append(PlanOrder(plan))
            plans.put(orders[-1])
            workload.write(log, 300)
            if plan.channels < 9:
                assert orders[-1].answer.result(200) is not None
        wait_until(lambda: run.error is not None or set(positions(target.options).values()) == {log.last_seqno})
        wait_until(lambda: any("the plan stays as it is" in note for one in run.reports for note in one.notes))
        run.stop.set()
        result = run.join()
    assert (result.end, result.resubmissions) == (TaskEnd.STOPPED, 0)
    assert set(positions(target.options)) == {0, 1}
    for order in orders[:2]:
        assert any(f"the plan changed at seqno {order.answer.result(0)} " in note for note in result.status.notes)
    with pytest.raises(EngineError, match=r"offers 4 slots, and each of 9 channels needs one.*Nothing has changed"):
        orders[2].answer.result(0)
    check_equal(target, workload)
    assert counters(target.options).changes == workload.changes


@pytest.mark.parametrize("behind", [False, True], ids=["in the drain", "behind it"])
def test_a_kill_in_the_middle_of_another_plan(tmp_path: Path, behind: bool) -> None:
    """The driver is killed -9 while it changes plans; the next one ends what it began."""
    workload = Workload(seed=74, serial=0.0, shards=("north", "east"))
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 3000)
    driver = Driver(options(tmp_path, target, channels=3, group=SMALL))
    try:
        wait_until(lambda: min(positions(target.options).values(), default=-1) > 30)
    finally:
        driver.kill()
    at = positions(target.options)
    driver = Driver(options(tmp_path, target, channels=2, group=SMALL))
    try:
        # In the drain: some channel has moved, by the old plan. Behind it: there are two channels.
        wait_until(lambda: len(positions(target.options)) == 2 if behind else positions(target.options) != at)
    finally:
        driver.kill()
    driver = Driver(options(tmp_path, target, channels=4, plan=PlanOptions(assignment=AssignmentRule.HASH)))
    code, stdout, stderr = driver.finish()
    assert (code, stderr) == (0, "") and stdout.splitlines()[-1] == "ended limit"
    assert len(positions(target.options)) == 4
    check_equal(target, workload)


def test_a_channel_without_a_position_loses_nothing(tmp_path: Path, context: SparkContext) -> None:
    """B7-20: the ancestor resumes at the least of the positions that there are, and loses the rest."""
    workload = Workload(seed=75, serial=0.0, shards=("north", "east"))
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 100)
    given = options(tmp_path, target, channels=3, plan=PlanOptions(channels={"north": 1, "east": 2}))
    run_apply(given, spark=context)
    # As if channel 2 had been killed before its first commit, and its row with it.
    target.query("DELETE FROM tranlog_channel WHERE channel = 2")
    target.query('DELETE FROM "east.items"')
    target.query("DELETE FROM audit WHERE tab = 'east.items'")
    with pytest.raises(
        TargetPositionError, match=r"no row of its channel 2, of 3.*`tranlog position set SEQNO --channel 2`"
    ):
        run_apply(given, spark=context)
    opened = open_target(target.options)
    with LogReader.open(tmp_path / "log") as reader:
        set_position(
            opened,
            reader,
            pipeline="p",
            seqno=NO_SEQNO,
            channel=2,
            plan=given.shard_plan(),
            clock=SystemClock(),
            watch_s=0.0,
            take_over=False,
            agree=lambda move: None,
        )
    opened.close()
    run_apply(given, spark=context)
    assert set(positions(target.options).values()) == {last}
    check_equal(target, workload)


def test_a_log_that_cannot_be_held_is_said_once(tmp_path: Path, context: SparkContext) -> None:
    workload = Workload(seed=76)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 50)
    shutil.rmtree(tmp_path / "log" / "holds", ignore_errors=True)
    (tmp_path / "log" / "holds").touch()
    result = run_apply(options(tmp_path, target), spark=context)
    assert len([note for note in result.status.notes if "retention will not wait" in note]) == 1
    check_equal(target, workload)


@pytest.mark.parametrize("kind", [Parallelization.DISK, Parallelization.MEMORY])
def test_what_cannot_be_cured_comes_back_as_itself(
    tmp_path: Path, context: SparkContext, kind: Parallelization
) -> None:
    north = items("north")
    workload = Workload(seed=0, shards=("north",))
    target = SqliteTarget(tmp_path / "target.db", [north])
    target.query("INSERT INTO \"north.items\" VALUES (2, 9, 'mine')")
    packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        for key in (1, 2, 3):
            workload.append(log, packer, [RowChange(north, Op.INSERT, None, (key, 0, "x"))])
        log.commit()
    with pytest.raises(ConflictError, match=r"conflict at seqno 2, table north\.items, key") as found:
        run_apply(options(tmp_path, target, until_seqno=None, parallelization=kind), spark=context)
    assert found.value.seqno == 2
    assert max(positions(target.options).values()) >= 1
    opened = open_target(target.options)
    row = opened.positions.read_pipeline("p")
    opened.close()
    assert row is not None and row.holder == "", "the next start need not wait"


def test_damage_in_a_window_stops_behind_what_lies_before_it(tmp_path: Path, context: SparkContext) -> None:
    """Read by one for all, it is still named as itself, and all before it is applied."""
    workload = Workload(seed=77, serial=0.0)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 60)
    with LogReader.open(tmp_path / "log") as reader:
        header = reader.header(Seqno(last - 20))
    assert header is not None
    segment = next((tmp_path / "log").glob("thl.data.*"))
    with segment.open("r+b") as file:
        place = lsn_offset(header.lsn) + header.record_length - 6
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(CorruptRecordError, match="checksum") as found:
        run_apply(options(tmp_path, target, parallelization=Parallelization.MEMORY), spark=context)
    assert found.value.seqno == last - 20
    assert set(positions(target.options).values()) == {last - 21}


def test_another_log_is_refused_before_anything_runs(tmp_path: Path, context: SparkContext) -> None:
    workload = Workload(seed=81)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 50)
    run_apply(options(tmp_path, target), spark=context)
    write_log(tmp_path / "other", Workload(seed=82), 20)
    with pytest.raises(TargetAheadError, match="this log does not reach that far"):
        run_apply(options(tmp_path, target, log_dir=str(tmp_path / "other")), spark=context)
    check_equal(target, workload)


def test_a_second_spark_of_another_kind_is_refused(spark: SparkSession) -> None:
    with pytest.raises(EngineError, match=r"a Spark context on local\[4,3\] runs in this process, and local\[2\] is"):
        build_session("local[2]", "another")


@pytest.mark.parametrize("kind", [Parallelization.DISK, Parallelization.MEMORY])
def test_a_driver_that_is_killed_loses_nothing(tmp_path: Path, context: SparkContext, kind: Parallelization) -> None:
    """kill -9 in the middle: its JVM and workers go with it, and the next driver goes on from the positions."""
    workload = Workload(seed=91)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 3000)
    driver = Driver(options(tmp_path, target, group=SMALL, parallelization=kind))
    try:
        wait_until(lambda: min(positions(target.options).values(), default=-1) > 20)
        below = driver.children()
        assert len(below) >= 5, "a JVM, a daemon and four workers"
    finally:
        driver.process.kill()
    _, stderr = driver.process.communicate(timeout=60)
    at = positions(target.options)
    assert min(at.values()) < last, "it was over before it was killed; give it more to do"
    assert stderr == "", "Spark is quiet"
    wait_until(lambda: not alive(below))
    result = run_apply(options(tmp_path, target), spark=context)
    assert result.end is TaskEnd.LIMIT
    check_equal(target, workload)


def test_a_spark_that_dies_is_one_clear_error(tmp_path: Path) -> None:
    workload = Workload(seed=94)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 30)
    driver = Driver(options(tmp_path, target, until_seqno=None))
    try:
        wait_until(lambda: min(positions(target.options).values(), default=-1) == 30)
        (jvm,) = [pid for pid in driver.children() if program(pid) == "java"]
        os.kill(jvm, signal.SIGKILL)
        stdout, stderr = driver.process.communicate(timeout=60)
    finally:
        driver.process.kill()
        driver.process.communicate()
    assert stdout.splitlines()[-1].startswith("EngineError Spark cannot run the pipeline: "), stdout
    assert "goes on from the positions in the target" in stdout
    assert stderr == "" and driver.process.returncode == 0


def test_sigterm_is_a_clean_stop(tmp_path: Path) -> None:
    """The JVM does not share our process group, so that a signal to the group leaves it to the clean stop."""
    workload = Workload(seed=92)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 30)
    driver = Driver(options(tmp_path, target, until_seqno=None))
    try:
        wait_until(lambda: min(positions(target.options).values(), default=-1) == 30)
        below = driver.children()
        assert os.getpgid(driver.process.pid) not in {os.getpgid(pid) for pid in below}
        driver.process.terminate()
        stdout, stderr = driver.process.communicate(timeout=60)
    finally:
        driver.process.kill()
    assert driver.process.returncode == 0 and stderr == ""
    assert stdout.splitlines()[-1] == "ended stopped"
    wait_until(lambda: not alive(below))
    check_equal(target, workload)

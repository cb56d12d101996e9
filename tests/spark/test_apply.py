"""design/pipeline.md, "Apply": whole runs on a real Spark into real targets, with tasks and drivers that are killed."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fix_pipeline import (
    BY_SCHEMA,
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
from tranlog.errors import ConflictError, EngineError, PipelineHeldError, ReplacedError, TargetAheadError
from tranlog.log.log import Log
from tranlog.log.positions import read_holds
from tranlog.pipeline.apply import ApplyOptions, ApplyResult, ApplyStatus, run_apply
from tranlog.pipeline.channel import GroupBounds, TaskEnd
from tranlog.pipeline.channels import AssignmentRule
from tranlog.pipeline.session import build_session
from tranlog.source.packer import TransactionPacker
from tranlog.target.options import open_target

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Some start a JVM of their own, which takes its time on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
SMALL = GroupBounds(transactions=3)


@pytest.fixture
def context(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


def options(tmp_path: Path, target: SqliteTarget | PostgresTarget, **more) -> ApplyOptions:
    return ApplyOptions(
        **{"pipeline": "p", "log_dir": str(tmp_path / "log"), "target": target.options, "until_seqno": "now", **more}
    )


class Run:
    """A run in a thread, to be disturbed."""

    def __init__(self, given: ApplyOptions, context: SparkContext) -> None:
        self.stop = threading.Event()
        self.reports: list[ApplyStatus] = []
        self.result: ApplyResult | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(given, context), daemon=True)
        self._thread.start()

    def _run(self, given: ApplyOptions, context: SparkContext) -> None:
        try:
            self.result = run_apply(given, stop=self.stop, report=self.reports.append, spark=context)
        except BaseException as exc:
            self.error = exc

    def join(self) -> ApplyResult:
        self.ended()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result

    def ended(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive(), "it did not end"


def wait_until(true: Callable[[], bool], timeout_s: float = 100.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


@pytest.mark.parametrize("seed", [21, 22])
def test_target_and_source_are_equal(tmp_path: Path, context: SparkContext, seed: int) -> None:
    workload = Workload(seed=seed, large=0.005)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 500, segment_bytes=50_000)
    reports: list[ApplyStatus] = []
    result = run_apply(options(tmp_path, target), report=reports.append, spark=context)
    assert (result.end, result.resubmissions) == (TaskEnd.LIMIT, 0)
    check_equal(target, workload)
    status = result.status
    assert status == reports[-1]
    assert status.restart_seqno == status.committed_seqno == last and status.lag.seqnos == 0
    assert (status.total.transactions, status.total.changes) == (last + 1, workload.changes)
    assert [(hold.name, hold.restart_seqno) for hold in read_holds(str(tmp_path / "log"))] == [("p", last)]
    # A second run has nothing to do, and does not wait to see whether the first one is alive.
    again = run_apply(options(tmp_path, target), spark=context)
    assert again.end is TaskEnd.LIMIT and again.seconds < 2.4
    check_equal(target, workload)


@pytest.mark.integration
def test_postgres_and_source_are_equal(tmp_path: Path, context: SparkContext, postgres, postgres_database) -> None:
    workload = Workload(seed=31, large=0.005, serial=0.03)
    target = PostgresTarget(postgres.dsn(postgres_database), workload.tables)
    last = write_log(tmp_path / "log", workload, 1500)
    result = run_apply(options(tmp_path, target, group=GroupBounds()), spark=context)
    assert result.status.total.transactions == last + 1
    check_equal(target, workload)


def test_a_pipeline_follows_until_it_is_stopped(tmp_path: Path, context: SparkContext) -> None:
    """Stops of the driver: each task ends after its target transaction, and the next start goes on."""
    workload = Workload(seed=41)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        for _ in range(2):
            run = Run(options(tmp_path, target, until_seqno=None), context)
            workload.write(log, 100, sync_every=3)
            wait_until(lambda: min(positions(target.options).values(), default=-1) > log.last_seqno - 50)
            run.stop.set()
            assert run.join().end is TaskEnd.STOPPED
        last = log.last_seqno
    run_apply(options(tmp_path, target), spark=context)
    assert set(positions(target.options).values()) == {last}
    check_equal(target, workload)


def worker_of(target: SqliteTarget, channel: int) -> int | None:
    """The process that has claimed a channel, from `tranlog_channel.session`."""
    opened = open_target(target.options)
    try:
        session = next((row.session for row in opened.read_channels("p") if row.channel == channel), "")
    finally:
        opened.close()
    return int(session.split()[0]) if session else None


def test_a_task_that_dies_is_run_again(tmp_path: Path, context: SparkContext) -> None:
    """kill -9 of one channel's worker, again and again: Spark runs the task again (local[4,3]), and where it gives
    up, the driver submits the job again; nothing is lost or done twice."""
    workload = Workload(seed=51)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 3000)
    run = Run(options(tmp_path, target, group=SMALL), context)
    killed: set[int] = set()
    wait_until(lambda: min(positions(target.options).values(), default=-1) >= 0)
    while len(killed) < 4 and run.result is None and run.error is None:
        pid = worker_of(target, 1)
        if pid is not None and pid not in killed and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.02)
    result = run.join()
    assert len(killed) == 4, f"the run was over after {len(killed)} kills; give it more to do"
    assert result.resubmissions >= 1, "three deaths of one task end a job"
    assert any("submitted again" in note for note in result.status.notes)
    assert set(positions(target.options).values()) == {last}
    check_equal(target, workload)


def test_a_second_driver_refuses_or_takes_over(tmp_path: Path, context: SparkContext) -> None:
    workload = Workload(seed=61)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 50)
    first = Run(options(tmp_path, target, until_seqno=None), context)
    wait_until(lambda: bool(first.reports))
    with pytest.raises(PipelineHeldError, match=r"is being run by .* pid \d+\. Stop it first, or use --take-over"):
        run_apply(options(tmp_path, target), spark=context)
    result = run_apply(options(tmp_path, target, take_over=True), spark=context)
    assert result.end is TaskEnd.LIMIT
    first.ended()
    assert isinstance(first.error, ReplacedError)
    check_equal(target, workload)


def test_of_two_that_start_at_once_one_runs(tmp_path: Path, context: SparkContext) -> None:
    """Neither sees the other's alive_at move, since there is no row yet: the token decides."""
    workload = Workload(seed=62)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 50)
    both = [Run(options(tmp_path, target, until_seqno=None), context) for _ in range(2)]
    wait_until(lambda: any(run.error is not None for run in both))
    wait_until(lambda: set(positions(target.options).values()) == {last})
    for run in both:
        run.stop.set()
        run.ended()
    (error,) = [run.error for run in both if run.error is not None]
    assert isinstance(error, PipelineHeldError | ReplacedError)
    check_equal(target, workload)


@pytest.mark.parametrize(
    "change", [{"channels": 2}, {"assignment": AssignmentRule.HASH}, {"serial_shards": ("north",)}], ids=str
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
        result = run_apply(options(tmp_path, target, channels=3, until_seqno=50, serial_shards=("x",)), spark=context)
        assert opened.read_pipeline("p").channels == 3, "the limit lies before the drain's end"  # type: ignore[union-attr]
        assert set(positions(target.options).values()) == {100, 50}
        result = run_apply(options(tmp_path, target, **change), spark=context)
    finally:
        opened.close()
    assert result.end is TaskEnd.LIMIT
    assert any("the plan changed at seqno 100" in note for note in result.status.notes)
    wanted = options(tmp_path, target, **change).plan()
    assert set(positions(target.options)) == set(range(wanted.channels))
    assert set(positions(target.options).values()) == {last}
    check_equal(target, workload)
    assert counters(target.options).changes == workload.changes


def test_a_channel_without_a_position_loses_nothing(tmp_path: Path, context: SparkContext) -> None:
    """B7-20: the ancestor resumes at the least of the positions that there are, and loses the rest."""
    workload = Workload(seed=75, serial=0.0, shards=("north", "east"))
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 100)
    given = options(tmp_path, target, channels=3, shard_map={"north": 1, "east": 2})
    run_apply(given, spark=context)
    # As if channel 2 had been killed before its first commit, and its row with it.
    target.query("DELETE FROM tranlog_channel WHERE channel = 2")
    target.query('DELETE FROM "east.items"')
    target.query("DELETE FROM audit WHERE tab = 'east.items'")
    result = run_apply(given, spark=context)
    assert "channel 2 has no position: it starts at seqno 0" in result.status.notes
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


def test_what_cannot_be_cured_comes_back_as_itself(tmp_path: Path, context: SparkContext) -> None:
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
        run_apply(options(tmp_path, target, until_seqno=None), spark=context)
    assert found.value.seqno == 2
    assert max(positions(target.options).values()) >= 1
    opened = open_target(target.options)
    row = opened.read_pipeline("p")
    opened.close()
    assert row is not None and row.holder == "", "the next start need not wait"


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


DRIVER = """
import pickle, signal, sys, threading
from tranlog.errors import TranlogError
from tranlog.pipeline.apply import run_apply
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
options = pickle.loads(bytes.fromhex(sys.argv[1]))
def report(status):
    print(status.phase, status.restart_seqno, flush=True)
try:
    result = run_apply(options, stop=stop, report=report)
    print("ended", result.end, flush=True)
except TranlogError as exc:
    print(type(exc).__name__, exc, flush=True)
"""


class Driver:
    """A driver in a process of its own, with a JVM of its own."""

    def __init__(self, given: ApplyOptions) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, pickle.dumps(given).hex()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def children(self) -> set[int]:
        """All processes below it, by their parents."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found - {self.process.pid}


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists() and " Z " not in _stat(pid)}


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return " Z "


def test_a_driver_that_is_killed_loses_nothing(tmp_path: Path, context: SparkContext) -> None:
    """kill -9 in the middle: its JVM and workers go with it, and the next driver goes on from the positions."""
    workload = Workload(seed=91)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 3000)
    driver = Driver(options(tmp_path, target, group=SMALL))
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


def test_a_task_that_stood_still_writes_nothing_more(tmp_path: Path, context: SparkContext) -> None:
    """ "SIGSTOP a worker, kill -9 the driver, start `tranlog apply` again, SIGCONT": maybe inside a transaction."""
    workload = Workload(seed=93)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 3000)
    driver = Driver(options(tmp_path, target, group=SMALL))
    stopped: list[int] = []
    try:
        wait_until(lambda: min(positions(target.options).values(), default=-1) > 20)
        for channel in (0, 2):
            pid = worker_of(target, channel)
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        driver.process.kill()
        driver.process.communicate(timeout=60)
        given = replace(options(tmp_path, target), target=replace(target.options, lock_timeout_s=1.0))
        run = Run(given, context)
        wait_until(lambda: min(positions(target.options).values()) > 500 or run.error is not None)
    finally:
        driver.process.kill()
        for pid in alive(set(stopped)):
            os.kill(pid, signal.SIGCONT)
    assert run.join().end is TaskEnd.LIMIT
    wait_until(lambda: not alive(set(stopped)))
    check_equal(target, workload)


def _program(pid: int) -> str:
    """The name of the program that a process runs; empty when it has just ended."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def test_a_spark_that_dies_is_one_clear_error(tmp_path: Path) -> None:
    workload = Workload(seed=94)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 30)
    driver = Driver(options(tmp_path, target, until_seqno=None))
    try:
        wait_until(lambda: min(positions(target.options).values(), default=-1) == 30)
        (jvm,) = [pid for pid in driver.children() if _program(pid) == "java"]
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

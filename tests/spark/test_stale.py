"""Tasks that stop, die or come twice, and a second driver: one writes, the others write nothing.

design/pipeline.md, "Tokens" and "A stopped process holds its locks", on a real Spark with real targets. Audit triggers
count each change. Times are printed (`pytest -s`), and bounded only far off, since a machine may be busy: what they
are made of is asserted instead.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from fix_driver import SMALL, Driver, Run, alive, options, state, wait_until
from fix_pipeline import (
    PostgresTarget,
    SqliteTarget,
    Workload,
    check_equal,
    positions,
    take,
    tasks_for,
    write_log,
)
from fix_target import session_of
from tranlog.change import TableMap
from tranlog.errors import PipelineHeldError, ReplacedError, TransientTargetError
from tranlog.log.writing.log import Log
from tranlog.pipeline.applying.channel import run_tasks
from tranlog.pipeline.applying.task import TaskEnd, TaskResult
from tranlog.pipeline.driving.lease import ALIVE_WATCH_S
from tranlog.pipeline.rules.channels import Parallelization, ShardPlan
from tranlog.target.options import open_target
from tranlog.target.position import FREEING_AFTER_S
from tranlog.testing.servers import PostgresAddress

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# Some start a JVM of their own, which takes its time on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
TAKE_OVER_WITHIN_S = 10.0
FAR_OFF_S = 90.0
"""What a machine that does much else may take for that, behind a start of Spark."""
AN_HOUR_S = 3600.0


@pytest.fixture
def context(spark: SparkSession) -> SparkContext:
    return spark.sparkContext


@pytest.fixture
def workload() -> Workload:
    """Two shards for two channels, and nothing that spans them: a stopped channel keeps nobody waiting."""
    return Workload(seed=97, shards=("north", "east"), serial=0.0)


@pytest.fixture
def target(workload: Workload, postgres: PostgresAddress, postgres_database: str) -> PostgresTarget:
    made = PostgresTarget(postgres.dsn(postgres_database), workload.tables)
    # Whoever waited for a lock until it is given up would not be done before this test is.
    made.options = replace(made.options, lock_timeout_s=AN_HOUR_S)
    return made


class Trap:
    """Catches a target transaction in its middle: a trigger of a table waits for a lock that we have."""

    def __init__(self, target: PostgresTarget, table: TableMap) -> None:
        self._target = target
        self._lock = psycopg.connect(target.options.dsn, autocommit=True)
        self._lock.execute("SELECT pg_advisory_lock(4711)")
        target.query(
            "CREATE FUNCTION public.trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$"
        )
        target.query(
            f'CREATE TRIGGER trap AFTER INSERT OR UPDATE OR DELETE ON "{table.schema}"."{table.table}" '
            "FOR EACH ROW EXECUTE FUNCTION public.trap()"
        )

    def _waiting(self) -> list[tuple]:
        return self._target.query(
            "SELECT pid, client_port FROM pg_stat_activity "
            "WHERE wait_event = 'advisory' AND datname = current_database()"
        )

    def caught(self) -> tuple[int, int]:
        """The server's process of a session that waits in the trap, and the port at its client."""
        wait_until(lambda: bool(self._waiting()))
        ((backend, port),) = self._waiting()
        return backend, port

    def stop(self, driver: Driver) -> int:
        """Stop the worker that is caught; its session then stands inside its transaction, and has our rows locked."""
        backend, port = self.caught()
        worker = driver.connected(port)
        os.kill(worker, signal.SIGSTOP)
        self.open()
        # In the middle of a batch, a session that waits for more of it counts as active.
        waits = "(state = 'idle in transaction' OR state = 'active' AND wait_event = 'ClientRead')"
        inside = f"SELECT 1 FROM pg_stat_activity WHERE pid = {backend} AND {waits}"
        wait_until(lambda: bool(self._target.query(inside)))
        assert state(worker) == "T"
        return worker

    def open(self) -> None:
        self._lock.close()


@pytest.fixture
def traps() -> Iterator[list[Trap]]:
    made: list[Trap] = []
    yield made
    for trap in made:
        trap.open()


def table_of(target: PostgresTarget, channel: int) -> TableMap:
    """The one table whose shard a channel has."""
    ((shard,),) = target.query(f"SELECT shard FROM public.tranlog_shard WHERE channel = {channel}")
    (table,) = [one for one in target.tables if one.schema == shard]
    return table


def apply_command(tmp_path: Path, target: PostgresTarget) -> list[str]:
    """`tranlog apply` by a file whose log is beside it: "a relative one counts from the file's folder"."""
    conf = tmp_path / "tranlog.toml"
    conf.write_text(
        f'[log]\ndir = "log"\n[target]\nkind = "postgres"\ndsn = "{target.options.dsn}"\nlock_timeout_s = {AN_HOUR_S}\n'
        '[pipeline]\nname = "p"\nchannels = 2\n'
    )
    return ["--conf", str(conf), "--verbose", "apply"]


def worker_between(driver: Driver, target: PostgresTarget, channel: int) -> int:
    """The worker of a channel whose session is not inside a transaction."""
    query = (
        "SELECT a.client_port FROM pg_stat_activity a, public.tranlog_channel c "
        f"WHERE a.pid || ' ' || a.backend_start = c.session AND c.channel = {channel} AND a.state = 'idle'"
    )
    wait_until(lambda: bool(target.query(query)))
    ((port,),) = target.query(query)
    return driver.connected(port)


@pytest.mark.integration
def test_workers_that_stand_still_between_and_inside_transactions(
    tmp_path: Path, workload: Workload, target: PostgresTarget, traps: list[Trap]
) -> None:
    """ "SIGSTOP a worker, between and in the middle of target transactions, kill -9 the driver, start `tranlog apply`
    again, SIGCONT: the successor takes over within 10 seconds (it ends the stopped one's session at the server), the
    old one writes nothing." The first driver's JVM is kept alive, as an executor on another machine would be: else the
    kernel ends the stopped ones with it. The commands are started from a folder that is not the log's."""
    command = apply_command(tmp_path, target)
    drivers, closing, stopped, below = [], [], set[int](), set[int]()
    try:
        with Log.open(str(tmp_path / "log"), source_id="test") as log:
            workload.write(log, 60)
            began = time.monotonic()
            drivers.append(Driver(command, cwd=Path("/")))
            wait_until(lambda: set(positions(target.options).values()) == {log.last_seqno})
            first_took = time.monotonic() - began
            between = worker_between(drivers[0], target, 0)
            os.kill(between, signal.SIGSTOP)
            traps.append(Trap(target, table_of(target, 1)))
            workload.write(log, 40)
            inside = traps[0].stop(drivers[0])
            stopped = {between, inside}
            before = positions(target.options)[1]
            below = drivers[0].children()
            closing.append(drivers[0].keep_jvm())
            drivers[0].kill()
            workload.write(log, 40)
            last = log.last_seqno

        began = time.monotonic()
        drivers.append(Driver([*command, "--until", "now"], cwd=Path("/")))
        wait_until(lambda: positions(target.options)[1] > before)
        took = time.monotonic() - began
        code, _, told = drivers[1].finish()
        print(f"\ntaken over within {took:.1f} s of the start; a start with nobody in the way took {first_took:.1f} s")
        assert code == 0 and "ended a session that kept a lock" in told, told
        assert took < first_took + FAR_OFF_S
        assert {state(pid) for pid in stopped} == {"T"}
        assert set(positions(target.options).values()) == {last}
        check_equal(target, workload)

        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        ours = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'tranlog' AND datname = current_database()"
        wait_until(lambda: not target.query(ours))
        assert alive(stopped) == stopped, "their tasks have ended by themselves, not with them"
        check_equal(target, workload)
    finally:
        for driver in drivers:
            driver.kill()
        for pid in alive(stopped):
            os.kill(pid, signal.SIGCONT)
        for stdin in closing:
            stdin.close()
    wait_until(lambda: not alive(below))
    # What a start waits for, beside Spark's: that the old driver does not move, and one lock.
    assert ALIVE_WATCH_S + FREEING_AFTER_S <= TAKE_OVER_WITHIN_S / 2


@pytest.mark.integration
def test_a_second_driver_refuses_and_then_takes_over(
    tmp_path: Path, context: SparkContext, workload: Workload, target: PostgresTarget, traps: list[Trap]
) -> None:
    """ "Two drivers: the second refuses, naming the first; with `--take-over` the first ends by itself." A worker of
    the first stands still inside a transaction meanwhile, and goes on while its driver and its JVM still live."""
    command = apply_command(tmp_path, target)
    first, worker = Driver(command), 0
    try:
        with Log.open(str(tmp_path / "log"), source_id="test") as log:
            workload.write(log, 60)
            wait_until(lambda: set(positions(target.options).values()) == {log.last_seqno})
            code, _, told = Driver(command).finish()
            assert code == 4
            named = (
                rf"is being run by \S+ pid {first.process.pid} since \d{{4}}-\d\d-\d\d [\d:]{{8}} UTC\. Stop it first"
            )
            assert re.search(named, told), told
            traps.append(Trap(target, table_of(target, 1)))
            workload.write(log, 40)
            worker = traps[0].stop(first)
            before = positions(target.options)[1]

        holds = f"SELECT 1 FROM public.tranlog_pipeline WHERE holder LIKE '% pid {os.getpid()} %'"
        began = time.monotonic()
        second = Run(options(tmp_path, target, channels=2, take_over=True), context)
        wait_until(lambda: second.error is not None or bool(target.query(holds)))
        with suppress(ProcessLookupError):  # the first may have ended by now, and it with it
            os.kill(worker, signal.SIGCONT)
        wait_until(lambda: second.error is not None or positions(target.options)[1] > before)
        print(f"\ntaken over within {time.monotonic() - began:.1f} s, Spark was there")
        code, _, told = first.finish()
        assert second.join().end is TaskEnd.LIMIT
        # The first may look only when the second has come to its end and let go.
        whom = rf"(\S+ pid {os.getpid()} since [-:\d ]+ UTC|another driver, which has ended since)"
        ours = rf"tranlog: pipeline 'p' was taken over by {whom}; this process applied"
        assert code == 4 and re.search(ours, told.splitlines()[-1]), told
        wait_until(lambda: not alive({worker}))
    finally:
        if alive({worker}):
            os.kill(worker, signal.SIGCONT)
        first.kill()
    check_equal(target, workload)


def in_background(context: SparkContext, tasks: list) -> tuple[threading.Thread, list[TaskResult]]:
    """Run tasks as a Spark job that nobody waits for yet."""
    results: list[TaskResult] = []
    job = context.parallelize(tasks, len(tasks)).mapPartitions(run_tasks)
    thread = threading.Thread(target=lambda: results.extend(job.collect()), daemon=True)
    thread.start()
    return thread, results


@pytest.mark.integration
def test_two_live_attempts_of_one_channel(
    tmp_path: Path, context: SparkContext, workload: Workload, target: PostgresTarget, traps: list[Trap]
) -> None:
    """ "Two live attempts of one channel, started by the test on purpose: the same." The earlier one is at work inside
    a transaction; the later one ends its session, and it finds itself replaced."""
    last = write_log(tmp_path / "log", workload, 60)
    plan = ShardPlan(channels=2, mapping=(("north", 0), ("east", 1)))
    token = take(target.options, plan)
    tasks = tasks_for(target.options, tmp_path / "log", plan, token, until=last, bounds=SMALL)
    traps.append(Trap(target, workload.tables[1]))
    early, early_results = in_background(context, tasks)
    backend, _ = traps[0].caught()
    ((claimed,),) = target.query("SELECT session FROM public.tranlog_channel WHERE channel = 1")
    assert claimed.split()[0] == str(backend)
    late, late_results = in_background(context, tasks)
    wait_until(lambda: target.query("SELECT session FROM public.tranlog_channel WHERE channel = 1") != [(claimed,)])
    traps[0].open()
    for thread in (early, late):
        thread.join(100)
    assert [result.end for result in late_results] == [TaskEnd.LIMIT] * 2
    assert early_results[1].end is TaskEnd.REPLACED and isinstance(early_results[1].error, ReplacedError)
    check_equal(target, workload)


@pytest.mark.integration
def test_a_driver_that_stands_still_inside_a_transaction(workload: Workload, target: PostgresTarget) -> None:
    """Its session is stored nowhere, nor is that of a task that was just claiming: their kind and state tell."""
    plan = ShardPlan(channels=2)
    take(target.options, plan)
    opened = open_target(target.options)
    session = session_of(opened)
    session.begin()
    session.run("UPDATE tranlog_pipeline SET alive_at = alive_at + 1")
    assert take(target.options, plan) == 2
    with pytest.raises(TransientTargetError):
        session.commit()
    opened.close()


def worker_of(target: SqliteTarget, channel: int) -> int | None:
    """The process that has claimed a channel, from `tranlog_channel.session`."""
    opened = open_target(target.options)
    try:
        session = next((row.session for row in opened.positions.read_channels("p") if row.channel == channel), "")
    finally:
        opened.close()
    return int(session.split()[0]) if session else None


@pytest.mark.parametrize("kind", [Parallelization.DISK, Parallelization.MEMORY])
def test_a_task_that_dies_is_run_again(tmp_path: Path, context: SparkContext, kind: Parallelization) -> None:
    """kill -9 of one channel's worker, again and again: Spark runs the task again (local[4,3]), and where it gives
    up, the driver submits the job again; nothing is lost or done twice."""
    workload = Workload(seed=51)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 3000)
    run = Run(options(tmp_path, target, group=SMALL, parallelization=kind), context)
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

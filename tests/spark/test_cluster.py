"""The same pipeline beyond one machine, on clusters whose workers are killed."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

import pytest

from fix_driver import SMALL, Driver, alive, options, program, wait_until
from fix_pipeline import SqliteTarget, Workload, check_equal, positions, write_log
from fix_spark_cluster import tranlog_path
from tranlog import RunningPipeline
from tranlog.errors import ControlError
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.states import State
from tranlog.pipeline.spark.cluster import EngineOptions
from tranlog.pipeline.spark.package import write_package
from tranlog.testing.spark_cluster import SparkCluster

LOCAL_CLUSTER = "local-cluster[2,2,1024]"
JVM = {"spark.driver.memory": "512m"}


def said(given: ApplyOptions, environment: dict[str, str] | None = None, *, cwd: Path | None = None) -> str:
    """Run a driver to its end and return its last word."""
    driver = Driver(given, cwd=cwd, environment=environment)
    try:
        _, stdout, stderr = driver.finish()
    finally:
        driver.kill()
    assert stdout, stderr
    return stdout.splitlines()[-1]


def quiet(stderr: str) -> None:
    """Hold that Spark itself said nothing: only our own warnings of lost executors and jobs."""
    ours = re.compile(r"\d+ slots for \d+ channels: .*|a channel's job failed and is submitted again .*")
    assert [line for line in stderr.splitlines() if not ours.fullmatch(line)] == []


def reached(target: SqliteTarget) -> int:
    """The least position of all channels; -1 before the first."""
    return min(positions(target.options).values(), default=-1)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_local_cluster_loses_an_executor(tmp_path: Path) -> None:
    """kill -9 of an executor's JVM: its channels run again, nothing is lost or doubled, and Spark leaves nothing."""
    workload = Workload(seed=101)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 3000)
    driver = Driver(options(tmp_path, target, master=LOCAL_CLUSTER, group=SMALL, engine=EngineOptions(settings=JVM)))
    try:
        wait_until(lambda: reached(target) > 100)
        below = driver.children()
        jvms = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in below if program(pid) == "java"}
        executors = [pid for pid, words in jvms.items() if b"CoarseGrainedExecutorBackend" in words]
        assert len(executors) == 2
        assert not any(b"authenticate.secret" in words for words in jvms.values())
        os.kill(executors[0], 9)
        assert reached(target) < last, "it was over before the kill; give it more to do"
        code, stdout, stderr = driver.finish(200)
    finally:
        driver.kill()
    assert stdout.splitlines()[-1] == "ended limit" and code == 0, stdout + stderr
    quiet(stderr)
    assert set(positions(target.options).values()) == {last}
    check_equal(target, workload)
    wait_until(lambda: not alive(below))


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killed", [(0,), pytest.param((0, 1), marks=pytest.mark.slow)], ids=["one", "each"])
def test_a_standalone_cluster_loses_its_workers(
    killed: tuple[int, ...], tmp_path: Path, spark_cluster: SparkCluster
) -> None:
    """A worker is killed with -9 in the middle, its executor with it, and started again; then the other one.

    There are no slots to spare, so its channels, and serial sections with them, stand still until it is back.
    """
    workload = Workload(seed=111)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 3000 * len(killed))
    given = options(tmp_path, target, master=spark_cluster.url, group=SMALL, engine=spark_cluster.engine(settings=JVM))
    driver = Driver(given)
    try:
        for number in killed:
            wanted = reached(target) + 200
            wait_until(lambda wanted=wanted: reached(target) > wanted or driver.process.poll() is not None)  # type: ignore[misc]
            assert spark_cluster.executor_pids(number), "its executor is at work"
            spark_cluster.kill_worker(number)
            assert reached(target) < last, "it was over before the kill; give it more to do"
            assert driver.process.poll() is None, "the driver goes on"
            spark_cluster.start_worker(number)
        code, stdout, stderr = driver.finish(300)
    finally:
        driver.kill()
    assert stdout.splitlines()[-1] == "ended limit" and code == 0, stdout + stderr
    assert "note 2 slots for 4 channels: executors were lost, and some channels wait for others" in stdout
    quiet(stderr)
    assert set(positions(target.options).values()) == {last}
    check_equal(target, workload)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_cluster_that_is_gone_and_back(tmp_path: Path, spark_cluster: SparkCluster) -> None:
    """Executors that died with the master gone were not replaced: ONLINE for ever, and 61 s to SIGTERM.

    Without a slot for `slots_wait_s` a new session is tried; SIGTERM ends it within ten seconds while all is gone.
    """
    workload = Workload(seed=112)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    first = write_log(tmp_path / "log", workload, 50)
    (tmp_path / "secret").write_text(spark_cluster.secret)
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "tranlog.toml").write_text(
        f'[log]\ndir = "log"\n[target]\nkind = "sqlite"\npath = "target.db"\n[pipeline]\nname = "p"\n'
        f'master = "{spark_cluster.url}"\n[spark]\nsecret_file = "secret"\nslots_wait_s = 20.0\n'
        '[spark.settings]\n"spark.driver.memory" = "512m"\n'
    )
    driver = Driver(["apply"], cwd=tmp_path)
    running = RunningPipeline.find(conf=str(tmp_path / "tranlog.toml"))

    def stands(state: State, slots: int) -> bool:
        assert driver.process.poll() is None, driver.finish()
        try:
            found = running.state()
        except ControlError:
            return False
        return (found.state, found.slots) == (state, slots)

    try:
        wait_until(lambda: stands(State.ONLINE, 4) and reached(target) == first)
        spark_cluster.kill_all()
        wait_until(lambda: stands(State.DEGRADED, 0))
        last = write_log(tmp_path / "log", workload, 50)
        spark_cluster.start_all()
        wait_until(lambda: reached(target) == last and stands(State.ONLINE, 4))
        spark_cluster.kill_all()
        wait_until(lambda: stands(State.DEGRADED, 0))
        began = time.monotonic()
        driver.process.terminate()
        code, _, stderr = driver.finish(60)
        assert time.monotonic() - began < 10
        assert code == 0, stderr
    finally:
        driver.kill()
    check_equal(target, workload)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_workers_lack_is_one_clear_error(tmp_path: Path, bare_python: Path) -> None:
    """One cluster that has nothing of ours: no tranlog, then with the package; no Python; no log; too few slots."""
    workload = Workload(seed=121)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    last = write_log(tmp_path / "log", workload, 200)
    package = write_package(str(tmp_path / "tranlog-spark.zip")).path
    with SparkCluster(workers=1, cores=2) as cluster:
        given = {"master": cluster.url, "channels": 2}
        bare = {"PYSPARK_PYTHON": str(bare_python)}
        host = r"the worker 127\.0\.0\.1"

        text = said(options(tmp_path, target, engine=cluster.engine(settings=JVM), **given), bare)
        wanted = rf"the Python of {host} has no module 'tranlog'\. Install the same tranlog there, or make a package"
        assert re.search(wanted, text), text
        assert set(positions(target.options).values()) == {-1}

        text = said(
            options(tmp_path, target, engine=cluster.engine(settings=JVM), **given), {"PYSPARK_PYTHON": "/no/python"}
        )
        assert re.search(rf"{host} has no program /no/python\. Install that Python", text), text

        given["channels"] = 3
        few = cluster.engine(settings=JVM, slots_wait_s=20.0)
        text = said(options(tmp_path, target, engine=few, **given), bare)
        assert "offers 2 slots, and each of 3 channels needs one" in text, text
        given["channels"] = 2

        # A path that leads elsewhere in another process, as one does on another machine.
        elsewhere = {**given, "log_dir": "/proc/self/cwd/log"}
        packed = cluster.engine(settings=JVM, package=package)
        text = said(options(tmp_path, target, engine=packed, **elsewhere), bare, cwd=tmp_path)
        host = socket.gethostname()
        assert f"the worker on {host} cannot read the log at /proc/self/cwd/log: " in text, text
        assert said(options(tmp_path, target, engine=packed, **given), bare) == "ended limit"
        assert set(positions(target.options).values()) == {last}
        check_equal(target, workload)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_master_with_another_secret_offers_nothing(tmp_path: Path) -> None:
    workload = Workload(seed=131)
    target = SqliteTarget(tmp_path / "target.db", workload.tables)
    write_log(tmp_path / "log", workload, 20)
    with SparkCluster(workers=1, cores=2, environment={"PYTHONPATH": tranlog_path()}) as cluster:
        wrong = EngineOptions(secret="wrong", slots_wait_s=10.0, settings=JVM)
        text = said(options(tmp_path, target, master=cluster.url, channels=2, engine=wrong))
    assert "offers 0 slots" in text and "whether the secret is the cluster's" in text, text

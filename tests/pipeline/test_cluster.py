"""What a cluster is told and what is refused, as far as no Spark need run for it."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fix_pipeline import Workload, write_log
from tranlog.errors import ConfigError, EngineError, LogMissingError
from tranlog.log.reading.reader import LogReader
from tranlog.pipeline.applying.log_mark import log_mark, open_log
from tranlog.pipeline.applying.task import ChannelTask
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import ShardPlan
from tranlog.pipeline.spark.cluster import (
    EngineOptions,
    MasterKind,
    cluster_settings,
    driver_address,
    explain_failure,
    master_kind,
    shown,
)
from tranlog.target.options import TargetOptions
from tranlog.testing.servers import free_port


@pytest.mark.parametrize(
    ("master", "kind"),
    [
        ("local", MasterKind.LOCAL),
        ("local[4,3]", MasterKind.LOCAL),
        ("local-cluster[2,2,1024]", MasterKind.LOCAL_CLUSTER),
        ("spark://host:7077", MasterKind.STANDALONE),
        ("spark://a:7077,b:7077", MasterKind.STANDALONE),
        ("yarn", MasterKind.OTHER),
        ("k8s://https://host:443", MasterKind.OTHER),
    ],
)
def test_kinds_of_master(master: str, kind: MasterKind) -> None:
    assert master_kind(master) is kind


@pytest.mark.parametrize("master", ["spark://host", "spark:host:7077", "spark://host:7077/x", "spark://:7077"])
def test_an_address_without_a_port_is_refused(master: str) -> None:
    with pytest.raises(ConfigError, match="a standalone cluster's is spark://host:port"):
        master_kind(master)


@pytest.mark.parametrize("master", ["foo", "", "LOCAL", "local[", "local[0]", "local[x]", "local-cluster[2]"])
def test_what_is_no_master_is_refused(master: str) -> None:
    """Spark starts a JVM to say so, and what then does not start sounds like a missing Java."""
    with pytest.raises(ConfigError, match=r"a master is local\[4\], local-cluster"):
        EngineOptions().check_for(master)


def test_a_standalone_cluster_needs_its_secret_or_a_word_that_it_has_none() -> None:
    url = "spark://host:7077"
    with pytest.raises(ConfigError, match=r"this cluster's secret is needed: set secret_file or secret_env"):
        EngineOptions().check_for(url)
    for given in (
        EngineOptions(secret="s"),
        EngineOptions(settings={"spark.authenticate.secret": "s"}),
        EngineOptions(settings={"spark.authenticate": "False"}),
    ):
        given.check_for(url)
    EngineOptions().check_for("local[4]")
    with pytest.raises(ConfigError, match="settings begin with"):
        EngineOptions(settings={"executor.memory": "1g"}).check_for(url)
    with pytest.raises(ConfigError, match="slots_wait_s"):
        EngineOptions(slots_wait_s=0).check()


def test_driver_and_executors_know_each_other_by_a_secret_that_is_not_shown() -> None:
    """ "`spark.authenticate` with a generated secret and loopback or private binds by default"."""
    master = "local-cluster[2,2,1024]"
    settings = cluster_settings(master, EngineOptions())
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    assert settings["spark.executor.memory"] == "1024m"
    secret = settings["spark.authenticate.secret"]
    assert len(secret) == 64 != cluster_settings(master, EngineOptions())["spark.authenticate.secret"]
    assert secret not in repr(shown(settings)) and "spark.authenticate" in shown(settings)
    given = EngineOptions(secret="hush", settings={"spark.authenticate.secret": "hush"})
    assert "hush" not in repr(given) and pickle.loads(pickle.dumps(given)) == given
    assert cluster_settings("local[4]", EngineOptions()) == {}


def test_the_driver_listens_where_the_master_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        url = f"spark://127.0.0.1:{free_port()},127.0.0.1:{master.getsockname()[1]}"
        assert driver_address(url) == "127.0.0.1"
        settings = cluster_settings(url, EngineOptions(secret="s"))
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"


def test_nobody_at_the_masters_address_is_said_at_once() -> None:
    with pytest.raises(EngineError, match=r"no master answers at spark://127\.0\.0\.1:\d+ \(.*refused.*\)\. Start it"):
        driver_address(f"spark://127.0.0.1:{free_port()}")


# As Spark 4.3 says it; tests/spark/test_cluster.py holds that it still does.
LOST = "Job aborted: Task 1 in stage 0.0 failed 4 times, Lost task 1.3 in stage 0.0 (TID 5) (10-1-2-3.net executor 0): "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            LOST + "org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error while "
            "finding module specification for 'tranlog.pipeline.spark.daemon' (ModuleNotFoundError: No module named "
            "'tranlog')",
            r"the Python of the worker 10-1-2-3\.net has no module 'tranlog'\. Install the same tranlog there, or make",
        ),
        ("ModuleNotFoundError: No module named 'psycopg'", r"the Python of a worker has no module 'psycopg'\."),
        (
            LOST + 'java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory',
            r"the worker 10-1-2-3\.net has no program /no/python\. Install that Python there",
        ),
        (
            LOST + "[PYTHON_VERSION_MISMATCH] Python in worker",
            "another minor version than the driver's",
        ),
    ],
)
def test_what_workers_lack_is_said(text: str, says: str) -> None:
    found = explain_failure(text)
    assert found is not None
    with pytest.raises(EngineError, match=says):
        raise found


def test_other_failures_are_left_alone() -> None:
    assert explain_failure(LOST + "ExecutorLostFailure (executor 0 exited caused by one of the running tasks)") is None


def fake_pyspark(path: Path, version: str) -> dict[str, str]:
    package = path / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "version.py").write_text(f"__version__ = {version!r}\n")
    return {**os.environ, "PYTHONPATH": f"{path}:{os.environ.get('PYTHONPATH', '')}"}


CHECK = (
    "from tranlog.pipeline.spark.session import check_pyspark\ntry: check_pyspark()\nexcept Exception as e: print(e)"
)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("3.5.7", "PySpark 3.5.7 is installed, and 4.3 or later is needed. Install it: `pip install 'tranlog[spark]'`"),
        ("4.10.0.dev1", ""),
    ],
)
def test_a_spark_that_is_too_old(tmp_path: Path, version: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK], env=fake_pyspark(tmp_path, version), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().removeprefix("Spark cannot run the pipeline: ") == says


def test_no_spark_at_all() -> None:
    """`None` in sys.modules is how Python itself marks a module that is not to be found."""
    code = f"import sys; sys.modules['pyspark'] = None\n{CHECK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "PySpark is not installed. Install it: `pip install 'tranlog[spark]'`" in done.stdout


def task(path: Path, **more) -> ChannelTask:
    return ChannelTask(
        options=ApplyOptions(pipeline="p", log_dir=str(path), target=TargetOptions(kind="sqlite", path="t")),
        driver_token=1,
        channel=0,
        plan=ShardPlan(channels=1),
        **more,
    )


def test_a_worker_without_the_log_is_named_with_the_path(tmp_path: Path) -> None:
    """ "A path that is not there on a worker = one clear error naming host and path"; nor may it be another log."""
    write_log(tmp_path / "log", Workload(seed=1), 5)
    write_log(tmp_path / "another", Workload(seed=1), 5)
    with LogReader.open(str(tmp_path / "log")) as reader:
        mark = log_mark(reader)
    assert mark is not None and mark.seqno == 0
    open_log(str(tmp_path / "log"), checksum=True, mark=mark).close()
    host = socket.gethostname()
    with pytest.raises(EngineError, match=rf"the worker on {host} cannot read the log at {tmp_path}/nowhere: .*Mount"):
        open_log(str(tmp_path / "nowhere"), checksum=True, mark=mark)
    with pytest.raises(EngineError, match=rf"the worker on {host} has at {tmp_path}/another is another log"):
        open_log(str(tmp_path / "another"), checksum=True, mark=mark)
    with pytest.raises(LogMissingError):
        open_log(str(tmp_path / "nowhere"), checksum=True, mark=None)

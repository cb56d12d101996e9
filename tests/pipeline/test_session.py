"""What can be said of Spark before it is started: slots, Java, and options that cannot work."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tranlog.errors import ConfigError, EngineError, LogMissingError
from tranlog.pipeline.applying.group import GroupBounds
from tranlog.pipeline.driving.apply import run_apply
from tranlog.pipeline.options import ApplyOptions
from tranlog.pipeline.rules.channels import PlanOptions
from tranlog.pipeline.spark.cluster import master_slots
from tranlog.pipeline.spark.session import (
    _make_scratch,
    _not_py4j,
    _note_folders,
    check_slots,
    default_master,
    find_java,
    restore_scratch,
)
from tranlog.target.options import TargetOptions


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[4,3]", 4),
        ("local[ 2 , 1 ]", 2),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,2,1024]", 4),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_slots_of_a_master(master: str, slots: int | None) -> None:
    assert master_slots(master) == slots


def test_a_master_with_too_few_slots_is_refused() -> None:
    """ "Without barrier, channels beyond the slots silently never start: count slots first"."""
    with pytest.raises(ConfigError, match=r"4 channels need 4 slots at a time, and it has 2; use local\[4\]"):
        check_slots("local[2]", 4)
    check_slots("local[4,3]", 4)
    check_slots("spark://host:7077", 400)
    assert master_slots(default_master(7)) == max(7, os.cpu_count() or 1)


def options(path: Path, **more) -> ApplyOptions:
    return ApplyOptions(
        pipeline=more.pop("pipeline", "p"),
        log_dir=str(path / "log"),
        target=TargetOptions(kind="sqlite", path=str(path / "t")),
        **more,
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"pipeline": "a/b"}, "pipeline"),
        ({"channels": 0}, "channels"),
        ({"master": "local[2]"}, "master"),
        ({"until_seqno": "soon"}, "until"),
        ({"until_seqno": -2}, "until"),
        ({"start_seqno": -1}, "start"),
        ({"sync_interval_s": 0}, "sync_interval_s"),
        ({"idle_every": 0}, "idle_every"),
        ({"retry_s": -1}, "retry_s"),
        ({"resubmit": -1}, "resubmit"),
        ({"group": GroupBounds(transactions=0)}, "group_transactions"),
        ({"plan": PlanOptions(channels={"a": 9})}, "shard map"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, wrong: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        options(tmp_path, **wrong).check()


def test_options_travel(tmp_path: Path) -> None:
    given = options(tmp_path, plan=PlanOptions(channels={"a": 1}, serial=("b",)), until_seqno="now")
    given.check()
    assert pickle.loads(pickle.dumps(given)) == given


def test_what_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what nobody uses: a lock that fell with its process tells."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = (
        "import os, signal; from tranlog.pipeline.spark.session import _make_scratch as m; m(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", child], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    (left,) = tmp_path.iterdir()
    (tmp_path / "tranlog-spark-of-a-stranger").mkdir()
    made = Path(_make_scratch())
    assert not left.exists()
    another = Path(_make_scratch())
    assert {made, another, tmp_path / "tranlog-spark-of-a-stranger"} == set(tmp_path.iterdir())


def test_no_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java is one clear error, before anything else is tried."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"there is no Java on this machine\. Install Java 17"):
        run_apply(options(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EngineError, match=r"JAVA_HOME is .* where there is no bin/java"):
        find_java()


def test_no_log_is_said_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LogMissingError, match="log"):
        run_apply(options(tmp_path))


def test_py4j_says_nothing_past_its_own_loggers() -> None:
    """A JVM that dies while a call waits for it: Py4J writes a trace to the root logger, and raises as well."""
    for path, passes in (("/lib/py4j/java_gateway.py", False), ("/srv/py4j-tools/job.py", True)):
        record = logging.LogRecord("root", logging.ERROR, path, 1059, "Exception while sending command.", None, None)
        assert _not_py4j(record) is passes


def test_deleted_scratch_folders_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that Spark made at its start, and those for blocks, which it believes to have made."""
    monkeypatch.setattr("tranlog.pipeline.spark.session._folders", [])
    (tmp_path / "s" / "blockmgr-1" / "0a").mkdir(parents=True)
    (tmp_path / "s" / "spark-1" / "pyspark-1").mkdir(parents=True)
    _note_folders(str(tmp_path / "s"))
    shutil.rmtree(tmp_path / "s")
    restore_scratch()
    assert (tmp_path / "s" / "spark-1" / "pyspark-1").is_dir()
    blocks = tmp_path / "s" / "blockmgr-1"
    assert sorted(folder.name for folder in blocks.iterdir()) == [f"{number:02x}" for number in range(64)]

"""A Spark standalone cluster for one test: two workers on loopback whose executors find the tranlog of this run."""

from __future__ import annotations

import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import tranlog
from tranlog.testing.spark_cluster import SparkCluster


def tranlog_path() -> str:
    """Return the PYTHONPATH by which an executor finds the tranlog that is being tested."""
    return str(Path(tranlog.__file__).parents[1])


@pytest.fixture
def spark_cluster() -> Iterator[SparkCluster]:
    """A master and two workers of two slots each, and gone with the test."""
    with SparkCluster(workers=2, cores=2, environment={"PYTHONPATH": tranlog_path()}) as cluster:
        yield cluster


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python of this version that has no library at all."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    return tmp_path / "bare" / "bin" / "python"

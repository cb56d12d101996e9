"""One Spark session for the whole run: four slots, three attempts per task, since `local[4]` alone retries none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The run's session, built as `tranlog apply` builds its own: quiet, no UI, bound to loopback."""
    # Imported here, so that `make unit` imports no PySpark and starts no Java.
    from tranlog.pipeline.spark.session import build_session

    session = build_session(master="local[4,3]", app="tranlog tests")
    yield session
    session.stop()

"""How fast Spark reads a million changes out of a log, against Spark reading the same rows out of Parquet.

The file that the anchor reads is the one that the log was written into. Counting: Spark asks Parquet for no column at
all, and asks a Python source for every column that it offers; so once with all columns, once with one. By the clock, on
two slots.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from arrow import write_log
from frame import Bench, Question, run, seconds_of

from tranlog import LogReader
from tranlog.pipeline.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUESTION = Question(
    name="source_batch",
    text="How many rows a second does Spark read from the data source thl, into count() and into Parquet?",
    peer="Spark reading the same rows from Parquet",
)
CHANGES = 1_000_000
OF_EACH = 10
"""Changes of a transaction."""
ROUNDS = 1
"""A round takes a minute and a half."""


def measure(bench: Bench) -> None:
    """Count and copy, out of the log and out of Parquet."""
    with tempfile.TemporaryDirectory() as here:
        log, rows, copy = Path(here, "log"), str(Path(here, "rows")), str(Path(here, "copy"))
        bench.say("writing the log")
        write_log(log, changes=CHANGES, each=OF_EACH)
        with LogReader.open(log) as reader:
            segments = len(reader.index())
        bench.say(f"{CHANGES} changes in {segments} segments")
        spark = build_session(master="local[2]", app="bench", settings={"spark.driver.memory": "1g"})

        def thl(columns: str | None = None) -> DataFrame:
            source = spark.read.format("thl").option("partitions", 4)
            return (source if columns is None else source.option("columns", columns)).load(str(log))

        thl().write.mode("overwrite").parquet(rows)

        def rate(work: Callable[[], object]) -> Callable[[], float]:
            return lambda: CHANGES / seconds_of(work)

        def counted(frame: DataFrame) -> None:
            assert frame.count() == CHANGES + 1

        def copied(frame: DataFrame) -> None:
            frame.write.mode("overwrite").parquet(copy)

        parquet = spark.read.parquet(rows)
        for name, ours, peer in (
            ("count(), all columns", lambda: counted(thl()), lambda: counted(parquet)),
            ("count(), columns = seqno", lambda: counted(thl("seqno")), lambda: counted(parquet)),
            ("into Parquet, all columns", lambda: copied(thl()), lambda: copied(parquet)),
        ):
            bench.compare(name, ours=rate(ours), peer=rate(peer), unit="rows/s", rounds=ROUNDS, warm_up=False)
        spark.stop()


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))

"""Changes per table and minute, as a stream: what happens in the source database, while it happens.

    python examples/changes_per_minute.py mylog

Minutes are those of the commits at the source. A count goes on growing until its minute is ten minutes past.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession, functions

from tranlog import build_session


def changes_per_minute(spark: SparkSession, log: str) -> DataFrame:
    """Return the stream of (minute, schema, table, op, changes)."""
    changes = (
        spark.readStream.format("thl")
        .option("columns", "commit_time,schema,table,op")  # nothing else is decoded
        .option("maxTransactionsPerTrigger", 100_000)
        .load(log)
    )
    minute = functions.window("commit_time", "1 minute")["start"].alias("minute")
    return (
        changes.where("op IS NOT NULL")
        .withWatermark("commit_time", "10 minutes")
        .groupBy(minute, "schema", "table", "op")
        .agg(functions.count("*").alias("changes"))
    )


def main() -> int:
    """Print the counts until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Print changes per table and minute, as they come.")
    parser.add_argument("log", help="the log's directory")
    spark = build_session(master="local[2]", app="changes per minute", settings={"spark.sql.shuffle.partitions": "2"})
    query = (
        changes_per_minute(spark, parser.parse_args().log).writeStream.outputMode("update").format("console").start()
    )
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

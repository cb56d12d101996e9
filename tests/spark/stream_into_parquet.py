"""A driver that streams a log into Parquet through Spark's own sink, to be killed: LOG TARGET CHECKPOINT."""

from __future__ import annotations

import sys

from tranlog.pipeline.spark.session import build_session


def main() -> None:
    """Stream until all that is there has been written."""
    log, target, checkpoint = sys.argv[1:]
    spark = build_session(master="local[2]", app="stream into Parquet")
    rows = spark.readStream.format("thl").option("maxTransactionsPerTrigger", 20).load(log)
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()

"""Who changed this row, when, and from what to what: an audit query in SQL over the log.

python examples/audit_query.py mylog shop.orders id 4711
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession

from tranlog import build_session

AUDIT = """
SELECT gtid, commit_time, source_id, event_id, kind, before, after
FROM log
WHERE get_json_object(key, '$.' || :column) = :value
   OR get_json_object(after, '$.' || :column) = :value
ORDER BY seqno, fragno, changeno
"""


def audit(spark: SparkSession, log: str, table: str, column: str, value: str) -> DataFrame:
    """Return every change of the rows with this value in a column of the key, in the log's order."""
    spark.read.format("thl").option("tables", table).load(log).createOrReplaceTempView("log")
    return spark.sql(AUDIT, args={"column": column, "value": value})


def main() -> int:
    """Print the changes."""
    parser = argparse.ArgumentParser(description="Print every change of a row.")
    for name, what in (
        *(("log", "the log's directory"), ("table", "as schema.table")),
        *(("column", "of the table's key"), ("value", "its value")),
    ):
        parser.add_argument(name, help=what)
    given = parser.parse_args()
    spark = build_session(master="local[2]", app="audit", settings={"spark.sql.shuffle.partitions": "2"})
    audit(spark, given.log, given.table, given.column, given.value).show(1000, truncate=False)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

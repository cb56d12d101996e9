"""A table as it was after a transaction, out of the log alone.

    python examples/table_as_of.py mylog shop orders "GTID(1, 4711)"

The log must reach back to the table's first row, and the table must have a primary key. Statements, a TRUNCATE
among them, are not followed: those that the log holds for the schema are printed, so that you see whether any matters.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession

from tranlog import build_session

# An update is the end of the row it found and the beginning of the row it left: a changed key is both at once.
AS_OF = """
WITH images AS (
    SELECT seqno, fragno, changeno, key, before, after,
           map_keys(from_json(key, 'map<string,string>')) AS names
    FROM {changes} WHERE op IS NOT NULL
), ends_and_beginnings AS (
    SELECT seqno, fragno, changeno, 0 AS half, names, before AS image, NULL AS row FROM images WHERE before IS NOT NULL
    UNION ALL
    SELECT seqno, fragno, changeno, 1 AS half, names, after AS image, after AS row FROM images WHERE after IS NOT NULL
), by_key AS (
    SELECT max_by(row, struct(seqno, fragno, changeno, half)) AS row
    FROM ends_and_beginnings
    GROUP BY transform(names, name -> from_json(image, 'map<string,string>')[name])
)
SELECT row FROM by_key WHERE row IS NOT NULL
"""


def table_as_of(spark: SparkSession, log: str, schema: str, table: str, gtid: str) -> DataFrame:
    """Return the rows, each as JSON text in the column `row`."""
    changes = (
        spark.read.format("thl")
        .option("columns", "seqno,fragno,changeno,op,key,before,after")
        .option("tables", f"{schema}.{table}")
        .option("endGtid", gtid)
        .load(log)
    )
    return spark.sql(AS_OF, changes=changes)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Print a table as it was after a transaction.")
    for name, what in (("log", "the log's directory"), ("schema", ""), ("table", ""), ("gtid", "as in GTID(1, 15)")):
        parser.add_argument(name, help=what)
    given = parser.parse_args()
    spark = build_session(master="local[2]", app="table as of", settings={"spark.sql.shuffle.partitions": "2"})
    statements = spark.read.format("thl").option("schemas", given.schema).option("endGtid", given.gtid).load(given.log)
    statements.where("kind = 'statement'").select("gtid", "statement").show(truncate=False)
    for row in table_as_of(spark, given.log, given.schema, given.table, given.gtid).toLocalIterator():
        print(row["row"])
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The log as a table and as a stream in Spark: `spark.read.format("thl")`, registered by `pyspark_thl`."""

"""The pipeline on Spark: the only place that imports pyspark."""

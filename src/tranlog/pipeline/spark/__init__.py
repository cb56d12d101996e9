"""The pipeline's Spark: `session` and `engine` start it, `cluster` has a cluster's settings, `job` submits the tasks.

`package` and `daemon` bring tranlog to the workers; `window` is parallelization in memory. With `datasource` the only
rooms that import pyspark.
"""

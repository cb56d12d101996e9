"""The name by which PySpark finds the data source `thl`: it looks into top-level modules named `pyspark_*`."""

from tranlog.pipeline.datasource.datasource import ThlDataSource as DefaultSource

__all__ = ["DefaultSource"]

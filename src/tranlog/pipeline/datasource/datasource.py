"""The log as a table that Spark can query, at once or as a stream: `spark.read.format("thl").load(directory)`.

Owns the data source that Spark finds, and its reader for queries. `datasource_options` owns
the options, `log.arrow` the batches, `datasource_stream` streaming. Reads like any other reader: from any process,
without a lock, and not past what is committed unless asked to. The hard idea: the range of seqnos is fixed once, when
the query or the micro-batch is planned. So every task and every retry reads the same rows, even if the log grows.

Spark's own filters are not taken. Spark 4.3 keeps what a reader plans with its table, not with the query: a DataFrame
that is used again, or twice in one query, would be read through the filters of another use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tranlog.errors import ConfigError, PurgedError
from tranlog.ids import Seqno
from tranlog.log.reading.arrow import KNOWN_COLUMNS
from tranlog.pipeline.datasource.datasource_options import QueryOptions, parse_options
from tranlog.pipeline.datasource.datasource_ranges import SeqnoRange, cut, last_of, read_range, spark_schema
from tranlog.pipeline.datasource.datasource_stream import ThlStreamReader

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class ThlDataSource(DataSource):
    """The data source `thl`. PySpark finds it by the module `pyspark_thl`."""

    @classmethod
    def name(cls) -> str:
        """Return the name to give to `format`."""
        return "thl"

    def schema(self) -> StructType:
        """Return the columns that the option `columns` chooses, else all."""
        options = parse_options(self.options)
        return spark_schema(options.columns)

    def reader(self, schema: StructType) -> ThlReader:
        """Return the reader of these columns. Raises ConfigError."""
        options = self._options(schema)
        for name, value in (
            ("hold", options.hold),
            ("maxTransactionsPerTrigger", options.max_transactions),
            ("maxBytesPerTrigger", options.max_bytes),
        ):
            if value is not None:
                raise ConfigError(option=name, value=value, why="it is a stream's, and this is a query")
        return ThlReader(options)

    def streamReader(self, schema: StructType) -> ThlStreamReader:
        """Return the reader of a stream of these columns. Raises ConfigError."""
        return ThlStreamReader(self._options(schema))

    def _options(self, schema: StructType) -> QueryOptions:
        """Return the options, with the columns that a `.schema(...)` names."""
        options = parse_options(self.options)
        names = schema.fieldNames()
        for field in schema.fields:
            if names.count(field.name) > 1:  # which Spark cannot read
                raise ConfigError(option="columns", value=",".join(names), why=f"{field.name} stands there twice")
            wanted = (
                spark_schema([field.name]).fields[0].dataType if field.name in KNOWN_COLUMNS[options.unit] else None
            )
            if wanted is None:
                why = f"one row per {options.unit} has the columns {', '.join(KNOWN_COLUMNS[options.unit])}"
                raise ConfigError(option="schema", value=field.name, why=why)
            if not field.nullable:
                raise ConfigError(option="schema", value=f"{field.name} NOT NULL", why="leave NOT NULL out")
            if field.dataType != wanted:
                why = f"{field.name} is {wanted.simpleString()} here; cast it in the query"
                raise ConfigError(option="schema", value=field.dataType.simpleString(), why=why)
        return replace(options, columns=tuple(names))


class ThlReader(DataSourceReader):
    """Reads ranges of one log. It travels pickled from the process that plans to those that read."""

    def __init__(self, options: QueryOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """Split the log's current range into partitions. Raises as `open`; ConfigError, NotInLogError, PurgedError."""
        options = self.options
        with options.open() as reader:
            found = reader.range()
            low, high = options.start.first(reader, "start"), options.end.last(reader, "end")
            low = found.first_seqno if low is None else low
            if low < found.first_seqno:
                raise PurgedError(seqno=Seqno(low), first=found.first_seqno)
            if low > found.last_seqno + 1:
                options.catch_up(reader, Seqno(low - 1))
                found = reader.range()
                if low > found.last_seqno + 1:
                    why = f"the log ends at seqno {found.last_seqno}, so this is another log's, or of a log before it"
                    raise ConfigError(option="startSeqno", value=low, why=why)
            last = last_of(found, options)
            high = last if high is None else min(high, last)
            return list(cut(reader, low, high, options.partitions)) or [SeqnoRange(0, -1)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield Arrow batches. Raises as a cursor does."""
        assert isinstance(partition, SeqnoRange)
        return read_range(self.options, partition)

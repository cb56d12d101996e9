"""Ranges of the log as Spark's tasks read them, for a query and for a stream.

Owns the types of the log's columns in Spark, the splitting of a range into tasks, and reading a range as batches.
`datasource` and `datasource_stream` decide which range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tranlog.errors import LogReplacedError, NotInLogError
from tranlog.ids import Gtid, Seqno
from tranlog.log.reading.reader import LogRange, LogReader
from tranlog.pipeline.datasource.datasource_options import QueryOptions, check_gtid

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_TYPES: Final[dict[str, DataType]] = {
    **dict.fromkeys(("epoch", "seqno", "bytes", "changes"), LongType()),
    **dict.fromkeys(("fragno", "changeno", "fragments"), IntegerType()),
    "last_frag": BooleanType(),
    "commit_time": TimestampType(),
    "metadata": MapType(StringType(), StringType()),
    "tables": ArrayType(StringType()),
    **dict.fromkeys(("payload", "gtid_bytes"), BinaryType()),
}
"""The columns that are no text."""
_MAX_PARTITIONS: Final = 10_000
_MS_MAX: Final = ((1 << 63) - 1) // 1000


@dataclass
class SeqnoRange(InputPartition):
    """What one task reads: seqnos, both ends included; empty where `high` is below `low`.

    `history`: of the log that it was planned on, in hex; empty says none. `last`: the last transaction of all tasks
    together, whose GTID says that nothing before it was rolled back since.
    """

    low: int
    high: int
    history: str = ""
    last: Gtid | None = None


def spark_schema(columns: Iterable[str]) -> StructType:
    """Return these columns as Spark has them."""
    return StructType([StructField(column, _TYPES.get(column, StringType())) for column in columns])


def last_of(found: LogRange, options: QueryOptions) -> Seqno:
    """Return how far the options let a query read."""
    return found.committed_seqno if options.upto == "committed" else found.last_seqno


def cut(reader: LogReader, low: int, high: int, wanted: int | None) -> Iterator[SeqnoRange]:
    """Yield a range for each segment from `low` to `high`, or `wanted` of about the same number of seqnos."""
    if low < 0 or high < low:
        return
    if wanted is None:
        firsts = [entry.first_seqno for entry in reader.index()]
        cuts = sorted({low, *(int(first) for first in firsts if low < first <= high)})
    else:
        number = min(wanted, high - low + 1, _MAX_PARTITIONS)
        cuts = [low + (high - low + 1) * part // number for part in range(number)]
    history, header = reader.history.hex(), reader.header(Seqno(high))
    last = None if header is None else header.gtid
    for start, end in zip(cuts, [*cuts[1:], high + 1], strict=True):
        yield SeqnoRange(start, end - 1, history, last)


def read_range(options: QueryOptions, partition: SeqnoRange) -> Iterator[RecordBatch]:
    """Yield the batches of a range, in the types that Spark expects.

    Raises what a cursor raises; NotInLogError where it was rolled back since; LogReplacedError for a log of another
    history than the range's.
    """
    if partition.high < partition.low:
        return
    import pyarrow
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(spark_schema(options.columns), timezone="UTC")
    # A batch without columns would not say how many rows it has.
    columns = options.columns or ("seqno",)
    committed_only = options.upto == "committed"
    high = Seqno(partition.high)
    with options.open() as reader, reader.cursor(committed_only=committed_only) as cursor:
        found = reader.history.hex()
        if partition.history not in ("", found):
            why = f"its history is {found}, and this query was planned on {partition.history}"
            raise LogReplacedError(path=reader.path, why=why)
        options.catch_up(reader, high)
        if partition.last is not None:
            check_gtid(reader, partition.last, "this query")
        cursor.seek(Seqno(partition.low))
        for batch in cursor.batches(
            unit=options.unit, columns=columns, selection=options.selection, until=high, wait=False
        ):
            if options.columns:
                arrays = [_cast(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
                yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
            else:
                yield batch.select([])
        if cursor.next_seqno <= high:
            gtid = Gtid(reader.range().epoch, high)
            raise NotInLogError(what="this query", gtid=gtid, found=f"ends before seqno {cursor.next_seqno} now")


def _cast(column: Any, kind: Any) -> Any:
    """Return a column in the type that Spark has: a commit time that its microseconds do not reach is null."""
    import pyarrow

    if pyarrow.types.is_timestamp(kind):
        from pyarrow import compute

        column = compute.if_else(compute.less_equal(column.cast(pyarrow.int64()), _MS_MAX), column, None)
    return column.cast(kind)

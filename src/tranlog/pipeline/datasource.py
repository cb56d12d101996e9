"""The log as a table that Spark can query: `spark.read.format("thl").option("path", directory).load()`.

Owns the columns, the options and how a log is cut into Spark's partitions. Reads like any other reader: from any
process, without a lock, never past what is committed unless asked. The hard idea: the range of seqnos is fixed once,
when the query is planned, so that every task and every retry reads the same rows, however the log grows meanwhile.

Options: `path`, the log's directory; `low` and `high`, seqnos, both ends included; `upto`, `committed` (default) or
`visible`; `partitions`, how many tasks read, by default one per segment.

Columns: one row per change, in the log's order inside a partition; a transaction without changes is one row of kind
`noop`. `key`, `before` and `after` are JSON text (`row_text` has the form of each value; `key` is null where the
table has no primary key), `metadata` is a map. `shard_id` and `commit_time` are the transaction's, `fragno`,
`last_frag` and `metadata` the fragment's.

Source: design/pipeline.md, "The log as a Spark source", "Facts about PySpark 4.3, tried".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
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

from tranlog.change import Change, Op, RowChange, Statement
from tranlog.errors import ConfigError, PayloadError
from tranlog.ids import Seqno
from tranlog.log.cursor import StoredTransaction
from tranlog.log.reader import LogReader
from tranlog.payload import decode
from tranlog.row_text import key_text, pairs_text, row_text

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_TYPES: Final[dict[str, DataType]] = {
    "gtid": StringType(),
    "epoch": LongType(),
    "seqno": LongType(),
    "fragno": IntegerType(),
    "last_frag": BooleanType(),
    "source_id": StringType(),
    "event_id": StringType(),
    "shard_id": StringType(),
    "commit_time": TimestampType(),
    "kind": StringType(),
    "schema": StringType(),
    "table": StringType(),
    "op": StringType(),
    "key": StringType(),
    "before": StringType(),
    "after": StringType(),
    "statement": StringType(),
    "metadata": MapType(StringType(), StringType()),
}
COLUMNS: Final = tuple(_TYPES)
_OPTIONS: Final = ("path", "low", "high", "upto", "partitions")
_KINDS: Final = {Op.INSERT: ("insert", "I"), Op.UPDATE: ("update", "U"), Op.DELETE: ("delete", "D")}
_BATCH_ROWS: Final = 2_000
_MAX_PARTITIONS: Final = 10_000


@dataclass
class SeqnoRange(InputPartition):
    """What one task reads: seqnos, both ends included; empty where `high` is below `low`."""

    low: int
    high: int


class ThlDataSource(DataSource):
    """The data source `thl`. PySpark finds it by the module `pyspark_thl`."""

    @classmethod
    def name(cls) -> str:
        """Return the name to give to `format`."""
        return "thl"

    def schema(self) -> StructType:
        """Return all columns; `.schema(...)` with fewer of them is cheaper."""
        return _struct(COLUMNS)

    def reader(self, schema: StructType) -> ThlReader:
        """Return the reader of these columns. Raises ConfigError."""
        return ThlReader(self.options, tuple(schema.fieldNames()))


class ThlReader(DataSourceReader):
    """Reads ranges of one log. It travels pickled from the process that plans to those that read."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        for name in options:
            if name.lower() not in _OPTIONS:
                raise ConfigError(option=name, value=None, why=f"thl has the options {', '.join(_OPTIONS)}")
        for column in columns:
            if column not in COLUMNS:
                raise ConfigError(option="schema", value=column, why=f"thl has the columns {', '.join(COLUMNS)}")
        path = options.get("path")
        if not path:
            raise ConfigError(option="path", value=path, why="the log's directory is needed")
        self.path = path.removeprefix("file:")
        self.columns = columns
        self.low = _number(options, "low", least=0)
        self.high = _number(options, "high", least=0)
        self.wanted_partitions = _number(options, "partitions", least=1)
        self.upto = options.get("upto", "committed")
        if self.upto not in ("committed", "visible"):
            raise ConfigError(option="upto", value=self.upto, why="`committed` or `visible`")

    def partitions(self) -> list[InputPartition]:
        """Cut what the log holds now into ranges. Raises LogMissingError, LogUnreadableError, CorruptRecordError."""
        with LogReader.open(self.path) as reader:
            found = reader.range()
            last = found.committed_seqno if self.upto == "committed" else found.last_seqno
            low = found.first_seqno if self.low is None else max(self.low, found.first_seqno)
            high = last if self.high is None else min(self.high, last)
            if low < 0 or high < low:
                return [SeqnoRange(0, -1)]
            if self.wanted_partitions is None:
                firsts = [entry.first_seqno for entry in reader.index()]
                cuts = sorted({low, *(first for first in firsts if low < first <= high)})
            else:
                number = min(self.wanted_partitions, high - low + 1, _MAX_PARTITIONS)
                cuts = [low + (high - low + 1) * part // number for part in range(number)]
            return [SeqnoRange(start, end - 1) for start, end in zip(cuts, [*cuts[1:], high + 1], strict=True)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """Yield Arrow batches. Raises what a cursor raises."""
        assert isinstance(partition, SeqnoRange)
        if partition.high < partition.low:
            return
        import pyarrow
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(_struct(self.columns), timezone="UTC")
        indexes = [COLUMNS.index(column) for column in self.columns]
        images = bool({"key", "before", "after"} & set(self.columns))
        rows: list[tuple[Any, ...]] = []

        def batch() -> RecordBatch:
            by_column = list(zip(*rows, strict=True))
            arrays = [pyarrow.array(by_column[index], type=schema.field(at).type) for at, index in enumerate(indexes)]
            rows.clear()
            return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

        with LogReader.open(self.path) as reader, reader.cursor(committed_only=self.upto == "committed") as cursor:
            cursor.seek(Seqno(partition.low))
            for _ in range(partition.low, partition.high + 1):
                transaction = cursor.next()
                assert transaction is not None, "the range was committed when the query was planned"
                for row in _rows(transaction, images):
                    rows.append(row)
                    if len(rows) >= _BATCH_ROWS:
                        yield batch()
            if rows:
                yield batch()


def _struct(columns: Iterable[str]) -> StructType:
    return StructType([StructField(column, _TYPES[column]) for column in columns])


def _rows(transaction: StoredTransaction, images: bool) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of one transaction, in the order of COLUMNS."""
    verdict = transaction.header
    commit_time = verdict.tstamp * 1000  # microseconds
    seen = False
    for record in transaction.records():
        header = record.header
        try:
            payload = decode(record.payload)
        except PayloadError as exc:
            raise PayloadError(why=exc.why, seqno=header.seqno) from exc
        start = (
            str(header.gtid),
            header.epoch,
            header.seqno,
            header.fragno,
            header.last_frag,
            header.source_id,
            verdict.event_id,
            verdict.shard_id,
            commit_time,
        )
        metadata = list(pairs_text(payload.metadata).items())
        for change in payload.changes:
            seen = True
            yield (*start, *_change(change, images), metadata)
        if header.last_frag and not seen:
            yield (*start, "noop", None, None, None, None, None, None, None, metadata)


def _change(change: Change, images: bool) -> tuple[str | None, ...]:
    """Return kind, schema, table, op, key, before, after, statement."""
    if isinstance(change, Statement):
        sql = change.sql if isinstance(change.sql, str) else change.sql.decode(errors="replace")
        return ("statement", change.schema, None, None, None, None, None, sql)
    assert isinstance(change, RowChange)
    table, before, after = change.table, change.before, change.after
    kind, op = _KINDS[change.op]
    if not images:
        return (kind, table.schema, table.table, op, None, None, None, None)
    row = after if before is None else before
    assert row is not None
    return (
        kind,
        table.schema,
        table.table,
        op,
        key_text(table, row),
        None if before is None else row_text(table, before),
        None if after is None else row_text(table, after),
        None,
    )


def _number(options: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(option=name, value=text, why="must be a whole number") from None
    if number < least:
        raise ConfigError(option=name, value=number, why=f"must be {least} or more")
    return number

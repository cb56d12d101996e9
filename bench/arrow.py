"""How fast a cursor yields Arrow batches, against pyarrow reading the same rows, all of them, from a Parquet file.

The peer's file holds exactly our batches: every column, snappy, dictionaries where ours have them. Both read on one
thread and are measured in CPU seconds. Parquet is made for reading some columns of many rows and a log for appending
whole transactions: so the rows with few columns have no must, they show what leaving columns out is worth.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
from frame import Bench, Question, at_least, cpu_of, run

from tranlog import Column, Log, LogicalType, LogReader, Op, RowChange, TableMap, pack
from tranlog.log.reading.arrow import Selection, Unit

QUESTION = Question(
    name="arrow",
    text="How many rows of Arrow batches does a cursor yield in a CPU second: one per change, one per transaction, "
    "with all columns and with few?",
    peer="pyarrow reading the same rows and columns from a Parquet file, one thread",
)
MUST = at_least(0.15, stretch=0.4)
FEW = {Unit.CHANGE: ("seqno", "kind", "schema", "table"), Unit.TRANSACTION: ("seqno", "event_id")}
CHANGES = 100_000
OF_EACH = 8
"""Changes in the usual transaction of these programs; with one change, what a transaction costs weighs most."""

_NAMES = (("id", LogicalType.INTEGER), ("customer", LogicalType.INTEGER), ("pieces", LogicalType.INTEGER))
_TEXTS = (("name", LogicalType.TEXT), ("note", LogicalType.TEXT), ("state", LogicalType.TEXT))
TABLES = tuple(
    TableMap(
        schema="shop",
        table=table,
        columns=tuple(Column(name=name, source_type="", logical=logical) for name, logical in (*_NAMES, *_TEXTS)),
        primary_key=(0,),
    )
    for table in ("orders", "items", "people")
)


def write_log(path: Path, *, changes: int, each: int) -> None:
    """Write so many changes of six columns, `each` in a transaction: an insert, two updates, a delete in turn."""
    choose = random.Random(7)

    def row(number: int) -> tuple[object, ...]:
        note = f"a note that is a little longer {choose.randrange(10**9)}"
        state = None if number % 5 == 0 else "open" if number % 3 else "closed"
        return (number, choose.randrange(100_000), number % 50, f"name {number}", note, state)

    with Log.open(path, source_id="bench") as log:
        for first in range(0, changes, each):
            made = []
            for number in range(first, first + each):
                op = (Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE)[number % 4]
                before = None if op is Op.INSERT else row(number)
                after = None if op is Op.DELETE else row(number)
                made.append(RowChange(TABLES[first // each % 3], op, before, after))  # type: ignore[arg-type]
            event_id = f"0-1-{first};binlog.000001:{first * 400}"
            for fragment in pack(made, source_id="db1", event_id=event_id, tstamp=1_800_000_000_000 + first):
                log.append(fragment)
        log.commit()


def batches_of(path: Path, unit: Unit, columns: Sequence[str] | None) -> list[pyarrow.RecordBatch]:
    """Read the log to its end."""
    with LogReader.open(path) as reader, reader.cursor() as cursor:
        return list(cursor.batches(unit=unit, columns=columns, wait=False))


def measure(bench: Bench) -> None:
    """Compare changes and transactions, of the usual size and of one change, all columns and few."""
    with tempfile.TemporaryDirectory() as here:
        for each in (OF_EACH, 1):
            log = Path(here, f"log{each}")
            write_log(log, changes=CHANGES, each=each)
            for unit in Unit:
                for columns in (None, FEW[unit]):
                    compare(bench, log, each, unit, columns)
        skipping(bench, Path(here, "log1"))


def compare(bench: Bench, log: Path, each: int, unit: Unit, columns: Sequence[str] | None) -> None:
    """Add the row of one unit with these columns."""
    table = pyarrow.Table.from_batches(batches_of(log, unit, columns))
    file = log.with_suffix(".parquet")
    pyarrow.parquet.write_table(table, file)
    rows = table.num_rows

    def rate(work: Callable[[], object]) -> float:
        return rows / cpu_of(work)

    made = f"{each} change{'s' * (each > 1)} a transaction"
    bench.compare(
        f"one row per {unit}, {made}, {len(columns or table.column_names)} columns",
        ours=lambda: rate(lambda: batches_of(log, unit, columns)),
        peer=lambda: rate(lambda: pyarrow.parquet.read_table(file, use_threads=False)),
        unit="rows/s",
        must=MUST if columns is None and each == OF_EACH else None,
    )


def skipping(bench: Bench, log: Path) -> None:
    """Add the row of a selection that wants nothing: what a header costs."""

    def ours() -> float:
        nothing = Selection(tables=frozenset({("shop", "nowhere")}))
        with LogReader.open(log) as reader, reader.cursor() as cursor:
            return CHANGES / cpu_of(lambda: list(cursor.batches(selection=nothing, wait=False)))

    figures = bench.by_turns({"ours": ours})
    bench.add("transactions passed over by their header", ours=figures["ours"], unit="transactions/s")


if __name__ == "__main__":
    sys.exit(run(QUESTION, measure))

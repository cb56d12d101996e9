"""The examples over a log in Spark."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from fix_pipeline import items
from tranlog.change import Change, Op, RowChange
from tranlog.log.writing.log import Log
from tranlog.source.packer import pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ITEMS, OTHERS = items("shop"), items("shop", "others")


@pytest.fixture
def few(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with two tasks for what is grouped, as the examples have it."""
    before = spark.conf.get("spark.sql.shuffle.partitions") or "200"
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield spark
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Seqno 1 to 5, a minute apart: inserts, an update, a changed key whose old one is used again, a delete."""
    transactions: list[list[Change]] = [
        [RowChange(ITEMS, Op.INSERT, None, (number, 0, f"item {number}")) for number in (1, 2, 3)],
        [
            RowChange(ITEMS, Op.UPDATE, (1, 0, "item 1"), (1, 5, "item 1")),
            RowChange(OTHERS, Op.INSERT, None, (1, 1, "")),
        ],
        [RowChange(ITEMS, Op.UPDATE, (2, 0, "item 2"), (20, 0, "moved"))],
        [
            RowChange(ITEMS, Op.INSERT, None, (2, 9, "new")),
            RowChange(ITEMS, Op.UPDATE, (2, 9, "new"), (2, 10, "new")),
            RowChange(ITEMS, Op.DELETE, (3, 0, "item 3"), None),
        ],
        [RowChange(ITEMS, Op.DELETE, (1, 5, "item 1"), None)],
    ]
    path = str(tmp_path / "log")
    with Log.open(path, source_id="shop") as log:
        for number, changes in enumerate(transactions):
            tstamp = 1_700_000_040_000 + 60_000 * number
            log.transact(pack(changes, source_id="shop", event_id=f"event {number + 1}", tstamp=tstamp), sync=False)
    return path


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    sys.modules.pop(name, None)
    return __import__(name)


def test_a_table_as_of_a_gtid(few: SparkSession, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table_as_of = example("table_as_of", monkeypatch).table_as_of
    for gtid, wanted in (
        ("GTID(1, 1)", {(1, 0), (2, 0), (3, 0)}),
        ("GTID(1, 3)", {(1, 5), (20, 0), (3, 0)}),
        ("GTID(1, 5)", {(20, 0), (2, 10)}),
    ):
        rows = [json.loads(row["row"]) for row in table_as_of(few, log, "shop", "items", gtid).collect()]
        assert {(row["id"], row["n"]) for row in rows} == wanted and len(rows) == len(wanted)


def test_an_audit_query(few: SparkSession, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = example("audit_query", monkeypatch).audit(few, log, "shop.items", "id", "2").collect()
    assert [(row["gtid"], row["kind"], row["event_id"]) for row in rows] == [
        ("GTID(1, 1)", "insert", "event 1"),
        ("GTID(1, 3)", "update", "event 3"),
        ("GTID(1, 4)", "insert", "event 4"),
        ("GTID(1, 4)", "update", "event 4"),
    ]
    assert json.loads(rows[3]["after"]) == {"id": 2, "n": 10, "note": "new"}


def test_changes_per_minute(few: SparkSession, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = example("changes_per_minute", monkeypatch).changes_per_minute(few, log)
    query = counts.writeStream.outputMode("complete").format("memory").queryName("counts").trigger(availableNow=True)
    query.start().awaitTermination(100)
    found = few.sql("SELECT date_format(minute, 'mm') AS minute, table, op, changes FROM counts").collect()
    minutes = sorted({row["minute"] for row in found})
    assert len(minutes) == 5 and int(minutes[-1]) - int(minutes[0]) == 4
    assert Counter({(row["table"], row["op"]): row["changes"] for row in found if row["minute"] == minutes[3]}) == {
        ("items", "I"): 1,
        ("items", "U"): 1,
        ("items", "D"): 1,
    }
    assert sum(row["changes"] for row in found) == 10

"""design/pipeline.md, "The log as a Spark source": found by name, one row per change, never past committed."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fix_pipeline import BY_SCHEMA, Workload, items, write_log
from tranlog.change import Change, Op, RowChange, Statement, TableMap
from tranlog.errors import ConfigError
from tranlog.log.log import Log
from tranlog.pipeline.datasource import COLUMNS, SeqnoRange, ThlReader
from tranlog.source.packer import TransactionPacker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return spark.read.format("thl").options(**options).load(str(path))  # type: ignore[arg-type]


@pytest.mark.spark
def test_anybody_can_count_what_the_log_holds(tmp_path: Path, spark: SparkSession) -> None:
    workload = Workload(seed=5, large=0.01)
    last = write_log(tmp_path / "log", workload, 400, segment_bytes=20_000)
    rows = load(spark, tmp_path / "log")
    assert tuple(rows.columns) == COLUMNS
    assert rows.rdd.getNumPartitions() > 2, "one per segment"
    counted = {row["kind"]: row["count"] for row in rows.groupBy("kind").count().collect()}
    wanted = Counter(op.lower() for (_, _, op), times in workload.audit.items() for _ in range(times))
    assert {kind: counted[kind] for kind in wanted} == wanted
    assert rows.select("seqno").distinct().count() == last + 1
    keys = rows.selectExpr("schema", "get_json_object(key, '$.id') AS id", "kind").where("kind <> 'noop'").collect()
    assert Counter((f"{row['schema']}.items", int(row["id"]), row["kind"].upper()) for row in keys) == workload.audit
    large = rows.groupBy("seqno").agg({"fragno": "max"}).where("max(fragno) > 0").count()
    assert large > 0, "transactions in several fragments are among them"


@pytest.mark.spark
def test_each_column(tmp_path: Path, spark: SparkSession) -> None:
    north = items("north")
    keyless = TableMap(schema="north", table="plain", columns=north.columns)
    packer = TransactionPacker(source_id="shop", rule=BY_SCHEMA)
    with Log.open(str(tmp_path / "log"), source_id="shop") as log:
        changes: list[Change] = [
            RowChange(north, Op.INSERT, None, (1, 2, "x")),
            RowChange(north, Op.UPDATE, (1, 2, "x"), (1, 3, None)),
            RowChange(keyless, Op.DELETE, (1, 3, "y"), None),
            Statement(schema="north", sql="TRUNCATE north", ddl=True),
        ]
        for change in changes:
            packer.add(change, event_id="e1", tstamp=0)
        log.append(packer.finish(event_id="e1", tstamp=1_700_000_000_123, metadata=(("dbms_type", "mysql"),)))
        log.commit()
    noop, *rows = [row.asDict() for row in load(spark, tmp_path / "log").orderBy("seqno").collect()]
    assert noop["kind"] == "noop" and "noop" in noop["metadata"] and noop["op"] is None
    # Python's own zone is no matter: a timestamp is a moment.
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert {row.pop("commit_time").astimezone(UTC) for row in rows} == {moment}
    same = {
        "gtid": "GTID(1, 1)",
        "epoch": 1,
        "seqno": 1,
        "fragno": 0,
        "last_frag": True,
        "source_id": "shop",
        "event_id": "e1",
        "shard_id": "#UNKNOWN",
        "schema": "north",
        "metadata": {"dbms_type": "mysql"},
    }
    before, after = '{"id":1,"n":2,"note":"x"}', '{"id":1,"n":3,"note":null}'
    nothing = dict.fromkeys(("table", "op", "key", "before", "after", "statement"))
    assert rows == [
        same | nothing | {"kind": "insert", "table": "items", "op": "I", "key": '{"id":1}', "after": before},
        same
        | nothing
        | {"kind": "update", "table": "items", "op": "U", "key": '{"id":1}', "before": before, "after": after},
        same | nothing | {"kind": "delete", "table": "plain", "op": "D", "before": '{"id":1,"n":3,"note":"y"}'},
        same | nothing | {"kind": "statement", "statement": "TRUNCATE north"},
    ]
    assert json.loads(rows[0]["after"]) == {"id": 1, "n": 2, "note": "x"}


@pytest.mark.spark
def test_ranges_and_what_is_not_committed(tmp_path: Path, spark: SparkSession) -> None:
    workload = Workload(seed=6)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        workload.write(log, 50)
        log.commit(sync=True)
        synced = log.last_seqno
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
        workload.append(log, packer, [workload.one_change(items("north"))])
        log.commit(sync=False)

        def seqnos(**options: object) -> list[int]:
            read = load(spark, tmp_path / "log", **options).select("seqno").distinct().orderBy("seqno")
            return [row["seqno"] for row in read.collect()]

        assert seqnos() == list(range(synced + 1)), "never past committed"
        assert seqnos(upto="visible") == list(range(synced + 2))
        assert seqnos(low=10, high=12) == [10, 11, 12]
        assert seqnos(low=synced + 1) == []
        assert seqnos(partitions=7) == list(range(synced + 1))
        narrow = spark.read.format("thl").schema("seqno bigint, kind string").load(str(tmp_path / "log"))
        assert narrow.columns == ["seqno", "kind"] and narrow.count() == load(spark, tmp_path / "log").count()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "nowhere"}, "no log at"),
        ({"low": "x"}, "must be a whole number"),
        ({"upto": "tomorrow"}, "`committed` or `visible`"),
        ({"offset": 3}, "thl has the options path, low, high"),
    ],
)
def test_what_cannot_be_read_says_so(tmp_path: Path, spark: SparkSession, options: dict, says: str) -> None:
    write_log(tmp_path / "log", Workload(seed=7), 5)
    path = tmp_path / options.pop("path", "log")
    with pytest.raises(Exception, match=re.escape(says)):
        load(spark, path, **options).count()


def ranges(path: Path, **options: object) -> list[tuple[int, int]]:
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    found = ThlReader(given, COLUMNS).partitions()
    return [(one.low, one.high) for one in found if isinstance(one, SeqnoRange)]


def test_ranges_cover_the_log_once(tmp_path: Path) -> None:
    last = write_log(tmp_path / "log", Workload(seed=8), 300, segment_bytes=10_000)
    for options in ({}, {"partitions": 1}, {"partitions": 7}, {"partitions": 10_000}, {"low": 33, "high": 205}):
        found = ranges(tmp_path / "log", **options)
        low, high = options.get("low", 0), options.get("high", last)
        assert [seqno for start, end in found for seqno in range(start, end + 1)] == list(range(low, high + 1))
    assert len(ranges(tmp_path / "log")) > 3
    assert ranges(tmp_path / "log", partitions=3, high=1) == [(0, 0), (1, 1)]
    assert ranges(tmp_path / "log", low=last + 1) == [(0, -1)]


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="path"):
        ThlReader({}, COLUMNS)
    with pytest.raises(ConfigError, match="thl has the columns"):
        ThlReader({"path": "x"}, ("gtid", "nothing"))

"""Found by name, one row per change, never past committed."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fix_columns import change_rows, transaction_rows
from fix_pipeline import BY_SCHEMA, Workload, items, write_log
from tranlog.change import Change, Op, RowChange, Statement, TableMap
from tranlog.errors import ConfigError, PurgedError
from tranlog.ids import Seqno
from tranlog.log.reading.arrow import CHANGE_COLUMNS, TRANSACTION_COLUMNS
from tranlog.log.writing.log import Log, LogReader
from tranlog.pipeline.datasource.datasource import ThlReader
from tranlog.pipeline.datasource.datasource_options import parse_options
from tranlog.pipeline.datasource.datasource_ranges import SeqnoRange
from tranlog.source.packer import TransactionPacker, pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return spark.read.format("thl").options(**options).load(str(path))  # type: ignore[arg-type]


@pytest.mark.spark
def test_anybody_can_count_what_the_log_holds(tmp_path: Path, spark: SparkSession) -> None:
    workload = Workload(seed=5, large=0.01)
    last = write_log(tmp_path / "log", workload, 400, segment_bytes=20_000)
    rows = load(spark, tmp_path / "log")
    assert tuple(rows.columns) == CHANGE_COLUMNS
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
        hashed = f"{log.h(Seqno(1)):016x}"
    noop, *rows = [row.asDict() for row in load(spark, tmp_path / "log").orderBy("seqno", "changeno").collect()]
    assert [row.pop("changeno") for row in rows] == [0, 1, 2, 3]
    assert noop["kind"] == "noop" and "noop" in noop["metadata"] and noop["op"] is None
    # Python's own zone is no matter: a timestamp is a moment.
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    assert {row.pop("commit_time").astimezone(UTC) for row in rows} == {moment}
    same = {
        "gtid": "GTID(1, 1)",
        "epoch": 1,
        "seqno": 1,
        "h": hashed,
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


def test_a_commit_time_that_spark_has_no_number_for_is_null(tmp_path: Path) -> None:
    """A program that gives nanoseconds for milliseconds leaves a log whose other columns and rows can be read."""
    path, latest = tmp_path / "log", (2**63 - 1) // 1000
    with Log.open(str(path), source_id="shop") as log:
        for tstamp in (1_700_000_000_000_000_000, latest, latest + 1, 0):
            statement = Statement(schema="north", sql="TRUNCATE north", ddl=True)
            log.transact(pack([statement], source_id="shop", event_id=str(tstamp), tstamp=tstamp))
    reader = ThlReader(parse_options({"path": str(path), "startSeqno": "1"}))
    times: list[int | None] = []
    for one in reader.partitions():
        for batch in reader.read(one):
            times += batch.column("commit_time").cast("int64").to_pylist()
    assert times == [None, latest * 1000, None, 0]


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
        assert seqnos(startSeqno=10, endSeqno=12) == [10, 11, 12]
        assert seqnos(startSeqno=synced + 1) == []
        assert seqnos(partitions=7) == list(range(synced + 1))
        narrow = spark.read.format("thl").schema("seqno bigint, kind string").load(str(tmp_path / "log"))
        assert narrow.columns == ["seqno", "kind"] and narrow.count() == load(spark, tmp_path / "log").count()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "nowhere"}, "no log at"),
        ({"startSeqno": "x"}, "must be a whole number"),
        ({"upto": "tomorrow"}, "one of `committed`, `visible`"),
        ({"offset": 3}, "thl has the options path, startSeqno"),
        ({"columns": "kind,seqno,kind"}, "kind stands there twice"),
    ],
)
def test_what_cannot_be_read_says_so(tmp_path: Path, spark: SparkSession, options: dict, says: str) -> None:
    write_log(tmp_path / "log", Workload(seed=7), 5)
    path = tmp_path / options.pop("path", "log")
    with pytest.raises(Exception, match=re.escape(says)):
        load(spark, path, **options).count()


@pytest.mark.spark
def test_everything_that_can_be_chosen(tmp_path: Path, spark: SparkSession) -> None:
    """Start and end by GTID, time, event id; shards, schemas, tables; units; columns."""
    path = tmp_path / "log"
    last = write_log(path, Workload(seed=15, large=0.02), 200, segment_bytes=20_000)
    with LogReader.open(path) as reader:
        everything = list(change_rows(reader))
        whole = list(transaction_rows(reader))

    def got(**options: object) -> list[tuple[object, ...]]:
        read = load(spark, path, columns="seqno,fragno,changeno,schema,after", **options)
        return sorted((tuple(row) for row in read.collect()), key=lambda row: row[:3])

    def wanted(**chosen: object) -> list[tuple[object, ...]]:
        low, high = chosen.pop("low", 0), chosen.pop("high", last)
        kept = [row for row in everything if low <= row["seqno"] <= high]
        kept = [row for row in kept if all(row[name] == value for name, value in chosen.items())]
        return [tuple(row[name] for name in ("seqno", "fragno", "changeno", "schema", "after")) for row in kept]

    assert got(startGtid="GTID(1, 20)", endGtid="GTID(1, 90)") == wanted(low=20, high=90)
    assert got(startTime="2023-11-14 22:13:20.030", endTime=str(1_700_000_000_060)) == wanted(low=30, high=60)
    assert got(startEvent="event 7", endEvent="event 9") == wanted(low=7, high=9)
    assert got(shards="north") == wanted(shard_id="north")
    assert got(tables="south.items") == got(schemas="south") == wanted(schema="south")
    transactions = load(spark, path, unit="transaction").orderBy("seqno")
    assert tuple(transactions.columns) == TRANSACTION_COLUMNS
    assert [row["changes"] for row in transactions.collect()] == [row["changes"] for row in whole]
    (first,) = transactions.where("seqno = 5").collect()
    assert (first["tables"], bytes(first["payload"])) == (whole[5]["tables"], whole[5]["payload"])
    for options, says in (
        ({"startGtid": "GTID(7, 20)"}, "has GTID(1, 20) there"),
        ({"endGtid": f"GTID(1, {last + 9})"}, f"ends at seqno {last}"),
        ({"startEvent": "event x"}, "no such event id"),
    ):
        with pytest.raises(Exception, match=re.escape(says)):
            got(**options)
    for schema, says in (("seqno int", "seqno is bigint here"), ("seqno bigint NOT NULL", "leave NOT NULL out")):
        with pytest.raises(Exception, match=says):
            spark.read.format("thl").schema(schema).load(str(path)).count()
    spark.sql(f"CREATE TEMPORARY VIEW south USING thl OPTIONS (path '{path}', schemas 'south')")
    assert spark.sql("SELECT * FROM south").count() == len(wanted(schema="south"))
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE south USING thl OPTIONS (path '{path}')")


@pytest.mark.spark
def test_each_use_of_a_dataframe_has_its_own_filters(tmp_path: Path, spark: SparkSession) -> None:
    """Spark 4.3 would keep those that a reader takes for the next use, and one for both sides of a join or a union."""
    last = write_log(tmp_path / "log", Workload(seed=16), 40)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        read = load(spark, tmp_path / "log", unit="transaction")
        early, late = read.where("seqno < 5"), read.where("seqno > 30")
        assert [one.count() for one in (early, read, late, early.union(late))] == [5, last + 1, last - 30, last - 25]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def ranges(path: Path, **options: object) -> list[tuple[int, int]]:
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    found = ThlReader(parse_options(given)).partitions()
    return [(one.low, one.high) for one in found if isinstance(one, SeqnoRange)]


def test_ranges_cover_the_log_once(tmp_path: Path) -> None:
    last = write_log(tmp_path / "log", Workload(seed=8), 300, segment_bytes=10_000)
    for options in (
        {},
        {"partitions": 1},
        {"partitions": 7},
        {"partitions": 10_000},
        {"startSeqno": 33, "endSeqno": 205},
    ):
        found = ranges(tmp_path / "log", **options)
        low, high = options.get("startSeqno", 0), options.get("endSeqno", last)
        assert [seqno for start, end in found for seqno in range(start, end + 1)] == list(range(low, high + 1))
    assert len(ranges(tmp_path / "log")) > 3
    assert ranges(tmp_path / "log", partitions=3, endSeqno=1) == [(0, 0), (1, 1)]
    assert ranges(tmp_path / "log", startSeqno=last + 1) == [(0, -1)], "nothing has come since"
    with pytest.raises(ConfigError, match=f"startSeqno = {last + 2}: the log ends at seqno {last}"):
        ranges(tmp_path / "log", startSeqno=last + 2)


def test_a_start_that_is_purged_is_refused_however_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    last = write_log(path, Workload(seed=9), 300, segment_bytes=10_000)
    with Log.open(str(path), source_id="test") as log:
        assert log.purge(below=Seqno(100))
        first = log.first_seqno
    for option, start in (("startSeqno", first - 1), ("startGtid", f"GTID(1, {first - 1})")):
        with pytest.raises(PurgedError, match=f"seqno {first - 1} is purged"):
            ranges(path, **{option: start})
    for options in ({}, {"startSeqno": first}, {"startTime": "2000-01-01"}):
        assert (ranges(path, **options)[0][0], ranges(path, **options)[-1][1]) == (first, last + 1)


def test_unknown_options_are_refused() -> None:
    for given, says in (
        ({}, "directory is needed"),
        ({"path": "x", "columns": "gtid,nothing"}, "one row per change has the columns gtid"),
        ({"path": "x", "columns": "payload"}, "one row per change has the columns gtid"),
        ({"path": "x", "unit": "row"}, "one of `change`, `transaction`"),
        ({"path": "x", "startGtid": "1-15"}, "not a GTID"),
        ({"path": "x", "startGtid": "GTID(1, 1)", "startTime": "2024-01-01"}, "says already where to start"),
        ({"path": "x", "endTime": "tomorrow"}, "not a time"),
        ({"path": "x", "tables": "items"}, "schema.table"),
        ({"path": "x", "shards": '["a", 1]'}, "list of texts"),
        ({"path": "x", "shards": "a,,b"}, "empty name"),
        ({"path": "x", "maxBytesPerTrigger": "0"}, "1 or more"),
        ({"path": "x", "pushFilters": "true"}, "thl has the options path"),
        ({"owner": "me", "location": "file:x", "option.unit": "change"}, "CREATE TEMPORARY VIEW"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_options(given)
    read = parse_options({"PATH": "file:x", "TABLES": '["a.b", "a.c,d"]', "upto": "VISIBLE"})
    assert read.path == "x" and read.upto == "visible"
    assert read.selection.tables == {("a", "b"), ("a", "c,d")}
    read = parse_options({"path": "x", "tables": "a.b.c"})
    assert read.selection.tables == {("a", "b.c"), ("a.b", "c")}, "a schema's name may hold a dot, and so may a table's"

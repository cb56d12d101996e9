"""The log as a stream."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from fix_columns import change_rows
from fix_pipeline import BY_SCHEMA, Workload, items, write_log
from tranlog.change import Op, RowChange
from tranlog.errors import ConfigError, LogReplacedError, NotInLogError, PurgedError
from tranlog.ids import Epoch, Gtid, Seqno
from tranlog.log.files.holds import read_hold, read_holds
from tranlog.log.writing.log import Log, LogOptions, LogReader
from tranlog.pipeline.datasource.datasource import ThlDataSource, ThlReader
from tranlog.pipeline.datasource.datasource_options import parse_options
from tranlog.pipeline.datasource.datasource_ranges import SeqnoRange
from tranlog.pipeline.datasource.datasource_stream import ThlStreamReader, seqno_of
from tranlog.source.packer import TransactionPacker, pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

ALL = ReadAllAvailable()


def open_stream(path: Path, **options: object) -> ThlStreamReader:
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    return ThlStreamReader(parse_options(given))


def at(seqno: int, epoch: int = 1) -> dict[str, Any]:
    return {"gtid": f"GTID({epoch}, {seqno})"}


def told(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset without the history that it is of."""
    return {name: value for name, value in offset.items() if name != "history"}


# --- offsets, without Spark ------------------------------------------------------------------------------


def test_offsets_are_gtids_and_batches_end_at_whole_transactions(tmp_path: Path) -> None:
    last = write_log(tmp_path / "log", Workload(seed=1, large=0.1), 100, segment_bytes=20_000)
    stream = open_stream(tmp_path / "log", maxTransactionsPerTrigger=30)
    start = stream.initialOffset()
    assert start == {"before": 0} and seqno_of(start) == -1
    assert stream.getDefaultReadLimit() == ReadMaxRows(30)
    ends = [start]
    while (end := stream.latestOffset(ends[-1], ReadMaxRows(30))) != ends[-1]:
        ends.append(end)
    assert [told(end) for end in ends[1:]] == [at(29), at(59), at(89), at(last)]
    assert told(stream.latestOffset(start, ALL)) == at(last), "Trigger.Once reads all, whatever the options say"
    found = [one for begin, end in pairwise(ends) for one in stream.partitions(begin, end)]
    ranges = [(one.low, one.high) for one in found if isinstance(one, SeqnoRange)]
    assert [seqno for low, high in ranges for seqno in range(low, high + 1)] == list(range(last + 1))
    assert len(ranges) > 4, "cut at segments too"
    assert stream.partitions(at(5), at(5)) == []
    stream.stop()


def test_a_stream_with_a_hold_is_not_overtaken(tmp_path: Path) -> None:
    """thl-internals: the cleaner may not delete what is being fed."""
    path = tmp_path / "log"
    last = write_log(path, Workload(seed=1, large=0.1), 100, segment_bytes=20_000)
    stream = open_stream(path, hold="audit")
    stream.initialOffset()
    with Log.open(str(path), source_id="test") as log:
        assert log.purge(below=Seqno(90)) == [] and [one.name for one in read_holds(str(path))] == ["audit"]
        stream.commit(at(60))
        assert log.purge(below=Seqno(90)) and log.first_seqno <= 60
        assert told(stream.latestOffset(at(60), ALL)) == at(last + 1, 2), "what it needs to go on is there"
    stream.stop()
    found = read_hold(str(path), "audit")
    assert found is not None and (found.restart_seqno, found.applied_seqno) == (60, None)
    for option, value in (("hold", "audit"), ("maxTransactionsPerTrigger", "5"), ("maxBytesPerTrigger", "5")):
        source = ThlDataSource({"path": str(path), option: value})
        with pytest.raises(ConfigError, match=f"{option} = .*it is a stream's"):
            source.reader(source.schema())


def test_bytes_bound_a_batch_that_has_one_transaction_at_least(tmp_path: Path) -> None:
    write_log(tmp_path / "log", Workload(seed=1, large=0.1), 100)
    stream = open_stream(tmp_path / "log", maxBytesPerTrigger=3_000)
    assert stream.getDefaultReadLimit() == ReadMaxBytes(3_000)
    with LogReader.open(tmp_path / "log") as reader, reader.cursor() as cursor:
        sizes = [sum(one.header.record_length for one in each.records()) for each in cursor.scan(wait=False)]
    assert max(sizes) > 3_000
    start = stream.initialOffset()
    batches = []
    while (end := stream.latestOffset(start, ReadMaxBytes(3_000))) != start:
        batches.append(sizes[seqno_of(start) + 1 : seqno_of(end) + 1])
        start = end
    assert sum(map(len, batches)) == len(sizes)
    assert all(sum(batch) <= 3_000 or len(batch) == 1 for batch in batches)
    assert all(sum(one) + two[0] > 3_000 for one, two in pairwise(batches)), "and each is full"
    stream.stop()


def test_bytes_of_a_spilled_transaction_count(tmp_path: Path) -> None:
    """Its record in the log is a reference, however large it is."""
    with Log.open(str(tmp_path / "log"), source_id="test", options=LogOptions(spill_above=1_000)) as log:
        row = RowChange(items("north"), Op.INSERT, None, (1, 2, "x" * 2_000))
        for number in range(4):
            log.transact(pack([row], source_id="test", event_id=str(number), tstamp=0))
    stream = open_stream(tmp_path / "log", maxBytesPerTrigger=5_000)
    start, ends = stream.initialOffset(), []
    while (end := stream.latestOffset(start, ReadMaxBytes(5_000))) != start:
        ends.append(seqno_of(end))
        start = end
    assert ends == [2, 4]
    stream.stop()


def test_never_past_committed_and_the_lag(tmp_path: Path) -> None:
    workload = Workload(seed=6)
    with Log.open(str(tmp_path / "log"), source_id="test") as log:
        workload.write(log, 10)
        packer = TransactionPacker(source_id="test", rule=BY_SCHEMA)
        workload.append(log, packer, [workload.one_change(items("north"))])
        log.commit(sync=False)
        stream = open_stream(tmp_path / "log", maxTransactionsPerTrigger=4)
        assert told(stream.latestOffset(at(9), ALL)) == at(10)
        stream.prepareForTriggerAvailableNow()
        log.commit()
        assert told(stream.latestOffset(at(2), ReadMaxRows(4))) == at(6)
        assert stream.reportLatestOffset() == {**at(11), "lag_seqnos": 5, "lag_ms": 5}
        end = told(stream.latestOffset(at(6), ALL))
        assert end == at(10), "what came after the start of an AvailableNow is not its own"
        assert told(stream.latestOffset(at(10), ALL)) == at(10)
        assert told(open_stream(tmp_path / "log", upto="visible").latestOffset(at(10), ALL)) == at(11)
        stream.stop()


def test_where_a_stream_begins_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_log(path, Workload(seed=6), 50)
    for options, start, end in (
        ({"startSeqno": 20, "endSeqno": 30}, at(19), at(30)),
        ({"startGtid": "GTID(1, 20)", "endGtid": "GTID(1, 21)"}, at(19), at(21)),
        ({"startTime": 1_700_000_000_010, "endTime": 1_700_000_000_020}, at(9), at(20)),
        ({"startTime": "2099-01-01"}, at(50), at(50)),
        ({"startEvent": "event 3"}, at(2), at(50)),
    ):
        stream = open_stream(path, **options)
        assert told(stream.initialOffset()) == start
        assert told(stream.latestOffset(start, ALL)) == end
        stream.stop()


def test_another_history_and_a_purged_one_are_refused(tmp_path: Path) -> None:
    """A checkpoint that this log does not continue: one clear error, nothing skipped."""
    path = tmp_path / "log"
    write_log(path, Workload(seed=6), 20)
    stream = open_stream(path)
    for offset, says in ((at(5, 2), r"has GTID\(1, 5\) there"), (at(99), "ends at seqno 20")):
        with pytest.raises(NotInLogError, match=says):
            stream.latestOffset(offset, ALL)
    with pytest.raises(NotInLogError, match="this stream's checkpoint"):
        stream.partitions(at(5), at(9, 3))
    with Log.open(str(path), source_id="test") as log:
        log.rollback(Gtid(Epoch(1), Seqno(8)))
    with pytest.raises(NotInLogError):
        stream.latestOffset(at(12), ALL)
    assert seqno_of(stream.latestOffset(at(8), ALL)) > 8
    stream.stop()
    options = LogOptions(segment_bytes=1_000)
    with Log.open(str(path), source_id="test", options=options) as log:
        Workload(seed=7).write(log, 60)
        log.purge(below=Seqno(40))
        first = log.first_seqno
    assert first > 9
    stream = open_stream(path)
    with pytest.raises(PurgedError):
        stream.latestOffset(at(3), ALL)
    assert stream.initialOffset() == {"before": first}
    with pytest.raises(PurgedError):
        open_stream(path, startSeqno=2).initialOffset()
    stream.stop()


def test_a_log_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    """Its first GTIDs are those of the log before it: a checkpoint would pass over them, a query would read both."""
    path, workload = tmp_path / "log", Workload(seed=6)
    write_log(path, workload, 20)
    stream, query = open_stream(path), ThlReader(parse_options({"path": str(path)}))
    done = stream.latestOffset(stream.initialOffset(), ALL)
    (planned,) = query.partitions()
    assert sum(batch.num_rows for batch in query.read(planned)) > 20
    stream.stop()
    shutil.copytree(path, tmp_path / "copy")
    copied = open_stream(tmp_path / "copy")
    assert copied.latestOffset(done, ALL) == done, "a copy goes on"
    copied.stop()
    shutil.rmtree(path)
    write_log(path, Workload(seed=7), 30)
    stream = open_stream(path)
    with pytest.raises(NotInLogError, match=r"is at GTID\(1, 20\), but this log has the history .*new checkpoint"):
        stream.latestOffset(done, ALL)
    with pytest.raises(NotInLogError, match="has the history"):
        stream.partitions({"before": 0}, done)
    stream.stop()
    with pytest.raises(LogReplacedError, match="this query was planned on"):
        list(query.read(planned))


def test_a_query_that_was_planned_before_a_rollback_ends(tmp_path: Path) -> None:
    """Tasks would read some rows of the history that was rolled back, and some of what came in its place."""
    path, workload = tmp_path / "log", Workload(seed=6)
    write_log(path, workload, 20)
    query = ThlReader(parse_options({"path": str(path), "partitions": "2"}))
    planned = query.partitions()
    with Log.open(path, source_id="shop") as log:
        found = log.header(Seqno(15))
        assert found is not None
        log.rollback(found.gtid)
    write_log(path, workload, 30)
    for part in planned:
        with pytest.raises(NotInLogError, match=r"this query is at GTID\(1, 20\), but this log has GTID\([3-9], 20\)"):
            list(query.read(part))


# --- in Spark --------------------------------------------------------------------------------------------


COLUMNS = ("seqno", "fragno", "changeno", "kind", "after")


def wanted_rows(path: Path) -> list[tuple[Any, ...]]:
    with LogReader.open(path) as reader:
        return sorted(
            (row["seqno"], row["fragno"], row["changeno"], row["kind"], row["after"]) for row in change_rows(reader)
        )


def written_rows(spark: SparkSession, target: Path) -> list[tuple[Any, ...]]:
    found = spark.read.parquet(str(target)).select(*COLUMNS).collect()
    return sorted(tuple(row) for row in found)


def run_stream(spark: SparkSession, log: Path, target: Path, **options: object) -> StreamingQuery:
    given: dict[str, Any] = {"maxTransactionsPerTrigger": 40, **options}
    query = (
        spark.readStream.format("thl")
        .options(**given)
        .load(str(log))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(target.with_suffix(".checkpoint")))
        .trigger(availableNow=True)
        .start(str(target))
    )
    query.awaitTermination(110)
    assert not query.isActive
    return query


@pytest.mark.spark
def test_a_stream_in_spark(tmp_path: Path, spark: SparkSession) -> None:
    """AvailableNow ends; its batches are bounded; the progress tells GTIDs and lag; a lost commit is made up for."""
    log, target = tmp_path / "log", tmp_path / "rows"
    workload = Workload(seed=9, large=0.05)
    last = write_log(log, workload, 100)
    query = run_stream(spark, log, target)
    assert written_rows(spark, target) == wanted_rows(log)
    progress = [one["sources"][0] for one in query.recentProgress if one["numInputRows"]]
    assert [told(json_of(one["endOffset"])) for one in progress] == [at(39), at(79), at(last)]
    assert json_of(progress[0]["latestOffset"]) == {**at(last), "lag_seqnos": last - 39, "lag_ms": last - 39}

    # The last micro-batch is run again, with the range that Spark wrote down: the sink knows it has it.
    commits = sorted((tmp_path / "rows.checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    for name in (commits[-1].name, f".{commits[-1].name}.crc"):
        (commits[-1].parent / name).unlink()
    with Log.open(str(log), source_id="test") as writer:
        workload.write(writer, 30)
    run_stream(spark, log, target)
    assert written_rows(spark, target) == wanted_rows(log)


def json_of(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset


@pytest.mark.spark
def test_a_stream_that_waits_is_stopped(tmp_path: Path, spark: SparkSession) -> None:
    """Clean stop: what comes while it runs is taken, `stop` ends it, and nothing is left half done."""
    log, target = tmp_path / "log", tmp_path / "rows"
    workload = Workload(seed=10)
    write_log(log, workload, 10)
    rows = spark.readStream.format("thl").option("columns", "seqno").load(str(log))
    query = rows.writeStream.format("memory").queryName("waits").trigger(processingTime="100 milliseconds").start()
    try:
        seen = spark.table("waits")
        until(lambda: seen.count() > 0)
        with Log.open(str(log), source_id="test") as writer:
            workload.write(writer, 10)
            last = writer.last_seqno
        until(lambda: seen.where(f"seqno = {last}").count() > 0)
    finally:
        query.stop()
    assert not query.isActive and query.exception() is None
    assert sorted({row["seqno"] for row in seen.collect()}) == list(range(last + 1))
    assert not target.exists()


def until(condition: Callable[[], bool], timeout_s: float = 110) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def children_of(pid: int) -> set[int]:
    """Return the processes below one, those that began sessions of their own too."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_exactly_once_into_parquet_over_kills(tmp_path: Path, spark: SparkSession) -> None:
    """Exactly once through Spark's own sink; the driver is killed with -9 in the middle and started again."""
    log, target = tmp_path / "log", tmp_path / "rows"
    write_log(log, Workload(seed=11, large=0.02), 800)
    checkpoint = tmp_path / "rows.checkpoint"
    script = Path(__file__).with_name("stream_into_parquet.py")
    command = [sys.executable, str(script), str(log), str(target), str(checkpoint)]
    with (tmp_path / "driver.log").open("wb") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output)
    batches = checkpoint / "offsets"
    try:
        until(lambda: driver.poll() is not None or len(list(batches.glob("[0-9]*"))) >= 3)
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()
        below = children_of(driver.pid)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in below))
    committed = sum(1 for _ in (checkpoint / "commits").glob("[0-9]*"))
    assert committed < 800 / 20, "it was killed in the middle"
    run_stream(spark, log, target, maxTransactionsPerTrigger=400)
    assert written_rows(spark, target) == wanted_rows(log)

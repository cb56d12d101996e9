"""A node's log in Spark, batch and stream, by `option("node", ...)`: docs/spark.md, "The log of a node"."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fix_live_group import LONG_S, LiveGroup, live_group, words
from tranlog.errors import ConfigError
from tranlog.ids import Gtid
from tranlog.pipeline.datasource.datasource_options import parse_options
from tranlog.pipeline.datasource.datasource_stream import ThlStreamReader
from tranlog.replication.acting.client import Satisfied
from tranlog.replication.acting.remote_log import RemoteLog
from tranlog.replication.rules.packets import Packet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def commit(group: LiveGroup, *texts: str) -> Gtid:
    with group.client() as client:
        for text in texts:
            answer = client.commit(words(text), w=2, wtimeout=LONG_S, event_id=text)
            while not isinstance(answer, Satisfied):  # the first may find a former primary's connection
                answer = client.commit(words(text), w=2, wtimeout=LONG_S, event_id=text)
    assert answer.gtid is not None
    return answer.gtid


@pytest.mark.spark
def test_a_query_reads_a_node(tmp_path: Path, spark: SparkSession) -> None:
    with live_group(tmp_path) as group:
        last = commit(group, *(f"e{at}" for at in range(30)))
        options = {"node": group.url, "consistency": f"at least {last}", "consistencyTimeout": "60", "partitions": "3"}
        for prefer in ("primary", "replica", "nearest"):
            read = spark.read.format("thl").options(**options, readPreference=prefer).load()
            assert read.rdd.getNumPartitions() == 3
            found = read.where("kind = 'statement'").orderBy("seqno").select("event_id", "statement", "gtid").collect()
            assert [(row["event_id"], row["statement"]) for row in found] == [(f"e{at}", f"e{at}") for at in range(30)]
            assert found[-1]["gtid"] == str(last)
        forms = {"columns": "gtid,gtid_bytes,gtid_base64", "startGtid": str(last)}
        for row in spark.read.format("thl").options(**options, **forms).load().collect():
            assert tuple(row) == (str(last), last.to_bytes(), last.to_base64())
        beside = spark.read.format("thl").load(str(tmp_path / group.await_primary()))
        assert beside.orderBy("seqno").collect() == read.orderBy("seqno").collect()


@pytest.mark.spark
def test_a_stream_goes_on_at_another_node(tmp_path: Path, spark: SparkSession) -> None:
    """Its offsets are GTIDs, which mean the same everywhere: each transaction comes once."""
    with live_group(tmp_path) as group:

        def read(text: str) -> list[str]:
            last = commit(group, text)
            options = {"node": group.url, "consistency": f"at least {last}", "consistencyTimeout": "60"}
            stream = spark.readStream.format("thl").options(**options).load().where("kind = 'statement'")
            query = (
                stream.select("event_id")
                .writeStream.format("parquet")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(tmp_path / "out"))
            )
            query.awaitTermination()
            return sorted(row["event_id"] for row in spark.read.parquet(str(tmp_path / "out")).collect())

        assert read("e0") == ["e0"]
        group.stop(group.await_primary())
        group.await_primary()
        assert read("e1") == ["e0", "e1"]


@pytest.mark.long
def test_a_stream_goes_on_where_its_node_goes_away_in_the_midst_of_a_call(tmp_path: Path) -> None:
    """It is frozen, or ends between two questions: Spark would end the query by an error."""
    with live_group(tmp_path) as group:
        stream = ThlStreamReader(parse_options({"node": group.url}))
        start = stream.initialOffset()
        commit(group, "x")
        group.await_whole()

        def lose() -> None:
            log = stream._log
            assert isinstance(log, RemoteLog)
            asked = log._node_disk.ask

            def ask(number: int, packet: Packet, within_s: float) -> Packet:
                log._node_disk.end()
                return asked(number, packet, within_s)

            log._node_disk.ask = ask  # type: ignore[method-assign]

        ends = []
        for _ in range(2):
            lose()
            ends.append(stream.latestOffset(start, ReadAllAvailable()))
        lose()
        told = stream.reportLatestOffset()
        assert ends[0] == ends[1] and told is not None and told["gtid"] == ends[0]["gtid"]
        lose()
        assert stream.partitions(start, ends[0])
        lose()
        stream.prepareForTriggerAvailableNow()
        lose()
        stream.stop()


@pytest.mark.long
def test_a_stream_that_begins_after_the_end_asks_and_goes(tmp_path: Path) -> None:
    """A node is waited for where it lacks what was read at another one; what nobody has yet is the next call's."""
    with live_group(tmp_path) as group:
        options = {"node": group.url, "startSeqno": "1000", "consistencyTimeout": "3600"}
        stream = ThlStreamReader(parse_options(options))
        start = stream.initialOffset()
        assert start == {"before": 1000} and stream.latestOffset(start, ReadAllAvailable()) == start
        stream.stop()


def test_options_of_a_node_are_checked() -> None:
    node = {"node": "thl://a:2112"}
    read = parse_options({**node, "tags": '[{"site": "x"}, {}]', "readprefERENCE": "replicapreferred"}).node
    assert read is not None and read.tags == ({"site": "x"}, {}) and read.prefer == "replicaPreferred"
    for given in (
        {"path": "log", **node},
        {"readPreference": "primary", "path": "log"},
        {**node, "readPreference": "any"},
        {**node, "consistency": "soon"},
        {**node, "tags": "x"},
        {**node, "upto": "visible"},
        {**node, "hold": "mine"},
        {**node, "tlsCa": "ca.pem"},
        {**node, "tlsKey": "key.pem"},
        {"node": "a:2112"},
    ):
        with pytest.raises(ConfigError):
            parse_options(given)

"""Loads from a server under writers: a strict replay of the log, and tables that cannot be read at a position.

Proves: issue 30, item 1 and "How it is proven": after each chunk every before image equals what stands there, for
chunks read under six writers, without a lock.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fix_mariadb_source import options_for
from tranlog.capture.capture import Capture
from tranlog.capture.load_requests import LoadRequest, ask, read_requests
from tranlog.change import RowChange, TableName
from tranlog.ids import Seqno
from tranlog.loads import LoadChunk, mark_of
from tranlog.log.writing.log import Log
from tranlog.payload import decode
from tranlog.pipeline.rules import loading
from tranlog.source.mariadb import MariadbSource
from tranlog.source.mariadb.position import gtid_text
from tranlog.source.mariadb.snapshot import MariadbSnapshot
from tranlog.source.mariadb.tables import MariadbTables
from tranlog.testing.servers import MariaDbAddress
from tranlog.types import canonical

WRITERS = 6
TABLES = {
    "whole": ("id BIGINT PRIMARY KEY, n INT", "{k}"),
    "pair": ("a INT UNSIGNED, b SMALLINT, n INT, PRIMARY KEY (a, b)", "{k} DIV 7, {k}"),
    "raw": ("id VARBINARY(20) PRIMARY KEY, n INT", "CONCAT('Ab', CHAR({k} MOD 256), {k})"),
    "words": ("id VARCHAR(40) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT", "CONCAT('é', {k})"),
    "keyless": ("a INT, n INT", "{k}"),
}


class Replay:
    """The rows that a log leads to; each change must find its row as it says that it was."""

    def __init__(self) -> None:
        self.rows: dict[TableName, Counter[Any]] = {}
        self.chunks: Counter[TableName] = Counter()
        self.passed = 0
        self.strict = 0
        self._loads: loading.Loads = {}

    def read(self, log: Log) -> None:
        with log.cursor() as cursor:
            while (header := cursor.next_header()) is not None:
                raw = list(cursor.current().payloads())
                mark = mark_of(decode(raw[-1]).metadata)
                if mark is not None:
                    self._loads, verdict = loading.step(self._loads, mark, "p")
                    if isinstance(verdict, loading.NotForUs):
                        continue
                    if isinstance(mark.step, LoadChunk):
                        self.chunks[mark.step.table] += 1
                changes = [change for part in raw for change in decode(part).changes]
                left = changes
                if mark is None:
                    left = list(loading.counting(loading.loading(self._loads), changes, Seqno(header.seqno)))
                    self.strict += len(left)
                    self.passed += len(changes) - len(left)
                for change in left:
                    assert isinstance(change, RowChange)
                    rows = self.rows.setdefault((change.table.schema, change.table.table), Counter())
                    if change.before is not None:
                        before = tuple(map(canonical, change.before))
                        assert rows[before], f"seqno {header.seqno}: no row is {change.before}"
                        rows[before] -= 1
                    if change.after is not None:
                        rows[tuple(map(canonical, change.after))] += 1


@pytest.mark.integration
def test_each_chunk_stands_where_it_was_read(
    mariadb: MariaDbAddress, mariadb_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tranlog.capture.loading._ROWS_FIRST", 40)
    monkeypatch.setattr("tranlog.capture.loading._ROWS_MOST", 40)
    monkeypatch.setattr("tranlog.capture.loading._ROWS_LEAST", 10)
    for table, (columns, key) in TABLES.items():
        mariadb.execute(f"CREATE TABLE {table} ({columns})", database=mariadb_database)
        mariadb.execute(
            f"INSERT INTO {table} SELECT {key.format(k='seq')}, 0 FROM seq_1_to_700", database=mariadb_database
        )
    options = options_for(mariadb, databases=(mariadb_database,))
    stop = threading.Event()
    failures: list[BaseException] = []
    writers = [
        threading.Thread(target=_write, args=(mariadb, mariadb_database, number, stop, failures), daemon=True)
        for number in range(WRITERS)
    ]
    source = MariadbSource(options)
    with Log.open(str(tmp_path / "log"), source_id=options.source_id) as log:
        ask(log.path, LoadRequest(load="1", asked_at=0))
        for writer in writers:
            writer.start()
        try:
            capture = Capture(source, log)
            watcher = threading.Thread(target=_stop_at_its_end, args=(capture, log.path), daemon=True)
            watcher.start()
            capture.run()
        finally:
            stop.set()
            for writer in writers:
                writer.join()
        assert not failures
        Capture(source, log).catch_up(wait_s=1.0)
        source.close()
        replay = Replay()
        replay.read(log)
    reader = MariadbTables(options)
    for found in reader.tables():
        there = Counter(tuple(map(canonical, row)) for row in reader.rows(found))
        assert +replay.rows[found.schema, found.table] == there, found.name
    reader.close()
    chunks = {table: replay.chunks[mariadb_database, table] for table in TABLES}
    assert min(chunks["whole"], chunks["pair"], chunks["raw"]) > 3
    assert chunks["words"] == chunks["keyless"] == 1
    assert replay.strict
    assert replay.passed


def _stop_at_its_end(capture: Capture, log_dir: str) -> None:
    while read_requests(log_dir):
        time.sleep(0.05)
    capture.stop()


def _write(
    server: MariaDbAddress, database: str, number: int, stop: threading.Event, failures: list[BaseException]
) -> None:
    choose = random.Random(number)
    connection = server.connect(database=database)
    try:
        with connection.cursor() as cursor:
            while not stop.is_set():
                table = choose.choice(list(TABLES))
                key = TABLES[table][1].format(k=choose.randrange(900))
                where = f"a = {key.partition(',')[0]}" if table in ("pair", "keyless") else f"id = {key}"
                sql = choose.choice(
                    (
                        f"INSERT IGNORE INTO {table} VALUES ({key}, 1)",
                        f"UPDATE {table} SET n = n + 1 WHERE {where}",
                        f"DELETE FROM {table} WHERE {where}",
                        f"UPDATE IGNORE whole SET id = {choose.randrange(900)} WHERE id = {choose.randrange(900)}",
                    )
                )
                _patiently(cursor, sql)
    except BaseException as exc:
        failures.append(exc)
        raise
    finally:
        connection.close()


def _patiently(cursor: Any, sql: str) -> None:
    import pymysql

    try:
        cursor.execute(sql)
    except pymysql.err.OperationalError as exc:
        if exc.args[0] not in (1205, 1213):  # a deadlock among the writers
            raise


@pytest.mark.integration
def test_a_table_without_snapshots_is_named_and_the_others_are_loaded(
    mariadb: MariaDbAddress, mariadb_database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mariadb.execute("CREATE TABLE plain (id INT PRIMARY KEY) ENGINE = MyISAM", database=mariadb_database)
    mariadb.execute("CREATE TABLE good (id INT PRIMARY KEY)", database=mariadb_database)
    mariadb.execute("INSERT INTO plain VALUES (1)", database=mariadb_database)
    mariadb.execute("INSERT INTO good VALUES (1)", database=mariadb_database)
    options = options_for(mariadb, databases=(mariadb_database,))
    source = MariadbSource(options)
    with Log.open(str(tmp_path / "log"), source_id=options.source_id) as log:
        ask(log.path, LoadRequest(load="1", asked_at=0))
        Capture(source, log).catch_up(wait_s=0.5)
        source.close()
        assert read_requests(log.path) == []
        replay = Replay()
        replay.read(log)
    assert replay.chunks == {(mariadb_database, "good"): 1}
    assert f"{mariadb_database}.plain" in caplog.text and "MyISAM" in caplog.text


@pytest.mark.integration
def test_an_event_beyond_the_packet_s_limit_keeps_no_load_away(mariadb: MariaDbAddress, mariadb_database: str) -> None:
    """The server cannot count the GTIDs up to a place after it; an updated row has two images in its event."""
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY, b LONGTEXT)", database=mariadb_database)
    mariadb.execute("INSERT INTO t VALUES (1, REPEAT('x', 3000000))", database=mariadb_database)
    ((before,),) = mariadb.execute("SELECT @@global.max_allowed_packet")
    mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        ((file, offset, *_),) = mariadb.execute("SHOW MASTER STATUS")
        assert mariadb.execute(f"SELECT BINLOG_GTID_POS('{file}', {offset})") == [(None,)]
        snapshot = MariadbSnapshot(options_for(mariadb, databases=(mariadb_database,)))
        (table,) = snapshot.tables()
        assert len(list(snapshot.chunk(table, None, 10))) == 1
        snapshot.close()
        ((gtids,),) = mariadb.execute("SELECT @@global.gtid_binlog_pos")
    finally:
        mariadb.execute(f"SET GLOBAL max_allowed_packet = {before}")
        mariadb.execute("FLUSH BINARY LOGS")
    place = snapshot.position
    assert (gtid_text(place.gtids), place.file, place.offset) == (gtids, file, offset)
